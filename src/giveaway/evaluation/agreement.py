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
from giveaway.evaluation.ranking import rank_correlation, recall_at, same_records
from giveaway.evaluation.roc import Interval

SHARES = ((0.01, 0.05), (0.05, 0.05))


@dataclass(frozen=True)
class Agreement:
    """One score against the truth: recall for each (top, keep), and Spearman's correlation.

    Standard deviations are over targets (ddof 1); NaN where there is one target only.
    """

    score: str
    recall: dict[tuple[float, float], Interval]
    spearman: Interval
    recall_std: dict[tuple[float, float], float]
    spearman_std: float


@dataclass(frozen=True)
class AgreementTable:
    """A row a score; values are means over `targets` audited models, which have `records` records in all."""

    rows: tuple[Agreement, ...]
    records: int
    confidence: float
    targets: int
    resampled: str  # what the bootstrap of the intervals draws; "nothing": they are the value alone

    def best(self) -> Agreement:
        """The score with the highest recall of the narrowest top."""
        first = next(iter(self.rows[0].recall))
        return max(self.rows, key=lambda row: row.recall[first].value)

    def to_csv(self) -> str:
        """Values, interval ends and standard deviations over targets as comma-separated text."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        ends = ("", "_low", "_high", "_std")
        writer.writerow(["score", "targets", *(f"{name}{end}" for name in self._names() for end in ends)])
        for row in self.rows:
            numbers = [value for cell, std in self._cells(row) for value in (cell.value, cell.low, cell.high, std)]
            texts = ["" if np.isnan(value) else f"{value:.6g}" for value in numbers]
            writer.writerow([row.score, self.targets, *texts])
        return stream.getvalue()

    def to_markdown(self) -> str:
        """Values with their intervals, to two digits, and a line that says what they are."""
        lines = ["| score | " + " | ".join(self._names()) + " |", "|---" * (len(self._names()) + 1) + "|"]
        for row in self.rows:
            spread = [f" ± {std:.2f}" if self.targets > 1 else "" for _, std in self._cells(row)]
            cells = [
                f"{cell.value:.2f}{std} ({cell.low:.2f}–{cell.high:.2f})"
                for (cell, _), std in zip(self._cells(row), spread, strict=True)
            ]
            lines.append(f"| {row.score} | " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", self._caption()]) + "\n"

    def _caption(self) -> str:
        what = f"Mean ± standard deviation over {self.targets} targets" if self.targets > 1 else "1 target"
        if self.resampled == "nothing":
            return f"{what}, {self.records} records in all; without intervals."
        fisher = " (spearman: Fisher's)" if self.targets == 1 else ""
        return (
            f"{what}, {self.records} records in all; in brackets {self.confidence:.0%} intervals, "
            f"bootstrap over {self.resampled}{fisher}."
        )

    def _names(self) -> list[str]:
        return [f"top {top:.0%} in {keep:.0%}" for top, keep in self.rows[0].recall] + ["spearman"]

    @staticmethod
    def _cells(row: Agreement) -> list[tuple[Interval, float]]:
        recalls = [(cell, row.recall_std[pair]) for pair, cell in row.recall.items()]
        return [*recalls, (row.spearman, row.spearman_std)]


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

    >>> table = agreement({"good": [3, 2, 1, 0]}, [9, 8, 1, 0], shares=[(0.5, 0.5)], resamples=0)
    >>> table.rows[0].recall
    {(0.5, 0.5): Interval(value=1.0, low=1.0, high=1.0)}
    """
    return agreement_over_targets(
        [(scores, truth)], shares=shares, confidence=confidence, resamples=resamples, seed=seed
    )


