"""What the LOOD settings state of their records: correlations, spreads, and the query that tells most."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import pearsonr

from giveaway.attacks.leave_one_out import leave_one_out
from giveaway.evaluation import spearman

SPREAD = (0.05, 0.25, 0.5, 0.75, 0.95)


def correlation(a: ArrayLike, b: ArrayLike) -> dict[str, float]:
    """Pearson's with its p-value, and Spearman's; 0 and 1 where a side is constant."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return {"pearson": 0.0, "p": 1.0, "spearman": 0.0}
    found = pearsonr(x, y)
    return {"pearson": digits(found.statistic), "p": digits(found.pvalue), "spearman": digits(spearman(x, y))}


def spread(values: ArrayLike) -> list[float]:
    """5, 25, 50, 75 and 95 % of the values lie below."""
    return [digits(value) for value in np.quantile(np.asarray(values, np.float64), SPREAD)]


def digits(value: Any) -> float:
    """Four of them."""
    return float(f"{float(value):.4g}")


def attack_auc(with_record: np.ndarray, without: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """AUC (chosen, offsets) of the attack that thresholds (output − the record's target)², rounds first in both."""
    losses = [np.square(side - targets[:, None], dtype=np.float64) for side in (with_record, without)]
    flat = [loss.reshape(len(loss), -1) for loss in losses]
    return leave_one_out(*flat, kind="squared_error").auc.reshape(with_record.shape[1:])


def largest_at(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The offset (records,) at which values (records, offsets) are largest; ties give their mean."""
    best = values == values.max(1, keepdims=True)
    return (best * offsets).sum(1) / best.sum(1)


def where_largest(values: np.ndarray, offsets: np.ndarray) -> dict[str, Any]:
    """Mean and deviation of the offset with the largest value, and in how many records it is the record itself."""
    at = largest_at(values, offsets)
    middle = values[:, len(offsets) // 2]
    return {
        "records": len(values),
        "mean": digits(at.mean()),
        "deviation": digits(at.std()),
        "at_the_record": int((middle == values.max(1)).sum()),
        "within_10": int((np.abs(at) <= 10).sum()),
    }
