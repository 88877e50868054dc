"""How far a head is from the optimum of its own training objective, and how to bring it there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from giveaway.checks import InputError
from giveaway.heads.dense import MOST_ROWS, DenseCurvature
from giveaway.heads.losses import Softmax, as_taken, loss_of
from giveaway.records import Head

MAX_STEPS = 100
RELATIVE_GRADIENT = 1e-11


@dataclass(frozen=True)
class GradientSum:
    """G = Σ_j s_j ∇ℓ_j + λθ as (d, m), its size relative to Σ_j s_j ‖∇ℓ_j‖, and the objective's value."""

    total: torch.Tensor
    relative: float
    objective: float


def gradient_sum(head: Head) -> GradientSum:
    """The gradient of the summed objective; needs the head's weights where it is penalized."""
    loss = loss_of(head)
    total = torch.zeros(head.width, head.m, dtype=torch.float64, device=head.device)
    size, objective = 0.0, 0.0
    for part in head.slices(MOST_ROWS):
        window = head.window(part)
        f, y = window.outputs.to(torch.float64), as_taken(loss, window.targets)
        g, value = loss.gradient(f, y), loss.value(f, y)
        if window.sample_weight is not None:
            g, value = g * window.sample_weight.unsqueeze(1), value * window.sample_weight
        d = head.features.shape[1]
        total[:d] += window.features.to(torch.float64).T @ g
        total[d:] += g.sum(0)
        size += float((window.row_norms() * g.norm(dim=1)).sum())
        objective += float(value.sum())
    if head.l2 > 0:
        theta = _penalized(head, head.parameters())
        total += head.l2 * theta
        objective += 0.5 * head.l2 * float(theta.square().sum())
    return GradientSum(total, float(total.norm()) / max(size, 1e-300), objective)


def refit(head: Head) -> Head:
    """The head at the optimum of its objective: damped Newton steps on the convex problem, from where it is."""
    theta = torch.zeros(head.width, head.m, dtype=torch.float64, device=head.device)
    if head.weight is not None:
        theta = _centred(head, head.parameters())
    current = head.with_parameters(theta)
    at = gradient_sum(current)
    for _ in range(MAX_STEPS):
        if at.relative <= RELATIVE_GRADIENT:
            return current
        step = DenseCurvature(current).solve(at.total)
        slope = float((at.total * step).sum())
        length, moved, there = 1.0, current, at
        while length > 1e-10:
            moved = head.with_parameters(theta - length * step)
            there = gradient_sum(moved)
            enough = at.objective - there.objective >= 1e-4 * length * slope
            # close to the optimum the objective no longer resolves the step; the gradient still does
            if enough or (slope < 1e-9 * (1.0 + abs(at.objective)) and there.relative < at.relative):
                break
            length *= 0.5
        else:
            if at.relative <= math.sqrt(RELATIVE_GRADIENT):
                return current
            break
        theta, current, at = theta - length * step, moved, there
    raise InputError(
        f"refit: expected a head with a finite optimum, got a relative gradient of {at.relative:.2g} after {MAX_STEPS} "
        "Newton steps; the classes are separable or nearly so, give l2 above 0"
    )


def _penalized(head: Head, theta: torch.Tensor) -> torch.Tensor:
    theta = _centred(head, theta)
    if head.intercept and not head.penalize_intercept:
        theta = theta.clone()
        theta[-1] = 0.0
    return theta


def _centred(head: Head, theta: torch.Tensor) -> torch.Tensor:
    """Softmax outputs do not see a constant added to all classes: only the rest of θ counts."""
    return theta - theta.mean(1, keepdim=True) if isinstance(loss_of(head), Softmax) else theta
