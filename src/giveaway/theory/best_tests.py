"""The most powerful tests that see a record's loss or residual, where there is no formula for them.

**V at its mean, loss alone** (`best_shell`). In units of the residual's standard deviation r = ‖δe₁ + Z‖ for a
non-member and c = 1/(1 + η) times that for a member. The log-likelihood ratio of r, with a = 1 + η and
Ĩ(z) = z^{−ν}I_ν(z), ν = q/2 − 1 (cosh for one output),

    L(r) = −(a² − 1)r²/2 + log Ĩ(aδr) − log Ĩ(δr) + constant,

falls throughout when δ² ≤ q: the threshold on the loss is then optimal. Otherwise it rises to a single peak below δ
and falls (I_{ν+1}/I_ν is concave), so that the test accepts an interval [r₁, r₂] with L(r₁) = L(r₂), or r₁ = 0.

**V integrated out** (`cell_errors`). The likelihood ratio may have several peaks (for n − p of a few, a second one at a
loss of zero). The line of losses or of residuals is cut into small intervals ("cells"), dense where either distribution
is, and the test accuses cells in order of their likelihood ratio. An attacker who sees only the cell can do this and no
better, so the curve never exceeds the true one by more than the error of a cell's probability, and falls short by a
share that shrinks as the square of the cell's width (about 1e-5 of the power in one dimension, 5e-4 in the two that
several outputs need, along ε and across it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import expit, gammaln, stdtrit

from giveaway.theory import balls
from giveaway.theory.balls import SMALLEST, ball_density, ball_probability, ball_quantile, dilated_ball, log_bessel
from giveaway.theory.laws import LossLaw, ResidualLaw
from giveaway.theory.tradeoff import NUMBERS_AT_ONCE

FALSE_POSITION_ROUNDS = 40
CELLS = 1500  # for each distribution, in one dimension
SIDES = 250, 120  # for each distribution, along ε and across it
INNER = np.array([-1.0, 1.0]) / math.sqrt(3)  # two Gauss points in each cell


def best_shell(alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, q: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (power, miss) at level α of the likelihood-ratio test on the loss, elementwise over 1-D arrays."""
    power, miss = dilated_ball(alpha, delta, eta, q, signed=False)
    most, least = dilated_ball(alpha, delta, eta, q, signed=True)
    most, least = np.maximum(most, power), np.minimum(least, miss)
    x, _ = ball_quantile(alpha, delta, q)
    undecided = (delta * delta > q) & (eta > 0) & (alpha > 0) & (alpha < 1)
    if q == 1:  # far out the other sign has no chance, and the loss says all that the residual does
        far = delta > balls.far_from(1)
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


