"""How much lower a record's loss is, on average, for having been trained on: E[ℓ_out − ℓ_in] (PSM, Proposition 3.4)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from giveaway.checks import check_number, fail
from giveaway.theory.chi_square import chi_square_nodes
from giveaway.theory.random_design import RandomDesign


class SimulatedGap(NamedTuple):
    """Mean over draws and its standard error, one a record."""

    mean: np.ndarray
    standard_error: np.ndarray


def expected_gap(design: RandomDesign) -> np.ndarray:
    """E_V[(‖ε‖² + qσ²h̄/V)·g(V)], g = h̄(2V + h̄)/(V + h̄)², V ~ χ²_k, by quadrature; infinite for k ≤ 2.

    E_k[g(V)/V] = E_{k−2}[g(V)]/(k − 2): the second mean is of a bounded function, so that k = 3 costs no digits.
    V is averaged over whatever the design's `integrate` says: this is the exact gap.
    """
    k, h = design.freedom, design.leverage

    def shrinkage(freedom: float) -> np.ndarray:
        nodes = chi_square_nodes(freedom)
        total = np.zeros(design.shape)
        for v, weight in zip(nodes.values.tolist(), nodes.weights.tolist(), strict=True):
            c = h / (v + h)
            total += weight * c * (2 - c)
        return total

    gap = design.error**2 * shrinkage(k)
    if k <= 2:
        return np.where(h > 0, math.inf, gap)[()]
    return (gap + design.outputs * design.variance * h / (k - 2) * shrinkage(k - 2))[()]


def gap_expansion(design: RandomDesign) -> np.ndarray:
    """2‖ε‖²h̄/k + (4‖ε‖²h̄ + h̄²(2qσ² − 3‖ε‖²))/k², which is off by O(k⁻³)."""
    k, h, square = design.freedom, design.leverage, design.error**2
    noise = design.outputs * design.variance
    return (2 * square * h / k + (4 * square * h + h * h * (2 * noise - 3 * square)) / k**2)[()]


def simulated_gap(design: RandomDesign, rng: np.random.Generator, *, draws: int = 10_000) -> SimulatedGap:
    """The gap's mean over draws of (V, Z), and its standard error."""
    check_number("draws", draws, minimum=2, remedy="give a number such as 10000")
    if design.freedom <= 2:
        raise fail("freedom", "n − p above 2", f"{design.freedom:g}", "the expected gap is infinite")
    size = (int(draws), *design.shape)
    v = rng.chisquare(design.freedom, size)
    tau = np.sqrt(design.variance * design.leverage / v)
    loss = (design.error + tau * rng.standard_normal(size)) ** 2
    if design.outputs > 1:
        loss += tau**2 * rng.chisquare(design.outputs - 1, size)
    c = design.leverage / (v + design.leverage)
    gap = loss * c * (2 - c)
    return SimulatedGap(gap.mean(axis=0)[()], (gap.std(axis=0, ddof=1) / math.sqrt(draws))[()])
