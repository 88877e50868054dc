"""Leaving records out, against fitting again without them."""

from __future__ import annotations

import sys

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.gp.leave_one_out import invert_lower_, leave_group_out, leave_one_out
from giveaway.gp.posterior import fit
from tests.gp.test_posterior import draw, rbf

module = sys.modules["giveaway.gp.leave_one_out"]  # the package has a function of that name


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


@settings(max_examples=25, deadline=None)
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
    for part in leave_group_out(posterior, groups):
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
    (part,) = leave_group_out(posterior, [torch.arange(9)])
    torch.testing.assert_close(part.mean, torch.zeros_like(part.mean), rtol=0, atol=1e-12)
    torch.testing.assert_close(part.covariance[0], rbf(posterior.inputs, posterior.inputs), rtol=1e-12, atol=1e-12)


def test_few_groups_are_solved_for_and_many_inverted_with_one_answer(monkeypatch):
    posterior = fit(rbf, draw(30, 2), draw(30, seed=1), 0.1)
    every = leave_one_out(posterior)
    monkeypatch.setattr(module, "GATHERED", 40)
    (few,) = leave_group_out(posterior, [[4], [29], [0]])
    (many,) = leave_group_out(posterior, [[i] for i in range(30)])
    torch.testing.assert_close(few.covariance.flatten(), every.variance[[4, 29, 0]], rtol=1e-12, atol=0)
    torch.testing.assert_close(many.covariance.flatten(), every.variance, rtol=1e-12, atol=0)
    torch.testing.assert_close(many.mean_change[:, 0], every.mean_change, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("n", [1, 5, 40, 41])
def test_the_triangular_inverse(monkeypatch, n):
    monkeypatch.setattr(module, "BASE", 4)
    triangle = torch.tril(draw(n, n)) + 8.0 * torch.eye(n, dtype=torch.float64)
    inverse = triangle.clone()
    invert_lower_(inverse)
    torch.testing.assert_close(inverse @ triangle, torch.eye(n, dtype=torch.float64), rtol=0, atol=1e-13)


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
    (group,) = leave_group_out(posterior, [list(range(n))])
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
    with pytest.raises(InputError, match="kernel: expected a positive semi-definite kernel, got a negative posterior"):
        leave_one_out(posterior)


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
    with pytest.raises(InputError, match=words):
        leave_group_out(posterior, groups)
