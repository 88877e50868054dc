"""Gaussian-process regression from one Cholesky factorization: posterior mean and covariance at any query."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from giveaway.checks import as_tensor, check_finite, check_number, check_shape, fail
from giveaway.gp.kernels import diagonal_of, kernel_matrix

EPS = torch.finfo(torch.float64).eps
SYMMETRIC = 1e-8  # largest |K − Kᵀ| of a given matrix, relative to its largest entry
PROBES, POWERS = 4, 8  # of the estimate of the condition number


@dataclass(frozen=True, eq=False)
class Posterior:
    """f | y for y = f(inputs) + N(0, noise·I), f ~ GP(0, kernel) a priori; C outputs are independent and share K.

    With M = K + noise·I over the n records: `factor` (n, n) is its lower Cholesky factor, `weights` (n, C) are M⁻¹y,
    `diagonal` (n,) is that of K. All float64, on the device of the inputs. Every method is differentiable in the
    queries (q, …), which have the inputs' shape after the first axis.
    """

    kernel: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    inputs: torch.Tensor
    targets: torch.Tensor
    noise: float
    factor: torch.Tensor
    weights: torch.Tensor
    diagonal: torch.Tensor

    def mean(self, queries: torch.Tensor) -> torch.Tensor:
        """K(Q, X) M⁻¹y, (q, C)."""
        return self.cross(self.as_queries(queries)) @ self.weights

    def variance(self, queries: torch.Tensor) -> torch.Tensor:
        """The diagonal of `covariance`, (q,), in O(n²) a query."""
        q = self.as_queries(queries)
        prior = diagonal_of(self.kernel, q).to(torch.float64)
        return (prior - self.whiten(self.cross(q)).square().sum(0)).clamp_min(0.0)

    def covariance(self, queries: torch.Tensor) -> torch.Tensor:
        """K(Q, Q) − K(Q, X) M⁻¹ K(X, Q) of the latent f, without the noise, (q, q)."""
        q = self.as_queries(queries)
        reduced = self.whiten(self.cross(q))
        return self.kernel(q, q).to(torch.float64) - reduced.T @ reduced

    def cross(self, queries: torch.Tensor) -> torch.Tensor:
        """K(Q, X), (q, n), for queries that `as_queries` returned."""
        return self.kernel(queries, self.inputs).to(torch.float64)

    def whiten(self, cross: torch.Tensor) -> torch.Tensor:
        """L⁻¹K(X, Q), (n, q): its products are what the records take off the prior covariance."""
        return torch.linalg.solve_triangular(self.factor, cross.T, upper=False)

    def as_queries(self, queries: torch.Tensor) -> torch.Tensor:
        """`queries` in the inputs' number type and on their device, gradient kept."""
        tensor = queries if isinstance(queries, torch.Tensor) else as_tensor("queries", queries)
        own = tuple(self.inputs.shape[1:])
        if tensor.ndim != self.inputs.ndim or tuple(tensor.shape[1:]) != own:
            text = ", ".join(["q", *map(str, own)])
            raise fail("queries", f"shape ({text})", f"shape {tuple(tensor.shape)}", "give one query a row")
        return tensor.to(self.inputs)

    @cached_property
    def condition(self) -> float:
        """Estimate of the condition number of M by power iterations on M and M⁻¹: from below, and close in practice."""
        n = len(self.factor)
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(n, PROBES, generator=generator, dtype=torch.float64).to(self.factor.device)
        largest = _growth(start, lambda v: self.factor @ (self.factor.T @ v))
        return largest * _growth(start, lambda v: torch.cholesky_solve(v, self.factor))


def fit(
    kernel: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    inputs: Any,
    targets: Any,
    noise: float,
    *,
    matrix: torch.Tensor | None = None,
) -> Posterior:
    """The posterior given inputs (n, …), targets (n,) or (n, C) and the noise variance σ² > 0.

    `matrix` (n, n) is K(inputs, inputs) where it is known already; it is left as it is. Repeated records are fine as
    long as σ² tells M from a singular matrix in float64; where it does not, this raises rather than return noise.
    """
    x = as_tensor("inputs", inputs).to(torch.float64)
    if x.ndim == 0 or len(x) == 0:
        raise fail("inputs", "at least one record", f"shape {tuple(x.shape)}", "give one record a row")
    check_finite("inputs", x)
    y = _targets(targets, x)
    sigma2 = check_number("noise", noise, minimum=0.0, remedy="give the noise variance σ² of the targets")
    if sigma2 == 0.0:
        raise fail("noise", "a variance above 0", "0", "give the noise variance σ² of the targets")
    m = kernel_matrix(kernel, x).to(torch.float64) if matrix is None else _own_copy(matrix, x)
    check_finite("kernel" if matrix is None else "matrix", m)
    diagonal = m.diagonal().clone()
    m.diagonal().add_(sigma2)
    trace = float(m.diagonal().sum())
    factor, info = torch.linalg.cholesky_ex(m)
    del m
    if int(info) != 0:
        raise _not_positive(f"a matrix whose Cholesky factorization stops at record {int(info) - 1}")
    # unlike cholesky_solve, this makes no copy of the factor
    half = torch.linalg.solve_triangular(factor, y, upper=False)
    weights = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    posterior = Posterior(kernel, x, y, sigma2, factor, weights, diagonal)
    cut = 1.0 / (len(x) * EPS)
    # trace / σ² bounds the condition number from above, for nothing; only where it is too large is an estimate needed
    if trace > cut * sigma2 and not posterior.condition < cut:
        raise _not_positive(f"one singular in float64 (condition number about {posterior.condition:.1e})")
    return posterior


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


def _own_copy(matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
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


def _growth(start: torch.Tensor, apply: Callable[[torch.Tensor], torch.Tensor]) -> float:
    v = start
    for _ in range(POWERS):
        v = apply(v / v.norm(dim=0))
    growth = float(v.norm(dim=0).max())
    return growth if math.isfinite(growth) else math.inf
