"""Inputs normalized by the statistics of the very records that the posterior is fitted on.

Each channel is centred and scaled by its mean and standard deviation over the training records, and a query goes
through the normalization of the model that answers it. Without a record the statistics are others, so that the two
data sets differ in all records, and a query other than the record can tell more than the record itself: f(S) is no
longer sufficient, KL(Q) ≤ KL(S) no longer holds. Nor is there a rank-one update: each removal is fitted anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.checks import as_tensor, fail
from giveaway.gp.divergence import gaussian_kl, mean_distance
from giveaway.gp.kernels import KernelLike, Mapped
from giveaway.gp.posterior import Posterior, fit
from giveaway.gp.query import KEPT_FOR_GRADIENT, Objective, near_singular
from giveaway.gp.removal import TOGETHER


class Normalized(Mapped):
    """The kernel of records (x − mean)/deviation channel by channel, both from `records` (n, c) or (n, c, …).

    The channels are the first axis of a record; a channel that does not vary is centred only.
    """

    def __init__(self, kernel: KernelLike, records: torch.Tensor) -> None:
        if records.ndim < 2 or len(records) == 0:
            raise fail("records", "records as (n, channels, …)", f"shape {tuple(records.shape)}", "give some records")
        self.kernel = kernel
        others = [axis for axis in range(records.ndim) if axis != 1]
        self.mean = records.mean(others, keepdim=True)
        deviation = (records - self.mean).square().mean(others, keepdim=True).sqrt()
        varies = records.amax(others, keepdim=True) > records.amin(others, keepdim=True)  # rounding is no variation
        self.deviation = torch.where(varies & (deviation > 0), deviation, 1.0)

    def map(self, X: torch.Tensor) -> torch.Tensor:
        return (X - self.mean) / self.deviation


@dataclass(frozen=True, eq=False)
class NormalizedRemoval:
    """R removals `rows` (R, s), each posterior under its own normalization: one `with_` all records, R `without`."""

    with_: Posterior
    without: Sequence[Posterior]
    rows: torch.Tensor

    @property
    def inputs(self) -> torch.Tensor:
        return self.with_.inputs

    def measure(self, objective: Objective, owner: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """KL(f_D(Q) ‖ f_D′(Q)) or ½‖μ_D(Q) − μ_D′(Q)‖², (p,), of the removals `owner` at queries (p, q, …)."""
        value = queries.new_zeros(len(queries))
        for r in owner.unique().tolist():
            here = owner == r
            value = value.index_put((here,), self._one(objective, self.without[r], queries[here]))
        return value

    def own(self, objective: Objective) -> torch.Tensor:
        """At the removed records themselves, (R,)."""
        everyone = torch.arange(len(self.rows), device=self.rows.device)
        with torch.no_grad():
            return self.measure(objective, everyone, self.inputs[self.rows])

    def numbers(self, queries: int) -> int:
        return 2 * KEPT_FOR_GRADIENT * queries * len(self.inputs)

    def _one(self, objective: Objective, without: Posterior, queries: torch.Tensor) -> torch.Tensor:
        count, q = queries.shape[:2]
        flat = queries.flatten(0, 1)
        change = (without.mean(flat) - self.with_.mean(flat)).unflatten(0, (count, q))
        if objective == "mean":
            return mean_distance(change)
        before, after = _covariances(without, queries), _covariances(self.with_, queries)
        repeated = (near_singular(before) | near_singular(after))[:, None, None]
        eye = torch.eye(q, dtype=before.dtype, device=before.device)
        kl = gaussian_kl(change, torch.where(repeated, eye, before), torch.where(repeated, eye, after))
        return torch.where(repeated[:, 0, 0], math.nan, kl)


def remove_normalized(kernel: KernelLike, inputs: Any, targets: Any, noise: float, rows: Any) -> NormalizedRemoval:
    """Fit all records, and all but `rows` (R, s) or (R,) of them, each under its own statistics: R + 1 factorizations.

    Take the result to `optimal_queries`.
    """
    x, y = as_tensor("inputs", inputs).to(torch.float64), as_tensor("targets", targets).to(torch.float64)
    index = as_tensor("rows", rows)
    index = index.unsqueeze(1) if index.ndim == 1 else index
    if index.is_floating_point() or index.ndim != 2 or index.numel() == 0 or index.shape[1] >= len(x):
        got = f"{index.dtype} of shape {tuple(index.shape)}"
        raise fail("rows", f"row numbers (R, s) or (R,), fewer than {len(x)} a removal", got, "give s rows a removal")
    if int(index.min()) < 0 or int(index.max()) >= len(x):
        raise fail("rows", f"rows from 0 to {len(x) - 1}", f"{int(index.min())} to {int(index.max())}", "count from 0")
    without = []
    for group in index:
        kept = torch.ones(len(x), dtype=torch.bool, device=x.device)
        kept[group] = False
        without.append(fit(Normalized(kernel, x[kept]), x[kept], y[kept], noise))
    return NormalizedRemoval(fit(Normalized(kernel, x), x, y, noise), without, index.to(x.device, torch.int64))


def _covariances(posterior: Posterior, queries: torch.Tensor) -> torch.Tensor:
    """Predictive covariances (p, q, q) of queries (p, q, …)."""
    count, q = queries.shape[:2]
    flat = queries.flatten(0, 1)
    if q == 1:
        return posterior.variance(flat).view(count, 1, 1)
    reduced = posterior.whiten(posterior.cross(flat)).T.unflatten(0, (count, q))
    blocks = []
    for part in queries.split(max(1, TOGETHER // q)):
        each = part.flatten(0, 1)
        square = posterior.kernel(each, each).to(torch.float64).view(len(part), q, len(part), q)
        blocks.append(square.diagonal(dim1=0, dim2=2).permute(2, 0, 1))
    return torch.cat(blocks) - reduced @ reduced.mT
