"""The best test, against noncentral χ² laws and draws."""

import numpy as np
import pytest
import torch
from benchmarks.reproduce.lood.query_attack import query_attack
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from giveaway.gp.distinguishability import remove
from giveaway.gp.posterior import fit
from giveaway.gp.query import one_direction, record_attack
from tests.conftest import refused
from tests.gp.test_posterior import both_laws, draw, rbf

RATES = (1e-4, 0.01, 0.1, 0.5, 0.9)


def made_up(x, delta, outputs):
    """The attack on a law with excess variance x and mean shift δ, in units of the law with the record."""
    values = (torch.tensor([float(value)], dtype=torch.float64) for value in (x, delta))
    return one_direction(*values, outputs, torch.tensor(RATES, dtype=torch.float64))


def roc_by_chi_square(x, delta, outputs):
    """Draws whose squared distance to the centre −d/x is small are called members: two noncentral χ² laws."""
    centre, v = delta / x, 1.0 + x
    return lambda fpr: stats.ncx2.cdf(v * stats.ncx2.ppf(fpr, outputs, (centre + delta) ** 2 / v), outputs, centre**2)


@pytest.mark.parametrize("outputs", [1, 2, 3, 10])
@pytest.mark.parametrize(("x", "delta"), [(0.5, 0.3), (3.0, 2.0), (0.1, 1.0), (0.05, 0.001), (20.0, 6.0), (2.0, 1e-6)])
def test_one_record_against_the_noncentral_chi_square(x, delta, outputs):
    roc = roc_by_chi_square(x, delta, outputs)
    result = made_up(x, delta, outputs)
    np.testing.assert_allclose(result.tpr[0], roc(np.array(RATES)), rtol=1e-9)
    auc, _ = integrate.quad(lambda g: roc(stats.norm.cdf(g)) * stats.norm.pdf(g), -9.0, 9.0, epsabs=1e-10, limit=200)
    assert float(result.auc) == pytest.approx(auc, abs=1e-9)


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("x", [0.0, 1e-13])
def test_equal_variances_give_the_normal_roc(x, outputs):
    result = made_up(x, 1.3, outputs)
    assert float(result.auc) == pytest.approx(stats.norm.cdf(1.3 / np.sqrt(2.0)), abs=1e-12)
    np.testing.assert_allclose(result.tpr[0], stats.norm.cdf(stats.norm.ppf(RATES) + 1.3), rtol=1e-9)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("x", "delta"), [(0.0, 0.0), (1e-15, 1e-16), (1e-200, 1e-200)])
def test_a_record_that_moves_nothing_is_safe(x, delta, outputs):
    result = made_up(x, delta, outputs)
    assert float(result.auc) == pytest.approx(0.5, abs=1e-14)
    np.testing.assert_allclose(result.tpr[0], RATES, rtol=1e-14)


@settings(max_examples=15)
@given(x=st.floats(-14, 8), delta=st.floats(-14, 4), outputs=st.sampled_from([1, 2, 7]))
def test_rates_are_finite_and_no_worse_than_chance(x, delta, outputs):
    result = made_up(10.0**x, 10.0**delta, outputs)
    tpr = result.tpr[0].numpy()
    assert 0.5 - 1e-12 <= float(result.auc) <= 1.0
    assert (np.diff(tpr) >= -1e-9).all()
    assert (tpr >= np.array(RATES) * (1 - 1e-9)).all()
    assert (tpr <= 1.0).all()


def drawn_rates(with_, without, change, fpr, draws, rng):
    """AUC and true positive rates of the likelihood ratio of two Gaussians, C outputs alike, from draws of both."""
    laws = [
        [stats.multivariate_normal(mean, covariance, allow_singular=True) for mean in means.T]
        for means, covariance in ((0 * change, with_), (change, without))
    ]
    scores = []
    for law in laws:
        f = [one.rvs(draws, random_state=rng) for one in law]
        scores.append(sum(laws[0][c].logpdf(f[c]) - laws[1][c].logpdf(f[c]) for c in range(len(f))))
    auc = stats.rankdata(np.concatenate(scores))[:draws].mean() / draws - (draws + 1) / (2 * draws)
    return auc, [(scores[0] > np.quantile(scores[1], 1 - rate)).mean() for rate in fpr]


