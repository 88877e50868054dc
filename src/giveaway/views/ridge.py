"""Ridge regression of targets on features, and what it predicts for each record without it: one decomposition.

    minimize Σ‖y_i − c − wᵀz_i‖² + l2·‖w‖²,   z = (x − x̄)/deviation, c not penalized.

Leaving out record i gives the error e_i/(1 − h_i), h the leverage; a group S gives (I − H)_SS⁻¹ e_S. This is exact for
the given l2: c and w are those of a refit to the other records. What stays fixed is the columns' scale, computed once
with all records (their centre does not matter, c being free).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, check_names, check_number, fail
from giveaway.views.blocks import as_blocks
from giveaway.views.spectrum import NUMBERS, Spectrum, decompose

RELATIVE = tuple(10.0 ** (k / 2) for k in range(-18, 3))  # the default grid, times the trace of ZᵀZ
CAP = 1e-10  # least 1 − h that is divided by
KEPT_BYTES = 1 << 30  # of the left-out errors of all l2; beyond it the chosen l2 takes one more pass
GATHERED = 1 << 27  # numbers of the rows of groups that are held at a time
BATCH = 1 << 22  # numbers of the group blocks worked on at a time
TIED = 1e-9  # relative difference of errors that may be rounding

LeftOut = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, eq=False)
class RidgeView:
    """Left-out predictions (n, C), leverages (n,), and the l2 with the least left-out squared error of the grid (G,).

    `loo_error` (G,) is the mean squared error of the left-out predictions. `capped` (n,) marks records whose 1 − h fell
    below 1e-10: their prediction is rounding, and an l2 with such records has an infinite `loo_error`. With groups,
    prediction, error and cap are those of the whole group left out; the leverage remains the record's own.
    """

    prediction: torch.Tensor
    leverage: torch.Tensor
    capped: torch.Tensor
    l2: float
    grid: torch.Tensor
    loo_error: torch.Tensor
    method: str
    varying: int


def leave_one_out_ridge(
    features: Any,
    targets: Any,
    *,
    l2: float | None = None,
    grid: Sequence[float] | None = None,
    groups: Any = None,
    standardize: bool = True,
) -> RidgeView:
    """Leave out every record, or every group, in turn; l2 is the best of `grid` by left-out error unless given.

    `features` is an (n, d) array or memory map, or a callable that returns a new iterator of (rows, d) blocks each time
    (two passes after a look at the first block; one more where n·C·G errors are over 1 GiB, one for each GiB of grouped
    rows). `targets` are (n,) or (n, C) numbers, `groups` one name a record. The default grid spans 1e-9 to 10 times the
    trace of ZᵀZ.

    >>> view = leave_one_out_ridge([[0.0], [1.0], [2.0], [3.0]], [1.0, 2.0, 3.0, 4.0], l2=1e-9)
    >>> view.prediction.squeeze(1).round(decimals=6).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    y = as_targets(targets)
    given = None if grid is None and l2 is None else _grid(l2, grid)
    members = None if groups is None else rows_of_groups(groups, len(y))
    spectrum, trace, varying = decompose(as_blocks(features), y, standardize=standardize)
    values = given if given is not None else torch.tensor(RELATIVE, dtype=torch.float64) * (trace or 1.0)
    values = values.to(spectrum.b.device)

    n, outputs = y.shape
    keep = 8 * n * outputs * len(values) <= KEPT_BYTES
    squares = torch.zeros_like(values)
    table = _Table(n, outputs, len(values) if keep else 0, values.device)
    for rows, error, rest, low in _left_out(spectrum, values, members):
        squares += torch.where(low.any(0), torch.inf, error.square().sum((0, 2)))
        if keep:
            table.put(rows, error, rest, low)
    errors = squares / (n * outputs)
    best = _least(errors, values)
    at = best
    if not keep:
        at, table = 0, _Table(n, outputs, 1, values.device)
        for part in _left_out(spectrum, values[best : best + 1], members):
            table.put(*part)
    return RidgeView(
        prediction=y - table.error[:, at].cpu(),
        leverage=(1.0 - table.rest[:, at].cpu()).clamp(0.0, 1.0),
        capped=table.low[:, at].cpu(),
        l2=float(values[best]),
        grid=values.cpu(),
        loo_error=errors.cpu(),
        method=spectrum.method,
        varying=varying,
    )


