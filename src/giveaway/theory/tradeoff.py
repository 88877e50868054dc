"""Trade-off curves: how many members an attack must miss (β) if it may falsely accuse a share α of the non-members.

Besides the curve itself this file has the two curves of normal distributions that other parts of the theory build on:
`gaussian` (equal spreads) and `two_normals` (a member that varies less). For the second, any pair is up to scale
N(δe₁, I_q) left out and c·N(δe₁, I_q) trained on with c < 1, and the likelihood ratio exceeds 1 exactly in the ball
‖z − bδe₁‖² < R² with b = c/(1 + c) and R² = (bδ)² − 2q·log(c)·c²/(1 − c²).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, ndtr, ndtri, owens_t

from giveaway.checks import fail
from giveaway.theory.balls import ball_probability, dilated_ball, in_blocks

NUMBERS_AT_ONCE = 1 << 21
RATES = "give rates such as 0.01"
SPREAD = "give a standard deviation above 0"
NARROWEST = 1e-12  # 1 − c below which the two spreads count as equal to that
LEAST_RATIO = 1e-100  # of the spreads: a narrower member is found at any α that matters
MOST_GAP = 1e3  # in units of sd_out: nothing is missed further out


def in_range(
    argument: str, value: ArrayLike, low: float, high: float, remedy: str, *, closed: bool = True
) -> np.ndarray:
    """Return `value` as float64; refuse entries outside [low, high], or outside (low, high) unless `closed`."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise fail(argument, "numbers", f"{type(value).__name__}", remedy) from None
    good = (array >= low) & (array <= high) if closed else (array > low) & (array < high)
    good &= np.isfinite(array)
    if not good.all():
        bad = array[~good]
        left, right = ("[" if closed and np.isfinite(low) else "("), ("]" if closed and np.isfinite(high) else ")")
        more = f" ({bad.size} such values)" if bad.size > 1 else ""
        raise fail(argument, f"finite numbers in {left}{low:g}, {high:g}{right}", f"{bad.flat[0]:g}{more}", remedy)
    return array


def whole(argument: str, value: ArrayLike, low: int, remedy: str) -> np.ndarray:
    """Return `value` as float64; refuse entries that are not whole numbers of at least `low`."""
    array = in_range(argument, value, low, np.inf, remedy)
    if (array != np.floor(array)).any():
        raise fail(argument, "whole numbers", f"{array[array != np.floor(array)].flat[0]:g}", remedy)
    return array


