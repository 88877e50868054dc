"""Removals where each side normalizes its records by statistics of its own, as a network with batch norm would.

A query goes through the normalization of the model that answers it. Without a record the statistics are others, so that
the two data sets differ in all records: f(S) is no longer sufficient, and KL(Q) ≤ KL(S) no longer holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.checks import fail
from giveaway.gp.distinguishability import REPEATED, Objective, factored, mean_distance, x_minus_log1p
from giveaway.gp.kernels import KernelLike, Mapped
from giveaway.gp.posterior import Posterior, fit


class Normalized(Mapped):
    """The kernel of records (x − mean)/deviation of each channel of `records` (n, c, …); a constant one is centred."""

    def __init__(self, kernel: KernelLike, records: torch.Tensor) -> None:
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
    """R removals `rows` (R, s), each posterior under its own normalization, through which its queries go: one `with_`
    all records, R `without`. A query other than the record can tell more than the record itself."""

    with_: Posterior
    without: Sequence[Posterior]
    rows: torch.Tensor

    @property
    def inputs(self) -> torch.Tensor:
        return self.with_.inputs

    def measure(self, objective: Objective, owner: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """Return KL(f_D(Q) ‖ f_D′(Q)) or ½‖μ_D(Q) − μ_D′(Q)‖², (p,), of removals `owner` at queries (p, q, …)."""
        value = queries.new_zeros(len(queries))
        for r in owner.unique().tolist():
            here, sides = owner == r, (self.without[r], self.with_)
            at = queries[here]
            crosses = [side.cross(at.flatten(0, 1)).unflatten(0, at.shape[:2]) for side in sides]
            before, after = (cross @ side.weights for side, cross in zip(sides, crosses, strict=True))
            if objective == "mean":
                distance = mean_distance(before - after)
            else:
                covariances = [side.covariances(at, cross) for side, cross in zip(sides, crosses, strict=True)]
                distance = kl_unless_repeated(before - after, *covariances)
            value = value.index_put((here,), distance)
        return value

    def own(self, objective: Objective) -> torch.Tensor:
        """Return the distance at the removed records themselves, (R,)."""
        everyone = torch.arange(len(self.rows), device=self.rows.device)
        with torch.no_grad():
            return self.measure(objective, everyone, self.inputs[self.rows])


def remove_normalized(kernel: KernelLike, inputs: Any, targets: Any, noise: float, rows: Any) -> NormalizedRemoval:
    """Fit all records, and all but each of `rows`, under statistics of their own: R + 1 factorizations."""
    x, y = (torch.as_tensor(given, dtype=torch.float64) for given in (inputs, targets))
    index = torch.as_tensor(rows, device=x.device)
    index = index.unsqueeze(1) if index.ndim == 1 else index
    everyone = torch.arange(len(x), device=x.device)
    kept = [everyone, *(everyone[~torch.isin(everyone, group)] for group in index)]
    with_, *without = (fit(Normalized(kernel, x[rows]), x[rows], y[rows], noise) for rows in kept)
    return NormalizedRemoval(with_, without, index)


def gaussian_kl(mean_change: torch.Tensor, without: torch.Tensor, with_: torch.Tensor) -> torch.Tensor:
    """Sum KL(N(m, without) ‖ N(m′, with_)) over C outputs, given m − m′ (…, q, C); near-equal covariances do not
    cancel."""
    root = torch.linalg.cholesky(with_)
    half = torch.linalg.solve_triangular(root, without - with_, upper=False)
    w = torch.linalg.solve_triangular(root, half.mT, upper=False)
    x = w[..., 0] if w.shape[-1] == 1 else torch.linalg.eigvalsh((w + w.mT) / 2)
    if bool((x <= -1.0).any()):
        raise fail("without", "positive definite covariances", "one that is not", "drop repeated queries")
    shift = torch.linalg.solve_triangular(root, mean_change, upper=False)
    return (mean_change.shape[-1] * x_minus_log1p(x).sum(-1) + shift.square().sum((-2, -1))) / 2


def kl_unless_repeated(mean_change: torch.Tensor, without: torch.Tensor, with_: torch.Tensor) -> torch.Tensor:
    """Return gaussian_kl (p,), NaN where queries (nearly) repeat one another in one of the covariances (p, q, q)."""
    bad = factored(without.detach(), REPEATED)[1] | factored(with_.detach(), REPEATED)[1]
    eye = torch.eye(with_.shape[-1]).to(with_)
    usable = (torch.where(bad[:, None, None], eye, covariance) for covariance in (without, with_))
    return torch.where(bad, math.nan, gaussian_kl(mean_change, *usable))
