"""The kernel of a view: k(x, x′) = exp(−‖b(x) − b(x′)‖ / length), b the features of a record.

A Laplace kernel is what a wide network is near: its tangent kernel falls off with the distance itself, not with its
square, so that it remembers single records without forgetting the trend. The length is the mean distance of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from giveaway.views.blocks import RecordFeatures
from giveaway.views.moments import column_scale

SAMPLE = 4_096  # records that tell the columns' scale and the length
PAIRS_AT_ONCE = 1 << 25  # distances held in one block
ROUNDING = 10.0  # of a squared distance, in units of the last place of the squared norm; measured: up to 8.4


class Scaling(NamedTuple):
    """What a feature is shifted and multiplied by, and the length of the kernel in the units that result."""

    shift: torch.Tensor
    scale: torch.Tensor
    length: float

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows (r, d) in the kernel's units, float32."""
        return (rows.float() - self.shift) * self.scale

    def done(self) -> Scaling:
        """For rows that are scaled already."""
        return Scaling(torch.zeros_like(self.shift), torch.ones_like(self.scale), self.length)


def scaling_of(sample: torch.Tensor, *, standardize: bool, shares: Sequence[tuple[int, float]] = ()) -> Scaling:
    """From a sample of rows (s, d): columns to mean 0 and, if asked, deviation 1; columns constant there to 0.

    `shares` as in RecordFeatures.
    """
    wide = sample.to(torch.float64)
    shift = wide.mean(0)
    scale = column_scale(shift, (wide - shift).square().mean(0).sqrt(), standardize)
    if shares:
        parts = scale.split([columns for columns, _ in shares])
        scale = torch.cat(
            [
                part * (share / max(1, int((part > 0).sum()))) ** 0.5
                for part, (_, share) in zip(parts, shares, strict=True)
            ]
        )
    rows = ((wide - shift) * scale).float()
    total = distances(rows, rows).fill_diagonal_(0.0).sum(dtype=torch.float64)
    length = float(total) / max(1, len(rows) * (len(rows) - 1))
    return Scaling(shift.float(), scale.float(), length or 1.0)


def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """‖a_i − b_j‖ (r, s), by one product; 0 where the square is not above its rounding, as of duplicates."""
    own = a.square().sum(1, keepdim=True)
    squares = torch.addmm(b.square().sum(1), a, b.T, beta=1.0, alpha=-2.0).add_(own)
    return squares.mul_(squares > ROUNDING * torch.finfo(squares.dtype).eps * own).sqrt_()


def laplace(a: torch.Tensor, b: torch.Tensor, length: float) -> torch.Tensor:
    """The kernel (r, s) of scaled rows."""
    return distances(a, b).mul_(-1.0 / length).exp_()


def kernel_matrix(rows: torch.Tensor, length: float) -> torch.Tensor:
    """The lower triangle, in blocks, of the kernel of scaled rows (n, d): (n, n) in float64, 1 on the diagonal."""
    n = len(rows)
    out = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
    step = max(1, PAIRS_AT_ONCE // n)
    for start in range(0, n, step):
        stop = min(start + step, n)
        out[start:stop, :stop] = laplace(rows[start:stop], rows[:stop], length)
    out.fill_diagonal_(1.0)
    return out


def nearest(features: RecordFeatures, own: torch.Tensor, scaling: Scaling, count: int) -> torch.Tensor:
    """The numbers (r, count) of the records nearest to the records `own` (r,), nearest first; −1 where none is left."""
    if not len(own):
        return torch.empty(0, count, dtype=torch.int64, device=own.device)
    rows = scaling.apply(features.of(own.cpu()).to(own.device))
    best = torch.full((len(rows), count), torch.inf, device=own.device)
    found = torch.full((len(rows), count), -1, dtype=torch.int64, device=own.device)
    first = 0
    for block in features():
        apart = distances(rows, scaling.apply(block.to(own.device)))
        numbers = torch.arange(first, first + len(block), device=own.device)
        apart.masked_fill_(own.unsqueeze(1) == numbers, torch.inf)
        first += len(block)
        best, place = torch.cat([best, apart], dim=1).topk(count, dim=1, largest=False)
        found = torch.cat([found, numbers.expand(len(rows), -1)], dim=1).gather(1, place)
    return torch.where(best.isfinite(), found, -1)
