"""What the papers say, and whether it holds in our results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NOT_RUN, NO_DATA = "not run yet", "data not to be had"
Results = dict[str, dict[str, Any]]  # by setting

HOLDS, FAILS, UNMEASURED = "holds", "does not hold here", "not measured yet"


@dataclass(frozen=True)
class Claim:
    """A sentence, one of the three verdicts, and the numbers behind it."""

    text: str
    verdict: str
    why: str

    def __post_init__(self) -> None:
        if self.verdict not in (HOLDS, FAILS, UNMEASURED):
            raise ValueError(f"verdict {self.verdict!r} is none of the three")


def judged(text: str, holds: bool | None, why: str) -> Claim:
    """A claim with its verdict: None where what it needs has not been measured."""
    return Claim(text, UNMEASURED if holds is None else HOLDS if holds else FAILS, why)
