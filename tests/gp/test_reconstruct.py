"""Records given back by optimal queries, counted and compared by plain loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from giveaway.checks import InputError
from giveaway.gp.divergence import lood, lood_at
from giveaway.gp.kernels import RBF
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit
from giveaway.gp.query import optimal_queries
from giveaway.gp.reconstruct import reconstruct
from giveaway.gp.removal import remove
from tests.gp.test_posterior import draw


@pytest.mark.parametrize("queries", [1, 2])
def test_every_number_against_a_plain_loop(queries):
    posterior = fit(RBF(), 1.5 * draw(12, 2), draw(12, 2, seed=1), 0.05)
    rows = torch.tensor([[0, 4, 2], [1, 7, 9]])
    removal = remove(posterior, rows)
    found = optimal_queries(removal, queries=queries, starts=7, seed=0, steps=25)
    result = reconstruct(removal, found)
    x = posterior.inputs
    assert bool(found.converged.any())
    for r in range(2):
        counts, strays = [0, 0, 0], 0
        for k in range(7):
            for q in range(queries):
                end = found.ends[r, k, q]
                distances = (x - end).norm(dim=1)
                torch.testing.assert_close(result.distance[r, k, q], distances[rows[r]])
                assert int(result.nearest[r, k, q]) == int(distances[rows[r]].argmin())
                alone = lood_at(remove(posterior, rows[r : r + 1]), end[None, None]).kl[0]
                torch.testing.assert_close(result.lood[r, k, q], alone)
                for s in range(3):
                    member = x[rows[r, s]][None]
                    truth = sum(
                        kl_divergence(
                            Normal(posterior.mean(member)[0, c], posterior.variance(member)[0].sqrt()),
                            Normal(posterior.mean(end[None])[0, c], posterior.variance(end[None])[0].sqrt()),
                        )
                        for c in range(2)
                    )
                    torch.testing.assert_close(result.prediction[r, k, q, s], truth, rtol=1e-6, atol=1e-9)
                if found.converged[r, k]:
                    first = int(distances.argmin())
                    if first in rows[r].tolist():
                        counts[rows[r].tolist().index(first)] += 1
                    else:
                        strays += 1
        assert result.counts[r].tolist() == counts
        assert int(result.strays[r]) == strays
        assert result.unrecovered[r].tolist() == [count == 0 for count in counts]
    own = torch.stack([lood_at(removal, x[rows][:, s : s + 1]).kl for s in range(3)], 1)
    torch.testing.assert_close(result.own, own)


def test_a_record_is_recovered_from_the_posteriors_alone():
    d = 12
    x = draw(40, d)
    posterior = fit(RBF(4.0), x, torch.sign(x[:, 0]), 0.01)
    exposed = lood(posterior).kl.topk(5).indices
    removal = remove(posterior, exposed)
    found = optimal_queries(removal, starts=12, bounds=(-3.0, 3.0), seed=0)
    result = reconstruct(removal, found)
    assert not bool(result.unrecovered.any())
    torch.testing.assert_close(found.value, found.own, rtol=1e-6, atol=0)
    closest = found.values.argmax(1)
    at = torch.arange(5)
    assert float(result.distance[at, closest].max()) < 1e-2
    assert float(result.prediction[at, closest].max()) < 1e-5


def test_without_a_bias_only_the_direction_can_come_back():
    x = draw(30, 6)
    posterior = fit(NNGP(2), x, torch.sign(x[:, 0]), 0.02)
    removal = remove(posterior, lood(posterior).kl.topk(4).indices)
    found = optimal_queries(removal, starts=10, seed=0)
    shrunk = replace(found, ends=1e-3 * found.ends)  # the same KL, by a network that has no bias
    torch.testing.assert_close(lood_at(removal, shrunk.ends[:, 0]).kl, lood_at(removal, found.ends[:, 0]).kl)
    there, here = (reconstruct(removal, some, scale_free=True) for some in (found, shrunk))
    assert torch.equal(there.counts, here.counts)
    assert int(there.unrecovered.sum()) == 0
    torch.testing.assert_close(there.distance, here.distance)
    ends, members = (points / points.norm(dim=-1, keepdim=True) for points in (found.ends[:, :, 0], x[removal.rows]))
    torch.testing.assert_close(there.distance[:, :, 0], (ends[:, :, None] - members[:, None]).norm(dim=-1))
    assert int(reconstruct(removal, shrunk).counts.sum()) < int(here.counts.sum())


def test_the_member_that_shows_most_comes_back_most_often():
    x = draw(60, 8)
    posterior = fit(RBF(3.0), x, torch.sign(x[:, 0]), 0.05)
    removal = remove(posterior, torch.arange(60).view(20, 3))
    result = reconstruct(removal, optimal_queries(removal, starts=6, bounds=(-1.0, 1.0), seed=0, steps=80))
    at = torch.arange(20)
    most = int(result.counts[at, result.own.argmax(1)].sum())
    least = int(result.counts[at, result.own.argmin(1)].sum())
    assert most > 2 * least


def test_queries_of_another_removal_are_refused():
    posterior = fit(RBF(), draw(6, 2), draw(6, seed=1), 0.1)
    found = optimal_queries(remove(posterior, torch.arange(2)), starts=1, seed=0, steps=2)
    with pytest.raises(InputError, match="found: expected queries for these 3 removals, got ends of shape"):
        reconstruct(remove(posterior, torch.arange(3)), found)
