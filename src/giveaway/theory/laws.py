"""The distributions ("laws") of a record's leverage, residual and loss if others are random (docs/derivations.md)."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtr, chdtrc, chdtri, expit, gammaincinv, ndtr, ndtri, stdtrit
from scipy.stats import chi2

from giveaway.checks import fail
from giveaway.theory import balls
from giveaway.theory.balls import Pair, ball_density, ball_probability, ball_quantile, chi_square_nodes
from giveaway.theory.tradeoff import NUMBERS_AT_ONCE, in_range

PROBABILITY = "give probabilities"
CELLS = 1500  # for each distribution, in one dimension
SIDES = 250, 120  # for each distribution, along ε and across it
INNER = np.array([-1.0, 1.0]) / math.sqrt(3)  # two Gauss points in each cell


@dataclass(frozen=True)
class Records:
    """Records by arrays of one shape: h̄, ε (several outputs: its norm), each output's σ²; and k = n − p. V is averaged
    over where `integrate` says so, else k."""

    leverage: np.ndarray
    error: np.ndarray
    variance: np.ndarray
    freedom: float
    outputs: int
    integrate: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.leverage.shape

    def values_of_v(self) -> list[tuple[float, float]]:
        """Return the values of V and their weights."""
        return chi_square_nodes(self.freedom) if self.integrate else [(float(self.freedom), 1.0)]

    def draw_v(self, rng: np.random.Generator, size: int) -> np.ndarray:
        shape = size, *self.shape
        return rng.chisquare(self.freedom, shape) if self.integrate else np.full(shape, self.freedom)


@dataclass(frozen=True)
class LeverageLaw(Records):
    """The law of the leverage h = h̄/(V + h̄) in closed form, for V ~ χ²_k or V = k."""

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return self._tail(x, chdtrc, np.less_equal)

    def sf(self, x: ArrayLike) -> np.ndarray:
        return self._tail(x, chdtr, np.greater)

    def pdf(self, x: ArrayLike) -> np.ndarray:
        """Return the density; with V = k there is none."""
        h = np.asarray(x, dtype=np.float64)
        if not self.integrate:
            raise fail("integrate", "True for a density", "False", "with V = k the leverage is one number")
        with np.errstate(all="ignore"):
            density = chi2.pdf(self.leverage * (1 - h) / h, self.freedom) * self.leverage / (h * h)
        return np.where((h > 0) & (h < 1) & (self.leverage > 0), density, 0.0)[()]

    def ppf(self, p: ArrayLike) -> np.ndarray:
        p = in_range("p", p, 0, 1, PROBABILITY)
        return self._at(chdtri(self.freedom, p) if self.integrate else np.broadcast_to(self.freedom, p.shape))

    def mean(self) -> np.ndarray:
        return np.asarray(sum(weight * self._at(v) for v, weight in self.values_of_v()))[()]

    def var(self) -> np.ndarray:
        centre = self.mean()
        return np.asarray(sum(weight * (self._at(v) - centre) ** 2 for v, weight in self.values_of_v()))[()]

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """Return (size, …records) draws."""
        return self._at(self.draw_v(rng, size))

    def _at(self, v: np.ndarray | float) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.where(self.leverage > 0, self.leverage / (v + self.leverage), 0.0)[()]

    def _tail(self, x: ArrayLike, tail: Callable, compare: Callable) -> np.ndarray:
        h = np.asarray(x, dtype=np.float64)
        if not self.integrate:
            return compare(self._at(self.freedom), h).astype(np.float64)[()]
        with np.errstate(divide="ignore", invalid="ignore"):
            v = np.where(h > 0, self.leverage * np.maximum(1 - h, 0) / np.maximum(h, 0), np.inf)
        return np.where(self.leverage == 0, compare(0, h), tail(self.freedom, np.where(np.isnan(v), 1, v)))[()]


@dataclass(frozen=True)
class ResidualLaw(Records):
    """The law of a record's residual, trained on if `member`; with several outputs, of its component along ε."""

    member: bool

    def components(self) -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
        """Yield (weight, a, aτ) for each value of V."""
        for v, weight in self.values_of_v():
            yield weight, *self.given(v)

    def average(self, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the mean over V of a function of (a, aτ)."""
        with np.errstate(all="ignore"):
            return np.asarray(sum(weight * function(a, s) for weight, a, s in self.components()))[()]

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

    def ppf(self, p: ArrayLike) -> np.ndarray:
        p = in_range("p", p, 0, 1, PROBABILITY)
        # a quantile of a mixture lies between those of its components
        with np.errstate(invalid="ignore"):
            ends = [a * self.error + s * ndtri(p) for _, a, s in self.components()]
            low, high = np.min(ends, axis=0), np.max(ends, axis=0)
            if not self.integrate:
                return low[()]
            a, s = self.given(self.freedom)
            start = a * self.error + s * ndtri(p)
        return _quantile(self.tails, self.pdf, p, low, high, start)

    def mean(self) -> np.ndarray:
        return self.average(lambda a, s: a * self.error)

    def var(self) -> np.ndarray:
        """Return the variance; it is infinite for k ≤ 2 if the record is left out."""
        if self.member or not self.integrate:
            centre = ResidualLaw.mean(self)
            return self.average(lambda a, s: s * s + (a * self.error - centre) ** 2)
        inverse = 1 / (self.freedom - 2) if self.freedom > 2 else math.inf
        return np.where(self.leverage > 0, self.variance * self.leverage * inverse, 0.0)[()]

    def sample(self, rng: np.random.Generator, size: int = 1) -> np.ndarray:
        """Return (size, …records) draws."""
        return self.draw(rng, size)[0]

    def draw(self, rng: np.random.Generator, size: int) -> Pair:
        """Return (size, …records) draws of the residual, and of its standard deviation given V."""
        a, s = self.given(self.draw_v(rng, size))
        return a * self.error + s * rng.standard_normal(s.shape), s

    def given(self, v: np.ndarray | float) -> Pair:
        """Return a and aτ given V: the residual is a(ε + τZ)."""
        a = v / (v + self.leverage) if self.member else np.ones_like(v + self.leverage)
        return a, a * np.sqrt(self.variance * self.leverage / v)


class LossLaw(ResidualLaw):
    """The law of ℓ = ‖e‖² over q outputs: given V, (aτ)² times a noncentral χ²_q with noncentrality (ε/τ)²."""

    def pdf(self, x: ArrayLike) -> np.ndarray:
        """Return the density of the loss; for one output it grows without bound as the loss goes to 0."""
        radius = np.sqrt(in_range("x", x, 0, np.inf, "a loss is not negative"))
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self.radial_density(radius) / (2 * radius))[()]

    def tails(self, x: ArrayLike) -> np.ndarray:
        return self._radial_tails(np.sqrt(np.maximum(np.asarray(x, dtype=np.float64), 0)))

    def ppf(self, p: ArrayLike) -> np.ndarray:
        p = in_range("p", p, 0, 1, PROBABILITY)
        error = np.abs(self.error)
        centred = np.sqrt(2 * gammaincinv(self.outputs / 2, p))
        with np.errstate(invalid="ignore"):
            # ‖Z‖, centred, is no larger, and ‖δ + Z‖ ≤ δ + ‖Z‖
            low = np.min([s * centred for _, _, s in self.components()], axis=0)
            high = np.max([s * centred + a * error for _, a, s in self.components()], axis=0)
        a, s = self.given(self.freedom)
        distance = np.divide(a * error, s, out=np.zeros(s.shape), where=s > 0)
        levels, distance, scale = np.broadcast_arrays(np.minimum(p, 1 - 1e-15), distance, s)
        start = scale * ball_quantile(levels.ravel(), distance.ravel(), self.outputs)[0].reshape(levels.shape)
        root = _quantile(self._radial_tails, self.radial_density, p, low, high, start)
        return np.where(p == 0, 0.0, np.where(self.leverage > 0, root, error) ** 2)[()]

    def mean(self) -> np.ndarray:
        if self.member or not self.integrate:
            return self.average(lambda a, s: (a * self.error) ** 2 + self.outputs * s * s)
        return self.error**2 + self.outputs * super().var()

    def var(self) -> np.ndarray:
        """Return the variance; it is infinite for k ≤ 4 if the record is left out."""
        q, k = self.outputs, self.freedom
        if self.member or not self.integrate:
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
        along, s = self.draw(rng, size)
        across = rng.chisquare(self.outputs - 1, along.shape) if self.outputs > 1 else 0.0
        return along**2 + s * s * across

    def radial_density(self, radius: np.ndarray) -> np.ndarray:
        """Return the density of ‖e‖."""
        error = np.abs(self.error)

        def given_v(a: np.ndarray, s: np.ndarray) -> np.ndarray:
            x, delta = np.broadcast_arrays(radius / s, a * error / s)
            return ball_density(x, delta, self.outputs) / s

        return self.average(given_v)

    def _radial_tails(self, radius: np.ndarray) -> np.ndarray:
        """Return P(‖e‖ ≤ radius) and its complement."""
        error = np.abs(self.error)
        exact = np.asarray(radius >= error, dtype=np.float64)  # h̄ = 0 leaves e = ε without noise

        def given_v(a: np.ndarray, s: np.ndarray) -> np.ndarray:
            still = s == 0
            parts = (radius / s, 1), ((radius - a * error) / s, 0), (a * error / s, 1)
            x, t, delta = np.broadcast_arrays(*(np.where(still, value, part) for part, value in parts))
            return np.where(still, [exact, 1 - exact], ball_probability(x, t, delta, self.outputs))

        return self.average(given_v)


def _quantile(
    tails: Callable, density: Callable, p: np.ndarray, low: np.ndarray, high: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Find the p-quantile between `low` and `high`, by the cdf below the median and by its complement above it."""
    p, low, high, start = np.broadcast_arrays(p, low, high, start)
    inside = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(inside, low, 0), np.where(inside, high, 0)

    def excess(x: np.ndarray) -> Pair:
        with np.errstate(divide="ignore", invalid="ignore"):
            below, above = tails(x)
            tail = np.where(p <= 0.5, below, above)
            value = np.where(p <= 0.5, np.log(tail / p), np.log((1 - p) / tail))
            return np.where(inside, value, 0.0), density(x) / tail

    root = balls.solve_increasing(excess, low, high, np.clip(np.where(inside, start, 0), low, high), tolerance=1e-13)
    return np.where(inside, root, np.where(p > 0.5, np.inf, -np.inf))[()]


def cell_errors(outside: ResidualLaw, inside: ResidualLaw, *, signed: bool) -> Callable[[np.ndarray], Pair]:
    """Return α → (power, miss) of the best test on the loss, or on the residual if `signed`, in blocks of records."""
    shape, q = outside.shape, outside.outputs
    # a record without leverage has no spread to cut into cells: as good as none gives the same coin
    laws = [
        replace(law, leverage=np.maximum(law.leverage, 1e-9 * law.freedom), error=np.abs(law.error))  # mirror images
        for law in (outside, inside)
    ]
    records = laws[0].leverage.size
    cells = 2 * (SIDES[0] * 2 * SIDES[1] if signed and q > 1 else CELLS)
    each = max(1, NUMBERS_AT_ONCE // cells // 4)

    def errors(alpha: np.ndarray) -> Pair:
        full = np.broadcast_shapes(alpha.shape, shape)
        rates = np.broadcast_to(alpha, full).reshape(-1, records)
        power, miss = np.empty(rates.shape), np.empty(rates.shape)
        for start in range(0, records, each):
            block = slice(start, start + each)
            columns = []
            for law in laws:  # the records stand down the first of two axes
                some = {name: getattr(law, name).reshape(-1, 1)[block] for name in ("leverage", "error", "variance")}
                columns.append(replace(law, **some))
            if signed and q > 1:
                chances = _vector_chances(columns)
            else:
                points, widths = _cells(columns, CELLS, None if signed else q)
                densities = [law.pdf if signed else LossLaw(**vars(law)).radial_density for law in columns]
                chances = [_sum_pairs(density(points) * widths) for density in densities]
            power[:, block], miss[:, block] = _best_cells(chances[0], chances[1], rates[:, block])
        return power.reshape(full), miss.reshape(full)

    return errors


def _best_cells(outside: np.ndarray, inside: np.ndarray, alpha: np.ndarray) -> Pair:
    """Return power and miss at each α (rates, records) from the cells' probabilities (records, cells)."""
    outside, inside = (p / p.sum(axis=1, keepdims=True) for p in (outside, inside))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        order = np.argsort(-np.where(outside + inside > 0, inside / outside, 0), axis=1, kind="stable")
    outside, inside = np.take_along_axis(outside, order, 1), np.take_along_axis(inside, order, 1)
    false, true = (np.pad(np.cumsum(p, axis=1), ((0, 0), (1, 0))) for p in (outside, inside))
    missed = np.pad(np.cumsum(inside[:, ::-1], axis=1)[:, ::-1], ((0, 0), (0, 1)))
    rows = np.arange(len(false))
    # the last place whose false-positive rate is at most α
    found = [np.searchsorted(rates, at, side="right") for rates, at in zip(false, alpha.T, strict=True)]
    low = np.minimum(np.stack(found, axis=1) - 1, false.shape[1] - 2)
    high = low + 1
    gap = false[rows, high] - false[rows, low]
    share = np.clip(np.divide(alpha - false[rows, low], gap, out=np.ones(alpha.shape), where=gap > 0), 0, 1)
    power = true[rows, low] + share * inside[rows, low]
    miss = missed[rows, high] + (1 - share) * inside[rows, low]
    return np.maximum(power, alpha), np.minimum(miss, 1 - alpha)


def _vector_chances(laws: list[ResidualLaw]) -> list[np.ndarray]:
    """Cut along ε and across it: given V the two are independent, so the probabilities are a matrix product."""
    q = laws[0].outputs
    along, along_widths = _cells(laws, SIDES[0])
    no_error = [replace(law, error=np.zeros_like(law.error)) for law in laws]
    across, across_widths = _cells(no_error, SIDES[1], q - 1)
    chances = []
    for law in laws:
        one, other = [], []
        for weight, a, s in law.components():
            z, r = (along - a * law.error) / s, across / s
            one.append(_sum_pairs(weight * np.exp(-0.5 * z * z) / s * along_widths))
            other.append(_sum_pairs(ball_density(r, np.zeros_like(r), q - 1) / s * across_widths))
        joint = np.stack(one, axis=2) @ np.stack(other, axis=1)
        chances.append(joint.reshape(len(joint), -1))
    return chances


def _spread(law: ResidualLaw, count: int, q: int = 1) -> np.ndarray:
    """Return (records, count) places (q > 1: radii) about where the law has its mass, out to 1e-14, for cells."""
    k = law.freedom
    t = stdtrit(k, expit(np.linspace(-32, 32, count)))
    _, tau = law.given(law.freedom)
    if law.member:
        tau = np.hypot(tau, law.error * law.leverage * math.sqrt(2 * k) / (k + law.leverage) ** 2)
    centre = np.sqrt(law.mean() ** 2 + (q - 1) * tau**2)
    return centre + (tau * math.sqrt(1 + (q - 1) / (2 * k))) * t


def _cells(laws: list[ResidualLaw], count: int, q: int | None = None) -> Pair:
    """Cut where the laws have their mass, or for q outputs the radii, into cells: return two points in each cell
    (records, points), and each point's share of its width."""
    edges = np.concatenate([_spread(law, count, q or 1) for law in laws], axis=1)
    edges = np.sort(edges if q is None else np.pad(np.abs(edges), ((0, 0), (1, 0))), axis=1)
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, np.diff(edges, axis=1) / 2
    points = middle[:, :, None] + half[:, :, None] * INNER
    return points.reshape(len(edges), -1), np.repeat(half, 2, axis=1)


def _sum_pairs(values: np.ndarray) -> np.ndarray:
    """Sum the two points of every cell."""
    return values[:, ::2] + values[:, 1::2]
