"""Features of records that never saw the labels, the kernel on them, and features that stand for a kernel.

The kernel of a view is k(x, x′) = exp(−‖b(x) − b(x′)‖ / length), b the features of a record. A Laplace kernel is what a
wide network is near: its tangent kernel falls off with the distance itself, not with its square, so that it remembers
single records without forgetting the trend. The length is the mean distance of records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from giveaway.gp.ridge import Blocks, column_scale

PAIRS_AT_ONCE = 1 << 25  # distances held in one block
ROUNDING = 10.0  # of a squared distance, in units of the last place of the squared norm; measured: up to 8.4
FOURIER = 1024  # columns, half of them cosines
FOURIER_SAMPLE = 1000  # records whose distances give the length
LANDMARK_WORK = 2e12  # records times landmarks squared
MOST_LANDMARKS = 4_096
KEPT_BYTES = 1 << 31  # of features that are held rather than made anew on every pass
NEGLIGIBLE = 1e-7  # of the largest eigenvalue of K_zz: rounding of float32 distances


@dataclass(frozen=True)
class RecordFeatures:
    """Features of n records, made when needed: `of(rows)` for a slice or row numbers, a call for a pass over all.

    `shares` are the columns of each part and its share of squared distances between records, once the columns are
    standardized; without them every column counts alike.
    """

    n: int
    of: Callable[[slice | torch.Tensor], torch.Tensor]
    block: int
    shares: tuple[tuple[int, float], ...] = ()

    def __call__(self) -> Iterator[torch.Tensor]:
        for start in range(0, self.n, self.block):
            yield self.of(slice(start, min(start + self.block, self.n)))


class Scaling(NamedTuple):
    """What a feature is shifted and multiplied by, and the length of the kernel in the units that result."""

    shift: torch.Tensor
    scale: torch.Tensor
    length: float

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """Bring rows (r, d) to the kernel's units, float32."""
        return (rows.float() - self.shift) * self.scale

    def done(self) -> Scaling:
        """Return the scaling of rows that are in the kernel's units already."""
        return Scaling(torch.zeros_like(self.shift), torch.ones_like(self.scale), self.length)


def scaling_of(sample: torch.Tensor, *, standardize: bool, shares: Sequence[tuple[int, float]] = ()) -> Scaling:
    """Scale columns by a sample of rows (s, d) to mean 0 and, if asked, deviation 1; columns constant there become 0.

    `shares` are those of RecordFeatures.
    """
    wide = sample.to(torch.float64)
    shift = wide.mean(0)
    scale = column_scale(shift, (wide - shift).square().mean(0).sqrt(), standardize)
    if shares:
        parts = zip(scale.split([columns for columns, _ in shares]), shares, strict=True)
        scale = torch.cat([part * (share / max(1, int((part > 0).sum()))) ** 0.5 for part, (_, share) in parts])
    rows = ((wide - shift) * scale).float()
    total = distances(rows, rows).fill_diagonal_(0.0).sum(dtype=torch.float64)
    length = float(total) / max(1, len(rows) * (len(rows) - 1))
    return Scaling(shift.float(), scale.float(), length or 1.0)


