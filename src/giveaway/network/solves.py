"""Inverse-curvature products: preconditioned conjugate gradients over passes of the data, in blocks of right sides.

Right sides of one block share their directions, so that as many as fit at once take the fewest passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from giveaway.checks import check_number, fail
from giveaway.linalg.cg import Solution, column_cg, shared_cg
from giveaway.network.network import Network
from giveaway.network.preconditioners import preconditioner_of
from giveaway.network.products import GaussNewton, Hessian, curvature_of

VECTORS = 10  # of P numbers that one column takes while it is solved


class InverseCurvature:
    """right (P, k) ↦ (curvature + λ)⁻¹ right, until every column's residual is `tolerance`.

    Parameters
    ----------
    damping : λ, in units of the summed loss.
    curvature : "ggn" (Gauss–Newton) or "hessian" (exact; it can be negative, which is found and said).
    preconditioner : "nystrom" (the `rank` steepest directions, one pass of as many columns), "kronecker" (linear and
        convolutional layers by Kronecker factors, others by their diagonal), "diagonal" or "none".
    allow_unconverged : return what `most_steps` reached instead of raising SolveError; `report` says so.
    """

    def __init__(
        self,
        network: Network,
        *,
        damping: float,
        curvature: str | GaussNewton | Hessian = "ggn",
        preconditioner: str = "nystrom",
        rank: int = 128,
        tolerance: float = 1e-3,
        most_steps: int = 200,
        allow_unconverged: bool = False,
        on_step: Callable[[int], Any] = lambda step: None,
    ) -> None:
        check_number("tolerance", tolerance, minimum=torch.finfo(network.dtype).eps, remedy="1e-3 suits most scores")
        if not isinstance(most_steps, int) or most_steps < 1:
            raise fail("most_steps", "a whole number of at least 1", repr(most_steps), "200 suits most networks")
        if not isinstance(rank, int) or rank < 1:
            raise fail("rank", "a whole number of at least 1", repr(rank), "128 suits most networks")
        self.network = network
        self.curvature = curvature_of(network, curvature, damping) if isinstance(curvature, str) else curvature
        self.jacobian = self.curvature.jacobian
        self.preconditioner = preconditioner
        self._precondition = preconditioner_of(self.jacobian, preconditioner, self.curvature.damping, rank)
        self._options: dict[str, Any] = {
            "tolerance": tolerance,
            "most_steps": most_steps,
            "allow_unconverged": allow_unconverged,
            "on_step": on_step,
        }
        self.steps, self.right_sides, self.unsolved, self.worst = 0, 0, 0, 0.0

    @property
    def columns(self) -> int:
        """Right sides at once."""
        work = self.network.work
        return max(1, work.memory // (VECTORS * work.size * work.bytes))

    def __call__(self, right: torch.Tensor) -> Solution:
        """Solve for all columns of `right` (P, k)."""
        found = [self._block(part) for part in right.split(self.columns, 1)]
        if len(found) == 1:
            return found[0]
        return Solution(
            torch.cat([part.x.T for part in found]).T,
            torch.cat([part.residual for part in found]),
            max(part.steps for part in found),
            tuple(status for part in found for status in part.status),
        )

    @property
    def report(self) -> dict[str, Any]:
        """What the metadata says of these solves. A pass reads all records once; its cost is in columns."""
        return {
            "curvature": self.curvature.kind,
            "parameters": self.network.size,
            "damping": self.curvature.damping,
            "preconditioner": self.preconditioner,
            "tolerance": self._options["tolerance"],
            "right_sides": self.right_sides,
            "unsolved": self.unsolved,
            "worst_residual": self.worst,
            "most_steps_taken": self.steps,
            "passes": self.jacobian.passes,
            "column_passes": self.jacobian.column_passes,
            "notes": list(self.curvature.notes),
        }

    def _block(self, right: torch.Tensor) -> Solution:
        # laid out column by column, as the products are
        wide = right.T.contiguous().T
        # what curves downwards along one right side would spoil the directions of all
        solve = shared_cg if isinstance(self.curvature, GaussNewton) and self.network.loss.convex else column_cg
        found = solve(self.curvature, wide, precondition=self._precondition, **self._options)
        self.steps = max(self.steps, found.steps)
        self.right_sides += len(found.status)
        self.unsolved += sum(status != "converged" for status in found.status)
        self.worst = max(self.worst, float(found.residual.max()))
        return found
