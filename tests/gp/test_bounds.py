"""The bounds for kernels near a constant: never broken in many draws, where the printed constants are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from giveaway.checks import InputError
from giveaway.gp.bounds import distance_to_constant, leakage_bounds
from giveaway.gp.divergence import lood, lood_at
from giveaway.gp.posterior import fit
from giveaway.gp.removal import remove


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


def test_no_draw_breaks_the_bounds():
    rng = np.random.default_rng(0)
    closest_mean = closest_kl = 0.0
    for _ in range(1_000):
        matrix = near_constant(rng)
        n, outputs, noise = len(matrix), int(rng.integers(1, 4)), 10.0 ** rng.uniform(-3, 2)
        y = torch.from_numpy(rng.standard_normal((n, outputs)))
        if rng.random() < 0.5:  # the targets that hurt most: all others opposed to the record left out
            y = torch.full((n, outputs), -1.0, dtype=torch.float64)
            y[int(rng.integers(n))] = 1.0
        posterior = fit(kernel_of(matrix), torch.arange(n)[:, None], y, noise, matrix=matrix)
        bounds = leakage_bounds(matrix, noise, float(y.norm(dim=1).max()), outputs=outputs)
        removal = remove(posterior, torch.arange(n))
        # every record is a query for every removal: the mean distance may be largest away from the record
        at = posterior.inputs.view(1, n, 1)
        change = removal.mean_change(at).square().sum(2).max() / 2
        kl = lood(posterior).kl.max()
        closest_mean = max(closest_mean, float(change) / bounds.mean_distance)
        closest_kl = max(closest_kl, float(kl) / bounds.kl)
        query = posterior.inputs[:1].expand(n, 1, 1)
        if float(posterior.variance(query[0])) > 1e-6:
            assert float(lood_at(removal, query).kl.max()) <= bounds.kl * (1 + 1e-6)
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


def test_the_printed_lemma_fails():
    """‖A⁻¹ − B⁻¹‖ ≤ max(1/λ(A), 1/λ(B))·‖A − B‖ at A = 0.1, B = 0.2."""
    a, b = 0.1, 0.2
    assert abs(1 / a - 1 / b) > 4 * max(1 / a, 1 / b) * abs(a - b)
    assert abs(1 / a - 1 / b) <= abs(a - b) / (a * b) * (1 + 1e-12)


def test_the_printed_proposition_fails():
    """A constant kernel (distance 0): the mean distance grows with ζ², the printed bound ζ(1 + 1/α)/n with ζ."""
    n, alpha, noise, zeta = 2, 1.0, 0.01, 100.0
    matrix = torch.full((n + 1, n + 1), alpha, dtype=torch.float64)
    y = torch.tensor([-zeta, -zeta, zeta], dtype=torch.float64)
    posterior = fit(kernel_of(matrix), torch.arange(n + 1)[:, None], y, noise, matrix=matrix)
    mean = float(lood(posterior).mean[-1])
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
    posterior = fit(kernel_of(matrix), torch.zeros(1, 1), y, noise, matrix=matrix)
    assert float(lood(posterior).kl) == pytest.approx(bounds.kl)
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
def test_wrong_arguments_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        leakage_bounds(*arguments)
