"""Ridge regression, and its errors for records left out, for many strengths at once (docs/derivations.md)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, check_memory, check_names, fail
from giveaway.linalg.dense import solve_floored
from giveaway.linalg.processes import ALONE, Processes

RELATIVE = tuple(10.0 ** (k / 2) for k in range(-18, 3))  # the default grid, times the trace of ZᵀZ
CAP = 1e-10  # least 1 − h that is divided by
KEPT_BYTES = 1 << 30  # of the left-out errors of all l2; beyond it the chosen l2 takes one more pass
NUMBERS = 1 << 22  # of one block in float64
GATHERED = 1 << 27  # numbers of the rows of groups that are held at a time
BATCH = 1 << 22  # numbers of the group blocks worked on at a time
TIED = 1e-9  # relative difference of errors that may be rounding
CONSTANT = 1e-12  # a standard deviation below this share of the column's size is rounding

Blocks = Callable[[], Iterator[torch.Tensor]]  # starts a new pass over (rows, d) blocks of features
Left = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class RidgeErrors:
    """Left-out errors (n, C) of records or whole groups, leverages of records (n,), and the l2 of least `loo_error`
    (G,), which is infinite where some 1 − h is below 1e-10: rounding."""

    error: torch.Tensor
    leverage: torch.Tensor
    l2: float
    grid: torch.Tensor
    loo_error: torch.Tensor
    method: str


def leave_one_out_ridge(
    features: Blocks,
    targets: Any,
    *,
    grid: Sequence[float] | None = None,
    groups: Any = None,
    standardize: bool = True,
    processes: Processes = ALONE,
) -> RidgeErrors:
    """Leave out every record, or every group, in turn; the l2 is the best of `grid` (1e-9 to 10 times the trace of ZᵀZ)
    by left-out error. `targets` are (n,) or (n, C) numbers, `groups` one name a record.

    There are two passes over the features after a look at the first block; one more where n·C·G errors are over 1 GiB,
    one for each GiB of grouped rows. Of several processes, each gives the features of its share of the rows, and all
    get the errors of all.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> leave_one_out_ridge(lambda: iter([x]), [1.0, 2.0, 3.0, 5.0], grid=[1e-9]).error.squeeze(1).round(decimals=3)
    tensor([ 0.6670, -0.1430, -0.5710,  1.0000], dtype=torch.float64)
    """
    y = as_targets(targets)
    members = {1: torch.arange(len(y)).unsqueeze(1)} if groups is None else rows_of_groups(groups, len(y))
    decomposition = _Decomposition(features, y, standardize, processes)
    usual = [(decomposition.trace or 1.0) * share for share in RELATIVE]
    strengths = decomposition.b.new_tensor(usual if grid is None else grid)
    n, outputs = y.shape

    def left_out(grid: torch.Tensor, keep: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the sums of squared errors (G,) and, if they are to be kept, errors (n, G, C) and 1 − h (n, G)."""
        squares = torch.zeros_like(grid)
        error = grid.new_zeros(n, len(grid) if keep else 0, outputs)
        rest = grid.new_zeros(error.shape[:2])
        for rows, part, beside, capped in _left_out(decomposition, grid, members):
            squares += torch.where(capped.any(0), torch.inf, part.square().sum((0, 2)))
            if keep:
                error[rows], rest[rows] = part, beside
        return decomposition.processes.sum_(squares), error, rest

    keep = 8 * n * outputs * len(strengths) <= KEPT_BYTES
    squares, error, rest = left_out(strengths, keep)
    loo_error = squares / (n * outputs)
    # of several l2 that rounding alone tells apart, the strongest
    best = int(torch.where(loo_error <= loo_error.min() * (1.0 + TIED), strengths, -1.0).argmax())
    place = best if keep else 0
    if not keep:
        _, error, rest = left_out(strengths[best : best + 1], True)
    of_all = [decomposition.processes.sum_(part[:, place].cpu()) for part in (error, rest)]
    leverage = (1.0 - of_all[1]).clamp(0.0, 1.0)
    method, l2 = "dual" if decomposition.turn is None else "primal", float(strengths[best])
    return RidgeErrors(of_all[0], leverage, l2, strengths.cpu(), loo_error.cpu(), method)


