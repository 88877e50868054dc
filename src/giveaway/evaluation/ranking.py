"""Agreement of two rankings."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from giveaway.checks import fail


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Rank correlation; ties share their mean rank. 0 where either side is constant."""
    x, y = _pair(a, b)
    ranks_x, ranks_y = rankdata(x), rankdata(y)
    ranks_x -= ranks_x.mean()
    ranks_y -= ranks_y.mean()
    size = float(np.linalg.norm(ranks_x) * np.linalg.norm(ranks_y))
    return float(ranks_x @ ranks_y) / size if size > 0 else 0.0


def recall_at(scores: ArrayLike, truth: ArrayLike, top: float, keep: float) -> float:
    """Share of the true top `top` (a fraction of all records) found among the `keep` highest scores.

    Counts are round(n·share). Ties at either boundary get fractional credit: each tied record counts by the share of
    the tied places that lie inside, so the order of the rows never matters.

    >>> recall_at([3, 2, 1, 0], [9, 1, 8, 0], top=0.5, keep=0.5)
    0.5
    """
    s, t = _pair(scores, truth)
    return float(_inside(s, keep, "keep") @ _inside(t, top, "top")) / round(len(t) * top)


def _inside(values: np.ndarray, share: float, argument: str) -> np.ndarray:
    count = round(len(values) * share)
    if not 0 < count <= len(values):
        raise fail(
            argument, f"a share that keeps 1 to {len(values)} records", f"{share}", "give a fraction such as 0.05"
        )
    boundary = np.partition(values, len(values) - count)[len(values) - count]
    above, tied = values > boundary, values == boundary
    return above + tied * (count - above.sum()) / tied.sum()


def _pair(a: ArrayLike, b: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise fail("scores", "two rankings of the same records", f"shapes {x.shape} and {y.shape}", "align them")
    return x, y
