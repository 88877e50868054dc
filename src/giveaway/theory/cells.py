"""Likelihood-ratio tests with V integrated out: the observation is seen in cells.

The mixtures over V have no closed-form test and their likelihood ratio may have several peaks (for n − p of a few, a
second one at a loss of zero). The line of losses or of residuals is cut into cells, dense where either law is; the test
takes cells in order of their likelihood ratio. An attacker who sees only the cell can do this and no better, so
the curve never exceeds the true one by more than the error of a cell's probability, and falls short by a share that
shrinks as the square of the cell's width (about 1e-5 of the power in one dimension, 5e-4 in the two that several
outputs need, along ε and across it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import expit, gammaln, stdtrit

from giveaway.theory.laws import ErrorLaw, LossLaw

CELLS = 1500  # a law, in one dimension
SIDES = 250, 120  # a law, along ε and across it
AT_ONCE = 1 << 21
INNER = np.array([-1.0, 1.0]) / math.sqrt(3)  # two Gauss points a cell


def cell_errors(
    outside: ErrorLaw, inside: ErrorLaw, q: int, *, signed: bool
) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """α → (power, miss) of the best test on the loss, or on the residual (`signed`), record by record in blocks."""
    shape = outside.leverage.shape
    flat = [_flat(outside), _flat(inside)]
    records = flat[0].leverage.size
    cells = 2 * (SIDES[0] * 2 * SIDES[1] if signed and q > 1 else CELLS)
    each = max(1, AT_ONCE // cells // 4)

    def errors(alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        full = np.broadcast_shapes(alpha.shape, shape)
        rates = np.broadcast_to(alpha, full).reshape(-1, records)
        power, miss = np.empty(rates.shape), np.empty(rates.shape)
        for start in range(0, records, each):
            part = slice(start, start + each)
            laws = [_part(law, part) for law in flat]
            if not signed:
                chances = _loss_chances(laws, q)
            elif q == 1:
                chances = _residual_chances(laws)
            else:
                chances = _vector_chances(laws, q)
            power[:, part], miss[:, part] = _best(chances[0], chances[1], rates[:, part])
        return power.reshape(full), miss.reshape(full)

    return errors


def _best(outside: np.ndarray, inside: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Power and miss at each α (rates, records) from the cells' chances (records, cells)."""
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


def _residual_chances(laws: list[ErrorLaw]) -> list[np.ndarray]:
    points, widths = _points(np.concatenate([_spread(law, CELLS) for law in laws], axis=1))
    return [_pair(law.pdf(points) * widths) for law in _columns(laws)]


def _loss_chances(laws: list[ErrorLaw], q: int) -> list[np.ndarray]:
    edges = np.abs(np.concatenate([_spread(law, CELLS, q) for law in laws], axis=1))
    points, widths = _points(np.pad(edges, ((0, 0), (1, 0))))

    return [_pair(LossLaw(law, q).radial_density(points) * widths) for law in _columns(laws)]


def _vector_chances(laws: list[ErrorLaw], q: int) -> list[np.ndarray]:
    """Cells along ε times cells across it: given V the two are independent, so their chances are a matrix product."""
    along, along_widths = _points(np.concatenate([_spread(law, SIDES[0]) for law in laws], axis=1))
    still = [_still(law) for law in laws]
    across = np.abs(np.concatenate([_spread(law, SIDES[1], q - 1) for law in still], axis=1))
    across, across_widths = _points(np.pad(across, ((0, 0), (1, 0))))
    chances = []
    for law in _columns(laws):
        one, other = [], []
        for weight, a, s in law.parts():
            z, r = (along - a * law.error) / s, across / s
            one.append(_pair(weight * np.exp(-0.5 * z * z) / s * along_widths))
            with np.errstate(divide="ignore"):
                log = (q - 2) * np.log(r) - 0.5 * r * r - (q / 2 - 1.5) * math.log(2) - gammaln((q - 1) / 2)
            other.append(_pair(np.exp(log) / s * across_widths))
        joint = np.stack(one, axis=2) @ np.stack(other, axis=1)
        chances.append(joint.reshape(len(joint), -1))
    return chances


def _spread(law: ErrorLaw, count: int, q: int = 1) -> np.ndarray:
    """(records, count) places spread about where the law has its mass, out to chances of 1e-14.

    Only the width of the cells depends on this. For q > 1 the places are radii.
    """
    k = law.freedom
    t = stdtrit(k, expit(np.linspace(-32, 32, count)))
    centre = law.mean()
    tau = np.sqrt(law.variance * law.leverage / k)
    if law.member:
        shrunk = k / (k + law.leverage)
        wander = law.error * law.leverage * math.sqrt(2 * k) / (k + law.leverage) ** 2
        tau = np.hypot(shrunk * tau, wander)
    centre = np.sqrt(centre**2 + (q - 1) * tau**2)
    return centre[:, None] + (tau * math.sqrt(1 + (q - 1) / (2 * k)))[:, None] * t


def _points(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two points in every cell between sorted edges (records, edges), and each point's share of the cell's width."""
    edges = np.sort(edges, axis=1)
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, np.diff(edges, axis=1) / 2
    points = middle[:, :, None] + half[:, :, None] * INNER
    return points.reshape(len(edges), -1), np.repeat(half, 2, axis=1)


def _pair(values: np.ndarray) -> np.ndarray:
    """A cell's two points summed."""
    return values[:, ::2] + values[:, 1::2]


def _flat(law: ErrorLaw) -> ErrorLaw:
    # a record without leverage has no spread to cut into cells: as good as none gives the same coin
    seen = np.maximum(law.leverage, 1e-9 * law.freedom)
    return _map(replace(law, leverage=seen), np.ravel)


def _part(law: ErrorLaw, part: slice) -> ErrorLaw:
    return _map(law, lambda array: array[part])


def _columns(laws: list[ErrorLaw]) -> list[ErrorLaw]:
    """The laws with their records down the first axis, to be evaluated at (records, points)."""
    return [_map(law, lambda array: array[:, None]) for law in laws]


def _still(law: ErrorLaw) -> ErrorLaw:
    """The law across ε, where there is no error."""
    return replace(law, error=np.zeros_like(law.error))


def _map(law: ErrorLaw, change: Callable[[np.ndarray], np.ndarray]) -> ErrorLaw:
    return replace(law, leverage=change(law.leverage), error=change(law.error), variance=change(law.variance))
