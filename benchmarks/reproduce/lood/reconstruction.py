"""Which of the records that were left out a search for the best queries has found."""

from dataclasses import dataclass

import torch

from giveaway.checks import fail
from giveaway.gp.distinguishability import RemovedRecords, x_minus_log1p
from giveaway.gp.query import OptimalQueries

PAIRS_TOGETHER = 2**24  # numbers of pairs of records and queries at a time


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
