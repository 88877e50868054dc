"""What two posteriors give an attacker: the best test on the prediction of a record, and the queries at which they
differ most, by ascent from many starts at once (docs/derivations.md)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import torch

from giveaway.checks import as_tensor, check_choice, check_finite, check_number, check_whole, fail
from giveaway.gp.distinguishability import Objective, RemovedRecords
from giveaway.gp.posterior import KernelRegression, leave_one_out
from giveaway.theory.tradeoff import two_normals

Climb = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Ends = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

MEMORY = 2**30  # bytes for the problems that move together
KEPT_FOR_GRADIENT = 64  # numbers that a kernel is taken to keep an entry until its gradient is known
SCATTER = 0.5  # of starts about records, in standard deviations
FIRST_STEP = 0.1  # standard deviations in every coordinate
HISTORY = 8  # pairs of steps and changes of gradient
ARMIJO, CURVATURE = 1e-4, 1e-10
ROUNDING = 1e-13  # by which a value may seem to fall
SHORTEST = 1e-12  # share of a direction below which it is given up
TINY = 1e-30
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


@dataclass(frozen=True, eq=False)
class OptimalQueries:
    """The best `queries` (R, q, …) of all starts, their distance `value` (R,), where every start came to (NaN where
    there is no distance), and the distance of the removed records' `own` inputs."""

    queries: torch.Tensor
    value: torch.Tensor
    ends: torch.Tensor
    values: torch.Tensor
    converged: torch.Tensor
    own: torch.Tensor


