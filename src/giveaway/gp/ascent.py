"""Many small maximizations at once, each with its own history and end: projected L-BFGS, or Adam."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from giveaway.checks import check_choice, check_number, fail

Method = Literal["adam", "lbfgs"]

HISTORY = 8  # pairs of steps and changes of gradient
ARMIJO, CURVATURE = 1e-4, 1e-10
ROUNDING = 1e-13  # by which a value may seem to fall
SHORTEST = 1e-12  # share of a direction below which it is given up
MOMENTS = (0.9, 0.999)
TINY = 1e-30


@dataclass(frozen=True, eq=False)
class Ascent:
    """Where each of P problems came to: `points` (P, D), `values` (P,), NaN if it never had one, `converged` (P,)."""

    points: torch.Tensor
    values: torch.Tensor
    converged: torch.Tensor


Climb = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@torch.no_grad()
def maximize(
    climb: Climb,
    start: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    *,
    method: Method,
    steps: int,
    tolerance: float,
    learning_rate: float,
    together: int,
) -> Ascent:
    """Maximize `climb(problems (p,), points (p, D)) -> (p,)` from `start` (P, D) within the box, `together` at a time.

    No problem sees another: each has its own history, step length and end. A value that is not finite counts as
    a point that cannot be gone to.
    """
    walk = {"adam": _adam, "lbfgs": _lbfgs}[check_choice("method", method, ("adam", "lbfgs"))]
    whole("steps", steps, 1)
    gap = check_number("tolerance", tolerance, minimum=0.0, remedy="1e-5 suits most kernels")
    rate = check_number("learning_rate", learning_rate, minimum=0.0, remedy="0.1 standard deviations suit most data")
    if rate == 0.0:
        raise fail("learning_rate", "a positive number", "0", "0.1 standard deviations suit most data")
    parts = []
    for problems in torch.arange(len(start), device=start.device).split(together):
        at = torch.minimum(torch.maximum(start[problems], low), high)

        def part(which: torch.Tensor, points: torch.Tensor, of: torch.Tensor = problems) -> torch.Tensor:
            return climb(of[which], points)

        parts.append(walk(part, at, low, high, steps, gap, rate))
    return Ascent(*(torch.cat([getattr(p, name) for p in parts]) for name in ("points", "values", "converged")))


def _adam(
    climb: Climb, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, steps: int, tolerance: float, rate: float
) -> Ascent:
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    best, value = x.clone(), x.new_full((len(x),), -math.inf)
    gap, share = x.new_full((len(x),), math.inf), x.new_ones(len(x))
    active = torch.arange(len(x), device=x.device)
    for step in range(1, steps + 1):
        found, slope, good = _evaluate(climb, active, x[active])
        better = good & (found > value[active])
        new = active[better]
        best[new], value[new] = x[new], found[better]
        gap[new] = _inward(x[new], slope[better], low, high).norm(dim=1)
        # one that left its domain goes back to its best point, and on in smaller steps
        lost = active[~good]
        x[lost], share[lost] = best[lost], share[lost] / 2
        slope = torch.where(good[:, None], slope, 0.0)
        moving = (gap[active] > tolerance) & value[active].isfinite()
        active, slope = active[moving], slope[moving]
        if len(active) == 0:
            break
        first[active] = MOMENTS[0] * first[active] + (1 - MOMENTS[0]) * slope
        second[active] = MOMENTS[1] * second[active] + (1 - MOMENTS[1]) * slope.square()
        size = rate * (1.0 + math.cos(math.pi * (step - 1) / steps)) / 2 / (1 - MOMENTS[0] ** step)
        scale = (second[active] / (1 - MOMENTS[1] ** step)).sqrt() + TINY
        trial = x[active] + size * share[active, None] * first[active] / scale
        x[active] = torch.minimum(torch.maximum(trial, low), high)
    return Ascent(best, torch.where(value.isfinite(), value, math.nan), gap <= tolerance)


def _lbfgs(
    climb: Climb, x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, steps: int, tolerance: float, rate: float
) -> Ascent:
    problems, numbers = x.shape
    reach = math.sqrt(numbers)  # one standard deviation in every coordinate
    everyone = torch.arange(problems, device=x.device)
    value, slope, good = _evaluate(climb, everyone, x)
    value = torch.where(good, value, math.nan)
    history = _History(x)
    length = x.new_full((problems,), min(1.0, rate) * reach)
    direction, share = torch.zeros_like(x), x.new_ones(problems)

    def aim(which: torch.Tensor) -> None:
        inward = _inward(x[which], slope[which], low, high)
        towards, known = history.direction(which, inward)
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
        trial = torch.minimum(torch.maximum(x[active] + share[active, None] * direction[active], low), high)
        found, new_slope, good = _evaluate(climb, active, trial)
        move = trial - x[active]
        promised = (slope[active] * move).sum(1)
        gained = found - value[active]
        slack = ROUNDING * (1.0 + value[active].abs())
        accepted = good & (gained >= ARMIJO * promised - slack) & (promised > 0)

        on, off = active[accepted], active[~accepted]
        history.add(on, move[accepted], slope[on] - new_slope[accepted])
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
        again = off[spent & (history.count[off] > 0)]
        history.count[again] = 0
        aim(again)
        active = torch.cat([on, off[~spent], again]).sort().values
    return Ascent(x, value, value.isfinite() & still(everyone))


class _History:
    """The last HISTORY pairs of each problem: `steps` s and `bends` y = −(change of gradient), both (P, HISTORY, D)."""

    def __init__(self, x: torch.Tensor) -> None:
        self.steps = x.new_zeros(len(x), HISTORY, x.shape[1])
        self.bends = torch.zeros_like(self.steps)
        self.count = torch.zeros(len(x), dtype=torch.int64, device=x.device)

    def add(self, which: torch.Tensor, step: torch.Tensor, bend: torch.Tensor) -> None:
        kept = (step * bend).sum(1) > CURVATURE * step.norm(dim=1) * bend.norm(dim=1)
        which = which[kept]
        slot = self.count[which] % HISTORY
        self.steps[which, slot], self.bends[which, slot] = step[kept], bend[kept]
        self.count[which] += 1

    def direction(self, which: torch.Tensor, inward: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The inverse curvature times `inward` (p, D), by the two-loop recursion, and where any curvature is known.

        Coordinates at which `inward` is 0 are held: the pairs are seen without them.
        """
        free, d = inward != 0, inward.clone()
        known = torch.zeros(len(which), dtype=torch.bool, device=d.device)
        scale = d.new_ones(len(which))
        held = []
        for back in range(1, HISTORY + 1):
            there = self.count[which] >= back
            if not bool(there.any()):
                break
            slot = (self.count[which] - back) % HISTORY
            step, bend = self.steps[which, slot] * free, self.bends[which, slot] * free
            product, size = (step * bend).sum(1), bend.square().sum(1)
            usable = there & (product > CURVATURE * step.norm(dim=1) * size.sqrt())
            inverse = torch.where(usable, 1.0 / product, 0.0)
            scale = torch.where(usable & ~known, product / size, scale)
            known |= usable
            weight = inverse * (step * d).sum(1)
            d -= weight[:, None] * bend
            held.append((slot, inverse, weight))
        d *= scale[:, None]
        for slot, inverse, weight in reversed(held):
            step, bend = self.steps[which, slot] * free, self.bends[which, slot] * free
            d += (weight - inverse * (bend * d).sum(1))[:, None] * step
        return d, known


def _evaluate(
    climb: Climb, problems: torch.Tensor, points: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values (p,), gradients (p, D), and where both are finite."""
    with torch.enable_grad():
        at = points.detach().requires_grad_()
        value = climb(problems, at)
        finite = value.isfinite()
        (slope,) = torch.autograd.grad(torch.where(finite, value, 0.0).sum(), at)
    return value.detach(), slope, finite & slope.isfinite().all(1)


def _inward(x: torch.Tensor, slope: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """The gradient without the coordinates at a bound that it would push out of the box."""
    held = ((x <= low) & (slope < 0)) | ((x >= high) & (slope > 0))
    return torch.where(held, 0.0, slope)


def whole(argument: str, value: int, minimum: int) -> int:
    """A whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise fail(argument, f"a whole number of at least {minimum}", repr(value), "give how many there should be")
    return value
