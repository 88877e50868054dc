"""Regression under a kernel from one Cholesky factorization, with and without some records (docs/derivations.md)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, check_positive, fail
from giveaway.gp.kernels import KernelLike, diagonal_of, kernel_matrix
from giveaway.linalg.dense import cholesky_in_place, invert_lower_
from giveaway.text import OnStage, quiet

EPS = torch.finfo(torch.float64).eps
PROBES, POWERS = 4, 8  # of the estimate of the condition number
STRIP = 64  # rows or columns walked over at a time: memory that is used again, no new pages
GATHERED = 1 << 24  # numbers gathered at a time for the blocks of groups
NEGATIVE = 1e-8  # a leverage below −this is more than rounding wherever M is well conditioned
QUERIES_TOGETHER = 256  # queries in one kernel call for the blocks K(Q_r, Q_r)


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
        estimate = 1.0
        for apply in (lambda v: self.factor @ (self.factor.T @ v), lambda v: torch.cholesky_solve(v, self.factor)):
            v = start
            for _ in range(POWERS):
                v = apply(v / v.norm(dim=0))
            estimate *= float(v.norm(dim=0).max())
        return estimate if math.isfinite(estimate) else math.inf


def kernel_regression(
    matrix: torch.Tensor, targets: torch.Tensor, noise: float, *, constant: bool = False, overwrite: bool = False
) -> KernelRegression:
    """Factor K + noise·I; only the lower half of `matrix` is read. LinAlgError where it is not positive definite. With
    `overwrite` the factor takes the place of a matrix in column order, without zeros above: for `left_out_errors`."""
    diagonal = matrix.diagonal().clone()
    factor = matrix if overwrite else matrix.mT.clone(memory_format=torch.contiguous_format).mT
    factor.diagonal().add_(noise)
    if (stopped := cholesky_in_place(factor, clean=not overwrite)) != 0:
        raise torch.linalg.LinAlgError(f"a matrix whose Cholesky factorization stops at record {stopped - 1}")
    right = torch.cat([targets, torch.ones_like(targets[:, :1])], dim=1) if constant else targets
    # unlike cholesky_solve, this makes no copy of the factor
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    weights = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    if not constant:
        return KernelRegression(targets, noise, factor, weights, diagonal)
    weights, ones = weights[:, :-1], weights[:, -1]
    shift = ones / ones.sum().sqrt()
    return KernelRegression(targets, noise, factor, weights - torch.outer(shift, shift @ targets), diagonal, shift)


@dataclass(frozen=True, eq=False, kw_only=True)
class Posterior(KernelRegression):
    """f | y for y = f(inputs) + N(0, noise·I), f ~ GP(0, kernel) a priori; C outputs are independent and share K.

    All float64, on the device of the inputs. Every method is differentiable in the queries (q, …), which have the
    inputs' shape after the first axis.
    """

    kernel: KernelLike
    inputs: torch.Tensor

    def mean(self, queries: torch.Tensor) -> torch.Tensor:
        """Return K(Q, X) M⁻¹y, (q, C)."""
        return self.cross(self.as_queries(queries)) @ self.weights

    def variance(self, queries: torch.Tensor) -> torch.Tensor:
        """Return the diagonal of `covariance`, (q,), in O(n²) a query."""
        each = self.as_queries(queries).unsqueeze(1)
        return self.covariances(each, self.cross(each[:, 0]).unsqueeze(1)).flatten().clamp_min(0.0)

    def covariance(self, queries: torch.Tensor) -> torch.Tensor:
        """Return K(Q, Q) − K(Q, X) M⁻¹ K(X, Q) of the latent f, without the noise, (q, q)."""
        q = self.as_queries(queries)
        return self.covariances(q.unsqueeze(0), self.cross(q).unsqueeze(0))[0]

    def covariances(self, queries: torch.Tensor, cross: torch.Tensor) -> torch.Tensor:
        """Return the covariances (p, q, q) of queries (p, q, …) whose `cross` is (p, q, n)."""
        count, q = queries.shape[:2]
        if q == 1:
            prior = diagonal_of(self.kernel, queries.flatten(0, 1)).view(count, 1, 1)
        else:
            blocks = []
            for some in queries.split(max(1, QUERIES_TOGETHER // q)):
                flat = some.flatten(0, 1)
                square = self.kernel(flat, flat).view(len(some), q, len(some), q)
                blocks.append(square.diagonal(dim1=0, dim2=2).permute(2, 0, 1))
            prior = torch.cat(blocks)
        # the products of L⁻¹K(X, Q) are what the records take off the prior covariance
        reduced = torch.linalg.solve_triangular(self.factor, cross.flatten(0, 1).T, upper=False).T.reshape(cross.shape)
        return prior.to(torch.float64) - reduced @ reduced.mT

    def cross(self, queries: torch.Tensor) -> torch.Tensor:
        """Return K(Q, X), (q, n), for queries that `as_queries` returned."""
        return self.kernel(queries, self.inputs).to(torch.float64)

    def as_queries(self, queries: Any, removals: int | None = None) -> torch.Tensor:
        """Bring queries (q, …), or (R or 1, q, …) for R `removals`, to the inputs' type and device."""
        tensor = queries if isinstance(queries, torch.Tensor) else as_tensor("queries", queries)
        record, leading = tuple(self.inputs.shape[1:]), tensor.ndim - self.inputs.ndim + 1
        names, fits, remedy = ["q"], leading == 1, "give one query a row"
        if removals is not None:
            names, remedy = [f"{removals} or 1", "q"], "give q queries a removal"
            fits = leading == 2 and len(tensor) in (1, removals) and tensor.shape[1] > 0
        if not fits or tuple(tensor.shape[leading:]) != record:
            text = ", ".join([*names, *map(str, record)])
            raise fail("queries", f"shape ({text})", f"shape {tuple(tensor.shape)}", remedy)
        return tensor.to(self.inputs)


