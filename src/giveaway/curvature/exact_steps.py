"""The steps of a few groups of records by right sides of their own: exact where a sketch only estimates.

Leaving group S out turns H into H − Σ_{i∈S} x_i x_iᵀ ⊗ W_i, which differs from H by one small term. So conjugate
gradients solve with a matrix of its own for every group, and share the one large product among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from giveaway.curvature.blocks import CAP, LeftOut
from giveaway.curvature.losses import Softmax
from giveaway.curvature.output_curvature import diagonal_curvature
from giveaway.curvature.products import HeadProducts
from giveaway.curvature.sketched import SketchedCurvature
from giveaway.linalg.cg import column_cg
from giveaway.linalg.precision import Precision, exact_for
from giveaway.records.rows import Window

STEPS = 300
TOLERANCE, ROUGH_TOLERANCE = 1e-5, 3e-4  # the latter where residuals have sixteen bits
LARGEST_STEP = 0.25 / (1.0 - CAP)  # of what leaving out does over its first order: beyond it an eigenvalue was capped


@dataclass(frozen=True)
class ExactSteps:
    """B(s g) of N groups (N, s, m), their step of leaving out, and the true residual of either solve, the larger."""

    image: torch.Tensor
    left_out: LeftOut
    residual: torch.Tensor


def exact_steps(
    curvature: SketchedCurvature,
    window: Window,
    gradient: torch.Tensor,
    total: torch.Tensor | None = None,
    drift: torch.Tensor | None = None,
) -> ExactSteps:
    """The steps of groups with gradients g (N, s, m), whose rows `window` holds one after the other.

    `total` G and `drift` H⁻¹G (d, m) are those of a head that is not taken as converged.
    """
    n, s, _ = gradient.shape
    local = _Local(curvature.products, window, n)
    weighted = window.weights.view(n, s, 1) * gradient
    first = torch.einsum("nsd,nsm->dmn", local.x, weighted.to(local.x.dtype))
    second = first if total is None else first - torch.nn.functional.pad(total, (0, 0, 0, local.padding)).unsqueeze(2)
    right = torch.stack([first, second], 2)  # (D, m, 2, N)
    shape = (len(right), curvature.products.k, -1)
    precision = curvature.precision if right.is_cuda else Precision("float64")
    exact = exact_for(precision, right.device)
    solution = column_cg(
        lambda v: local.apply(v, right.shape, precision),
        right.reshape(shape).to(precision.dtype),
        precondition=curvature.precondition,
        tolerance=min(curvature.tolerance, TOLERANCE if exact is None else ROUGH_TOLERANCE),
        most_steps=STEPS,
        exact_product=None if exact is None else lambda v: local.apply(v, right.shape, exact),
        trusted=precision.trusted,
        allow_unconverged=True,
    )
    solved = torch.einsum("nsd,dmcn->cnsm", local.x, solution.x.view(right.shape).to(local.x.dtype))
    image, step = solved[0], solved[1]
    capped = local.size(step) > LARGEST_STEP * local.size(image)
    if drift is not None:
        step = step + torch.einsum("nsd,dm->nsm", local.x[..., : len(drift)], drift)
    residual = solution.residual.view(-1, 2, n).amax((0, 1))
    return ExactSteps(image, LeftOut(step, capped), residual)


class _Local:
    """The terms of H that N groups add themselves."""

    def __init__(self, products: HeadProducts, window: Window, n: int) -> None:
        self._products, self._softmax = products, isinstance(products.loss, Softmax)
        self.x = window.rows(torch.float64, products.width).view(n, len(window) // n, -1)
        self.padding = products.width - window.width
        outputs = window.outputs.to(torch.float64)
        curved = torch.softmax(outputs, 1) if self._softmax else diagonal_curvature(products.loss, window)
        self._curved = curved.view(n, len(window) // n, -1)
        self._weight = window.weights.view(n, -1, 1)

    def apply(self, v: torch.Tensor, shape: torch.Size, precision: Precision) -> torch.Tensor:
        """H v, less the groups' own terms in their second columns; v as (D, k, columns), told apart as `shape`."""
        result = self._products.apply(v.to(precision.dtype), precision).to(v.dtype)
        seen = torch.einsum("nsd,dmn->nsm", self.x, v.view(shape)[:, :, 1].to(torch.float64))
        own = torch.einsum("nsd,nsm->dmn", self.x, CAP * self._curve(seen))
        result.view(shape)[:, :, 1] -= own.to(v.dtype)
        return result

    def size(self, step: torch.Tensor) -> torch.Tensor:
        """√(stepᵀ W step)."""
        return (step * self._curve(step)).sum((1, 2)).clamp_min(0.0).sqrt()

    def _curve(self, v: torch.Tensor) -> torch.Tensor:
        if self._softmax:  # contrasts to the most probable output keep the digits of records that the head is sure of
            v = v - v.gather(2, self._curved.argmax(2, keepdim=True))
            v = v - (self._curved * v).sum(2, keepdim=True)
        return self._weight * self._curved * v
