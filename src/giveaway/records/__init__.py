"""The records that flow between stages: frozen, checked once, each saves and loads itself."""

from giveaway.records.examples import infer_loss
from giveaway.records.head import Head
from giveaway.records.rows import FileRows, HostRows, LazyRows, LinearRows
from giveaway.records.score_table import ScoreTable
from giveaway.records.signals import Signals
from giveaway.records.streams import Stream, StreamedRows

__all__ = [
    "FileRows",
    "Head",
    "HostRows",
    "LazyRows",
    "LinearRows",
    "ScoreTable",
    "Signals",
    "Stream",
    "StreamedRows",
    "infer_loss",
]
