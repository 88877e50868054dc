"""Membership-inference attacks, each a pure function of Signals, and the training of the models that give them."""

from giveaway.attacks.lira import lira, lira_within
from giveaway.attacks.result import AttackScores

__all__ = ["AttackScores", "lira", "lira_within"]
