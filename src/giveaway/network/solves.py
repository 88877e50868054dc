"""The damped curvature of the summed loss as products, and its inverse by conjugate gradients (docs/derivations.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.func import grad, jvp, vmap

from giveaway.checks import InputError, check_choice, check_number, check_positive, check_whole, fail
from giveaway.curvature.losses import LossFunction
from giveaway.extract.batches import RecordBatch
from giveaway.linalg.cg import Product, Solution, column_cg, shared_cg
from giveaway.linalg.precision import signs
from giveaway.network.jacobian import Jacobian, checked_rows, doubt
from giveaway.network.network import Network, near

PARAMETERS_AT_ONCE = 65_536
FEWEST, MOST = 128, 512  # directions that pay
HELD = 4  # times as many activations as a product with the Jacobian holds
SEED = 0x5EED0FDA  # sets the signs of parameters apart from those of records
VECTORS = 10  # of P numbers that one column takes while it is solved
CURVATURES = ("ggn", "hessian")

Solve = Callable[[torch.Tensor], Solution]


@dataclass(frozen=True)
class Solves:
    """Score records by right sides of their own, r solves a record, up to a residual relative to each whole right side.

    rows : numbers of the records to score; by default all of them.
    curvature : "ggn" (Gauss–Newton) or "hessian".
    tolerance, most_steps, allow_unconverged : where the solves stop, after how many steps they give up, and whether
        what they have reached by then is used instead of raising an error.
    """

    rows: Any = None
    curvature: str = "ggn"
    tolerance: float = 1e-3
    most_steps: int = 200
    allow_unconverged: bool = False

    def __post_init__(self) -> None:
        check_choice("curvature", self.curvature, CURVATURES)
        check_positive("tolerance", self.tolerance, remedy="1e-3 suits most scores")


class GaussNewton:
    """V (P, s) ↦ Σ_j J_jᵀ W_j J_j V + λV."""

    kind = "ggn"

    def __init__(self, network: Network, damping: float = 0.0, jacobian: Jacobian | None = None) -> None:
        remedy = "in units of the summed loss, as n times weight decay"
        self.network, self.damping = network, check_number("damping", damping, minimum=0.0, remedy=remedy)
        self.jacobian = Jacobian(network) if jacobian is None else jacobian
        self.notes = self.jacobian.notes

    def __call__(self, right: torch.Tensor) -> torch.Tensor:
        return self.jacobian.curved(right).add_(right, alpha=self.damping)


class Hessian(GaussNewton):
    """V (P, s) ↦ Σ_j ∇²ℓ_j V + λV. It can curve downwards where training has not ended in a minimum."""

    kind = "hessian"

    def __init__(self, network: Network, damping: float = 0.0, jacobian: Jacobian | None = None) -> None:
        super().__init__(network, damping, jacobian)
        some, remedy = parameter_signs(network, 0, slice(0, 2)), 'use curvature="ggn"'
        try:
            with network.evaluating():
                bent = reverse_twice(network, network.records.take(checked_rows(network)), signed_sum)(some)
        except (InputError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # what a layer raises when it is differentiated twice is up to the layer
            got = f"layers that cannot ({type(error).__name__})"
            raise fail("curvature", "a model that can be differentiated twice", got, remedy) from error
        if not near(some[0] @ bent[1], some[1] @ bent[0], bent.norm()):  # those of torch's weight norm are wrong
            raise fail("curvature", "finite, symmetric second derivatives", "others (as weight norm's are)", remedy)
        ways = forward_over_reverse, reverse_twice
        differ = doubt(network, lambda batch: near(*(way(network, batch, signed_sum)(some) for way in ways)))
        self.way = reverse_twice if differ else forward_over_reverse
        self.notes = self.notes + ([f"second derivatives forwards: {differ}"] if differ else [])

    def __call__(self, right: torch.Tensor) -> torch.Tensor:
        network, wide = self.network, right.T
        columns = network.work.columns(max(len(wide), 1)) if self.way is forward_over_reverse else 1
        total = torch.zeros_like(wide)
        with network.evaluating():
            for _, batch in network.records.batches(network.work.rows(columns, HELD)):
                product = self.way(network, batch)
                for at, part in zip(total.split(columns), wide.split(columns), strict=True):
                    at += product(part)
        self.jacobian.passes += 1
        self.jacobian.column_passes += len(wide)
        return total.add_(wide, alpha=self.damping).T


def signed_sum(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Σ ±f of each record: none is too sure, or fitted too well, to show how the network bends."""
    numbers = torch.arange(len(outputs), device=outputs.device)
    return (outputs * signs(0, numbers, outputs.shape[1], slice(0, 1), dtype=outputs.dtype).squeeze(2)).sum(1)


def forward_over_reverse(network: Network, batch: RecordBatch, value: LossFunction | None = None) -> Product:
    """V (s, P) ↦ V Σ_j ∇²ℓ_j of a batch, or of another `value`, by the gradient's derivative along all rows at once."""
    function, parameters, value = network.function(batch), network.parameters, value or network.loss.value
    slope = grad(lambda values: value(function(values), batch.targets).sum())
    along = vmap(lambda tangent: jvp(slope, (parameters.values,), (tangent,))[1])
    return lambda rows: parameters.join(along(parameters.split(rows)))


