"""The queries at which two posteriors, without and with some records, differ most: gradient ascent from many starts.

Every (removal, start) is a problem of its own, and all problems move together: one kernel call a step for all that are
still moving. What is climbed is the logarithm of the distance, which has the same optima and does not go flat far from
the records; lengths are counted in units of the inputs' standard deviation, so rates and tolerances are free of scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, Protocol

import torch

from giveaway.checks import as_tensor, check_choice, check_finite, check_number, fail
from giveaway.gp.ascent import HISTORY, Method, maximize, whole
from giveaway.gp.divergence import kl_of_change, lood, mean_distance
from giveaway.gp.removal import Removal

Objective = Literal["kl", "mean"]
Origin = Literal["kept", "removed", "bounds"]

KEPT_FOR_GRADIENT = 64  # numbers that a kernel is taken to keep an entry until its gradient is known
REPEATED = 1e-8  # share of a query's variance, given the others, below which they count as one query


@dataclass(frozen=True, eq=False)
class Queries:
    """`queries` (R, q, …), the best of all starts, with `value` (R,), its distance.

    `ends` (R, starts, q, …), `values` and `converged` (R, starts) say where every start came to; `own` (R,) is the
    distance at the removed records themselves. A start at which there is no distance stays there, with value NaN.
    """

    queries: torch.Tensor
    value: torch.Tensor
    ends: torch.Tensor
    values: torch.Tensor
    converged: torch.Tensor
    own: torch.Tensor


class Target(Protocol):
    """R pairs of predictions, without and with the records `rows` (R, s) of `inputs` (n, …)."""

    @property
    def inputs(self) -> torch.Tensor: ...

    @property
    def rows(self) -> torch.Tensor: ...

    def measure(self, objective: Objective, owner: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """The distance (p,) of the pairs `owner` (p,) at their queries (p, q, …); NaN or 0 where there is none."""

    def own(self, objective: Objective) -> torch.Tensor:
        """The distance (R,) of every pair at the removed records themselves."""

    def numbers(self, queries: int) -> int:
        """How many numbers measuring one pair at so many queries holds at once, roughly."""


def optimal_queries(
    removal: Removal | Target,
    *,
    objective: Objective = "kl",
    queries: int = 1,
    starts: int | torch.Tensor = 8,
    origin: Origin | None = None,
    noise: float = 0.5,
    bounds: tuple[Any, Any] | None = None,
    method: Method = "lbfgs",
    steps: int = 200,
    tolerance: float = 1e-5,
    learning_rate: float = 0.1,
    seed: int | None = None,
    memory: int = 2**30,
) -> Queries:
    """Maximize KL(f_D(Q) ‖ f_D′(Q)) or the mean distance over `queries` queries for every removal.

    `starts` is (starts, q, …) for all removals alike, (R, starts, q, …), or how many to draw from `seed`: uniformly in
    the box (`origin` "bounds", the default where there are bounds), or around other records ("kept") or the removed
    ones ("removed"), with normal noise of `noise` standard deviations of the inputs. `bounds` (low, high) are numbers
    or of a record's shape. At most `steps` evaluations are spent on a start, which has converged when the gradient of
    the logarithm, without what points out of the box, has norm ≤ `tolerance`.

    "adam" moves by about `learning_rate`, falling to 0 along a cosine, puts each step back into the box, and returns
    the best point that it met. "lbfgs" is a projected L-BFGS: coordinates that the gradient holds at a bound are left
    out of the direction and of its history, and steps are put back into the box and halved until they gain enough;
    `learning_rate` is its first step. A mean distance costs O(n) a query and step, a divergence O(n²). Problems are
    taken so many at a time that they need about `memory` bytes.
    """
    target: Target = _Exact(removal) if isinstance(removal, Removal) else removal
    check_choice("objective", objective, ("kl", "mean"))
    count = whole("queries", queries, 1)
    low, high = box(bounds, target.inputs)
    unit = spread(target.inputs)
    start = _starts(target, count, starts, origin, noise, bounds, unit, seed)
    removals, each = start.shape[:2]
    shape = start.shape[2:]

    def climb(problems: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return target.measure(objective, problems // each, (points * unit).unflatten(1, shape)).log()

    size = 8 * (target.numbers(count) + (2 * HISTORY + 16) * shape.numel())
    ascent = maximize(
        climb,
        start.flatten(0, 1).flatten(1) / unit,
        low.flatten().repeat(count) / unit,
        high.flatten().repeat(count) / unit,
        method=method,
        steps=steps,
        tolerance=tolerance,
        learning_rate=learning_rate,
        together=max(1, int(check_number("memory", memory, minimum=1, remedy="give bytes, such as 2**30")) // size),
    )
    ends = (ascent.points * unit).unflatten(1, shape).unflatten(0, (removals, each))
    ends = torch.minimum(torch.maximum(ends, low), high)
    values = ascent.values.exp().view(removals, each)
    best = values.nan_to_num(nan=-1.0).argmax(1)
    at = torch.arange(removals, device=best.device)
    converged = ascent.converged.view(removals, each)
    return Queries(ends[at, best], values[at, best], ends, values, converged, target.own(objective))


class _Exact:
    """A Removal as a Target."""

    def __init__(self, removal: Removal) -> None:
        self.removal = removal
        self.inputs, self.rows = removal.posterior.inputs, removal.rows

    def measure(self, objective: Objective, owner: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        return distance_at(self.removal, objective, owner, queries)

    def own(self, objective: Objective) -> torch.Tensor:
        found = lood(self.removal.posterior, list(self.rows))
        return found.kl if objective == "kl" else found.mean

    def numbers(self, queries: int) -> int:
        n, size = self.removal.columns.shape[1:]
        return n * (KEPT_FOR_GRADIENT * queries + 3 * size + self.removal.step.shape[2])


def distance_at(removal: Removal, objective: Objective, owner: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """One of the distances of `lood_at`, (p,), of the removals `owner` (p,) at their queries (p, q, …).

    A divergence is NaN where its queries (nearly) repeat one another; `lood_at` refuses the whole batch for it.
    """
    if objective == "mean":
        cross = removal.posterior.cross(queries.flatten(0, 1)).view(*queries.shape[:2], -1)
        return mean_distance(cross @ removal.step[owner])
    fields = {name: getattr(removal, name)[owner] for name in ("rows", "columns", "root", "step")}
    return _kl(*replace(removal, **fields).change(queries))


def _kl(mean_change: torch.Tensor, excess: torch.Tensor, with_: torch.Tensor) -> torch.Tensor:
    repeated = near_singular(with_)[:, None, None]
    eye = torch.eye(with_.shape[-1], dtype=with_.dtype, device=with_.device)
    kl = kl_of_change(mean_change, excess, torch.where(repeated, eye, with_))
    return torch.where(repeated[:, 0, 0], math.nan, kl)


def near_singular(covariance: torch.Tensor) -> torch.Tensor:
    """Which of the covariances (p, q, q) of queries leave one of them nearly determined by the others."""
    root, info = torch.linalg.cholesky_ex(covariance.detach())
    left = root.diagonal(dim1=-2, dim2=-1).square()
    known = left <= REPEATED * covariance.detach().diagonal(dim1=-2, dim2=-1)
    return (info != 0) | known.any(-1) | ~left.isfinite().all(-1)


def spread(inputs: torch.Tensor) -> float:
    """The inputs' standard deviation over the records, all coordinates together: the unit of length of a search."""
    deviation = float(inputs.var(0, correction=0).mean().sqrt())
    return deviation if deviation > 0.0 else 1.0


