"""The differing point, removals normalized apart, and activations, against plain loops and second fits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from benchmarks.reproduce.lood.activations import SETTINGS, activation_study, critical_variances, study_kernel
from benchmarks.reproduce.lood.bounds import distance_to_constant
from benchmarks.reproduce.lood.normalized import Normalized, gaussian_kl, remove_normalized
from benchmarks.reproduce.lood.toys import steepest_point, steepness
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr

from giveaway.gp.activations import ACTIVATIONS
from giveaway.gp.distinguishability import mean_distance, remove
from giveaway.gp.kernels import RBF, Linear, Sphere, kernel_matrix
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit
from giveaway.gp.query import optimal_queries
from tests.conftest import refused
from tests.gp.test_kernels import arc_cosine, on_sphere
from tests.gp.test_lood import brute_force
from tests.gp.test_posterior import draw, plain_kl


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


def test_the_steepest_point_is_that_of_a_dense_grid():
    x = draw(7, 2)
    posterior = fit(RBF(), x, torch.sin(x).sum(1), 0.05)
    axis = torch.linspace(-4, 4, 121, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    best = steepness(posterior, grid, torch.sin(grid).sum(1, keepdim=True)).norm(dim=1).max()
    starts = 8 * torch.rand(24, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 4
    found = steepest_point(posterior, lambda s: torch.sin(s).sum(1, keepdim=True), starts, bounds=(-4, 4))
    assert float(best) * (1 - 1e-9) <= found.steepness <= 1.01 * float(best)
    torch.testing.assert_close(found.label, torch.sin(found.point).sum().view(1))
    exact = steepness(posterior, found.point[None], found.label[None]).norm()
    assert found.steepness == pytest.approx(float(exact), rel=1e-6)


@settings(max_examples=12)
@given(q=st.integers(1, 5), outputs=st.integers(1, 3), seed=st.integers(0, 999))
def test_gaussian_kl_is_that_of_torch_distributions(q, outputs, seed):
    a, b = draw(2, q, q + 2, seed=seed)
    without, with_ = a @ a.T + 0.1 * torch.eye(q), b @ b.T + 0.1 * torch.eye(q)
    change = draw(q, outputs, seed=seed + 1)
    torch.testing.assert_close(gaussian_kl(change, without, with_), plain_kl(change, without, with_))


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
    options = {"starts": x[:3, None, None] + 0.1 * x.std() * draw(3, 6, 1, 3, seed=2)}
    moved = optimal_queries(remove_normalized(RBF(4.0), x, y, 0.05, torch.arange(3)), **options)
    fixed = optimal_queries(remove(fit(RBF(4.0), x, y, 0.05), torch.arange(3)), **options)
    assert bool((fixed.value <= fixed.own * (1 + 1e-9)).all())
    assert bool((moved.value > moved.own * 1.01).all())
    assert bool(((moved.queries[:, 0] - x[:3]).norm(dim=1) > 0.1).all())
    for r in range(3):
        truth = by_hand(RBF(4.0), x, y, 0.05, [r], moved.queries[r])["kl"]
        torch.testing.assert_close(moved.value[r], truth, rtol=1e-6, atol=0)


@pytest.mark.parametrize("n", [7, 10])
def test_a_channel_of_one_value_is_centred_only(n):
    records = torch.full((n, 2, 3), 0.1, dtype=torch.float64)
    records[:, 1] = torch.arange(n, dtype=torch.float64)[:, None]
    mapped = Normalized(RBF(), records).map(torch.full((1, 2, 3), 0.2, dtype=torch.float64))
    torch.testing.assert_close(mapped[0, 0], torch.full((3,), 0.1, dtype=torch.float64))


NOISE = 0.1


def data(n=9, d=6, outputs=2):
    rng = np.random.default_rng(0)
    return rng.uniform(0.0, 1.0, size=(n, d)), rng.normal(size=(n, outputs))


def gelu_by_hand(x, depth):
    """GELU at σw² = 2 by Gauss–Hermite quadrature of every pair."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    k = 2 * x @ x.T / x.shape[1]
    for _ in range(depth):
        after = np.empty_like(k)
        for i in range(len(k)):
            for j in range(len(k)):
                u = math.sqrt(k[i, i]) * nodes
                slope = k[i, j] / k[i, i]
                rest = math.sqrt(max(k[j, j] - slope * k[i, j], 0.0))
                v = slope * u[:, None] + rest * nodes
                after[i, j] = 2 * weights @ (u * ndtr(u) * ((v * ndtr(v)) @ weights))
        k = after
    return k


