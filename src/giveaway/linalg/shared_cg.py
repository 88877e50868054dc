"""Conjugate gradients whose right sides share their directions (block Krylov).

A step looks along the directions of all right sides at once, so that each also gets what the others find: many right
sides take far fewer steps than each alone. The price is a few products of the block with itself, which are small beside
a product with a matrix that has to be made from data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from giveaway.linalg.block_cg import (
    CONVERGED,
    RAN_OUT,
    STALLED_AT,
    STALLS,
    Product,
    Solution,
    SolveError,
    not_solved,
)
from giveaway.linalg.precision import tf32_products

NUMBERS_AT_ONCE = 1 << 21  # that are taken to float64 at a time
LEAST_SPREAD = 1e-12  # of a block's directions in float64, below which they count as one
WORN = 0.1  # from what they should be, from which a block's directions are made anew


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

    The residual is looked at anew before a column counts as solved, and where rounding has worn the directions; steps
    begin again from there. Of a column that is not solved, the best that a look has seen is returned. Without
    convergence SolveError is raised, unless `allow_unconverged`.
    """
    inverse = (lambda r: r) if precondition is None else precondition
    norms = torch.linalg.vector_norm(right, dim=0)
    scale = torch.where(norms > 0, norms, 1.0)
    x, r = torch.zeros_like(right), right / scale
    best = _Best(norms / scale)
    last, stalls, steps = float(best.residual.max()), 0, 0
    while float(best.residual.max()) > tolerance and steps < most_steps and stalls < STALLS:
        block = _Block(r, inverse)
        del r
        while True:
            block.step(product, x)
            steps += 1
            on_step(steps)
            if steps == most_steps or block.worn or float(block.residuals().max()) <= tolerance:
                break
        excused = block.worn or block.dropped
        del block  # before the product takes its space
        r = torch.sub(right / scale, product(x))
        now = torch.linalg.vector_norm(r, dim=0)
        best.see(x, now)
        worst = float(now.max())
        stalls = stalls + 1 if worst > STALLED_AT * last and not excused else 0
        last = worst
    best.put_into(x)
    status = tuple(CONVERGED if at <= tolerance else RAN_OUT for at in best.residual.tolist())
    solution = Solution(x.mul_(scale), best.residual, steps, status)
    if not allow_unconverged and any(how != CONVERGED for how in status):
        raise not_solved(solution, tolerance)
    return solution


class _Best:
    """Of every column, what had the least true residual: nothing at all to begin with."""

    def __init__(self, residual: torch.Tensor) -> None:
        self.residual = residual
        self._x: torch.Tensor | None = None

    def see(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        better = residual < self.residual
        if bool(better.all()):
            self._x = x.clone()
        else:
            self._x = torch.zeros_like(x) if self._x is None else self._x
            self._x[:, better] = x[:, better]
        self.residual = torch.where(better, residual, self.residual)

    def put_into(self, x: torch.Tensor) -> None:
        if self._x is not None:
            x.copy_(self._x)


class _Block:
    """Residuals as R = W σ, with WᵀM⁻¹W = I for the preconditioner M⁻¹: kept apart from their lengths, the directions
    in W stay told apart while the residuals shrink, each at its own pace, and grow alike."""

    def __init__(self, r: torch.Tensor, inverse: Product) -> None:
        self._inverse = inverse
        self._w, self._directions, self._sigma = _orthonormal(r, inverse(r))
        self.dropped, self.worn = self._w.shape[1] < r.shape[1], False

    def step(self, product: Product, x: torch.Tensor) -> None:
        """Add to x what the block's directions hold of the solution."""
        images = product(self._directions)
        form = _inverse_form(_gram(self._directions, images), x.dtype)
        with tf32_products(False):
            x.addmm_(self._directions, (form @ self._sigma).to(x.dtype))
            left = self._w.addmm_(images, form.to(x.dtype), alpha=-1)
        del images
        self._w, turned, zeta = _orthonormal(left, self._inverse(left))
        self._directions = _times(self._directions, zeta.T).add_(turned)
        self._sigma = zeta @ self._sigma
        # of directions that are conjugate this is the identity
        between = _gram(self._directions, self._w)
        between.diagonal().sub_(1.0)
        self.worn = not bool((between.abs() <= WORN).all())

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
    """Of the curvature along a block's directions, nothing along those that the others hold already."""
    scale, values, vectors = _spectrum(form)
    kept = values > torch.finfo(dtype).eps * values[-1:]
    turn = vectors[:, kept] / scale.unsqueeze(1)
    return (turn / values[kept]) @ turn.T


def _spectrum(form: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """c, and eigenvalues and -vectors of form / c cᵀ, whose diagonal is one: no column is small beside another."""
    if not bool(form.isfinite().all()):
        raise SolveError("solve: expected finite products, got infinity or nan; use a wider dtype or more damping")
    diagonal = form.diagonal()
    scale = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
    values, vectors = torch.linalg.eigh(0.5 * (form + form.T) / (scale.unsqueeze(1) * scale))
    return scale, values, vectors


def _times(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b, column by column as products are."""
    with tf32_products(False):
        return (b.T.to(a.dtype) @ a.T).T


def _gram(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """aᵀ b in float64."""
    total = torch.zeros(a.shape[1], b.shape[1], dtype=torch.float64, device=a.device)
    rows = max(1, NUMBERS_AT_ONCE // max(1, a.shape[1], b.shape[1]))
    for one, other in zip(a.split(rows), b.split(rows), strict=True):
        total.addmm_(one.to(torch.float64).T, other.to(torch.float64))
    return total