def box(bounds: tuple[Any, Any] | None, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower and upper bounds of every number of a record, infinite where there are none."""
    shape = inputs.shape[1:]
    if bounds is None:
        return inputs.new_full(shape, -math.inf), inputs.new_full(shape, math.inf)
    ends = []
    for name, value in zip(("low", "high"), bounds, strict=True):
        end = as_tensor("bounds", value).to(inputs)
        if end.shape not in (torch.Size(()), shape):
            text = f"{name} of shape {tuple(end.shape)}"
            raise fail("bounds", f"numbers, or tensors of shape {tuple(shape)}", text, "give (low, high)")
        ends.append(end.expand(shape))
    low, high = ends
    if not bool((low < high).all()):
        place = int((~(low < high)).flatten().nonzero()[0])
        got = f"low {float(low.flatten()[place]):g} and high {float(high.flatten()[place]):g}"
        raise fail("bounds", "low below high", got, "give (low, high)")
    return low, high


def _starts(
    target: Target,
    queries: int,
    starts: int | torch.Tensor,
    origin: Origin | None,
    noise: float,
    bounds: tuple[Any, Any] | None,
    unit: float,
    seed: int | None,
) -> torch.Tensor:
    """(R, starts, q, …)."""
    inputs, rows = target.inputs, target.rows
    own = tuple(inputs.shape[1:])
    if isinstance(starts, Integral):
        return _drawn(target, (len(rows), whole("starts", int(starts), 1), queries), origin, noise, bounds, unit, seed)
    given = as_tensor("starts", starts).to(inputs)
    if given.ndim == inputs.ndim + 1:
        given = given.expand(len(rows), *given.shape)
    fits = given.ndim == inputs.ndim + 2 and (len(given), *given.shape[2:]) == (len(rows), queries, *own)
    if not fits or given.shape[1] == 0:
        text = ", ".join(["starts", str(queries), *map(str, own)])
        got = f"shape {tuple(as_tensor('starts', starts).shape)}"
        raise fail("starts", f"shape ({text}) or ({len(rows)}, {text})", got, "give one point a query of each start")
    check_finite("starts", given)
    return given


def _drawn(
    target: Target,
    shape: tuple[int, int, int],
    origin: Origin | None,
    noise: float,
    bounds: tuple[Any, Any] | None,
    unit: float,
    seed: int | None,
) -> torch.Tensor:
    inputs, rows = target.inputs, target.rows
    if seed is None:
        raise fail("seed", "an integer, for the starts are drawn", "None", "give a seed, or the starts themselves")
    generator = torch.Generator().manual_seed(seed)
    low, high = box(bounds, inputs)
    if origin is None:
        origin = "kept" if bounds is None else "bounds"
    if check_choice("origin", origin, ("kept", "removed", "bounds")) == "bounds":
        if not bool((high - low).isfinite().all()):
            raise fail(
                "bounds", "a finite box to draw starts from", repr(bounds), "give (low, high), or another origin"
            )
        uniform = torch.rand(*shape, *inputs.shape[1:], generator=generator, dtype=torch.float64).to(inputs)
        return low + (high - low) * uniform
    deviation = unit * check_number("noise", noise, minimum=0.0, remedy="0.5 standard deviations suit most data")
    size = rows.shape[1]
    if origin == "removed":
        pick = torch.randint(size, shape, generator=generator).to(rows.device)
        chosen = rows.gather(1, pick.flatten(1)).view(shape)
    else:
        if size == len(inputs):
            raise fail("origin", "'removed' or 'bounds'", "'kept', with every record removed", "choose another origin")
        chosen = torch.randint(len(inputs) - size, shape, generator=generator).to(rows.device)
        for row in rows.sort(1).values.T:  # steps over the removed rows
            chosen += chosen >= row[:, None, None]
    normal = torch.randn(*shape, *inputs.shape[1:], generator=generator, dtype=torch.float64).to(inputs)
    return inputs[chosen] + deviation * normal
