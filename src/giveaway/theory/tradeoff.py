"""Trade-off curves β(α) of the best tests, and what they say of differential privacy (docs/derivations.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, expit, owens_t

from giveaway.checks import fail
from giveaway.theory.balls import Pair, ball_probability, dilated_ball, in_blocks

NUMBERS_AT_ONCE = 1 << 21
RATES = "give rates such as 0.01"
SPREAD = "give a standard deviation above 0"
NARROWEST = 1e-12  # 1 − c below which the two spreads count as equal to that
LEAST_RATIO = 1e-100  # of the spreads: a narrower member is found at any α that matters
MOST_GAP = 1e3  # in units of sd_out: nothing is missed further out
GOLDEN = (np.sqrt(5) - 1) / 2


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
    """One trade-off curve, or one for every record: `errors` maps rates α, broadcast against `shape`, to (1 − β, β),
    each exact where it is small; an α below 1e-150 counts as 0. `known_auc` is a closed form."""

    errors: Callable[[np.ndarray], Pair]
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


def best_success(gap: ArrayLike, sd_in: ArrayLike, sd_out: ArrayLike, *, outputs: int = 1) -> np.ndarray:
    """Return (TPR + 1 − FPR)/2 where it is largest, for the distributions of `two_normals`.

    >>> best_success(2.0, 1.0, 1.0).round(4)  # Φ(1)
    np.float64(0.8413)
    """

    def block(d: np.ndarray, c: np.ndarray) -> Pair:
        b = d * c / (1 + c)
        beyond = -2 * outputs * np.log(c) * c**2 / ((1 - c) * (1 + c))
        radius = np.sqrt(b**2 + beyond)
        edge = beyond / (radius + b)  # radius − b, without cancellation
        apart = d * (1 - c) / (1 + c)
        false = ball_probability(radius, edge - apart, d / (1 + c), outputs)[0]
        true = ball_probability(radius / c, edge / c + apart, b, outputs)[0]
        return 0.5 + 0.5 * np.maximum(true - false, 0.0), false

    return in_blocks(block, *_standardized(gap, sd_in, sd_out))[0][()]


def _standardized(gap: ArrayLike, sd_in: ArrayLike, sd_out: ArrayLike) -> Pair:
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


@dataclass(frozen=True)
class LowerBound:
    """A bound that holds with `confidence`, from rates of at least `tpr` and at most `fpr` (Clopper–Pearson)."""

    value: np.ndarray
    confidence: float
    tpr: np.ndarray
    fpr: np.ndarray


def estimated_epsilon(curve: TradeOff, delta: ArrayLike) -> np.ndarray:
    """Return the least ε with δ(ε) ≤ δ: sup over α of log((1 − β − δ)/α) and log((1 − α − δ)/β). Below δ = 1e-13 that
    of a normal residual is infinite, as it is where β is below the smallest double."""
    slack = in_range("delta", delta, 1e-13, 1, "give a δ such as 1e-5", closed=False)  # below, 1 − α has no digits
    full = np.broadcast_shapes(slack.shape, curve.shape)

    def shown(place: np.ndarray) -> np.ndarray:
        alpha = expit(place)
        return _privacy_loss(*curve.errors(alpha), alpha, slack)

    # a grid in log(α/(1 − α)), then golden sections about its best point
    grid, step = np.linspace(-36, 36, 361, retstep=True)
    best, at = np.full(full, -np.inf), np.zeros(full)
    for place in grid:
        here = shown(np.full((1,) * len(full), place))
        at, best = np.where(here > best, place, at), np.maximum(best, here)
    low, high = at - step, at + step
    for _ in range(30):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        at_left, at_right = shown(left), shown(right)
        best = np.maximum(best, np.maximum(at_left, at_right))
        low, high = np.where(at_left > at_right, low, left), np.where(at_left > at_right, right, high)
    return best[()]


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
    in_range("confidence", confidence, 0, 1, "give a confidence such as 0.95", closed=False)
    tail = (1 - confidence) / 2 / whole("thresholds", thresholds, 1, "say how many operating points were tried")
    true, inside = _counted("true_positives", true_positives, "members", members)
    false, outside = _counted("false_positives", false_positives, "nonmembers", nonmembers)
    tpr = np.where(true > 0, betaincinv(np.maximum(true, 1), inside - true + 1, tail), 0.0)
    fpr = np.where(false < outside, betaincinv(false + 1, np.maximum(outside - false, 1), 1 - tail), 1.0)
    return LowerBound(_privacy_loss(tpr, 1 - tpr, fpr, delta)[()], confidence, tpr[()], fpr[()])


def _privacy_loss(power: np.ndarray, miss: np.ndarray, alpha: np.ndarray, delta: ArrayLike) -> np.ndarray:
    """Return the ε that one operating point shows at δ, by accusing members or by clearing non-members."""
    with np.errstate(divide="ignore", invalid="ignore"):
        accuse, clear = np.log((power - delta) / alpha), np.log((1 - alpha - delta) / miss)
    return np.fmax(np.fmax(accuse, clear), 0.0)


def _counted(argument: str, value: ArrayLike, of: str, all_of: ArrayLike) -> Pair:
    some, every = whole(argument, value, 0, "give counts"), whole(of, all_of, 1, "give counts")
    if (some > every).any():
        raise fail(argument, f"at most the number of {of}", "more", "give counts of the same attack")
    return some, every
