"""The matrix I − H of a ridge regression with a free intercept, in eigenvectors: every l2 from one decomposition.

With standardized, centred features Z (n, d) the hat matrix is H = 11ᵀ/n + Z(ZᵀZ + l2·I)⁻¹Zᵀ. In coordinates P (n, k)
    I − H = a(I − 11ᵀ/n) + P diag(g) Pᵀ,     residuals e = a·(y − ȳ) + P(g ∘ b),
primal (d ≤ n): ZᵀZ = V diag(s) Vᵀ, P = ZV, a = 1, g = −1/(s + l2), b = Pᵀ(y − ȳ);
dual (d > n): ZZᵀ = U diag(s) Uᵀ without the direction 1, P = U, a = 0, g = l2/(s + l2), b = Uᵀ(y − ȳ).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from giveaway.checks import check_finite, check_memory, fail
from giveaway.views.blocks import Blocks, float_blocks
from giveaway.views.moments import check_rows, column_scale, moments

NUMBERS = 1 << 22  # of one block in float64


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues (k,), weights b (k, C) and centred targets (n, C); `coordinates` starts a pass over the rows of P."""

    values: torch.Tensor
    b: torch.Tensor
    centred: torch.Tensor
    blocks: Blocks
    mean: torch.Tensor
    turn: torch.Tensor | None

    @property
    def a(self) -> float:
        return 0.0 if self.turn is None else 1.0

    @property
    def method(self) -> str:
        return "dual" if self.turn is None else "primal"

    def filters(self, grid: torch.Tensor) -> torch.Tensor:
        """g (k, G), one column an l2."""
        below = self.values.unsqueeze(1) + grid
        return grid / below if self.turn is None else -1.0 / below

    def coordinates(self, keep: torch.Tensor | None, numbers: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Row numbers and rows of P, blockwise, of the records to `keep` (n,) (None: all)."""
        start, n = 0, len(self.centred)
        for block in float_blocks(self.blocks, numbers):
            check_rows(start + len(block), n, at_most=True)
            rows = torch.arange(start, start + len(block), device=block.device)
            start += len(block)
            if keep is not None:
                chosen = keep[rows]
                rows, block = rows[chosen], block[chosen]
            if len(rows):
                yield rows, block if self.turn is None else (block - self.mean) @ self.turn
        check_rows(start, n)


def decompose(blocks: Blocks, targets: torch.Tensor, *, standardize: bool) -> tuple[Spectrum, float, int]:
    """The spectrum, the trace of ZᵀZ and how many columns vary, by the smaller of d × d and n × n."""
    first = next(float_blocks(blocks, NUMBERS), None)
    if first is None or first.shape[1] == 0:
        raise fail("features", "at least one row and one column", "none", "give one row of numbers a record")
    d = first.shape[1]
    size = min(d, len(targets))
    check_memory(
        "features",
        8 * (3 * size * size + (size * d if d > len(targets) else 0)),
        what="a decomposition",
        got=f"{len(targets)} records with {d} features",
        remedy="use fewer features",
    )
    return (_dual if d > len(targets) else _primal)(blocks, targets, standardize)


def _primal(blocks: Blocks, targets: torch.Tensor, standardize: bool) -> tuple[Spectrum, float, int]:
    sums = moments(float_blocks(blocks, NUMBERS), targets)
    scale = sums.scale(standardize)
    gram = sums.gram.mul_(scale).mul_(scale.unsqueeze(1))
    trace = float(gram.trace())
    values, vectors = torch.linalg.eigh(gram)
    b = vectors.T @ (scale.unsqueeze(1) * sums.cross)
    turn = scale.unsqueeze(1) * vectors
    centred = targets.to(turn.device) - targets.mean(0).to(turn.device)
    return Spectrum(values.clamp_min(0.0), b, centred, blocks, sums.mean, turn), trace, int((scale > 0).sum())


def _dual(blocks: Blocks, targets: torch.Tensor, standardize: bool) -> tuple[Spectrum, float, int]:
    n = len(targets)
    parts = list(float_blocks(blocks, NUMBERS))  # n < d: fewer numbers than the d × d matrix would have
    check_rows(sum(map(len, parts)), n)
    features = torch.cat(parts)
    del parts
    check_finite("features", features)
    mean = features.mean(0)
    features = features - mean
    scale = column_scale(mean, (features.square().sum(0) / n).sqrt(), standardize)
    kernel = (features := features.mul_(scale)) @ features.T
    trace = float(kernel.trace())
    # 1 is an eigenvector with eigenvalue 0: moved to the top, where it is told apart from other null directions
    values, vectors = torch.linalg.eigh(kernel.add_((2.0 * trace + 1.0) / n))
    values, vectors = values[:-1].clamp_min(0.0), vectors[:, :-1].contiguous()
    centred = targets.to(vectors.device) - targets.mean(0).to(vectors.device)
    spectrum = Spectrum(values, vectors.T @ centred, centred, lambda: iter([vectors]), mean, None)
    return spectrum, trace, int((scale > 0).sum())
