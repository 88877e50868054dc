"""Conjugate gradients whose right sides share their directions (block Krylov).

A step looks along the directions of all right sides at once, so that each also gets what the others find: many right
sides take far fewer steps than each alone. The price is a few products of the block with itself, which are small beside
a product with a matrix that has to be made from data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from giveaway.linalg.block_cg import CONVERGED, RAN_OUT, STALLED_AT, STALLS, Product, Solution, not_solved

ROWS_AT_ONCE = 65_536
LEAST_SPREAD = 1e-12  # of a block's directions in float64, below which they count as one


def shared_cg(
    product: Product,
    right: torch.Tensor,
    *,
    precondition: Product | None = None,
    tolerance: float = 1e-3,
    most_steps: int = 200,
    allow_unconverged: bool = False,
    on_step: Callable[[int], Any] = lambda step: None,
) -> Solution:
    """Solve A X = `right` (size, columns) for positive (semi-)definite A until the worst residual is `tolerance`.

    The residual is looked at anew before a column counts as solved; where it is not what the steps made of it, they
    begin again from there. Without convergence SolveError is raised, unless `allow_unconverged`.
    """
    inverse = (lambda r: r) if precondition is None else precondition
    norms = torch.linalg.vector_norm(right, dim=0)
    scale = torch.where(norms > 0, norms, 1.0)
    x, r = torch.zeros_like(right), right / scale
    relative = norms / scale
    last_true, stalls, steps = float(relative.max()), 0, 0
    block: _Block | None = None
    while last_true > tolerance and steps < most_steps and stalls < STALLS:
        if block is None:
            block = _Block(r, inverse)
            del r
        block.step(product, x)
        steps += 1
        on_step(steps)
        if float(block.residuals().max()) > tolerance and steps < most_steps:
            continue
        block = None  # before the product takes its space
        r = product(x).neg_().add_(right / scale)
        relative = torch.linalg.vector_norm(r, dim=0)
        now = float(relative.max())
        stalls = stalls + 1 if now > STALLED_AT * last_true else 0
        last_true = now
    status = tuple(CONVERGED if at <= tolerance else RAN_OUT for at in relative.tolist())
    solution = Solution(x.mul_(scale), relative, steps, status)
    if not allow_unconverged and any(how != CONVERGED for how in status):
        raise not_solved(solution, tolerance)
    return solution


class _Block:
    """Residuals as R = W σ, with WᵀM⁻¹W = I for the preconditioner M⁻¹: kept apart from their lengths, the directions
    in W stay told apart while the residuals shrink, each at its own pace, and grow alike."""

    def __init__(self, r: torch.Tensor, inverse: Product) -> None:
        self._inverse = inverse
        self._w, self._directions, self._sigma = _orthonormal(r, inverse(r))

    def step(self, product: Product, x: torch.Tensor) -> None:
        """Add to x what the block's directions hold of the solution."""
        images = product(self._directions)
        form = _inverse_form(_gram(self._directions, images), x.dtype)
        x.addmm_(self._directions, (form @ self._sigma).to(x.dtype))
        left = self._w.addmm_(images, form.to(x.dtype), alpha=-1)
        del images
        self._w, turned, zeta = _orthonormal(left, self._inverse(left))
        self._directions = _times(self._directions, zeta.T).add_(turned)
        self._sigma = zeta @ self._sigma

    def residuals(self) -> torch.Tensor:
        """The length of every column of R."""
        squares = (_gram(self._w, self._w) @ self._sigma * self._sigma).sum(0)
        return squares.clamp_min(0.0).sqrt()


def _orthonormal(r: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """W, M⁻¹W and σ (float64) with r = W σ and WᵀM⁻¹W = I, for z = M⁻¹r; without what rounding makes of directions
    that the columns share."""
    sigma = torch.eye(r.shape[1], dtype=torch.float64, device=r.device)
    for _ in range(2):  # the second time for what rounding left of the first
        scale, values, vectors = _spectrum(_gram(r, z))
        kept = values > max(10 * torch.finfo(r.dtype).eps, LEAST_SPREAD) * values[-1:]  # of none where all is solved
        root, vectors = values[kept].sqrt(), vectors[:, kept]
        turn = vectors / (scale.unsqueeze(1) * root)
        r, z = _times(r, turn), _times(z, turn)
        sigma = root.unsqueeze(1) * (vectors.T @ (scale.unsqueeze(1) * sigma))
    return r, z, sigma


def _inverse_form(form: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of the curvature along a block's directions, nothing along those where rounding hides it."""
    scale, values, vectors = _spectrum(form)
    kept = values > torch.finfo(dtype).eps * values[-1:]
    turn = vectors[:, kept] / scale.unsqueeze(1)
    return (turn / values[kept]) @ turn.T


def _spectrum(form: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """c, and eigenvalues and -vectors of form / c cᵀ, whose diagonal is one: no column is small beside another."""
    diagonal = form.diagonal()
    scale = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
    values, vectors = torch.linalg.eigh(0.5 * (form + form.T) / (scale.unsqueeze(1) * scale))
    return scale, values, vectors


def _times(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b, column by column as products are."""
    return (b.T.to(a.dtype) @ a.T).T


def _gram(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """aᵀ b in float64."""
    total = torch.zeros(a.shape[1], b.shape[1], dtype=torch.float64, device=a.device)
    for one, other in zip(a.split(ROWS_AT_ONCE), b.split(ROWS_AT_ONCE), strict=True):
        total.addmm_(one.to(torch.float64).T, other.to(torch.float64))
    return total
