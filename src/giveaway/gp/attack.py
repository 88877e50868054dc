"""How well the best membership test tells two posteriors apart, and how little it can under a nearly constant kernel.

The attacker sees the latent predictions f(Q), one draw from the posterior with
the records (positive) or without them, knows both laws, and thresholds their likelihood ratio; no other test does
better at any false positive rate. Whitened by the law with the records, a draw is z ~ N(0, I) with and
z ~ N(d, I + diag(x)) without, x ≥ 0. Taking one record out moves mean and covariance along one direction, whatever the
number of queries: then only x and δ = ‖d‖ over the C outputs matter, the ratio grows with s = 2δz₁ − x‖z‖² (the sign of
z₁ chosen so), and {s ≥ τ} is a ball, whose probabilities are normal and noncentral χ² ones. They are computed in a form
that stays exact as x → 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import owens_t

from giveaway.checks import as_tensor, check_finite, check_number, fail
from giveaway.gp.distinguishability import whitened
from giveaway.gp.leave_one_out import EPS, leave_one_out
from giveaway.gp.posterior import Posterior, RemovedRecords, check_noise

NODES = 48  # of the integral over the directions that the mean does not move along
STEPS = 1_024  # of the integral over the characteristic function, in log u
ROOT_STEPS, ROOT_GAP = 64, 1e-11
TOGETHER = 256  # records in one piece of the integrals
FAR = 1e3  # δ/x from which the ball {s ≥ τ} is treated as nearly a half-space
TAIL = 9.0  # standard deviations past which a Gaussian is nothing in float64
TINY = 1e-300
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
    """Attack every removal at its queries (R, q, …) or (1, q, …).

    Removals of several records at several queries have no closed form for the true positive rate: it is sampled, from
    `draws` draws and `seed`, and comes with its standard error. The AUC is a one-dimensional integral in every case.
    """
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
    rates = torch.as_tensor([float(rate) for rate in fpr], dtype=torch.float64)
    if rates.numel() == 0 or not bool(((rates > 0.0) & (rates < 1.0)).all()):
        raise fail("fpr", "rates between 0 and 1", str(list(fpr)), "give the false positive rates to report")
    return rates


def _one_direction(x: torch.Tensor, delta: torch.Tensor, outputs: int, fpr: torch.Tensor) -> Attack:
    """Compute AUC and TPR for x and δ (R,), on any device."""
    fpr = fpr.to(x.device)
    if outputs == 1:
        auc = _auc_of_one_output(x, delta)
    else:
        shift = torch.cat([delta.unsqueeze(1), delta.new_zeros(len(delta), outputs - 1)], 1)
        auc = _auc(x.unsqueeze(1), shift.unsqueeze(1))
    parts = zip(x.split(TOGETHER), delta.split(TOGETHER), strict=True)
    tpr = torch.cat([_tpr(a[:, None], b[:, None], outputs, fpr) for a, b in parts])
    return Attack(auc, tpr, fpr, torch.zeros_like(tpr))


def _auc_of_one_output(x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return P(s with > s without) = 1 − 2T(δ/√(2 + x), 2√(1 + x)/x), T Owen's function.

    s₁ − s₀ = (z₁ − z₀)(2δ − x(z₁ + z₀)): two jointly normal factors with correlation x/(2 + x), an orthant probability.
    """
    ratio = 2.0 * torch.sqrt(1.0 + x) / x  # infinite at x = 0, where T is half a normal tail
    value = owens_t((delta / torch.sqrt(2.0 + x)).cpu().numpy(), ratio.cpu().numpy())
    return 1.0 - 2.0 * torch.from_numpy(np.asarray(value)).to(x.device)


def _tpr(x: torch.Tensor, delta: torch.Tensor, outputs: int, fpr: torch.Tensor) -> torch.Tensor:
    """Return the rates (R, F) for x and δ (R, 1); the threshold's normal score, near linear in it, is solved for."""
    nothing = torch.maximum(x, delta) < NOTHING
    x, delta = torch.where(nothing, 1.0, x), torch.where(nothing, 1.0, delta)
    v = 1.0 + x
    mean = -delta.square() * (1.0 + v) - outputs * x * v - _origin(x, delta)
    spread = torch.sqrt(4.0 * delta.square() * v**3 + 2.0 * outputs * (x * v).square())
    # one-sided Chebyshev bounds, and the largest score there is
    low = mean - spread * torch.sqrt(fpr / (1.0 - fpr))
    high = torch.minimum(mean + spread * torch.sqrt((1.0 - fpr) / fpr), delta.square() / x - _origin(x, delta))
    goal = torch.special.ndtri(fpr)

    def gap(tau: torch.Tensor) -> torch.Tensor:
        rate = _exceed(tau, x, delta, outputs, with_=False).clamp(TINY, 1.0 - EPS)
        return torch.special.ndtri(rate) - goal

    tpr = _exceed(_root(gap, low, high), x, delta, outputs, with_=True)
    return torch.where(nothing, fpr, tpr.clamp(0.0, 1.0))


