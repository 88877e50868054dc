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
ROOT_TAU = math.sqrt(math.tau)
GAUSS_NODES, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(12)
TAIL = 1e-17  # probability that the quadrature over χ²_k leaves out on either side
ROOT_STEPS = 200


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


def ball_density(x: np.ndarray, delta: np.ndarray, q: int) -> np.ndarray:
    """Return the density of ‖δe₁ + Z‖ (the noncentral χ) at x."""
    if q == 1:
        return _normal_density(x - delta) + _normal_density(x + delta)
    with np.errstate(divide="ignore", under="ignore"):
        log = (q - 1) * np.log(x) - 0.5 * (x - delta) ** 2 + log_bessel(x * delta, q)
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
    far = delta > far_from(q)
    near = ~far

    def far_step(t: np.ndarray, delta: np.ndarray, level: np.ndarray) -> Pair:
        inside, _, slope = (np.maximum(part, SMALLEST) for part in _far_probability(t, delta, q))
        return np.log(level / inside) * inside / slope, np.abs(t) + 1

    def near_step(x: np.ndarray, delta: np.ndarray, level: np.ndarray) -> Pair:
        inside = np.maximum(_near_probability(x, delta, q, complement=False)[0], SMALLEST)
        return np.log(level / inside) * inside / np.maximum(ball_density(x, delta, q), SMALLEST), x

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


def log_bessel(z: np.ndarray, q: int) -> np.ndarray:
    """Return log of Γ(ν + 1)(2/z)^ν I_ν(z)·e^{−z}, ν = q/2 − 1: minus z at small z, and log cosh z − z for q = 1."""
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


