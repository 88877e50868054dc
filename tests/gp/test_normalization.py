"""Posteriors under the normalization of their own records, against normalizing by hand and fitting."""

from __future__ import annotations

import pytest
import torch

from giveaway.checks import InputError
from giveaway.gp.divergence import gaussian_kl, mean_distance
from giveaway.gp.kernels import RBF
from giveaway.gp.normalization import Normalized, remove_normalized
from giveaway.gp.posterior import fit
from giveaway.gp.query import optimal_queries
from giveaway.gp.removal import remove
from tests.gp.test_posterior import draw


def by_hand(kernel, x, y, noise, rows, queries):
    """Both distances of one removal at queries (q, …), from two fits to normalized arrays."""

    def predict(kept):
        axes = [a for a in range(x.ndim) if a != 1]
        mean, deviation = x[kept].mean(axes, keepdim=True), x[kept].std(axes, correction=0, keepdim=True)
        posterior = fit(kernel, (x[kept] - mean) / deviation, y[kept], noise)
        at = (queries - mean) / deviation
        return posterior.mean(at), posterior.covariance(at)

    everyone = torch.ones(len(x), dtype=torch.bool)
    kept = everyone.clone()
    kept[rows] = False
    (mean, covariance), (mean_with, covariance_with) = predict(kept), predict(everyone)
    return {"kl": gaussian_kl(mean - mean_with, covariance, covariance_with), "mean": mean_distance(mean - mean_with)}


@pytest.mark.parametrize("shape", [(3,), (2, 3, 3)])
@pytest.mark.parametrize("objective", ["kl", "mean"])
@pytest.mark.parametrize("q", [1, 2])
def test_distances_against_normalizing_by_hand(shape, objective, q):
    x, y = 3.0 * draw(12, *shape) + 1.0, draw(12, 2, seed=1)
    rows = torch.tensor([[0, 5], [3, 2], [7, 8]])
    removal = remove_normalized(RBF(2.0), x, y, 0.1, rows)
    queries = 3.0 * draw(4, q, *shape, seed=2)
    owner = torch.tensor([2, 0, 0, 1])
    found = removal.measure(objective, owner, queries)
    for r, query, value in zip(owner, queries, found, strict=True):
        truth = by_hand(RBF(2.0), x, y, 0.1, rows[r], query)[objective]
        torch.testing.assert_close(value, truth, rtol=1e-8, atol=1e-12)
    own = removal.own(objective)
    torch.testing.assert_close(own[1], by_hand(RBF(2.0), x, y, 0.1, rows[1], x[rows[1]])[objective])


def test_the_optimum_leaves_the_record_and_passes_it():
    """What cannot be under one kernel for both: there KL(Q) ≤ KL(S) for every Q."""
    x, y = draw(10, 3), draw(10, seed=1)
    x[:3] *= 4.0
    options = {"starts": 6, "origin": "removed", "noise": 0.1, "seed": 0}
    moved = optimal_queries(remove_normalized(RBF(4.0), x, y, 0.05, torch.arange(3)), **options)
    fixed = optimal_queries(remove(fit(RBF(4.0), x, y, 0.05), torch.arange(3)), **options)
    assert bool((fixed.value <= fixed.own * (1 + 1e-9)).all())
    assert bool((moved.value > moved.own * 1.01).all())
    assert bool(((moved.queries[:, 0] - x[:3]).norm(dim=1) > 0.1).all())
    for r in range(3):
        truth = by_hand(RBF(4.0), x, y, 0.05, [r], moved.queries[r])["kl"]
        torch.testing.assert_close(moved.value[r], truth, rtol=1e-6, atol=0)


def test_a_channel_that_does_not_vary_is_only_centred():
    x = draw(6, 2)
    x[:, 1] = 4.0
    mapped = Normalized(RBF(), x).map(x)
    assert bool((mapped[:, 1] == 0).all())
    torch.testing.assert_close(mapped[:, 0].std(correction=0), torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            torch.tensor([0.5]),
            r"rows: expected row numbers \(R, s\) or \(R,\), fewer than 4 a removal, got torch.float",
        ),
        (torch.arange(4)[None], "rows: expected row numbers"),
        (torch.tensor([4]), "rows: expected rows from 0 to 3, got 4 to 4"),
    ],
)
def test_wrong_rows_are_refused(rows, words):
    with pytest.raises(InputError, match=words):
        remove_normalized(RBF(), draw(4, 2), draw(4), 0.1, rows)
    with pytest.raises(InputError, match="records: expected records as"):
        Normalized(RBF(), torch.zeros(3))


@pytest.mark.parametrize("n", [7, 10])
def test_a_channel_of_one_value_is_centred_only(n):
    records = torch.full((n, 2, 3), 0.1, dtype=torch.float64)
    records[:, 1] = torch.arange(n, dtype=torch.float64)[:, None]
    mapped = Normalized(RBF(), records).map(torch.full((1, 2, 3), 0.2, dtype=torch.float64))
    torch.testing.assert_close(mapped[0, 0], torch.full((3,), 0.1, dtype=torch.float64))
