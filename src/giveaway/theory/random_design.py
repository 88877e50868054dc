"""Least squares with one fixed record and the others drawn at random (PSM, section 3) (docs/derivations.md)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2, ncx2, norm

from giveaway.checks import check_choice, fail
from giveaway.theory.balls import Pair, chi_square_nodes, dilated_ball, in_blocks
from giveaway.theory.tradeoff import TradeOff, in_range, whole

TESTS = ("threshold", "signed")


@dataclass(frozen=True)
class Law:
    """A law averaged over V: `given` is a distribution of scipy.stats for each of its values, along the last axis. A
    record without leverage has the value `still` alone; `moments` are mean and variance where they are closed forms."""

    given: Any
    weights: np.ndarray
    leverage: np.ndarray
    still: np.ndarray
    moments: Pair | None = None

    def pdf(self, x: ArrayLike) -> np.ndarray:
        return self._over_v(self.given.pdf, x, 0.0)

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return self._over_v(self.given.cdf, x, np.asarray(x) >= self.still)

    def sf(self, x: ArrayLike) -> np.ndarray:
        return self._over_v(self.given.sf, x, np.asarray(x) < self.still)

    def mean(self) -> np.ndarray:
        return self._moments()[0][()]

    def var(self) -> np.ndarray:
        """Return the variance, infinite where too few degrees of freedom leave none."""
        return self._moments()[1][()]

    def _moments(self) -> Pair:
        if self.moments is not None:
            return self.moments
        mean, variance = self.given.stats("mv")
        centre = mean @ self.weights
        return centre, (variance + (mean - centre[..., None]) ** 2) @ self.weights

    def _over_v(self, function: Callable[[np.ndarray], np.ndarray], x: ArrayLike, still: ArrayLike) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            average = function(np.asarray(x, dtype=np.float64)[..., None]) @ self.weights
        return np.where(self.leverage > 0, average, still)[()]


@dataclass(frozen=True)
class LeverageLaw:
    """The law of the leverage h = h̄/(V + h̄) in closed form."""

    leverage: np.ndarray
    freedom: float

    def pdf(self, x: ArrayLike) -> np.ndarray:
        h = np.asarray(x, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            density = chi2.pdf(self._v(h), self.freedom) * self.leverage / (h * h)
        return np.where((h > 0) & (h < 1) & (self.leverage > 0), density, 0.0)[()]

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return np.where(self.leverage > 0, chi2.sf(self._v(x), self.freedom), np.asarray(x) >= 0)[()]

    def sf(self, x: ArrayLike) -> np.ndarray:
        return np.where(self.leverage > 0, chi2.cdf(self._v(x), self.freedom), np.asarray(x) < 0)[()]

    def mean(self) -> np.ndarray:
        return self._central(0.0, 1)

    def var(self) -> np.ndarray:
        return self._central(self.mean(), 2)

    def _central(self, centre: ArrayLike, power: int) -> np.ndarray:
        v, weights = np.transpose(chi_square_nodes(self.freedom))
        h = self.leverage[..., None] / (v + self.leverage[..., None])
        return ((h - np.asarray(centre)[..., None]) ** power @ weights)[()]

    def _v(self, x: ArrayLike) -> np.ndarray:
        h = np.clip(np.asarray(x, dtype=np.float64), 0.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(h > 0, self.leverage * (1 - h) / h, np.inf)


@dataclass(frozen=True)
class RandomDesign:
    """Records by arrays of one shape, h̄, ε (several outputs: its norm) and each output's σ², and k = n − p; the laws of
    what is seen of them, and the curves of tests. Build it with `random_design`."""

    leverage: np.ndarray
    error: np.ndarray
    variance: np.ndarray
    freedom: float
    outputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.leverage.shape

    @property
    def h(self) -> LeverageLaw:
        """The law of the empirical leverage."""
        return LeverageLaw(self.leverage, self.freedom)

    @property
    def e_out(self) -> Law:
        """The law of the residual (along ε) when the record is left out."""
        inverse = 1 / (self.freedom - 2) if self.freedom > 2 else math.inf  # E V⁻¹
        variance = np.where(self.leverage > 0, self.variance * self.leverage * inverse, 0.0)
        return self._law(norm, member=False, moments=(self.error, variance))

    @property
    def e_in(self) -> Law:
        """The law of the residual (along ε) when the record is trained on."""
        return self._law(norm, member=True)

    @property
    def loss_out(self) -> Law:
        """The law of the loss when the record is left out."""
        q, k, scale = self.outputs, self.freedom, self.variance * self.leverage
        mean, variance = self.error**2 + q * self.e_out.var(), np.where(self.leverage > 0, np.inf, 0.0)
        if k > 4:
            inverse, inverse_square = 1 / (k - 2), 1 / ((k - 2) * (k - 4))  # E V⁻¹ and E V⁻²
            spread = 2 * q * inverse_square + q * q * (inverse_square - inverse**2)
            variance = spread * scale**2 + 4 * scale * inverse * self.error**2
        return self._law(ncx2, member=False, moments=(mean, variance))

    @property
    def loss_in(self) -> Law:
        """The law of the loss when the record is trained on."""
        return self._law(ncx2, member=True)

    def _law(self, kind: Any, *, member: bool, moments: Pair | None = None) -> Law:
        """Given V the residual is a(ε + τZ), and the loss (aτ)² times a noncentral χ² with noncentrality (ε/τ)²."""
        v, weights = np.transpose(chi_square_nodes(self.freedom))
        h, e = self.leverage[..., None], self.error[..., None]
        a, tau = v / (v + h) if member else np.ones_like(v + h), np.sqrt(self.variance[..., None] * h / v)
        if kind is norm:
            return Law(norm(a * e, a * tau), weights, self.leverage, self.error, moments)
        with np.errstate(divide="ignore", invalid="ignore"):
            given = ncx2(self.outputs, (e / tau) ** 2, scale=(a * tau) ** 2)
        return Law(given, weights, self.leverage, self.error**2, moments)

    def tradeoff(self, test: str = "threshold") -> TradeOff:
        """Return the curve of one of two tests, with V at its mean k.

        `threshold` accuses where the loss is small (Corollary 3.3); `signed` where the likelihood ratio of the residual
        itself is large, the best there is.

        >>> design = random_design(leverage=5.0, error=0.5, freedom=100)
        >>> [round(float(design.tradeoff(test).tpr(0.05)), 4) for test in TESTS]
        [0.0536, 0.0558]
        """
        check_choice("test", test, TESTS)
        eta = self.leverage / self.freedom
        spread = np.sqrt(self.variance * eta)
        # h̄ = 0: the record is never seen, and every test is a coin
        delta = np.divide(np.abs(self.error), spread, out=np.zeros(self.shape), where=spread > 0)
        ball = partial(dilated_ball, q=self.outputs, signed=test == "signed")
        return TradeOff(lambda alpha: in_blocks(ball, alpha, delta, eta), self.shape)


def random_design(
    leverage: ArrayLike, error: ArrayLike, freedom: float, *, variance: ArrayLike = 1.0, outputs: int = 1
) -> RandomDesign:
    """Describe records by h̄ ≥ 0, ε (several outputs: its norm), k = n − p and each output's σ²; arrays broadcast."""
    k = float(in_range("freedom", freedom, 1, np.inf, "give n − p, records minus features"))
    q = int(whole("outputs", outputs, 1, "give the number of outputs"))
    h, e, v = np.broadcast_arrays(
        in_range("leverage", leverage, 0, np.inf, "give xᵀΣ⁻¹x"),
        in_range("error", error, -np.inf, np.inf, "give y − xᵀθ"),
        in_range("variance", variance, 0, np.inf, "give the noise variance σ²", closed=False),
    )
    if q > 1 and (e < 0).any():
        raise fail("error", "norms of error vectors", "a negative number", "take the norm over the outputs")
    return RandomDesign(h, e, v, k, q)


def expected_gap(design: RandomDesign) -> np.ndarray:
    """Return how much lower a record's loss is, on average, for having been trained on; infinite for k ≤ 2."""
    k, h = design.freedom, design.leverage

    def shrinkage(freedom: float) -> np.ndarray:
        total = np.zeros(design.shape)
        for v, weight in chi_square_nodes(freedom):
            c = h / (v + h)
            total += weight * c * (2 - c)
        return total

    gap = design.error**2 * shrinkage(k)
    if k <= 2:
        return np.where(h > 0, math.inf, gap)[()]
    return (gap + design.outputs * design.variance * h / (k - 2) * shrinkage(k - 2))[()]


def gap_expansion(design: RandomDesign) -> np.ndarray:
    """Return 2‖ε‖²h̄/k + (4‖ε‖²h̄ + h̄²(2qσ² − 3‖ε‖²))/k², the expected gap up to O(k⁻³)."""
    k, h, square = design.freedom, design.leverage, design.error**2
    noise = design.outputs * design.variance
    return (2 * square * h / k + (4 * square * h + h * h * (2 * noise - 3 * square)) / k**2)[()]
