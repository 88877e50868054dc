"""What the LOOD paper does with these processes: reconstruction, the differing point, normalization, activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_choice, check_finite, check_whole, fail
from giveaway.gp import query as search
from giveaway.gp.activations import Activation, as_activation
from giveaway.gp.attack import distance_to_constant
from giveaway.gp.distinguishability import divergence, gaussian_kl, mean_distance, x_minus_log1p
from giveaway.gp.kernels import Correlation, Kernel, KernelLike, Mapped, Sphere, kernel_matrix
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import Posterior, RemovedRecords, fit, removal_rows

TOGETHER = 2**24  # numbers of pairs of records and queries at a time
SETTINGS = ("sphere", "critical", "raw")
ROUNDING = 1e-12  # of variances that should be 0 or 1


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
def reconstruct(removal: RemovedRecords, found: search.OptimalQueries, *, scale_free: bool = False) -> Reconstruction:
    """Compare the ends of every start in `found`, searched for this `removal`, with the records that were removed.

    The attacker has the two posteriors and not the records; queries found from starts that know nothing of the removed
    records (origin "kept" or "bounds") are the reconstructions. `scale_free` compares directions x/‖x‖: under a
    homogeneous kernel without bias KL is blind to a query's length, and the search leaves it anywhere.
    """
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
    step = max(1, TOGETHER // len(records))
    first = torch.cat([torch.cdist(part, records).argmin(1) for part in asked.split(step)]).view(removals, starts, q)
    converged = found.converged.unsqueeze(2)
    hits = (first.unsqueeze(3) == rows[:, None, None, :]) & converged.unsqueeze(3)
    counts = hits.sum((1, 2))
    return Reconstruction(
        counts=counts,
        strays=(converged.expand_as(first) & ~hits.any(3)).sum((1, 2)),
        unrecovered=counts == 0,
        nearest=distance.argmin(3),
        distance=distance,
        prediction=_prediction_kl(posterior, members, queries).view_as(distance),
        lood=_alone(removal, queries).view(removals, starts, q),
        own=_alone(removal, members),
    )


def _prediction_kl(posterior: Posterior, members: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Return KL(f(member) ‖ f(query)), (R, m, s), under the posterior with all records, summed over its outputs."""
    mean_s, variance_s = _predict(posterior, members)
    mean_q, variance_q = _predict(posterior, queries)
    gap = (mean_s[:, None] - mean_q[:, :, None]).square().sum(3)
    ratio = variance_s[:, None] / variance_q[:, :, None]
    return (mean_s.shape[2] * x_minus_log1p(ratio - 1.0) + gap / variance_q[:, :, None]) / 2


