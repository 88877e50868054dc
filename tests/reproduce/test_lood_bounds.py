"""Bounds on what a process gives away, and what a search reconstructs, against random kernels and plain loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.reproduce.lood.bounds import distance_to_constant, leakage_bounds
from benchmarks.reproduce.lood.reconstruction import reconstruct
from torch.distributions import Normal, kl_divergence

from giveaway.gp.distinguishability import divergence, divergence_at, remove
from giveaway.gp.kernels import RBF
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit
from giveaway.gp.query import optimal_queries
from tests.conftest import refused
from tests.gp.test_posterior import draw


def kernel_of(matrix):
    """The kernel on record numbers that has this matrix."""
    return lambda X, Z: matrix[X[:, 0].long()][:, Z[:, 0].long()]


def near_constant(rng):
    """A random positive semi-definite matrix at a random distance from a random constant."""
    size = int(rng.integers(2, 9))
    root = rng.standard_normal((size, int(rng.integers(1, size + 1))))
    noise = root @ root.T
    scale = 10.0 ** rng.uniform(-8, 1)
    return torch.from_numpy(10.0 ** rng.uniform(-3, 2) + scale * noise / np.abs(noise).max())


@pytest.mark.slow
def test_no_draw_breaks_the_bounds():
    rng = np.random.default_rng(0)
    closest_mean = closest_kl = 0.0
    for _ in range(400):
        matrix = near_constant(rng)
        n, outputs, noise = len(matrix), int(rng.integers(1, 4)), 10.0 ** rng.uniform(-3, 2)
        y = torch.from_numpy(rng.standard_normal((n, outputs)))
        if rng.random() < 0.5:  # the targets that hurt most: all others opposed to the record left out
            y = torch.full((n, outputs), -1.0, dtype=torch.float64)
            y[int(rng.integers(n))] = 1.0
        posterior = fit(kernel_of(matrix), torch.arange(n)[:, None], y, noise)
        bounds = leakage_bounds(matrix, noise, float(y.norm(dim=1).max()), outputs=outputs)
        removal = remove(posterior, torch.arange(n))
        # every record is a query for every removal: the mean distance may be largest away from the record
        at = posterior.inputs.view(1, n, 1)
        change = removal.change(at)[0].square().sum(2).max() / 2
        kl = divergence(posterior).kl.max()
        closest_mean = max(closest_mean, float(change) / bounds.mean_distance)
        closest_kl = max(closest_kl, float(kl) / bounds.kl)
        query = posterior.inputs[:1].expand(n, 1, 1)
        if float(posterior.variance(query[0])) > 1e-6:
            assert float(divergence_at(removal, query).kl.max()) <= bounds.kl * (1 + 1e-6)
    assert closest_mean <= 1.0 + 1e-9
    assert closest_kl <= 1.0 + 1e-9
    assert min(closest_mean, closest_kl) > 0.5  # nor are they idle


def test_the_variance_bound_is_attained_by_a_constant_kernel_and_falls_with_the_records():
    matrix = torch.full((5, 5), 2.0, dtype=torch.float64)
    bounds = leakage_bounds(matrix, 0.3, 1.0)
    assert bounds.distance == 0.0
    assert bounds.variance == pytest.approx(1.0 / (1.0 / 2.0 + 4 / 0.3))
    many = leakage_bounds(torch.full((500, 500), 2.0, dtype=torch.float64), 0.3, 1.0)
    assert many.kl < bounds.kl / 50


def test_they_vanish_with_the_distance_and_are_vacuous_at_real_sizes():
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((200, 200))
    unit = torch.from_numpy(noise @ noise.T / 200)
    near, far = (leakage_bounds(1.0 + scale * unit, 0.05, 1.0) for scale in (1e-9, 0.1))
    assert near.kl < 0.25 < far.kl
    assert far.mean_distance > 1.0 / 2 * 4  # more than two predictions within ±1 could ever differ by


def test_the_printed_proposition_fails():
    """A constant kernel (distance 0): the mean distance grows with ζ², the printed bound ζ(1 + 1/α)/n with ζ."""
    n, alpha, noise, zeta = 2, 1.0, 0.01, 100.0
    matrix = torch.full((n + 1, n + 1), alpha, dtype=torch.float64)
    y = torch.tensor([-zeta, -zeta, zeta], dtype=torch.float64)
    posterior = fit(kernel_of(matrix), torch.arange(n + 1)[:, None], y, noise)
    mean = float(divergence(posterior).mean[-1])
    printed = zeta * (1 + 1 / alpha) / n
    assert mean > 10 * printed
    assert mean <= leakage_bounds(matrix, noise, zeta).mean_distance


@pytest.mark.parametrize(
    ("entries", "expected"),
    [([[1.0, 0.2], [0.2, 0.8]], (0.6, 0.4)), ([[1.0, -3.0], [-3.0, 1.0]], (0.0, 3.0)), ([[2.0]], (2.0, 0.0))],
)
def test_the_nearest_constant(entries, expected):
    assert distance_to_constant(torch.tensor(entries, dtype=torch.float64)) == pytest.approx(expected)


def test_a_single_record_is_bounded_by_its_prior():
    matrix, y, noise = torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([1.5]), 0.5
    bounds = leakage_bounds(matrix, noise, 1.5)
    posterior = fit(kernel_of(matrix), torch.zeros(1, 1), y, noise)
    assert float(divergence(posterior).kl) == pytest.approx(bounds.kl)
    assert bounds.kl == pytest.approx((4.0 - math.log(5.0) + 0.8 * 2.25 / 0.5) / 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.zeros(0, 0), 0.1, 1.0), "matrix: expected a kernel matrix"),
        ((torch.full((2, 2), math.nan), 0.1, 1.0), "matrix: expected finite numbers"),
        ((torch.eye(2), 0.0, 1.0), "noise: expected a variance above 0"),
        ((torch.eye(2), 0.1, -1.0), "largest_target: expected a finite number of at least 0"),
    ],
)
def test_wrong_arguments_of_bounds_are_refused(arguments, words):
    refused(words, leakage_bounds, *arguments)


@pytest.mark.parametrize("queries", [1, 2])
def test_reconstruction_against_a_plain_loop(queries):
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
    own = torch.stack([divergence_at(removal, x[rows][:, s : s + 1]).kl for s in range(3)], 1)
    torch.testing.assert_close(result.own, own)


def test_a_record_is_recovered_from_the_posteriors_alone():
    d = 12
    x = draw(40, d)
    posterior = fit(RBF(4.0), x, torch.sign(x[:, 0]), 0.01)
    exposed = divergence(posterior).kl.topk(5).indices
    removal = remove(posterior, exposed)
    found = optimal_queries(removal, starts=12, bounds=(-3.0, 3.0), seed=0)
    result = reconstruct(removal, found)
    assert bool((result.counts > 0).all())
    torch.testing.assert_close(found.value, found.own, rtol=1e-6, atol=0)
    closest = found.values.argmax(1)
    at = torch.arange(5)
    assert float(result.distance[at, closest].max()) < 1e-2
    assert float(result.prediction[at, closest].max()) < 1e-5


def test_without_a_bias_only_the_direction_can_come_back():
    x = draw(30, 6)
    posterior = fit(NNGP(2), x, torch.sign(x[:, 0]), 0.02)
    removal = remove(posterior, divergence(posterior).kl.topk(4).indices)
    found = optimal_queries(removal, starts=10, seed=0)
    shrunk = replace(found, ends=1e-3 * found.ends)  # the same KL, by a network that has no bias
    torch.testing.assert_close(
        divergence_at(removal, shrunk.ends[:, 0]).kl, divergence_at(removal, found.ends[:, 0]).kl
    )
    there, here = (reconstruct(removal, some, scale_free=True) for some in (found, shrunk))
    assert torch.equal(there.counts, here.counts)
    assert bool((there.counts > 0).all())
    torch.testing.assert_close(there.distance, here.distance)
    ends, members = (points / points.norm(dim=-1, keepdim=True) for points in (found.ends[:, :, 0], x[removal.rows]))
    torch.testing.assert_close(there.distance[:, :, 0], (ends[:, :, None] - members[:, None]).norm(dim=-1))
    assert int(reconstruct(removal, shrunk).counts.sum()) < int(here.counts.sum())


def test_queries_of_another_removal_are_refused():
    posterior = fit(RBF(), draw(6, 2), draw(6, seed=1), 0.1)
    found = optimal_queries(remove(posterior, torch.arange(2)), starts=1, seed=0, steps=2)
    words = "found: expected queries for these 3 removals, got ends of shape"
    refused(words, reconstruct, remove(posterior, torch.arange(3)), found)
