"""The LOOD paper's one-dimensional examples: ten records of a sine, drawn many times; one draw's curves are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.measuring import digits
from benchmarks.reproduce.job import Arrays, Job, Piece
from benchmarks.reproduce.lood.measures import ends
from benchmarks.reproduce.page import read_paper
from giveaway.gp.distinguishability import kl_of_change, mean_distance, remove
from giveaway.gp.kernels import RBF
from giveaway.gp.posterior import Posterior, fit
from giveaway.gp.query import maximize, search_space

SINE = read_paper("lood")["printed"]["sine"]
RECORDS, NOISE, ENDS = SINE["records"], SINE["noise"], 5.0
BEYOND = 8.0  # queries of `placed` go past the records at ±5
QUERIES, KEPT = 2_001, 401  # on a grid: those asked, and those whose curves are kept


def domain(job: Job) -> Piece:
    """Ask at every query; the record itself is the last of them."""
    at_the_record = 0
    shown: dict[str, np.ndarray] = {}
    for draw in range(_draws(job)):
        uniform = torch.rand(RECORDS + 1, generator=_generator(draw), dtype=torch.float64)
        places = ENDS * (2 * uniform - 1)
        kl = at_queries(places[:-1], places[-1:], torch.cat([_grid(ENDS), places[-1:]]))["kl"]
        at_the_record += int(kl.argmax() == len(kl) - 1)
        if draw == 0:
            kept = at_queries(places[:-1], places[-1:], _grid(ENDS, KEPT))["kl"]
            shown = {"records": places[:-1].numpy(), "record": places[-1:].numpy(), "kl": kept / kept.max()}
    return shown, {"draws": _draws(job), "queries": QUERIES, "kl_largest_at_the_record": at_the_record}


def steepest(job: Job) -> Piece:
    """Add Algorithm 1's record, and find Q*, where the mean distance is largest."""
    grid = _grid(ENDS)
    step = float(grid[1] - grid[0])
    found, optima, steepest_of_all, at_the_record = [], [], 0, 0
    shares: dict[str, list[float]] = {"log_ratio": [], "kl": []}
    for draw in range(_draws(job)):
        x = normal_places(draw)
        before = _fit(x)
        starts = ENDS * (2 * torch.rand(32, 1, generator=_generator(draw), dtype=torch.float64) - 1)
        best = steepest_point(before, torch.sin, starts, bounds=(-ENDS, ENDS))
        queries = torch.cat([grid, best.point.view(1)])
        found_at = at_queries(x, best.point.view(1), queries)
        far = int(found_at["mean"].argmax())
        found.append(float(best.point))
        optima.append(float(queries[far]))
        steepest_of_all += int(slopes(before, grid).max() <= best.steepness * (1 + 1e-6))
        at_the_record += int(found_at["kl"].argmax() == len(grid))
        for name, share in shares.items():
            share.append(found_at[name][far] / found_at[name][-1])
    offsets = np.abs(np.array(optima) - found)
    shown = int(np.abs(np.abs(found) - SINE["steepest"]).argmin())  # the draw most like the printed one
    x, record = normal_places(shown), torch.tensor([found[shown]], dtype=torch.float64)
    kept = at_queries(x, record, _grid(ENDS, KEPT))
    curves = {"slope": slopes(_fit(x), _grid(ENDS, KEPT)), **kept}
    told = {
        "draws": len(found),
        "steepest_between": [digits(np.abs(found).min()), digits(np.abs(found).max())],
        "no_slope_of_the_grid_is_steeper": steepest_of_all,
        "kl_largest_at_the_record": at_the_record,
        "mean_largest_elsewhere": int((offsets > step).sum()),
        "mean_distance_median_offset": digits(np.median(offsets)),
        "at_the_mean_optimum_over_the_record": {name: ends(share) for name, share in shares.items()},
        "shown": {
            "draw": shown,
            "steepest": digits(found[shown]),
            "mean_largest_at": digits(optima[shown]),
            "largest": {name: digits(curve.max()) for name, curve in curves.items()},
        },
    }
    arrays = {name: curve / curve.max() for name, curve in curves.items()}
    return {"records": x.numpy(), "record": record.numpy(), **arrays}, told


