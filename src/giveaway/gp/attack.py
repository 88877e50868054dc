"""What an attacker gets from two posteriors: the best test, bounds on it, the records themselves
(docs/derivations.md)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from giveaway.checks import as_tensor, check_finite, check_number, fail
from giveaway.gp.distinguishability import RemovedRecords, whitened, x_minus_log1p
from giveaway.gp.posterior import Posterior, check_noise, leave_one_out
from giveaway.gp.query import OptimalQueries
from giveaway.theory.tradeoff import two_normals

STEPS = 1_024  # of the integral over the characteristic function, in log u
TOGETHER = 256  # records in one piece of the integrals
PAIRS_TOGETHER = 2**24  # numbers of pairs of records and queries at a time
NOTHING = 1e-14  # x and δ below this leave every rate where chance has it, in float64


@dataclass(frozen=True, eq=False)
class Attack:
    """`auc` (R,), and `tpr` (R, F) at each of `fpr` (F,); `standard_error` (R, F) is 0 where nothing was sampled."""

    auc: torch.Tensor
    tpr: torch.Tensor
    fpr: torch.Tensor
    standard_error: torch.Tensor


@torch.no_grad()
def record_attack(posterior: Posterior, *, fpr: Sequence[float] = (0.001, 0.01, 0.1)) -> Attack:
    """Attack every record at its own input, the query that tells most (see `divergence`)."""
    single = leave_one_out(posterior)
    pull = -(single.mean_change * single.residual).sum(1) / posterior.noise
    return _one_direction(single.variance / posterior.noise, pull.sqrt(), posterior.targets.shape[1], _rates(fpr))


@torch.no_grad()
def query_attack(
    removal: RemovedRecords,
    queries: torch.Tensor,
    *,
    fpr: Sequence[float] = (0.001, 0.01, 0.1),
    draws: int = 20_000,
    seed: int | None = None,
) -> Attack:
    """Attack every removal at its queries (R, q, …) or (1, q, …). Removals of several records at several queries have
    their true positive rates sampled, from `draws` draws and `seed`, with standard errors."""
    rates = _rates(fpr)
    mean_change, excess, with_ = removal.change(queries)
    shift, spread = whitened(mean_change, excess, with_)
    if min(spread.shape[-2:]) == 1:
        return _one_direction(spread.square().sum((1, 2)), shift.square().sum((1, 2)).sqrt(), shift.shape[2], rates)
    if seed is None:
        raise fail("seed", "an integer, for these rates are sampled", "None", "give a seed")
    if check_number("draws", draws, minimum=100, remedy="20,000 give errors below 0.004") != int(draws):
        raise fail("draws", "a whole number", repr(draws), "give a whole number of draws")
    x, directions = torch.linalg.eigh(spread @ spread.mT)
    x, shift = x.clamp_min(0.0), directions.mT @ shift
    tpr, error = _sampled(x, shift, rates, int(draws), seed)
    return Attack(_auc(x, shift), tpr, rates.to(x.device), error)


def _rates(fpr: Sequence[float]) -> torch.Tensor:
    rates = torch.tensor(list(fpr), dtype=torch.float64)
    if rates.numel() == 0 or not bool(((rates > 0.0) & (rates < 1.0)).all()):
        raise fail("fpr", "rates between 0 and 1", str(list(fpr)), "give the false positive rates to report")
    return rates


def _one_direction(x: torch.Tensor, delta: torch.Tensor, outputs: int, fpr: torch.Tensor) -> Attack:
    """Compute AUC and TPR for x and δ (R,), on any device."""
    curve = two_normals(delta.cpu().numpy(), 1.0, torch.sqrt(1.0 + x).cpu().numpy(), outputs=outputs)
    nothing = torch.maximum(x, delta) < NOTHING
    tpr = torch.from_numpy(curve.tpr(fpr.numpy()[:, None])).T.clamp(max=1.0).to(x.device)  # 1 up to rounding
    if outputs == 1:
        auc = torch.from_numpy(curve.auc()).to(x.device)
    else:
        auc = _auc(x.unsqueeze(1), torch.nn.functional.pad(delta.view(-1, 1, 1), (0, outputs - 1)))
    fpr = fpr.to(x.device)
    tpr, auc = torch.where(nothing.unsqueeze(1), fpr, tpr), torch.where(nothing, 0.5, auc)
    return Attack(auc, tpr, fpr, torch.zeros_like(tpr))


def _auc(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Compute the AUC for excesses x (R, k) and mean shifts (R, k, C) by the characteristic function of a score gap."""
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
    unrecovered  (R, s): the members that no query came to
    nearest      (R, starts, q): the member nearest to each query, from 0 to s − 1
    distance     (R, starts, q, s): Euclidean distance to each member (of directions, where scale was left out)
    prediction   (R, starts, q, s): KL of the prediction at the member from that at the query, all records in
    lood, own    (R, starts, q) and (R, s): KL-LOOD of each query and of each member asked alone
    """

    counts: torch.Tensor
    strays: torch.Tensor
    unrecovered: torch.Tensor
    nearest: torch.Tensor
    distance: torch.Tensor
    prediction: torch.Tensor
    lood: torch.Tensor
    own: torch.Tensor


@torch.no_grad()
def reconstruct(removal: RemovedRecords, found: OptimalQueries, *, scale_free: bool = False) -> Reconstruction:
    """Compare the ends of every start in `found`, searched for this `removal`, with the records that were removed:
    those from starts that know nothing of these are reconstructions. `scale_free` compares directions x/‖x‖, for
    homogeneous kernels without bias, whose KL is blind to a query's length."""
    posterior, rows = removal.posterior, removal.rows
    removals, starts, q = found.ends.shape[:3]
    if removals != len(rows) or found.ends.shape[3:] != posterior.inputs.shape[1:]:
        got = f"ends of shape {tuple(found.ends.shape)}"
        raise fail("found", f"queries for these {len(rows)} removals", got, "search with the same removal")
    members, queries = posterior.inputs[rows], found.ends.flatten(1, 2)
    records, asked = (points.reshape(len(points), -1) for points in (posterior.inputs, queries.flatten(0, 1)))
    if scale_free:
        records, asked = (torch.nn.functional.normalize(points, dim=1) for points in (records, asked))
    pairs = asked.view(removals, starts * q, -1), records[rows]
    distance = torch.cdist(*pairs, compute_mode="donot_use_mm_for_euclid_dist").view(removals, starts, q, -1)
    step = max(1, PAIRS_TOGETHER // len(records))
    first = torch.cat([torch.cdist(part, records).argmin(1) for part in asked.split(step)]).view(removals, starts, q)
    converged = found.converged.unsqueeze(2)
    hits = (first.unsqueeze(3) == rows[:, None, None, :]) & converged.unsqueeze(3)
    counts = hits.sum((1, 2))

    def predict(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return means (R, m, C) and variances (R, m) at points (R, m, …)."""
        flat = points.flatten(0, 1).split(step)
        mean, variance = (torch.cat([of(part) for part in flat]) for of in (posterior.mean, posterior.variance))
        return mean.unflatten(0, points.shape[:2]), variance.view(points.shape[:2])

    def alone(points: torch.Tensor) -> torch.Tensor:
        """Return the KL-LOOD (R, m) of each of the points (R, m, …) as the only query."""
        owner = torch.arange(removals, device=points.device).repeat_interleave(points.shape[1])
        some = max(1, PAIRS_TOGETHER // (len(records) * (rows.shape[1] + 2)))
        pairs = zip(owner.split(some), points.flatten(0, 1).unsqueeze(1).split(some), strict=True)
        return torch.cat([removal.measure("kl", *pair) for pair in pairs]).view(points.shape[:2])

    (mean_s, variance_s), (mean_q, variance_q) = predict(members), predict(queries)
    gap = (mean_s[:, None] - mean_q[:, :, None]).square().sum(3)
    ratio = variance_s[:, None] / variance_q[:, :, None]
    prediction = (mean_s.shape[2] * x_minus_log1p(ratio - 1.0) + gap / variance_q[:, :, None]) / 2
    return Reconstruction(
        counts=counts,
        strays=(converged.expand_as(first) & ~hits.any(3)).sum((1, 2)),
        unrecovered=counts == 0,
        nearest=distance.argmin(3),
        distance=distance,
        prediction=prediction.view_as(distance),
        lood=alone(queries).view(removals, starts, q),
        own=alone(members),
    )
