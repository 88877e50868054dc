"""The records that flow between stages: frozen, checked once, each saves and loads itself."""

# ruff: noqa: F401 (the names are for others)
from giveaway.records.examples import indexed, infer_loss
from giveaway.records.head import Head
from giveaway.records.loss_trace import LossTrace
from giveaway.records.rows import FileRows, HostRows, LazyRows, LinearRows
from giveaway.records.score_table import ScoreTable
from giveaway.records.signals import Signals
