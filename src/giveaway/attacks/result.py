"""AttackScores: what an attack says of every record for every target model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from giveaway.checks import fail
from giveaway.records import Signals


@dataclass(frozen=True, eq=False)
class AttackScores:
    """Scores (T, N) of N records for T target models, high = member, beside what is true."""

    attack: str
    scores: np.ndarray
    members: np.ndarray
    options: Mapping[str, Any] = field(default_factory=dict)


def check_same_records(targets: Signals, references: Signals) -> None:
    """Refuse references that saw other records than the targets."""
    if targets.kind != references.kind or targets.values.shape[1:] != references.values.shape[1:]:
        raise fail("references", f"signals on the records of {targets!r}", repr(references), "align records and kind")
    if targets.labels is not None and references.labels is not None:
        other = np.flatnonzero(targets.labels != references.labels)
        if len(other):
            got = f"{len(other)} others, first at row {other[0]}"
            raise fail("references", "the labels of the targets' records", got, "align the records")
