"""Least squares with one fixed record and the others drawn at random (PSM, section 3) (docs/derivations.md)."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr
from scipy.stats import chi2

from giveaway.checks import check_choice, check_number, fail
from giveaway.theory.balls import Pair, ball_density, ball_probability, chi_square_nodes, dilated_ball, in_blocks
from giveaway.theory.tradeoff import TradeOff, in_range, whole

TESTS = ("threshold", "signed")


@dataclass(frozen=True)
class Records:
    """Records by arrays of one shape: h̄, ε (several outputs: its norm), each output's σ²; and k = n − p."""

    leverage: np.ndarray
    error: np.ndarray
    variance: np.ndarray
    freedom: float
    outputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.leverage.shape

    def draw_v(self, rng: np.random.Generator, size: int) -> np.ndarray:
        return rng.chisquare(self.freedom, (size, *self.shape))


class LeverageLaw(Records):
    """The law of the leverage h = h̄/(V + h̄) in closed form."""

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return np.where(self.leverage > 0, chi2.sf(self._v(x), self.freedom), np.asarray(x) >= 0)[()]

    def sf(self, x: ArrayLike) -> np.ndarray:
        return np.where(self.leverage > 0, chi2.cdf(self._v(x), self.freedom), np.asarray(x) < 0)[()]

    def pdf(self, x: ArrayLike) -> np.ndarray:
        h = np.asarray(x, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            density = chi2.pdf(self._v(h), self.freedom) * self.leverage / (h * h)
        return np.where((h > 0) & (h < 1) & (self.leverage > 0), density, 0.0)[()]

    def mean(self) -> np.ndarray:
        return self._average(self._at)

    def var(self) -> np.ndarray:
        centre = self.mean()
        return self._average(lambda v: (self._at(v) - centre) ** 2)

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """Return (size, …records) draws."""
        return self._at(self.draw_v(rng, size))

    def _average(self, function: Callable[[float], np.ndarray]) -> np.ndarray:
        return np.asarray(sum(weight * function(v) for v, weight in chi_square_nodes(self.freedom)))[()]

    def _at(self, v: np.ndarray | float) -> np.ndarray:
        return self.leverage / (v + self.leverage)

    def _v(self, x: ArrayLike) -> np.ndarray:
        h = np.clip(np.asarray(x, dtype=np.float64), 0.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(h > 0, self.leverage * (1 - h) / h, np.inf)


@dataclass(frozen=True)
class ResidualLaw(Records):
    """The law of a record's residual, trained on if `member`; with several outputs, of its component along ε."""

    member: bool

    def average(self, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the mean over V of a function of (a, aτ)."""
        with np.errstate(all="ignore"):
            return np.asarray(sum(weight * function(a, s) for weight, a, s in self._components()))[()]

    def _components(self) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
        for v, weight in chi_square_nodes(self.freedom):
            yield weight, *self._given(v)

    def _given(self, v: np.ndarray | float) -> Pair:
        """Return a and aτ given V: the residual is a(ε + τZ)."""
        a = v / (v + self.leverage) if self.member else np.ones_like(v + self.leverage)
        return a, a * np.sqrt(self.variance * self.leverage / v)

    def pdf(self, x: ArrayLike) -> np.ndarray:
        e = np.asarray(x, dtype=np.float64)
        return self.average(lambda a, s: np.exp(-0.5 * ((e - a * self.error) / s) ** 2) / (s * math.sqrt(math.tau)))

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return self.tails(x)[0][()]

    def sf(self, x: ArrayLike) -> np.ndarray:
        return self.tails(x)[1][()]

    def tails(self, x: ArrayLike) -> np.ndarray:
        """Return (cdf, sf)."""
        e = np.asarray(x, dtype=np.float64)

        def given_v(a: np.ndarray, s: np.ndarray) -> np.ndarray:
            z = (e - a * self.error) / s
            return np.where(s > 0, [ndtr(z), ndtr(-z)], [e >= self.error, e < self.error])

        return self.average(given_v)

    def mean(self) -> np.ndarray:
        return self.average(lambda a, s: a * self.error)

    def var(self) -> np.ndarray:
        """Return the variance; it is infinite for k ≤ 2 if the record is left out."""
        if self.member:
            centre = ResidualLaw.mean(self)
            return self.average(lambda a, s: s * s + (a * self.error - centre) ** 2)
        inverse = 1 / (self.freedom - 2) if self.freedom > 2 else math.inf
        return np.where(self.leverage > 0, self.variance * self.leverage * inverse, 0.0)[()]

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """Return (size, …records) draws."""
        return self._draw(rng, size)[0]

    def _draw(self, rng: np.random.Generator, size: int) -> Pair:
        """Return (size, …records) draws of the residual, and of its standard deviation given V."""
        a, s = self._given(self.draw_v(rng, size))
        return a * self.error + s * rng.standard_normal(s.shape), s


class LossLaw(ResidualLaw):
    """The law of ℓ = ‖e‖² over q outputs: given V, (aτ)² times a noncentral χ²_q with noncentrality (ε/τ)²."""

    def pdf(self, x: ArrayLike) -> np.ndarray:
        """Return the density of the loss; for one output it grows without bound as the loss goes to 0."""
        radius = np.sqrt(in_range("x", x, 0, np.inf, "a loss is not negative"))

        def given_v(a: np.ndarray, s: np.ndarray) -> np.ndarray:
            r, delta = np.broadcast_arrays(radius / s, a * np.abs(self.error) / s)
            return ball_density(r, delta, self.outputs) / (2 * radius * s)

        return self.average(given_v)

    def tails(self, x: ArrayLike) -> np.ndarray:
        radius, error = np.sqrt(np.maximum(np.asarray(x, dtype=np.float64), 0)), np.abs(self.error)
        exact = np.asarray(radius >= error, dtype=np.float64)  # h̄ = 0 leaves e = ε without noise

        def given_v(a: np.ndarray, s: np.ndarray) -> np.ndarray:
            still = s == 0
            parts = (radius / s, 1), ((radius - a * error) / s, 0), (a * error / s, 1)
            r, t, delta = np.broadcast_arrays(*(np.where(still, value, part) for part, value in parts))
            return np.where(still, [exact, 1 - exact], ball_probability(r, t, delta, self.outputs))

        return self.average(given_v)

    def mean(self) -> np.ndarray:
        if self.member:
            return self.average(lambda a, s: (a * self.error) ** 2 + self.outputs * s * s)
        return self.error**2 + self.outputs * super().var()

    def var(self) -> np.ndarray:
        """Return the variance; it is infinite for k ≤ 4 if the record is left out."""
        q, k = self.outputs, self.freedom
        if self.member:
            centre = self.mean()

            def square(a: np.ndarray, s: np.ndarray) -> np.ndarray:
                shift = (a * self.error) ** 2
                return 2 * q * s**4 + 4 * s * s * shift + (shift + q * s * s - centre) ** 2

            return self.average(square)
        if k <= 4:
            return np.where(self.leverage > 0, np.inf, 0.0)[()]
        scale, inverse = self.variance * self.leverage, 1 / (k - 2)
        inverse_square = inverse / (k - 4)  # E V⁻², where `inverse` is E V⁻¹
        spread = 2 * q * inverse_square + q * q * (inverse_square - inverse**2)
        return spread * scale**2 + 4 * scale * inverse * self.error**2

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """Return (size, …records) draws."""
        along, s = self._draw(rng, size)
        across = rng.chisquare(self.outputs - 1, along.shape) if self.outputs > 1 else 0.0
        return along**2 + s * s * across


@dataclass(frozen=True)
class RandomDesign(Records):
    """Records, the laws of what is seen of them, and the curves of tests; build it with `random_design`."""

    @property
    def h(self) -> LeverageLaw:
        """The law of the empirical leverage."""
        return LeverageLaw(**vars(self))

    @property
    def e_out(self) -> ResidualLaw:
        """The law of the residual (along ε) when the record is left out."""
        return ResidualLaw(**vars(self), member=False)

    @property
    def e_in(self) -> ResidualLaw:
        """The law of the residual (along ε) when the record is trained on."""
        return ResidualLaw(**vars(self), member=True)

    @property
    def loss_out(self) -> LossLaw:
        """The law of the loss when the record is left out."""
        return LossLaw(**vars(self), member=False)

    @property
    def loss_in(self) -> LossLaw:
        """The law of the loss when the record is trained on."""
        return LossLaw(**vars(self), member=True)

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


class SimulatedGap(NamedTuple):
    """The mean over draws and its standard error, for every record."""

    mean: np.ndarray
    standard_error: np.ndarray


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


def simulated_gap(design: RandomDesign, rng: np.random.Generator, *, draws: int = 10_000) -> SimulatedGap:
    """Return the gap's mean over draws of (V, Z), and its standard error."""
    check_number("draws", draws, minimum=2, remedy="give a number such as 10000")
    if design.freedom <= 2:
        raise fail("freedom", "n − p above 2", f"{design.freedom:g}", "the expected gap is infinite")
    v = design.draw_v(rng, int(draws))
    tau = np.sqrt(design.variance * design.leverage / v)
    loss = (design.error + tau * rng.standard_normal(v.shape)) ** 2
    if design.outputs > 1:
        loss += tau**2 * rng.chisquare(design.outputs - 1, v.shape)
    c = design.leverage / (v + design.leverage)
    gap = loss * c * (2 - c)
    return SimulatedGap(gap.mean(axis=0)[()], (gap.std(axis=0, ddof=1) / math.sqrt(draws))[()])
