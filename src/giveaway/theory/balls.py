"""The probability that a normal vector falls inside a ball, which every test comes down to (docs/derivations.md)."""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from scipy.special import erfinv, gammainccinv, gammaincinv, gammaln, ive, ndtr, ndtri, roots_genlaguerre
from scipy.stats import ncx2

Pair = tuple[np.ndarray, np.ndarray]

BLOCK = 1 << 15  # elements handled at a time: temporaries stay in the cache
SMALLEST = 1e-300
LOWEST = 1e-150  # an α below this counts as 0: squares of its quantiles underflow
GAUSS = np.stack(np.polynomial.legendre.leggauss(12), 1)[6:].tolist()  # nodes above 0, and their weights
TAIL = 1e-17  # probability that the quadrature over χ²_k leaves out on either side


def far_from(q: int) -> float:
    """Return the distance beyond which √((δ + t)² − W) is smooth for every W and t that matter."""
    return 50.0 + 5.0 * (2.0 * q) ** 0.25


def ball_probability(x: np.ndarray, t: np.ndarray, delta: np.ndarray, q: int) -> Pair:
    """Return P(‖δe₁ + Z‖ ≤ x) and its complement to full relative accuracy; t is x − δ, used where δ is far."""
    inside, outside = np.empty_like(x), np.empty_like(x)
    far = delta > far_from(q)
    if far.any():
        inside[far], outside[far], _ = _far_probability(t[far], delta[far], q)
    near = ~far
    inside[near], outside[near] = _near_probability(x[near], delta[near], q)
    return inside, outside


def _ball_density(x: np.ndarray, delta: np.ndarray, q: int) -> np.ndarray:
    """Return the density of ‖δe₁ + Z‖ (the noncentral χ) at x."""
    if q == 1:
        return _normal_density(x - delta) + _normal_density(x + delta)
    with np.errstate(divide="ignore", under="ignore"):
        log = (q - 1) * np.log(x) - 0.5 * (x - delta) ** 2 + _log_bessel(x * delta, q)
        return np.exp(log - (q / 2 - 1) * math.log(2) - gammaln(q / 2))


def ball_quantile(alpha: np.ndarray, delta: np.ndarray, q: int) -> Pair:
    """Return (x, t = x − δ) with P(‖δe₁ + Z‖ ≤ x) = α, by Newton's method from below: log P is concave in x."""
    level = np.clip(alpha, LOWEST, 1 - 2**-53)
    t = ndtri(level)
    if q == 1:
        centred = math.sqrt(2) * erfinv(level)
    else:  # few rates, many records: the inverse is slow
        levels, place = np.unique(level, return_inverse=True)
        centred = np.sqrt(2 * gammaincinv(q / 2, levels))[place]
    x = np.maximum(centred, delta + t)
    if q > 100:  # where so low a start has no probability left in float64; a higher one is below after one step
        x = np.maximum(x, np.sqrt(np.maximum(q + delta**2 + t * np.sqrt(2 * q + 4 * delta**2), 0.0)))
    far = delta > far_from(q)
    near = ~far

    def far_step(t: np.ndarray, delta: np.ndarray, level: np.ndarray) -> Pair:
        inside, _, slope = (np.maximum(part, SMALLEST) for part in _far_probability(t, delta, q))
        return np.log(level / inside) * inside / slope, np.abs(t) + 1

    def near_step(x: np.ndarray, delta: np.ndarray, level: np.ndarray) -> Pair:
        inside = np.maximum(_near_probability(x, delta, q, complement=False)[0], SMALLEST)
        return np.log(level / inside) * inside / np.maximum(_ball_density(x, delta, q), SMALLEST), x

    if far.any() and q > 1:
        t[far] = _rise(far_step, t[far], delta[far], level[far])
    if near.any():
        x[near] = _rise(near_step, x[near], delta[near], level[near])
        t[near] = x[near] - delta[near]
    x[far] = delta[far] + t[far]
    for end, value in ((alpha < LOWEST, 0.0), (alpha == 1, np.inf)):
        x[end], t[end] = value, value - delta[end]
    return x, t


def dilated_ball(alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, q: int, *, signed: bool) -> Pair:
    """Return (power, miss) of the ball that holds α of N(δe₁, I), if the truth is c·N(δe₁, I) with c = 1/(1 + η), about
    the origin or, if `signed`, about c/(1 + c)·δe₁."""
    c = 1 / (1 + eta)
    away = delta / (1 + c) if signed else delta
    x, t = ball_quantile(alpha, away, q)
    grown = np.where(np.isfinite(x), t * (1 + eta) + delta * eta, np.inf)
    power, miss = ball_probability(x * (1 + eta), grown, c * away if signed else away, q)
    # a larger ball about a nearer centre never holds less: rounding must not say so
    return np.maximum(power, alpha), np.minimum(miss, 1 - alpha)


