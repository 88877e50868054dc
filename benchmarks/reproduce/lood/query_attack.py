"""The attack on a removal at any queries: exact where the two laws differ in one direction, sampled otherwise.

Whitened by the law with the records, a draw is z ~ N(0, I) with and z ~ N(d, I + diag(x)) without (docs/derivations.md,
gp.query). A draw's weight under the other law is 1/ratio, so one sample gives both rates; the error of the threshold
enters through the slope of the ROC curve, which is the ratio at the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from giveaway.gp.distinguishability import RemovedRecords, whitened
from giveaway.gp.query import NOTHING, one_direction

STEPS = 1_024  # of the integral over the characteristic function, in log u
TOGETHER = 256  # removals in one piece of the integrals


@dataclass(frozen=True, eq=False)
class QueryAttack:
    """`auc` (R,), and `tpr` (R, F) with its `standard_error`, 0 where nothing was sampled."""

    auc: torch.Tensor
    tpr: torch.Tensor
    standard_error: torch.Tensor


@torch.no_grad()
def query_attack(
    removal: RemovedRecords,
    queries: torch.Tensor,
    *,
    fpr: Sequence[float] = (0.001, 0.01, 0.1),
    draws: int = 20_000,
    seed: int = 0,
) -> QueryAttack:
    """Attack every removal at its queries (R, q, …) or (1, q, …). Removals of several records at several queries have
    their true positive rates sampled, from `draws` draws and `seed`, with standard errors."""
    rates = torch.tensor(list(fpr), dtype=torch.float64)
    mean_change, excess, with_ = removal.change(queries)
    shift, spread = whitened(mean_change, excess, with_)
    if min(spread.shape[-2:]) == 1:
        x, delta = spread.square().sum((1, 2)), shift.square().sum((1, 2)).sqrt()
        exact = one_direction(x, delta, shift.shape[2], rates)
        return QueryAttack(exact.auc, exact.tpr, torch.zeros_like(exact.tpr))
    x, directions = torch.linalg.eigh(spread @ spread.mT)
    x, shift = x.clamp_min(0.0), directions.mT @ shift
    return QueryAttack(_auc(x, shift), *_sampled(x, shift, rates, draws, seed))


def _auc(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Compute the AUC for excesses x (R, k) and mean shifts (R, k, C) by the characteristic function of a score gap.

    The log likelihood ratio of one draw is, up to a factor and a constant, ℓ = −Σ(xz² + 2dz)/(1 + x); φ, that of
    ℓ(with) − ℓ(without), is elementary, and P(ℓ(with) > ℓ(without)) = ½ + ∫ Im φ(u)/u du / π. In log u the integrand is
    smooth and dies out on both sides, where the trapezoid rule converges geometrically.
    """
    if len(x) > TOGETHER:
        return torch.cat([_auc(*part) for part in zip(x.split(TOGETHER), shift.split(TOGETHER), strict=True)])
    d2, outputs = shift.square().sum(2), shift.shape[2]
    v = 1.0 + x
    most = x.amax(1)
    linear = (4.0 * d2 * v + 4.0 * d2 / v.square()).sum(1).sqrt()
    offset = (d2 * (1.0 + v) / v).sum(1)
    first = 1e-16 / (offset + outputs * x.sum(1) + linear + NOTHING)
    gaussian = 40.0 / (linear + NOTHING)
    last = torch.where(gaussian * most < 0.5, gaussian, 1e8 * (1.0 + most) / (most + NOTHING))
    grid = torch.linspace(0.0, 1.0, STEPS + 1, dtype=x.dtype, device=x.device)
    step = (last / first).log().unsqueeze(1)
    u = first.unsqueeze(1) * torch.exp(step * grid)
    log_size, phase = torch.zeros_like(u), u * offset.unsqueeze(1)
    for j in range(x.shape[1]):
        a, b, d = x[:, j : j + 1], v[:, j : j + 1], d2[:, j : j + 1]
        with_, without = 2 * u * a / b, 2 * u * a  # factors 1 + i·with_ and 1 − i·without
        with_2, without_2 = 1 + with_.square(), 1 + without.square()
        log_size -= outputs / 4 * (with_2 * without_2).log()
        phase += outputs / 2 * (without.atan() - with_.atan())
        of_with, of_without = 2 * d * (u / b).square() / with_2, 2 * d * b * u.square() / without_2
        log_size -= of_with + of_without
        phase += of_with * with_ - of_without * without
    total = torch.trapezoid(log_size.exp() * phase.sin(), dx=1.0 / STEPS, dim=1) * step.squeeze(1)
    certain = (d2 / (1.0 + v)).sum(1) > 150.0  # 1 − AUC is below e⁻⁷⁰, and the integrand too restless to say so
    return torch.where(certain, 1.0, (0.5 + total / math.pi).clamp(0.5, 1.0))


def _sampled(
    x: torch.Tensor, shift: torch.Tensor, fpr: torch.Tensor, draws: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Estimate TPR and its standard error (R, F) from draws of the law with the records, the same for every removal."""
    generator = torch.Generator().manual_seed(seed)
    k, outputs = shift.shape[1:]
    z = torch.randn(draws, k, outputs, generator=generator, dtype=torch.float64).to(x.device)
    squares, flat = z.square().sum(2), z.flatten(1)
    rates, errors = [], []
    for a, d in zip(x.split(TOGETHER), shift.split(TOGETHER), strict=True):
        v = 1.0 + a
        constant = (d.square().sum(2) / v + outputs * v.log()).sum(1)
        score = constant - squares @ (a / v).T - 2.0 * flat @ (d / v.unsqueeze(2)).flatten(1).T
        score = (score / 2).T.sort(dim=1, descending=True).values  # log ratio (R, draws)
        false_positive = torch.exp(-score).cumsum(1) / draws
        at = torch.searchsorted(false_positive, fpr.to(x.device).expand(len(a), -1).contiguous())
        threshold = score.gather(1, at.clamp_max(draws - 1))
        caught = (1.0 - torch.exp(threshold.unsqueeze(2) - score.unsqueeze(1))).clamp_min(0.0)
        rates.append(at.to(torch.float64) / draws)
        errors.append(caught.std(2) / math.sqrt(draws))
    return torch.cat(rates), torch.cat(errors)
