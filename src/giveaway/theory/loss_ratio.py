"""The most powerful test that sees only the loss, with V at its mean.

In units of the residual's standard deviation r = ‖δe₁ + Z‖ for a non-member and c = 1/(1 + η) times that for a member.
The log-likelihood ratio of r, with a = 1 + η and Ĩ(z) = z^{−ν}I_ν(z), ν = q/2 − 1 (cosh for one output),

    L(r) = −(a² − 1)r²/2 + log Ĩ(aδr) − log Ĩ(δr) + constant,

falls throughout when δ² ≤ q: the threshold on the loss is then optimal. Otherwise it rises to a single peak below δ
and falls (I_{ν+1}/I_ν is concave), so that the test accepts an interval [r₁, r₂] with L(r₁) = L(r₂), or r₁ = 0.
"""

from __future__ import annotations

import numpy as np

from giveaway.theory.balls import (
    GAUSS_NODES,
    GAUSS_WEIGHTS,
    SMALLEST,
    ball_density,
    ball_probability,
    ball_quantile,
    dilated_ball,
    far_from,
    log_bessel,
)
from giveaway.theory.roots import solve_increasing

ROUNDS = 40


def best_shell(alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, q: int) -> tuple[np.ndarray, np.ndarray]:
    """(power, miss) at level α of the likelihood-ratio test on the loss, elementwise over 1-D arrays."""
    power, miss = dilated_ball(alpha, delta, eta, q, signed=False)
    most, least = dilated_ball(alpha, delta, eta, q, signed=True)
    most, least = np.maximum(most, power), np.minimum(least, miss)
    x, _ = ball_quantile(alpha, delta, q)
    open_ = (delta * delta > q) & (eta > 0) & (alpha > 0) & (alpha < 1)
    if q == 1:  # far out the other sign has no chance, and the loss says all that the residual does
        far = delta > far_from(1)
        power[far], miss[far] = most[far], least[far]
        open_ &= ~far
    index = np.flatnonzero(open_)
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
    """L(r) − L(0)."""
    z = delta * r
    return -0.5 * eta * (2 + eta) * r * r + eta * z + log_bessel(z * (1 + eta), q) - log_bessel(z, q)


def _slope(r: np.ndarray, delta: np.ndarray, eta: np.ndarray, q: int) -> np.ndarray:
    """dL/dr, from I_{ν+1}(z)/I_ν(z) = z/q·exp(log_bessel(z, q + 2) − log_bessel(z, q))."""

    def pull(scale: np.ndarray) -> np.ndarray:
        z = scale * delta * r
        return scale * delta * z / q * np.exp(log_bessel(z, q + 2) - log_bessel(z, q))

    return pull(1 + eta) - pull(np.ones_like(r)) - eta * (2 + eta) * r


def _equal_ends(
    alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, x: np.ndarray, q: int
) -> tuple[np.ndarray, np.ndarray]:
    """r₁ and half the width of the interval of probability α with L(r₁) = L(r₂)."""
    start, half, found = _newton(alpha, delta, eta, x, q)
    rest = np.flatnonzero(~found)
    if rest.size:
        start[rest] = _false_position(alpha[rest], delta[rest], eta[rest], x[rest], q)
    return start, _half_width(alpha, start, half, delta, q)


def _newton(
    alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, x: np.ndarray, q: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both equations at once, from the interval of the signed test; the last array says where it converged."""
    c = 1 / (1 + eta)
    centre = delta * c / (1 + c)
    reach, _ = ball_quantile(alpha, delta / (1 + c), q)
    start = np.maximum(centre - reach, 0.1 * centre)
    half = np.where(centre > reach, reach, 0.5 * x)
    found = np.zeros(x.shape, dtype=bool)
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
        found[active[close]] = True
        active = active[~close]
        if not active.size:
            break
    return start, half, found


def _false_position(alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, x: np.ndarray, q: int) -> np.ndarray:
    """r₁ by the Illinois rule: L(r₂) − L(r₁) changes sign once as r₁ goes from 0 to δ with the probability kept.

    The power is stationary in r₁ at the answer, so that half of r₁'s digits give all of the power's.
    """
    low, high = np.zeros_like(x), delta.copy()
    at_low, at_high = _squash(_log_ratio(x, delta, eta, q)), np.full_like(x, -1.0)
    half, start = 0.5 * x, 0.5 * delta
    for _ in range(ROUNDS):
        half = _half_width(alpha, start, half, delta, q)
        value = _squash(_log_ratio(start + 2 * half, delta, eta, q) - _log_ratio(start, delta, eta, q))
        left = value > 0
        at_low, at_high = np.where(left, value, 0.5 * at_low), np.where(left, 0.5 * at_high, value)
        low, high = np.where(left, start, low), np.where(left, high, start)
        before, start = start, low + (high - low) * at_low / (at_low - at_high)
        if (np.abs(start - before) <= 1e-8 * delta).all():
            break
    return start


def _squash(value: np.ndarray) -> np.ndarray:
    return value / (1 + np.abs(value))


def _half_width(alpha: np.ndarray, start: np.ndarray, guess: np.ndarray, delta: np.ndarray, q: int) -> np.ndarray:
    """w with P(start ≤ r ≤ start + 2w) = α, as far as there is one."""

    def excess(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inside = np.maximum(_shell(start, w, delta, q), SMALLEST)
        return np.log(inside / alpha), 2 * ball_density(start + 2 * w, delta, q) / inside

    ceiling = 0.5 * (delta + np.sqrt(q) + 40)
    return solve_increasing(excess, np.zeros_like(start), ceiling, np.minimum(guess, ceiling), tolerance=1e-14)


def _shell(start: np.ndarray, w: np.ndarray, delta: np.ndarray, q: int) -> np.ndarray:
    """P(start ≤ r ≤ start + 2w), by the density where the shell is thin."""
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
