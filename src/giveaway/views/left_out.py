"""What the other records predict for each record, by a kernel that never saw the trained model
(docs/derivations.md)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from giveaway.checks import available_memory, check_finite
from giveaway.gp.posterior import LeftOutErrors, kernel_regression, left_out_errors
from giveaway.gp.ridge import Blocks, as_targets, column_scale, leave_one_out_ridge, rows_of_groups
from giveaway.linalg.processes import ALONE, Processes
from giveaway.text import OnStage, quiet

EXACT_UP_TO = 30_000  # records whose whole kernel is factored
IN_SINGLE, IN_DOUBLE = 0.85, 1.5  # n × n matrices of float64 that the exact kernel takes; measured
SEED = 0  # of every draw
SAMPLE = 4_096  # records that tell the columns' scale and the length
NOISES = tuple(10.0 ** (k / 2) for k in range(-8, 5))  # λ beside a kernel of 1 on the diagonal
CHOSEN_ON = 3_000  # records, at random, on which λ is chosen: a variance, it does not grow with n
ROWS_AT_ONCE, OTHERS_AT_ONCE = 512, 4_096  # whose distances are made at a time: memory that is used again, no new pages
COLUMNS_AT_ONCE = 256  # in float64
# of squared distances, in units of the last place of the squared norm: what is less is made anew; and more than the 8.4
# (in double 37) by which products were seen to be off
NEAR, ROUNDING = 1e4, 100.0
FEW_NEAR, DIFFERENCES_AT_ONCE = 1 / 64, 1 << 20  # share of a tile's pairs that is made from differences, and numbers
FOURIER = 1024  # columns, half of them cosines
FOURIER_SAMPLE = 1000  # records whose distances give the length
LANDMARK_WORK = 2e12  # records times landmarks squared
LANDMARKS = (4_096, 2_048, 1_024, 512, 256)
KEPT_BYTES = 1 << 31  # of features that are held rather than made anew on every pass
NEGLIGIBLE = 1e-7  # of the largest eigenvalue of K_zz: rounding of float32 distances


@dataclass(frozen=True)
class RecordFeatures:
    """Features of n records, made when needed: `of(rows)` for a slice or row numbers, a call for a pass over all.
    `shares` are each part's columns and its share of squared distances; without them every column counts alike.
    `processes` share every pass, and `on_stage` is told how far it is."""

    n: int
    of: Callable[[slice | torch.Tensor], torch.Tensor]
    block: int
    shares: tuple[tuple[int, float], ...] = ()
    on_stage: OnStage = quiet
    processes: Processes = ALONE

    def __call__(self, stage: str = "") -> Iterator[torch.Tensor]:
        rows = self.processes.share(range(self.n))
        for start in rows[:: self.block]:
            self.on_stage(f"second view, {stage}", start - rows.start, len(rows))
            yield self.of(slice(start, min(start + self.block, rows.stop)))


class Scaling(NamedTuple):
    """What a feature is shifted and multiplied by, and the length of the kernel in the units that result."""

    shift: torch.Tensor
    scale: torch.Tensor
    length: float

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """Bring rows (r, d) to the kernel's units, float32."""
        return (rows.float() - self.shift).mul_(self.scale)


def scaling_of(sample: torch.Tensor, *, standardize: bool, shares: Sequence[tuple[int, float]] = ()) -> Scaling:
    """Scale columns by a sample of rows (s, d) to mean 0 and, if asked, deviation 1; constant ones become 0."""
    wide = (part.to(torch.float64) for part in sample.split(COLUMNS_AT_ONCE, 1))
    moments = [(part.mean(0), part.std(0, correction=0)) for part in wide]
    shift, deviation = (torch.cat(parts) for parts in zip(*moments, strict=True))
    scale = column_scale(shift, deviation, standardize)
    if shares:
        parts = zip(scale.split([columns for columns, _ in shares]), shares, strict=True)
        scale = torch.cat([part * (share / max(1, int((part > 0).sum()))) ** 0.5 for part, (_, share) in parts])
    scaling = Scaling(shift.float(), scale.float(), 1.0)
    tiles = triangle(scaling.apply(sample))
    blocks = (part.triu(1 + own.start - others.start).sum(dtype=torch.float64) for own, others, part in tiles)
    pairs = len(sample) * (len(sample) - 1) / 2
    return scaling._replace(length=float(sum(blocks)) / max(1.0, pairs) or 1.0)


