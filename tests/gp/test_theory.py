"""What the LOOD paper proves about queries, at finite sizes, with its slips put right."""

from __future__ import annotations

import pytest
import torch

from giveaway.gp.differing_point import steepest_point, steepness
from giveaway.gp.divergence import lood, lood_at
from giveaway.gp.kernels import RBF, Correlation, Linear, Sphere
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit
from giveaway.gp.query import optimal_queries
from giveaway.gp.removal import remove
from tests.gp.test_posterior import draw

UNIT_KERNELS = {
    "rbf": RBF(1.2),
    "relu": Sphere(0.5 * NNGP(3, "relu", weight_variance=2.0)),
    "gelu": Sphere(Correlation(NNGP(2, "gelu"))),
}


def gradients(removal, at):
    """∇ of the divergence and of the mean distance at queries (R, 1, …)."""
    at = at.clone().requires_grad_()
    found = lood_at(removal, at)
    return [torch.autograd.grad(value.sum(), at, retain_graph=True)[0] for value in (found.kl, found.mean)]


@pytest.mark.parametrize("name", UNIT_KERNELS)
def test_theorem_3_1_the_record_is_stationary_for_the_divergence_and_not_for_the_mean(name):
    posterior = fit(UNIT_KERNELS[name], draw(15, 4), draw(15, 2, seed=1), 0.1)
    removal = remove(posterior, torch.arange(15))
    own = posterior.inputs.unsqueeze(1)
    kl, mean = gradients(removal, own)
    away, _ = gradients(removal, own + 0.3 * draw(15, 1, 4, seed=2))
    # the sphere's kernel is a square root away from x = z, which costs half the digits
    assert float(kl.abs().max()) < 1e-5 * float(away.abs().max())
    assert float((mean.norm(dim=2)[:, 0] / lood(posterior).mean).median()) > 1e-2


def test_a_kernel_without_the_conditions_of_theorem_3_1_has_the_record_as_its_optimum_all_the_same():
    """KL(Q) ≤ KL(S) needs no condition on the kernel, so the gradient at an inner record is 0 without any."""
    posterior = fit(NNGP(2, "erf", bias_variance=0.3), draw(15, 4), draw(15, 2, seed=1), 0.1)
    diagonal = posterior.diagonal
    assert float(diagonal.max() / diagonal.min()) > 1.1
    kl, _ = gradients(remove(posterior, torch.arange(15)), posterior.inputs.unsqueeze(1))
    assert float(kl.abs().max()) < 1e-6


@pytest.mark.parametrize("name", UNIT_KERNELS)
def test_proposition_4_1_the_gradient_of_the_mean_distance_at_the_record(name):
    kernel, noise = UNIT_KERNELS[name], 0.1
    x, y = draw(9, 3), draw(9, seed=1)
    posterior = fit(kernel, x, y, noise)
    _, found = gradients(remove(posterior, torch.arange(9)), x.unsqueeze(1))
    for i in range(9):
        kept = torch.arange(9) != i
        m = kernel(x[kept], x[kept]) + noise * torch.eye(8, dtype=torch.float64)
        at = x[i : i + 1].clone().requires_grad_()
        cross = kernel(at, x[kept])[0]
        slopes = torch.stack([torch.autograd.grad(k, at, retain_graph=True)[0][0] for k in cross], 1)
        cross = cross.detach()
        explained = cross @ torch.linalg.solve(m, cross)
        alpha = 1 - explained + noise
        error = y[i] - cross @ torch.linalg.solve(m, y[kept])
        formula = -(alpha**-2) * (1 - explained) * error**2 * (slopes @ torch.linalg.solve(m, cross))
        torch.testing.assert_close(found[i, 0], formula, rtol=1e-5, atol=1e-8)


def test_corollary_g_3_and_lemma_g_4_far_from_the_data_the_record_is_a_maximum_of_the_mean_distance():
    x, y = draw(10, 2), torch.sign(draw(10, seed=1))
    direction = torch.tensor([0.6, 0.8], dtype=torch.float64)
    steep, largest = [], []
    for radius in (2.0, 4.0, 6.0, 8.0):
        point = radius * direction
        removal = remove(
            fit(RBF(), torch.cat([x, point[None]]), torch.cat([y, torch.ones(1)]), 0.1), torch.tensor([10])
        )
        _, slope = gradients(removal, point[None, None])
        steep.append(float(slope.norm()))
        hessian = torch.autograd.functional.hessian(lambda q, of=removal: lood_at(of, q[None, None]).mean[0], point)
        largest.append(float(torch.linalg.eigvalsh(hessian).max()))
    assert steep[1] > steep[2] > steep[3]
    assert steep[3] < 1e-8
    # S alone: M(Q) = ½(k(Q, S)/(1 + σ²))², whose Hessian at S is −I/(1 + σ²)²
    assert largest[3] == pytest.approx(-1 / 1.1**2, rel=1e-6)
    assert largest[2] < 0


