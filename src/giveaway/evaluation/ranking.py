"""How well one ranking of the records finds the top of another: recall, rank correlation, and a table of both."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm, rankdata

from giveaway.checks import fail

SHARES = ((0.01, 0.05), (0.05, 0.05))


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Return the rank correlation; ties share their mean rank. It is 0 where either side is constant."""
    x, y = _same_records(a, b)
    return _rank_correlation(rankdata(x), rankdata(y))


def recall_at(scores: ArrayLike, truth: ArrayLike, top: float, keep: float) -> float:
    """Return the share of the true top `top` (a fraction of all records) among the `keep` highest scores.

    Counts are round(n·share). Ties at either boundary get fractional credit: each tied record counts by the share of
    the tied places that lie inside, so the order of the rows never matters.

    >>> recall_at([3, 2, 1, 0], [9, 1, 8, 0], top=0.5, keep=0.5)
    0.5
    """
    s, t = _same_records(scores, truth)
    return float(_share_inside(s, keep, "keep") @ _share_inside(t, top, "top")) / round(len(t) * top)


def recall_curve(
    scores: ArrayLike, truth: ArrayLike, top: float, keeps: ArrayLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return kept shares, by default log-spaced from one record to all, and `recall_at` for each of them.

    >>> keeps, recalls = recall_curve([3, 2, 1, 0], [9, 1, 8, 0], top=0.5)
    >>> keeps.tolist(), recalls.tolist()
    ([0.25, 0.5, 0.75, 1.0], [0.5, 0.5, 1.0, 1.0])
    """
    s, t = _same_records(scores, truth)
    n = len(t)
    shares = log_spaced_counts(n) / n if keeps is None else np.atleast_1d(np.asarray(keeps, dtype=np.float64))
    counts = _counts(n, shares, "keeps")
    _, place, sizes = np.unique(-s, return_inverse=True, return_counts=True)
    kept = np.concatenate([[0], sizes.cumsum()])  # records above and in each tie, from the highest score down
    hits = np.concatenate([[0.0], np.bincount(place, weights=_share_inside(t, top, "top")).cumsum()])
    return shares, np.interp(counts, kept, hits) / round(n * top)


def log_spaced_counts(n: int) -> np.ndarray:
    """Return at most 200 different whole numbers from 1 to n, evenly spaced in the logarithm as far as they can be."""
    return np.unique(np.rint(np.geomspace(1, n, 200)).astype(np.int64))


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Agreement:
    """One score against the truth."""

    score: str
    recall: dict[tuple[float, float], Interval]
    spearman: Interval


@dataclass(frozen=True)
class AgreementTable:
    """One row for each score; without `resamples`, intervals are the value alone."""

    rows: tuple[Agreement, ...]
    records: int
    confidence: float
    resamples: int

    def to_csv(self) -> str:
        """Write values and interval ends as comma-separated text."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["score", *(f"{name}{end}" for name in self._names() for end in ("", "_low", "_high"))])
        for row in self.rows:
            numbers = [value for cell in self._cells(row) for value in (cell.value, cell.low, cell.high)]
            writer.writerow([row.score, *(f"{value:.6g}" for value in numbers)])
        return stream.getvalue()

    def to_markdown(self) -> str:
        """Write values with their intervals, to two digits, and a line that says what they are."""
        lines = ["| score | " + " | ".join(self._names()) + " |", "|---" * (len(self._names()) + 1) + "|"]
        for row in self.rows:
            cells = [f"{cell.value:.2f} ({cell.low:.2f}–{cell.high:.2f})" for cell in self._cells(row)]
            lines.append(f"| {row.score} | " + " | ".join(cells) + " |")
        intervals = "without intervals"
        if self.resamples:
            intervals = f"in brackets {self.confidence:.0%} intervals, bootstrap over records (spearman: Fisher's)"
        return "\n".join([*lines, "", f"{self.records} records; {intervals}."]) + "\n"

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
    """Hold each score against the truth: its recall of the true top, and its rank correlation.

    Intervals of recalls are bootstrap percentiles over records; that of Spearman's correlation is Fisher's, with the
    variance 1.06/(n − 3) of ranks.

    >>> table = agreement({"good": [3, 2, 1, 0]}, [9, 8, 1, 0], shares=[(0.5, 0.5)], resamples=0)
    >>> table.rows[0].recall
    {(0.5, 0.5): Interval(value=1.0, low=1.0, high=1.0)}
    """
    if not scores or not shares:
        raise fail("scores", "at least one score and one pair of shares", "none", "name what to compare")
    columns = [np.asarray(truth, dtype=np.float64), *(_same_records(column, truth)[0] for column in scores.values())]
    # of every record among the different values, of the truth (first row) and of each score
    places = np.array([np.unique(values, return_inverse=True)[1] for values in columns])
    n, values = places.shape[1], _figures(places, shares)
    generator = np.random.default_rng(seed)
    drawn = [_figures(places[:, generator.integers(0, n, n)], shares) for _ in range(resamples)]
    rows = []
    for row, name in enumerate(scores):
        of_score = np.array([figures[row] for figures in drawn])
        *cells, correlation = percentile_intervals(values[row], of_score, confidence)
        if resamples and abs(correlation.value) < 1.0:
            reach = norm.isf((1 - confidence) / 2) * np.sqrt(1.06 / max(n - 3, 1))
            turned = np.arctanh(np.clip(correlation.value, -1 + 1e-15, 1 - 1e-15))
            correlation = Interval(correlation.value, *np.tanh(turned + np.array([-reach, reach])).tolist())
        rows.append(Agreement(name, dict(zip(shares, cells, strict=True)), correlation))
    return AgreementTable(tuple(rows), n, confidence, resamples)


def _figures(places: np.ndarray, shares: Sequence[tuple[float, float]]) -> np.ndarray:
    """Return for each score the recalls and the rank correlation, from the places in the truth and in the scores."""
    ranks = []
    for chosen in places:  # small whole numbers are ranked by counting instead of a sort for every resample
        counts = np.bincount(chosen)
        ranks.append((counts.cumsum() - (counts - 1) / 2)[chosen])
    known, *ranked = ranks
    figures = [[*(recall_at(r, known, top, keep) for top, keep in shares), _rank_correlation(r, known)] for r in ranked]
    return np.array(figures)


def percentile_intervals(values: np.ndarray, drawn: np.ndarray, confidence: float) -> list[Interval]:
    """Return values (k,) with percentile intervals over draws (resamples, k); the values alone where there is none."""
    tail = 50 * (1 - confidence)
    ends = np.nanpercentile(drawn, [tail, 100 - tail], axis=0) if len(drawn) else (values, values)
    return [Interval(*map(float, one)) for one in zip(values, *ends, strict=True)]


def _rank_correlation(ranks_a: np.ndarray, ranks_b: np.ndarray) -> float:
    a, b = ranks_a - ranks_a.mean(), ranks_b - ranks_b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size > 0 else 0.0


def _same_records(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return two rankings as float64 vectors of one length, at least 2."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise fail("scores", "two rankings of the same records", f"shapes {x.shape} and {y.shape}", "align them")
    if count := int((np.isnan(x) | np.isnan(y)).sum()):
        raise fail("scores", "a place for every record", f"NaN for {count} of {len(x)}", "leave these records out")
    return x, y


def _share_inside(values: np.ndarray, share: float, argument: str) -> np.ndarray:
    """Say how much of each record lies in the top `share`: 1, 0, or a part of it at the boundary's tie."""
    count = int(_counts(len(values), np.asarray(share), argument))
    boundary = np.partition(values, len(values) - count)[len(values) - count]
    above, tied = values > boundary, values == boundary
    return above + tied * (count - above.sum()) / tied.sum()


def _counts(n: int, shares: np.ndarray, argument: str) -> np.ndarray:
    counts = np.rint(n * shares)
    if not (valid := (counts > 0) & (counts <= n)).all():
        got = f"{shares[~valid].flat[0]}"
        raise fail(argument, f"a share that keeps 1 to {n} records", got, "give a fraction such as 0.05")
    return counts.astype(np.int64)
