"""Preconditioned conjugate gradients for many right sides at once, with a true residual a column.

Right sides stand in the last dimension; whatever comes before it is one vector. The products may be cheap ones
(float32, TF32, bfloat16): where `exact_product` is given, the recursion's residual is replaced by b − A x in that
product's precision each time it has fallen by the factor `trusted`, and before a column counts as solved, so that what
is reported is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

CONVERGED, RAN_OUT, NEGATIVE = "converged", "steps", "negative curvature"
STALLED_AT = 0.9  # of the residual at the replacement before: what a cheap product no longer improves
STALLS = 3
DONE = 0.3  # of the tolerance, below which a column is left alone

Product = Callable[[torch.Tensor], torch.Tensor]


class SolveError(RuntimeError):
    """An iterative solve that did not reach its tolerance; the message is one line and says what to do."""


@dataclass(frozen=True)
class Solution:
    """What conjugate gradients found: x, and for every column its true relative residual and how it ended."""

    x: torch.Tensor
    residual: torch.Tensor
    steps: int
    status: tuple[str, ...]


def block_cg(
    product: Product,
    right: torch.Tensor,
    *,
    precondition: Product | None = None,
    tolerance: float = 1e-3,
    most_steps: int = 200,
    start: torch.Tensor | None = None,
    exact_product: Product | None = None,
    trusted: float = 0.1,
    allow_unconverged: bool = False,
    on_step: Callable[[int], Any] = lambda step: None,
) -> Solution:
    """Solve A X = `right` for symmetric positive (semi-)definite A until the worst column's residual is `tolerance`.

    Every column has its own step lengths; they share the products. A column along which A is not positive is stopped
    where it is. Without convergence SolveError is raised, unless `allow_unconverged`.
    """
    exact = product if exact_product is None else exact_product
    inverse = (lambda r: r) if precondition is None else precondition
    norms = _norms(right)
    scale = torch.where(norms > 0, norms, 1.0)
    x = torch.zeros_like(right) if start is None else start.clone()
    r = right.clone() if start is None else right - exact(x)
    relative = _norms(r) / scale
    negative = torch.zeros_like(norms, dtype=torch.bool)
    z = inverse(r)
    direction, rz = z.clone(), _dots(r, z)
    last_true, stalls, steps = _worst(relative, negative), 0, 0
    while last_true > tolerance and steps < most_steps and stalls < STALLS:
        image = product(direction)
        curvature = _dots(direction, image)
        negative |= (curvature <= 0) & (rz > 0) & (relative > tolerance)
        # a column that is solved stays where it is: going on with the rounding that is left of it would lead away
        going = (curvature > 0) & ~negative & (relative > DONE * tolerance)
        length = torch.where(going, rz / torch.where(going, curvature, 1.0), 0.0)
        x.addcmul_(direction, length)
        r.addcmul_(image, length, value=-1)
        steps += 1
        on_step(steps)
        relative = _norms(r) / scale
        worst = _worst(relative, negative)
        doubtful = exact_product is not None and worst <= trusted * last_true
        if doubtful or worst <= tolerance or steps == most_steps:
            del r  # before the product takes its space
            r = right - exact(x)
            relative = _norms(r) / scale
            now = _worst(relative, negative)
            stalls = stalls + 1 if now > STALLED_AT * last_true else 0
            last_true = now
        z = inverse(r)
        # from the change of the residual: what Fletcher and Reeves have where products are exact, forgiving where not
        turned = -length * _dots(z, image) / torch.where(rz > 0, rz, 1.0)
        rz = _dots(r, z)
        direction.mul_(turned).add_(z)
        del z
    ended = zip(negative.tolist(), relative.tolist(), strict=True)
    status = tuple(NEGATIVE if bad else CONVERGED if at <= tolerance else RAN_OUT for bad, at in ended)
    solution = Solution(x, relative, steps, status)
    if not allow_unconverged and any(how != CONVERGED for how in status):
        raise not_solved(solution, tolerance)
    return solution


def not_solved(solution: Solution, tolerance: float) -> SolveError:
    """What to raise where a solution is none."""
    negative = solution.status.count(NEGATIVE)
    if negative:
        return SolveError(
            f"solve: expected a curvature that is nowhere negative, got {negative} of {len(solution.status)} right "
            "sides along which it is; use the Gauss-Newton curvature, more damping (l2), or a higher precision"
        )
    worst = float(solution.residual.max())
    return SolveError(
        f"solve: expected a residual of {tolerance:g} for every right side, got {worst:.2g} for the worst of "
        f"{len(solution.status)} after {solution.steps} steps; allow more steps, a larger tolerance, or more damping"
    )


def _dots(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Inner products of the columns."""
    return (a * b).flatten(0, -2).sum(0)


def _norms(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(a.flatten(0, -2), dim=0)


def _worst(relative: torch.Tensor, negative: torch.Tensor) -> float:
    return float(torch.where(negative, 0.0, relative).max())