def _rise(step: Callable[..., Pair], x: np.ndarray, delta: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Run Newton's method on the elements that still move; `step` returns the step and the scale to judge it by."""
    active = np.arange(x.size)
    for _ in range(60):
        move, scale = step(x[active], delta[active], level[active])
        x[active] += move
        active = active[np.abs(move) > 4e-15 * scale]
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
        for node, weight in zip(GAUSS_NODES[6:], GAUSS_WEIGHTS[6:], strict=True):
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
    return np.exp(-0.5 * x * x) / ROOT_TAU


def best_shell(alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, q: int) -> Pair:
    """Return (power, miss) at level α of the likelihood-ratio test on the loss, elementwise over 1-D arrays."""
    power, miss = dilated_ball(alpha, delta, eta, q, signed=False)
    most, least = dilated_ball(alpha, delta, eta, q, signed=True)
    most, least = np.maximum(most, power), np.minimum(least, miss)
    x, _ = ball_quantile(alpha, delta, q)
    undecided = (delta * delta > q) & (eta > 0) & (alpha > 0) & (alpha < 1)
    if q == 1:  # far out the other sign has no chance, and the loss says all that the residual does
        far = delta > far_from(1)
        power[far], miss[far] = most[far], least[far]
        undecided &= ~far
    index = np.flatnonzero(undecided)
    index = index[_log_ratio(x[index], delta[index], eta[index], q) > 0]  # else the interval starts at r₁ = 0
    if index.size:
        a, d, e = alpha[index], delta[index], eta[index]
        start, half = _equal_ends(a, d, e, x[index], q)
        power[index] = np.clip(_shell(start * (1 + e), half * (1 + e), d, q), power[index], most[index])
        below, above = start * (1 + e), (start + 2 * half) * (1 + e)
        outside = ball_probability(below, below - d, d, q)[0] + ball_probability(above, above - d, d, q)[1]
        miss[index] = np.clip(outside, least[index], miss[index])
    return power, miss


def _log_ratio(r: np.ndarray, delta: np.ndarray, eta: np.ndarray, q: int) -> np.ndarray:
    """Return L(r) − L(0)."""
    z = delta * r
    return -0.5 * eta * (2 + eta) * r * r + eta * z + log_bessel(z * (1 + eta), q) - log_bessel(z, q)


def _slope(r: np.ndarray, delta: np.ndarray, eta: np.ndarray, q: int) -> np.ndarray:
    """Return dL/dr, from I_{ν+1}(z)/I_ν(z) = z/q·exp(log_bessel(z, q + 2) − log_bessel(z, q))."""

    def pull(scale: np.ndarray) -> np.ndarray:
        z = scale * delta * r
        return scale * delta * z / q * np.exp(log_bessel(z, q + 2) - log_bessel(z, q))

    return pull(1 + eta) - pull(np.ones_like(r)) - eta * (2 + eta) * r


def _equal_ends(alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, x: np.ndarray, q: int) -> Pair:
    """Return r₁ and half the width of the interval of probability α with L(r₁) = L(r₂)."""
    start, half, converged = _newton(alpha, delta, eta, x, q)
    rest = np.flatnonzero(~converged)
    if rest.size:
        a, d, e, guess = alpha[rest], delta[rest], eta[rest], 0.5 * x[rest]

        def fall(r: np.ndarray) -> Pair:
            """Return L(r₁) − L(r₂), which changes sign once as r₁ grows at a fixed probability, and its slope."""
            end = r + 2 * _half_width(a, r, guess, d, q)
            moves = ball_density(r, d, q) / np.maximum(ball_density(end, d, q), SMALLEST)
            slope = _slope(r, d, e, q) - moves * _slope(end, d, e, q)
            return _log_ratio(r, d, e, q) - _log_ratio(end, d, e, q), slope

        # the power is stationary in r₁ at the answer, so that half of r₁'s digits give all of the power's
        start[rest] = solve_increasing(fall, np.zeros_like(d), d, 0.5 * d, tolerance=1e-8)
    return start, _half_width(alpha, start, half, delta, q)


def _newton(
    alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, x: np.ndarray, q: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Solve both equations at once from the interval of the signed test; the last array says where it converged."""
    c = 1 / (1 + eta)
    centre = delta * c / (1 + c)
    reach, _ = ball_quantile(alpha, delta / (1 + c), q)
    start = np.maximum(centre - reach, 0.1 * centre)
    half = np.where(centre > reach, reach, 0.5 * x)
    converged = np.zeros(x.shape, dtype=bool)
    active = np.arange(x.size)
    for _ in range(12):
        s, w, d, e = start[active], half[active], delta[active], eta[active]
        end = s + 2 * w
        inside = np.maximum(_shell(s, w, d, q), SMALLEST)
        mass, level = np.log(inside / alpha[active]), _log_ratio(end, d, e, q) - _log_ratio(s, d, e, q)
        at_end = ball_density(end, d, q)
        mass_s, mass_w = (at_end - ball_density(s, d, q)) / inside, 2 * at_end / inside
        level_s, level_w = _slope(end, d, e, q) - _slope(s, d, e, q), 2 * _slope(end, d, e, q)
        with np.errstate(all="ignore"):
            determinant = mass_s * level_w - mass_w * level_s
            by_s = (mass_w * level - level_w * mass) / determinant
            by_w = (level_s * mass - mass_s * level) / determinant
        by_s, by_w = (np.where(np.isfinite(step), step, 0) for step in (by_s, by_w))
        # true to second order in what is left; the peak is above r₁ and below r₂
        close = (np.abs(by_s) + np.abs(by_w) < 1e-7 * w) & (level_s < 0) & (level_w < 0) & (determinant != 0)
        start[active] = np.clip(s + by_s, 0.25 * s, d)
        half[active] = np.clip(w + by_w, 0.25 * w, 4 * w)
        converged[active[close]] = True
        active = active[~close]
        if not active.size:
            break
    return start, half, converged


def _half_width(alpha: np.ndarray, start: np.ndarray, guess: np.ndarray, delta: np.ndarray, q: int) -> np.ndarray:
    """Find w with P(start ≤ r ≤ start + 2w) = α, as far as there is one."""

    def excess(w: np.ndarray) -> Pair:
        inside = np.maximum(_shell(start, w, delta, q), SMALLEST)
        return np.log(inside / alpha), 2 * ball_density(start + 2 * w, delta, q) / inside

    ceiling = 0.5 * (delta + np.sqrt(q) + 40)
    return solve_increasing(excess, np.zeros_like(start), ceiling, np.minimum(guess, ceiling), tolerance=1e-14)


def _shell(start: np.ndarray, w: np.ndarray, delta: np.ndarray, q: int) -> np.ndarray:
    """Return P(start ≤ r ≤ start + 2w), by the density where the shell is thin."""
    end = start + 2 * w
    before, after = ball_probability(start, start - delta, delta, q), ball_probability(end, end - delta, delta, q)
    inside = np.where(start > delta, before[1] - after[1], after[0] - before[0])
    thin = np.flatnonzero(w * (1 + np.minimum(delta, 4)) < 0.5)
    if thin.size:
        s, half, d = start[thin], w[thin], delta[thin]
        total = np.zeros_like(s)
        for node, weight in zip(GAUSS_NODES, GAUSS_WEIGHTS, strict=True):
            total += weight * ball_density(s + half * (1 + node), d, q)
        inside[thin] = half * total
    return inside


@lru_cache(maxsize=32)
def chi_square_nodes(k: float) -> list[tuple[float, float]]:
    """Return values v of V ~ χ²_k and weights w with Σ w·g(v) ≈ E g(V), by the trapezoid rule in log V.

    >>> round(sum(weight / value for value, weight in chi_square_nodes(100.0)), 12)  # 1/(k − 2)
    0.010204081633
    """
    ends = 2 * gammaincinv(k / 2, TAIL), 2 * gammainccinv(k / 2, TAIL)
    left, right = np.log(np.array(ends) / k)
    step = min(0.25, 0.25 * np.sqrt(2 / k))
    y = np.linspace(left, right, int(np.ceil((right - left) / step)) + 1)
    weights = np.exp(k / 2 * (y - np.expm1(y)))  # centred at V = k: no digits lost for large k
    return list(zip((k * np.exp(y)).tolist(), (weights / weights.sum()).tolist(), strict=True))


def solve_increasing(
    function: Callable[[np.ndarray], Pair], low: np.ndarray, high: np.ndarray, start: np.ndarray, *, tolerance: float
) -> np.ndarray:
    """Find the zero in [low, high] of an increasing function of value and slope: Newton, safeguarded by bisection."""
    low, high, x = np.array(low), np.array(high), np.array(start)
    before = high - low
    unsolved = np.ones(x.shape, dtype=bool)
    for _ in range(ROOT_STEPS):
        value, slope = function(x)
        np.copyto(low, x, where=value <= 0)
        np.copyto(high, x, where=value >= 0)
        with np.errstate(all="ignore"):
            moved = x - value / slope
            step = np.abs(moved - x)
            tiny = step <= tolerance * np.abs(x)
            newton = (moved > low) & (moved < high) & (step < 0.5 * before)
        # at the level of rounding a step need not halve, and a bisection would only lead away
        moved = np.where(newton, moved, np.where(tiny, x, 0.5 * low + 0.5 * high))
        before = np.abs(moved - x)
        x = np.where(unsolved, moved, x)
        unsolved &= ~tiny & (before > tolerance * np.abs(x))
        if not unsolved.any():
            break
    return x
