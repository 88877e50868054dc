"""From a trade-off curve to the words of differential privacy: (ε, δ) and μ-GDP (f-DP: Dong, Roth and Su).

Training is (ε, δ)-private about a record only if every attack on it, accusing members or clearing them, has
1 − β ≤ e^ε·α + δ and 1 − α ≤ e^ε·β + δ; it is μ-GDP only if β(α) ≥ G_μ(α) = Φ(Φ⁻¹(1 − α) − μ) for every α. Both are
taken in both directions, so a curve and its mirror image give the same numbers.

*Predicted* curve → **estimate** (`estimated_…`): what the model of the theory implies, as good as that model.
*Measured* attack → **lower bound** (`…_lower_bound`): what the training at least leaks, with a confidence.
Neither is a guarantee: only an upper bound would be, and no attack gives one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, expit, logit, ndtri

from giveaway.checks import fail
from giveaway.theory.tradeoff import TradeOff, in_range, whole

GRID = 361
GOLDEN = (np.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class LowerBound:
    """A bound that holds with `confidence`, from rates of at least `tpr` and at most `fpr` (Clopper–Pearson)."""

    value: np.ndarray
    confidence: float
    tpr: np.ndarray
    fpr: np.ndarray


@dataclass(frozen=True)
class GaussianEstimate:
    """The Gaussian curves that enclose a curve: G_high ≤ β ≤ G_low wherever both error rates are at least `floor`.

    `high` is the μ that training would need at least (a lower bound on any μ-GDP claim if the curve is right); `low` is
    the separation that every attack in that range enjoys.
    """

    low: np.ndarray
    high: np.ndarray
    floor: float


def estimated_delta(curve: TradeOff, epsilon: ArrayLike) -> np.ndarray:
    """Return δ(ε) = sup over α of max(1 − β − e^ε·α, 1 − α − e^ε·β, 0); ε broadcasts with the records.

    >>> from giveaway.theory.tradeoff import gaussian
    >>> estimated_delta(gaussian(1.0), 1.0).round(4)  # Φ(−½) − e·Φ(−3/2)
    np.float64(0.1269)
    """
    factor = np.exp(in_range("epsilon", epsilon, 0, 700, "give a privacy loss such as 1"))

    def excess(alpha: np.ndarray, power: np.ndarray, miss: np.ndarray) -> np.ndarray:
        return np.maximum(power - factor * alpha, (1 - alpha) - factor * miss)

    return np.clip(_supremum(curve, excess, factor.shape), 0, 1)[()]


def estimated_epsilon(curve: TradeOff, delta: ArrayLike) -> np.ndarray:
    """Return the least ε with δ(ε) ≤ δ: sup over α of log((1 − β − δ)/α) and log((1 − α − δ)/β).

    δ broadcasts over records. It must be above 1e-13: without it the ε of a normal residual is infinite, because a
    large residual shows a non-member for certain. ε is infinite too where β at the best α is below the smallest double.
    """
    slack = in_range("delta", delta, 1e-13, 1, "give a δ such as 1e-5", closed=False)  # below, 1 − α has no digits
    return _supremum(curve, lambda alpha, power, miss: _privacy_loss(power, miss, alpha, slack), slack.shape)[()]


def estimated_mu(curve: TradeOff, *, floor: float = 1e-3) -> GaussianEstimate:
    """Return the least and the greatest μ(α) = Φ⁻¹(1 − α) − Φ⁻¹(β) where both error rates are at least `floor`.

    The range is needed: distributions that differ in scale, as residuals do, have no finite μ over all α.
    """
    in_range("floor", floor, 0, 0.5, "give an error rate such as 1e-3", closed=False)
    at = (slice(None), *[None] * len(curve.shape))
    alpha = expit(np.linspace(logit(floor), -logit(floor), GRID))[at]
    power, miss = curve.errors(alpha)
    used = (miss >= floor) & (alpha >= floor)
    with np.errstate(invalid="ignore"):
        mu = -ndtri(alpha) - np.where(miss < 0.5, ndtri(miss), -ndtri(power))
    low = np.where(used, mu, np.inf).min(axis=0)
    high = np.where(used, mu, -np.inf).max(axis=0)
    # an attack so good that β is below the floor throughout: say what the floor alone shows
    none, least = ~used.any(axis=0), -2 * ndtri(floor)
    return GaussianEstimate(np.where(none, least, low)[()], np.where(none, np.inf, high)[()], floor)


def epsilon_lower_bound(
    true_positives: ArrayLike,
    members: ArrayLike,
    false_positives: ArrayLike,
    nonmembers: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    thresholds: int = 1,
) -> LowerBound:
    """Return max(log((TPR − δ)/FPR), log((1 − FPR − δ)/(1 − TPR)), 0) at rates the counts still allow: ε is no less.

    TPR is put at its lower and FPR at its upper Clopper–Pearson limit, each at half of 1 − `confidence`, divided by
    `thresholds`, the number of operating points that were tried on these same counts. Trials must be independent:
    guesses about records of one trained model are not quite.

    >>> epsilon_lower_bound(300, 1000, 10, 1000, delta=1e-5).value.round(3)
    np.float64(2.697)
    """
    in_range("delta", delta, 0, np.nextafter(1, 0), "give a δ such as 1e-5")
    tpr, fpr = _limits((true_positives, members), (false_positives, nonmembers), confidence, thresholds)
    return LowerBound(_privacy_loss(tpr, 1 - tpr, fpr, delta)[()], confidence, tpr[()], fpr[()])


def mu_lower_bound(
    true_positives: ArrayLike,
    members: ArrayLike,
    false_positives: ArrayLike,
    nonmembers: ArrayLike,
    *,
    confidence: float = 0.95,
    thresholds: int = 1,
) -> LowerBound:
    """Return max(Φ⁻¹(TPR) − Φ⁻¹(FPR), 0), at the rates of `epsilon_lower_bound`: μ is no less."""
    tpr, fpr = _limits((true_positives, members), (false_positives, nonmembers), confidence, thresholds)
    return LowerBound(np.maximum(ndtri(tpr) - ndtri(fpr), 0.0)[()], confidence, tpr[()], fpr[()])


def _privacy_loss(power: np.ndarray, miss: np.ndarray, alpha: np.ndarray, delta: ArrayLike) -> np.ndarray:
    """Return the ε that one operating point shows at δ, by accusing members or by clearing non-members."""
    with np.errstate(divide="ignore", invalid="ignore"):
        accuse, clear = np.log((power - delta) / alpha), np.log((1 - alpha - delta) / miss)
    return np.fmax(np.fmax(accuse, clear), 0.0)


def _supremum(
    curve: TradeOff, function: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], shape: tuple[int, ...]
) -> np.ndarray:
    """Return the largest value over α: a grid in log(α/(1 − α)), then golden sections about its best point."""
    full = np.broadcast_shapes(shape, curve.shape)
    grid, step = np.linspace(-36, 36, GRID, retstep=True)

    def value(place: np.ndarray) -> np.ndarray:
        alpha = expit(place)
        return function(alpha, *curve.errors(alpha))

    best, at = np.full(full, -np.inf), np.zeros(full)
    for place in grid:
        here = value(np.full((1,) * len(full), place))
        at, best = np.where(here > best, place, at), np.maximum(best, here)
    low, high = at - step, at + step
    for _ in range(30):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        at_left, at_right = value(left), value(right)
        best = np.maximum(best, np.maximum(at_left, at_right))
        low, high = np.where(at_left > at_right, low, left), np.where(at_left > at_right, right, high)
    return best


def _limits(
    hits: tuple[ArrayLike, ArrayLike], false_alarms: tuple[ArrayLike, ArrayLike], confidence: float, thresholds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower limit of the true- and the upper limit of the false-positive rate, jointly at `confidence`."""
    in_range("confidence", confidence, 0, 1, "give a confidence such as 0.95", closed=False)
    tried = whole("thresholds", thresholds, 1, "say how many operating points were tried")
    tail = (1 - confidence) / 2 / tried
    true, inside = _counts("true_positives", "members", *hits)
    false, outside = _counts("false_positives", "nonmembers", *false_alarms)
    tpr = np.where(true > 0, betaincinv(np.maximum(true, 1), inside - true + 1, tail), 0.0)
    fpr = np.where(false < outside, betaincinv(false + 1, np.maximum(outside - false, 1), 1 - tail), 1.0)
    return tpr, fpr


def _counts(argument: str, of: str, count: ArrayLike, trials: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    some, every = whole(argument, count, 0, "give counts"), whole(of, trials, 1, "give counts")
    if (some > every).any():
        raise fail(argument, f"at most the number of {of}", "more", "give counts of the same attack")
    return some, every