def reverse_twice(network: Network, batch: RecordBatch, value: LossFunction | None = None) -> Product:
    """The same by two plain backward passes, one row after another: for layers that the other way cannot trace."""
    values = {name: value.clone().requires_grad_() for name, value in network.parameters.values.items()}
    leaves = list(values.values())
    with torch.enable_grad():
        total = (value or network.loss.value)(network.function(batch)(values), batch.targets).sum()
        first = torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)
        # a graph even where the loss is linear in a parameter
        slopes = [slope + 0.0 * leaf for slope, leaf in zip(first, leaves, strict=True)]

    def product(rows: torch.Tensor) -> torch.Tensor:
        each = zip(*network.parameters.split(rows).values(), strict=True)
        found = [torch.autograd.grad(slopes, leaves, row, retain_graph=True) for row in each]
        return torch.stack([torch.cat([part.flatten() for part in parts]) for parts in found])

    return product


class Steepest:
    """Orthonormal directions as rows (k, P), and the curvature along them (k,), the flattest first: from one pass of
    `rank` columns, fewer where memory or the parameters are few."""

    def __init__(self, jacobian: Jacobian, rank: int) -> None:
        network = jacobian.network
        rank = max(1, min(rank, network.size // 2, network.work.vectors(4)))
        omega = parameter_signs(network, 0, slice(0, rank))
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
        self.directions = (vectors / values.sqrt()).T.to(network.dtype) @ half
        self.curvature = (values - shift).clamp_min(0).to(network.dtype)

    def solve(self, right: torch.Tensor, damping: float) -> torch.Tensor:
        """An approximate (curvature + λ)⁻¹, up to a factor, of columns (P, s)."""
        if not len(self.curvature):
            return right
        shrunk = (self.curvature[0] + damping) / (self.curvature + damping) - 1.0
        return torch.addmm(right.T, (right.T @ self.directions.T).mul_(shrunk), self.directions).T


def rank_for(right_sides: int) -> int:
    """How many directions are worth their part of a pass, where so many right sides are solved with them."""
    return max(FEWEST, min(MOST, 4 * right_sides))


def parameter_signs(network: Network, seed: int, probes: slice) -> torch.Tensor:
    """Random signs (q, P), one a parameter and probe."""
    parts = torch.arange(network.size, device=network.device).split(PARAMETERS_AT_ONCE)
    found = torch.empty(probes.stop - probes.start, network.size, dtype=network.dtype, device=network.device)
    for at, numbers in zip(found.split(PARAMETERS_AT_ONCE, 1), parts, strict=True):
        at[:] = signs(seed + SEED, numbers, 1, probes, dtype=network.dtype).squeeze(1).T
    return found


class InverseCurvature:
    """right (P, k) ↦ (curvature + λ)⁻¹ right, until every column's residual is `tolerance`.

    damping : λ, in units of the summed loss.
    curvature : "ggn" (Gauss–Newton) or "hessian" (exact; it can be negative, which is found and said).
    preconditioner : "nystrom" (the `rank` steepest directions, one pass of as many columns) or "none".
    allow_unconverged : return what `most_steps` reached instead of raising SolveError; `report` says so.
    """

    def __init__(
        self,
        network: Network,
        *,
        damping: float,
        curvature: str | GaussNewton = "ggn",
        preconditioner: str = "nystrom",
        rank: int = 128,
        tolerance: float = 1e-3,
        most_steps: int = 200,
        allow_unconverged: bool = False,
        on_step: Callable[[int], Any] = lambda step: None,
    ) -> None:
        check_number("tolerance", tolerance, minimum=torch.finfo(network.dtype).eps, remedy="1e-3 suits most scores")
        check_whole("most_steps", most_steps, remedy="200 suits most networks")
        check_whole("rank", rank, remedy="128 suits most networks")
        self.network, self.tolerance, self.columns = network, tolerance, network.work.vectors(VECTORS)
        if isinstance(curvature, str):
            check_choice("curvature", curvature, CURVATURES)
            curvature = (GaussNewton if curvature == "ggn" else Hessian)(network, damping)
        self.curvature, self.jacobian = curvature, curvature.jacobian
        self.preconditioner = check_choice("preconditioner", preconditioner, ("nystrom", "none"))
        precondition = None
        if preconditioner == "nystrom":
            precondition = partial(Steepest(self.jacobian, rank).solve, damping=curvature.damping)
        # what curves downwards along one right side would spoil the directions of all
        solve = shared_cg if curvature.kind == "ggn" else column_cg
        stops: Any = {"tolerance": tolerance, "most_steps": most_steps, "allow_unconverged": allow_unconverged}
        self._solve: Solve = partial(solve, curvature, precondition=precondition, on_step=on_step, **stops)
        self.steps, self.right_sides, self.unsolved, self.worst = 0, 0, 0, 0.0

    def __call__(self, right: torch.Tensor) -> Solution:
        # laid out column by column, as the products are
        parts = [self._solve(part.T.contiguous().T) for part in right.split(self.columns, 1)]
        found = parts[0]
        if len(parts) > 1:
            x, residual = torch.cat([part.x.T for part in parts]).T, torch.cat([part.residual for part in parts])
            status = tuple(status for part in parts for status in part.status)
            found = Solution(x, residual, max(part.steps for part in parts), status)
        self.steps = max(self.steps, found.steps)
        self.right_sides += len(found.status)
        self.unsolved += sum(status != "converged" for status in found.status)
        self.worst = max(self.worst, float(found.residual.max()))
        return found

    @property
    def report(self) -> dict[str, Any]:
        """What the metadata says of these solves. A pass reads all records once; its cost is in columns."""
        return {
            "curvature": self.curvature.kind,
            "parameters": self.network.size,
            "damping": self.curvature.damping,
            "preconditioner": self.preconditioner,
            "tolerance": self.tolerance,
            "right_sides": self.right_sides,
            "unsolved": self.unsolved,
            "worst_residual": self.worst,
            "most_steps_taken": self.steps,
            "passes": self.jacobian.passes,
            "column_passes": self.jacobian.column_passes,
            "notes": list(self.curvature.notes),
        }
