"""Regression under a kernel from one Cholesky factorization, and what it would be without each record or group.

With K the kernel of all n records, M = K + σ²I and P = M⁻¹; with a free constant beside the kernel,
P = M⁻¹ − M⁻¹11ᵀM⁻¹/(1ᵀM⁻¹1). Leaving out the records S gives at their own inputs, with H = I − σ²P_SS,

    errors e = P_SS⁻¹(Py)_S,   covariance without σ²H(I − H)⁻¹,   with σ²H,   mean without − mean with = −H e.

This is exact: it is what a fit to the other records gives. For one record P_SS is a number and H its leverage.
`giveaway.gp.ridge` has the same errors from features, where they are fewer than the records or of many strengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from giveaway.checks import as_tensor, fail

EPS = torch.finfo(torch.float64).eps
PROBES, POWERS = 4, 8  # of the estimate of the condition number
BASE = 512  # rows of the triangles at which the recursive inverse stops
STRIP = 256
GATHERED = 1 << 24  # numbers gathered at a time for the blocks of groups
NEGATIVE = 1e-8  # a leverage below −this is more than rounding wherever M is well conditioned


@dataclass(frozen=True, eq=False)
class KernelRegression:
    """The factored system: `factor` (n, n) is the lower Cholesky factor of M, `diagonal` (n,) is that of K.

    `weights` (n, C) are Py for the targets y (n, C). `constant` (n,) is M⁻¹1/√(1ᵀM⁻¹1) where there is a free constant.
    """

    targets: torch.Tensor
    noise: float
    factor: torch.Tensor
    weights: torch.Tensor
    diagonal: torch.Tensor
    constant: torch.Tensor | None = None

    @cached_property
    def condition(self) -> float:
        """Estimate the condition number of M by power iterations on M and M⁻¹: from below, and close in practice."""
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(len(self.factor), PROBES, generator=generator, dtype=torch.float64).to(self.factor.device)
        largest = _growth(start, lambda v: self.factor @ (self.factor.T @ v))
        return largest * _growth(start, lambda v: torch.cholesky_solve(v, self.factor))


def kernel_regression(
    matrix: torch.Tensor, targets: torch.Tensor, noise: float, *, constant: bool = False
) -> KernelRegression:
    """Factor K + noise·I; only the lower half of `matrix` is read. LinAlgError where it is not positive definite."""
    diagonal = matrix.diagonal().clone()
    matrix.diagonal().add_(noise)
    factor, info = torch.linalg.cholesky_ex(matrix)
    matrix.diagonal().copy_(diagonal)
    if int(info) != 0:
        raise torch.linalg.LinAlgError(f"a matrix whose Cholesky factorization stops at record {int(info) - 1}")
    right = torch.cat([targets, torch.ones_like(targets[:, :1])], dim=1) if constant else targets
    # unlike cholesky_solve, this makes no copy of the factor
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    weights = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    if not constant:
        return KernelRegression(targets, noise, factor, weights, diagonal)
    weights, ones = weights[:, :-1], weights[:, -1]
    shift = ones / ones.sum().sqrt()
    return KernelRegression(targets, noise, factor, weights - torch.outer(shift, shift @ targets), diagonal, shift)


class LeftOutErrors(NamedTuple):
    """y minus what the other records predict (n, C), and leverages (n,)."""

    error: torch.Tensor
    leverage: torch.Tensor


@dataclass(frozen=True, eq=False)
class LeftOutRecords:
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
class LeftOutGroups:
    """LeftOutRecords for groups of one size s, at each group's own records: means (G, s, C), covariances (G, s, s).

    `place` (G,) says where each group stood in the list that was given, `rows` (G, s) which records it has.
    """

    place: torch.Tensor
    rows: torch.Tensor
    mean: torch.Tensor
    covariance: torch.Tensor
    covariance_with: torch.Tensor
    residual: torch.Tensor
    mean_change: torch.Tensor


def leave_one_out(regression: KernelRegression) -> LeftOutRecords:
    """Leave every record out in turn and predict at its own input, for the price of one triangular inverse."""
    _, precision, leverage = _inverse_columns(regression)
    leverage = _not_negative(regression, leverage)
    residual = regression.weights / precision.unsqueeze(1)
    return LeftOutRecords(
        mean=regression.targets - residual,
        variance=leverage / precision,
        variance_with=regression.noise * leverage,
        residual=residual,
        mean_change=-leverage.unsqueeze(1) * residual,
        leverage=leverage,
    )


def leave_groups_out(regression: KernelRegression, groups: Sequence[Any]) -> list[LeftOutGroups]:
    """Leave every group out in turn; there is one result for each size of group, sizes ascending.

    `groups` holds index arrays of any sizes, which may overlap. A group of all records is left with the prior: mean 0
    and covariance K.
    """
    flat, sizes = _flatten(groups, len(regression.factor))
    rows = torch.from_numpy(flat).to(regression.factor.device)
    needed, position = torch.unique(rows, return_inverse=True)
    columns, _, leverage = _inverse_columns(regression, needed)
    leverage = _not_negative(regression, leverage)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    results = []
    for size in np.unique(sizes):
        place = torch.from_numpy(np.flatnonzero(sizes == size)).to(rows.device)
        index = torch.from_numpy(starts[sizes == size][:, None] + np.arange(size)).to(rows.device)
        at, members = position[index], rows[index]
        block = _blocks(regression, columns, at)
        root = torch.linalg.cholesky(block)
        residual = torch.cholesky_solve(regression.weights[members], root)
        hat = block.mul_(-regression.noise)
        hat.diagonal(dim1=1, dim2=2).copy_(leverage[at])
        without = torch.cholesky_solve(hat, root)
        results.append(
            LeftOutGroups(
                place=place,
                rows=members,
                mean=regression.targets[members] - residual,
                covariance=(without + without.mT) / 2,
                covariance_with=regression.noise * hat,
                residual=residual,
                mean_change=-hat @ residual,
            )
        )
    return results


def left_out_errors(regression: KernelRegression, members: Sequence[torch.Tensor] = ()) -> LeftOutErrors:
    """Leave out every record, or the groups whose row numbers `members` (B, s) gives by size; the factor is used up.

    LinAlgError where K has a direction below −σ²/2, which only rounding can give it.
    """
    columns, precision, leverage = _inverse_columns(regression, overwrite=True)
    if regression.noise * float(precision.max()) > 2.0:  # at most 1 of a kernel without negative directions
        raise torch.linalg.LinAlgError("the kernel has a direction below −σ²/2")
    error = regression.weights / precision.unsqueeze(1)
    for rows in members:
        for part in rows.split(max(1, GATHERED // rows.shape[1] ** 2)) if rows.shape[1] > 1 else ():
            root = torch.linalg.cholesky(_blocks(regression, columns, part))
            error[part] = torch.cholesky_solve(regression.weights[part], root)
    return LeftOutErrors(error, leverage.clamp_(0.0, 1.0))


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


def _inverse_columns(
    regression: KernelRegression, needed: torch.Tensor | None = None, *, overwrite: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return columns of L⁻¹ as rows (u, n), [P]_ii and the leverage 1 − σ²[P]_ii of the records `needed` (None: all).

    The leverage does not cancel where σ²p is near 1: p = 1/L_ii² + (the other squares of column i of L⁻¹) and
    L_ii² = σ² + s, s = K_ii − (the other squares of row i of L), so 1 − σ²p = s/L_ii² − σ²(others), exact to rounding
    of K_ii rather than of σ² + K_ii.
    """
    factor, noise = regression.factor, regression.noise
    n = len(factor)
    rows = torch.arange(n, device=factor.device) if needed is None else needed
    explained = _row_squares(factor)[rows]
    each = torch.arange(len(rows), device=factor.device)
    if 3 * len(rows) < n:
        unit = torch.zeros(n, len(rows), dtype=factor.dtype, device=factor.device)
        unit[rows, each] = 1.0
        columns = torch.linalg.solve_triangular(factor, unit, upper=False).T
    else:
        work = factor if overwrite else factor.clone()
        invert_lower_(work)
        columns = work.T if len(rows) == n else work[:, rows].T
    on_diagonal = columns[each, rows]
    columns[each, rows] = 0.0
    others = torch.linalg.vector_norm(columns, dim=1).square_()
    columns[each, rows] = on_diagonal
    squared = on_diagonal.square()
    precision = squared + others
    kept = noise * precision
    leverage = torch.where(kept > 0.5, (regression.diagonal[rows] - explained) * squared - noise * others, 1.0 - kept)
    if regression.constant is not None:
        free = regression.constant[rows].square()
        precision, leverage = precision - free, leverage + noise * free
    return columns, precision, leverage