@dataclass(frozen=True)
class TradeOff:
    """One trade-off curve, or one for every record.

    `errors` maps rates α, broadcast against the records' `shape`, to (1 − β, β); both are kept because each is exact
    where it is small. `known_auc` is given where there is a closed form. An α below 1e-150 counts as 0.
    """

    errors: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    shape: tuple[int, ...] = ()
    known_auc: np.ndarray | None = None

    def tpr(self, fpr: ArrayLike) -> np.ndarray:
        """Return the true-positive rate 1 − β at a false-positive rate, broadcast over records."""
        return self.errors(in_range("fpr", fpr, 0, 1, RATES))[0][()]

    def beta(self, alpha: ArrayLike) -> np.ndarray:
        """Return the share of members missed at the false-positive rate α, broadcast over records."""
        return self.errors(in_range("alpha", alpha, 0, 1, RATES))[1][()]

    def auc(self) -> np.ndarray:
        """Return ∫ (1 − β) dα for every record, by a trapezoid rule in log(α/(1 − α)) if no closed form is known."""
        if self.known_auc is not None:
            return self.known_auc[()]
        logits, step = np.linspace(-36, 36, 289, retstep=True)
        alphas = expit(logits).reshape(-1, *[1] * len(self.shape))
        total = np.zeros(self.shape)
        each = max(1, NUMBERS_AT_ONCE // max(1, total.size))
        for start in range(0, len(alphas), each):
            alpha = alphas[start : start + each]
            total += (self.errors(alpha)[0] * alpha * (1 - alpha)).sum(axis=0) * step
        return np.clip(total, 0.5, 1.0)[()]


def gaussian(mu: ArrayLike) -> TradeOff:
    """Return G_μ(α) = Φ(Φ⁻¹(1 − α) − μ), the curve of N(0, 1) against N(μ, 1).

    >>> gaussian(1.0).tpr(0.05).round(4)
    np.float64(0.2595)
    """
    shift = in_range("mu", mu, 0, np.inf, "give a separation such as 1")

    def errors(alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = ndtri(alpha) + shift
        return ndtr(at), ndtr(-at)

    return TradeOff(errors, shift.shape, ndtr(shift / np.sqrt(2)))


def two_normals(gap: ArrayLike, sd_in: ArrayLike, sd_out: ArrayLike, *, outputs: int = 1) -> TradeOff:
    """Return the curve of the best test of N(m + gap, sd_in²), members, against N(m, sd_out²), non-members.

    With several `outputs` both are normal vectors of independent entries, and `gap` is the distance of their means.
    Where sd_in exceeds sd_out it is put at sd_out: no theory has a member that varies more, and a wide distribution
    accused on both sides would call it exposed for that alone.

    >>> two_normals(1.0, 1.0, 1.0).tpr(0.05).round(4)
    np.float64(0.2595)
    """
    delta, c = _standardized(gap, sd_in, sd_out)
    auc = None
    if outputs == 1:  # the chance that a member lies nearer to the centre of the balls, by Owen's function
        auc = 1 - 2 * owens_t(delta * (1 - c) / np.sqrt(1 + c**2), 2 * c / ((1 - c) * (1 + c)))
    ball = partial(dilated_ball, q=outputs, signed=True)
    return TradeOff(lambda alpha: in_blocks(ball, alpha, delta, (1 - c) / c), delta.shape, auc)


def best_success(gap: ArrayLike, sd_in: ArrayLike, sd_out: ArrayLike) -> np.ndarray:
    """Return (TPR + 1 − FPR)/2 where it is largest, for the distributions of `two_normals`.

    >>> best_success(2.0, 1.0, 1.0).round(4)  # Φ(1)
    np.float64(0.8413)
    """
    return dilated_success(*_standardized(gap, sd_in, sd_out), outputs=1)


def dilated_success(delta: ArrayLike, c: ArrayLike, *, outputs: int) -> np.ndarray:
    """Return the same for c·N(δe₁, I), members, against N(δe₁, I) in `outputs` dimensions, 0 < c ≤ 1."""
    d, shrink = np.broadcast_arrays(np.asarray(delta, dtype=np.float64), np.asarray(c, dtype=np.float64))
    narrow = np.minimum(shrink, 1 - NARROWEST)
    flat = (d * ((1 - shrink) / (1 - narrow))).ravel(), narrow.ravel()  # the gap stays what it is

    def block(d: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        b = d * c / (1 + c)
        beyond = -2 * outputs * np.log(c) * c**2 / ((1 - c) * (1 + c))
        radius = np.sqrt(b**2 + beyond)
        edge = beyond / (radius + b)  # radius − b, without cancellation
        apart = d * (1 - c) / (1 + c)
        false = ball_probability(radius, edge - apart, d / (1 + c), outputs)[0]
        true = ball_probability(radius / c, edge / c + apart, b, outputs)[0]
        return 0.5 + 0.5 * np.maximum(true - false, 0.0), false

    return in_blocks(block, *flat)[0].reshape(d.shape)[()]


def _standardized(gap: ArrayLike, sd_in: ArrayLike, sd_out: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return (δ, c): both distributions in units of sd_out, the gap's sign dropped."""
    separation, inside, outside = np.broadcast_arrays(
        in_range("gap", gap, -np.inf, np.inf, "give mean with − mean without"),
        in_range("sd_in", sd_in, 0, np.inf, SPREAD, closed=False),
        in_range("sd_out", sd_out, 0, np.inf, SPREAD, closed=False),
    )
    c = np.clip(np.minimum(inside, outside) / outside, LEAST_RATIO, 1 - NARROWEST)
    with np.errstate(over="ignore"):
        standard = np.minimum(np.abs(separation) / outside, MOST_GAP)
    return standard / (1 - c), c