@pytest.mark.parametrize(
    ("kernel", "degree"),
    [(NNGP(3, "relu"), 1), (Linear(), 1), (Linear() * Linear(), 2)],
    ids=["relu", "linear", "cubic"],
)
def test_homogeneous_kernels_the_divergence_is_free_of_the_querys_scale_and_the_mean_distance_is_not(kernel, degree):
    removal = remove(fit(kernel, draw(9, 4), draw(9, 2, seed=1), 0.2), torch.tensor([[0, 1], [2, 5]]))
    queries = draw(2, 2, 4, seed=3)
    once = lood_at(removal, queries)
    for scale in (0.3, 4.0):
        scaled = lood_at(removal, scale * queries)
        torch.testing.assert_close(scaled.kl, once.kl, rtol=1e-7, atol=0)
        # the square of a mean that grows as λ^α; the paper prints λ^α
        torch.testing.assert_close(scaled.mean, scale ** (2 * degree) * once.mean)


def in_its_own_draw(X, Z):
    """The RBF kernel of (x, number of the draw), nothing between two draws: many posteriors as one."""
    return RBF()(X[:, :1], Z[:, :1]) * (X[:, 1].round()[:, None] == Z[:, 1].round())


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_the_sine_example_by_the_optimiser_and_by_a_grid(first):
    """S* of Algorithm 1: the mean-distance optimum is elsewhere, the divergence's is S*, in every draw."""
    draws, spacing, noise = 25, 0.01, 0.01
    x = torch.stack([draw(10, 1, seed=first + k) for k in range(draws)])
    number = torch.arange(draws, dtype=torch.float64).view(-1, 1, 1)
    bounds = (torch.tensor([-6.0, -1.0]), torch.tensor([6.0, float(draws)]))

    def numbered(points):  # (draws, m, 1) -> (draws, m, 2)
        return torch.cat([points, number.expand(-1, points.shape[1], 1)], 2)

    def label(points):
        return torch.sin(points[:, :1])

    records = numbered(x).flatten(0, 1)
    posterior = fit(in_its_own_draw, records, label(records), noise)
    starts = numbered(torch.linspace(-5.5, 5.5, 12, dtype=torch.float64).view(1, -1, 1).expand(draws, -1, -1))
    search = steepest_point(posterior, label, starts=starts.flatten(0, 1), bounds=bounds, steps=60)
    steep, which = search.values.view(draws, -1).max(1)
    star = search.ends.view(draws, -1, 2)[torch.arange(draws), which]

    both = torch.cat([records, star])
    removal = remove(fit(in_its_own_draw, both, label(both), noise), 10 * draws + torch.arange(draws))
    around = torch.cat([starts, star.unsqueeze(1) + torch.tensor([[[0.2, 0.0]], [[-0.2, 0.0]]]).view(1, 2, 2)], 1)
    options = {"starts": around.unsqueeze(2), "bounds": bounds, "steps": 60}
    kl = optimal_queries(removal, **options)
    mean = optimal_queries(removal, objective="mean", **options)

    grid = torch.arange(-6.0, 6.0 + spacing, spacing, dtype=torch.float64)[:, None]
    for k in range(draws):
        slope = steepness(fit(RBF(), x[k], torch.sin(x[k]), noise), grid, torch.sin(grid)).norm(dim=1)
        mine = torch.cat([x[k], star[k, :1, None]])
        alone = remove(fit(RBF(), mine, torch.sin(mine), noise), torch.full((len(grid),), 10))
        at = lood_at(alone, grid.unsqueeze(1))
        found = ((star[k, 0], steep[k]), (kl.queries[k, 0, 0], kl.value[k]), (mean.queries[k, 0, 0], mean.value[k]))
        for (point, value), truth in zip(found, (slope, at.kl, at.mean), strict=True):
            assert float(truth.max()) <= float(value) * (1 + 1e-9)
            assert abs(float(grid[truth.argmax()]) - float(point)) <= spacing
    assert float((kl.queries[:, 0, 0] - star[:, 0]).abs().max()) < 1e-4
    assert float((mean.queries[:, 0, 0] - star[:, 0]).abs().min()) > 0.05
    assert float((mean.value / mean.own).min()) > 1.005
