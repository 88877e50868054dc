"""How well cheap scores find what an attack finds, as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from giveaway.checks import fail
from giveaway.evaluation.ranking import recall_at, spearman
from giveaway.evaluation.roc import Interval

SHARES = ((0.01, 0.05), (0.05, 0.05))


@dataclass(frozen=True)
class Agreement:
    """One score against the truth: recall for each (top, keep), and Spearman's correlation."""

    score: str
    recall: dict[tuple[float, float], Interval]
    spearman: Interval


@dataclass(frozen=True)
class AgreementTable:
    """A row a score."""

    rows: tuple[Agreement, ...]
    records: int
    confidence: float

    def best(self) -> Agreement:
        """The score with the highest recall of the narrowest top."""
        first = next(iter(self.rows[0].recall))
        return max(self.rows, key=lambda row: row.recall[first].value)

    def to_csv(self) -> str:
        """Values and interval ends as comma-separated text."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["score", *(f"{name}{end}" for name in self._names() for end in ("", "_low", "_high"))])
        for row in self.rows:
            ends = [(cell.value, cell.low, cell.high) for cell in self._cells(row)]
            writer.writerow([row.score, *(f"{value:.6g}" for triple in ends for value in triple)])
        return stream.getvalue()

    def to_markdown(self) -> str:
        """Values with their intervals, to two digits."""
        lines = ["| score | " + " | ".join(self._names()) + " |", "|---" * (len(self._names()) + 1) + "|"]
        for row in self.rows:
            cells = [f"{cell.value:.2f} ({cell.low:.2f}–{cell.high:.2f})" for cell in self._cells(row)]
            lines.append(f"| {row.score} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def _names(self) -> list[str]:
        return [f"top {top:.0%} in {keep:.0%}" for top, keep in self.rows[0].recall] + ["spearman"]

    @staticmethod
    def _cells(row: Agreement) -> list[Interval]:
        return [*row.recall.values(), row.spearman]


def agreement(
    scores: Mapping[str, ArrayLike],
    truth: ArrayLike,
    *,
    shares: Sequence[tuple[float, float]] = SHARES,
    confidence: float = 0.95,
    resamples: int = 100,
    seed: int = 0,
) -> AgreementTable:
    """Each score's recall of the true top, and its rank correlation with the truth.

    Intervals of recalls are bootstrap percentiles over records; that of Spearman's correlation is Fisher's, with the
    variance 1.06/(n − 3) of ranks.

    >>> print(agreement({"good": [3, 2, 1, 0]}, [9, 8, 1, 0], shares=[(0.5, 0.5)], resamples=0).to_csv())
    score,top 50% in 50%,top 50% in 50%_low,top 50% in 50%_high,spearman,spearman_low,spearman_high
    good,1,1,1,1,1,1
    <BLANKLINE>
    """
    known = np.asarray(truth, dtype=np.float64)
    if not scores or not shares:
        raise fail("scores", "at least one score and one pair of shares", "none", "name what to compare")
    columns = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    generator = np.random.default_rng(seed)
    drawn = [generator.integers(0, len(known), len(known)) for _ in range(resamples)]
    tail = 50 * (1 - confidence)
    rows = []
    for name, values in columns.items():
        recalls = {}
        for top, keep in shares:
            value = recall_at(values, known, top, keep)
            again = [recall_at(values[rows_], known[rows_], top, keep) for rows_ in drawn] or [value]
            low, high = np.percentile(again, [tail, 100 - tail])
            recalls[top, keep] = Interval(value, float(low), float(high))
        rows.append(Agreement(name, recalls, _fisher(spearman(values, known), len(known), confidence)))
    return AgreementTable(tuple(rows), len(known), confidence)


def _fisher(correlation: float, n: int, confidence: float) -> Interval:
    inside = np.clip(correlation, -1 + 1e-15, 1 - 1e-15)
    if abs(correlation) == 1.0:
        return Interval(correlation, correlation, correlation)
    reach = norm.isf((1 - confidence) / 2) * np.sqrt(1.06 / max(n - 3, 1))
    low, high = np.tanh(np.arctanh(inside) + np.array([-reach, reach]))
    return Interval(correlation, float(low), float(high))
