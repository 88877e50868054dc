"""The steepest directions of the Gauss–Newton curvature from one product with random columns (Nyström), as a
preconditioner: along them the damped curvature is inverted, elsewhere it is left alone.

A trained network curves strongly along some hundred directions and little along all others. Right sides that are
gradients of its records lie mostly in the former.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from giveaway.linalg.probes import signs
from giveaway.network.jacobian import Jacobian

PARAMETERS_AT_ONCE = 65_536
FEWEST, MOST = 128, 512  # directions that pay
SEED = 0x5EED0FDA  # sets the signs of parameters apart from those of records


@dataclass(frozen=True)
class Steepest:
    """Orthonormal directions as rows (k, P), and the curvature along them (k,), the flattest first."""

    directions: torch.Tensor
    curvature: torch.Tensor

    def solve(self, right: torch.Tensor, damping: float) -> torch.Tensor:
        """An approximate (curvature + λ)⁻¹, up to a factor, of rows (s, P)."""
        if not len(self.curvature):
            return right
        shrunk = (self.curvature[0] + damping) / (self.curvature + damping) - 1.0
        return torch.addmm(right, (right @ self.directions.T).mul_(shrunk), self.directions)


def rank_for(right_sides: int) -> int:
    """How many directions are worth their part of a pass, where so many right sides are solved with them."""
    return max(FEWEST, min(MOST, 4 * right_sides))


def steepest(jacobian: Jacobian, rank: int, seed: int = 0) -> Steepest:
    """From one pass of `rank` columns, fewer where memory or the parameters are few."""
    network = jacobian.network
    work = network.work
    rank = max(1, min(rank, network.size // 2, work.memory // (4 * work.size * work.bytes)))
    omega = parameter_signs(seed, network.size, slice(0, rank), network.device, network.dtype)
    image = jacobian.curved(omega.T).T
    core, gram = (omega @ image.T).double(), (omega @ omega.T).double()
    core = (core + core.T) / 2
    # a column of signs is as long as √P: what is added of it is to be no more than the rounding of its image
    shift = torch.finfo(network.dtype).eps * float(image.norm()) / (rank * network.size) ** 0.5
    while True:  # what rounding made of the smallest eigenvalues is lifted above zero
        factor, info = torch.linalg.cholesky_ex(core + shift * gram)
        if int(info) == 0 or not torch.isfinite(core).all():
            break
        shift = max(10 * shift, torch.finfo(network.dtype).tiny)
    image.add_(omega, alpha=shift)
    del omega
    half = torch.linalg.solve_triangular(factor.to(network.dtype), image, upper=False)
    values, vectors = torch.linalg.eigh((half @ half.T).double())
    kept = values > 100 * torch.finfo(network.dtype).eps * values[-1]
    values, vectors = values[kept], vectors[:, kept]
    directions = (vectors / values.sqrt()).T.to(network.dtype) @ half
    return Steepest(directions, (values - shift).clamp_min(0).to(network.dtype))


def parameter_signs(seed: int, size: int, probes: slice, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Random signs (q, P), one a parameter and probe."""
    found = torch.empty(probes.stop - probes.start, size, dtype=dtype, device=device)
    for start in range(0, size, PARAMETERS_AT_ONCE):
        numbers = torch.arange(start, min(start + PARAMETERS_AT_ONCE, size), device=device)
        found[:, start : start + len(numbers)] = signs(seed + SEED, numbers, 1, probes, dtype=dtype).squeeze(1).T
    return found
