"""Leverage blocks of records (or groups of records): B, its products with the output curvature W, and the step that
leaving the record out takes.

A batch holds N groups of s records each (s = 1: plain records) with m outputs. Two kinds exist: softmax, whose W
couples the outputs, and separate outputs, whose W is diagonal and whose B therefore splits into one s × s matrix an
output. Either offers, with w the records' sample weights and R the size of a matrix:

`spread`       (Q, R, R) W^½ B W^½, whose eigenvalues are those of W B and lie in [0, 1]
`sensitivity`  (Q, R, R) W B in an orthonormal basis: ∂(probabilities)/∂(targets)
`logit_sensitivity` (Q, R, R) ∂(outputs)/∂(targets): B, times 2 for squared loss; symmetric unless `lopsided`
`image(v)`     B v for v (N, s, m)
`leave_out(v)` (I − B W)^{-1} v, and which groups had an eigenvalue capped
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch

CAP = 1.0 - 1e-8


class Blocks(Protocol):
    """What a score may ask of a batch of leverage blocks."""

    per_group: int  # matrices a group: 1 where outputs are coupled, else m
    lopsided: bool  # records of one group carry different sample weights

    @property
    def spread(self) -> torch.Tensor: ...
    @property
    def sensitivity(self) -> torch.Tensor: ...
    @property
    def logit_sensitivity(self) -> torch.Tensor: ...
    def image(self, v: torch.Tensor) -> torch.Tensor: ...
    def leave_out(self, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


class SoftmaxBlocks:
    """Blocks of a softmax head.

    `contrast` (N, s, m − 1, s, m − 1) is B in contrast to the last class; `p` (N, s, m) are the probabilities. Softmax
    is blind to a constant on all logits, so B may be taken in contrast to any class: a record's most probable one,
    which keeps the small numbers of confident records free of cancellation.
    """

    per_group = 1

    def __init__(self, contrast: torch.Tensor, p: torch.Tensor, sample_weight: torch.Tensor) -> None:
        n, s, m = p.shape
        block = contrast.new_zeros(n, s, m, s, m)
        block[:, :, :-1, :, :-1] = contrast
        top = p.argmax(-1)
        left = top[:, :, None, None, None].expand(n, s, 1, s, m)
        block -= block.gather(2, left)
        right = top[:, None, None, :, None].expand(n, s, m, s, 1)
        block -= block.gather(4, right)
        self.block, self.p, self.weight = block, p, sample_weight
        self.lopsided = _uneven(sample_weight)
        self._shape = (n, s * m, s * m)

    @cached_property
    def _left_centred(self) -> torch.Tensor:
        return self.block - torch.einsum("nia,niajb->nijb", self.p, self.block).unsqueeze(2)

    @cached_property
    def spread(self) -> torch.Tensor:
        centred = self._left_centred - torch.einsum("niajb,njb->niaj", self._left_centred, self.p).unsqueeze(4)
        root = (self.p * self.weight.unsqueeze(-1)).sqrt()
        return (centred.mul_(root[:, :, :, None, None]).mul_(root[:, None, None])).view(self._shape)

    @cached_property
    def sensitivity(self) -> torch.Tensor:
        curved = self._left_centred * (self.p * self.weight.unsqueeze(-1))[:, :, :, None, None]
        return curved.sub_(curved.mean(4, keepdim=True)).view(self._shape)

    @cached_property
    def logit_sensitivity(self) -> torch.Tensor:
        centred = self.block - self.block.mean(2, keepdim=True)
        centred.sub_(centred.mean(4, keepdim=True)).mul_(self.weight[:, :, None, None, None])
        return centred.view(self._shape)

    def image(self, v: torch.Tensor) -> torch.Tensor:
        flat = torch.bmm(self.block.view(self._shape), v.reshape(len(v), -1, 1))
        return flat.view_as(v)

    def leave_out(self, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = self.weight.sqrt().unsqueeze(-1)
        root = self.p.sqrt()
        inner = scale * root * (v - (self.p * v).sum(-1, keepdim=True))
        solved, capped = solve_complement(self.spread, inner.reshape(len(v), -1))
        outer = root * solved.view_as(v)
        outer = scale * (outer - self.p * (root * solved.view_as(v)).sum(-1, keepdim=True))
        return v + self.image(outer), capped


class SeparateBlocks:
    """Blocks of m separate outputs: `block` (N, k, s, s) with k = m, or k = 1 where all outputs share one; `curvature`
    (N, s, m) is the diagonal of W, `sensitivity_factor` what multiplies B in logit space."""

    def __init__(
        self, block: torch.Tensor, curvature: torch.Tensor, sample_weight: torch.Tensor, sensitivity_factor: float
    ) -> None:
        n, s, m = curvature.shape
        self.per_group = m
        self.block = block.expand(n, m, s, s)
        self.curvature = (curvature * sample_weight.unsqueeze(-1)).transpose(1, 2)  # (N, m, s)
        self.weight, self.factor = sample_weight, sensitivity_factor
        self.lopsided = _uneven(sample_weight)
        self._shape = (n * m, s, s)

    @cached_property
    def spread(self) -> torch.Tensor:
        root = self.curvature.sqrt()
        return (self.block * root.unsqueeze(-1) * root.unsqueeze(-2)).reshape(self._shape)

    @cached_property
    def sensitivity(self) -> torch.Tensor:
        return (self.block * self.curvature.unsqueeze(-1)).reshape(self._shape)

    @cached_property
    def logit_sensitivity(self) -> torch.Tensor:
        return (self.factor * self.block * self.weight[:, None, :, None]).reshape(self._shape)

    def image(self, v: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nkij,njk->nik", self.block, v)

    def leave_out(self, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        root = self.curvature.sqrt()
        inner = (root * v.transpose(1, 2)).reshape(-1, v.shape[1])
        solved, capped = solve_complement(self.spread, inner)
        outer = root * solved.view(len(v), -1, v.shape[1])
        step = v + self.image(outer.transpose(1, 2))
        return step, capped.view(len(v), -1).any(1)


def solve_complement(spread: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(I − A)^{-1} v for symmetric A (Q, R, R) with eigenvalues in [0, 1], those above CAP taken as CAP and reported."""
    if spread.shape[-1] == 1:
        top = spread[:, 0]
        return v / (1.0 - top.clamp_max(CAP)), top[:, 0] > CAP
    size = spread.shape[-1]
    identity = torch.eye(size, dtype=spread.dtype, device=spread.device)
    factor, info = torch.linalg.cholesky_ex(identity - spread)
    capped = info > 0
    # λ_max ≤ ‖A‖_F clears most; for the others the Cholesky of CAP·I − A exists exactly where no eigenvalue reaches CAP
    doubtful = (spread.square().sum(dim=(1, 2)) >= CAP**2).nonzero().squeeze(1)
    if len(doubtful):
        _, failed = torch.linalg.cholesky_ex(CAP * identity - spread[doubtful])
        capped[doubtful] = failed > 0
    if bool(capped.any()):
        factor[capped] = identity
    solved = torch.cholesky_solve(v.unsqueeze(2), factor).squeeze(2)
    if bool(capped.any()):
        values, vectors = torch.linalg.eigh(spread[capped])
        coordinates = torch.bmm(vectors.mT, v[capped].unsqueeze(2))
        solved[capped] = torch.bmm(vectors, coordinates / (1.0 - values.clamp_max(CAP)).unsqueeze(2)).squeeze(2)
    return solved, capped


def _uneven(sample_weight: torch.Tensor) -> bool:
    return bool((sample_weight != sample_weight[:, :1]).any())
