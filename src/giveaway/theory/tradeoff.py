"""The trade-off curve: the least rate β of missed members at a rate α of falsely accused non-members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, ndtr, ndtri

from giveaway.theory.arguments import in_range

AT_ONCE = 1 << 21
RATES = "give rates such as 0.01"


@dataclass(frozen=True)
class TradeOff:
    """One curve, or one a record: `errors` maps rates α, broadcast against the records' `shape`, to (1 − β, β).

    Both are kept because each is exact where it is small. `known_auc` is given where there is a closed form.
    An α below 1e-150 counts as 0.
    """

    errors: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    shape: tuple[int, ...] = ()
    known_auc: np.ndarray | None = None

    def tpr(self, fpr: ArrayLike) -> np.ndarray:
        """True-positive rate 1 − β at a false-positive rate, broadcast over records."""
        return self.errors(in_range("fpr", fpr, 0, 1, RATES))[0][()]

    def beta(self, alpha: ArrayLike) -> np.ndarray:
        """Rate of missed members at the false-positive rate α, broadcast over records."""
        return self.errors(in_range("alpha", alpha, 0, 1, RATES))[1][()]

    def auc(self) -> np.ndarray:
        """∫ (1 − β) dα for every record: a trapezoid rule in log(α/(1 − α)) where no closed form is known."""
        if self.known_auc is not None:
            return self.known_auc[()]
        logits, step = np.linspace(-36, 36, 289, retstep=True)
        alpha = expit(logits)
        total = np.zeros(self.shape)
        each = max(1, AT_ONCE // max(1, total.size))
        for start in range(0, alpha.size, each):
            part = self._across(alpha[start : start + each])
            total += (self.errors(part)[0] * part * (1 - part)).sum(axis=0) * step
        return np.clip(total, 0.5, 1.0)[()]

    def is_convex(self, *, points: int = 200, tolerance: float = 1e-9) -> np.ndarray:
        """Whether β is convex in α on a grid, as the curve of every likelihood-ratio test is.

        A test that is not one (the threshold of Corollary 3.3) can fail this: mixing two of its thresholds at random
        then does better than a threshold between them.
        """
        alpha = np.linspace(0, 1, points + 1)
        beta = self.errors(self._across(alpha))[1]
        return np.asarray((np.diff(beta, n=2, axis=0) >= -tolerance).all(axis=0))[()]

    def _across(self, alpha: np.ndarray) -> np.ndarray:
        """`alpha` along a new first axis, before the records' own."""
        return alpha.reshape(-1, *[1] * len(self.shape))


def gaussian(mu: ArrayLike) -> TradeOff:
    """G_μ(α) = Φ(Φ⁻¹(1 − α) − μ), the curve of N(0, 1) against N(μ, 1).

    >>> gaussian(1.0).tpr(0.05).round(4)
    np.float64(0.2595)
    """
    shift = in_range("mu", mu, 0, np.inf, "give a separation such as 1")

    def errors(alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = ndtri(alpha) + shift
        return ndtr(at), ndtr(-at)

    return TradeOff(errors, shift.shape, ndtr(shift / np.sqrt(2)))
