"""Leverage blocks of records (or groups of records): B, its products with the output curvature W, and the step that
leaving the record out takes.

A batch holds N groups of s records each (s = 1: plain records) with m outputs. Where outputs are coupled, a group has
one matrix over its s·m outputs; where neither W nor B couples them, it has one s × s matrix for each output. Matrices
carry the batch last, so that every operation on their entries runs along memory. With R the size of a matrix and Q the
number of all matrices:

`spread`       (R, R, Q) W^½ B W^½, whose eigenvalues are those of W B and lie in [0, 1]
`sensitivity`  (R, R, Q) W B: ∂(probabilities)/∂(targets)
`logit_sensitivity` (R, R, Q) ∂(outputs)/∂(targets): B, times 2 for squared loss; symmetric unless `uneven`
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch

from giveaway.curvature.losses import Loss
from giveaway.curvature.output_curvature import OutputCurvature
from giveaway.linalg.spectral import top_eigenvalue, top_singular_value
from giveaway.records.head import Window

CAP = 1.0 - 1e-8
TINY = torch.finfo(torch.float64).tiny
SMALLEST, LARGEST = 1e-145, 1e145


class LeaveOutStep(NamedTuple):
    """What leaving groups out does to their outputs: the step (N, s, m), which groups had an eigenvalue of W B capped,
    and, from a sketch, about their largest one."""

    step: torch.Tensor
    capped: torch.Tensor
    leverage: torch.Tensor | None = None


class Blocks(Protocol):
    """What a score may ask of a batch of leverage blocks, a number or a vector a group.

    trace, frobenius, spectral : of W B, or in logit space of ∂(outputs)/∂(targets)
    image(v) : B v for v (N, s, m)
    leave_out(v) : (I − B W)⁻¹ v, which groups were capped, and their leverage
    curvature_form(v) : vᵀ W v, summed over a group's records
    top_leverage : the largest eigenvalue of W B
    """

    def trace(self, *, logit: bool = False) -> torch.Tensor: ...
    def frobenius(self, *, logit: bool = False) -> torch.Tensor: ...
    def spectral(self, *, logit: bool = False) -> torch.Tensor: ...
    def image(self, v: torch.Tensor) -> torch.Tensor: ...
    def leave_out(self, v: torch.Tensor) -> LeaveOutStep: ...
    def curvature_form(self, v: torch.Tensor) -> torch.Tensor: ...
    def top_leverage(self) -> torch.Tensor: ...


class WindowBlocks(Protocol):
    """The blocks that a curvature has for a window's groups of records."""

    def blocks(self, groups: slice, probes: slice | None) -> Blocks:
        """Return the leverage blocks of these groups, by all probes of a sketch or by some of them."""
        ...


class Curvature(Protocol):
    """The curvature H of a head, dense or sketched, as far as scores need it."""

    @property
    def report(self) -> dict[str, Any]:
        """What the metadata says of this curvature."""
        ...

    @property
    def array_bytes(self) -> int:
        """How many bytes one array of a batch of blocks may take."""
        ...

    @property
    def windows_at_once(self) -> int | None:
        """How many threads may score windows at the same time; None for any number."""
        ...

    def group_bytes(self, s: int) -> int:
        """How many bytes one array takes for a group of s records."""
        ...

    def window_blocks(self, window: Window, size: int = 1) -> WindowBlocks:
        """Prepare the blocks of the groups of `size` consecutive rows of `window`."""
        ...

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """Return H⁻¹ v for v (d, m)."""
        ...