def _row_squares(lower: torch.Tensor) -> torch.Tensor:
    """Sum L_ij² over j < i by strips of columns: factors come in column order, where rows are slow to walk."""
    total = lower.new_zeros(len(lower))
    for j in range(0, len(lower), STRIP):
        square = lower[j:, j : j + STRIP].square()
        square.diagonal().zero_()
        total[j:] += square.sum(1)
    return total


def _not_negative(regression: KernelRegression, leverage: torch.Tensor) -> torch.Tensor:
    lowest = float(leverage.min())
    if lowest < -NEGATIVE and lowest < -10 * len(regression.factor) * EPS * regression.condition:
        got = f"a negative posterior variance (leverage {lowest:.1e})"
        remedy = "use a kernel that is positive semi-definite"
        raise fail("kernel", "a positive semi-definite kernel", got, remedy)
    return leverage.clamp_(0.0, 1.0)


def _blocks(regression: KernelRegression, columns: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return P_SS (G, s, s) for groups at rows `at` (G, s) of the columns of L⁻¹."""
    groups, size = at.shape
    block = columns.new_empty(groups, size, size)
    step = max(1, GATHERED // (size * columns.shape[1]))
    for i in range(0, groups, step):
        part = columns[at[i : i + step]]
        torch.bmm(part, part.mT, out=block[i : i + step])
    if regression.constant is not None:
        free = regression.constant[at]
        block -= free.unsqueeze(2) * free.unsqueeze(1)
    return block


def _flatten(groups: Sequence[Any], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all groups' rows one after the other, and their sizes."""
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


def _growth(start: torch.Tensor, apply: Callable[[torch.Tensor], torch.Tensor]) -> float:
    v = start
    for _ in range(POWERS):
        v = apply(v / v.norm(dim=0))
    growth = float(v.norm(dim=0).max())
    return growth if math.isfinite(growth) else math.inf
