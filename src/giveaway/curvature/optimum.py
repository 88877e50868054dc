"""How far a head is from the optimum of its own training objective, and how to bring it there."""

import math
from typing import NamedTuple

import torch

from giveaway.checks import InputError, free_memory
from giveaway.curvature.dense import MOST_ROWS, DenseCurvature
from giveaway.curvature.losses import loss_of
from giveaway.curvature.products import HeadProducts, preconditioner_for
from giveaway.linalg.cg import column_cg
from giveaway.linalg.precision import Precision
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head
from giveaway.records.head import Window

MAX_STEPS, MOST_HALVINGS = 100, 34
RELATIVE_GRADIENT = 1e-11
STEP_TOLERANCE, MOST_PRODUCTS = 1e-4, 500


class GradientSum(NamedTuple):
    """G = Σ_j s_j ∇ℓ_j + λθ as (d, m), its size relative to Σ_j s_j ‖∇ℓ_j‖, and the objective's value."""

    total: torch.Tensor
    relative: float
    objective: float


class GradientSums:
    """The gradient of the summed objective, added up window by window."""

    def __init__(self, head: Head) -> None:
        self._head, self._loss = head, loss_of(head)
        self._total = torch.zeros(head.width, head.m, dtype=torch.float64, device=head.device)
        self._sums = torch.zeros(2, dtype=torch.float64)  # Σ s‖∇ℓ‖ and Σ s ℓ

    def add(self, window: Window) -> None:
        f, y = window.outputs.to(torch.float64), self._loss.targets(window.targets)
        g = self._loss.gradient(f, y) * window.weights.unsqueeze(1)
        d = window.features.shape[1]
        self._total[:d] += window.features.to(torch.float64).T @ g
        self._total[d:] += g.sum(0)
        self._sums[0] += float((window.row_norms() * g.norm(dim=1)).sum())
        self._sums[1] += float((self._loss.value(f, y) * window.weights).sum())

    def finished(self, processes: Processes = ALONE) -> GradientSum:
        """Return the sums of all processes with the penalty, which needs the head's weights."""
        head = self._head
        total, sums = processes.sum_(self._total.clone()), processes.sum_(self._sums.clone())
        size, objective = sums.tolist()
        if head.l2 > 0:
            theta = self._loss.project(head.parameters(), 1).clone()
            theta[head.penalized :] = 0.0
            total += head.l2 * theta
            objective += 0.5 * head.l2 * float(theta.square().sum())
        return GradientSum(total, float(total.norm()) / max(size, 1e-300), objective)


def gradient_sum(head: Head, processes: Processes = ALONE) -> GradientSum:
    """The gradient of the summed objective; needs the head's weights where it is penalized."""
    sums = GradientSums(head)
    for part in processes.share(list(head.slices(MOST_ROWS))):
        sums.add(head.window(part))
    return sums.finished(processes)


def refit(head: Head, *, dense: bool = True) -> Head:
    """Return the head at its optimum, by damped Newton steps: of the dense curvature, or of conjugate gradients."""
    theta = torch.zeros(head.width, head.m, dtype=torch.float64, device=head.device)
    if head.weight is not None:
        theta = loss_of(head).project(head.parameters(), 1)  # softmax does not see a constant added to all classes
    current = head.with_parameters(theta)
    at = gradient_sum(current)
    for _ in range(MAX_STEPS):
        if at.relative <= RELATIVE_GRADIENT:
            return current
        step = DenseCurvature(current).solve(at.total) if dense else _iterative_step(current, at.total)
        slope = float((at.total * step).sum())
        for length in (0.5**halvings for halvings in range(MOST_HALVINGS)):
            moved = head.with_parameters(theta - length * step)
            there = gradient_sum(moved)
            enough = at.objective - there.objective >= 1e-4 * length * slope
            # close to the optimum the objective no longer resolves the step; the gradient still does
            if enough or (slope < 1e-9 * (1.0 + abs(at.objective)) and there.relative < at.relative):
                break
        else:
            if at.relative <= math.sqrt(RELATIVE_GRADIENT):
                return current
            break
        theta, current, at = theta - length * step, moved, there
    raise InputError(
        f"refit: expected a head with a finite optimum, got a relative gradient of {at.relative:.2g} after {MAX_STEPS} "
        "Newton steps; the classes are separable or nearly so, give l2 above 0"
    )


def _iterative_step(head: Head, total: torch.Tensor) -> torch.Tensor:
    """H⁻¹ `total` (d, m) by conjugate gradients, which is as good as an exact step far from the optimum."""
    products, precision = HeadProducts(head, head.l2), Precision("float64")
    solution = column_cg(
        lambda v: products.apply(v, precision),
        products.as_vectors(total),
        precondition=preconditioner_for(products, free_memory(head.device) // 4, 1, precision),
        tolerance=STEP_TOLERANCE,
        most_steps=MOST_PRODUCTS,
        allow_unconverged=True,
    )
    return products.as_parameters(solution.x)
