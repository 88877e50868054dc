"""Leverage blocks from a sketch where W couples the outputs or B does: B ≈ U Uᵀ, which is never multiplied out.

A probe's signs at a record's own rows are known. With C = Sᵀ U (S Sᵀ = W) and w those signs over √q, C Cᵀ estimates
E = Sᵀ B S, and (w − C)(w − C)ᵀ estimates I − E: what leaving the record out divides by, without a difference, and so
to the same relative error however high the leverage. The division happens in the few directions that E makes of what
is divided, where q probes say enough.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch

from giveaway.curvature.blocks import LeaveOutStep, solve_floored
from giveaway.curvature.losses import Loss
from giveaway.curvature.output_curvature import OutputCurvature
from giveaway.linalg.spectral import top_eigenvalue

DIRECTIONS = 6
POWER_STEPS = 24


class FactoredBlocks:
    """Blocks of N groups of s records: `u` and `signs` (N, s, m, q), W with weights (N, s, m), sample weights (N, s).

    `whole` says that u is J Z itself, as in `MatrixBlocks`.
    """

    def __init__(
        self,
        u: torch.Tensor,
        signs: torch.Tensor,
        curvature: OutputCurvature,
        sample_weight: torch.Tensor,
        loss: Loss,
        *,
        whole: bool = False,
    ) -> None:
        n, s, m, q = u.shape
        self._curvature, self._loss = replace(curvature, weights=curvature.weights.unsqueeze(3)), loss
        self._whole = u if whole else None
        self.u = self._curvature.contrast(u, -2)
        self.weight = sample_weight.to(u.dtype)
        self._signs = signs
        self._rows = (n, s * m, q)

    @cached_property
    def _inner(self) -> torch.Tensor:
        """C (N, s·m, q)."""
        return self._root(self.u).reshape(self._rows)

    @cached_property
    def _centred(self) -> torch.Tensor:
        return self._loss.project(self.u, -2).reshape(self._rows)

    def trace(self, *, logit: bool = False) -> torch.Tensor:
        if not logit:
            return _squared_norm(self._inner.flatten(1))
        squares = _squared_norm(self._centred.view_as(self.u).flatten(2)) * self.weight
        return self._loss.sensitivity * squares.sum(1)

    def frobenius(self, *, logit: bool = False) -> torch.Tensor:
        """The norm from two halves of the probes, whose errors are independent: the square of one alone would be too
        large."""
        left, right, scale = self._factors(logit)
        half = left.shape[2] // 2
        first, second = slice(0, half), slice(half, 2 * half)
        if left.shape[1] <= half:
            one = left[:, :, first] @ right[:, :, first].mT
            other = left[:, :, second] @ right[:, :, second].mT
        else:
            one = left[:, :, first].mT @ left[:, :, second]
            other = right[:, :, first].mT @ right[:, :, second]
        norm = (one * other).sum((1, 2), dtype=torch.float64).clamp_min(0.0).sqrt()
        return scale * (left.shape[2] / half) * norm

    def spectral(self, *, logit: bool = False) -> torch.Tensor:
        """The mean of two estimates: what all probes say of the vectors that all of them find is too large, and what
        one half says of those that the other half finds is too small. It stays too large where many directions are
        about as large as the largest, and probes are fewer than they are."""
        left, right, scale = self._factors(logit)
        half = left.shape[2] // 2
        halves = slice(0, half), slice(half, 2 * half)
        norm = _stretch(left, right, *_top_pair(left, right))
        for one, other in (halves, halves[::-1]):
            pair = _top_pair(left[:, :, one], right[:, :, one])
            norm = norm + _stretch(left[:, :, other], right[:, :, other], *pair)
        return scale * (0.5 * norm).to(torch.float64).clamp_min(0.0)

    def image(self, v: torch.Tensor) -> torch.Tensor:
        u, (v, scale) = self.u.view(self._rows), _scaled(self._loss.project(v, -1))  # u stands for contrasts
        product = u @ (u.mT @ v.to(u.dtype).reshape(len(u), -1, 1))
        return product.view(v.shape).to(torch.float64) * scale

    def leave_out(self, v: torch.Tensor) -> LeaveOutStep:
        n, s, m = v.shape
        inner, scale = _scaled(self._root(v.unsqueeze(3)).reshape(n, s * m, 1))
        inner = inner.to(self.u.dtype)
        basis = self._directions(inner)
        along = self._inner.mT @ basis  # (N, q, k)
        solved, capped = solve_floored(self._complement(basis, along), (basis.mT @ inner).to(torch.float64))
        # the inverse of a matrix that so few probes estimate is too large on average
        probes, k = along.shape[1:]
        outer = basis @ (solved * ((probes - k - 1) / probes)).to(inner.dtype)
        step = self.u.view(self._rows) @ (self._inner.mT @ outer)
        top = top_eigenvalue((along.mT @ along).to(torch.float64).permute(1, 2, 0))
        return LeaveOutStep(v + step.view(n, s, m).to(torch.float64) * scale, capped, top)

    def curvature_form(self, v: torch.Tensor) -> torch.Tensor:
        return self._root(v.unsqueeze(3)).square().sum((1, 2, 3))

    def top_leverage(self) -> torch.Tensor:
        """The largest eigenvalue of C Cᵀ, over all directions and not only those of a step."""
        inner = self._inner.to(torch.float64)
        gram = inner @ inner.mT if inner.shape[1] <= inner.shape[2] else inner.mT @ inner
        return top_eigenvalue(gram.permute(1, 2, 0))

    def _root(self, v: torch.Tensor) -> torch.Tensor:
        """Sᵀ v for v (N, s, m, c)."""
        curvature = replace(self._curvature, weights=self._curvature.weights.to(v.dtype))
        return curvature.root_transposed(v, -2) * self.weight.sqrt()[:, :, None, None].to(v.dtype)

    def _factors(self, logit: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """L, R and c (N,) with c · L Rᵀ = W B, or ∂(outputs)/∂(targets); squares of L and R exist."""
        right = self._centred
        if logit:
            curved = self._loss.sensitivity * right.view_as(self.u)
        else:
            curved = replace(self._curvature, weights=self._curvature.weights.to(self.u.dtype)).curve(self.u, -2)
            right = right if self._whole is None else self._whole.reshape(self._rows)
        left, size = _scaled((curved * self.weight[:, :, None, None]).view(self._rows))
        right, other = _scaled(right)
        return left, right, (size * other).view(-1)

    def _directions(self, start: torch.Tensor) -> torch.Tensor:
        """An orthonormal basis (N, R, k) of what E makes of `start` again and again; columns of zeros where no more is
        there."""
        count = min(DIRECTIONS, self._rows[1], max(1, self._rows[2] // 4))
        basis = start.new_zeros(len(start), self._rows[1], count)
        v, least = start, torch.finfo(start.dtype).eps ** 0.5  # below it a direction is rounding
        for k in range(count):
            before = torch.linalg.vector_norm(v, dim=1, keepdim=True)
            for _ in range(2):  # once leaves rounding errors of the directions before
                v = v - basis[:, :, :k] @ (basis[:, :, :k].mT @ v)
                v = self._without_null_vector(v)
            norm = torch.linalg.vector_norm(v, dim=1, keepdim=True)
            new = norm > least * before
            v = torch.where(new, v / torch.where(new, norm, 1.0), 0.0)
            basis[:, :, k : k + 1] = v
            v = self._inner @ (self._inner.mT @ v)
        return basis

    def _without_null_vector(self, v: torch.Tensor) -> torch.Tensor:
        """v (N, R, 1) without what S maps to zero: what rounding puts there would pass for a direction."""
        null = self._curvature.null_vector()
        if null is None:
            return v
        null = null.to(v.dtype)
        records = v.view(null.shape)
        return (records - null * (null * records).sum(2, keepdim=True)).view(v.shape)

    def _complement(self, basis: torch.Tensor, along: torch.Tensor) -> torch.Tensor:
        """I − E in the directions of `basis`, (N, k, k), where `along` is Cᵀ of them."""
        own = self._signs.reshape(self._rows).mT @ basis
        rest = own * self._rows[2] ** -0.5 - along
        absent = (basis.square().sum(1) == 0).to(torch.float64)
        return (rest.mT @ rest).to(torch.float64) + torch.diag_embed(absent)


def _top_pair(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Singular vectors (N, R, 1) to the largest singular value of L Rᵀ, by steps in the smaller of its two sizes."""
    if left.shape[1] <= left.shape[2]:
        matrix = left @ right.mT
        b = _unit(matrix.abs().sum(1).unsqueeze(2))
        for _ in range(POWER_STEPS):
            a = _unit(matrix @ b)
            b = _unit(matrix.mT @ a)
        return a, b
    of_left, of_right = left.mT @ left, right.mT @ right
    beta = _unit(of_right.diagonal(dim1=1, dim2=2).unsqueeze(2))
    for _ in range(POWER_STEPS):
        alpha = _unit(of_right @ beta)
        beta = _unit(of_left @ alpha)
    return _unit(left @ alpha), _unit(right @ beta)


def _stretch(left: torch.Tensor, right: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """aᵀ L Rᵀ b."""
    return ((a.mT @ left) * (b.mT @ right)).sum((1, 2))


def _unit(v: torch.Tensor) -> torch.Tensor:
    return v / torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)


def _scaled(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """v (N, a, b) over its largest entry a group, and that in float64 (N, 1, 1): squares of what is left exist."""
    largest = v.abs().amax((1, 2), keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    return v / largest, largest.to(torch.float64)


def _squared_norm(v: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(v, dim=-1, dtype=torch.float64).square()