def check_draws(result, removal, at, rates, draws, seed, tolerance):
    """Hold AUC and rates of every removal against draws of its two laws."""
    change, without, with_ = (part.numpy() for part in both_laws(removal, at))
    rng = np.random.default_rng(seed)
    for r in range(len(removal.rows)):
        auc, caught = drawn_rates(with_[r], without[r], change[r], rates, draws, rng)
        assert float(result.auc[r]) == pytest.approx(auc, abs=6e-3)
        np.testing.assert_allclose(result.tpr[r], caught, atol=tolerance)


@pytest.mark.parametrize("outputs", [1, 2])
def test_every_record_against_draws_of_its_two_laws(outputs):
    n, rates = 5, (0.05, 0.3)
    posterior = fit(rbf, 1.5 * draw(n, 2), draw(n, outputs, seed=1), 0.3)
    result = record_attack(posterior, fpr=rates)
    removal = remove(posterior, torch.arange(n))
    check_draws(result, removal, posterior.inputs.unsqueeze(1), rates, 200_000, 0, 1e-2)


@pytest.mark.parametrize("q", [1, 3])
def test_one_record_at_several_queries_is_still_one_direction(q):
    n = 4
    posterior = fit(rbf, draw(n, 2), draw(n, 2, seed=1), 0.2)
    removal = remove(posterior, torch.arange(n))
    queries = posterior.inputs.unsqueeze(1) + 0.7 * draw(n, q, 2, seed=3)
    check_draws(query_attack(removal, queries, fpr=(0.1,)), removal, queries, (0.1,), 100_000, 1, 1e-2)


def test_at_its_own_input_a_record_is_attacked_as_by_all_records_at_once():
    posterior = fit(rbf, draw(15, 2), draw(15, 3, seed=1), 0.1)
    every = record_attack(posterior)
    each = query_attack(remove(posterior, torch.arange(15)), posterior.inputs.unsqueeze(1))
    torch.testing.assert_close(every.auc, each.auc, rtol=1e-8, atol=0)
    torch.testing.assert_close(every.tpr, each.tpr, rtol=1e-6, atol=0)
    elsewhere = query_attack(remove(posterior, torch.arange(15)), posterior.inputs.unsqueeze(1) + 0.1)
    assert bool((elsewhere.auc <= every.auc).all())


def test_groups_are_sampled_with_an_honest_error():
    posterior = fit(rbf, draw(12, 2), draw(12, 2, seed=1), 0.3)
    rows = torch.arange(12).view(-1, 3)
    removal, at = remove(posterior, rows), posterior.inputs[rows]
    runs = [query_attack(removal, at, fpr=(0.01, 0.2), draws=2_000, seed=seed) for seed in range(60)]
    tpr = torch.stack([run.tpr for run in runs])
    error = torch.stack([run.standard_error for run in runs]).mean(0)
    ratio = tpr.std(0) / error
    assert bool((ratio < 1.4).all())
    assert bool((ratio[tpr.mean(0) < 0.99] > 0.7).all())  # next to certainty it errs on the large side
    exact = query_attack(removal, at, fpr=(0.01, 0.2), draws=400_000, seed=99)
    assert bool(((tpr.mean(0) - exact.tpr).abs() < 5 * error / 60**0.5 + 5 * exact.standard_error).all())
    assert torch.equal(exact.auc, runs[0].auc)
    check_draws(exact, removal, at, (0.01, 0.2), 200_000, 2, 1.5e-2)


def test_wrong_rates_are_refused():
    posterior = fit(rbf, draw(6, 2), draw(6), 0.3)
    refused("fpr: expected rates between 0 and 1", record_attack, posterior, fpr=(0.0, 0.1))
