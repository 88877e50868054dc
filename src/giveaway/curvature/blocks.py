"""Leverage blocks B of N groups of s records each (s = 1: plain records) with m outputs, as matrices (`MatrixBlocks`)
or from a sketch B ≈ U Uᵀ that is never multiplied out (`FactoredBlocks`). Both have, a number or a vector a group:

trace, frobenius, spectral : of W B = ∂(probabilities)/∂(targets), or with `logit` of ∂(outputs)/∂(targets)
image(v) : B v for v (N, s, m)
leave_out(v) : (I − B W)⁻¹ v, which groups were capped, and their leverage
curvature_form(v) : vᵀ W v, summed over a group's records
top_leverage : the largest eigenvalue of W B

`whole` says that the block is B itself; otherwise a softmax block is B up to constants in whole rows and columns.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch

from giveaway.curvature.losses import Loss, OutputCurvature, SoftmaxCurvature
from giveaway.linalg.dense import solve_floored, top_eigenvalue, top_singular_value

CAP = 1.0 - 1e-8
TINY = torch.finfo(torch.float64).tiny
BY_DIFFERENCE = 1e-3  # a trace above it keeps its digits as a difference of the complement's
DIRECTIONS, POWER_STEPS = 6, 24


class LeaveOutStep(NamedTuple):
    """What leaving groups out does to their outputs (N, s, m), which groups had an eigenvalue of W B capped, and, from
    a sketch, about their largest one."""

    step: torch.Tensor
    capped: torch.Tensor
    leverage: torch.Tensor | None = None


class MatrixBlocks:
    """Blocks that are there as matrices, with the batch last, so that operations on their entries run along memory.

    Where outputs are coupled, a group has one matrix over its s·m outputs; where neither W nor B couples them, it has
    one s × s matrix for each output. With R the size of a matrix and Q the number of all matrices:

    block : (s, c, s, c, Q), with c = m where outputs are coupled, and c = 1 and Q = m·N where they are separate; it is
        overwritten unless it is `whole`
    curvature : W, with weights (N, s, m)
    complement : (Q, R, R), I − W^½ B W^½, where it is known better than a difference would tell
    error : about what rounding leaves in an entry of B: (N,), and a part of the entry besides
    """

    def __init__(
        self,
        block: torch.Tensor,
        curvature: OutputCurvature,
        sample_weight: torch.Tensor,
        loss: Loss,
        *,
        whole: bool = False,
        complement: torch.Tensor | None = None,
        error: tuple[torch.Tensor, float] | None = None,
    ) -> None:
        s, c, _, _, q = block.shape
        m = curvature.weights.shape[2]
        self.per_group = m // c
        self.loss, self.complement, self.error = loss, complement, error
        self._fold, self._unfold, self._size = (s, c, q), (s, m, -1), (s * c, s * c, q)
        self._right = replace(curvature, weights=curvature.weights.permute(1, 2, 0).reshape(self._fold))
        self._left = replace(curvature, weights=self._right.weights[:, :, None, None])
        self.weight = sample_weight.T.repeat(1, self.per_group)  # (s, Q)
        self._weighted = bool((sample_weight != 1).any())
        self.uneven = self._weighted and bool((sample_weight != sample_weight[:, :1]).any())
        half = self._left.contrast(block, -4, in_place=not whole)
        self._whole = half if whole else None
        self.block = self._right.contrast(half, -2, in_place=not whole)

    @cached_property
    def spread(self) -> torch.Tensor:
        """W^½ B W^½ (R, R, Q), whose eigenvalues are those of W B and lie in [0, 1]."""
        both = self._right.root_transposed(self._left.root_transposed(self.block, -4), -2)
        root = self.weight.sqrt().unsqueeze(1)
        return (both.mul_(root).mul_(root[:, :, None, None]) if self._weighted else both).reshape(self._size)

    @cached_property
    def sensitivity(self) -> torch.Tensor:
        """W B (R, R, Q)."""
        block = self.loss.project(self.block, -2) if self._whole is None else self._whole
        return self._left.curve(block, -4).mul_(self.weight[:, None, None, None]).reshape(self._size)

    @cached_property
    def logit_sensitivity(self) -> torch.Tensor:
        """∂(outputs)/∂(targets) (R, R, Q): B, times 2 for squared loss; symmetric unless `uneven`."""
        centred = self.loss.project(self.loss.project(self.block, -4), -2)
        return (centred * (self.loss.sensitivity * self.weight)[:, None, None, None]).reshape(self._size)

    def trace(self, *, logit: bool = False) -> torch.Tensor:
        matrices = self.logit_sensitivity if logit else self.spread
        traces = self._each(matrices.diagonal(dim1=0, dim2=1).sum(1)).sum(0)
        if logit or self.complement is None or self.error is None:  # a sketch has another one
            return traces
        known = self._each(self.complement.shape[1] - self.complement.diagonal(dim1=1, dim2=2).sum(1)).sum(0)
        return torch.where(known > BY_DIFFERENCE, known, traces)

    def frobenius(self, *, logit: bool = False) -> torch.Tensor:
        matrices = self.logit_sensitivity if logit else self.sensitivity
        # heads that are very sure of their records have blocks whose squares leave float64
        scale = self._each(matrices.abs().amax(dim=(0, 1))).amax(0).clamp_min(TINY)
        squares = (matrices / scale.repeat(self.per_group)).square().sum(dim=(0, 1))
        return scale * self._each(squares).sum(0).sqrt()

    def spectral(self, *, logit: bool = False) -> torch.Tensor:
        matrices = self.logit_sensitivity if logit else self.sensitivity
        largest = top_eigenvalue if logit and not self.uneven else top_singular_value
        return self._each(largest(matrices)).amax(0)

    def image(self, v: torch.Tensor) -> torch.Tensor:
        return self._unfolded(self._apply(self._folded(v)))

    def leave_out(self, v: torch.Tensor) -> LeaveOutStep:
        step = self._folded(v)
        scale = self.weight.sqrt().unsqueeze(1)
        inner = (scale * self._right.root_transposed(self._right.contrast(step, -2), -2)).reshape(self._size[1:])
        if self.complement is None and self._size[0] == 1:
            solved, capped = inner / (1.0 - self.spread[0].clamp_max(CAP)), self.spread[0, 0] > CAP
        else:
            complement, exact = self.complement, self.complement is None
            if complement is None:
                complement = torch.eye(len(inner), dtype=v.dtype, device=v.device) - self.spread.permute(2, 0, 1)
            columns, capped = solve_floored(complement, inner.T.unsqueeze(2), 1.0 - CAP, at_most_one=exact)
            solved = columns.squeeze(2).T
        moved = step + self._apply(scale * self._right.root(solved.reshape(self._fold), -2))
        top = self._each(self.spread.diagonal(dim1=0, dim2=1).sum(1)).amax(0) if self._fold[1] == 1 else None
        return LeaveOutStep(self._unfolded(moved), self._each(capped).any(0), top)

    def curvature_form(self, v: torch.Tensor) -> torch.Tensor:
        squares = self._right.root_transposed(self._right.contrast(self._folded(v), -2), -2).square().sum(1)
        return self._each((self.weight * squares).sum(0)).sum(0)

    def top_leverage(self) -> torch.Tensor:
        return self._each(top_eigenvalue(self.spread)).amax(0)

    def _folded(self, v: torch.Tensor) -> torch.Tensor:
        """Vectors (N, s, m) as (s, c, Q)."""
        return v.permute(1, 2, 0).reshape(self._fold)

    def _unfolded(self, v: torch.Tensor) -> torch.Tensor:
        return v.reshape(self._unfold).permute(2, 0, 1)

    def _apply(self, v: torch.Tensor) -> torch.Tensor:
        return (self.block.view(self._size) * v.reshape(self._size[1:])).sum(1).view(self._fold)

    def _each(self, values: torch.Tensor) -> torch.Tensor:
        """Numbers of the Q matrices as (matrices a group, N)."""
        return values.view(self.per_group, -1)


class FactoredBlocks:
    """Blocks from a sketch where W couples the outputs or B does: `u` and `signs` (N, s, m, q), W with weights (N, s,
    m), sample weights (N, s); `whole` says that u is J Z itself (docs/derivations.md)."""

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
        self._signs, self._rows = signs, (n, s * m, q)

    @cached_property
    def _inner(self) -> torch.Tensor:
        """C (N, s·m, q)."""
        return self._root(self.u).reshape(self._rows)

    @cached_property
    def _centred(self) -> torch.Tensor:
        return self._loss.project(self.u, -2).reshape(self._rows)

    def trace(self, *, logit: bool = False) -> torch.Tensor:
        rows = (self._centred if logit else self._inner).reshape(*self.weight.shape, -1)
        each = torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64).square()
        return self._loss.sensitivity * (each * self.weight).sum(1) if logit else each.sum(1)

    def frobenius(self, *, logit: bool = False) -> torch.Tensor:
        """The norm from two halves of the probes, whose errors are independent: the square of one alone would be too
        large. It is never below what the trace says of it."""
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
        return (scale * (left.shape[2] / half) * norm).maximum(self._mean_leverage(logit) * self._rank**0.5)

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
        return (scale * (0.5 * norm).to(torch.float64)).maximum(self._mean_leverage(logit))

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
        right = (basis.mT @ inner).to(torch.float64)
        rest = self._signs.reshape(self._rows).mT @ basis * self._rows[2] ** -0.5 - along
        absent = (basis.square().sum(1) == 0).to(torch.float64)
        complement = (rest.mT @ rest).to(torch.float64) + torch.diag_embed(absent)  # I − E in the basis
        solved, capped = solve_floored(complement, right, 1.0 - CAP)
        # the inverse of a matrix that so few probes estimate is too large on average
        probes, k = along.shape[1:]
        outer = basis @ (solved * ((probes - k - 1) / probes)).to(inner.dtype)
        step = v + (self.u.view(self._rows) @ (self._inner.mT @ outer)).view(n, s, m).to(torch.float64) * scale
        top = top_eigenvalue((along.mT @ along).to(torch.float64).permute(1, 2, 0))
        return LeaveOutStep(step, capped, top)

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

    @property
    def _rank(self) -> int:
        """How many eigenvalues of W B need not be 0."""
        return self.weight.shape[1] * self._loss.degrees

    def _mean_leverage(self, logit: bool) -> torch.Tensor:
        return self.trace(logit=logit) / self._rank

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
                if isinstance(self._curvature, SoftmaxCurvature):  # S maps √p to zero: rounding puts some there
                    null, records = self._curvature.weights.sqrt().to(v.dtype), v.view(self._curvature.weights.shape)
                    v = (records - null * (null * records).sum(2, keepdim=True)).view(v.shape)
            norm = torch.linalg.vector_norm(v, dim=1, keepdim=True)
            new = norm > least * before
            v = torch.where(new, v / torch.where(new, norm, 1.0), 0.0)
            basis[:, :, k : k + 1] = v
            v = self._inner @ (self._inner.mT @ v)
        return basis


Blocks = MatrixBlocks | FactoredBlocks
BlocksOf = Callable[[slice, OutputCurvature, torch.Tensor, slice | None], Blocks]  # of groups with their W and weights


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