class _Decomposition:
    """a, eigenvalues s (k,), weights b (k, C) and the trace of ZᵀZ, by the smaller of d × d and n × n; centred targets
    (n, C); `turn` (d, k) is V scaled, None in the dual, where every process has all rows."""

    def __init__(self, blocks: Blocks, targets: torch.Tensor, standardize: bool, processes: Processes) -> None:
        n = len(targets)
        first = next(_float_blocks(blocks, NUMBERS))
        d = first.shape[1]
        needed, got = 8 * (3 * min(n, d) ** 2 + (n * d if d > n else 0)), f"{n} records with {d} features"
        check_memory("features", needed, what="a decomposition", got=got, remedy="use fewer features")
        self.centred = targets.to(first.device) - targets.mean(0).to(first.device)
        self.blocks, self.processes, self.turn = blocks, processes, None
        if d <= n:
            self.mean, gram, cross = _moments(blocks, processes.share(targets), first, processes)
            scale = column_scale(self.mean, (gram.diagonal() / n).sqrt(), standardize)
            gram = gram.mul_(scale).mul_(scale.unsqueeze(1))
            self.trace = float(gram.trace())
            values, vectors = torch.linalg.eigh(gram)
            self.a, self.values, self.turn = 1.0, values.clamp_min(0.0), scale.unsqueeze(1) * vectors
            self.b = vectors.T @ (scale.unsqueeze(1) * cross)
            return
        features = first.new_zeros(n, d)  # n < d: fewer numbers than d × d
        torch.cat(list(_float_blocks(blocks, NUMBERS)), out=processes.share(features))
        processes.sum_(features)
        check_finite("features", features)
        mean = features.mean(0)
        features = features - mean
        features.mul_(column_scale(mean, (features.square().sum(0) / n).sqrt(), standardize))
        kernel = features @ features.T
        self.trace = float(kernel.trace())
        # 1 is an eigenvector with eigenvalue 0: moved to the top, where it is told apart from other null directions
        values, vectors = torch.linalg.eigh(kernel.add_((2.0 * self.trace + 1.0) / n))
        values, vectors = values[:-1].clamp_min(0.0), vectors[:, :-1].contiguous()
        self.a, self.values, self.b = 0.0, values, vectors.T @ self.centred
        self.blocks, self.processes = (lambda: iter([vectors])), ALONE

    def coordinates(self, wanted: torch.Tensor, numbers: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Walk over row numbers and rows of P, blockwise, of the records `wanted` (n,)."""
        start = self.processes.share(range(len(self.centred))).start
        for block in _float_blocks(self.blocks, numbers):
            rows = torch.arange(start, start + len(block), device=block.device)
            start += len(block)
            chosen = wanted[rows]
            rows, block = (rows, block) if bool(chosen.all()) else (rows[chosen], block[chosen])
            if len(rows):
                yield rows, block if self.turn is None else (block - self.mean) @ self.turn


def _moments(
    blocks: Blocks, targets: torch.Tensor, like: torch.Tensor, processes: Processes
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x̄ (d,), Σ(x − x̄)(x − x̄)ᵀ and Σ(x − x̄)yᵀ from one pass; blocks, and the rows of processes, are merged as
    Chan does."""
    n, d, outputs = 0, like.shape[1], targets.shape[1]
    mean, gram, cross, target_mean = (like.new_zeros(shape) for shape in ((d,), (d, d), (d, outputs), (outputs,)))
    for block in _float_blocks(blocks, NUMBERS):
        rows = len(block)
        check_finite("features", block)
        y = targets[n : n + rows].to(block.device)
        block_mean, block_target_mean = block.mean(0), y.mean(0)
        centred = block - block_mean
        step, target_step = block_mean - mean, block_target_mean - target_mean
        weight = n * rows / (n + rows)
        gram.addmm_(centred.T, centred).addr_(step, step, alpha=weight)
        cross.addmm_(centred.T, y - block_target_mean).addr_(step, target_step, alpha=weight)
        mean += step * (rows / (n + rows))
        target_mean += target_step * (rows / (n + rows))
        n += rows
    if processes.size > 1:
        counted = processes.sum_(torch.cat([mean, target_mean, mean.new_ones(1)]) * n)
        of_all, targets_of_all = counted[:-1].div_(counted[-1]).split([d, outputs])
        step, target_step = mean - of_all, target_mean - targets_of_all
        processes.sum_(gram.addr_(step, step, alpha=n))
        processes.sum_(cross.addr_(step, target_step, alpha=n))
        mean = of_all
    return mean, gram, cross


def _left_out(of: _Decomposition, grid: torch.Tensor, members: dict[int, torch.Tensor]) -> Iterator[Left]:
    """Walk over all records, each once; `members` are the rows of groups by size."""
    n, outputs = len(of.centred), of.b.shape[1]
    below = of.values.unsqueeze(1) + grid
    g = grid / below if of.turn is None else -1.0 / below
    # a block's errors (r, G·C) may be wider than its features
    d = max(1, len(of.values))
    numbers = max(d, NUMBERS * d // max(d, len(grid) * outputs))
    if 1 in members:
        single = torch.zeros(n, dtype=torch.bool, device=g.device)
        single[members[1].flatten().to(g.device)] = True
        for rows, p in of.coordinates(single, numbers):
            error, rest = _residual(of, g, rows, p)
            yield rows, error / rest.clamp_min(CAP).unsqueeze(2), rest, rest < CAP
    for chunk in _chunks(members, GATHERED // d):
        slot = torch.full((n,), -1, dtype=torch.int64, device=g.device)
        every = torch.cat([rows.flatten() for rows in chunk]).to(g.device)
        slot[every] = torch.arange(len(every), device=g.device)
        held = torch.zeros(len(every), len(of.values), dtype=torch.float64, device=g.device)
        for rows, p in of.coordinates(slot >= 0, numbers):
            held[slot[rows]] = p
        of.processes.sum_(held)
        for rows in chunk:
            most = max(1, BATCH // (rows.shape[1] * max(d, rows.shape[1])))
            own = of.processes.share(rows.to(g.device))
            for part in own.split(most) if len(own) else ():
                yield _groups_left_out(of, g, part, held[slot[part]])


def _residual(
    of: _Decomposition, g: torch.Tensor, rows: torch.Tensor, p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the residuals (r, G, C) and 1 − h (r, G) of rows with coordinates p (r, k)."""
    a, n = of.a, len(of.centred)
    weights = (g.unsqueeze(2) * of.b.unsqueeze(1)).flatten(1)
    error = (p @ weights).view(len(p), g.shape[1], -1).add_(of.centred[rows].unsqueeze(1), alpha=a)
    return error, a * (1.0 - 1.0 / n) + p.square() @ g


def _groups_left_out(of: _Decomposition, g: torch.Tensor, rows: torch.Tensor, p: torch.Tensor) -> Left:
    """Leave out groups of one size, rows (B, s), p (B, s, k): by the s × s block, or the k + 1 directions if fewer."""
    count, size, k = p.shape
    error, rest = _residual(of, g, rows.flatten(), p.flatten(0, 1))
    error = error.view(count, size, g.shape[1], -1)
    capped = torch.empty(count, g.shape[1], dtype=torch.bool, device=g.device)
    n, by_block = len(of.centred), of.a == 0.0 or size <= k + 1
    for j in range(g.shape[1]):
        residual = error[:, :, j]
        if by_block:
            matrix = (p * g[:, j]) @ p.mT + of.a * (torch.eye(size, dtype=p.dtype, device=p.device) - 1.0 / n)
            solved, capped[:, j] = solve_floored(matrix, residual, CAP, at_most_one=True)
        else:
            ones = torch.full_like(p[..., :1], n**-0.5)
            half = torch.cat([p * (-g[:, j]).sqrt(), ones], dim=2)  # H_SS = half·halfᵀ
            matrix = torch.eye(k + 1, dtype=p.dtype, device=p.device) - half.mT @ half
            inside, capped[:, j] = solve_floored(matrix, half.mT @ residual, CAP, at_most_one=True)
            solved = residual + half @ inside
        error[:, :, j] = solved
    return rows.flatten(), error.flatten(0, 1), rest, capped.repeat_interleave(size, 0)


def _chunks(members: dict[int, torch.Tensor], most: int) -> Iterator[list[torch.Tensor]]:
    """Walk over groups of two and more, in lists of (B, s) row numbers of at most `most` rows (or one group) in all."""
    chunk: list[torch.Tensor] = []
    room = most
    for size, rows in sorted(members.items()):
        for part in rows.split(max(1, most // size)) if size > 1 else ():
            if chunk and part.numel() > room:
                yield chunk
                chunk, room = [], most
            chunk.append(part)
            room -= part.numel()
    if chunk:
        yield chunk


def _float_blocks(blocks: Blocks, numbers: int) -> Iterator[torch.Tensor]:
    """Walk over all rows once in float64, at most about `numbers` numbers a block."""
    for block in blocks():
        for part in block.split(max(1, numbers // block.shape[1])):
            yield part.to(torch.float64)


def centred_targets(targets: Any) -> torch.Tensor:
    """Return values as float64, and integer classes (n,) as one-hot vectors minus 1/classes, an even guess."""
    y = as_tensor("targets", targets)
    if y.is_floating_point() or y.ndim != 1 or len(y) == 0:
        return y.to(torch.float64)
    if int(y.min()) < 0:
        raise fail("targets", "classes numbered from 0", f"class {int(y.min())}", "number them, or give floats")
    classes = int(y.max()) + 1
    got, remedy = f"classes up to {classes - 1}", "number the classes from 0 without gaps, or give values as floats"
    check_memory("targets", 3 * 8 * len(y) * classes, what="one-hot classes", got=got, remedy=remedy)
    return torch.nn.functional.one_hot(y.long(), classes).to(torch.float64) - 1.0 / classes


def rows_of_people(groups: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the distinct names and the rows of each."""
    names, person, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return names, np.split(np.argsort(person, kind="stable"), np.cumsum(counts)[:-1])


def rows_of_groups(groups: Any, n: int) -> dict[int, torch.Tensor]:
    """Return the rows of each group, (B, s) by size s."""
    names = check_names("groups", groups, n, unique=False)
    _, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        raise fail("groups", "at least two groups", "one", "leave groups out, or give the names that tell people apart")
    order, starts = np.argsort(inverse, kind="stable"), np.cumsum(counts) - counts
    return {
        int(size): torch.from_numpy(order[starts[counts == size][:, None] + np.arange(size)])
        for size in np.unique(counts)
    }


def as_targets(targets: Any) -> torch.Tensor:
    """Return targets as (n, C) in float64 on the CPU; there must be two records at least."""
    y = as_tensor("targets", targets).to("cpu", torch.float64)
    y = y.unsqueeze(1) if y.ndim == 1 else y
    if y.ndim != 2 or len(y) < 2 or y.shape[1] == 0:
        expected = "(n,) or (n, C) numbers of at least two records"
        raise fail("targets", expected, f"shape {tuple(y.shape)}", "give one row a record")
    check_finite("targets", y)
    return y


def column_scale(mean: torch.Tensor, deviation: torch.Tensor, standardize: bool = True) -> torch.Tensor:
    """Return 1 / deviation, or 1 if not `standardize`; 0 for columns that are constant up to rounding."""
    varies = deviation > CONSTANT * mean.abs()
    return torch.where(varies, 1.0 / deviation if standardize else torch.ones_like(deviation), 0.0)
