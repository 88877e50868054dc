"""Leaving records out, against fitting again without them."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from giveaway.gp import posterior as module
from giveaway.gp.posterior import (
    fit,
    kernel_regression,
    leave_groups_out,
    leave_one_out,
    left_out_errors,
)
from giveaway.gp.ridge import rows_of_groups
from giveaway.linalg import dense
from tests.conftest import refused
from tests.gp.test_posterior import draw, rbf


def refit(posterior, rows):
    """Mean (s, C) and covariance (s, s) at `rows` after fitting all other records, by plain solves."""
    keep = torch.ones(len(posterior.inputs), dtype=torch.bool)
    keep[rows] = False
    x, at = posterior.inputs[keep], posterior.inputs[rows]
    m = posterior.kernel(x, x) + posterior.noise * torch.eye(len(x), dtype=torch.float64)
    gain = torch.linalg.solve(m, posterior.kernel(x, at)).T
    prior = posterior.kernel(at, at)
    return gain @ posterior.targets[keep], prior - gain @ posterior.kernel(x, at)


@pytest.mark.parametrize("noise", [1e-3, 0.05, 2.0])
@pytest.mark.parametrize("outputs", [1, 3])
def test_all_records_against_n_separate_solves(noise, outputs, monkeypatch):
    monkeypatch.setattr(module, "STRIP", 7)
    n = 40
    x = draw(n, 2)
    x[:4] *= 4.0  # far out: the most influential records are in the comparison
    posterior = fit(rbf, x, draw(n, outputs, seed=1), noise)
    result = leave_one_out(posterior)
    worst = result.leverage.topk(n // 10).indices
    assert result.leverage[worst].min() > 0.3
    for i in range(n):
        mean, covariance = refit(posterior, [i])
        torch.testing.assert_close(result.mean[i], mean[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(result.variance[i], covariance[0, 0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(result.residual[i], posterior.targets[i] - mean[0], rtol=1e-10, atol=1e-10)
    with_ = posterior.mean(x)
    torch.testing.assert_close(result.mean_change, result.mean - with_, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(result.variance_with, posterior.variance(x), rtol=1e-10, atol=1e-10)


@given(
    n=st.integers(1, 14),
    sizes=st.lists(st.integers(1, 14), min_size=1, max_size=5),
    outputs=st.integers(1, 3),
    noise=st.sampled_from([1e-3, 0.1, 5.0]),
    seed=st.integers(0, 99),
)
def test_groups_of_any_sizes_against_fitting_again(n, sizes, outputs, noise, seed):
    posterior = fit(rbf, draw(n, 2, seed=seed), draw(n, outputs, seed=seed + 1), noise)
    generator = torch.Generator().manual_seed(seed)
    groups = [torch.randperm(n, generator=generator)[:size] for size in sizes]
    seen = set()
    for part in leave_groups_out(posterior, groups):
        for g, place in enumerate(part.place.tolist()):
            seen.add(place)
            rows = part.rows[g]
            assert torch.equal(rows, groups[place])
            mean, covariance = refit(posterior, rows)
            at = posterior.inputs[rows]
            torch.testing.assert_close(part.mean[g], mean, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(part.covariance[g], covariance, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(part.covariance_with[g], posterior.covariance(at), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(part.mean_change[g], mean - posterior.mean(at), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(part.residual[g], posterior.targets[rows] - mean, rtol=1e-9, atol=1e-9)
    assert seen == set(range(len(groups)))


def test_without_any_record_the_prior_is_left():
    posterior = fit(rbf, draw(9, 2), draw(9, 2, seed=1), 0.1)
    (part,) = leave_groups_out(posterior, [torch.arange(9)])
    torch.testing.assert_close(part.mean, torch.zeros_like(part.mean), rtol=0, atol=1e-12)
    torch.testing.assert_close(part.covariance[0], rbf(posterior.inputs, posterior.inputs), rtol=1e-12, atol=1e-12)


def test_few_groups_are_solved_for_and_many_inverted_with_one_answer(monkeypatch):
    posterior = fit(rbf, draw(30, 2), draw(30, seed=1), 0.1)
    every = leave_one_out(posterior)
    monkeypatch.setattr(module, "GATHERED", 40)
    (few,) = leave_groups_out(posterior, [[4], [29], [0]])
    (many,) = leave_groups_out(posterior, [[i] for i in range(30)])
    torch.testing.assert_close(few.covariance.flatten(), every.variance[[4, 29, 0]], rtol=1e-12, atol=0)
    torch.testing.assert_close(many.covariance.flatten(), every.variance, rtol=1e-12, atol=0)
    torch.testing.assert_close(many.mean_change[:, 0], every.mean_change, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1.0, 1e6])
def test_tiny_and_large_leverages_keep_their_digits(scale):
    n, noise = 12, 0.7
    x = draw(n, 2)
    posterior = fit(lambda X, Z: scale * rbf(X, Z), x, draw(n, seed=1), noise)
    with mpmath.workdps(60):
        k = mpmath.matrix((scale * rbf(x, x)).tolist())
        inverse = (k + mpmath.mpf(noise) * mpmath.eye(n)) ** -1
        truth = [1 - mpmath.mpf(noise) * inverse[i, i] for i in range(n)]
    leverage = leave_one_out(posterior).leverage.tolist()
    (group,) = leave_groups_out(posterior, [list(range(n))])
    for i in range(n):
        assert leverage[i] == pytest.approx(float(truth[i]), rel=1e-12)
        assert float(group.covariance_with[0, i, i]) == pytest.approx(float(noise * truth[i]), rel=1e-12)


def test_a_record_without_any_variance_has_no_leverage():
    x = torch.tensor([[0.0], [1.0], [2.0]])
    result = leave_one_out(fit(lambda X, Z: X @ Z.T, x, torch.ones(3), 0.1))
    assert result.leverage[0] == 0.0
    assert result.mean_change[0] == 0.0
    assert torch.isfinite(result.mean).all()


def test_a_kernel_with_negative_variances_is_refused():
    posterior = fit(lambda X, Z: -0.5 * rbf(X, Z), draw(5, 2) * 4, torch.ones(5), 1.0)
    refused("kernel: expected a positive semi-definite kernel, got a negative posterior", leave_one_out, posterior)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([], "groups: expected at least one group, none of them empty, got 0 groups"),
        ([[0], []], "groups: expected at least one group, none of them empty, got 2 groups"),
        ([[0, 4]], "groups: expected rows from 0 to 3, got row 4; count the records from 0"),
        ([[-1]], "got row -1"),
        ([[0], [1, 2, 1]], "groups: expected each record once a group, got row 1 twice in group 1"),
        ([[0.5]], "groups: expected row numbers, got dtype float64"),
    ],
)
def test_wrong_groups_are_refused(groups, words):
    posterior = fit(rbf, draw(4, 2), draw(4), 0.1)
    refused(words, leave_groups_out, posterior, groups)


# with a free constant beside the kernel, as the view of the other records has it


def laplace_data(n, outputs=2, d=3, seed=0):
    """Points of which some lie far out, their Laplace kernel by SciPy, and targets with outliers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x[: max(1, n // 10)] *= 6.0
    y = np.sin(x @ rng.normal(size=(d, outputs))) + 0.3 * rng.standard_t(3, size=(n, outputs)) + 2.0
    return x, np.exp(-cdist(x, x) / 1.7), y


def bordered_fit(k, y, noise):
    """Weights and constant of kernel ridge regression by the dense bordered system."""
    n = len(k)
    system = np.block([[k + noise * np.eye(n), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    solved = np.linalg.solve(system, np.vstack([y, np.zeros((1, y.shape[1]))]))
    return solved[:-1], solved[-1]


def kernel_refits(k, y, noise, names):
    """y minus what a fit to the other groups predicts."""
    error = np.empty_like(y)
    for name in np.unique(names):
        out = names == name
        weights, constant = bordered_fit(k[np.ix_(~out, ~out)], y[~out], noise)
        error[out] = y[out] - (k[np.ix_(out, ~out)] @ weights + constant)
    return error


def with_constant(k, y, noise, members=(), **options):
    # above the diagonal nothing may be read
    lower = torch.from_numpy(np.asfortranarray(np.tril(k) + np.triu(np.full_like(k, np.nan), 1)))
    regression = kernel_regression(lower, torch.from_numpy(y), noise, constant=True, overwrite=True)
    assert regression.factor.data_ptr() == lower.data_ptr()
    return left_out_errors(regression, members, **options)


def members_of(names):
    return list(rows_of_groups(names, len(names)).values())


def mixed_groups(n, seed=0):
    """Scattered groups: singles, pairs and some larger ones."""
    sizes, left = [], n
    for size in np.random.default_rng(seed).choice([1, 1, 2, 3, 7], size=n):
        sizes.append(min(size, left))
        left -= sizes[-1]
    names = np.repeat(np.arange(n), sizes)
    if len(set(names.tolist())) < 2:
        names[0] = n
    return np.random.default_rng(seed + 1).permutation(names)


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("grouped", [False, True])
def test_with_a_constant_all_are_predicted_as_after_a_refit(noise, grouped, monkeypatch):
    _, k, y = laplace_data(60)
    names = mixed_groups(60) if grouped else np.arange(60)
    members = members_of(names) if grouped else ()
    assert not grouped or {1, 2, 7} <= {rows.shape[1] for rows in members}
    result = with_constant(k, y, noise, members)
    expected = kernel_refits(k, y, noise, names)
    np.testing.assert_allclose(result.error.numpy(), expected, rtol=1e-8, atol=1e-10)
    weights, constant = bordered_fit(k, y, noise)
    moved = np.abs(expected - (y - k @ weights - constant)).max(1)  # by being left out
    most = np.argsort(-moved)[:6]
    np.testing.assert_allclose(result.error.numpy()[most], expected[most], rtol=1e-8)
    torch.testing.assert_close(result.leverage, with_constant(k, y, noise).leverage, rtol=0, atol=0)
    monkeypatch.setattr(module, "GATHERED", 1)  # one group at a time
    torch.testing.assert_close(with_constant(k, y, noise, members).error, result.error, rtol=1e-12, atol=1e-12)


@given(
    n=st.integers(2, 25),
    outputs=st.integers(1, 3),
    power=st.floats(-4, 2),
    grouped=st.booleans(),
    seed=st.integers(0, 99),
)
def test_with_a_constant_any_shape(n, outputs, power, grouped, seed):
    _, k, y = laplace_data(n, outputs, seed=seed)
    names = mixed_groups(n, seed) if grouped else np.arange(n)
    result = with_constant(k, y, 10.0**power, members_of(names) if grouped else ())
    np.testing.assert_allclose(result.error.numpy(), kernel_refits(k, y, 10.0**power, names), rtol=1e-8, atol=1e-8)
    assert result.leverage.shape == (n,)
    assert ((result.leverage >= 0) & (result.leverage <= 1)).all()


def test_the_leverage_is_how_far_a_fit_follows_its_own_target():
    _, k, y = laplace_data(30, outputs=1)
    for noise in (1e-3, 1.0, 50.0):
        followed = []
        for i in range(30):
            nudged = y.copy()
            nudged[i] += 1.0  # the fit is linear in y: any step is exact
            weights, constant = bordered_fit(k, np.hstack([y, nudged]), noise)
            fitted = k[i] @ weights + constant
            followed.append(fitted[1] - fitted[0])
        np.testing.assert_allclose(with_constant(k, y, noise).leverage.numpy(), followed, rtol=1e-8, atol=1e-10)


def test_fifty_digits_say_the_same():
    x, k, y = laplace_data(7, outputs=1)
    noise = 1e-4
    x[1] = x[0] + 1e-6  # nearly the same record twice
    k = np.exp(-cdist(x, x) / 1.7)
    with mpmath.workdps(50):
        for i in range(7):
            others = [j for j in range(7) if j != i]
            system = mpmath.matrix(7, 7)
            right = mpmath.matrix(7, 1)
            for a, row in enumerate(others):
                for b, column in enumerate(others):
                    system[a, b] = mpmath.mpf(float(k[row, column])) + (mpmath.mpf(noise) if a == b else 0)
                system[a, 6] = system[6, a] = 1
                right[a] = mpmath.mpf(float(y[row, 0]))
            solved = mpmath.lu_solve(system, right)
            guess = solved[6] + sum(mpmath.mpf(float(k[i, row])) * solved[a] for a, row in enumerate(others))
            assert float(with_constant(k, y, noise).error[i, 0]) == pytest.approx(float(y[i, 0] - guess), rel=1e-8)


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize(("strip", "block"), [(7, 512), (64, 40)])
def test_an_inverse_of_single_precision_errs_less_than_single_distances_do(noise, strip, block, monkeypatch):
    monkeypatch.setattr(module, "STRIP", strip)
    monkeypatch.setattr(dense, "BLOCK", block)
    x, k, y = laplace_data(300)
    x[:20] = x[20:40]  # copies
    k = np.exp(-cdist(x, x) / 1.7)
    rounded = np.exp(-np.float32(cdist(x, x)) / np.float32(1.7)).astype(np.float64)
    exact, single = with_constant(k, y, noise), with_constant(k, y, noise, single=True)
    away = (single.error - exact.error).abs().numpy()
    of_kernel = np.abs(kernel_refits(rounded, y, noise, np.arange(300)) - exact.error.numpy())
    assert 0 < away.max() < of_kernel.max()
    np.testing.assert_allclose(single.error, exact.error, rtol=2e-6, atol=0)
    np.testing.assert_allclose(single.leverage, exact.leverage, rtol=0, atol=1e-6)
    most = exact.leverage.argsort()[-30:]
    np.testing.assert_allclose(single.leverage[most], exact.leverage[most], rtol=1e-5)


@pytest.mark.parametrize("kind", ["copies", "near copies", "cluster", "one copied often", "far out"])
def test_an_inverse_of_single_precision_bears_kernels_that_are_hard(kind):
    n, rng = 1_500, np.random.default_rng(0)
    x = rng.normal(size=(n, 40))
    if kind.endswith("copies"):
        x[n // 2 :] = x[: n // 2] + (1e-3 * rng.normal(size=(n // 2, 40)) if kind == "near copies" else 0.0)
    if kind == "cluster":
        x[: n - 200] = x[0] + 1e-2 * rng.normal(size=(n - 200, 40))
    if kind == "one copied often":
        x[:1_000] = x[0]
    if kind == "far out":
        x[:20] *= 1e4
    apart = cdist(x, x)
    k, y = np.exp(-apart / apart.mean()), rng.normal(size=(n, 2))
    exact, single = with_constant(k, y, 1e-4), with_constant(k, y, 1e-4, single=True)
    scale = float(exact.error.abs().max())
    np.testing.assert_allclose(single.error / scale, exact.error / scale, rtol=0, atol=1e-5)
    np.testing.assert_allclose(single.leverage, exact.leverage, rtol=0, atol=1e-5)


def test_a_kernel_that_cannot_be_is_refused():
    k = torch.eye(5, dtype=torch.float64)
    k[0, 0] = -1.0
    with pytest.raises(torch.linalg.LinAlgError):
        kernel_regression(k, torch.ones(5, 1).double(), 0.5, constant=True)
