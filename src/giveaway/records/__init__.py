"""The records that flow between stages: frozen, checked once, each saves and loads itself."""

from giveaway.records.head import Head
from giveaway.records.score_table import ScoreTable
from giveaway.records.signals import Signals
from giveaway.records.targets import infer_loss

__all__ = ["Head", "ScoreTable", "Signals", "infer_loss"]
