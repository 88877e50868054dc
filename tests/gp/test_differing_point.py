"""The steepest differing point against fitting with it, autograd and a dense grid."""

from __future__ import annotations

import pytest
import torch

from giveaway.checks import InputError
from giveaway.gp.differing_point import steepest_point, steepness
from giveaway.gp.kernels import RBF, Linear, Sphere
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit
from tests.gp.test_posterior import draw


@pytest.mark.parametrize(
    "kernel",
    [RBF(1.3), Linear(bias_variance=0.4), NNGP(2, "erf", bias_variance=0.1), Sphere(NNGP(2, "gelu"))],
    ids=["rbf", "linear", "erf", "sphere"],
)
def test_steepness_is_the_gradient_of_the_mean_distance_of_a_second_fit(kernel):
    x, y, noise = draw(8, 3), draw(8, 2, seed=1), 0.1
    posterior = fit(kernel, x, y, noise)
    points, labels = draw(4, 3, seed=2), draw(4, 2, seed=3)
    found = steepness(posterior, points, labels)
    for point, label, gradient in zip(points, labels, found, strict=True):
        again = fit(kernel, torch.cat([x, point[None]]), torch.cat([y, label[None]]), noise)
        at = point[None].clone().requires_grad_()
        distance = (posterior.mean(at) - again.mean(at)).square().sum() / 2
        (truth,) = torch.autograd.grad(distance, at)
        torch.testing.assert_close(gradient, truth[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", ["lbfgs", "adam"])
def test_the_steepest_point_is_that_of_a_dense_grid(method):
    x = draw(7, 2)
    posterior = fit(RBF(), x, torch.sin(x).sum(1), 0.05)
    axis = torch.linspace(-4, 4, 121, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    best = steepness(posterior, grid, torch.sin(grid).sum(1, keepdim=True)).norm(dim=1).max()
    found = steepest_point(posterior, lambda s: torch.sin(s).sum(1), starts=24, bounds=(-4, 4), method=method, seed=0)
    assert float(best) * (1 - 1e-9) <= found.steepness <= 1.01 * float(best)
    torch.testing.assert_close(found.label, torch.sin(found.point).sum().view(1))
    exact = steepness(posterior, found.point[None], found.label[None]).norm()
    assert found.steepness == pytest.approx(float(exact), rel=1e-6)


def test_starts_that_are_given_and_starts_around_the_records():
    posterior = fit(RBF(), draw(7, 2), draw(7, seed=1), 0.05)
    given = steepest_point(posterior, lambda s: 0.0 * s[:, 0], starts=2.0 * draw(5, 2, seed=4))
    drawn = steepest_point(posterior, lambda s: 0.0 * s[:, 0], starts=40, seed=0)
    assert drawn.steepness >= given.steepness * (1 - 1e-9) > 0
    assert given.ends.shape == (5, 2)


def test_wrong_input_is_refused():
    posterior = fit(RBF(), draw(7, 2), draw(7, seed=1), 0.05)
    with pytest.raises(InputError, match="seed: expected an integer"):
        steepest_point(posterior, lambda s: s[:, 0])
    with pytest.raises(InputError, match=r"starts: expected shape \(starts, 2\), got shape \(4, 3\)"):
        steepest_point(posterior, lambda s: s[:, 0], starts=torch.zeros(4, 3))
    with pytest.raises(InputError, match=r"label: expected labels of shape \(3, 1\), got shape \(3, 2\)"):
        steepest_point(posterior, lambda s: s, starts=3, seed=0)
