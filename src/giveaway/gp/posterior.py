"""Gaussian-process regression: the posterior at any query, with all records and without some of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, check_shape, fail
from giveaway.gp.kernels import KernelLike, check_positive, diagonal_of, kernel_matrix
from giveaway.gp.leave_one_out import EPS, KernelRegression, check_rows, kernel_regression

SYMMETRIC = 1e-8  # largest |K − Kᵀ| of a given matrix, relative to its largest entry
QUERIES_TOGETHER = 256  # queries in one kernel call for the blocks K(Q_r, Q_r)


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
        q = self.as_queries(queries)
        prior = diagonal_of(self.kernel, q).to(torch.float64)
        return (prior - self.whiten(self.cross(q)).square().sum(0)).clamp_min(0.0)

    def covariance(self, queries: torch.Tensor) -> torch.Tensor:
        """Return K(Q, Q) − K(Q, X) M⁻¹ K(X, Q) of the latent f, without the noise, (q, q)."""
        q = self.as_queries(queries)
        reduced = self.whiten(self.cross(q))
        return self.kernel(q, q).to(torch.float64) - reduced.T @ reduced

    def covariances(self, queries: torch.Tensor, cross: torch.Tensor) -> torch.Tensor:
        """Return the covariances (p, q, q) of queries (p, q, …) whose `cross` is (p, q, n)."""
        reduced = self.whiten(cross.flatten(0, 1)).T.reshape(cross.shape)
        return self._prior_blocks(queries) - reduced @ reduced.mT

    def cross(self, queries: torch.Tensor) -> torch.Tensor:
        """Return K(Q, X), (q, n), for queries that `as_queries` returned."""
        return self.kernel(queries, self.inputs).to(torch.float64)

    def whiten(self, cross: torch.Tensor) -> torch.Tensor:
        """Return L⁻¹K(X, Q), (n, q): its products are what the records take off the prior covariance."""
        return torch.linalg.solve_triangular(self.factor, cross.T, upper=False)

    def as_queries(self, queries: torch.Tensor) -> torch.Tensor:
        """Bring `queries` to the inputs' number type and device, and keep their gradient."""
        tensor = queries if isinstance(queries, torch.Tensor) else as_tensor("queries", queries)
        shape = tuple(self.inputs.shape[1:])
        if tensor.ndim != self.inputs.ndim or tuple(tensor.shape[1:]) != shape:
            text = ", ".join(["q", *map(str, shape)])
            raise fail("queries", f"shape ({text})", f"shape {tuple(tensor.shape)}", "give one query a row")
        return tensor.to(self.inputs)

    def _prior_blocks(self, queries: torch.Tensor) -> torch.Tensor:
        """Evaluate K(Q_p, Q_p), (p, q, q)."""
        count, q = queries.shape[:2]
        if q == 1:
            return diagonal_of(self.kernel, queries.flatten(0, 1)).to(torch.float64).view(count, 1, 1)
        blocks = []
        for part in queries.split(max(1, QUERIES_TOGETHER // q)):
            flat = part.flatten(0, 1)
            square = self.kernel(flat, flat).to(torch.float64).view(len(part), q, len(part), q)
            blocks.append(square.diagonal(dim1=0, dim2=2).permute(2, 0, 1))
        return torch.cat(blocks)


def fit(
    kernel: KernelLike, inputs: Any, targets: Any, noise: float, *, matrix: torch.Tensor | None = None
) -> Posterior:
    """Compute the posterior given inputs (n, …), targets (n,) or (n, C) and the noise variance σ² > 0.

    `matrix` (n, n) is K(inputs, inputs) where it is known already; it is left as it is. Repeated records are fine as
    long as σ² tells M from a singular matrix in float64; where it does not, this raises rather than return noise.
    """
    x = as_tensor("inputs", inputs).to(torch.float64)
    if x.ndim == 0 or len(x) == 0:
        raise fail("inputs", "at least one record", f"shape {tuple(x.shape)}", "give one record a row")
    check_finite("inputs", x)
    y = _targets(targets, x)
    sigma2 = check_noise(noise)
    m = kernel_matrix(kernel, x).to(torch.float64) if matrix is None else _checked_copy(matrix, x)
    check_finite("kernel" if matrix is None else "matrix", m)
    try:
        solved = kernel_regression(m, y, sigma2)
    except torch.linalg.LinAlgError as error:
        raise _not_positive(str(error)) from None
    del m
    posterior = Posterior(**vars(solved), kernel=kernel, inputs=x)
    cut = 1.0 / (len(x) * EPS)
    # trace / σ² bounds the condition number from above, for nothing; only where it is too large is an estimate needed
    if float(solved.diagonal.sum()) + len(x) * sigma2 > cut * sigma2 and not posterior.condition < cut:
        raise _not_positive(f"one singular in float64 (condition number about {posterior.condition:.1e})")
    return posterior


def check_noise(noise: Any) -> float:
    """Check a noise variance above 0."""
    return check_positive(
        "noise", noise, expected="a variance above 0", remedy="give the noise variance σ² of the targets"
    )


@dataclass(frozen=True, eq=False)
class RemovedRecords:
    """R removals of s records each, `rows` (R, s), from one posterior, seen from any query in O(n) each.

    With S the rows, U = M⁻¹[:, S], A = M⁻¹[S, S] and T = K(Q, X) U at the queries Q,

        mean without − mean with = −K(Q, X) · U A⁻¹ w_S,   covariance without = covariance with + T A⁻¹ Tᵀ.

    `columns` (R, n, s) is U, `root` (R, s, s) has root rootᵀ = A⁻¹, `step` (R, n, C) is U A⁻¹ w_S. Queries are
    (R, q, …), q for each removal, or (1, q, …) for all of them alike; every method is differentiable in them.
    """

    posterior: Posterior
    rows: torch.Tensor
    columns: torch.Tensor
    root: torch.Tensor
    step: torch.Tensor

    @property
    def inputs(self) -> torch.Tensor:
        return self.posterior.inputs

    def mean_change(self, queries: torch.Tensor) -> torch.Tensor:
        """Return mean without − mean with, (R, q, C), in O(n) a query."""
        return -self._cross(self._as_queries(queries)) @ self.step

    def covariances(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the latent covariances (without, with), each (R, q, q)."""
        _, excess, with_ = self.change(queries)
        return with_ + excess @ excess.mT, with_.expand(len(self.rows), -1, -1)

    def change(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the mean change (R, q, C), E (R, q, s), and the covariance with the records (R or 1, q, q).

        E Eᵀ is the covariance without them minus that with them. Divergences are taken from E: the difference of the
        two covariances would cancel.
        """
        q = self._as_queries(queries)
        cross = self._cross(q)
        return -cross @ self.step, cross @ (self.columns @ self.root), self.posterior.covariances(q, cross)

    def _cross(self, queries: torch.Tensor) -> torch.Tensor:
        return self.posterior.cross(queries.flatten(0, 1)).view(*queries.shape[:2], -1)

    def _as_queries(self, queries: torch.Tensor) -> torch.Tensor:
        tensor = queries if isinstance(queries, torch.Tensor) else as_tensor("queries", queries)
        shape, count = tuple(self.inputs.shape[1:]), len(self.rows)
        fits = tensor.ndim == self.inputs.ndim + 1 and tuple(tensor.shape[2:]) == shape and len(tensor) in (1, count)
        if not fits or tensor.shape[1] == 0:
            text = ", ".join([f"{count} or 1", "q", *map(str, shape)])
            raise fail("queries", f"shape ({text})", f"shape {tuple(tensor.shape)}", "give q queries a removal")
        return tensor.to(self.inputs)


def remove(posterior: Posterior, rows: Any) -> RemovedRecords:
    """Prepare R removals of the records `rows` (R, s), or of single records `rows` (R,): 2n² operations a record."""
    n = len(posterior.factor)
    index = removal_rows(rows, n).to(posterior.factor.device)
    count, size = index.shape
    unit = posterior.factor.new_zeros(n, count * size)
    unit[index.flatten(), torch.arange(count * size, device=unit.device)] = 1.0
    columns = torch.cholesky_solve(unit, posterior.factor).view(n, count, size).transpose(0, 1)
    block = columns.gather(1, index.unsqueeze(2).expand(-1, -1, size))
    factor = torch.linalg.cholesky((block + block.mT) / 2)
    identity = torch.eye(size, dtype=factor.dtype, device=factor.device).expand_as(factor)
    root = torch.linalg.solve_triangular(factor, identity, upper=False).mT
    step = columns @ (root @ (root.mT @ posterior.weights[index]))
    return RemovedRecords(posterior, index, columns, root, step)


def removal_rows(rows: Any, n: int) -> torch.Tensor:
    """Check row numbers (R, s) or (R,) of n records, and return them as (R, s)."""
    index = as_tensor("rows", rows)
    if index.is_floating_point() or index.dtype == torch.bool:
        raise fail("rows", "row numbers", f"dtype {index.dtype}", "give the rows as integers")
    if index.ndim == 1:
        index = index.unsqueeze(1)
    if index.ndim != 2 or index.numel() == 0:
        raise fail("rows", "shape (R, s) or (R,), not empty", f"shape {tuple(index.shape)}", "give s rows a removal")
    check_rows("rows", index.flatten().cpu().numpy(), np.repeat(np.arange(len(index)), index.shape[1]), n)
    return index.to(torch.int64)


def _not_positive(got: str) -> Exception:
    remedy = "raise noise, drop repeated records, or use a kernel that is positive semi-definite"
    return fail("kernel", "a positive definite K + noise·I", got, remedy)


def _targets(targets: Any, x: torch.Tensor) -> torch.Tensor:
    y = as_tensor("targets", targets).to(x)
    if y.ndim == 1:
        y = y.unsqueeze(1)
    check_shape("targets", y, (len(x), None), f"({len(x)},) or ({len(x)}, outputs)")
    if y.shape[1] == 0:
        raise fail("targets", "at least one output", f"shape {tuple(y.shape)}", "give one column an output")
    check_finite("targets", y)
    return y


def _checked_copy(matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    given = as_tensor("matrix", matrix)
    n = len(x)
    check_shape("matrix", given, (n, n), f"({n}, {n}), the kernel between all records")
    m = torch.empty(n, n, dtype=torch.float64, device=x.device).copy_(given)
    # (K − Kᵀ)v for random signs v: two passes along memory, where comparing entries would go across it
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (n,), generator=generator).mul_(2).sub_(1).to(m)
    gap, largest = float((m @ signs - m.T @ signs).abs().max()), float(torch.stack(m.aminmax()).abs().max())
    if gap > SYMMETRIC * largest:
        raise fail("matrix", "a symmetric matrix", f"entries {gap:.1e} off their mirror image", "give (K + K.T) / 2")
    return m
