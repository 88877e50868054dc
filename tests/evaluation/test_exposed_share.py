"""The prediction of a model's exposure: models whose truth is known, naive loops, and what must not matter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm, rankdata

from giveaway.evaluation import exposed_share
from giveaway.evaluation.exposed_share import (
    RATES,
    Calibration,
    PredictedExposure,
    combined,
    excluded,
    figures,
    normal_scores_among,
    pooled_rates,
    predict_exposure,
    scaled,
    score_gaps,
    unscaled,
)
from giveaway.evaluation.ranking import Interval
from tests.conftest import refused


def values(found):
    return np.array([found.tpr_low.value, found.tpr.value, found.success.value, found.share.value])


def naive_rates(phi_in, phi_out, mean_in, sd_in, mean_out, sd_out):
    """LiRA on drawn φ, whose distributions it knows: one record after the other, one threshold."""

    def score(phi, i):
        return norm.logpdf(phi, mean_in[i], sd_in[i]) - norm.logpdf(phi, mean_out[i], sd_out[i])

    inside = np.concatenate([score(phi, i) for i, phi in enumerate(phi_in)])
    outside = np.sort(np.concatenate([score(phi, i) for i, phi in enumerate(phi_out)]))[::-1]
    rates = [(inside > outside[round(rate * len(outside))]).mean() for rate in RATES]
    return [*rates, ((inside > 0).mean() + (outside < 0).mean()) / 2]


def test_pooled_rates_are_those_of_drawn_models():
    rng = np.random.default_rng(0)
    n, draws = 12, 20_000
    mean_out = rng.normal(size=n)
    mean_in, sd_out = mean_out + np.linspace(-0.5, 3, n), np.linspace(0.5, 1.5, n)
    sd_in = sd_out * np.linspace(0.4, 1.0, n)
    phi_in = mean_in[:, None] + sd_in[:, None] * rng.normal(size=(n, draws))
    phi_out = mean_out[:, None] + sd_out[:, None] * rng.normal(size=(n, draws))
    measured = naive_rates(phi_in, phi_out, mean_in, sd_in, mean_out, sd_out)
    predicted = pooled_rates(mean_in, sd_in, mean_out, sd_out, np.full(n, 1 / n))
    np.testing.assert_allclose(predicted, measured, atol=0.006)
    # equal records, equal variances: the textbook's curve
    ones = np.ones(3)
    known = [*norm.sf(norm.isf(RATES) - 2.0), norm.cdf(1.0)]
    np.testing.assert_allclose(pooled_rates(2 * ones, ones, 0 * ones, ones, ones / 3), known, rtol=0.06)


def drawn_model(n, s, t, lift, seed):
    """One model of records whose φ is normal: held-out records, members, and what LiRA truly achieves."""
    rng = np.random.default_rng(seed)
    mean = np.sqrt(1 - s * s) * rng.normal(size=(2, n))
    held_out = mean[0] + s * rng.normal(size=n)
    mean_in, sd_in = lift + t * mean[1], np.full(n, s * np.sqrt(t))
    effect = np.abs(mean_in - mean[1]) / np.sqrt((sd_in**2 + s * s) / 2)
    some = slice(0, min(n, 400))
    equal = np.full(min(n, 400), 1 / min(n, 400))
    truth = pooled_rates(mean_in[some], sd_in[some], mean[1, some], s * np.ones(len(equal)), equal)
    return mean_in + sd_in * rng.normal(size=n), held_out, [*truth, (effect > 1.04).mean()]


@pytest.mark.parametrize(("s", "t", "lift"), [(0.4, 0.3, 0.9), (0.3, 0.7, 0.3), (0.55, 0.5, 0.5), (0.35, 1.0, 0.2)])
def test_known_models_are_predicted(s, t, lift):
    members, held_out, truth = drawn_model(6_000, s, t, lift, seed=1)
    found = values(
        predict_exposure(members, held_out, calibration=Calibration(s, 0.0, normals=(1,) * 4, excluded=(0,) * 4))
    )
    np.testing.assert_allclose(found, truth, rtol=0.2, atol=0.012)


@pytest.mark.parametrize(("s", "t", "lift"), [(0.4, 0.3, 0.9), (0.55, 0.5, -0.5), (0.35, 1.0, 0.4)])
def test_figures_of_known_gaps_are_those_of_the_records_normals(s, t, lift):
    level = np.linspace(-3, 3, 41)
    rise = np.sqrt((1 - s * s) * t * t + s * s * t)  # members' scores spread so much, over records and models together
    found = figures(level, lift + (rise - 1) * level, s)
    place = norm.ppf((np.arange(4000) + 0.5) / 4000) * np.sqrt(1 - s * s)
    mean, sd, equal = lift + t * place, np.full(4000, s * np.sqrt(t)), np.full(4000, 1 / 4000)
    np.testing.assert_allclose(found[:3], pooled_rates(mean, sd, place, np.full(4000, s), equal), rtol=0.03, atol=1e-3)
    effect = np.abs(mean - place) / np.sqrt((sd**2 + s * s) / 2)
    assert found[3] == pytest.approx((effect > 1.04).mean(), abs=2e-3)


def test_gaps_are_those_of_a_loop_over_records():
    rng = np.random.default_rng(2)
    members, held_out = rng.normal(1.0, 0.5, size=300).round(1), rng.normal(size=250).round(1)
    expected = []
    for value in members:
        place = rankdata([value, *held_out])[0] - 1  # a tie counts half
        expected.append(norm.ppf((place + 0.5) / 251))
    np.testing.assert_allclose(normal_scores_among(members, held_out), expected)
    level, gap = score_gaps(members, held_out)
    assert (np.diff(gap) <= 1e-12).all()
    # monotone regression keeps the weighted mean; the weights are those of quantiles of normal scores
    bounds = norm.cdf(np.linspace(norm.ppf(20 / 250), -norm.ppf(20 / 250), 11))
    edges = [0, *(round(float(b) * 300) for b in bounds), 300]
    ordered, raised, weight = sorted(expected), [], []
    for first, last, centre in zip(edges, edges[1:], level, strict=False):
        own = [norm.ppf((k + 0.5) / 300) for k in range(first, last)]
        assert np.mean(own) == pytest.approx(centre)
        raised.append(np.mean(ordered[first:last]) - np.mean(own))
        weight.append((last - first) * norm.pdf(centre) ** 2 / (norm.cdf(centre) * norm.sf(centre)))
    assert np.average(gap, weights=weight) == pytest.approx(np.average(raised, weights=weight))
    assert gap[0] > 0.9 > 0.6 > gap[-1]


def test_both_estimates_are_summed_on_their_scale():
    calibration = Calibration(normals=(1.0, 0.5, 0.0, 2.0), excluded=(0.0, 0.5, 1.0, 0.0))
    chance = np.array([0.001, 0.01, 0.5, 0.0])
    normals, published = np.array([0.03, 0.2, 0.8, 0.1]), np.array([0.3, 0.2])
    scale = combined(normals, published, calibration)
    found = unscaled(scale, chance)
    assert found[0] == pytest.approx(0.03)
    assert found[1] == pytest.approx(0.2)  # both say so, and count one half each
    odds = (0.2 - 0.01) / 0.8
    assert found[2] == pytest.approx(0.5 + 0.5 * odds / (1 + odds))
    assert scale[3] == pytest.approx(2 * np.arcsinh(0.1 / 0.9 / 0.005))
    np.testing.assert_allclose(unscaled(scaled(normals, chance), chance), normals)


def test_excluded_records_are_counted_one_by_one():
    rng = np.random.default_rng(6)
    members, held_out = rng.normal(0.8, 1.0, size=700), rng.normal(size=600)
    allowed = sorted(members)[int(0.01 * 699)]
    assert excluded(members, held_out)[1] == pytest.approx(sum(value < allowed for value in held_out) / 600)
    assert excluded(members, held_out)[0] == pytest.approx(sum(value < min(members) for value in held_out) / 600)


def test_a_model_that_learned_nothing_has_the_false_positive_rates():
    rng = np.random.default_rng(3)
    found = np.array([values(predict_exposure(*rng.standard_t(3, size=(2, 1500)))) for _ in range(3)])
    assert (np.abs(found.mean(0)[:2] - RATES) < 0.001).all()
    assert found.mean(0)[2] < 0.515
    assert found[:, 3].max() < 0.01
    level = np.linspace(-2, 2, 9)
    np.testing.assert_allclose(figures(level, 0 * level, 0.4), [*RATES, 0.5, 0.0], atol=1e-9)


def test_only_the_order_of_phi_matters():
    members, held_out, _ = drawn_model(800, 0.4, 0.5, 0.6, seed=4)
    assert predict_exposure(members, held_out) == predict_exposure(np.exp(members), np.exp(held_out))


def test_intervals_hold_the_value_and_narrow_with_the_records_and_the_error():
    def width(n, error):
        members, held_out, _ = drawn_model(n, 0.4, 0.5, 0.6, seed=5)
        found = predict_exposure(members, held_out, calibration=Calibration(errors=(error,) * 4))
        for one in (found.tpr_low, found.tpr, found.success, found.share):
            assert 0 <= one.low <= one.value <= one.high <= 1
        return found.tpr.high - found.tpr.low

    assert width(4000, 0.0) < width(500, 0.0)
    assert width(4000, 0.0) < width(4000, 0.5)


@settings(max_examples=20)
@given(
    arrays(float, st.tuples(st.just(2), st.integers(500, 560)), elements=st.sampled_from([-np.inf, -1, 0, 3, np.inf]))
)
def test_ties_and_infinite_phi_give_figures(phi):
    small = pytest.MonkeyPatch()
    with small.context() as patch:
        patch.setattr(exposed_share, "RESAMPLES", 2)
        patch.setattr(exposed_share, "SHUFFLES", 2)
        found = predict_exposure(phi[0], phi[1])
    assert np.isfinite(values(found)).all()
    assert ((values(found) >= 0) & (values(found) <= 1)).all()


def test_what_cannot_be_used_is_refused():
    good = np.arange(600.0)
    line = refused("held_out", predict_exposure, good, [1.0, 2.0, 3.0])
    assert "at least 500 records" in line
    assert "hold more records out" in line
    refused("NaN", predict_exposure, np.where(good > 3, good, np.nan), good)
    refused("coverage", predict_exposure, good, good, coverage=1.0)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.0, 0.0199, ["few"]),
        (0.0, 0.02, ["few", "some"]),
        (0.02, 0.199, ["some"]),
        (0.1, 0.3, ["some", "many"]),
        (0.2, 1.0, ["many"]),
        (0.0, 1.0, ["few", "some", "many"]),
    ],
)
def test_words_are_those_that_the_interval_of_the_share_touches(low, high, words):
    any_value = Interval(0.5, 0.5, 0.5)
    assert PredictedExposure(any_value, any_value, any_value, Interval(low, low, high)).words == words
