"""Leverage blocks of records (or groups of records): B, its products with the output curvature W, and the step that
leaving the record out takes.

A batch holds N groups of s records each (s = 1: plain records) with m outputs. Two kinds exist: softmax, whose W
couples the outputs, and separate outputs, whose W is diagonal and whose B therefore splits into one s × s matrix an
output. Matrices carry the batch last, so that every operation on their entries runs along memory. With R the size of a
matrix and Q = N times the matrices a group:

`spread`       (R, R, Q) W^½ B W^½, whose eigenvalues are those of W B and lie in [0, 1]
`sensitivity`  (R, R, Q) W B in an orthonormal basis: ∂(probabilities)/∂(targets)
`logit_sensitivity` (R, R, Q) ∂(outputs)/∂(targets): B, times 2 for squared loss; symmetric unless `lopsided`
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import NamedTuple, Protocol

import torch

from giveaway.linalg.spectral import top_eigenvalue, top_singular_value

CAP = 1.0 - 1e-8
TINY = torch.finfo(torch.float64).tiny
SMALLEST, LARGEST = 1e-145, 1e145


class LeftOut(NamedTuple):
    """What leaving groups out does to their outputs: the step (N, s, m), which groups had an eigenvalue of W B capped,
    and, from a sketch, about their largest one."""

    step: torch.Tensor
    capped: torch.Tensor
    leverage: torch.Tensor | None = None


class Blocks(Protocol):
    """What a score may ask of a batch of leverage blocks, a number or a vector a group.

    trace, frobenius, spectral : of W B, or in logit space of ∂(outputs)/∂(targets)
    image(v) : B v for v (N, s, m)
    leave_out(v) : (I − B W)^{-1} v, and what was met on the way
    curvature_form(v) : vᵀ W v, summed over a group's records
    """

    def trace(self, *, logit: bool = False) -> torch.Tensor: ...
    def frobenius(self, *, logit: bool = False) -> torch.Tensor: ...
    def spectral(self, *, logit: bool = False) -> torch.Tensor: ...
    def image(self, v: torch.Tensor) -> torch.Tensor: ...
    def leave_out(self, v: torch.Tensor) -> LeftOut: ...
    def curvature_form(self, v: torch.Tensor) -> torch.Tensor: ...


class MatrixBlocks(ABC):
    """Norms of blocks that are there as matrices."""

    per_group: int  # matrices a group: 1 where outputs are coupled, else m
    lopsided: bool  # records of one group carry different sample weights

    @property
    @abstractmethod
    def spread(self) -> torch.Tensor: ...
    @property
    @abstractmethod
    def sensitivity(self) -> torch.Tensor: ...
    @property
    @abstractmethod
    def logit_sensitivity(self) -> torch.Tensor: ...

    def trace(self, *, logit: bool = False) -> torch.Tensor:
        matrices = self.logit_sensitivity if logit else self.spread
        return self._each(matrices.diagonal(dim1=0, dim2=1).sum(1)).sum(0)

    def frobenius(self, *, logit: bool = False) -> torch.Tensor:
        matrices = self._matrices(logit)
        norms = self._root_sum_of_squares(matrices)
        lost = (norms < SMALLEST) | (norms > LARGEST)
        if not bool(lost.any()):
            return norms
        # heads that are very sure of their records have blocks whose squares leave float64
        scale = self._each(matrices.abs().amax(dim=(0, 1))).amax(0).clamp_min(TINY)
        return torch.where(lost, scale * self._root_sum_of_squares(matrices / scale.repeat(self.per_group)), norms)

    def spectral(self, *, logit: bool = False) -> torch.Tensor:
        largest = top_eigenvalue if logit and not self.lopsided else top_singular_value
        return self._each(largest(self._matrices(logit))).amax(0)

    def _matrices(self, logit: bool) -> torch.Tensor:
        return self.logit_sensitivity if logit else self.sensitivity

    def _root_sum_of_squares(self, matrices: torch.Tensor) -> torch.Tensor:
        return self._each(matrices.square().sum(dim=(0, 1))).sum(0).sqrt()

    def _each(self, values: torch.Tensor) -> torch.Tensor:
        """Numbers of the Q matrices as (matrices a group, N)."""
        return values.view(self.per_group, -1)


class SoftmaxBlocks(MatrixBlocks):
    """Blocks of a softmax head.

    `block` (s, m, s, m, N) is B up to constants added to whole rows and columns; `p` (N, s, m) are the probabilities.
    Softmax is blind to such constants, so B may be taken in contrast to any class: a record's most probable one, which
    keeps the small numbers of confident records free of cancellation. The tensor is overwritten.
    """

    per_group = 1

    def __init__(self, block: torch.Tensor, p: torch.Tensor, sample_weight: torch.Tensor) -> None:
        s, m, _, _, n = block.shape
        self.p = p.permute(1, 2, 0).contiguous()  # (s, m, N)
        self.weight = sample_weight.T.contiguous()  # (s, N)
        top = self.p.argmax(1)
        block -= block.gather(1, top[:, None, None, None].expand(s, 1, s, m, n))
        block -= block.gather(3, top[None, None, :, None].expand(s, m, s, 1, n))
        self.block = block
        self.lopsided = _uneven(sample_weight)
        self._shape = (s * m, s * m, n)

    @cached_property
    def _expected(self) -> torch.Tensor:
        """Σ_a p_ia B[ia, jb] as (s, s, m, N)."""
        return (self.block * self.p[:, :, None, None]).sum(1)

    @cached_property
    def _average(self) -> torch.Tensor:
        """The mean of B[ia, jb] over a, as (s, s, m, N)."""
        return self.block.mean(1)

    def _centred(self, left: torch.Tensor, right: torch.Tensor, right_of_left: torch.Tensor) -> torch.Tensor:
        """B with a mean over each side's classes taken off: `left` over a and `right` over b (B is symmetric, so both
        come as (s, s, m, N)); `right_of_left` (s, s, N) is what `right` is of `left`."""
        other = right.permute(1, 2, 0, 3) - right_of_left.unsqueeze(1)
        return (self.block - left.unsqueeze(1)).sub_(other.unsqueeze(3))

    @cached_property
    def spread(self) -> torch.Tensor:
        centred = self._centred(self._expected, self._expected, (self._expected * self.p).sum(2))
        root = (self.p * self.weight.unsqueeze(1)).sqrt()
        return centred.mul_(root).mul_(root[:, :, None, None]).view(self._shape)

    @cached_property
    def sensitivity(self) -> torch.Tensor:
        centred = self._centred(self._expected, self._average, self._expected.mean(2))
        return centred.mul_((self.p * self.weight.unsqueeze(1))[:, :, None, None]).view(self._shape)

    @cached_property
    def logit_sensitivity(self) -> torch.Tensor:
        centred = self._centred(self._average, self._average, self._average.mean(2))
        return centred.mul_(self.weight[:, None, None, None]).view(self._shape)

    def image(self, v: torch.Tensor) -> torch.Tensor:
        return self._apply(v.permute(1, 2, 0)).permute(2, 0, 1)

    def leave_out(self, v: torch.Tensor) -> LeftOut:
        step = v.permute(1, 2, 0)
        scale, root = self.weight.sqrt().unsqueeze(1), self.p.sqrt()
        inner = scale * root * (step - (self.p * step).sum(1, keepdim=True))
        solved, capped = solve_complement(self.spread, inner.reshape(self._shape[1:]))
        solved = root * solved.view_as(self.p)
        outer = scale * (solved - self.p * solved.sum(1, keepdim=True))
        return LeftOut((step + self._apply(outer)).permute(2, 0, 1), capped)

    def curvature_form(self, v: torch.Tensor) -> torch.Tensor:
        u = v.permute(1, 2, 0)
        centred = u - (self.p * u).sum(1, keepdim=True)
        return (self.weight * (self.p.sqrt() * centred).square().sum(1)).sum(0)

    def _apply(self, v: torch.Tensor) -> torch.Tensor:
        return (self.block.view(self._shape) * v.reshape(self._shape[1:])).sum(1).view_as(self.p)


class SeparateBlocks(MatrixBlocks):
    """Blocks of m separate outputs: `block` (s, s, k, N) with k = m, or k = 1 where all outputs share one; `curvature`
    (N, s, m) is the diagonal of W, `sensitivity_factor` what multiplies B in logit space. A sketch knows `complement`
    (N, m, s, s), its estimate of I − W^½ B W^½, better than what it would be of B."""

    def __init__(
        self,
        block: torch.Tensor,
        curvature: torch.Tensor,
        sample_weight: torch.Tensor,
        sensitivity_factor: float,
        complement: torch.Tensor | None = None,
    ) -> None:
        n, s, m = curvature.shape
        self.per_group = m
        self.block = block.expand(s, s, m, n)
        self.curvature = (curvature * sample_weight.unsqueeze(-1)).permute(1, 2, 0).contiguous()  # (s, m, N)
        self.weight, self.factor = sample_weight.T, sensitivity_factor
        self.lopsided = _uneven(sample_weight)
        self._shape = (s, s, m * n)
        self._complement = complement

    @cached_property
    def spread(self) -> torch.Tensor:
        root = self.curvature.sqrt()
        return (self.block * root * root.unsqueeze(1)).reshape(self._shape)

    @cached_property
    def sensitivity(self) -> torch.Tensor:
        return (self.block * self.curvature.unsqueeze(1)).reshape(self._shape)

    @cached_property
    def logit_sensitivity(self) -> torch.Tensor:
        return (self.factor * self.block * self.weight[:, None, None]).reshape(self._shape)

    def image(self, v: torch.Tensor) -> torch.Tensor:
        return self._apply(v.permute(1, 2, 0)).permute(2, 0, 1)

    def leave_out(self, v: torch.Tensor) -> LeftOut:
        step, root = v.permute(1, 2, 0), self.curvature.sqrt()
        inner = (root * step).reshape(self._shape[1:])
        if self._complement is None:
            solved, capped = solve_complement(self.spread, inner)
        else:
            own = self._complement.expand(len(v), self.per_group, *self._complement.shape[2:]).transpose(0, 1)
            found, capped = solve_floored(own.reshape(-1, *own.shape[2:]), inner.T.unsqueeze(2))
            solved = found.squeeze(2).T
        outer = root * solved.view_as(root)
        top = self.spread.diagonal(dim1=0, dim2=1).sum(1).view(self.per_group, -1).amax(0)
        return LeftOut((step + self._apply(outer)).permute(2, 0, 1), capped.view(self.per_group, -1).any(0), top)

    def curvature_form(self, v: torch.Tensor) -> torch.Tensor:
        return (self.curvature.sqrt() * v.permute(1, 2, 0)).square().sum((0, 1))

    def _apply(self, v: torch.Tensor) -> torch.Tensor:
        return (self.block * v).sum(1)


def solve_floored(matrices: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A⁻¹ b for symmetric A (N, k, k) and b (N, k, 1), with eigenvalues below 1 − CAP taken as that; which had any."""
    floor = 1.0 - CAP
    identity = torch.eye(matrices.shape[1], dtype=matrices.dtype, device=matrices.device)
    _, failed = torch.linalg.cholesky_ex(matrices - floor * identity)
    capped = failed > 0
    factor, _ = torch.linalg.cholesky_ex(torch.where(capped[:, None, None], identity, matrices))
    solved = torch.cholesky_solve(right, factor)
    if bool(capped.any()):
        values, vectors = torch.linalg.eigh(matrices[capped])
        inner = vectors.mT @ right[capped]
        solved[capped] = vectors @ (inner / values.clamp_min(floor).unsqueeze(2))
    return solved, capped


