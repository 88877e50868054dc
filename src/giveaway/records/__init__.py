"""The records that flow between stages: frozen, checked once, each saves and loads itself."""

from giveaway.records.examples import infer_loss
from giveaway.records.head import Head
from giveaway.records.indexed import indexed
from giveaway.records.loss_trace import LossTrace
from giveaway.records.rows import FileRows, HostRows, LazyRows, LinearRows, Stream, StreamedRows
from giveaway.records.score_table import ScoreTable
from giveaway.records.signals import Signals

__all__ = [
    "FileRows",
    "Head",
    "HostRows",
    "LazyRows",
    "LinearRows",
    "LossTrace",
    "ScoreTable",
    "Signals",
    "Stream",
    "StreamedRows",
    "indexed",
    "infer_loss",
]
