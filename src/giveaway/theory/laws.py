"""The distributions ("laws") of one record's leverage, residual and loss, if the others are random
(docs/derivations.md)."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtr, chdtrc, chdtri, expit, gammaincinv, gammaln, ndtr, ndtri, stdtrit
from scipy.stats import chi2

from giveaway.checks import fail
from giveaway.theory.balls import ball_density, ball_probability, ball_quantile, chi_square_nodes, solve_increasing
from giveaway.theory.tradeoff import NUMBERS_AT_ONCE, in_range

PROBABILITY = "give probabilities"
CELLS = 1500  # for each distribution, in one dimension
SIDES = 250, 120  # for each distribution, along ε and across it
INNER = np.array([-1.0, 1.0]) / math.sqrt(3)  # two Gauss points in each cell


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
        with np.errstate(all="ignore"):
            density = chi2.pdf(self.leverage * (1 - h) / h, self.freedom) * self.leverage / (h * h)
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
        with np.errstate(all="ignore"):
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

        def given_v(a: np.ndarray, s: np.ndarray) -> np.ndarray:
            still = s == 0
            parts = (radius / s, 1), ((radius - a * error) / s, 0), (a * error / s, 1)
            x, t, delta = np.broadcast_arrays(*(np.where(still, value, part) for part, value in parts))
            inside, outside = ball_probability(x, t, delta, self.outputs)
            return np.stack([np.where(still, exact, inside), np.where(still, 1 - exact, outside)])

        below, above = self.residual.average(given_v)
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


def cell_errors(
    outside: ResidualLaw, inside: ResidualLaw, q: int, *, signed: bool
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return α → (power, miss) of the best test on the loss, or on the residual if `signed`, in blocks of records."""
    shape = outside.leverage.shape
    # a record without leverage has no spread to cut into cells: as good as none gives the same coin
    laws = [
        replace(law, leverage=np.maximum(law.leverage, 1e-9 * law.freedom), error=np.abs(law.error))  # mirror images
        for law in (outside, inside)
    ]
    records = laws[0].leverage.size
    cells = 2 * (SIDES[0] * 2 * SIDES[1] if signed and q > 1 else CELLS)
    each = max(1, NUMBERS_AT_ONCE // cells // 4)

    def errors(alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
                chances = _vector_chances(columns, q)
            else:
                edges = _edges(columns, CELLS) if signed else _radial_edges(columns, CELLS, q)
                points, widths = _gauss_points(edges)
                densities = [law.pdf if signed else LossLaw(law, q).radial_density for law in columns]
                chances = [_sum_pairs(density(points) * widths) for density in densities]
            power[:, block], miss[:, block] = _best_cells(chances[0], chances[1], rates[:, block])
        return power.reshape(full), miss.reshape(full)

    return errors


def _best_cells(outside: np.ndarray, inside: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def _vector_chances(laws: list[ResidualLaw], q: int) -> list[np.ndarray]:
    """Cut along ε and across it: given V the two are independent, so the probabilities are a matrix product."""
    along, along_widths = _gauss_points(_edges(laws, SIDES[0]))
    no_error = [replace(law, error=np.zeros_like(law.error)) for law in laws]
    across, across_widths = _gauss_points(_radial_edges(no_error, SIDES[1], q - 1))
    chances = []
    for law in laws:
        one, other = [], []
        for weight, a, s in law.components():
            z, r = (along - a * law.error) / s, across / s
            one.append(_sum_pairs(weight * np.exp(-0.5 * z * z) / s * along_widths))
            with np.errstate(divide="ignore"):
                log = (q - 2) * np.log(r) - 0.5 * r * r - (q / 2 - 1.5) * math.log(2) - gammaln((q - 1) / 2)
            other.append(_sum_pairs(np.exp(log) / s * across_widths))
        joint = np.stack(one, axis=2) @ np.stack(other, axis=1)
        chances.append(joint.reshape(len(joint), -1))
    return chances


def _spread(law: ResidualLaw, count: int, q: int = 1) -> np.ndarray:
    """Return (records, count) places (q > 1: radii) about where the law has its mass, out to 1e-14, for cells."""
    k = law.freedom
    t = stdtrit(k, expit(np.linspace(-32, 32, count)))
    tau, shrunk = law.typical_scale()
    if law.member:
        wander = law.error * law.leverage * math.sqrt(2 * k) / (k + law.leverage) ** 2
        tau = np.hypot(shrunk * tau, wander)
    centre = np.sqrt(law.mean() ** 2 + (q - 1) * tau**2)
    return centre + (tau * math.sqrt(1 + (q - 1) / (2 * k))) * t


def _edges(laws: list[ResidualLaw], count: int, q: int = 1) -> np.ndarray:
    return np.concatenate([_spread(law, count, q) for law in laws], axis=1)


def _radial_edges(laws: list[ResidualLaw], count: int, q: int) -> np.ndarray:
    return np.pad(np.abs(_edges(laws, count, q)), ((0, 0), (1, 0)))


def _gauss_points(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two points in every cell between the edges (records, edges), and each point's share of its width."""
    edges = np.sort(edges, axis=1)
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, np.diff(edges, axis=1) / 2
    points = middle[:, :, None] + half[:, :, None] * INNER
    return points.reshape(len(edges), -1), np.repeat(half, 2, axis=1)


def _sum_pairs(values: np.ndarray) -> np.ndarray:
    """Sum the two points of every cell."""
    return values[:, ::2] + values[:, 1::2]
