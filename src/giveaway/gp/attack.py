"""What two posteriors give an attacker: the best test, bounds on it, the records themselves (docs/derivations.md)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.checks import as_tensor, check_finite, check_number, fail
from giveaway.gp.distinguishability import RemovedRecords, x_minus_log1p
from giveaway.gp.posterior import KernelRegression, check_noise, leave_one_out
from giveaway.gp.query import OptimalQueries
from giveaway.theory.tradeoff import two_normals

PAIRS_TOGETHER = 2**24  # numbers of pairs of records and queries at a time
NOTHING = 1e-14  # x and δ below this leave every rate where chance has it, in float64


@dataclass(frozen=True, eq=False)
class Attack:
    """`auc` (R,), and `tpr` (R, F) at each of `fpr` (F,)."""

    auc: torch.Tensor
    tpr: torch.Tensor
    fpr: torch.Tensor


@torch.no_grad()
def record_attack(
    regression: KernelRegression, rows: Any = slice(None), *, fpr: Sequence[float] = (0.001, 0.01, 0.1)
) -> Attack:
    """Attack every record, or those at `rows`, at its own input, the query that tells most (see `divergence`)."""
    rates = torch.tensor(list(fpr), dtype=torch.float64)
    if rates.numel() == 0 or not bool(((rates > 0.0) & (rates < 1.0)).all()):
        raise fail("fpr", "rates between 0 and 1", str(list(fpr)), "give the false positive rates to report")
    single, noise = leave_one_out(regression), regression.noise
    pull = -(single.mean_change * single.residual).sum(1) / noise
    return one_direction(single.variance[rows] / noise, pull[rows].sqrt(), regression.targets.shape[1], rates)


def one_direction(x: torch.Tensor, delta: torch.Tensor, outputs: int, fpr: torch.Tensor) -> Attack:
    """Compute AUC and TPR for x and δ (R,), on any device."""
    curve = two_normals(delta.cpu().numpy(), 1.0, torch.sqrt(1.0 + x).cpu().numpy(), outputs=outputs)
    nothing = torch.maximum(x, delta) < NOTHING
    tpr = torch.from_numpy(curve.tpr(fpr.numpy()[:, None])).T.clamp(max=1.0).to(x.device)  # 1 up to rounding
    fpr, auc = fpr.to(x.device), torch.from_numpy(curve.auc()).to(x.device)
    return Attack(torch.where(nothing, 0.5, auc), torch.where(nothing.unsqueeze(1), fpr, tpr), fpr)


@dataclass(frozen=True)
class LeakageBounds:
    """The constant α and distance ε of the kernel, and bounds on the other four: every entry is within ε of α."""

    constant: float
    distance: float
    variance: float
    residual: float
    mean_distance: float
    kl: float


def distance_to_constant(matrix: torch.Tensor) -> tuple[float, float]:
    """Return (α, ε): the constant α ≥ 0 nearest to all entries of a kernel matrix, and the largest distance to it."""
    k = as_tensor("matrix", matrix)
    if k.ndim != 2 or k.numel() == 0:
        raise fail("matrix", "a kernel matrix", f"shape {tuple(k.shape)}", "give the kernel between the records")
    check_finite("matrix", k)
    low, high = (float(value) for value in torch.aminmax(k))
    constant = max(0.0, (low + high) / 2)
    return constant, max(high - constant, constant - low)


def leakage_bounds(matrix: torch.Tensor, noise: float, largest_target: float, *, outputs: int = 1) -> LeakageBounds:
    """Bound both distances for each of the records of `matrix` (n + 1, n + 1) left out; docs/lood.md has the proof.
    `largest_target` ζ bounds the norm of every record's target over its `outputs`."""
    constant, distance = distance_to_constant(matrix)
    n = len(matrix) - 1
    sigma2 = check_noise(noise)
    zeta = check_number("largest_target", largest_target, minimum=0.0, remedy="give the largest norm of a target")
    upper, lower = constant + distance, max(constant - distance, 0.0)
    variance = upper - lower**2 / (upper + sigma2 / n) if n > 0 and upper > 0.0 else upper
    residual = zeta * (1.0 + math.sqrt(n * variance / sigma2))
    steepest = min(variance, sigma2)
    excess = variance / sigma2
    mean = variance * steepest / (steepest + sigma2) ** 2 * residual**2 / 2
    kl = (outputs * (excess - math.log1p(excess)) + excess / (1.0 + excess) * residual**2 / sigma2) / 2
    return LeakageBounds(constant, distance, variance, residual, mean, kl)


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """How each end of a search relates to the s records of its removal; `starts` and q are those of the queries.

    counts       (R, s): how many queries of converged starts have that member as the nearest of ALL records
    strays       (R,): how many have a record that was kept as the nearest
    distance     (R, starts, q, s): Euclidean distance to each member (of directions, where scale was left out)
    prediction   (R, starts, q, s): KL of the prediction at the member from that at the query, all records in
    own          (R, s): KL-LOOD of each member asked alone
    """

    counts: torch.Tensor
    strays: torch.Tensor
    distance: torch.Tensor
    prediction: torch.Tensor
    own: torch.Tensor


