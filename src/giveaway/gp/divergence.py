"""Leave-one-out distinguishability: how far the predictions without a record lie from those with it.

D is the data without, D′ with the record(s). The C outputs are independent and share their covariance, so the terms of
the Kullback–Leibler divergence that come from the covariances count C times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.checks import fail
from giveaway.gp.leave_one_out import leave_group_out, leave_one_out
from giveaway.gp.posterior import Posterior
from giveaway.gp.removal import Removal

SINGULAR = 1e-12  # share of a query's variance, given the queries before it, that may be rounding
SERIES = 16  # terms of 2·artanh(t)/t for |t| ≤ 1/3: what is left out is below 1/9¹⁶


@dataclass(frozen=True, eq=False)
class Lood:
    """`kl` = KL(f_D(Q) ‖ f_D′(Q)) and `mean` = ½‖μ_D(Q) − μ_D′(Q)‖², one of each a record or group."""

    kl: torch.Tensor
    mean: torch.Tensor


def lood(posterior: Posterior, groups: Sequence[Any] | None = None) -> Lood:
    """Both distances of every record (or group) at Q = its own inputs, in the order of the records (or groups).

    No query tells more: f_D′ is f_D given one more noisy sight of f(S), so the likelihood ratio of the two whole
    processes depends on f(S) alone and KL(Q) ≤ KL(S) for any queries Q and any kernel. (The mean distance can be
    larger elsewhere.)
    """
    outputs = posterior.targets.shape[1]
    if groups is None:
        single = leave_one_out(posterior)
        excess = single.variance / posterior.noise
        pull = -(single.mean_change * single.residual).sum(1) / posterior.noise
        kl = (outputs * x_minus_log1p(excess) + pull) / 2
        return Lood(kl, mean_distance(single.mean_change.unsqueeze(1)))
    kl, mean = (posterior.factor.new_empty(len(groups)) for _ in range(2))
    for part in leave_group_out(posterior, groups):
        excess = torch.linalg.eigvalsh(part.covariance / posterior.noise).clamp_min(0.0)
        pull = -(part.mean_change * part.residual).sum((1, 2)) / posterior.noise
        kl[part.place] = (outputs * x_minus_log1p(excess).sum(1) + pull) / 2
        mean[part.place] = mean_distance(part.mean_change)
    return Lood(kl, mean)


def lood_at(removal: Removal, queries: torch.Tensor) -> Lood:
    """Both distances (R,) of every removal at its queries (R, q, …) or (1, q, …); differentiable in the queries."""
    mean_change, excess, with_ = removal.change(queries)
    return Lood(kl_of_change(mean_change, excess, with_), mean_distance(mean_change))


def kl_of_change(mean_change: torch.Tensor, excess: torch.Tensor, with_: torch.Tensor) -> torch.Tensor:
    """The divergence (…) of what `Removal.change` returns, without taking a difference of covariances."""
    shift, spread = whitened(mean_change, excess, with_)
    gram = spread.mT @ spread if spread.shape[-1] < spread.shape[-2] else spread @ spread.mT
    x = gram[..., 0] if gram.shape[-1] == 1 else torch.linalg.eigvalsh(gram).clamp_min(0.0)
    return (mean_change.shape[-1] * x_minus_log1p(x).sum(-1) + shift.square().sum((-2, -1))) / 2


def gaussian_kl(mean_change: torch.Tensor, without: torch.Tensor, with_: torch.Tensor) -> torch.Tensor:
    """KL(N(m, without) ‖ N(m′, with_)) summed over C outputs: mean_change m − m′ (…, q, C), covariances (…, q, q).

    With W the difference of the covariances whitened by with_, and x its eigenvalues, it is
    ½(C Σ(x − log(1 + x)) + ‖whitened mean change‖²): near-equal covariances do not cancel.
    """
    root = cholesky_of("with_", with_)
    half = torch.linalg.solve_triangular(root, without - with_, upper=False)
    w = torch.linalg.solve_triangular(root, half.mT, upper=False)
    x = w[..., 0] if w.shape[-1] == 1 else torch.linalg.eigvalsh((w + w.mT) / 2)
    if bool((x <= -1.0).any()):
        raise fail("without", "positive definite covariances", "one that is not", "drop repeated queries")
    shift = torch.linalg.solve_triangular(root, mean_change, upper=False)
    return (mean_change.shape[-1] * x_minus_log1p(x).sum(-1) + shift.square().sum((-2, -1))) / 2


def mean_distance(mean_change: torch.Tensor) -> torch.Tensor:
    """½ Σ (μ_D − μ_D′)² over queries and outputs, (…, q, C) → (…)."""
    return mean_change.square().sum((-2, -1)) / 2


def whitened(mean_change: torch.Tensor, excess: torch.Tensor, with_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """L⁻¹ mean_change and L⁻¹ excess for L Lᵀ = with_."""
    root = cholesky_of("queries", with_)
    both = torch.cat([mean_change, excess], dim=-1)
    solved = torch.linalg.solve_triangular(root.expand(*both.shape[:-2], -1, -1), both, upper=False)
    return solved[..., : mean_change.shape[-1]], solved[..., mean_change.shape[-1] :]


def cholesky_of(argument: str, covariance: torch.Tensor) -> torch.Tensor:
    """Cholesky factors of predictive covariances; where there is none, the error that names the first."""
    root, info = torch.linalg.cholesky_ex(covariance)
    left = root.diagonal(dim1=-2, dim2=-1).square()
    bad = (info != 0) | (left <= SINGULAR * covariance.diagonal(dim1=-2, dim2=-1)).any(-1)
    if bool(bad.any()):
        first = int(bad.reshape(-1).nonzero()[0])
        raise fail(
            argument,
            "positive definite predictive covariances",
            f"one that is not, in place {first}",
            "drop queries that repeat one another or that the records determine, or raise noise",
        )
    return root


def x_minus_log1p(x: torch.Tensor) -> torch.Tensor:
    """x − log(1 + x) for x > −1, to full relative precision near 0, where it is x²/2.

    With t = x/(2 + x): log(1 + x) = 2·artanh(t) and x − 2t = x·t, so it is t·(x − 2t²(1/3 + t²/5 + …)).
    """
    near = (x > -0.5) & (x < 1.0)
    small = torch.where(near, x, 0.0)
    t = small / (2.0 + small)
    square = t.square()
    tail = torch.zeros_like(t)
    for k in range(2 * SERIES + 1, 1, -2):
        tail = 1.0 / k + square * tail
    return torch.where(near, t * (small - 2.0 * square * tail), x - torch.log1p(torch.where(near, 1.0, x)))
