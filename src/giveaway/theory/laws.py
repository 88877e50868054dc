"""The probability distributions ("laws") of one record's leverage, residual and loss, if the others are random.

Let V ~ χ²_k. Given V the residual is a·(ε + τZ) with τ² = σ²h̄/V, and a = 1 (left out) or V/(V + h̄) (trained on). Each
law averages over values of V by quadrature, or puts V at k. The quadrature is good to 12 digits while ε moves e_in,
through V, by less than about four of its standard deviations given V (√2·|ε|/σ·√h̄·k/(k + h̄)² < 4); far beyond that the
density of e_in turns into a comb, while its moments stay exact. All laws are frozen and work on arrays of records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtr, chdtrc, chdtri, gammaincinv, ndtr, ndtri

from giveaway.checks import fail
from giveaway.theory.balls import ball_density, ball_probability, ball_quantile, chi_square_nodes, solve_increasing
from giveaway.theory.tradeoff import in_range

PROBABILITY = "give probabilities"


@dataclass(frozen=True)
class LeverageLaw:
    """The law of the leverage h = h̄/(V + h̄) in closed form, for V ~ χ²_k or V = k."""

    leverage: np.ndarray
    freedom: float
    integrate: bool

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return self._tail(x, chdtrc, np.less_equal)

    def sf(self, x: ArrayLike) -> np.ndarray:
        return self._tail(x, chdtr, np.greater)

    def pdf(self, x: ArrayLike) -> np.ndarray:
        """Return the density; with V = k there is none."""
        h = np.asarray(x, dtype=np.float64)
        if not self.integrate:
            raise fail("integrate", "True for a density", "False", "with V = k the leverage is one number")
        k = self.freedom
        with np.errstate(all="ignore"):
            v = self.leverage * (1 - h) / h
            log = (k / 2 - 1) * np.log(v / 2) - v / 2 - math.lgamma(k / 2) - math.log(2)
            density = np.exp(log) * self.leverage / (h * h)
        return np.where((h > 0) & (h < 1) & (self.leverage > 0), density, 0.0)[()]

    def ppf(self, p: ArrayLike) -> np.ndarray:
        p = in_range("p", p, 0, 1, PROBABILITY)
        v = chdtri(self.freedom, p) if self.integrate else np.broadcast_to(self.freedom, p.shape)
        with np.errstate(invalid="ignore"):
            return np.where(self.leverage > 0, self.leverage / (v + self.leverage), 0.0)[()]

    def mean(self) -> np.ndarray:
        return self._mean_of(lambda h: h)

    def var(self) -> np.ndarray:
        centre = self.mean()
        return self._mean_of(lambda h: (h - centre) ** 2)

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """Return (size, …records) draws."""
        return self.leverage / (_draw_v(rng, (size, *self.leverage.shape), self) + self.leverage)

    def _mean_of(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return np.asarray(sum(w * function(self.leverage / (v + self.leverage)) for v, w in _values_of_v(self)))[()]

    def _tail(self, x: ArrayLike, tail: Callable, compare: Callable) -> np.ndarray:
        h = np.asarray(x, dtype=np.float64)
        if not self.integrate:
            return compare(self.leverage / (self.freedom + self.leverage), h).astype(np.float64)[()]
        with np.errstate(divide="ignore", invalid="ignore"):
            v = np.where(h > 0, self.leverage * np.maximum(1 - h, 0) / np.maximum(h, 0), np.inf)
        return np.where(self.leverage == 0, compare(0, h), tail(self.freedom, np.where(np.isnan(v), 1, v)))[()]


@dataclass(frozen=True)
class ResidualLaw:
    """The law of a record's residual; with several outputs, of its component along ε."""

    leverage: np.ndarray
    error: np.ndarray
    variance: np.ndarray
    freedom: float
    integrate: bool
    member: bool

    def components(self) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
        """Yield (weight, a, aτ) for each value of V."""
        for v, weight in _values_of_v(self):
            a = v / (v + self.leverage) if self.member else np.ones_like(self.leverage)
            yield weight, a, a * np.sqrt(self.variance * self.leverage / v)

    def average(self, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the mean over V of a function of (a, aτ)."""
        with np.errstate(divide="ignore", invalid="ignore", under="ignore", over="ignore"):
            return np.asarray(sum(weight * function(a, s) for weight, a, s in self.components()))[()]

    def typical_scale(self) -> tuple[np.ndarray, np.ndarray | float]:
        """Return τ and a at V = k."""
        k = self.freedom
        return np.sqrt(self.variance * self.leverage / k), k / (k + self.leverage) if self.member else 1.0

    def pdf(self, x: ArrayLike) -> np.ndarray:
        e = np.asarray(x, dtype=np.float64)
        return self.average(lambda a, s: np.exp(-0.5 * ((e - a * self.error) / s) ** 2) / (s * math.sqrt(math.tau)))

    def cdf(self, x: ArrayLike) -> np.ndarray:
        e = np.asarray(x, dtype=np.float64)
        return self.average(lambda a, s: np.where(s > 0, ndtr((e - a * self.error) / s), e >= self.error))

    def sf(self, x: ArrayLike) -> np.ndarray:
        e = np.asarray(x, dtype=np.float64)
        return self.average(lambda a, s: np.where(s > 0, ndtr((a * self.error - e) / s), e < self.error))

    def ppf(self, p: ArrayLike) -> np.ndarray:
        p = in_range("p", p, 0, 1, PROBABILITY)
        # a quantile of a mixture lies between those of its components
        with np.errstate(invalid="ignore"):
            ends = [a * self.error + s * ndtri(p) for _, a, s in self.components()]
            low, high = np.min(ends, axis=0), np.max(ends, axis=0)
            if not self.integrate:
                return low[()]
            tau, shrunk = self.typical_scale()
            start = shrunk * (self.error + tau * ndtri(p))
        return _quantile(lambda x: (self.cdf(x), self.sf(x)), self.pdf, p, low, high, start)

    def mean(self) -> np.ndarray:
        return self.average(lambda a, s: a * self.error)

    def var(self) -> np.ndarray:
        """Return the variance; it is infinite for k ≤ 2 if the record is left out."""
        if self.member:
            centre = self.mean()
            return self.average(lambda a, s: s * s + (a * self.error - centre) ** 2)
        k = self.freedom
        inverse = (1 / (k - 2) if k > 2 else math.inf) if self.integrate else 1 / k
        return np.where(self.leverage > 0, self.variance * self.leverage * inverse, 0.0)[()]

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """Return (size, …records) draws."""
        return self.draw(rng, size)[0]

    def draw(self, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (size, …records) draws of the residual, and of its standard deviation given V."""
        v = _draw_v(rng, (size, *self.leverage.shape), self)
        a = v / (v + self.leverage) if self.member else 1.0
        s = a * np.sqrt(self.variance * self.leverage / v)
        return a * self.error + s * rng.standard_normal(v.shape), s


@dataclass(frozen=True)
class LossLaw:
    """The law of ℓ = ‖e‖² over q outputs: given V, (aτ)² times a noncentral χ²_q with noncentrality (ε/τ)²."""

    residual: ResidualLaw
    outputs: int

    def pdf(self, x: ArrayLike) -> np.ndarray:
        """Return the density of the loss; for one output it grows without bound as the loss goes to 0."""
        radius = np.sqrt(in_range("x", x, 0, np.inf, "a loss is not negative"))
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self.radial_density(radius) / (2 * radius))[()]

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return self._radial_probability(np.sqrt(np.maximum(np.asarray(x, dtype=np.float64), 0)))[0][()]

    def sf(self, x: ArrayLike) -> np.ndarray:
        return self._radial_probability(np.sqrt(np.maximum(np.asarray(x, dtype=np.float64), 0)))[1][()]

    def ppf(self, p: ArrayLike) -> np.ndarray:
        p = in_range("p", p, 0, 1, PROBABILITY)
        law, error = self.residual, np.abs(self.residual.error)
        centred = np.sqrt(2 * gammaincinv(self.outputs / 2, p))
        with np.errstate(invalid="ignore"):
            # ‖Z‖, centred, is no larger, and ‖δ + Z‖ ≤ δ + ‖Z‖
            low = np.min([s * centred for _, _, s in law.components()], axis=0)
            high = np.max([s * centred + a * error for _, a, s in law.components()], axis=0)
        tau, shrunk = law.typical_scale()
        distance = np.divide(error, tau, out=np.zeros(tau.shape), where=tau > 0)
        levels, distance, scale = np.broadcast_arrays(np.minimum(p, 1 - 1e-15), distance, tau * shrunk)
        start = scale * ball_quantile(levels.ravel(), distance.ravel(), self.outputs)[0].reshape(levels.shape)
        root = _quantile(self._radial_probability, self.radial_density, p, low, high, start)
        return np.where(p == 0, 0.0, np.where(law.leverage > 0, root, error) ** 2)[()]

    def mean(self) -> np.ndarray:
        law = self.residual
        if not law.member:
            return law.error**2 + self.outputs * law.var()
        return law.average(lambda a, s: (a * law.error) ** 2 + self.outputs * s * s)

    def var(self) -> np.ndarray:
        """Return the variance; it is infinite for k ≤ 4 if the record is left out."""
        law, q = self.residual, self.outputs
        if law.member:
            centre = self.mean()

            def square(a: np.ndarray, s: np.ndarray) -> np.ndarray:
                shift = (a * law.error) ** 2
                return 2 * q * s**4 + 4 * s * s * shift + (shift + q * s * s - centre) ** 2

            return law.average(square)
        k, scale = law.freedom, law.variance * law.leverage
        if not law.integrate:
            return 2 * q * (scale / k) ** 2 + 4 * scale / k * law.error**2
        if k <= 4:
            return np.where(law.leverage > 0, np.inf, 0.0)[()]
        spread = 1 / ((k - 2) * (k - 4)) - 1 / (k - 2) ** 2
        return 2 * q * scale**2 / ((k - 2) * (k - 4)) + q * q * scale**2 * spread + 4 * scale / (k - 2) * law.error**2

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """Return (size, …records) draws."""
        along, s = self.residual.draw(rng, size)
        across = rng.chisquare(self.outputs - 1, along.shape) if self.outputs > 1 else 0.0
        return along**2 + s * s * across

    def radial_density(self, radius: np.ndarray) -> np.ndarray:
        """Return the density of ‖e‖."""
        error = np.abs(self.residual.error)

        def given_v(a: np.ndarray, s: np.ndarray) -> np.ndarray:
            x, delta = np.broadcast_arrays(radius / s, a * error / s)
            return ball_density(x, delta, self.outputs) / s

        return self.residual.average(given_v)

    def _radial_probability(self, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return P(‖e‖ ≤ radius) and its complement."""
        error = np.abs(self.residual.error)
        exact = np.asarray(radius >= error, dtype=np.float64)  # h̄ = 0 leaves e = ε without noise
        below, above = np.zeros(()), np.zeros(())
        for weight, a, s in self.residual.components():
            still = s == 0
            with np.errstate(divide="ignore", invalid="ignore"):
                parts = (radius / s, 1), ((radius - a * error) / s, 0), (a * error / s, 1)
            x, t, delta = np.broadcast_arrays(*(np.where(still, value, part) for part, value in parts))
            inside, outside = ball_probability(x, t, delta, self.outputs)
            below = below + weight * np.where(still, exact, inside)
            above = above + weight * np.where(still, 1 - exact, outside)
        return below, above


def _quantile(
    tails: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    density: Callable[[np.ndarray], np.ndarray],
    p: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray,
) -> np.ndarray:
    """Find the p-quantile between `low` and `high`, by the cdf below the median and by its complement above it."""
    p, low, high, start = np.broadcast_arrays(p, low, high, start)
    inside = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(inside, low, 0), np.where(inside, high, 0)

    def excess(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(divide="ignore", invalid="ignore"):
            below, above = tails(x)
            tail = np.where(p <= 0.5, below, above)
            value = np.where(p <= 0.5, np.log(tail / p), np.log((1 - p) / tail))
            return np.where(inside, value, 0.0), density(x) / tail

    root = solve_increasing(excess, low, high, np.clip(np.where(inside, start, 0), low, high), tolerance=1e-13)
    return np.where(inside, root, np.where(p > 0.5, np.inf, -np.inf))[()]


def _values_of_v(law: LeverageLaw | ResidualLaw) -> list[tuple[float, float]]:
    """Return the values of V and their weights."""
    return chi_square_nodes(law.freedom) if law.integrate else [(float(law.freedom), 1.0)]


def _draw_v(rng: np.random.Generator, shape: tuple[int, ...], law: LeverageLaw | ResidualLaw) -> np.ndarray:
    return rng.chisquare(law.freedom, shape) if law.integrate else np.full(shape, law.freedom)
