"""The normal probability of a ball: P(‖δe₁ + Z‖ ≤ x), Z ~ N(0, I_q), which every test of the theory comes down to.

‖δe₁ + Z‖² is noncentral χ²_q with noncentrality δ²; q = 1 is a difference of two normal cdfs. Far from the centre
(δ above `far_from`) the ball is measured by t = x − δ, for x itself no longer holds the digits:
‖δe₁ + Z‖ ≤ δ + t ⟺ Z₁ ≤ √((δ + t)² − W) − δ with W ~ χ²_{q−1}, averaged over W by quadrature.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from scipy.special import erfinv, gammaincinv, gammaln, ive, ndtr, ndtri, roots_genlaguerre
from scipy.stats import ncx2

from giveaway.theory.chi_square import chi_square_nodes

BLOCK = 1 << 15  # elements handled at a time: temporaries stay in the cache
SMALLEST = 1e-300
LOWEST = 1e-150  # an α below this counts as 0: squares of its quantiles underflow
ROOT_TAU = math.sqrt(math.tau)
GAUSS_NODES, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(12)
HALF_NODES, HALF_WEIGHTS = GAUSS_NODES[6:], GAUSS_WEIGHTS[6:]


def far_from(q: int) -> float:
    """The distance beyond which √((δ + t)² − W) is smooth for every W and t that matter."""
    return 50.0 + 5.0 * (2.0 * q) ** 0.25


def ball_probability(x: np.ndarray, t: np.ndarray, delta: np.ndarray, q: int) -> tuple[np.ndarray, np.ndarray]:
    """(P(‖δe₁ + Z‖ ≤ x), its complement), each to full relative accuracy; t is x − δ, used where δ is far."""
    inside, outside = np.empty_like(x), np.empty_like(x)
    far = delta > far_from(q)
    if far.any():
        inside[far], outside[far] = _far_probability(t[far], delta[far], q)
    near = ~far
    inside[near], outside[near] = _near_probability(x[near], delta[near], q)
    return inside, outside


def ball_density(x: np.ndarray, delta: np.ndarray, q: int) -> np.ndarray:
    """Density of ‖δe₁ + Z‖ at x (the noncentral χ)."""
    if q == 1:
        return _normal(x - delta) + _normal(x + delta)
    with np.errstate(divide="ignore", under="ignore"):
        log = (q - 1) * np.log(x) - 0.5 * (x - delta) ** 2 + log_bessel(x * delta, q)
        return np.exp(log - (q / 2 - 1) * math.log(2) - gammaln(q / 2))


def ball_quantile(alpha: np.ndarray, delta: np.ndarray, q: int) -> tuple[np.ndarray, np.ndarray]:
    """(x, t = x − δ) with P(‖δe₁ + Z‖ ≤ x) = α.

    log P is concave in x (Prékopa), so Newton's method on it rises to the root from any start below. Two are: the
    quantile for δ = 0 (a centred ball holds most) and that of δ + Z₁ (the norm is no smaller).
    """
    level = np.clip(alpha, LOWEST, 1 - 2**-53)
    t = ndtri(level)
    x = np.maximum(_centred_quantile(level, q), delta + t)
    far = delta > far_from(q)
    if far.any() and q > 1:

        def far_step(t: np.ndarray, delta: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            inside, _ = _far_probability(t, delta, q)
            slope = np.maximum(_far_density(t, delta, q), SMALLEST)
            return np.log(level / np.maximum(inside, SMALLEST)) * inside / slope, np.abs(t) + 1

        t[far] = _rise(far_step, t[far], delta[far], level[far])
    near = ~far

    def near_step(x: np.ndarray, delta: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inside = np.maximum(_near_probability(x, delta, q, complement=False)[0], SMALLEST)
        return np.log(level / inside) * inside / np.maximum(ball_density(x, delta, q), SMALLEST), x

    if near.any():
        x[near] = _rise(near_step, x[near], delta[near], level[near])
        t[near] = x[near] - delta[near]
    x[far] = delta[far] + t[far]
    for end, value in ((alpha < LOWEST, 0.0), (alpha == 1, np.inf)):
        x[end], t[end] = value, value - delta[end]
    return x, t


def dilated_ball(
    alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, q: int, *, signed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(power, miss) of the ball that holds α of N(δe₁, I) when the point is in fact c·N(δe₁, I), c = 1/(1 + η).

    The ball lies about the origin, or (`signed`) about c/(1 + c)·δe₁, the centre of the level sets of the likelihood
    ratio of the two normals. Seen from the second centre the distances are δ/(1 + c) and, in units of c, cδ/(1 + c).
    """
    c = 1 / (1 + eta)
    away = delta / (1 + c) if signed else delta
    x, t = ball_quantile(alpha, away, q)
    grown = np.where(np.isfinite(x), t * (1 + eta) + delta * eta, np.inf)
    power, miss = ball_probability(x * (1 + eta), grown, c * away if signed else away, q)
    # a larger ball about a nearer centre never holds less: rounding must not say so
    return np.maximum(power, alpha), np.minimum(miss, 1 - alpha)


