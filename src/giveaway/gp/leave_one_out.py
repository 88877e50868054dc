"""What the posterior would be at each record, or group of records, had it been left out: all from one factorization.

With M = K + σ²I over all records, p_i = [M⁻¹]_ii and w = M⁻¹y, leaving record i out gives at its own input the residual
e = w_i/p_i and, with the leverage h = 1 − σ²p_i = [K M⁻¹]_ii,
    variance without σ²h/(1 − h),   variance with σ²h,   mean without − mean with = −h·e.
A group S has the same with the block B = M⁻¹[S, S] for p: e = B⁻¹w_S, H = I − σ²B, covariances σ²H(I − H)⁻¹ and σ²H.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, fail
from giveaway.gp.posterior import EPS, Posterior

BASE = 512  # rows of the triangles at which the recursive inverse stops
STRIP = 256
GATHERED = 1 << 24  # numbers gathered at a time for the blocks of groups
NEGATIVE = 1e-8  # a leverage below −this is more than rounding wherever M is well conditioned


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Each record's own latent prediction without and with it: (n, C) means, (n,) variances, noise not included.

    `residual` is y − mean, the error of the prediction without the record; `mean_change` is mean − mean_with.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    variance_with: torch.Tensor
    residual: torch.Tensor
    mean_change: torch.Tensor
    leverage: torch.Tensor


@dataclass(frozen=True, eq=False)
class LeaveGroupOut:
    """As LeaveOneOut for the groups of one size s, at each group's own records: means (G, s, C), covariances (G, s, s).

    `place` (G,) says where each group stood in the list that was given, `rows` (G, s) which records it has.
    """

    place: torch.Tensor
    rows: torch.Tensor
    mean: torch.Tensor
    covariance: torch.Tensor
    covariance_with: torch.Tensor
    residual: torch.Tensor
    mean_change: torch.Tensor


def leave_one_out(posterior: Posterior) -> LeaveOneOut:
    """Every record left out in turn, at its own input, for the price of one triangular inverse."""
    noise, factor = posterior.noise, posterior.factor
    work = factor.clone()
    work.diagonal().zero_()
    explained = _row_squares(work)
    work.diagonal().copy_(factor.diagonal())
    invert_lower_(work)
    own = work.diagonal().square()
    work.diagonal().zero_()
    others = torch.linalg.vector_norm(work, dim=0).square_()
    del work
    leverage = _leverage(posterior, slice(None), explained, own, others)
    precision = own + others
    residual = posterior.weights / precision.unsqueeze(1)
    return LeaveOneOut(
        mean=posterior.targets - residual,
        variance=leverage / precision,
        variance_with=noise * leverage,
        residual=residual,
        mean_change=-leverage.unsqueeze(1) * residual,
        leverage=leverage,
    )


def leave_group_out(posterior: Posterior, groups: Sequence[Any]) -> list[LeaveGroupOut]:
    """Every group left out in turn, one result for each size of group, sizes ascending.

    `groups` holds index arrays of any sizes, which may overlap. A group of all records is left with the prior: mean 0
    and covariance K.
    """
    flat, sizes = _flatten(groups, len(posterior.factor))
    rows = torch.from_numpy(flat).to(posterior.factor.device)
    needed, position = torch.unique(rows, return_inverse=True)
    columns, leverage = _inverse_columns(posterior, needed)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    results = []
    for size in np.unique(sizes):
        place = np.flatnonzero(sizes == size)
        index = torch.from_numpy(starts[place][:, None] + np.arange(size)).to(rows.device)
        at = position[index]
        block = _blocks(columns, at)
        results.append(_left_out(posterior, torch.from_numpy(place), rows[index], block, leverage[at]))
    return results


def invert_lower_(triangle: torch.Tensor) -> None:
    """Invert a lower triangular matrix in place: n³/3 products, nearly all in large matrix operations."""
    n = len(triangle)
    if n <= BASE:
        identity = torch.eye(n, dtype=triangle.dtype, device=triangle.device)
        triangle.copy_(torch.linalg.solve_triangular(triangle, identity, upper=False))
        return
    half = n // 2
    first, below, second = triangle[:half, :half], triangle[half:, :half], triangle[half:, half:]
    solved = torch.linalg.solve_triangular(second, below, upper=False)
    below.copy_(torch.linalg.solve_triangular(first, solved, upper=False, left=False).neg_())
    del solved
    invert_lower_(first)
    invert_lower_(second)


def _row_squares(lower: torch.Tensor) -> torch.Tensor:
    """Σ_j L_ij² of a lower triangle by strips of columns: factors come in column order, where rows are slow to walk."""
    total = lower.new_zeros(len(lower))
    for j in range(0, len(lower), STRIP):
        total[j:] += lower[j:, j : j + STRIP].square().sum(1)
    return total


def _leverage(
    posterior: Posterior, rows: Any, explained: torch.Tensor, own: torch.Tensor, others: torch.Tensor
) -> torch.Tensor:
    """1 − σ²p without the cancellation where σ²p is near 1.

    p = 1/L_ii² + (the other squares of column i of L⁻¹) and L_ii² = σ² + s, s = K_ii − (the other squares of row i of
    L): so 1 − σ²p = s/L_ii² − σ²(others), exact to rounding of K_ii rather than of σ² + K_ii.
    """
    noise, diagonal = posterior.noise, posterior.diagonal[rows]
    kept = noise * (own + others)
    small = (diagonal - explained) * own - noise * others
    leverage = torch.where(kept > 0.5, small, 1.0 - kept)
    lowest = float(leverage.min())
    if lowest < -NEGATIVE and lowest < -10 * len(posterior.factor) * EPS * posterior.condition:
        raise fail(
            "kernel",
            "a positive semi-definite kernel",
            f"a negative posterior variance (leverage {lowest:.1e})",
            "use a kernel that is positive semi-definite",
        )
    return leverage.clamp_(0.0, 1.0)


def _inverse_columns(posterior: Posterior, needed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns `needed` of L⁻¹ as rows (u, n), and those records' leverage."""
    factor = posterior.factor
    n, u = len(factor), len(needed)
    each = torch.arange(u, device=factor.device)
    if 3 * u < n:
        unit = torch.zeros(n, u, dtype=factor.dtype, device=factor.device)
        unit[needed, each] = 1.0
        columns = torch.linalg.solve_triangular(factor, unit, upper=False).T
    else:
        work = factor.clone()
        invert_lower_(work)
        columns = work.T if u == n else work[:, needed].T
    row = factor[needed]
    row[each, needed] = 0.0
    on_diagonal = columns[each, needed]
    columns[each, needed] = 0.0
    others = torch.linalg.vector_norm(columns, dim=1).square_()
    columns[each, needed] = on_diagonal
    explained = torch.linalg.vector_norm(row, dim=1).square_()
    return columns, _leverage(posterior, needed, explained, on_diagonal.square(), others)