class Raised(type(ACTIVATIONS["identity"])):
    """x + 3."""

    def moment(self, order, *covariances):
        return super().moment(order, *covariances) + (9.0 if order == (0, 0) else 0.0)


def correlation(k):
    return k / np.sqrt(np.outer(k.diagonal(), k.diagonal()))


@pytest.mark.parametrize("setting", ["sphere", "raw"])
def test_values_are_those_of_separate_solves(setting):
    x, y = data()
    study = activation_study(x, y, noise=NOISE, depths=[1, 2], activations=["gelu"], setting=setting)
    assert study.activations == ("relu", "gelu")
    rows = {(row.activation, row.depth): row for row in study.rows}
    for j, depth in enumerate((1, 2)):
        by_hand = {}
        for i, (name, kernel) in enumerate((("relu", arc_cosine), ("gelu", gelu_by_hand))):
            k = correlation(kernel(on_sphere(x), depth)) if setting == "sphere" else kernel(x, depth)
            by_hand[name] = brute_force(k, y, NOISE)
            np.testing.assert_allclose(study.kl[i, j], by_hand[name][0], rtol=1e-7)
            np.testing.assert_allclose(study.mean[i, j], by_hand[name][1], rtol=1e-7)
            row = rows[name, depth]
            assert row.distance == pytest.approx(
                (k.max() - k.min()) / 2 if k.max() + k.min() > 0 else k.max(), rel=1e-9
            )
            assert row.kl == pytest.approx(by_hand[name][0].mean(), rel=1e-7)
        gelu = rows["gelu", depth]
        for measure, ratio, higher in ((0, gelu.kl_ratio, gelu.kl_higher), (1, gelu.mean_ratio, gelu.mean_higher)):
            ours, relus = by_hand["gelu"][measure], by_hand["relu"][measure]
            assert ratio == pytest.approx(ours.mean() / relus.mean(), rel=1e-7)
            assert higher == (ours > relus).mean()


@pytest.mark.parametrize(("name", "phi"), [("gelu", lambda u: u * ndtr(u)), ("tanh", np.tanh)])
def test_critical_variances_by_quadrature(name, phi):
    def moment(function):
        return quad(lambda u: function(u) ** 2 * math.exp(-u * u / 2) / math.sqrt(math.tau), -12, 12, epsabs=1e-12)[0]

    weight, bias = critical_variances(name)
    step = 1e-5
    assert weight * moment(lambda u: (phi(u + step) - phi(u - step)) / (2 * step)) == pytest.approx(1.0, rel=1e-8)
    assert bias + weight * moment(phi) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh", "erf"])
def test_unit_variance_at_every_depth(name):
    x = torch.from_numpy(data()[0])
    for setting in ("sphere", "critical"):
        for depth in (1, 5):
            diagonal = kernel_matrix(study_kernel(setting, depth, name), x).diagonal()
            torch.testing.assert_close(diagonal, torch.ones_like(diagonal), rtol=0, atol=1e-12)


# by theory 1 − correlation tends to (9π²/2)/L² for ReLU: slopes approach −2 and −1 from the side of shallower depths
@pytest.mark.parametrize(
    ("name", "slope"),
    [
        ("relu", -2.0),
        pytest.param("gelu", -1.0, marks=pytest.mark.slow),
        pytest.param("erf", -1.0, marks=pytest.mark.slow),
    ],
)
def test_rates_of_proposition_h1(name, slope):
    x = torch.from_numpy(data(n=4)[0])
    depths = np.array([200, 400, 800])
    distances = [distance_to_constant(kernel_matrix(study_kernel("critical", int(d), name), x))[1] for d in depths]
    fitted = np.polyfit(np.log(depths), np.log(distances), 1)[0]
    assert fitted == pytest.approx(slope, abs=0.08)
    if name == "relu":
        assert 2 * distances[-1] * depths[-1] ** 2 == pytest.approx(4.5 * math.pi**2, rel=0.1)


def test_a_smooth_activation_off_the_critical_line_keeps_its_distance():
    x = torch.from_numpy(data(n=4)[0])
    shallow, deep = (distance_to_constant(kernel_matrix(study_kernel("sphere", d, "erf"), x))[1] for d in (50, 200))
    assert deep > 0.9 * shallow
    assert deep > 0.1


def test_words_of_errors():
    x, y = data()
    refused("setting", activation_study, x, y, noise=NOISE, depths=[1], activations=["gelu"], setting="cube")
    refused("unit variance", critical_variances, Raised(1.0, "raised"))
    assert SETTINGS == ("sphere", "critical", "raw")