def solve_complement(matrices: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(I − A)^{-1} v for symmetric A (R, R, Q) with eigenvalues in [0, 1] and v (R, Q); eigenvalues above CAP are taken
    as CAP, and the matrices that have them reported."""
    if len(matrices) == 1:
        top = matrices[0]
        return v / (1.0 - top.clamp_max(CAP)), top[0] > CAP
    spread, right = matrices.permute(2, 0, 1), v.T.unsqueeze(2)
    identity = torch.eye(len(matrices), dtype=v.dtype, device=v.device)
    factor, info = torch.linalg.cholesky_ex(identity - spread)
    capped = info > 0
    # λ_max ≤ ‖A‖_F clears most; for the others the Cholesky of CAP·I − A exists exactly where no eigenvalue reaches CAP
    doubtful = (matrices.square().sum(dim=(0, 1)) >= CAP**2).nonzero().squeeze(1)
    if len(doubtful):
        _, failed = torch.linalg.cholesky_ex(CAP * identity - spread[doubtful])
        capped[doubtful] = failed > 0
    if bool(capped.any()):
        factor[capped] = identity
    solved = torch.cholesky_solve(right, factor)
    if bool(capped.any()):
        values, vectors = torch.linalg.eigh(spread[capped])
        coordinates = vectors.mT @ right[capped]
        solved[capped] = vectors @ (coordinates / (1.0 - values.clamp_max(CAP)).unsqueeze(2))
    return solved.squeeze(2).T, capped


def _uneven(sample_weight: torch.Tensor) -> bool:
    return bool((sample_weight != sample_weight[:, :1]).any())