@torch.no_grad()
def reconstruct(removal: RemovedRecords, found: OptimalQueries, *, scale_free: bool = False) -> Reconstruction:
    """Compare the ends of every start in `found`, searched for this `removal`, with the records that were removed:
    those from starts that know nothing of these are reconstructions. `scale_free` compares directions x/‖x‖, for
    homogeneous kernels without bias, whose KL is blind to a query's length."""
    posterior, rows = removal.posterior, removal.rows
    shape = found.ends.shape[:3]
    if len(found.ends) != len(rows) or found.ends.shape[3:] != posterior.inputs.shape[1:]:
        got = f"ends of shape {tuple(found.ends.shape)}"
        raise fail("found", f"queries for these {len(rows)} removals", got, "search with the same removal")
    members, queries = posterior.inputs[rows], found.ends.flatten(1, 2)
    records, asked = posterior.inputs.flatten(1), queries.flatten(2)
    if scale_free:
        records, asked = (torch.nn.functional.normalize(points, dim=-1) for points in (records, asked))
    distance = torch.cdist(asked, records[rows], compute_mode="donot_use_mm_for_euclid_dist").view(*shape, -1)
    parts = asked.flatten(0, 1).split(max(1, PAIRS_TOGETHER // len(records)))
    nearest = torch.cat([torch.cdist(part, records).argmin(1) for part in parts]).view(shape)
    converged = found.converged.unsqueeze(2)
    hits = (nearest.unsqueeze(3) == rows[:, None, None, :]) & converged.unsqueeze(3)

    def predict(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means (R, m, C) and variances (R, m) at points (R, m, …)."""
        flat = points.flatten(0, 1).split(max(1, PAIRS_TOGETHER // len(records)))
        mean, variance = (torch.cat([of(part) for part in flat]) for of in (posterior.mean, posterior.variance))
        return mean.unflatten(0, points.shape[:2]), variance.view(points.shape[:2])

    (mean_s, variance_s), (mean_q, variance_q) = predict(members), predict(queries)
    gap = (mean_s[:, None] - mean_q[:, :, None]).square().sum(3)
    ratio = variance_s[:, None] / variance_q[:, :, None]
    prediction = (mean_s.shape[2] * x_minus_log1p(ratio - 1.0) + gap / variance_q[:, :, None]) / 2
    everyone = torch.arange(len(rows), device=rows.device)
    own = [removal.measure("kl", everyone, member.unsqueeze(1)) for member in members.unbind(1)]
    return Reconstruction(
        counts=hits.sum((1, 2)),
        strays=(converged.expand_as(nearest) & ~hits.any(3)).sum((1, 2)),
        distance=distance,
        prediction=prediction.view_as(distance),
        own=torch.stack(own, 1),
    )
