"""Bounds on what a Gaussian process gives away, by how near its kernel is to a constant one (docs/lood.md)."""

import math
from dataclasses import dataclass

import torch

from giveaway.checks import as_tensor, check_finite, check_number, fail
from giveaway.gp.posterior import check_noise


@dataclass(frozen=True)
class LeakageBounds:
    """The constant α and distance ε of the kernel, and bounds on the other four: every entry is within ε of α."""

    constant: float
    distance: float
    variance: float
    residual: float
    mean_distance: float
    kl: float


def distance_to_constant(matrix: torch.Tensor) -> tuple[float, float]:
    """Return (α, ε): the constant α ≥ 0 nearest to all entries of a kernel matrix, and the largest distance to it."""
    k = as_tensor("matrix", matrix)
    if k.ndim != 2 or k.numel() == 0:
        raise fail("matrix", "a kernel matrix", f"shape {tuple(k.shape)}", "give the kernel between the records")
    check_finite("matrix", k)
    low, high = (float(value) for value in torch.aminmax(k))
    constant = max(0.0, (low + high) / 2)
    return constant, max(high - constant, constant - low)


def leakage_bounds(matrix: torch.Tensor, noise: float, largest_target: float, *, outputs: int = 1) -> LeakageBounds:
    """Bound both distances for each of the records of `matrix` (n + 1, n + 1) left out; docs/lood.md has the proof.
    `largest_target` ζ bounds the norm of every record's target over its `outputs`."""
    constant, distance = distance_to_constant(matrix)
    n = len(matrix) - 1
    sigma2 = check_noise(noise)
    zeta = check_number("largest_target", largest_target, minimum=0.0, remedy="give the largest norm of a target")
    upper, lower = constant + distance, max(constant - distance, 0.0)
    variance = upper - lower**2 / (upper + sigma2 / n) if n > 0 and upper > 0.0 else upper
    residual = zeta * (1.0 + math.sqrt(n * variance / sigma2))
    steepest = min(variance, sigma2)
    excess = variance / sigma2
    mean = variance * steepest / (steepest + sigma2) ** 2 * residual**2 / 2
    kl = (outputs * (excess - math.log1p(excess)) + excess / (1.0 + excess) * residual**2 / sigma2) / 2
    return LeakageBounds(constant, distance, variance, residual, mean, kl)
