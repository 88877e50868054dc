"""Two normal laws against each other: what the best test of a member's law against a non-member's achieves.

Any pair in which the member varies less is, up to scale, N(δe₁, I_q) left out and c·N(δe₁, I_q) trained on, c < 1: the
likelihood ratio exceeds 1 exactly in the ball ‖z − bδe₁‖² < R² with b = c/(1 + c) and
R² = (bδ)² − 2q·log(c)·c²/(1 − c²).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import owens_t

from giveaway.theory.arguments import in_range
from giveaway.theory.balls import ball_probability, dilated_ball, in_blocks
from giveaway.theory.tradeoff import TradeOff

NARROWEST = 1e-12  # 1 − c below which the two spreads count as equal to that
LEAST_RATIO = 1e-100  # of the spreads: a narrower member is found at any α that matters
MOST_GAP = 1e3  # in units of sd_out: nothing is missed further out


def two_normals(gap: ArrayLike, sd_in: ArrayLike, sd_out: ArrayLike) -> TradeOff:
    """The curve of the best test of N(m + gap, sd_in²), members, against N(m, sd_out²), non-members.

    Where sd_in exceeds sd_out it is put at sd_out: a member that varies more is no theory's case, and a wide law
    accused on both sides would call it exposed for that alone.

    >>> two_normals(1.0, 1.0, 1.0).tpr(0.05).round(4)
    np.float64(0.2595)
    """
    delta, c = _standard(gap, sd_in, sd_out)
    eta = (1 - c) / c

    def block(alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return dilated_ball(alpha, delta, eta, 1, signed=True)

    # the chance that a member lies nearer to the centre of the balls: a closed form in Owen's function
    auc = 1 - 2 * owens_t(delta * (1 - c) / np.sqrt(1 + c**2), 2 * c / ((1 - c) * (1 + c)))
    return TradeOff(lambda alpha: in_blocks(block, alpha, delta, eta), delta.shape, auc)


def best_success(gap: ArrayLike, sd_in: ArrayLike, sd_out: ArrayLike) -> np.ndarray:
    """(TPR + 1 − FPR)/2 where it is largest, for the laws of `two_normals`.

    >>> best_success(2.0, 1.0, 1.0).round(4)  # Φ(1)
    np.float64(0.8413)
    """
    return dilated_success(*_standard(gap, sd_in, sd_out), outputs=1)


def dilated_success(delta: ArrayLike, c: ArrayLike, *, outputs: int) -> np.ndarray:
    """The same for c·N(δe₁, I), members, against N(δe₁, I) in `outputs` dimensions, 0 < c ≤ 1."""
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


def _standard(gap: ArrayLike, sd_in: ArrayLike, sd_out: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """(δ, c): the pair of laws in units of sd_out, the gap's sign dropped."""
    separation, inside, outside = np.broadcast_arrays(
        in_range("gap", gap, -np.inf, np.inf, "give mean with − mean without"),
        in_range("sd_in", sd_in, 0, np.inf, "give a standard deviation above 0", closed=False),
        in_range("sd_out", sd_out, 0, np.inf, "give a standard deviation above 0", closed=False),
    )
    c = np.clip(np.minimum(inside, outside) / outside, LEAST_RATIO, 1 - NARROWEST)
    with np.errstate(over="ignore"):
        standard = np.minimum(np.abs(separation) / outside, MOST_GAP)
    return standard / (1 - c), c