def in_blocks(function: Callable[..., tuple[np.ndarray, ...]], *arrays: np.ndarray) -> Pair:
    """Broadcast the arrays and evaluate function(*arrays) → (power, miss) a block of elements at a time, in threads."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    flat = [np.broadcast_to(a, shape).reshape(-1) for a in arrays]
    size = math.prod(shape)
    power, miss = np.empty(size), np.empty(size)

    def fill(start: int) -> None:
        block = slice(start, start + BLOCK)
        power[block], miss[block] = function(*(a[block] for a in flat))

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the special functions release the interpreter lock
        list(pool.map(fill, range(0, size, BLOCK)))
    return power.reshape(shape), miss.reshape(shape)


def _log_bessel(z: np.ndarray, q: int) -> np.ndarray:
    """Return log of Γ(ν + 1)(2/z)^ν I_ν(z)·e^{−z}, ν = q/2 − 1, q > 1: minus z at small z."""
    nu = q / 2 - 1
    w = z * z / (4 * (nu + 1))
    series = np.log1p(w * (1 + w * (nu + 1) / (nu + 2) / 2 * (1 + w * (nu + 1) / (nu + 3) / 3))) - z
    large = np.where(w < 1e-3, 1.0, z)
    if nu < 100:
        bessel = np.log(ive(nu, large)) - nu * np.log(large / 2) + gammaln(nu + 1)
    else:  # Debye's expansion, uniform in z/ν: ive underflows at large order
        root = np.hypot(1.0, large / nu)
        p = 1 / root
        u1 = p * (3 - 5 * p**2) / 24
        u2 = p**2 * (81 - 462 * p**2 + 385 * p**4) / 1152
        u3 = p**3 * (30375 - 369603 * p**2 + 765765 * p**4 - 425425 * p**6) / 414720
        # ν(√ − z/ν) = ν²/(ν√ + z), and ν log(z/ν/(1 + √)) joins −ν log(z/2) without its large terms
        bessel = nu * nu / (nu * root + large) - nu * np.log((1 + root) / 2) - 0.5 * np.log(root)
        bessel += np.log1p(u1 / nu + u2 / nu**2 + u3 / nu**3) - nu * math.log(nu) + gammaln(nu + 1)
        bessel -= 0.5 * math.log(math.tau * nu)
    return np.where(w < 1e-3, series, bessel)


def _rise(step: Callable[..., Pair], x: np.ndarray, delta: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Run Newton's method on the elements that still move; `step` returns the step and the scale to judge it by."""
    active = np.arange(x.size)
    for _ in range(60):
        move, scale = step(x[active], delta[active], level[active])
        x[active] += move
        active = active[np.abs(move) > 1e-9 * scale]  # the next step would be of the square of that
        if not active.size:
            break
    return x


def _near_probability(x: np.ndarray, delta: np.ndarray, q: int, *, complement: bool = True) -> Pair:
    if q > 1:
        square, noncentrality = x * x, delta * delta
        inside = ncx2.cdf(square, q, noncentrality)
        return inside, ncx2.sf(square, q, noncentrality) if complement else inside
    beyond = ndtr(-x - delta)
    inside = ndtr(x - delta) - beyond
    small = np.flatnonzero(x * (1 + delta) < 0.5)
    if small.size:  # the two cdfs nearly cancel: integrate the density instead
        s, d = x[small], delta[small]
        total = np.zeros_like(s)
        for node, weight in GAUSS:
            total += weight * np.exp(-0.5 * (s * node) ** 2) * np.cosh(d * s * node)
        inside[small] = 2 * s * _normal_density(d) * total
    return inside, ndtr(delta - x) + beyond if complement else inside


def _far_probability(t: np.ndarray, delta: np.ndarray, q: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the probability, its complement and its slope in t."""
    if q == 1:
        return ndtr(t), ndtr(-t), _normal_density(t)
    inside, outside, slope = (np.zeros_like(t) for _ in range(3))
    x = delta + t
    with np.errstate(invalid="ignore"):
        for w, weight in _across(q):
            root = np.sqrt(np.maximum(x - w / np.maximum(x, 1e-9), 1e-9) * x)
            edge = np.where(np.isfinite(x), t - w / (root + x), np.inf)  # √((δ + t)² − w) − δ, without cancellation
            inside += weight * ndtr(edge)
            outside += weight * ndtr(-edge)
            slope += weight * _normal_density(edge) * x / root
    return inside, outside, slope


@lru_cache(maxsize=32)
def _across(q: int) -> list[tuple[float, float]]:
    """Return values and weights of W ~ χ²_{q−1}, the squared distance across e₁, for q > 1."""
    if q > 100:  # the weights of Gauss–Laguerre would overflow
        return chi_square_nodes(float(q - 1))
    half, weights = roots_genlaguerre(20, (q - 3) / 2)
    return list(zip((2 * half).tolist(), (weights / weights.sum()).tolist(), strict=True))


def _normal_density(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * x * x) / math.sqrt(math.tau)


@lru_cache(maxsize=32)
def chi_square_nodes(k: float) -> list[tuple[float, float]]:
    """Return values v of V ~ χ²_k and weights w with Σ w·g(v) ≈ E g(V), by the trapezoid rule in log V.

    >>> round(sum(weight / value for value, weight in chi_square_nodes(100.0)), 12)  # 1/(k − 2)
    0.010204081633
    """
    left, right = np.log(np.array([2 * gammaincinv(k / 2, TAIL), 2 * gammainccinv(k / 2, TAIL)]) / k)
    step = min(0.25, 0.25 * np.sqrt(2 / k))
    y = np.linspace(left, right, int(np.ceil((right - left) / step)) + 1)
    weights = np.exp(k / 2 * (y - np.expm1(y)))  # centred at V = k: no digits lost for large k
    return list(zip((k * np.exp(y)).tolist(), (weights / weights.sum()).tolist(), strict=True))
