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
    if (targets.records, targets.queries, targets.kind) != (references.records, references.queries, references.kind):
        raise fail("references", f"signals on the records of {targets!r}", repr(references), "align records and kind")
