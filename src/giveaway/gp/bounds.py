"""How little a kernel near a constant can give away: bounds from the kernel matrix's distance to a constant one.

Let every entry of K over the n + 1 records of D′ = D ∪ S lie within ε of a constant α, every target row have norm at
most ζ, and σ² be the noise. In the posterior of D, the variance at a record is the least of
k(x, x) − 2wᵀk + wᵀ(K + σ²I)w over weights w. Weights c/n all alike give, with u = α + ε and l = max(α − ε, 0),

    variance ≤ V = u − l²/(u + σ²/n) ≤ 4ε + σ²/n.                                                              (1)

At the least itself the terms other than σ²‖w‖² are a variance, so ‖w‖² ≤ V/σ², and the prediction wᵀy at S has norm at
most ‖w‖·√n·ζ: the residual there is at most

    E = ζ(1 + √(nV/σ²)).                                                                                        (2)

With k the posterior covariance of D, μ_D(Q) − μ_D′(Q) = −k(Q, S)/(k(S, S) + σ²)·(residual at S) and
k(Q, S)² ≤ k(Q, Q)k(S, S), so for every query Q that keeps to within ε of α too (with itself and with the records)

    ½‖μ_D(Q) − μ_D′(Q)‖² ≤ ½ V g(V) E²,   g(V) = the largest t/(t + σ²)² over 0 ≤ t ≤ V.                         (3)

KL(Q) ≤ KL(S) for any query whatever (see `divergence.lood`), and KL(S) grows with k(S, S)/σ² and the residual: with
X = V/σ²

    KL ≤ ½(C(X − log(1 + X)) + X/(1 + X)·E²/σ²).                                                                (4)

These replace Proposition 5.1 of the LOOD paper, whose printed constants fail: its lemma lacks a square on the inverse
norm, and its mean distance lost the square of the norm. They say that leakage vanishes with ε and 1/n; as numbers they
are vacuous at real sizes, for (1) needs ε well below σ² and (2) needs nε below σ², far from any kernel in use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from giveaway.checks import as_tensor, check_finite, check_number, fail


@dataclass(frozen=True)
class Bounds:
    """`constant` α and `distance` ε of the kernel, and the bounds on what the other names say."""

    constant: float
    distance: float
    variance: float
    residual: float
    mean_distance: float
    kl: float


def distance_to_constant(matrix: torch.Tensor) -> tuple[float, float]:
    """(α, ε): the constant α ≥ 0 nearest to all entries of a kernel matrix, and the largest distance ε to it."""
    k = as_tensor("matrix", matrix)
    if k.ndim != 2 or k.numel() == 0:
        raise fail("matrix", "a kernel matrix", f"shape {tuple(k.shape)}", "give the kernel between the records")
    check_finite("matrix", k)
    low, high = (float(value) for value in torch.aminmax(k))
    constant = max(0.0, (low + high) / 2)
    return constant, max(high - constant, constant - low)


def leakage_bounds(matrix: torch.Tensor, noise: float, largest_target: float, *, outputs: int = 1) -> Bounds:
    """Bounds that hold for each of the records of `matrix` (n + 1, n + 1) left out, the proof of which stands above.

    `largest_target` ζ bounds the norm of every record's target over its `outputs`.
    """
    constant, distance = distance_to_constant(matrix)
    n = len(matrix) - 1
    sigma2 = check_number("noise", noise, minimum=0.0, remedy="give the noise variance σ² of the targets")
    if sigma2 == 0.0:
        raise fail("noise", "a variance above 0", "0", "give the noise variance σ² of the targets")
    zeta = check_number("largest_target", largest_target, minimum=0.0, remedy="give the largest norm of a target")
    upper, lower = constant + distance, max(constant - distance, 0.0)
    variance = upper - lower**2 / (upper + sigma2 / n) if n > 0 and upper > 0.0 else upper
    residual = zeta * (1.0 + math.sqrt(n * variance / sigma2))
    steepest = min(variance, sigma2)
    excess = variance / sigma2
    return Bounds(
        constant=constant,
        distance=distance,
        variance=variance,
        residual=residual,
        mean_distance=variance * steepest / (steepest + sigma2) ** 2 * residual**2 / 2,
        kl=(outputs * (excess - math.log1p(excess)) + excess / (1.0 + excess) * residual**2 / sigma2) / 2,
    )