class MatrixBlocks:
    """Blocks that are there as matrices.

    block : (s, c, s, c, Q), with c = m where outputs are coupled, and c = 1 and Q = m·N where they are separate.
    curvature : W, with weights (N, s, m).
    whole : whether `block` is B itself. Otherwise softmax blocks are B up to constants in whole rows and columns, and
        W B is taken in an orthonormal basis of the outputs that softmax sees; for a linear head both are the same.
    complement : (Q, s, s), a sketch's estimate of I − W^½ B W^½, which it knows better than a difference would tell.
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
    ) -> None:
        s, c, _, _, q = block.shape
        m = curvature.weights.shape[2]
        self.per_group = m // c
        self.loss, self._complement = loss, complement
        self._fold, self._unfold = (s, c, q), (s, m, -1)
        self._right = replace(curvature, weights=self._folded(curvature.weights))
        self._left = replace(curvature, weights=self._right.weights[:, :, None, None])
        self.weight = sample_weight.T.repeat(1, self.per_group)  # (s, Q)
        self.uneven = bool((sample_weight != sample_weight[:, :1]).any())
        half = self._left.contrast(block, -4)
        self._whole = half if whole else None
        self.block = self._right.contrast(half, -2)
        self._size = (s * c, s * c, q)

    @cached_property
    def spread(self) -> torch.Tensor:
        root = self.weight.sqrt().unsqueeze(1)
        half = self._left.root_transposed(self.block, -4)
        both = self._right.root_transposed(half, -2)
        return (both * root * root[:, :, None, None]).reshape(self._size)

    @cached_property
    def sensitivity(self) -> torch.Tensor:
        block = self.loss.project(self.block, -2) if self._whole is None else self._whole
        return (self._left.curve(block, -4) * self.weight[:, None, None, None]).reshape(self._size)

    @cached_property
    def logit_sensitivity(self) -> torch.Tensor:
        centred = self.loss.project(self.loss.project(self.block, -4), -2)
        return (self.loss.sensitivity * centred * self.weight[:, None, None, None]).reshape(self._size)

    def trace(self, *, logit: bool = False) -> torch.Tensor:
        matrices = self.logit_sensitivity if logit else self.spread if self.loss.convex else self.sensitivity
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
        largest = top_eigenvalue if logit and not self.uneven else top_singular_value
        return self._each(largest(self._matrices(logit))).amax(0)

    def image(self, v: torch.Tensor) -> torch.Tensor:
        return self._unfolded(self._apply(self._folded(v)))

    def leave_out(self, v: torch.Tensor) -> LeaveOutStep:
        step = self._folded(v)
        scale = self.weight.sqrt().unsqueeze(1)
        inner = (scale * self._right.root_transposed(self._right.contrast(step, -2), -2)).reshape(self._size[1:])
        if self._complement is None:
            solved, capped = solve_complement(self.spread, inner)
        else:
            columns, capped = solve_floored(self._complement, inner.T.unsqueeze(2))
            solved = columns.squeeze(2).T
        moved = step + self._apply(scale * self._right.root(solved.reshape(self._fold), -2))
        if not self.loss.convex:
            self._leave_out_concave_(moved, step)
        top = self._each(self.spread.diagonal(dim1=0, dim2=1).sum(1)).amax(0) if self._fold[1] == 1 else None
        return LeaveOutStep(self._unfolded(moved), self._each(capped).any(0), top)

    def curvature_form(self, v: torch.Tensor) -> torch.Tensor:
        u = self._folded(v)
        squares = self._right.root_transposed(self._right.contrast(u, -2), -2).square().sum(1)
        return self._each((self.weight * squares).sum(0)).sum(0)

    def top_leverage(self) -> torch.Tensor:
        return self._each(top_eigenvalue(self.spread)).amax(0)

    def _leave_out_concave_(self, moved: torch.Tensor, step: torch.Tensor) -> None:
        """Put (I − B W)⁻¹ v into `moved` for records whose W has negative eigenvalues, and so no root."""
        concave = (self._right.weights < 0).any(1).any(0)
        if bool(concave.any()):
            matrices = self.sensitivity[:, :, concave].permute(2, 1, 0)  # B W, since B is symmetric
            identity = torch.eye(self._size[0], dtype=step.dtype, device=step.device)
            right = step[:, :, concave].reshape(self._size[0], -1).T.unsqueeze(2)
            solved = torch.linalg.solve(identity - matrices, right).squeeze(2).T
            moved[:, :, concave] = solved.reshape(*self._fold[:2], -1)

    def _folded(self, v: torch.Tensor) -> torch.Tensor:
        """Vectors (N, s, m) as (s, c, Q)."""
        return v.permute(1, 2, 0).reshape(self._fold)

    def _unfolded(self, v: torch.Tensor) -> torch.Tensor:
        return v.reshape(self._unfold).permute(2, 0, 1)

    def _apply(self, v: torch.Tensor) -> torch.Tensor:
        return (self.block.view(self._size) * v.reshape(self._size[1:])).sum(1).view(self._fold)

    def _matrices(self, logit: bool) -> torch.Tensor:
        return self.logit_sensitivity if logit else self.sensitivity

    def _root_sum_of_squares(self, matrices: torch.Tensor) -> torch.Tensor:
        return self._each(matrices.square().sum(dim=(0, 1))).sum(0).sqrt()

    def _each(self, values: torch.Tensor) -> torch.Tensor:
        """Numbers of the Q matrices as (matrices a group, N)."""
        return values.view(self.per_group, -1)


@dataclass(frozen=True)
class RotatedBlocks:
    """Blocks in coordinates of each record's own: v = V v′, with orthonormal V (N, s, m, m). Norms do not change."""

    blocks: Blocks
    rotation: torch.Tensor

    def trace(self, *, logit: bool = False) -> torch.Tensor:
        return self.blocks.trace(logit=logit)

    def frobenius(self, *, logit: bool = False) -> torch.Tensor:
        return self.blocks.frobenius(logit=logit)

    def spectral(self, *, logit: bool = False) -> torch.Tensor:
        return self.blocks.spectral(logit=logit)

    def image(self, v: torch.Tensor) -> torch.Tensor:
        return self._turn(self.rotation, self.blocks.image(self._turn(self.rotation.mT, v)))

    def leave_out(self, v: torch.Tensor) -> LeaveOutStep:
        left_out = self.blocks.leave_out(self._turn(self.rotation.mT, v))
        return left_out._replace(step=self._turn(self.rotation, left_out.step))

    def curvature_form(self, v: torch.Tensor) -> torch.Tensor:
        return self.blocks.curvature_form(self._turn(self.rotation.mT, v))

    def top_leverage(self) -> torch.Tensor:
        return self.blocks.top_leverage()

    @staticmethod
    def _turn(rotation: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (rotation @ v.unsqueeze(-1)).squeeze(-1)


def rotated(blocks: Blocks, rotation: torch.Tensor | None) -> Blocks:
    """The blocks as their loss sees them, where it has coordinates of its own (`Loss.rotation`)."""
    return blocks if rotation is None else RotatedBlocks(blocks, rotation)


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
