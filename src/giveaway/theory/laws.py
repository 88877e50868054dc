"""The laws of leverage, residual and loss of one record when the others are drawn at random: frozen, vectorised.

Given V the residual is a·(ε + τZ) with τ² = σ²h̄/V, and a = 1 (left out) or V/(V + h̄) (trained on). Each law is the
mixture over V's quadrature nodes, or the one law at V = k. The rule is good to 12 digits while ε moves e_in, through V,
by less than about four of its standard deviations given V (√2·|ε|/σ·√h̄·k/(k + h̄)² < 4); far beyond that e_in's density
turns into a comb, while its moments stay exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtr, chdtrc, chdtri, gammaincinv, ndtr, ndtri

from giveaway.checks import fail
from giveaway.theory.arguments import in_range
from giveaway.theory.balls import ball_density, ball_probability, ball_quantile
from giveaway.theory.chi_square import Nodes, chi_square_nodes, one_node
from giveaway.theory.roots import solve_increasing

PROBABILITY = "give probabilities"


@dataclass(frozen=True)
class LeverageLaw:
    """h = h̄/(V + h̄): in closed form, for V ~ χ²_k or V = k."""

    leverage: np.ndarray
    freedom: float
    integrate: bool

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return self._tail(x, chdtrc, np.less_equal)

    def sf(self, x: ArrayLike) -> np.ndarray:
        return self._tail(x, chdtr, np.greater)

    def pdf(self, x: ArrayLike) -> np.ndarray:
        """Density; with V = k there is none."""
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
        return self._moment(lambda h: h)

    def var(self) -> np.ndarray:
        centre = self.mean()
        return self._moment(lambda h: (h - centre) ** 2)

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """(size, …records) draws."""
        v = _draw_v(rng, (size, *self.leverage.shape), self.freedom, self.integrate)
        return self.leverage / (v + self.leverage)

    def _moment(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        pairs = _pairs(self.freedom, self.integrate)
        return np.asarray(sum(w * function(self.leverage / (v + self.leverage)) for v, w in pairs))[()]

    def _tail(self, x: ArrayLike, tail: Callable, compare: Callable) -> np.ndarray:
        h = np.asarray(x, dtype=np.float64)
        if not self.integrate:
            return compare(self.leverage / (self.freedom + self.leverage), h).astype(np.float64)[()]
        with np.errstate(divide="ignore", invalid="ignore"):
            v = np.where(h > 0, self.leverage * np.maximum(1 - h, 0) / np.maximum(h, 0), np.inf)
        return np.where(self.leverage == 0, compare(0, h), tail(self.freedom, np.where(np.isnan(v), 1, v)))[()]


@dataclass(frozen=True)
class ErrorLaw:
    """The residual of a record, along ε where there are several outputs."""

    leverage: np.ndarray
    error: np.ndarray
    variance: np.ndarray
    freedom: float
    integrate: bool
    member: bool

    def parts(self) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
        """(weight, a, aτ) for each value of V."""
        for v, weight in _pairs(self.freedom, self.integrate):
            a = v / (v + self.leverage) if self.member else np.ones_like(self.leverage)
            yield weight, a, a * np.sqrt(self.variance * self.leverage / v)

    def pdf(self, x: ArrayLike) -> np.ndarray:
        e = np.asarray(x, dtype=np.float64)
        return self.mix(lambda a, s: np.exp(-0.5 * ((e - a * self.error) / s) ** 2) / (s * math.sqrt(math.tau)))

    def cdf(self, x: ArrayLike) -> np.ndarray:
        e = np.asarray(x, dtype=np.float64)
        return self.mix(lambda a, s: np.where(s > 0, ndtr((e - a * self.error) / s), e >= self.error))

    def sf(self, x: ArrayLike) -> np.ndarray:
        e = np.asarray(x, dtype=np.float64)
        return self.mix(lambda a, s: np.where(s > 0, ndtr((a * self.error - e) / s), e < self.error))

    def ppf(self, p: ArrayLike) -> np.ndarray:
        p = in_range("p", p, 0, 1, PROBABILITY)
        # a quantile of a mixture lies between those of its parts
        with np.errstate(invalid="ignore"):
            ends = [a * self.error + s * ndtri(p) for _, a, s in self.parts()]
        low, high = np.min(ends, axis=0), np.max(ends, axis=0)
        if not self.integrate:
            return low[()]
        shrunk = self.freedom / (self.freedom + self.leverage) if self.member else 1.0
        spread = np.sqrt(self.variance * self.leverage / self.freedom)
        with np.errstate(invalid="ignore"):
            start = shrunk * (self.error + spread * ndtri(p))
        return _quantile(lambda x: (self.cdf(x), self.sf(x)), self.pdf, p, low, high, start)

    def mean(self) -> np.ndarray:
        return self.mix(lambda a, s: a * self.error)

    def var(self) -> np.ndarray:
        """Variance; infinite for k ≤ 2 when left out."""
        if not self.member:
            return self._variance_out()
        centre = self.mean()
        return self.mix(lambda a, s: s * s + (a * self.error - centre) ** 2)

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """(size, …records) draws."""
        return self.draw(rng, size)[0]

    def draw(self, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
        """(size, …records) draws of the residual, and of its standard deviation given V."""
        v = _draw_v(rng, (size, *self.leverage.shape), self.freedom, self.integrate)
        a = v / (v + self.leverage) if self.member else 1.0
        s = a * np.sqrt(self.variance * self.leverage / v)
        return a * self.error + s * rng.standard_normal(v.shape), s

    def _variance_out(self) -> np.ndarray:
        k = self.freedom
        inverse = (1 / (k - 2) if k > 2 else math.inf) if self.integrate else 1 / k
        return np.where(self.leverage > 0, self.variance * self.leverage * inverse, 0.0)[()]

    def mix(self, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Mean over V of a function of (a, aτ)."""
        with np.errstate(divide="ignore", invalid="ignore", under="ignore", over="ignore"):
            return np.asarray(sum(weight * function(a, s) for weight, a, s in self.parts()))[()]