def fit(kernel: KernelLike, inputs: Any, targets: Any, noise: float, on_stage: OnStage = quiet) -> Posterior:
    """Compute the posterior given inputs (n, …), targets (n,) or (n, C) and the noise variance σ² > 0.

    Repeated records are fine as long as σ² tells M from a singular matrix in float64; where it does not, this raises
    rather than return noise.
    """
    x, sigma2 = as_records(inputs), check_noise(noise)
    n = len(x)
    y = as_tensor("targets", targets).to(x)
    y = y.unsqueeze(1) if y.ndim == 1 else y
    if y.ndim != 2 or len(y) != n or y.shape[1] == 0:
        expected = f"shape ({n},) or ({n}, outputs)"
        raise fail("targets", expected, f"shape {tuple(y.shape)}", "align it with the other arrays")
    check_finite("targets", y)
    m = kernel_matrix(kernel, x, on_stage).to(torch.float64)
    check_finite("kernel", m)
    expected = "a positive definite K + noise·I"
    remedy = "raise noise, drop repeated records, or use a kernel that is positive semi-definite"
    on_stage("Gaussian process, factoring the kernel", 0, 1)
    try:
        solved = kernel_regression(m, y, sigma2)
    except torch.linalg.LinAlgError as error:
        raise fail("kernel", expected, str(error), remedy) from None
    del m
    posterior = Posterior(**vars(solved), kernel=kernel, inputs=x)
    cut = 1.0 / (n * EPS)
    # trace / σ² bounds the condition number from above, for nothing; only where it is too large is an estimate needed
    if float(solved.diagonal.sum()) + n * sigma2 > cut * sigma2 and not posterior.condition < cut:
        got = f"one singular in float64 (condition number about {posterior.condition:.1e})"
        raise fail("kernel", expected, got, remedy)
    return posterior


def as_records(inputs: Any, device: str | torch.device | None = None) -> torch.Tensor:
    """Return inputs (n, …), n ≥ 1, in float64."""
    x = as_tensor("inputs", inputs).to(device=device, dtype=torch.float64)
    if x.ndim < 2 or len(x) == 0:
        raise fail("inputs", "records as (n, …)", f"shape {tuple(x.shape)}", "give one record a row")
    check_finite("inputs", x)
    return x


def check_noise(noise: Any) -> float:
    remedy = "give the noise variance σ² of the targets"
    return check_positive("noise", noise, expected="a variance above 0", remedy=remedy)


class LeftOutErrors(NamedTuple):
    """y minus what the other records predict (n, C), and leverages (n,)."""

    error: torch.Tensor
    leverage: torch.Tensor


@dataclass(frozen=True, eq=False)
class LeftOutRecords:
    """Each record's own latent prediction, noise not included: the `mean` and `variance` are without the record,
    `residual` is y − mean and `mean_change` mean − mean_with."""

    mean: torch.Tensor
    variance: torch.Tensor
    variance_with: torch.Tensor
    residual: torch.Tensor
    mean_change: torch.Tensor
    leverage: torch.Tensor


@dataclass(frozen=True, eq=False)
class LeftOutGroups:
    """LeftOutRecords for groups `rows` (G, s) of one size, which stood at `place` (G,) in the list that was given."""

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
    """Leave every group of row numbers out in turn, one result a size; without all records the prior is left."""
    arrays = [as_tensor("groups", group).cpu().numpy().reshape(-1) for group in groups]
    sizes = np.array([len(array) for array in arrays], dtype=np.int64)
    if len(arrays) == 0 or bool((sizes == 0).any()):
        raise fail("groups", "at least one group, none of them empty", f"{len(arrays)} groups", "drop the empty ones")
    rows = check_rows("groups", np.concatenate(arrays), sizes, len(regression.factor)).to(regression.factor.device)
    needed, position = torch.unique(rows, return_inverse=True)
    columns, _, leverage = _inverse_columns(regression, needed)
    starts = np.cumsum(sizes) - sizes
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
        mean, covariance = regression.targets[members] - residual, (without + without.mT) / 2
        with_ = regression.noise * hat
        results.append(LeftOutGroups(place, members, mean, covariance, with_, residual, -hat @ residual))
    return results