def in_blocks(function: Callable[..., tuple[np.ndarray, ...]], *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """function(*arrays) → (power, miss) over broadcast arrays, a block of elements at a time."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    flat = [np.broadcast_to(a, shape).reshape(-1) for a in arrays]
    size = math.prod(shape)
    power, miss = np.empty(size), np.empty(size)

    def fill(start: int) -> None:
        part = slice(start, start + BLOCK)
        power[part], miss[part] = function(*(a[part] for a in flat))

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the special functions release the interpreter lock
        list(pool.map(fill, range(0, size, BLOCK)))
    return power.reshape(shape), miss.reshape(shape)


def log_bessel(z: np.ndarray, q: int) -> np.ndarray:
    """log of Γ(ν + 1)(2/z)^ν I_ν(z)·e^{−z}, ν = q/2 − 1: minus z at small z, and log cosh z − z for q = 1."""
    nu = q / 2 - 1
    if q == 1:
        return np.log1p(np.exp(-2 * z)) - math.log(2)
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


def _centred_quantile(level: np.ndarray, q: int) -> np.ndarray:
    if q == 1:
        return math.sqrt(2) * erfinv(level)
    levels, place = np.unique(level, return_inverse=True)  # few rates, many records: the inverse is slow
    return np.sqrt(2 * gammaincinv(q / 2, levels))[place]


def _rise(
    step: Callable[..., tuple[np.ndarray, np.ndarray]], x: np.ndarray, delta: np.ndarray, level: np.ndarray
) -> np.ndarray:
    """Newton's method on the elements that still move; `step` returns the step and the scale to judge it by."""
    active = np.arange(x.size)
    for _ in range(60):
        move, scale = step(x[active], delta[active], level[active])
        x[active] += move
        active = active[np.abs(move) > 4e-15 * scale]
        if not active.size:
            break
    return x


def _near_probability(
    x: np.ndarray, delta: np.ndarray, q: int, *, complement: bool = True
) -> tuple[np.ndarray, np.ndarray]:
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
        for node, weight in zip(HALF_NODES, HALF_WEIGHTS, strict=True):
            total += weight * np.exp(-0.5 * (s * node) ** 2) * np.cosh(d * s * node)
        inside[small] = 2 * s * _normal(d) * total
    return inside, ndtr(delta - x) + beyond if complement else inside


def _far_probability(t: np.ndarray, delta: np.ndarray, q: int) -> tuple[np.ndarray, np.ndarray]:
    inside, outside = np.zeros_like(t), np.zeros_like(t)
    for w, weight in _across(q):
        edge = _far_edge(t, delta, w)[0]
        inside += weight * ndtr(edge)
        outside += weight * ndtr(-edge)
    return inside, outside


def _far_density(t: np.ndarray, delta: np.ndarray, q: int) -> np.ndarray:
    total = np.zeros_like(t)
    for w, weight in _across(q):
        edge, slope = _far_edge(t, delta, w)
        total += weight * _normal(edge) * slope
    return total


def _far_edge(t: np.ndarray, delta: np.ndarray, w: float) -> tuple[np.ndarray, np.ndarray]:
    """√((δ + t)² − w) − δ without cancellation, and its slope in t."""
    if w == 0:
        return t, np.ones_like(t)
    x = delta + t
    with np.errstate(invalid="ignore"):
        root = np.sqrt(np.maximum(x - w / np.maximum(x, 1e-9), 1e-9) * x)
        edge = t - w / (root + x)
    return np.where(np.isfinite(x), edge, np.inf), x / root


@lru_cache(maxsize=32)
def _across(q: int) -> list[tuple[float, float]]:
    """Values and weights of W ~ χ²_{q−1}, what lies across e₁ (Gauss–Laguerre while its weights do not overflow)."""
    if q == 1:
        return [(0.0, 1.0)]
    if q > 100:
        nodes = chi_square_nodes(float(q - 1))
        return list(zip(nodes.values.tolist(), nodes.weights.tolist(), strict=True))
    half, weights = roots_genlaguerre(20, (q - 3) / 2)
    return list(zip((2 * half).tolist(), (weights / weights.sum()).tolist(), strict=True))


def _normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * x * x) / ROOT_TAU