def triangle(rows: torch.Tensor) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Walk over distances of rows (n, d) from themselves and those after them, by tiles: rows, others, distances."""
    n, norms = len(rows), torch.cat([part.square().sum(1) for part in rows.split(ROWS_AT_ONCE)])
    for start in range(0, n, ROWS_AT_ONCE):
        own = slice(start, min(start + ROWS_AT_ONCE, n))
        for first in range(start, n, OTHERS_AT_ONCE):
            others = slice(first, min(first + OTHERS_AT_ONCE, n))
            yield own, others, _distances(rows[own], rows[others], norms[own], norms[others])


def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ‖a_i − b_j‖ (r, s): 0 for duplicates, and right to a thousandth for near copies."""
    return _distances(a, b, a.square().sum(1), b.square().sum(1))


def _distances(a: torch.Tensor, b: torch.Tensor, of_a: torch.Tensor, of_b: torch.Tensor) -> torch.Tensor:
    norms = of_a.unsqueeze(1)
    squares = torch.addmm(of_b, a, b.T, beta=1.0, alpha=-2.0).add_(norms)
    near = (squares < NEAR * torch.finfo(squares.dtype).eps * norms).nonzero()
    if len(near) > FEW_NEAR * squares.numel():
        wide, other = a.double(), b.double()
        norms, of_other = wide.square().sum(1, keepdim=True), other.square().sum(1)
        squares = torch.addmm(of_other, wide, other.T, alpha=-2.0).add_(norms)
        same = (norms == of_other) & (squares < ROUNDING * torch.finfo(squares.dtype).eps * norms)
        return squares.masked_fill_(same, 0.0).clamp_min_(0.0).sqrt_().to(a.dtype)
    for i, j in (pairs.unbind(1) for pairs in near.split(max(1, DIFFERENCES_AT_ONCE // a.shape[1]))):
        squares[i, j] = (a[i] - b[j]).square_().sum(1)
    return squares.sqrt_()


def laplace(a: torch.Tensor, b: torch.Tensor, length: float) -> torch.Tensor:
    """Return the kernel (r, s) of scaled rows."""
    return distances(a, b).mul_(-1.0 / length).exp_()


def laplace_matrix(rows: torch.Tensor, length: float, on_stage: OnStage = quiet) -> torch.Tensor:
    """Return the lower triangle of the kernel of scaled rows (n, d): (n, n) in column order, float64, diagonal 1; above
    it is memory that need not exist."""
    n = len(rows)
    out = torch.empty(n, n, dtype=torch.float64, device=rows.device)
    for own, others, apart in triangle(rows):
        # near 1, single precision would leave the kernel with negative directions
        out[own, others].copy_(apart).mul_(-1.0 / length).exp_()
        on_stage("second view, kernel", n**2 - (n - own.stop) ** 2, n**2)
    out.fill_diagonal_(1.0)
    return out.T


def nearest(features: RecordFeatures, scaling: Scaling, which: Any, count: int) -> torch.Tensor:
    """Return the numbers (r, count) of the records nearest to the records `which` (r,), nearest first; −1 for none.

    Of several processes, the first says which, and each looks among its share of the records.
    """
    device, processes = scaling.shift.device, features.processes
    own = processes.of_first(torch.as_tensor(which, dtype=torch.int64, device=device))
    if not len(own):
        return torch.empty(0, count, dtype=torch.int64)
    rows = scaling.apply(features.of(own.cpu()).to(device))
    best = torch.full((len(rows), count), torch.inf, device=device)
    near = torch.full((len(rows), count), -1, dtype=torch.int64, device=device)
    first = processes.share(range(features.n)).start
    for block in features("nearest records"):
        apart = distances(rows, scaling.apply(block.to(device)))
        numbers = torch.arange(first, first + len(block), device=device)
        apart.masked_fill_(own.unsqueeze(1) == numbers, torch.inf)
        first += len(block)
        best, place = torch.cat([best, apart], dim=1).topk(count, dim=1, largest=False)
        near = torch.cat([near, numbers.expand(len(rows), -1)], dim=1).gather(1, place)
    if processes.size > 1:
        apart, numbers = (torch.cat([*processes.of_each(part)], dim=1) for part in (best, near))
        best, place = apart.topk(count, dim=1, largest=False)
        near = numbers.gather(1, place)
    return torch.where(best.isfinite(), near, -1).cpu()


def fourier_features(columns: RecordFeatures, features: int = FOURIER) -> tuple[RecordFeatures, float]:
    """Return the columns with random Fourier features of an RBF kernel beside, float32, and its length, a median
    distance."""
    generator = torch.Generator().manual_seed(SEED)
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

    return replace(columns, of=of), length


def landmark_count(n: int) -> int:
    """Choose a power of two whose square times n is at most LANDMARK_WORK: 4,096 up to 119,000 records."""
    fitting = (count for count in LANDMARKS if n * count * count <= LANDMARK_WORK)
    return min(next(fitting, LANDMARKS[-1]), n)


def landmark_features(features: RecordFeatures, landmarks: torch.Tensor, scaling: Scaling) -> Blocks:
    """Return features k(x, z) K_zz^{-1/2} of all records (of a process, its share), blockwise: products approximate the
    kernel (Nyström)."""
    kernel = laplace(landmarks, landmarks, scaling.length).fill_diagonal_(1.0).to(torch.float64)
    # other machines may turn the eigenvectors differently
    values, vectors = map(features.processes.of_first, torch.linalg.eigh(kernel))
    kept = values > NEGLIGIBLE * values[-1]
    root = (vectors[:, kept] / values[kept].sqrt()).float()

    def passes() -> Iterator[torch.Tensor]:
        for block in features("features"):
            yield laplace(scaling.apply(block.to(landmarks.device)), landmarks, scaling.length) @ root

    if 4 * features.n * root.shape[1] > KEPT_BYTES * features.processes.size:
        return passes
    held = list(passes())
    return lambda: iter(held)


@dataclass(frozen=True, eq=False)
class LeftOutPrediction:
    """Left-out errors y − ŷ (n, C), of whole groups where there are any; leverages (n,) of records; what was done; and
    `nearest(rows, count)`, the numbers (r, count) of the records nearest in features, −1 for none."""

    error: torch.Tensor
    leverage: torch.Tensor
    report: dict[str, Any]
    nearest: Callable[[Any, int], torch.Tensor]


def left_out_smooth(columns: RecordFeatures, targets: torch.Tensor, *, groups: Any = None) -> LeftOutPrediction:
    """Leave out each record, or group, of a table: ridge regression on its columns and Fourier features of them."""
    y = as_targets(targets)
    features, length = fourier_features(columns)
    ridge = leave_one_out_ridge(partial(features, "features"), y, groups=groups, processes=columns.processes)
    report = {"kernel": "rbf", "length": length, "method": f"Fourier features, {ridge.method}", "l2": ridge.l2}
    report["left_out_error"] = _relative(ridge.error, y)
    scaling = scaling_of(columns.of(_drawn(columns.n, SAMPLE)), standardize=True)
    return LeftOutPrediction(ridge.error, ridge.leverage, report, partial(nearest, columns, scaling))


def left_out(
    features: RecordFeatures,
    targets: torch.Tensor,
    *,
    groups: Any = None,
    standardize: bool = True,
    device: torch.device | str = "cpu",
    exact: bool | None = None,
) -> LeftOutPrediction:
    """Leave out every record, or group, of images or texts in turn: kernel ridge regression of `targets` (n, C) around
    0, by an exact kernel up to 30,000 records where memory allows, beyond, or with exact=False, seen from landmarks,
    which processes share."""
    targets, where = as_targets(targets), torch.device(device)
    n = len(targets)
    drawn, exact = _drawn(n, SAMPLE), fits_whole(n, where, groups is not None) if exact is None else exact
    if exact:
        rows = _gathered(replace(features, processes=ALONE), where)
        scaling = scaling_of(rows[drawn.to(where)], standardize=standardize, shares=features.shares)
        for part in rows.split(ROWS_AT_ONCE):
            part.copy_(scaling.apply(part))
        members = [] if groups is None else [rows.to(where) for rows in rows_of_groups(groups, n).values()]
        y = targets.to(where)
        noise = choose_noise(rows, y, scaling.length, members, features.on_stage)
        exactly = errors_of_rows(rows, y, scaling.length, noise, members, features.on_stage)
        error, leverage = exactly.error.cpu(), exactly.leverage.cpu()
        report = {"method": "exact", "noise": noise, "noise_chosen_on": min(n, CHOSEN_ON)}
        features = replace(features, of=rows.__getitem__, block=ROWS_AT_ONCE)  # in the kernel's units already
        scaling = Scaling(torch.zeros_like(scaling.shift), torch.ones_like(scaling.scale), scaling.length)
    else:
        sample = features.of(drawn).to(where)
        check_finite("features", sample)
        scaling = scaling_of(sample, standardize=standardize, shares=features.shares)
        landmarks = scaling.apply(sample[: landmark_count(n)])
        blocks = landmark_features(features, landmarks, scaling)
        ridge = leave_one_out_ridge(blocks, targets, groups=groups, standardize=False, processes=features.processes)
        error, leverage = ridge.error, ridge.leverage
        report = {"method": "landmarks", "landmarks": len(landmarks), "l2": ridge.l2}
    report = {"kernel": "laplace", "length": scaling.length, **report, "left_out_error": _relative(error, targets)}
    return LeftOutPrediction(error, leverage, report, partial(nearest, features, scaling))


def fits_whole(n: int, device: torch.device, grouped: bool) -> bool:
    """Whether the whole kernel of n records is factored: up to 30,000 where the memory allows."""
    return n <= EXACT_UP_TO and (device.type != "cpu" or kernel_bytes(n, device, grouped) <= available_memory())


def kernel_bytes(n: int, device: torch.device, grouped: bool) -> int:
    """Return the memory that the exact kernel takes beside the features."""
    return int(8 * (IN_SINGLE if in_single(device, grouped) else IN_DOUBLE) * n * n)


def in_single(device: torch.device, grouped: bool) -> bool:
    """Whether the factor is inverted in single precision, which distances have: a GPU is as fast in double."""
    return device.type == "cpu" and not grouped


def _gathered(features: RecordFeatures, device: torch.device) -> torch.Tensor:
    """Return the features of all records (n, d), float32."""
    rows, start = torch.empty(0), 0
    for block in features("features"):
        check_finite("features", block)
        if not start:
            rows = torch.empty(features.n, block.shape[1], device=device)
        rows[start : start + len(block)] = block
        start += len(block)
    return rows


def errors_of_rows(
    rows: torch.Tensor,
    targets: torch.Tensor,
    length: float,
    noise: float,
    members: Sequence[torch.Tensor] = (),
    on_stage: OnStage = quiet,
) -> LeftOutErrors:
    """Return left-out errors of scaled rows (n, d) under the kernel and its λ."""
    kernel = laplace_matrix(rows, length, on_stage)
    on_stage("second view, factoring the kernel", 0, 2)
    regression = kernel_regression(kernel, targets, noise, constant=True, overwrite=True)
    on_stage("second view, factoring the kernel", 1, 2)
    return left_out_errors(regression, members, single=in_single(kernel.device, bool(members)))


def choose_noise(
    rows: torch.Tensor, targets: torch.Tensor, length: float, members: Sequence[torch.Tensor], on_stage: OnStage = quiet
) -> float:
    """Choose the λ of NOISES with the least squared left-out error on CHOSEN_ON records (whole groups)."""
    rows, targets, members = _some(rows, targets, members)
    kernel = laplace_matrix(rows, length)

    def squared(noise: float) -> float:
        on_stage("second view, choosing the noise", NOISES.index(noise), len(NOISES))
        regression = kernel_regression(kernel, targets, noise, constant=True)
        return float(left_out_errors(regression, members).error.square().mean())

    return min(NOISES, key=squared)


def _some(
    rows: torch.Tensor, targets: torch.Tensor, members: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, Sequence[torch.Tensor]]:
    """Draw CHOSEN_ON records, or groups that have as many together, at least two."""
    n = len(rows)
    if n <= CHOSEN_ON:
        return rows, targets, members
    if not members:
        chosen = _drawn(n, CHOSEN_ON).to(rows.device)
        return rows[chosen], targets[chosen], ()
    sizes = torch.cat([torch.full((len(groups),), groups.shape[1]) for groups in members])
    taken = torch.zeros(len(sizes), dtype=torch.bool)
    room = CHOSEN_ON
    for group in _drawn(len(sizes), len(sizes)).tolist():
        if sizes[group] <= room:
            taken[group] = True
            room -= int(sizes[group])
    if taken.sum() < 2:  # one group alone has nobody to predict it
        taken[sizes.argsort()[:2]] = True
    parts = zip(members, taken.split([len(groups) for groups in members]), strict=True)
    drawn = [groups[wanted.to(groups.device)] for groups, wanted in parts]
    chosen = torch.cat([group.flatten() for group in drawn])
    place = torch.zeros(n, dtype=torch.int64, device=rows.device)
    place[chosen] = torch.arange(len(chosen), device=rows.device)
    return rows[chosen], targets[chosen], [place[group] for group in drawn]


def _drawn(n: int, count: int) -> torch.Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(SEED))[:count]


def _relative(error: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the left-out squared error in units of what a constant would leave; 0 where that is nothing."""
    spread = float((targets - targets.mean(0)).square().mean())
    varies = spread > 1e-24 * float(targets.square().mean())  # else rounding
    return float(error.square().mean()) / spread if varies else 0.0