def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ‖a_i − b_j‖ (r, s), by one product; 0 where the square is not above its rounding, as of duplicates."""
    norms = a.square().sum(1, keepdim=True)
    squares = torch.addmm(b.square().sum(1), a, b.T, beta=1.0, alpha=-2.0).add_(norms)
    return squares.mul_(squares > ROUNDING * torch.finfo(squares.dtype).eps * norms).sqrt_()


def laplace(a: torch.Tensor, b: torch.Tensor, length: float) -> torch.Tensor:
    """Return the kernel (r, s) of scaled rows."""
    return distances(a, b).mul_(-1.0 / length).exp_()


def laplace_matrix(rows: torch.Tensor, length: float) -> torch.Tensor:
    """Return the lower triangle, in blocks, of the kernel of scaled rows (n, d): (n, n), float64, diagonal 1."""
    n = len(rows)
    out = torch.zeros(n, n, dtype=torch.float64, device=rows.device)
    step = max(1, PAIRS_AT_ONCE // n)
    for start in range(0, n, step):
        stop = min(start + step, n)
        out[start:stop, :stop] = laplace(rows[start:stop], rows[:stop], length)
    out.fill_diagonal_(1.0)
    return out


def nearest(features: RecordFeatures, which: torch.Tensor, scaling: Scaling, count: int) -> torch.Tensor:
    """Return the numbers (r, count) of the records nearest to the records `which` (r,), nearest first; −1 for none."""
    if not len(which):
        return torch.empty(0, count, dtype=torch.int64, device=which.device)
    rows = scaling.apply(features.of(which.cpu()).to(which.device))
    best = torch.full((len(rows), count), torch.inf, device=which.device)
    near = torch.full((len(rows), count), -1, dtype=torch.int64, device=which.device)
    first = 0
    for block in features():
        apart = distances(rows, scaling.apply(block.to(which.device)))
        numbers = torch.arange(first, first + len(block), device=which.device)
        apart.masked_fill_(which.unsqueeze(1) == numbers, torch.inf)
        first += len(block)
        best, place = torch.cat([best, apart], dim=1).topk(count, dim=1, largest=False)
        near = torch.cat([near, numbers.expand(len(rows), -1)], dim=1).gather(1, place)
    return torch.where(best.isfinite(), near, -1)


def fourier_features(
    columns: RecordFeatures, *, features: int = FOURIER, seed: int = 0
) -> tuple[RecordFeatures, float]:
    """Return the columns with random Fourier features of them beside, float32, and the length, a median distance.

    k(x, x′) = exp(−‖x − x′‖²/(2·length²)) = E cos(ωᵀ(x − x′)), ω ~ N(0, I/length²): with F/2 draws of ω the features
    √(2/F)·(cos ωᵀx, sin ωᵀx) have k as their expected product (Rahimi and Recht, 2007): an RBF kernel seen through a
    fixed number of columns, whatever the number of records.
    """
    generator = torch.Generator().manual_seed(seed)
    sample = columns.of(torch.randperm(columns.n, generator=generator)[:FOURIER_SAMPLE]).to(torch.float64)
    apart = torch.nn.functional.pdist(sample)
    length = float(apart.median()) or 1.0 if len(apart) else 1.0  # 1 where most records are equal
    draws = torch.randn(sample.shape[1], features // 2, dtype=torch.float64, generator=generator) / length
    weights = draws.to(sample.device)

    def of(rows: slice | torch.Tensor) -> torch.Tensor:
        x = columns.of(rows).to(torch.float64)
        angles = x @ weights
        waves = [wave.mul_((features // 2) ** -0.5) for wave in (angles.cos(), angles.sin())]
        return torch.cat([x, *waves], dim=1).float()

    return RecordFeatures(columns.n, of, columns.block), length


def landmark_count(n: int) -> int:
    """Choose a power of two whose square times n is at most LANDMARK_WORK: 4,096 up to 119,000 records."""
    count = MOST_LANDMARKS
    while count > 256 and n * count * count > LANDMARK_WORK:
        count //= 2
    return min(count, n)


def landmark_features(features: RecordFeatures, landmarks: torch.Tensor, scaling: Scaling) -> Blocks:
    """Return features (rows, up to m) of all records, blockwise, whose products approximate the kernel (Nyström).

    Given scaled landmarks z (m, d), the features of a record are k(x, z) K_zz^{-1/2}.
    """
    kernel = laplace(landmarks, landmarks, scaling.length).fill_diagonal_(1.0).to(torch.float64)
    values, vectors = torch.linalg.eigh(kernel)
    kept = values > NEGLIGIBLE * values[-1]
    root = (vectors[:, kept] / values[kept].sqrt()).float()

    def passes() -> Iterator[torch.Tensor]:
        for block in features():
            yield laplace(scaling.apply(block.to(landmarks.device)), landmarks, scaling.length) @ root

    if 4 * features.n * root.shape[1] > KEPT_BYTES:
        return passes
    held = list(passes())
    return lambda: iter(held)