@dataclass(frozen=True)
class LossLaw:
    """ℓ = ‖e‖² over q outputs: given V, (aτ)² times a noncentral χ²_q with noncentrality (ε/τ)²."""

    residual: ErrorLaw
    outputs: int

    def pdf(self, x: ArrayLike) -> np.ndarray:
        """Density of the loss; for one output it grows without bound as the loss goes to 0."""
        loss = in_range("x", x, 0, np.inf, "a loss is not negative", closed=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self.radial_density(np.sqrt(loss)) / (2 * np.sqrt(loss)))[()]

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return self._probability(x)[0][()]

    def sf(self, x: ArrayLike) -> np.ndarray:
        return self._probability(x)[1][()]

    def ppf(self, p: ArrayLike) -> np.ndarray:
        p = in_range("p", p, 0, 1, PROBABILITY)
        law = self.residual
        centred = np.sqrt(2 * gammaincinv(self.outputs / 2, p))
        with np.errstate(invalid="ignore"):
            # ‖Z‖, centred, is no larger, and ‖δ + Z‖ ≤ δ + ‖Z‖
            low = np.min([s * centred for _, _, s in law.parts()], axis=0)
            high = np.max([s * centred + a * np.abs(law.error) for _, a, s in law.parts()], axis=0)
        levels, distance, scale = np.broadcast_arrays(np.minimum(p, 1 - 1e-15), *self._typical())
        start = scale * ball_quantile(levels.ravel(), distance.ravel(), self.outputs)[0].reshape(levels.shape)
        root = _quantile(self.radial_probability, self.radial_density, p, low, high, start)
        still = np.abs(law.error)
        return np.where(p == 0, 0.0, np.where(law.leverage > 0, root, still) ** 2)[()]

    def _typical(self) -> tuple[np.ndarray, np.ndarray]:
        """ε/τ and aτ at V = k."""
        law, k = self.residual, self.residual.freedom
        tau = np.sqrt(law.variance * law.leverage / k)
        distance = np.divide(np.abs(law.error), tau, out=np.zeros(tau.shape), where=tau > 0)
        return distance, tau * (k / (k + law.leverage) if law.member else 1.0)

    def mean(self) -> np.ndarray:
        law = self.residual
        if not law.member:
            return law.error**2 + self.outputs * law.var()
        return law.mix(lambda a, s: (a * law.error) ** 2 + self.outputs * s * s)

    def var(self) -> np.ndarray:
        """Variance; infinite for k ≤ 4 when left out."""
        law, q = self.residual, self.outputs
        if law.member:
            centre = self.mean()
            return law.mix(
                lambda a, s: (
                    2 * q * s**4 + 4 * s * s * (a * law.error) ** 2 + ((a * law.error) ** 2 + q * s * s - centre) ** 2
                )
            )
        k, scale = law.freedom, law.variance * law.leverage
        if not law.integrate:
            return 2 * q * (scale / k) ** 2 + 4 * scale / k * law.error**2
        if k <= 4:
            return np.where(law.leverage > 0, np.inf, 0.0)[()]
        spread = 1 / ((k - 2) * (k - 4)) - 1 / (k - 2) ** 2
        return 2 * q * scale**2 / ((k - 2) * (k - 4)) + q * q * scale**2 * spread + 4 * scale / (k - 2) * law.error**2

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """(size, …records) draws."""
        along, s = self.residual.draw(rng, size)
        across = rng.chisquare(self.outputs - 1, along.shape) if self.outputs > 1 else 0.0
        return along**2 + s * s * across

    def _probability(self, x: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        loss = np.asarray(x, dtype=np.float64)
        radius = np.sqrt(np.maximum(loss, 0))
        return self.radial_probability(radius)

    def radial_probability(self, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(‖e‖ ≤ radius) and its complement."""
        below, above = np.zeros(()), np.zeros(())
        for weight, a, s in self.residual.parts():
            with np.errstate(divide="ignore", invalid="ignore"):
                x, delta = radius / s, a * np.abs(self.residual.error) / s
                t = (radius - a * np.abs(self.residual.error)) / s
            # h̄ = 0 leaves e = ε without noise
            still = s == 0
            x, t, delta = np.broadcast_arrays(np.where(still, 1, x), np.where(still, 0, t), np.where(still, 1, delta))
            inside, outside = ball_probability(x, t, delta, self.outputs)
            exact = np.asarray(radius >= np.abs(self.residual.error), dtype=np.float64)
            below = below + weight * np.where(still, exact, inside)
            above = above + weight * np.where(still, 1 - exact, outside)
        return below, above

    def radial_density(self, radius: np.ndarray) -> np.ndarray:
        """Density of ‖e‖."""
        error = np.abs(self.residual.error)

        def part(a: np.ndarray, s: np.ndarray) -> np.ndarray:
            x, delta = np.broadcast_arrays(radius / s, a * error / s)
            return ball_density(x, delta, self.outputs) / s

        return self.residual.mix(part)


def _quantile(
    tails: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    density: Callable[[np.ndarray], np.ndarray],
    p: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray,
) -> np.ndarray:
    """The p-quantile between `low` and `high`, by the cdf below the median and by the survival function above it."""
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


def _pairs(k: float, integrate: bool) -> list[tuple[float, float]]:
    nodes: Nodes = chi_square_nodes(k) if integrate else one_node(k)
    return list(zip(nodes.values.tolist(), nodes.weights.tolist(), strict=True))


def _draw_v(rng: np.random.Generator, shape: tuple[int, ...], k: float, integrate: bool) -> np.ndarray:
    return rng.chisquare(k, shape) if integrate else np.full(shape, k)