def placed(job: Job) -> Piece:
    grid = _grid(BEYOND)
    told: dict[str, Any] = {"draws": _draws(job)}
    arrays = {"records": normal_places(0).numpy()}
    for place in SINE["placed"]:
        record = torch.tensor([place], dtype=torch.float64)
        means = [at_queries(normal_places(draw), record, grid)["mean"] for draw in range(_draws(job))]
        optima = np.array([float(grid[mean.argmax()]) for mean in means])
        kept = at_queries(normal_places(0), record, _grid(BEYOND, KEPT))["mean"]
        arrays[f"mean_{place:g}"] = kept / kept.max()
        told[f"{place:g}"] = {
            "offset_of_the_largest": ends(np.abs(optima - place)),
            "largest_mean_distance": ends(np.max(means, 1)),
            "shown": {"mean_largest_at": digits(optima[0]), "largest": digits(kept.max())},
        }
    return arrays, told


def at_queries(x: torch.Tensor, record: torch.Tensor, queries: torch.Tensor) -> Arrays:
    """Add one record at `record` (1,) to those at `x` (n,), and measure at queries (q,): ½(mean without − mean with)²,
    log(variance without/with), and KL."""
    removal = remove(_fit(torch.cat([x, record])), torch.full((len(queries),), len(x)))
    mean_change, excess, with_ = removal.change(queries[:, None, None])
    ratio = (excess @ excess.mT / with_).log1p()[:, 0, 0]
    values = {"mean": mean_distance(mean_change), "log_ratio": ratio, "kl": kl_of_change(mean_change, excess, with_)}
    return {name: value.numpy() for name, value in values.items()}


class DifferingPoint(NamedTuple):
    """`point` (…) and its `label` (C,), `steepness` the norm of the gradient there; and where every start came to."""

    point: torch.Tensor
    label: torch.Tensor
    steepness: float
    ends: torch.Tensor
    values: torch.Tensor
    converged: torch.Tensor


def steepness(posterior: Posterior, points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return ∇_Q M(Q) at Q = S, (p, …), for each of `points` S added with its label (p, C) to the records D.

    Adding S moves the mean at Q by k(Q, S)/(k(S, S) + σ²)·e, with k the posterior covariance of D and e = y_S − μ_D(S).
    k is symmetric, so ∂k(Q, S)/∂Q at Q = S is ½∇v(S) for v(S) = k(S, S). That is Proposition 4.1 where k(x, x) is
    constant, and holds for any kernel.
    """
    with torch.enable_grad():
        at = points if points.requires_grad else points.clone().requires_grad_()
        variance = posterior.variance(at)
        (slope,) = torch.autograd.grad(variance.sum(), at, create_graph=True)
    error = (labels - posterior.mean(at)).square().sum(1)
    weight = 0.5 * variance / (variance + posterior.noise).square() * error
    gradient = weight.view(-1, *[1] * (slope.ndim - 1)) * slope
    return gradient if points.requires_grad else gradient.detach()


def steepest_point(
    posterior: Posterior,
    label: Callable[[torch.Tensor], torch.Tensor],
    starts: torch.Tensor,
    *,
    bounds: tuple[float, float],
    steps: int = 200,
) -> DifferingPoint:
    """Find the record that, were it added to D, would leave the mean distance most steep at itself (Algorithm 1).

    It maximizes ‖∇_Q M(Q)‖ at Q = S over S with the label `label(S)`, points (p, …) -> (p, C), from all starts (s, …);
    there is more than one maximum, and the best is returned. `posterior` is that of D, WITHOUT the point.
    """

    def climb(_: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        return steepness(posterior, points, label(points)).flatten(1).square().sum(1).log() / 2

    space = search_space(bounds, posterior.inputs)
    found = maximize(climb, starts, space, steps=steps, tolerance=1e-5, together=len(starts))
    ends, values, _ = found
    best = int(values.nan_to_num(nan=-1.0).argmax())
    return DifferingPoint(ends[best], label(ends[best : best + 1])[0], float(values[best]), *found)


def slopes(posterior: Posterior, records: torch.Tensor) -> np.ndarray:
    """Return |∇M(Q)| at Q = S for each of the records S (s,), were it added."""
    return steepness(posterior, records[:, None], records.sin()[:, None]).abs()[:, 0].numpy()


def normal_places(draw: int) -> torch.Tensor:
    return torch.randn(RECORDS, generator=_generator(draw), dtype=torch.float64)


def _fit(x: torch.Tensor) -> Posterior:
    return fit(RBF(1.0), x[:, None], x.sin()[:, None], NOISE)


def _grid(ends: float, queries: int = QUERIES) -> torch.Tensor:
    return torch.linspace(-ends, ends, queries, dtype=torch.float64)


def _generator(draw: int) -> torch.Generator:
    return torch.Generator().manual_seed(draw)


def _draws(job: Job) -> int:
    return 5 if job.small else 100


MAKERS = {"domain": domain, "steepest": steepest, "placed": placed}
RUNS = {"lood_toys": partial(Job.save_pieces, makers=MAKERS, noise=NOISE)}
