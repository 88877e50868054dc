"""The records that flow between stages: frozen, checked once, each saves and loads itself."""

from giveaway.records.head import Head, infer_loss
from giveaway.records.score_table import ScoreTable
from giveaway.records.signals import Signals

__all__ = ["Head", "ScoreTable", "Signals", "infer_loss"]