def agreement_over_targets(
    targets: Sequence[tuple[Mapping[str, ArrayLike], ArrayLike]],
    *,
    shares: Sequence[tuple[float, float]] = SHARES,
    confidence: float = 0.95,
    resamples: int = 100,
    seed: int = 0,
) -> AgreementTable:
    """`agreement` as the mean over several audited models, each given by its scores and the truth of its records.

    Intervals are percentiles of a hierarchical bootstrap: targets are drawn with replacement, then records inside each
    of those drawn. They are wide for targets that are alike, and too narrow for fewer than about ten that differ by
    more than their records explain. One target has the intervals of `agreement`.
    """
    if not targets or not targets[0][0] or not shares:
        raise fail("scores", "at least one score and one pair of shares", "none", "name what to compare")
    names = list(targets[0][0])
    places = [_places(names, scores, truth) for scores, truth in targets]
    count, lengths = len(places), [table.shape[1] for table in places]
    each = np.array([_figures(table, np.arange(n), shares) for table, n in zip(places, lengths, strict=True)])
    values = each.mean(axis=0)
    generator = np.random.default_rng(seed)
    drawn = np.empty((resamples, *values.shape))
    for again in drawn:
        chosen = generator.integers(0, count, count) if count > 1 else [0]
        again[:] = np.mean(
            [_figures(places[t], generator.integers(0, lengths[t], lengths[t]), shares) for t in chosen], axis=0
        )
    tail = 50 * (1 - confidence)
    low, high = np.percentile(drawn, [tail, 100 - tail], axis=0) if resamples else (values, values)
    std = each.std(axis=0, ddof=1) if count > 1 else np.full(values.shape, np.nan)
    rows = []
    for row, name in enumerate(names):
        cells = [Interval(*map(float, ends)) for ends in zip(values[row], low[row], high[row], strict=True)]
        correlation = cells.pop()
        if count == 1 and resamples:
            correlation = _fisher(correlation.value, lengths[0], confidence)
        recalls = dict(zip(shares, cells, strict=True))
        deviations = dict(zip(shares, map(float, std[row]), strict=False))
        rows.append(Agreement(name, recalls, correlation, deviations, float(std[row, -1])))
    resampled = ("targets and records" if count > 1 else "records") if resamples else "nothing"
    return AgreementTable(tuple(rows), sum(lengths), confidence, count, resampled)


def _places(names: Sequence[str], scores: Mapping[str, ArrayLike], truth: ArrayLike) -> np.ndarray:
    """The place of every record among the different values, of the truth (first row) and of each score."""
    if set(scores) != set(names):
        got = f"{', '.join(scores)} beside {', '.join(names)}"
        raise fail("targets", "the same scores for every target", got, "compare those that all of them have")
    known = np.asarray(truth, dtype=np.float64)
    columns = [known, *(same_records(scores[name], known)[0] for name in names)]
    return np.array([np.unique(values, return_inverse=True)[1] for values in columns])


def _figures(places: np.ndarray, rows: np.ndarray, shares: Sequence[tuple[float, float]]) -> np.ndarray:
    """For each score the recalls and the rank correlation on these rows, which may repeat."""
    known, *ranked = (_mean_ranks(values[rows]) for values in places)
    return np.array(
        [
            [*(recall_at(ranks, known, top, keep) for top, keep in shares), rank_correlation(ranks, known)]
            for ranks in ranked
        ]
    )


def _mean_ranks(places: np.ndarray) -> np.ndarray:
    """Ranks of small whole numbers, ties at their mean; counts instead of a sort for every resample."""
    counts = np.bincount(places)
    return (counts.cumsum() - (counts - 1) / 2)[places]


def _fisher(correlation: float, n: int, confidence: float) -> Interval:
    inside = np.clip(correlation, -1 + 1e-15, 1 - 1e-15)
    if abs(correlation) == 1.0:
        return Interval(correlation, correlation, correlation)
    reach = norm.isf((1 - confidence) / 2) * np.sqrt(1.06 / max(n - 3, 1))
    low, high = np.tanh(np.arctanh(inside) + np.array([-reach, reach]))
    return Interval(correlation, float(low), float(high))
