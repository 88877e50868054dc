"""Two views of one record: what the head did with it, and what the other records predict for it (docs/fused.md).

Both are noisy, monotone measures of how much of a record the model holds. Training has removed the share
M = 1 − Σ‖error with it‖² / Σ‖error without it‖² of the left-out error. Where M is near 0 the head's Newton step tells
the gap and near 1 what is left of the error tells how hard a record was; in between a large error may be a hard record
or one that was never learned, so that the head's view counts M² + (1 − M)², the chance that two records are of one
kind. The more of the targets a model holds by memory, the more its features were bent toward the records: with
G = (Σ‖error without it‖² − Σ‖error with it‖²) / Σ‖y − ȳ‖² the head's view counts 1 − G of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

LEAST = 1e-300


@dataclass(frozen=True, eq=False)
class TwoViews:
    """Both views of every row: the head's score (newton, or the loss of a black box), squared errors with and without
    the row, and its leverage on the view. `variation` is Σ‖y − ȳ‖² of the targets; `head_is_exact` says that the
    head's features were not learned, so that there is nothing to add to it."""

    head: np.ndarray
    error_with: np.ndarray
    error_without: np.ndarray
    leverage: np.ndarray
    variation: float
    head_is_exact: bool

    @property
    def memorized(self) -> float:
        """M, the share of the left-out squared error that training has removed, from 0 to 1."""
        left = share_of(math.fsum(self.error_with), math.fsum(self.error_without))  # in any order of rows
        return 1.0 - left if self.error_without.any() else 0.0

    @property
    def held(self) -> float:
        """G, the share of the targets' variation that the model holds by memory, from 0 to 1."""
        gap = math.fsum(self.error_without) - math.fsum(self.error_with)
        return share_of(gap, self.variation) if self.variation > 0 else 0.0

    @property
    def head_weight(self) -> float:
        """What the head's view counts beside 1 for the other."""
        m = self.memorized
        return (1.0 - self.held) * (m * m + (1.0 - m) ** 2)


def left_out(views: TwoViews) -> np.ndarray:
    """‖error without it‖² · leverage^(1 − M): the squared error that the record itself takes away.

    All of it in a model that memorizes; the share h of it that a record takes away by itself in one that does not.
    """
    return views.error_without * np.maximum(views.leverage, LEAST) ** (1.0 - views.memorized)


def fused(views: TwoViews) -> np.ndarray:
    """Φ⁻¹ of the rank by left_out, plus the head's weight times Φ⁻¹ of the rank by the head's score."""
    if views.head_is_exact:
        return normal_scores(views.head)
    return normal_scores(left_out(views)) + views.head_weight * normal_scores(views.head)


def share_of(part: float, whole: float) -> float:
    """part/whole within 0 and 1, without overflow however small the whole is."""
    return 0.0 if part <= 0 else 1.0 if part >= whole else float(part / whole)


def normal_scores(values: np.ndarray) -> np.ndarray:
    """Φ⁻¹((rank − ½)/n), equal values sharing their mean rank."""
    return ndtri((rankdata(values) - 0.5) / len(values))
