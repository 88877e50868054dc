"""Records taken out of a posterior, seen from any query: a rank-s change, found once, that then costs O(n) a query.

For rows S of s records, U = M⁻¹[:, S] and A = M⁻¹[S, S], with T = K(Q, X) U at the queries Q:
    mean without − mean with = −K(Q, X) · U A⁻¹ w_S,   covariance without = covariance with + T A⁻¹ Tᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, fail
from giveaway.gp.kernels import diagonal_of
from giveaway.gp.leave_one_out import check_rows
from giveaway.gp.posterior import Posterior

TOGETHER = 256  # queries in one kernel call for the blocks K(Q_r, Q_r)


@dataclass(frozen=True, eq=False)
class Removal:
    """R removals of s records each, `rows` (R, s), from one posterior.

    `columns` (R, n, s) is U, `root` (R, s, s) has root rootᵀ = A⁻¹, `step` (R, n, C) is U A⁻¹ w_S. Queries are
    (R, q, …), q for each removal, or (1, q, …) for all of them alike; every method is differentiable in them.
    """

    posterior: Posterior
    rows: torch.Tensor
    columns: torch.Tensor
    root: torch.Tensor
    step: torch.Tensor

    def mean_change(self, queries: torch.Tensor) -> torch.Tensor:
        """Mean without − mean with, (R, q, C), in O(n) a query."""
        return -self._cross(self._as_queries(queries)) @ self.step

    def covariances(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Latent covariances (without, with), each (R, q, q)."""
        _, excess, with_ = self.change(queries)
        return with_ + excess @ excess.mT, with_.expand(len(self.rows), -1, -1)

    def change(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean change (R, q, C), E (R, q, s) with E Eᵀ = covariance without − with, and covariance with (R or 1, q, q).

        E is what the divergences are taken from: the difference of the two covariances would cancel.
        """
        q = self._as_queries(queries)
        cross = self._cross(q)
        reduced = self.posterior.whiten(cross.flatten(0, 1)).T.reshape(cross.shape)
        with_ = self._prior(q) - reduced @ reduced.mT
        return -cross @ self.step, cross @ (self.columns @ self.root), with_

    def _cross(self, queries: torch.Tensor) -> torch.Tensor:
        return self.posterior.cross(queries.flatten(0, 1)).view(*queries.shape[:2], -1)

    def _prior(self, queries: torch.Tensor) -> torch.Tensor:
        """K(Q_r, Q_r) of every removal."""
        kernel = self.posterior.kernel
        count, q = queries.shape[:2]
        if q == 1:
            return diagonal_of(kernel, queries.flatten(0, 1)).to(torch.float64).view(count, 1, 1)
        blocks = []
        for part in queries.split(max(1, TOGETHER // q)):
            flat = part.flatten(0, 1)
            square = kernel(flat, flat).to(torch.float64).view(len(part), q, len(part), q)
            blocks.append(square.diagonal(dim1=0, dim2=2).permute(2, 0, 1))
        return torch.cat(blocks)

    def _as_queries(self, queries: torch.Tensor) -> torch.Tensor:
        inputs = self.posterior.inputs
        tensor = queries if isinstance(queries, torch.Tensor) else as_tensor("queries", queries)
        own, count = tuple(inputs.shape[1:]), len(self.rows)
        fits = tensor.ndim == inputs.ndim + 1 and tuple(tensor.shape[2:]) == own and len(tensor) in (1, count)
        if not fits or tensor.shape[1] == 0:
            text = ", ".join([f"{count} or 1", "q", *map(str, own)])
            raise fail("queries", f"shape ({text})", f"shape {tuple(tensor.shape)}", "give q queries a removal")
        return tensor.to(inputs)


def remove(posterior: Posterior, rows: Any) -> Removal:
    """Prepare R removals of the records `rows` (R, s), or of single records `rows` (R,): 2n² operations a record."""
    n = len(posterior.factor)
    index = as_tensor("rows", rows)
    if index.is_floating_point() or index.dtype == torch.bool:
        raise fail("rows", "row numbers", f"dtype {index.dtype}", "give the rows as integers")
    if index.ndim == 1:
        index = index.unsqueeze(1)
    if index.ndim != 2 or index.numel() == 0:
        raise fail("rows", "shape (R, s) or (R,), not empty", f"shape {tuple(index.shape)}", "give s rows a removal")
    index = index.to(posterior.factor.device, torch.int64)
    count, size = index.shape
    check_rows("rows", index.flatten().cpu().numpy(), np.repeat(np.arange(count), size), n)
    unit = posterior.factor.new_zeros(n, count * size)
    unit[index.flatten(), torch.arange(count * size, device=unit.device)] = 1.0
    columns = torch.cholesky_solve(unit, posterior.factor).view(n, count, size).transpose(0, 1)
    block = columns.gather(1, index.unsqueeze(2).expand(-1, -1, size))
    factor = torch.linalg.cholesky((block + block.mT) / 2)
    identity = torch.eye(size, dtype=factor.dtype, device=factor.device).expand_as(factor)
    root = torch.linalg.solve_triangular(factor, identity, upper=False).mT
    step = columns @ (root @ (root.mT @ posterior.weights[index]))
    return Removal(posterior, index, columns, root, step)