def _root(gap: Callable[[torch.Tensor], torch.Tensor], low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Find where the falling function `gap` crosses 0 between two ends: regula falsi, halving the end that stays."""
    at_low, at_high = gap(low), gap(high)
    middle, before = low, torch.zeros_like(low)
    for _ in range(ROOT_STEPS):
        middle = high - (high - low) * at_high / (at_high - at_low).clamp_max(-TINY)
        value = gap(middle)
        if float(value.abs().max()) < ROOT_GAP:
            break
        right = value > 0.0
        at_high = torch.where(right, torch.where(before > 0.0, at_high / 2, at_high), value)
        at_low = torch.where(right, value, torch.where(before < 0.0, at_low / 2, at_low))
        low, high = torch.where(right, middle, low), torch.where(right, high, middle)
        before = value.sign()
    return middle


def _origin(x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Return the largest score, δ²/x, unless far off: counted from it, thresholds of small balls keep their radius."""
    return torch.where(delta < FAR * x, delta.square() / x, 0.0)


def _exceed(tau: torch.Tensor, x: torch.Tensor, delta: torch.Tensor, outputs: int, *, with_: bool) -> torch.Tensor:
    """Return P(s ≥ τ) under one law, (R, F) for τ (R, F) counted from its origin, x and δ (R, 1).

    Given the length ω of the part of z across the mean's direction, s ≥ τ is an interval of z₁; ω is χ with C − 1
    degrees of freedom (times the law's standard deviation) and is integrated by Gauss–Legendre in θ, ω = ω_max sin θ,
    which smooths the square root with which the interval closes at ω_max.
    """
    scale = torch.ones_like(x) if with_ else torch.sqrt(1.0 + x)
    centre = torch.zeros_like(x) if with_ else -delta
    origin = _origin(x, delta)
    room = torch.where(origin > 0.0, 0.0, delta.square()) - x * tau
    tau = tau + origin
    if outputs == 1:
        return _interval(tau, room, x, delta, centre, scale)
    freedom = outputs - 1
    last = torch.sqrt(room.clamp_min(0.0)) / (x * scale)
    first = max(0.0, math.sqrt(freedom) - TAIL)
    width = (last.clamp_max(math.sqrt(freedom) + TAIL) - first).clamp_min(0.0).unsqueeze(-1)
    nodes, weights = (torch.from_numpy(a).to(x) for a in np.polynomial.legendre.leggauss(NODES))
    theta = math.pi / 4 * (nodes + 1.0)
    omega = first + width * torch.sin(theta)
    log_density = torch.special.xlogy(freedom - 1.0, omega) - omega.square() / 2
    log_density -= math.lgamma(freedom / 2) + (freedom / 2 - 1) * math.log(2.0)
    x, delta, centre, scale = (a.unsqueeze(-1) for a in (x, delta, centre, scale))
    across = x * (scale * omega).square()
    inside = _interval(tau.unsqueeze(-1) + across, room.unsqueeze(-1) - x * across, x, delta, centre, scale)
    return (log_density.exp() * inside * width * torch.cos(theta) * weights).sum(-1) * (math.pi / 4)


def _interval(
    tau: torch.Tensor,
    room: torch.Tensor,
    x: torch.Tensor,
    delta: torch.Tensor,
    centre: torch.Tensor,
    scale: torch.Tensor,
) -> torch.Tensor:
    """Return P(2δz − xz² ≥ τ) for z ~ N(centre, scale²), room = δ² − xτ; 0 where that is negative."""
    half = torch.sqrt(room.clamp_min(0.0))
    far = delta + half
    low = (torch.where(delta < FAR * x, (delta - half) / x, tau / far) - centre) / scale
    high = (far / x - centre) / scale
    low = torch.where(far > 0.0, low, 0.0)
    mirrored = low > 0.0  # so that small tails are subtracted, never two numbers near 1
    left, right = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    inside = torch.special.ndtr(right) - torch.special.ndtr(left)
    return torch.where((room >= 0.0) & (far > 0.0), inside, 0.0)


def _auc(x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Compute the AUC for excesses x (R, k) and mean shifts (R, k, C) by the characteristic function of a score gap.

    The log likelihood ratio of one draw is, up to a factor and a constant, ℓ = −Σ(xz² + 2dz)/(1 + x); φ, that of
    ℓ(with) − ℓ(without), is elementary, and P(ℓ(with) > ℓ(without)) = ½ + ∫ Im φ(u)/u du / π. In log u the integrand
    is smooth and dies out on both sides, where the trapezoid rule converges geometrically.
    """
    parts = zip(x.split(TOGETHER), shift.square().sum(2).split(TOGETHER), strict=True)
    return torch.cat([_auc_of(a, b, shift.shape[2]) for a, b in parts])


def _auc_of(x: torch.Tensor, d2: torch.Tensor, outputs: int) -> torch.Tensor:
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
    """Estimate TPR and its standard error (R, F) from draws of the law with the records, the same for every removal.

    A draw's weight under the other law is 1/ratio, so one sample gives both rates; the error of the threshold enters
    through the slope of the ROC curve, which is the ratio at the threshold.
    """
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

    `largest_target` ζ bounds the norm of every record's target over its `outputs`. The bounds replace Proposition 5.1
    of the LOOD paper, whose printed constants fail. They say that leakage vanishes with ε and 1/n; as numbers they are
    vacuous at real sizes, far from any kernel in use.
    """
    constant, distance = distance_to_constant(matrix)
    n = len(matrix) - 1
    sigma2 = check_noise(noise)
    zeta = check_number("largest_target", largest_target, minimum=0.0, remedy="give the largest norm of a target")
    upper, lower = constant + distance, max(constant - distance, 0.0)
    variance = upper - lower**2 / (upper + sigma2 / n) if n > 0 and upper > 0.0 else upper
    residual = zeta * (1.0 + math.sqrt(n * variance / sigma2))
    steepest = min(variance, sigma2)
    excess = variance / sigma2
    return LeakageBounds(
        constant=constant,
        distance=distance,
        variance=variance,
        residual=residual,
        mean_distance=variance * steepest / (steepest + sigma2) ** 2 * residual**2 / 2,
        kl=(outputs * (excess - math.log1p(excess)) + excess / (1.0 + excess) * residual**2 / sigma2) / 2,
    )