def left_out_errors(
    regression: KernelRegression, members: Sequence[torch.Tensor] = (), *, single: bool = False
) -> LeftOutErrors:
    """Leave out every record, or the groups `members` (B, s) by size; the factor is used up.

    `single` inverts the factor in single precision, twice as fast: its error grows with the root of M's condition
    number, that of a K from distances of single precision with the number itself. Groups, where copies cancel, need
    more.
    """
    assert not (single and members)
    columns, precision, leverage = _inverse_columns(regression, used_up=True, single=single)
    error = regression.weights / precision.unsqueeze(1)
    for rows in members:
        for part in rows.split(max(1, GATHERED // rows.shape[1] ** 2)) if rows.shape[1] > 1 else ():
            root = torch.linalg.cholesky(_blocks(regression, columns, part))
            error[part] = torch.cholesky_solve(regression.weights[part], root)
    return LeftOutErrors(error, leverage)


def _triangle(matrix: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a lower triangle in column order with zeros above it, in its own memory, as which numbers one wants."""
    wide = matrix.T
    rows = wide.view(dtype).view(-1)[: wide.numel()].view_as(wide)
    for first in range(0, len(wide), STRIP):  # what is written lies before what is still to be read
        part = wide[first : first + STRIP, first:].triu().to(dtype)
        rows[first : first + STRIP, :first] = 0.0
        rows[first : first + STRIP, first:] = part
    return rows.T


def _inverse_columns(
    regression: KernelRegression, needed: torch.Tensor | None = None, *, used_up: bool = False, single: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return columns of L⁻¹ as rows (u, n), [P]_ii and leverages 1 − σ²[P]_ii of the records `needed` (None: all). A
    factor that is used up is inverted in its own memory."""
    factor, noise = regression.factor, regression.noise
    n = len(factor)
    rows = torch.arange(n, device=factor.device) if needed is None else needed
    explained = factor.new_zeros(n)
    for j in range(0, n, STRIP):  # by strips of columns: factors come in column order, where rows are slow to walk
        explained[j:] += factor[j:, j : j + STRIP].tril(-1).square_().sum(1)
    squared = factor.diagonal()[rows].reciprocal().square()
    if 3 * len(rows) < n:
        unit = torch.zeros(n, len(rows), dtype=factor.dtype, device=factor.device)
        unit[rows, torch.arange(len(rows), device=factor.device)] = 1.0
        columns = torch.linalg.solve_triangular(factor, unit, upper=False).T
    else:
        work = _triangle(factor, torch.float32 if single else factor.dtype) if used_up else factor.clone()
        invert_lower_(work)
        columns = work.T if len(rows) == n else work[:, rows].T
    others = torch.empty_like(squared)
    for at in torch.arange(len(rows), device=factor.device).split(STRIP):
        squares = columns[at].to(torch.float64).square_()
        squares[at - at[0], rows[at]] = 0.0
        others[at] = squares.sum(1)
    precision = squared + others
    kept, left = noise * precision, regression.diagonal[rows] - explained[rows]
    leverage = torch.where(kept > 0.5, left * squared - noise * others, 1.0 - kept)
    if regression.constant is not None:
        free = regression.constant[rows].square()
        precision, leverage = precision - free, leverage + noise * free
    lowest = 0.0 if used_up else float(leverage.min())
    if lowest < -NEGATIVE and lowest < -10 * n * EPS * regression.condition:
        got = f"a negative posterior variance (leverage {lowest:.1e})"
        raise fail("kernel", "a positive semi-definite kernel", got, "use a kernel that is positive semi-definite")
    return columns, precision, leverage.clamp_(0.0, 1.0)


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


def check_rows(argument: str, rows: np.ndarray, sizes: Any, n: int) -> torch.Tensor:
    """Refuse rows (N,), groups of `sizes` one after the other, outside 0 … n − 1 or twice in one group."""
    if rows.dtype.kind not in "iu":
        raise fail(argument, "row numbers", f"dtype {rows.dtype}", "give the rows as integers")
    outside = rows[(rows < 0) | (rows >= n)]
    if len(outside):
        raise fail(argument, f"rows from 0 to {n - 1}", f"row {int(outside[0])}", "count the records from 0")
    rows = rows.astype(np.int64)
    place = np.sort(np.repeat(np.arange(len(sizes)), sizes) * n + rows)
    repeated = place[1:][place[1:] == place[:-1]]
    if len(repeated):
        got = f"row {repeated[0] % n} twice in group {repeated[0] // n}"
        raise fail(argument, "each record once a group", got, "drop the repeated row")
    return torch.from_numpy(rows)
