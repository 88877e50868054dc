"""Which of the left-out records the optimal queries give back.

The attacker has the two posteriors and not the records; queries found by `optimal_queries` from starts that know
nothing of the removed records (origin "kept" or "bounds") are the reconstructions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from giveaway.checks import fail
from giveaway.gp.divergence import x_minus_log1p
from giveaway.gp.posterior import Posterior
from giveaway.gp.query import Queries, distance_at
from giveaway.gp.removal import Removal

TOGETHER = 2**24  # numbers of pairs of records and queries at a time


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """How each end point of R removals of s records relates to those; `starts` and q as the queries have them.

    counts       (R, s): how many queries of converged starts have that member as the nearest of ALL records
    strays       (R,): how many have a record that was kept as the nearest
    unrecovered  (R, s): the members that no query came to
    nearest      (R, starts, q): the member nearest to each query, from 0 to s − 1
    distance     (R, starts, q, s): Euclidean distance to each member (of directions, where scale was left out)
    prediction   (R, starts, q, s): KL of the prediction at the member from that at the query, all records in: how
                 alike the model finds them (0 is the same)
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
def reconstruct(removal: Removal, found: Queries, *, scale_free: bool = False) -> Reconstruction:
    """Compare the ends of every start in `found`, searched for this `removal`, with the records that were removed.

    `scale_free` compares directions x/‖x‖: under a homogeneous kernel without bias KL is blind to a query's length, and
    the search leaves it anywhere.
    """
    posterior, rows = removal.posterior, removal.rows
    ends = found.ends
    removals, starts, q = ends.shape[:3]
    if removals != len(rows) or ends.shape[3:] != posterior.inputs.shape[1:]:
        got = f"ends of shape {tuple(ends.shape)}"
        raise fail("found", f"queries for these {len(rows)} removals", got, "search with the same removal")
    size = rows.shape[1]
    members = posterior.inputs[rows]
    queries = ends.flatten(1, 2)
    seen = (_direction if scale_free else _flat)(posterior.inputs)
    asked = (_direction if scale_free else _flat)(queries.flatten(0, 1))
    pairs = asked.view(removals, starts * q, -1), seen[rows]
    distance = torch.cdist(*pairs, compute_mode="donot_use_mm_for_euclid_dist")
    distance = distance.view(removals, starts, q, size)
    nearest = distance.argmin(3)
    first = _nearest_record(seen, asked).view(removals, starts, q)
    converged = found.converged.unsqueeze(2)
    hits = (first.unsqueeze(3) == rows[:, None, None, :]) & converged.unsqueeze(3)
    counts = hits.sum((1, 2))
    strays = (converged.expand_as(first) & ~hits.any(3)).sum((1, 2))
    prediction = _prediction_kl(posterior, members, queries).view(removals, starts, q, size)
    return Reconstruction(
        counts=counts,
        strays=strays,
        unrecovered=counts == 0,
        nearest=nearest,
        distance=distance,
        prediction=prediction,
        lood=_alone(removal, queries).view(removals, starts, q),
        own=_alone(removal, members),
    )


def _flat(points: torch.Tensor) -> torch.Tensor:
    return points.reshape(len(points), -1)


def _direction(points: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(_flat(points), dim=1)


def _nearest_record(records: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """The row of the record (n, d) nearest to each of the queries (m, d)."""
    step = max(1, TOGETHER // len(records))
    return torch.cat([torch.cdist(part, records).argmin(1) for part in queries.split(step)])


def _prediction_kl(posterior: Posterior, members: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """KL(f(member) ‖ f(query)), (R, m, s), under the posterior with all records, summed over its outputs."""
    mean_s, variance_s = _predict(posterior, members)
    mean_q, variance_q = _predict(posterior, queries)
    gap = (mean_s[:, None] - mean_q[:, :, None]).square().sum(3)
    ratio = variance_s[:, None] / variance_q[:, :, None]
    return (mean_s.shape[2] * x_minus_log1p(ratio - 1.0) + gap / variance_q[:, :, None]) / 2


def _predict(posterior: Posterior, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means (R, m, C) and variances (R, m) at points (R, m, …)."""
    step = max(1, TOGETHER // len(posterior.inputs))
    parts = points.flatten(0, 1).split(step)
    mean = torch.cat([posterior.mean(part) for part in parts])
    variance = torch.cat([posterior.variance(part) for part in parts])
    return mean.unflatten(0, points.shape[:2]), variance.view(points.shape[:2])


def _alone(removal: Removal, points: torch.Tensor) -> torch.Tensor:
    """KL-LOOD (R, m) of each of the points (R, m, …) as the only query."""
    removals, each = points.shape[:2]
    numbers, size = removal.columns.shape[1:]
    owner = torch.arange(removals, device=points.device).repeat_interleave(each)
    step = max(1, TOGETHER // (numbers * (size + 2)))
    pairs = zip(owner.split(step), points.flatten(0, 1).unsqueeze(1).split(step), strict=True)
    return torch.cat([distance_at(removal, "kl", own, at) for own, at in pairs]).view(removals, each)