class _Table:
    """Left-out errors (n, G, C), 1 − h and caps (n, G)."""

    def __init__(self, n: int, outputs: int, count: int, device: torch.device) -> None:
        self.error = torch.zeros(n, count, outputs, dtype=torch.float64, device=device)
        self.rest = torch.zeros(n, count, dtype=torch.float64, device=device)
        self.low = torch.zeros(n, count, dtype=torch.bool, device=device)

    def put(self, rows: torch.Tensor, error: torch.Tensor, rest: torch.Tensor, low: torch.Tensor) -> None:
        self.error[rows], self.rest[rows], self.low[rows] = error, rest, low


def _least(errors: torch.Tensor, grid: torch.Tensor) -> int:
    """The place of the least error; of several that rounding alone tells apart, that of the strongest l2."""
    alike = errors <= errors.min() * (1.0 + TIED)
    return int(torch.where(alike, grid, -1.0).argmax())


def _left_out(spectrum: Spectrum, grid: torch.Tensor, members: dict[int, torch.Tensor] | None) -> Iterator[LeftOut]:
    """Row numbers (r,), left-out errors (r, G, C), 1 − h (r, G) and whether it is capped (r, G), every record once."""
    outputs = spectrum.b.shape[1]
    g = spectrum.filters(grid)
    # a block's errors (r, G·C) may be wider than its features
    d = max(1, len(spectrum.values))
    numbers = max(d, NUMBERS * d // max(d, len(grid) * outputs))
    single = None
    if members is not None:
        single = torch.zeros(len(spectrum.centred), dtype=torch.bool, device=g.device)
        single[members.get(1, torch.empty(0, 1, dtype=torch.int64)).flatten().to(g.device)] = True
    if single is None or bool(single.any()):
        for rows, p in spectrum.coordinates(single, numbers):
            error, rest = _residual(spectrum, g, rows, p)
            low = rest < CAP
            yield rows, error / rest.clamp_min(CAP).unsqueeze(2), rest, low
    for chunk in _chunks(members or {}, GATHERED // d):
        slot = torch.full((len(spectrum.centred),), -1, dtype=torch.int64, device=g.device)
        every = torch.cat([rows.flatten() for rows in chunk]).to(g.device)
        slot[every] = torch.arange(len(every), device=g.device)
        held = torch.empty(len(every), len(spectrum.values), dtype=torch.float64, device=g.device)
        for rows, p in spectrum.coordinates(slot >= 0, numbers):
            held[slot[rows]] = p
        for rows in chunk:
            for part in rows.to(g.device).split(max(1, BATCH // (rows.shape[1] * max(d, rows.shape[1])))):
                yield _groups_out(spectrum, g, part, held[slot[part]])


def _residual(
    spectrum: Spectrum, g: torch.Tensor, rows: torch.Tensor, p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The residuals (r, G, C) and 1 − h (r, G) of rows with coordinates p (r, k)."""
    a, n = spectrum.a, len(spectrum.centred)
    weights = (g.unsqueeze(2) * spectrum.b.unsqueeze(1)).flatten(1)
    error = (p @ weights).view(len(p), g.shape[1], -1)
    if a:
        error += a * spectrum.centred[rows].unsqueeze(1)
    return error, a * (1.0 - 1.0 / n) + p.square() @ g


def _groups_out(spectrum: Spectrum, g: torch.Tensor, rows: torch.Tensor, p: torch.Tensor) -> LeftOut:
    """Groups of one size left out, rows (B, s), p (B, s, k): by the s × s block, or the k + 1 directions if fewer."""
    count, size, k = p.shape
    error, rest = _residual(spectrum, g, rows.flatten(), p.flatten(0, 1))
    error, low = error.view(count, size, g.shape[1], -1), torch.empty(count, g.shape[1], dtype=torch.bool)
    low = low.to(g.device)
    n, by_block = len(spectrum.centred), spectrum.a == 0.0 or size <= k + 1
    for j in range(g.shape[1]):
        residual = error[:, :, j]
        if by_block:
            matrix = (p * g[:, j]) @ p.mT
            if spectrum.a:
                matrix += torch.eye(size, dtype=p.dtype, device=p.device) - 1.0 / n
            solved, low[:, j] = _solve(matrix, residual)
        else:
            ones = torch.full_like(p[..., :1], n**-0.5)
            half = torch.cat([p * (-g[:, j]).sqrt(), ones], dim=2)  # H_SS = half·halfᵀ
            matrix = torch.eye(k + 1, dtype=p.dtype, device=p.device) - half.mT @ half
            inside, low[:, j] = _solve(matrix, half.mT @ residual)
            solved = residual + half @ inside
        error[:, :, j] = solved
    return rows.flatten(), error.flatten(0, 1), rest, low.repeat_interleave(size, 0)


def _solve(matrix: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Solve for each I − H block (B, s, s), its eigenvalues raised to CAP, and say where one was lower (B,)."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    solved = torch.cholesky_solve(right, factor)
    # eigenvalues of such a block are at most 1, so that none is below the determinant
    unsure = (info != 0) | ~(factor.diagonal(dim1=1, dim2=2).square().prod(1) > CAP)
    low = torch.zeros_like(unsure)
    if bool(unsure.any()):
        values, vectors = torch.linalg.eigh(matrix[unsure])
        solved[unsure] = vectors @ (vectors.mT @ right[unsure] / values.clamp_min(CAP).unsqueeze(2))
        low[unsure] = values[:, 0] < CAP
    return solved, low


def _chunks(members: dict[int, torch.Tensor], most: int) -> Iterator[list[torch.Tensor]]:
    """Groups of two and more, in lists of (B, s) row numbers that have at most `most` rows (or one group) in all."""
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


def rows_of_groups(groups: Any, n: int) -> dict[int, torch.Tensor]:
    """The rows of each group, (B, s) by size s."""
    _, inverse, counts = np.unique(
        check_names("groups", groups, n, unique=False), return_inverse=True, return_counts=True
    )
    if len(counts) < 2:
        raise fail("groups", "at least two groups", "one", "leave groups out, or give the names that tell people apart")
    order = np.argsort(inverse, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return {
        int(size): torch.from_numpy(order[starts[counts == size][:, None] + np.arange(size)])
        for size in np.unique(counts)
    }


def as_targets(targets: Any) -> torch.Tensor:
    """(n, C) in float64 on the CPU, two records at least."""
    y = as_tensor("targets", targets).to("cpu", torch.float64)
    if y.ndim == 1:
        y = y.unsqueeze(1)
    if y.ndim != 2 or len(y) < 2 or y.shape[1] == 0:
        expected = "(n,) or (n, C) numbers of at least two records"
        raise fail("targets", expected, f"shape {tuple(y.shape)}", "give one row a record")
    check_finite("targets", y)
    return y


def _grid(l2: float | None, grid: Sequence[float] | None) -> torch.Tensor:
    if l2 is not None and grid is not None:
        raise fail("grid", "either l2 or grid", "both", "leave one of them out")
    name, values = ("l2", [l2]) if l2 is not None else ("grid", list(grid or []))
    if not values:
        raise fail(name, "at least one l2", "none", "leave it out for the default grid")
    for value in values:
        if check_number(name, value, minimum=0.0, remedy="give a positive ridge strength") == 0.0:
            raise fail(name, "positive numbers", "0", "give a small positive l2 instead")
    return torch.tensor(values, dtype=torch.float64)
