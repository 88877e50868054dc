"""The record that, were it added, would leave the mean distance most steep at itself: Algorithm 1 of the LOOD paper.

Adding S with label y_S to the records D moves the mean at Q by k(Q, S)/(k(S, S) + σ²)·e, with k the posterior
covariance of D and e = y_S − μ_D(S). k is symmetric, so ∂k(Q, S)/∂Q at Q = S is ½∇v(S) for v(S) = k(S, S), and
    ∇_Q M(Q) at Q = S  =  ½·v(S)/(v(S) + σ²)²·‖e‖²·∇v(S)   for M(Q) = ½‖μ_D(Q) − μ_D′(Q)‖².
That is Proposition 4.1 where k(x, x) is constant, and holds for any differentiable kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.checks import as_tensor, check_finite, fail
from giveaway.gp.ascent import Method, maximize, whole
from giveaway.gp.posterior import Posterior
from giveaway.gp.query import KEPT_FOR_GRADIENT, box, spread

MEMORY = 2**30  # bytes for the points that move together


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
    """∇_Q M(Q) at Q = S, (p, …), for each of `points` S (p, …) added with its label (p, C) to the posterior's records.

    Differentiable in both.
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
    method: Method = "lbfgs",
    steps: int = 200,
    tolerance: float = 1e-5,
    learning_rate: float = 0.1,
    seed: int | None = None,
) -> DifferingPoint:
    """S* = argmax over S of ‖∇_Q M(Q)‖ at Q = S, for S with the label `label(S)`: points (p, …) -> (p, C) or (p,).

    `posterior` is that of D, WITHOUT the point. Starts (starts, …) are given, or so many are drawn uniformly within
    the bounds, or without bounds around the records, at one standard deviation of the inputs. The other options are
    those of `optimal_queries`; there is more than one maximum, and the best is returned.
    """
    inputs = posterior.inputs
    low, high = box(bounds, inputs)
    unit = spread(inputs)
    start = _starts(starts, inputs, low, high, unit, seed)
    shape = inputs.shape[1:]

    def labels(points: torch.Tensor) -> torch.Tensor:
        found = label(points)
        found = found.unsqueeze(1) if found.ndim == 1 else found
        if found.shape != (len(points), posterior.targets.shape[1]):
            text = f"({len(points)}, {posterior.targets.shape[1]})"
            raise fail("label", f"labels of shape {text}", f"shape {tuple(found.shape)}", "return one label a point")
        return found

    def climb(_: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        at = (points * unit).unflatten(1, shape) if shape else (points * unit).squeeze(1)
        gradient = steepness(posterior, at, labels(at))
        return gradient.reshape(len(at), -1).square().sum(1).log() / 2

    ascent = maximize(
        climb,
        start.reshape(len(start), -1) / unit,
        low.flatten() / unit,
        high.flatten() / unit,
        method=method,
        steps=steps,
        tolerance=tolerance,
        learning_rate=learning_rate,
        together=max(1, MEMORY // (16 * KEPT_FOR_GRADIENT * len(inputs))),
    )
    ends = torch.minimum(torch.maximum((ascent.points * unit).reshape(start.shape), low), high)
    values = ascent.values.exp()
    best = int(values.nan_to_num(nan=-1.0).argmax())
    with torch.no_grad():
        return DifferingPoint(
            ends[best], labels(ends[best : best + 1])[0], float(values[best]), ends, values, ascent.converged
        )


def _starts(
    starts: int | torch.Tensor,
    inputs: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    unit: float,
    seed: int | None,
) -> torch.Tensor:
    shape = inputs.shape[1:]
    if not isinstance(starts, int):
        given = as_tensor("starts", starts).to(inputs)
        if given.shape[1:] != shape or given.ndim == 0 or len(given) == 0:
            text = ", ".join(["starts", *map(str, shape)])
            raise fail("starts", f"shape ({text})", f"shape {tuple(given.shape)}", "give one point a start")
        check_finite("starts", given)
        return given
    if seed is None:
        raise fail("seed", "an integer, for the starts are drawn", "None", "give a seed, or the starts themselves")
    generator = torch.Generator().manual_seed(seed)
    count = whole("starts", starts, 1)
    if bool((high - low).isfinite().all()):
        uniform = torch.rand(count, *shape, generator=generator, dtype=torch.float64).to(inputs)
        return low + (high - low) * uniform
    chosen = torch.randint(len(inputs), (count,), generator=generator).to(inputs.device)
    normal = torch.randn(count, *shape, generator=generator, dtype=torch.float64).to(inputs)
    return inputs[chosen] + unit * normal