def _predict(posterior: Posterior, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return means (R, m, C) and variances (R, m) at points (R, m, …)."""
    parts = points.flatten(0, 1).split(max(1, TOGETHER // len(posterior.inputs)))
    mean = torch.cat([posterior.mean(part) for part in parts])
    variance = torch.cat([posterior.variance(part) for part in parts])
    return mean.unflatten(0, points.shape[:2]), variance.view(points.shape[:2])


def _alone(removal: RemovedRecords, points: torch.Tensor) -> torch.Tensor:
    """Return the KL-LOOD (R, m) of each of the points (R, m, …) as the only query."""
    removals, each = points.shape[:2]
    numbers, size = removal.columns.shape[1:]
    owner = torch.arange(removals, device=points.device).repeat_interleave(each)
    step = max(1, TOGETHER // (numbers * (size + 2)))
    pairs = zip(owner.split(step), points.flatten(0, 1).unsqueeze(1).split(step), strict=True)
    return torch.cat([search.distance_at(removal, "kl", which, at) for which, at in pairs]).view(removals, each)


@dataclass(frozen=True, eq=False)
class DifferingPoint:
    """`point` (…) and its `label` (C,), `steepness` the norm of the gradient there; and where every start came to."""

    point: torch.Tensor
    label: torch.Tensor
    steepness: float
    ends: torch.Tensor
    values: torch.Tensor
    converged: torch.Tensor


def steepness(posterior: Posterior, points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return ∇_Q M(Q) at Q = S, (p, …), for each of `points` S (p, …) added with its label (p, C) to the records D.

    Adding S moves the mean at Q by k(Q, S)/(k(S, S) + σ²)·e, with k the posterior covariance of D and e = y_S − μ_D(S).
    k is symmetric, so ∂k(Q, S)/∂Q at Q = S is ½∇v(S) for v(S) = k(S, S), and
        ∇_Q M(Q) at Q = S  =  ½·v(S)/(v(S) + σ²)²·‖e‖²·∇v(S)   for M(Q) = ½‖μ_D(Q) − μ_D′(Q)‖².
    That is Proposition 4.1 where k(x, x) is constant, and holds for any kernel; differentiable in points and labels.
    """
    with torch.enable_grad():
        at = posterior.as_queries(points)
        at = at if at.requires_grad else at.clone().requires_grad_()
        variance = posterior.variance(at)
        (slope,) = torch.autograd.grad(variance.sum(), at, create_graph=True)
    error = (labels - posterior.mean(at)).square().sum(1)
    weight = 0.5 * variance / (variance + posterior.noise).square() * error
    gradient = weight.view(-1, *[1] * (slope.ndim - 1)) * slope
    return gradient if points.requires_grad or labels.requires_grad else gradient.detach()


def steepest_point(
    posterior: Posterior,
    label: Callable[[torch.Tensor], torch.Tensor],
    *,
    starts: int | torch.Tensor = 32,
    bounds: tuple[Any, Any] | None = None,
    steps: int = 200,
    tolerance: float = 1e-5,
    seed: int | None = None,
) -> DifferingPoint:
    """Find the record that, were it added, would leave the mean distance most steep at itself (Algorithm 1).

    It maximizes ‖∇_Q M(Q)‖ at Q = S over S with the label `label(S)`: points (p, …) -> (p, C) or (p,). `posterior` is
    that of D, WITHOUT the point. Starts (starts, …) are given, or so many are drawn uniformly within the bounds, or
    without bounds around the records, at one standard deviation of the inputs. The other options are those of
    `optimal_queries`; there is more than one maximum, and the best is returned.
    """
    inputs, outputs = posterior.inputs, posterior.targets.shape[1]
    space = search.search_space(bounds, inputs)
    if not isinstance(starts, int):
        start = as_tensor("starts", starts).to(inputs)
        if start.shape[1:] != inputs.shape[1:] or start.ndim == 0 or len(start) == 0:
            text = ", ".join(["starts", *map(str, inputs.shape[1:])])
            raise fail("starts", f"shape ({text})", f"shape {tuple(start.shape)}", "give one point a start")
        check_finite("starts", start)
    elif space.bounded:
        start = space.uniform([check_whole("starts", starts)], search.seeded(seed))
    else:
        generator = search.seeded(seed)
        chosen = torch.randint(len(inputs), (check_whole("starts", starts),), generator=generator).to(inputs.device)
        normal = torch.randn(starts, *inputs.shape[1:], generator=generator, dtype=torch.float64).to(inputs)
        start = inputs[chosen] + space.unit * normal

    def labels(points: torch.Tensor) -> torch.Tensor:
        given = label(points)
        given = given.unsqueeze(1) if given.ndim == 1 else given
        if given.shape != (len(points), outputs):
            expected = f"labels of shape ({len(points)}, {outputs})"
            raise fail("label", expected, f"shape {tuple(given.shape)}", "return one label a point")
        return given

    def climb(_: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        gradient = steepness(posterior, points, labels(points))
        return gradient.reshape(len(points), -1).square().sum(1).log() / 2

    together = max(1, search.MEMORY // (16 * search.KEPT_FOR_GRADIENT * len(inputs)))
    ends, values, converged = search.maximize(climb, start, space, steps=steps, tolerance=tolerance, together=together)
    best = int(values.nan_to_num(nan=-1.0).argmax())
    with torch.no_grad():
        at_best = labels(ends[best : best + 1])[0]
    return DifferingPoint(ends[best], at_best, float(values[best]), ends, values, converged)


class Normalized(Mapped):
    """The kernel of records (x − mean)/deviation channel by channel, both from `records` (n, c) or (n, c, …).

    The channels are the first axis of a record; a channel that does not vary is centred only.
    """

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
    """R removals `rows` (R, s), each posterior under its own normalization: one `with_` all records, R `without`.

    A query goes through the normalization of the model that answers it. Without a record the statistics are others, so
    that the two data sets differ in all records, and a query other than the record can tell more than the record
    itself: f(S) is no longer sufficient, KL(Q) ≤ KL(S) no longer holds.
    """

    with_: Posterior
    without: Sequence[Posterior]
    rows: torch.Tensor

    @property
    def inputs(self) -> torch.Tensor:
        return self.with_.inputs

    def measure(self, objective: search.Objective, owner: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """Return KL(f_D(Q) ‖ f_D′(Q)) or ½‖μ_D(Q) − μ_D′(Q)‖², (p,), of removals `owner` at queries (p, q, …)."""
        value = queries.new_zeros(len(queries))
        for r in owner.unique().tolist():
            here = owner == r
            value = value.index_put((here,), self._one(objective, self.without[r], queries[here]))
        return value

    def own(self, objective: search.Objective) -> torch.Tensor:
        """Return the distance at the removed records themselves, (R,)."""
        everyone = torch.arange(len(self.rows), device=self.rows.device)
        with torch.no_grad():
            return self.measure(objective, everyone, self.inputs[self.rows])

    def numbers(self, queries: int) -> int:
        return 2 * search.KEPT_FOR_GRADIENT * queries * len(self.inputs)

    def _one(self, objective: search.Objective, without: Posterior, queries: torch.Tensor) -> torch.Tensor:
        flat, shape = queries.flatten(0, 1), queries.shape[:2]
        cross_without, cross_with = (side.cross(flat).unflatten(0, shape) for side in (without, self.with_))
        change = cross_without @ without.weights - cross_with @ self.with_.weights
        if objective == "mean":
            return mean_distance(change)
        before = without.covariances(queries, cross_without)
        after = self.with_.covariances(queries, cross_with)
        repeated = (search.near_singular(before) | search.near_singular(after))[:, None, None]
        eye = torch.eye(shape[1], dtype=before.dtype, device=before.device)
        kl = gaussian_kl(change, torch.where(repeated, eye, before), torch.where(repeated, eye, after))
        return torch.where(repeated[:, 0, 0], math.nan, kl)


def remove_normalized(kernel: KernelLike, inputs: Any, targets: Any, noise: float, rows: Any) -> NormalizedRemoval:
    """Fit all records, and all but `rows` (R, s) or (R,) of them, each under its own statistics: R + 1 factorizations.

    Take the result to `optimal_queries`.
    """
    x, y = as_tensor("inputs", inputs).to(torch.float64), as_tensor("targets", targets).to(torch.float64)
    if x.ndim < 2:
        raise fail("inputs", "records as (n, channels, …)", f"shape {tuple(x.shape)}", "give one record a row")
    index = removal_rows(rows, len(x)).to(x.device)
    if index.shape[1] >= len(x):
        raise fail("rows", f"fewer than {len(x)} records a removal", f"{index.shape[1]} records", "leave some of them")
    without = []
    for group in index:
        kept = torch.ones(len(x), dtype=torch.bool, device=x.device)
        kept[group] = False
        without.append(fit(Normalized(kernel, x[kept]), x[kept], y[kept], noise))
    return NormalizedRemoval(fit(Normalized(kernel, x), x, y, noise), without, index)


@dataclass(frozen=True)
class ActivationRow:
    """Means over the records for one activation and depth, each beside ReLU's of the same depth.

    `…_ratio` is the mean over ReLU's mean, `…_higher` the share of records whose own value is above ReLU's. Every entry
    of the kernel matrix is within `distance` of `constant`, and no other constant is closer.
    """

    activation: str
    depth: int
    kl: float
    kl_ratio: float
    kl_higher: float
    mean: float
    mean_ratio: float
    mean_higher: float
    constant: float
    distance: float


@dataclass(frozen=True, eq=False)
class ActivationStudy:
    """`kl` and `mean` (A, L, n): both distances of each record for A activations, ReLU first, and L depths."""

    setting: str
    activations: tuple[str, ...]
    depths: tuple[int, ...]
    kl: np.ndarray
    mean: np.ndarray
    rows: tuple[ActivationRow, ...]


def activation_study(
    inputs: Any,
    targets: Any,
    *,
    noise: float,
    depths: Sequence[int],
    activations: Sequence[str | Activation],
    setting: str = "sphere",
) -> ActivationStudy:
    """Measure all records under wide networks that differ in activation and depth only: which gives more away?

    ReLU is added where it is not among the activations. `inputs` (n, …), `targets` (n,) or (n, C) and `noise` are those
    of `fit`. The answer depends on how inputs and variances are scaled, so there are three settings:

    "sphere"    each record less its own mean, on the sphere ‖x‖² = d, and K(x, z)/√(K(x, x)K(z, z)) for K of σw² = 2,
                σb = 0: every activation has K(x, x) = 1.
    "critical"  the same records, with the σw² and σb² that keep K(x, x) = 1 and σw² E[φ'(u)²] = 1 in every layer. Only
                there do all kernels tend to a constant at a rate of Proposition H.1 of the paper: the distance is
                Θ(L⁻²) for rectifiers and Θ(L⁻¹) for smooth activations.
    "raw"       records as they come, σw² = 2, σb = 0. A rectifier then keeps the scale of its input at any depth, while
                an activation that lets less through, as GELU does, shrinks the kernel against the noise.
    """
    check_choice("setting", setting, SETTINGS)
    x = as_tensor("inputs", inputs).to(torch.float64)
    if x.ndim < 2 or len(x) == 0:
        raise fail("inputs", "records as (n, …)", f"shape {tuple(x.shape)}", "give one record a row")
    if len(depths) == 0:
        raise fail("depths", "at least one depth", "none", "give the numbers of hidden layers to compare")
    chosen = {activation.name: activation for activation in map(as_activation, ["relu", *activations])}
    kl, mean = (np.empty((len(chosen), len(depths), len(x))) for _ in range(2))
    rows = []
    for i, (name, activation) in enumerate(chosen.items()):
        for j, depth in enumerate(depths):
            kernel = study_kernel(setting, depth, activation)
            matrix = kernel_matrix(kernel, x)
            distance = divergence(fit(kernel, x, targets, noise, matrix=matrix))
            kl[i, j], mean[i, j] = distance.kl.cpu().numpy(), distance.mean.cpu().numpy()
            compared = (*_beside(kl[:, j], i), *_beside(mean[:, j], i))
            rows.append(ActivationRow(name, int(depth), *compared, *distance_to_constant(matrix)))
    return ActivationStudy(setting, tuple(chosen), tuple(int(depth) for depth in depths), kl, mean, tuple(rows))


def study_kernel(setting: str, depth: int, activation: str | Activation) -> Kernel:
    """Make the kernel of one activation and depth in one of the settings."""
    check_choice("setting", setting, SETTINGS)
    if setting == "critical":
        return _CriticalSphere(depth, activation)
    raw = NNGP(depth, activation, weight_variance=2.0)
    return raw if setting == "raw" else Sphere(Correlation(raw), centre=True)


class _CriticalSphere(Sphere):
    """Records on the sphere where K⁰(x, x) = 1 too, which the later layers keep: ‖x‖² = d(1 − σb²)/σw²."""

    def __init__(self, depth: int, activation: str | Activation) -> None:
        weight, bias = critical_variances(activation)
        super().__init__(_UnitNNGP(depth, activation, weight_variance=weight, bias_variance=bias), centre=True)
        self._radius = math.sqrt((1.0 - bias) / weight)

    def map(self, X: torch.Tensor) -> torch.Tensor:
        return self._radius * super().map(X)


class _UnitNNGP(NNGP):
    """Variances of 1 but for rounding are 1: where that fixed point is unstable, as GELU's is, rounding would grow."""

    def _enter(self, layer: Any, *moments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        qx, qz, c = super()._enter(layer, *moments)
        qx, qz = (torch.where((q - 1.0).abs() < ROUNDING, 1.0, q) for q in (qx, qz))
        return qx, qz, c


def critical_variances(activation: str | Activation) -> tuple[float, float]:
    """Return σw² = 1/E[φ'(u)²] and σb² = 1 − σw² E[φ(u)²], u ~ N(0, 1): they keep unit variance and small angles."""
    phi = as_activation(activation)
    one = torch.ones((), dtype=torch.float64)
    weight = 1.0 / float(phi.dual_derivative(one, one, one))
    bias = 1.0 - weight * float(phi.dual(one, one, one))
    if bias < -ROUNDING:
        raise fail("activation", "one with E[φ²] ≤ E[φ'²] at unit variance", phi.name, 'use the setting "sphere"')
    return weight, max(bias, 0.0)


def _beside(values: np.ndarray, place: int) -> tuple[float, float, float]:
    """Return the mean of row `place` of values (A, n), its ratio to row 0's, and the share of entries above row 0."""
    mean, base = float(values[place].mean()), float(values[0].mean())
    return mean, mean / base if base > 0.0 else math.nan, float((values[place] > values[0]).mean())