def _equal_ends(
    alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, x: np.ndarray, q: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return r₁ and half the width of the interval of probability α with L(r₁) = L(r₂)."""
    start, half, converged = _newton(alpha, delta, eta, x, q)
    rest = np.flatnonzero(~converged)
    if rest.size:
        start[rest] = _false_position(alpha[rest], delta[rest], eta[rest], x[rest], q)
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


def _false_position(alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray, x: np.ndarray, q: int) -> np.ndarray:
    """Find r₁ by the Illinois rule: L(r₂) − L(r₁) changes sign once as r₁ goes from 0 to δ at a fixed probability.

    The power is stationary in r₁ at the answer, so that half of r₁'s digits give all of the power's.
    """

    def squash(value: np.ndarray) -> np.ndarray:
        return value / (1 + np.abs(value))

    low, high = np.zeros_like(x), delta.copy()
    at_low, at_high = squash(_log_ratio(x, delta, eta, q)), np.full_like(x, -1.0)
    half, start = 0.5 * x, 0.5 * delta
    for _ in range(FALSE_POSITION_ROUNDS):
        half = _half_width(alpha, start, half, delta, q)
        value = squash(_log_ratio(start + 2 * half, delta, eta, q) - _log_ratio(start, delta, eta, q))
        left = value > 0
        at_low, at_high = np.where(left, value, 0.5 * at_low), np.where(left, 0.5 * at_high, value)
        low, high = np.where(left, start, low), np.where(left, high, start)
        before, start = start, low + (high - low) * at_low / (at_low - at_high)
        if (np.abs(start - before) <= 1e-8 * delta).all():
            break
    return start


def _half_width(alpha: np.ndarray, start: np.ndarray, guess: np.ndarray, delta: np.ndarray, q: int) -> np.ndarray:
    """Find w with P(start ≤ r ≤ start + 2w) = α, as far as there is one."""

    def excess(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inside = np.maximum(_shell(start, w, delta, q), SMALLEST)
        return np.log(inside / alpha), 2 * ball_density(start + 2 * w, delta, q) / inside

    ceiling = 0.5 * (delta + np.sqrt(q) + 40)
    return balls.solve_increasing(excess, np.zeros_like(start), ceiling, np.minimum(guess, ceiling), tolerance=1e-14)


def _shell(start: np.ndarray, w: np.ndarray, delta: np.ndarray, q: int) -> np.ndarray:
    """Return P(start ≤ r ≤ start + 2w), by the density where the shell is thin."""
    end = start + 2 * w
    before, after = ball_probability(start, start - delta, delta, q), ball_probability(end, end - delta, delta, q)
    inside = np.where(start > delta, before[1] - after[1], after[0] - before[0])
    thin = np.flatnonzero(w * (1 + np.minimum(delta, 4)) < 0.5)
    if thin.size:
        s, half, d = start[thin], w[thin], delta[thin]
        total = np.zeros_like(s)
        for node, weight in zip(balls.GAUSS_NODES, balls.GAUSS_WEIGHTS, strict=True):
            total += weight * ball_density(s + half * (1 + node), d, q)
        inside[thin] = half * total
    return inside


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
            columns = [_records(law, block) for law in laws]
            if signed and q > 1:
                chances = _vector_chances(columns, q)
            else:
                chances = _residual_chances(columns) if signed else _loss_chances(columns, q)
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
    low, high = np.zeros(alpha.shape, dtype=int), np.full(alpha.shape, false.shape[1] - 1)
    while (high - low > 1).any():  # the last place whose false-positive rate is at most α
        middle = (low + high) // 2
        below = false[rows, middle] <= alpha
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    gap = false[rows, high] - false[rows, low]
    share = np.clip(np.divide(alpha - false[rows, low], gap, out=np.ones(alpha.shape), where=gap > 0), 0, 1)
    power = true[rows, low] + share * inside[rows, low]
    miss = missed[rows, high] + (1 - share) * inside[rows, low]
    return np.maximum(power, alpha), np.minimum(miss, 1 - alpha)


def _residual_chances(laws: list[ResidualLaw]) -> list[np.ndarray]:
    """Return the probability of each cell of the line of residuals under each law: two (records, cells) arrays."""
    points, widths = _gauss_points(np.concatenate([_spread(law, CELLS) for law in laws], axis=1))
    return [_sum_pairs(law.pdf(points) * widths) for law in laws]


def _loss_chances(laws: list[ResidualLaw], q: int) -> list[np.ndarray]:
    radii, widths = _gauss_points(_radial_edges(laws, CELLS, q))
    return [_sum_pairs(LossLaw(law, q).radial_density(radii) * widths) for law in laws]


def _vector_chances(laws: list[ResidualLaw], q: int) -> list[np.ndarray]:
    """Cut along ε and across it: given V the two are independent, so the probabilities are a matrix product."""
    along, along_widths = _gauss_points(np.concatenate([_spread(law, SIDES[0]) for law in laws], axis=1))
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
    """Return (records, count) places about where the law (records, 1) has its mass, out to probabilities of 1e-14.

    Only the width of the cells depends on this. For q > 1 the places are radii.
    """
    k = law.freedom
    t = stdtrit(k, expit(np.linspace(-32, 32, count)))
    tau, shrunk = law.typical_scale()
    if law.member:
        wander = law.error * law.leverage * math.sqrt(2 * k) / (k + law.leverage) ** 2
        tau = np.hypot(shrunk * tau, wander)
    centre = np.sqrt(law.mean() ** 2 + (q - 1) * tau**2)
    return centre + (tau * math.sqrt(1 + (q - 1) / (2 * k))) * t


def _radial_edges(laws: list[ResidualLaw], count: int, q: int) -> np.ndarray:
    edges = np.abs(np.concatenate([_spread(law, count, q) for law in laws], axis=1))
    return np.pad(edges, ((0, 0), (1, 0)))


def _gauss_points(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two points in every cell between the edges (records, edges), and each point's share of its width."""
    edges = np.sort(edges, axis=1)
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, np.diff(edges, axis=1) / 2
    points = middle[:, :, None] + half[:, :, None] * INNER
    return points.reshape(len(edges), -1), np.repeat(half, 2, axis=1)


def _sum_pairs(values: np.ndarray) -> np.ndarray:
    """Sum the two points of every cell."""
    return values[:, ::2] + values[:, 1::2]


def _records(law: ResidualLaw, block: slice) -> ResidualLaw:
    """Return the law of some of the records, which stand down the first of two axes."""
    leverage, error, variance = (array.reshape(-1, 1)[block] for array in (law.leverage, law.error, law.variance))
    return replace(law, leverage=leverage, error=error, variance=variance)
