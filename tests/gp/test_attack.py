"""The likelihood-ratio test between the two posteriors, against noncentral χ², integration and sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from giveaway.checks import InputError
from giveaway.gp import attack as module
from giveaway.gp.attack import query_attack, record_attack
from giveaway.gp.posterior import fit
from giveaway.gp.removal import remove
from tests.gp.test_posterior import draw, rbf

RATES = (1e-4, 0.01, 0.1, 0.5, 0.9)


def made_up(x, delta, outputs):
    """The attack on a law with excess variance x and mean shift δ, in units of the law with the record."""
    values = (torch.tensor([float(value)], dtype=torch.float64) for value in (x, delta))
    return module._one_direction(*values, outputs, torch.tensor(RATES, dtype=torch.float64))


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
    assert float(result.standard_error.max()) == 0.0


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


@settings(max_examples=40, deadline=None)
@given(x=st.floats(-14, 8), delta=st.floats(-14, 4), outputs=st.sampled_from([1, 2, 7]))
def test_rates_are_finite_and_no_worse_than_chance(x, delta, outputs):
    result = made_up(10.0**x, 10.0**delta, outputs)
    tpr = result.tpr[0].numpy()
    assert 0.5 - 1e-12 <= float(result.auc) <= 1.0
    assert (np.diff(tpr) >= -1e-9).all()
    assert (tpr >= np.array(RATES) * (1 - 1e-9)).all()
    assert (tpr <= 1.0).all()


@pytest.mark.parametrize("outputs", [1, 2])
def test_every_record_against_draws_of_its_two_laws(outputs):
    n, draws = 12, 200_000
    posterior = fit(rbf, 1.5 * draw(n, 2), draw(n, outputs, seed=1), 0.3)
    result = record_attack(posterior, fpr=(0.05, 0.3))
    removal = remove(posterior, torch.arange(n))
    at = posterior.inputs.unsqueeze(1)
    without, with_ = (c[:, 0, 0].numpy() for c in removal.covariances(at))
    change = removal.mean_change(at)[:, 0].numpy()
    rng = np.random.default_rng(0)
    for i in range(n):

        def ratio(f, i=i):
            seen = stats.norm.logpdf(f, 0.0, np.sqrt(with_[i]))
            return (seen - stats.norm.logpdf(f, change[i], np.sqrt(without[i]))).sum(1)

        members = ratio(np.sqrt(with_[i]) * rng.standard_normal((draws, outputs)))
        others = ratio(change[i] + np.sqrt(without[i]) * rng.standard_normal((draws, outputs)))
        auc = stats.rankdata(np.concatenate([members, others]))[:draws].mean() / draws - (draws + 1) / (2 * draws)
        assert float(result.auc[i]) == pytest.approx(auc, abs=5e-3)
        for j, rate in enumerate((0.05, 0.3)):
            caught = (members > np.quantile(others, 1 - rate)).mean()
            assert float(result.tpr[i, j]) == pytest.approx(caught, abs=1e-2)


@pytest.mark.parametrize("q", [1, 3])
def test_one_record_at_several_queries_is_still_one_direction(q):
    n, draws = 6, 100_000
    posterior = fit(rbf, draw(n, 2), draw(n, 2, seed=1), 0.2)
    removal = remove(posterior, torch.arange(n))
    queries = posterior.inputs.unsqueeze(1) + 0.7 * draw(n, q, 2, seed=3)
    result = query_attack(removal, queries, fpr=(0.1,))
    without, with_ = (c.numpy() for c in removal.covariances(queries))
    change = removal.mean_change(queries).numpy()
    rng = np.random.default_rng(1)
    for i in range(n):
        laws = [
            [stats.multivariate_normal(mean, covariance, allow_singular=True) for mean in means.T]
            for means, covariance in ((0 * change[i], with_[i]), (change[i], without[i]))
        ]
        scores = []
        for law in laws:
            f = [one.rvs(draws, random_state=rng) for one in law]
            scores.append(sum(laws[0][c].logpdf(f[c]) - laws[1][c].logpdf(f[c]) for c in range(2)))
        caught = (scores[0] > np.quantile(scores[1], 0.9)).mean()
        assert float(result.tpr[i, 0]) == pytest.approx(caught, abs=1e-2)
        auc = stats.rankdata(np.concatenate(scores))[:draws].mean() / draws - (draws + 1) / (2 * draws)
        assert float(result.auc[i]) == pytest.approx(auc, abs=6e-3)


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
    rng = np.random.default_rng(2)
    draws = 200_000
    without, with_ = (c.numpy() for c in removal.covariances(at))
    change = removal.mean_change(at).numpy()
    for g in range(len(rows)):
        laws = [
            [stats.multivariate_normal(mean, covariance) for mean in means.T]
            for means, covariance in ((0 * change[g], with_[g]), (change[g], without[g]))
        ]
        scores = []
        for law in laws:
            f = [one.rvs(draws, random_state=rng) for one in law]
            scores.append(sum(laws[0][c].logpdf(f[c]) - laws[1][c].logpdf(f[c]) for c in range(2)))
        auc = stats.rankdata(np.concatenate(scores))[:draws].mean() / draws - (draws + 1) / (2 * draws)
        assert float(exact.auc[g]) == pytest.approx(auc, abs=5e-3)
        for j, rate in enumerate((0.01, 0.2)):
            caught = (scores[0] > np.quantile(scores[1], 1 - rate)).mean()
            assert float(exact.tpr[g, j]) == pytest.approx(caught, abs=1.5e-2)


def test_wrong_arguments_are_refused():
    posterior = fit(rbf, draw(6, 2), draw(6), 0.3)
    with pytest.raises(InputError, match="fpr: expected rates between 0 and 1"):
        record_attack(posterior, fpr=(0.0, 0.1))
    removal, at = remove(posterior, torch.tensor([[0, 1]])), posterior.inputs[None, :2]
    with pytest.raises(InputError, match="seed: expected an integer, for these rates are sampled, got None"):
        query_attack(removal, at)
    with pytest.raises(InputError, match="draws: expected a finite number of at least 100, got 5"):
        query_attack(removal, at, draws=5, seed=0)
