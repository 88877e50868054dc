"""Agreement of two rankings."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from giveaway.checks import fail


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Rank correlation; ties share their mean rank. 0 where either side is constant."""
    x, y = same_records(a, b)
    return rank_correlation(rankdata(x), rankdata(y))


def rank_correlation(ranks_a: np.ndarray, ranks_b: np.ndarray) -> float:
    """`spearman` of values that are mean ranks already."""
    a, b = ranks_a - ranks_a.mean(), ranks_b - ranks_b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size > 0 else 0.0


def recall_at(scores: ArrayLike, truth: ArrayLike, top: float, keep: float) -> float:
    """Share of the true top `top` (a fraction of all records) found among the `keep` highest scores.

    Counts are round(n·share). Ties at either boundary get fractional credit: each tied record counts by the share of
    the tied places that lie inside, so the order of the rows never matters.

    >>> recall_at([3, 2, 1, 0], [9, 1, 8, 0], top=0.5, keep=0.5)
    0.5
    """
    s, t = same_records(scores, truth)
    return float(_inside(s, keep, "keep") @ _inside(t, top, "top")) / round(len(t) * top)


def recall_curve(
    scores: ArrayLike, truth: ArrayLike, top: float, keeps: ArrayLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Kept shares, by default log-spaced from one record to all, and `recall_at` for each of them.

    >>> keeps, recalls = recall_curve([3, 2, 1, 0], [9, 1, 8, 0], top=0.5)
    >>> keeps.tolist(), recalls.tolist()
    ([0.25, 0.5, 0.75, 1.0], [0.5, 0.5, 1.0, 1.0])
    """
    s, t = same_records(scores, truth)
    n = len(t)
    shares = log_spaced_counts(n) / n if keeps is None else np.atleast_1d(np.asarray(keeps, dtype=np.float64))
    counts = _counts(n, shares, "keeps")
    _, place, sizes = np.unique(-s, return_inverse=True, return_counts=True)
    kept = np.concatenate([[0], sizes.cumsum()])  # records above and in each tie, from the highest score down
    found = np.concatenate([[0.0], np.bincount(place, weights=_inside(t, top, "top")).cumsum()])
    return shares, np.interp(counts, kept, found) / round(n * top)


def log_spaced_counts(n: int, most: int = 200) -> np.ndarray:
    """At most `most` different whole numbers from 1 to n, evenly spaced in the logarithm as far as they can be."""
    return np.unique(np.rint(np.geomspace(1, n, most)).astype(np.int64))


def same_records(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Two rankings as float64 vectors of one length, at least 2."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise fail("scores", "two rankings of the same records", f"shapes {x.shape} and {y.shape}", "align them")
    return x, y


def _inside(values: np.ndarray, share: float, argument: str) -> np.ndarray:
    count = int(_counts(len(values), np.asarray(share), argument))
    boundary = np.partition(values, len(values) - count)[len(values) - count]
    above, tied = values > boundary, values == boundary
    return above + tied * (count - above.sum()) / tied.sum()


def _counts(n: int, shares: np.ndarray, argument: str) -> np.ndarray:
    counts = np.rint(n * shares)
    valid = (counts > 0) & (counts <= n)
    if not valid.all():
        got = f"{shares[~valid].flat[0]}"
        raise fail(argument, f"a share that keeps 1 to {n} records", got, "give a fraction such as 0.05")
    return counts.astype(np.int64)