def optimal_queries(
    removal: RemovedRecords,
    *,
    objective: Objective = "kl",
    queries: int = 1,
    starts: int | torch.Tensor = 8,
    bounds: tuple[Any, Any] | None = None,
    steps: int = 200,
    tolerance: float = 1e-5,
    seed: int | None = None,
) -> OptimalQueries:
    """Maximize KL(f_D(Q) ‖ f_D′(Q)) or the mean distance over `queries` queries for every removal.

    `starts` is (starts, q, …) for all removals alike, (R, starts, q, …), or how many to draw from `seed`: uniformly in
    the box of `bounds` (low, high), numbers or of a record's shape, or without bounds around other records. At most
    `steps` evaluations are spent on a start, which has converged when the gradient of the logarithm, without what
    points out of the box, has norm ≤ `tolerance`. A mean distance costs O(n) a query and step, a divergence O(n²).
    """
    check_choice("objective", objective, ("kl", "mean"))
    count = check_whole("queries", queries)
    space = search_space(bounds, removal.inputs)
    if isinstance(starts, Integral):
        start = _drawn_starts(removal, (len(removal.rows), check_whole("starts", int(starts)), count), space, seed)
    else:
        start = _given_starts(removal, count, starts)
    removals, each = start.shape[:2]

    def climb(problems: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return removal.measure(objective, problems // each, points).log()

    numbers = len(removal.inputs) * (2 * KEPT_FOR_GRADIENT * count + 4 * removal.rows.shape[1])
    together = max(1, MEMORY // (8 * (numbers + (6 * HISTORY + 16) * start.shape[2:].numel())))
    ascent = maximize(climb, start.flatten(0, 1), space, steps=steps, tolerance=tolerance, together=together)
    ends, values, converged = (part.unflatten(0, (removals, each)) for part in ascent)
    best = values.nan_to_num(nan=-1.0).argmax(1)
    at = torch.arange(removals, device=best.device)
    return OptimalQueries(ends[at, best], values[at, best], ends, values, converged, removal.own(objective))


class SearchSpace(NamedTuple):
    """The box of a search, `low` and `high` of a record's shape, infinite unless `bounded`, and its unit of length."""

    low: torch.Tensor
    high: torch.Tensor
    unit: float
    bounded: bool


def search_space(bounds: tuple[Any, Any] | None, inputs: torch.Tensor) -> SearchSpace:
    """Check bounds (low, high); the unit is the inputs' standard deviation over records, all coordinates together."""
    shape = inputs.shape[1:]
    unit = float(inputs.var(0, correction=0).mean().sqrt()) or 1.0
    ends = []
    for name, value in zip(("low", "high"), bounds or (-math.inf, math.inf), strict=True):
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
    return SearchSpace(low, high, unit, bounds is not None)


def _given_starts(removal: RemovedRecords, queries: int, starts: Any) -> torch.Tensor:
    """Check starts (starts, q, …) or (R, starts, q, …), and return them as the latter."""
    inputs, removals = removal.inputs, len(removal.rows)
    given = as_tensor("starts", starts).to(inputs)
    each = given.expand(removals, *given.shape) if given.ndim == inputs.ndim + 1 else given
    shape = (queries, *inputs.shape[1:])
    if len(each) != removals or each.shape[2:] != shape or each.numel() == 0:
        text = ", ".join(["starts", *map(str, shape)])
        expected, got = f"shape ({text}) or ({removals}, {text})", f"shape {tuple(given.shape)}"
        raise fail("starts", expected, got, "give one point a query of each start")
    check_finite("starts", given)
    return each


def _drawn_starts(removal: RemovedRecords, shape: tuple[int, ...], space: SearchSpace, seed: Any) -> torch.Tensor:
    """Draw starts of `shape` (R, starts, q), uniformly in the box if there is one, else around the records kept."""
    if seed is None:
        raise fail("seed", "an integer, for the starts are drawn", "None", "give a seed, or the starts themselves")
    generator, inputs, rows = torch.Generator().manual_seed(seed), removal.inputs, removal.rows
    if space.bounded:
        if not bool((space.high - space.low).isfinite().all()):
            raise fail("bounds", "a finite box to draw starts from", "an infinite one", "give the starts themselves")
        draw = torch.rand(*shape, *space.low.shape, generator=generator, dtype=torch.float64).to(inputs)
        return space.low + (space.high - space.low) * draw
    if rows.shape[1] == len(inputs):
        raise fail("bounds", "a box to draw starts from", "none, with every record removed", "give (low, high)")
    chosen = torch.randint(len(inputs) - rows.shape[1], shape, generator=generator).to(rows.device)
    for row in rows.sort(1).values.T:  # steps over the removed rows
        chosen += chosen >= row[:, None, None]
    points = inputs[chosen]
    normal = torch.randn(points.shape, generator=generator, dtype=torch.float64).to(points)
    return points + SCATTER * space.unit * normal


@torch.no_grad()
def maximize(
    climb: Climb, start: torch.Tensor, space: SearchSpace, *, steps: int, tolerance: float, together: int
) -> Ends:
    """Maximize exp(climb(problems (p,), points (p, …)) (p,)) from `start` (P, …) within the box, `together` at a time,
    each on its own. Return the last points, their values (NaN if there never was one), and which converged."""
    check_whole("steps", steps)
    gap = check_number("tolerance", tolerance, minimum=0.0, remedy="1e-5 suits most kernels")
    shape = start.shape[1:]
    low, high = (end.expand(shape).flatten() / space.unit for end in (space.low, space.high))
    parts = []
    for problems in torch.arange(len(start), device=start.device).split(together):

        def part(which: torch.Tensor, points: torch.Tensor, of: torch.Tensor = problems) -> torch.Tensor:
            return climb(of[which], (points * space.unit).reshape(len(points), *shape))

        at = start[problems].reshape(len(problems), -1) / space.unit
        parts.append(_lbfgs(part, at.clamp(low, high), low, high, steps, gap))
    points, values, converged = (torch.cat(column) for column in zip(*parts, strict=True))
    return (points * space.unit).reshape(start.shape).clamp(space.low, space.high), values.exp(), converged


def _lbfgs(climb: Climb, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, steps: int, tolerance: float) -> Ends:
    problems, numbers = x.shape
    reach = math.sqrt(numbers)  # one standard deviation in every coordinate
    everyone = torch.arange(problems, device=x.device)
    value, slope, good = _evaluate(climb, everyone, x)
    value = torch.where(good, value, math.nan)
    taken, bends = (x.new_zeros(problems, HISTORY, numbers) for _ in range(2))
    length = x.new_full((problems,), FIRST_STEP * reach)
    direction, share = torch.zeros_like(x), x.new_ones(problems)

    def aim(which: torch.Tensor) -> None:
        inward = _inward(x[which], slope[which], low, high)
        towards, known = _quasi_newton(taken[which], bends[which], inward)
        norm = inward.norm(dim=1)
        known &= (towards * inward).sum(1) > CURVATURE * norm * towards.norm(dim=1)
        steepest = inward * (length[which] / norm.clamp_min(TINY))[:, None]
        towards = torch.where(known[:, None], towards, steepest)
        far = towards.norm(dim=1).clamp_min(TINY)
        direction[which] = towards * (reach / far).clamp_max(1.0)[:, None]
        share[which] = 1.0

    def still(which: torch.Tensor) -> torch.Tensor:
        return _inward(x[which], slope[which], low, high).norm(dim=1) <= tolerance

    active = everyone[good & ~still(everyone)]
    aim(active)
    for _ in range(steps - 1):
        if len(active) == 0:
            break
        trial = (x[active] + share[active, None] * direction[active]).clamp(low, high)
        found, new_slope, good = _evaluate(climb, active, trial)
        move = trial - x[active]
        promised, gained = (slope[active] * move).sum(1), found - value[active]
        slack = ROUNDING * (1.0 + value[active].abs())
        accepted = good & (gained >= ARMIJO * promised - slack) & (promised > 0)

        on, off = active[accepted], active[~accepted]
        step, bend = move[accepted], slope[on] - new_slope[accepted]
        told = (step * bend).sum(1) > CURVATURE * step.norm(dim=1) * bend.norm(dim=1)
        for pairs, new in ((taken, step), (bends, bend)):
            pairs[on[told]] = torch.cat([pairs[on[told], 1:], new[told].unsqueeze(1)], 1)
        grown = torch.where(share[on] == 1.0, 2.0 * length[on], share[on] * length[on])
        length[on] = grown.clamp(SHORTEST, reach)
        x[on], value[on], slope[on] = trial[accepted], found[accepted], new_slope[accepted]
        on = on[~still(on)]
        aim(on)

        # the maximum of the parabola through what is known, kept between a tenth and a half of the step
        parabola = (promised / (2.0 * (promised - gained)))[~accepted]
        share[off] *= torch.where(good[~accepted], parabola.nan_to_num(nan=0.5), 0.1).clamp(0.1, 0.5)
        length[off] = (length[off] / 2).clamp_min(SHORTEST)
        spent = share[off] < SHORTEST
        again = off[spent & taken[off, -1].any(1)]
        taken[again] = 0.0
        aim(again)
        active = torch.cat([on, off[~spent], again]).sort().values
    return x, value, value.isfinite() & still(everyone)


def _quasi_newton(steps: torch.Tensor, bends: torch.Tensor, inward: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inverse curvature times `inward` (p, D), where that is not 0, and where any curvature is known.

    The last pairs of each problem, the newest at the end, are `steps` s and `bends` y = −(change of gradient), both
    (p, HISTORY, D), and 0 where there is none yet."""
    free, d = (inward != 0).unsqueeze(1), inward.clone()
    steps, bends = steps * free, bends * free
    product, size = (steps * bends).sum(2), bends.square().sum(2)
    usable = product > CURVATURE * steps.norm(dim=2) * size.sqrt()
    inverse = torch.where(usable, 1.0 / product, 0.0)
    weight = torch.zeros_like(inverse)
    for k in reversed(range(HISTORY)):
        weight[:, k] = inverse[:, k] * (steps[:, k] * d).sum(1)
        d -= weight[:, k, None] * bends[:, k]
    known, newest = usable.any(1), HISTORY - 1 - usable.flip(1).to(torch.uint8).argmax(1, keepdim=True)
    d *= torch.where(known, (product / size).gather(1, newest)[:, 0], 1.0)[:, None]
    for k in range(HISTORY):
        d += (weight[:, k] - inverse[:, k] * (bends[:, k] * d).sum(1))[:, None] * steps[:, k]
    return d, known


def _evaluate(
    climb: Climb, problems: torch.Tensor, points: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return values (p,), gradients (p, D), and where both are finite."""
    with torch.enable_grad():
        at = points.detach().requires_grad_()
        value = climb(problems, at)
        finite = value.isfinite()
        (slope,) = torch.autograd.grad(torch.where(finite, value, 0.0).sum(), at)
    return value.detach(), slope, finite & slope.isfinite().all(1)


def _inward(x: torch.Tensor, slope: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return the gradient without the coordinates at a bound that it would push out of the box."""
    return torch.where(((x <= low) & (slope < 0)) | ((x >= high) & (slope > 0)), 0.0, slope)
