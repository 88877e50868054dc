"""Distances between predictions without and with a record, against torch.distributions, refits and the paper."""

import mpmath
import pytest
import torch
from benchmarks.reproduce.lood.activations import Correlation
from benchmarks.reproduce.lood.toys import steepest_point, steepness
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.gp.distinguishability import divergence, divergence_at, mean_distance, remove, x_minus_log1p
from giveaway.gp.kernels import RBF, Linear, Sphere
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit
from giveaway.gp.query import optimal_queries
from tests.conftest import refused
from tests.gp.test_leave_one_out import refit
from tests.gp.test_posterior import draw, plain_kl, rbf


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("noise", [1e-3, 0.1])
def test_all_records_against_n_separate_solves(noise, outputs):
    n = 40
    x = draw(n, 2)
    x[:4] *= 4.0
    posterior = fit(rbf, x, draw(n, outputs, seed=1), noise)
    result = divergence(posterior)
    kl, mean, reverse = [], [], []
    for i in range(n):
        without, covariance = refit(posterior, [i])
        change = without - posterior.mean(x[[i]])
        mean.append(change.square().sum() / 2)
        kl.append(plain_kl(change, covariance, posterior.covariance(x[[i]])))
        reverse.append(plain_kl(change, posterior.covariance(x[[i]]), covariance))
    top = torch.stack(kl).topk(n // 10).indices
    assert torch.stack(kl)[top].min() > 2 * torch.stack(kl).median()
    torch.testing.assert_close(result.kl, torch.stack(kl), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(result.kl[top], torch.stack(kl)[top], rtol=1e-9, atol=0)
    torch.testing.assert_close(result.mean, torch.stack(mean), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(result.reverse, torch.stack(reverse), rtol=1e-9, atol=1e-10)
    at_own = divergence_at(remove(posterior, torch.arange(n)), x[:, None]).reverse
    torch.testing.assert_close(at_own, torch.stack(reverse), rtol=1e-6, atol=1e-9)


def test_groups_in_their_order_against_fitting_again():
    posterior = fit(rbf, draw(14, 2), draw(14, 2, seed=1), 0.1)
    groups = [[3, 9], [1], torch.arange(14), [0, 5, 2], [13, 4]]
    result = divergence(posterior, groups)
    for g, rows in enumerate(torch.as_tensor(rows) for rows in groups):
        without, covariance = refit(posterior, rows)
        at = posterior.inputs[rows]
        change = without - posterior.mean(at)
        truth = plain_kl(change, covariance, posterior.covariance(at))
        torch.testing.assert_close(result.kl[g], truth, rtol=1e-8, atol=0)
        torch.testing.assert_close(result.mean[g], mean_distance(change), rtol=1e-9, atol=0)
        back = plain_kl(change, posterior.covariance(at), covariance)
        torch.testing.assert_close(result.reverse[g], back, rtol=1e-8, atol=0)
        asked = draw(3, 2, seed=g)
        mean_change, excess, with_ = (part[0] for part in remove(posterior, rows[None]).change(asked[None]))
        found = divergence_at(remove(posterior, rows[None]), asked[None]).reverse[0]
        torch.testing.assert_close(found, plain_kl(mean_change, with_, with_ + excess @ excess.T), rtol=1e-8, atol=0)


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_bayesian_last_layer_is_ridge_regression(outputs):
    n, d, penalty, noise = 60, 5, 0.8, 0.3
    features = torch.cat([draw(n, d), torch.ones(n, 1, dtype=torch.float64)], 1)
    features[:6] *= 3.0
    y = draw(n, outputs, seed=1)
    # ridge: sum of squares + (penalty / 2)‖θ‖², all of it penalized
    hessian = 2.0 * features.T @ features + penalty * torch.eye(d + 1)
    h = 2.0 * (features @ torch.linalg.inv(hessian) * features).sum(1)
    left_out = []
    for i in range(n):
        keep = torch.arange(n) != i
        other = 2.0 * features[keep].T @ features[keep] + penalty * torch.eye(d + 1)
        left_out.append(y[i] - features[i] @ torch.linalg.solve(other, 2.0 * features[keep].T @ y[keep]))
    e2 = torch.stack(left_out).square().sum(1)
    posterior = fit(lambda X, Z: 2.0 * noise / penalty * X @ Z.T, features, y, noise)
    result = divergence(posterior)
    truth = (outputs * (torch.log(1 - h) + h / (1 - h)) + h * e2 / noise) / 2
    torch.testing.assert_close(result.kl, truth, rtol=1e-8, atol=0)
    torch.testing.assert_close(result.mean, h.square() * e2 / 2, rtol=1e-8, atol=0)
    back = (outputs * (-torch.log(1 - h) - h) + h * (1 - h) * e2 / noise) / 2
    torch.testing.assert_close(result.reverse, back, rtol=1e-8, atol=0)


def test_small_leverages_keep_the_digits_of_their_divergence():
    n, noise = 8, 1.0
    x, y = draw(n, 2), 1e-6 * draw(n, 1, seed=1)
    scale = 1e-7
    result = divergence(fit(lambda X, Z: scale * rbf(X, Z), x, y, noise)).kl.tolist()
    with mpmath.workdps(60):
        inverse = (mpmath.matrix((scale * rbf(x, x)).tolist()) + mpmath.eye(n)) ** -1
        weights = inverse * mpmath.matrix(y.tolist())
        for i in range(n):
            p = inverse[i, i]
            h, e = 1 - p, weights[i] / p
            truth = (mpmath.log(1 - h) + h / (1 - h) + h * e**2) / 2
            assert result[i] == pytest.approx(float(truth), rel=1e-12)


@pytest.mark.parametrize("x", [0.0, 1e-300, 1e-9, 1e-4, 0.3, 0.9999, 1.0, 1.5, 1e8, -1e-9, -0.3, -0.4999, -0.6, -0.99])
def test_x_minus_log1p_to_full_precision(x):
    with mpmath.workdps(400):
        truth = float(mpmath.mpf(x) - mpmath.log1p(mpmath.mpf(x)))
    at = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    value = x_minus_log1p(at)
    (slope,) = torch.autograd.grad(value, at)
    assert value.item() == pytest.approx(truth, rel=4e-15)
    assert slope.item() == pytest.approx(x / (1 + x), rel=1e-14)


@settings(max_examples=20)
@given(size=st.integers(1, 2), q=st.integers(1, 3), seed=st.integers(0, 999))
def test_no_queries_tell_more_than_the_records_themselves(size, q, seed):
    """f(S) is a sufficient statistic for whether S was seen, so this is the data-processing inequality."""
    posterior = fit(rbf, draw(8, 2, seed=seed), draw(8, 2, seed=seed + 1), 0.05)
    rows = torch.arange(8).view(-1, size)
    own = divergence(posterior, list(rows)).kl
    queries = posterior.inputs[rows].mean(1, keepdim=True) + 0.5 * draw(len(rows), q, 2, seed=seed + 2)
    found, back = divergence_at(remove(posterior, rows), queries), divergence(posterior, list(rows)).reverse
    assert bool((found.kl <= own * (1 + 1e-7)).all())
    assert bool((found.reverse <= back * (1 + 1e-7)).all())


@pytest.mark.parametrize(("size", "q"), [(1, 1), (1, 2), (2, 1), (2, 3)])
def test_the_gradient_reaches_the_queries(size, q):
    removal = remove(fit(rbf, draw(6, 2), draw(6, 2, seed=1), 0.1), torch.arange(6).view(-1, size)[:2])
    queries = draw(2, q, 2, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda at: divergence_at(removal, at).kl, (queries,))
    assert torch.autograd.gradcheck(lambda at: divergence_at(removal, at).mean, (queries,))
    assert torch.autograd.gradcheck(removal.change, (queries,))


def test_queries_that_repeat_are_refused():
    removal = remove(fit(rbf, draw(6, 2), draw(6), 0.1), torch.arange(2))
    words = "queries: expected positive definite predictive covariances, got one that is not, in place 1; drop queries"
    queries = draw(2, 2, 2, seed=2)
    queries[1, 1] = queries[1, 0]
    refused(words, divergence_at, removal, queries)


UNIT_KERNELS = {
    "rbf": RBF(1.2),
    "relu": Sphere(Correlation(NNGP(3, "relu"))),
    "gelu": Sphere(Correlation(NNGP(2, "gelu"))),
}


def gradients(removal, at):
    """∇ of the divergence and of the mean distance at queries (R, 1, …)."""
    at = at.clone().requires_grad_()
    found = divergence_at(removal, at)
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
    assert float((mean.norm(dim=2)[:, 0] / divergence(posterior).mean).median()) > 1e-2


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
        hessian = torch.autograd.functional.hessian(
            lambda q, of=removal: divergence_at(of, q[None, None]).mean[0], point
        )
        largest.append(float(torch.linalg.eigvalsh(hessian).max()))
    assert steep[1] > steep[2] > steep[3]
    assert steep[3] < 1e-8
    # S alone: M(Q) = ½(k(Q, S)/(1 + σ²))², whose Hessian at S is −I/(1 + σ²)²
    assert largest[3] == pytest.approx(-1 / 1.1**2, rel=1e-6)
    assert largest[2] < 0


@pytest.mark.parametrize(
    ("kernel", "degree"),
    [(NNGP(3, "relu"), 1), (Linear(), 1), (lambda X, Z: (X @ Z.T) ** 2, 2)],
    ids=["relu", "linear", "cubic"],
)
def test_homogeneous_kernels_the_divergence_is_free_of_the_querys_scale_and_the_mean_distance_is_not(kernel, degree):
    removal = remove(fit(kernel, draw(9, 4), draw(9, 2, seed=1), 0.2), torch.tensor([[0, 1], [2, 5]]))
    queries = draw(2, 2, 4, seed=3)
    once = divergence_at(removal, queries)
    for scale in (0.3, 4.0):
        scaled = divergence_at(removal, scale * queries)
        torch.testing.assert_close(scaled.kl, once.kl, rtol=1e-7, atol=0)
        # the square of a mean that grows as λ^α; the paper prints λ^α
        torch.testing.assert_close(scaled.mean, scale ** (2 * degree) * once.mean)


def in_its_own_draw(X, Z):
    """The RBF kernel of (x, number of the draw), nothing between two draws: many posteriors as one."""
    return RBF()(X[:, :1], Z[:, :1]) * (X[:, 1].round()[:, None] == Z[:, 1].round())


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (25, 50, 75))])
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
    search = steepest_point(posterior, label, starts.flatten(0, 1), bounds=bounds, steps=60)
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
        at = divergence_at(alone, grid.unsqueeze(1))
        found = ((star[k, 0], steep[k]), (kl.queries[k, 0, 0], kl.value[k]), (mean.queries[k, 0, 0], mean.value[k]))
        for (point, value), truth in zip(found, (slope, at.kl, at.mean), strict=True):
            assert float(truth.max()) <= float(value) * (1 + 1e-9)
            assert abs(float(grid[truth.argmax()]) - float(point)) <= spacing
    assert float((kl.queries[:, 0, 0] - star[:, 0]).abs().max()) < 1e-4
    assert float((mean.queries[:, 0, 0] - star[:, 0]).abs().min()) > 0.05
    assert float((mean.value / mean.own).min()) > 1.005