def _blocks(columns: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """M⁻¹[S, S] (G, s, s) for groups at rows `at` (G, s) of the columns of L⁻¹."""
    groups, size = at.shape
    block = columns.new_empty(groups, size, size)
    step = max(1, GATHERED // (size * columns.shape[1]))
    for i in range(0, groups, step):
        part = columns[at[i : i + step]]
        torch.bmm(part, part.mT, out=block[i : i + step])
    return block


def _left_out(
    posterior: Posterior, place: torch.Tensor, rows: torch.Tensor, block: torch.Tensor, leverage: torch.Tensor
) -> LeaveGroupOut:
    root = torch.linalg.cholesky(block)
    residual = torch.cholesky_solve(posterior.weights[rows], root)
    hat = block.mul_(-posterior.noise)
    hat.diagonal(dim1=1, dim2=2).copy_(leverage)
    without = torch.cholesky_solve(hat, root)
    return LeaveGroupOut(
        place=place.to(rows.device),
        rows=rows,
        mean=posterior.targets[rows] - residual,
        covariance=(without + without.mT) / 2,
        covariance_with=posterior.noise * hat,
        residual=residual,
        mean_change=-hat @ residual,
    )


def _flatten(groups: Sequence[Any], n: int) -> tuple[np.ndarray, np.ndarray]:
    """All groups' rows one after the other, and their sizes."""
    arrays = [as_tensor("groups", group).cpu().numpy().reshape(-1) for group in groups]
    sizes = np.array([len(array) for array in arrays], dtype=np.int64)
    if len(arrays) == 0 or bool((sizes == 0).any()):
        raise fail("groups", "at least one group, none of them empty", f"{len(arrays)} groups", "drop the empty ones")
    flat = np.concatenate(arrays)
    if flat.dtype.kind not in "iu":
        raise fail("groups", "row numbers", f"dtype {flat.dtype}", "give the rows of each group as integers")
    flat = flat.astype(np.int64)
    check_rows("groups", flat, np.repeat(np.arange(len(sizes)), sizes), n)
    return flat, sizes


def check_rows(argument: str, rows: np.ndarray, group: np.ndarray, n: int) -> None:
    """Refuse rows (N,) outside 0 … n − 1, and a row that stands twice in one `group` (N,)."""
    bad = (rows < 0) | (rows >= n)
    if bool(bad.any()):
        raise fail(argument, f"rows from 0 to {n - 1}", f"row {int(rows[bad][0])}", "count the records from 0")
    place = np.sort(group * n + rows)
    repeated = place[1:] == place[:-1]
    if bool(repeated.any()):
        first = int(place[1:][repeated][0])
        got = f"row {first % n} twice in group {first // n}"
        raise fail(argument, "each record once a group", got, "drop the repeated row")
