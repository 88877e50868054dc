"""The posterior and records removed from it, against plain solves and fitting again; and what they refuse."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal, kl_divergence

from giveaway.gp import posterior as module
from giveaway.gp.distinguishability import divergence_at, remove
from giveaway.gp.posterior import fit
from tests.conftest import refused


def rbf(X, Z):
    return torch.exp(-(X.unsqueeze(1) - Z.unsqueeze(0)).flatten(2).square().sum(2) / 2)


def plain_kl(mean_change, without, with_):
    """KL summed over the outputs by torch.distributions, for mean_change (q, C)."""
    zero = torch.zeros(len(without), dtype=torch.float64)
    return sum(
        kl_divergence(MultivariateNormal(column, without), MultivariateNormal(zero, with_)) for column in mean_change.T
    )


def both_laws(removal, queries):
    """The mean change (R, q, C), and the covariances without and with the records, (R, q, q)."""
    mean_change, excess, with_ = removal.change(queries)
    return mean_change, with_ + excess @ excess.mT, with_.expand(len(removal.rows), -1, -1)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(
    n=st.integers(1, 12),
    shape=st.sampled_from([(3,), (2, 2)]),
    outputs=st.integers(0, 3),
    q=st.integers(1, 4),
    noise=st.sampled_from([1e-3, 0.1, 50.0]),
    seed=st.integers(0, 99),
)
def test_mean_and_covariance_are_those_of_the_conditional_gaussian(n, shape, outputs, q, noise, seed):
    x, queries = draw(n, *shape, seed=seed), draw(q, *shape, seed=seed + 100)
    y = draw(n, seed=seed + 200) if outputs == 0 else draw(n, outputs, seed=seed + 200)
    posterior = fit(rbf, x, y, noise)
    joint = rbf(torch.cat([x, queries]), torch.cat([x, queries])).numpy()
    m = joint[:n, :n] + noise * np.eye(n)
    mean = joint[n:, :n] @ np.linalg.solve(m, y.reshape(n, -1).numpy())
    covariance = joint[n:, n:] - joint[n:, :n] @ np.linalg.solve(m, joint[:n, n:])
    np.testing.assert_allclose(posterior.mean(queries), mean, atol=1e-10)
    np.testing.assert_allclose(posterior.covariance(queries), covariance, atol=1e-10)
    np.testing.assert_allclose(posterior.variance(queries), np.diag(covariance), atol=1e-10)


def test_the_gradient_reaches_the_queries():
    posterior = fit(rbf, draw(6, 2), draw(6, 2, seed=1), 0.1)
    queries = draw(3, 2, seed=2).requires_grad_()
    for method in (posterior.mean, posterior.variance, posterior.covariance):
        assert torch.autograd.gradcheck(method, (queries,))


@pytest.mark.parametrize("noise", [1e-6, 1e-2, 3.0])
def test_the_condition_number_is_estimated(noise):
    x = draw(60, 2)
    posterior = fit(rbf, x, draw(60), noise)
    truth = float(torch.linalg.cond(rbf(x, x) + noise * torch.eye(60, dtype=torch.float64)))
    assert truth / 3 < posterior.condition < truth * 1.0001


def test_inputs_all_alike_give_the_shrunken_mean():
    posterior = fit(rbf, torch.ones(5, 2), torch.arange(5.0), 0.5)
    mean = posterior.mean(torch.ones(1, 2))
    torch.testing.assert_close(mean, torch.full_like(mean, 10.0 / 5.5))
    torch.testing.assert_close(posterior.variance(torch.ones(1, 2)), torch.tensor([0.5 / 5.5], dtype=torch.float64))


def test_a_diagonal_kernel_needs_no_noise_to_speak_of():
    posterior = fit(lambda X, Z: (X == Z.T).to(torch.float64), torch.arange(4.0)[:, None], torch.ones(4), 1e-30)
    assert posterior.condition == pytest.approx(1.0)


@pytest.mark.parametrize("noise", [1e-30, 1e-16, 1e-15])
def test_repeated_records_that_the_noise_does_not_separate_are_refused(noise):
    x = draw(20, 2)
    words = r"kernel: expected a positive definite K \+ noise·I, got .*raise noise"
    refused(words, fit, rbf, torch.cat([x, x]), draw(40), noise)


def test_a_kernel_that_is_not_positive_is_refused():
    words = "Cholesky factorization stops at record 1; raise noise, drop repeated"
    refused(words, fit, lambda X, Z: -rbf(X, Z) + 1.5, draw(5, 2) * 3, torch.ones(5), 0.01)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise": float("nan")}, "noise: expected a finite number"),
        ({"targets": torch.zeros(4, 0)}, r"targets: expected shape \(4,\) or \(4, outputs\), got shape \(4, 0\)"),
        ({"kernel": lambda X, Z: rbf(X, Z) / 0.0}, "kernel: expected finite numbers"),
    ],
)
def test_wrong_arguments_are_refused(change, words):
    """Those that `ga.lood` passes on are tested with it."""
    arguments = {"kernel": rbf, "inputs": draw(4, 2), "targets": draw(4), "noise": 0.1, **change}
    refused(words, fit, **arguments)


def test_queries_of_another_shape_are_refused():
    posterior = fit(rbf, draw(4, 2), draw(4), 0.1)
    refused(r"queries: expected shape \(q, 2\), got shape \(3,\); give one query a row", posterior.mean, torch.zeros(3))


@given(
    n=st.integers(2, 12),
    removals=st.integers(1, 4),
    size=st.integers(1, 4),
    q=st.integers(1, 3),
    outputs=st.integers(1, 2),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_queries_against_fitting_again(n, removals, size, q, outputs, shared, seed):
    x, y, noise = draw(n, 2, seed=seed), draw(n, outputs, seed=seed + 1), 0.05
    posterior = fit(rbf, x, y, noise)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.stack([torch.randperm(n, generator=generator)[: min(size, n)] for _ in range(removals)])
    queries = draw(1 if shared else removals, q, 2, seed=seed + 2)
    removal = remove(posterior, rows)
    change, without, with_ = both_laws(removal, queries)
    distance = divergence_at(removal, queries)
    assert without.shape == with_.shape == (removals, q, q)
    for r in range(removals):
        at = queries[0 if shared else r]
        keep = torch.ones(n, dtype=torch.bool)
        keep[rows[r]] = False
        if keep.any():
            again = fit(rbf, x[keep], y[keep], noise)
            mean, covariance = again.mean(at), again.covariance(at)
        else:
            mean, covariance = torch.zeros(q, outputs, dtype=torch.float64), rbf(at, at)
        torch.testing.assert_close(change[r], mean - posterior.mean(at), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(without[r], covariance, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(with_[r], posterior.covariance(at), rtol=1e-9, atol=1e-9)
        moved = mean - posterior.mean(at)
        truth = plain_kl(moved, covariance, posterior.covariance(at))
        torch.testing.assert_close(distance.kl[r], truth, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(distance.mean[r], moved.square().sum() / 2, rtol=1e-8, atol=1e-10)


def test_many_removals_keep_their_own_queries(monkeypatch):
    monkeypatch.setattr(module, "QUERIES_TOGETHER", 4)
    posterior = fit(rbf, draw(9, 2), draw(9, seed=1), 0.1)
    queries = draw(9, 3, 2, seed=2)
    _, without, _ = both_laws(remove(posterior, torch.arange(9)), queries)
    for r in range(9):
        _, alone, _ = both_laws(remove(posterior, torch.tensor([[r]])), queries[r : r + 1])
        torch.testing.assert_close(without[r], alone[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (torch.zeros(0, 1, dtype=torch.int64), r"rows: expected shape \(R, s\) or \(R,\), not empty"),
        (torch.tensor([0.0]), "rows: expected row numbers, got dtype float32"),
        (torch.tensor([[0, 6]]), "rows: expected rows from 0 to 5, got row 6"),
        (torch.tensor([[0, 1], [2, 2]]), "rows: expected each record once a group, got row 2 twice in group 1"),
    ],
)
def test_wrong_rows_are_refused(rows, words):
    refused(words, remove, fit(rbf, draw(6, 2), draw(6), 0.1), rows)


@pytest.mark.parametrize("shape", [(2, 2), (2, 1, 3), (4, 1, 2), (3, 0, 2)])
def test_wrong_queries_are_refused(shape):
    removal = remove(fit(rbf, draw(6, 2), draw(6), 0.1), torch.arange(3))
    words = r"queries: expected shape \(3 or 1, q, 2\), got shape .*; give q queries a"
    refused(words, removal.change, torch.zeros(shape))
