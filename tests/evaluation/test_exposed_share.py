"""The prediction of a model's exposure: models whose truth is known, naive loops, and what must not matter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import norm, rankdata

from giveaway.evaluation import exposed_share
from giveaway.evaluation.exposed_share import (
    PredictedExposure,
    excluded,
    normal_scores_among,
    normals_of,
    predict_exposure,
    score_gaps,
    share_above,
)
from giveaway.evaluation.ranking import Interval
from tests.conftest import refused


def drawn_model(n, s, t, lift, seed):
    """One model of records whose φ is normal: members, held-out records, and the share of large effect sizes."""
    rng = np.random.default_rng(seed)
    mean = np.sqrt(1 - s * s) * rng.normal(size=(2, n))
    held_out = mean[0] + s * rng.normal(size=n)
    mean_in, sd_in = lift + t * mean[1], np.full(n, s * np.sqrt(t))
    effect = np.abs(mean_in - mean[1]) / np.sqrt((sd_in**2 + s * s) / 2)
    return mean_in + sd_in * rng.normal(size=n), held_out, (effect > 1.04).mean()


@pytest.mark.parametrize(("s", "t", "lift"), [(0.4, 0.3, 0.9), (0.3, 0.7, 0.3), (0.55, 0.5, 0.5), (0.35, 1.0, 0.2)])
def test_known_models_are_predicted(s, t, lift, monkeypatch):
    members, held_out, truth = drawn_model(6_000, s, t, lift, seed=1)
    for name, number in {"STILL": s, "MOVING": 0.0, "BY_NORMALS": 1.0, "BY_EXCLUDED": 0.0}.items():
        monkeypatch.setattr(exposed_share, name, number)
    assert predict_exposure(members, held_out).share.value == pytest.approx(truth, rel=0.2, abs=0.012)


def test_the_numbers_of_one_model():
    members, held_out, _ = drawn_model(900, 0.4, 0.5, 0.6, seed=7)
    share = predict_exposure(members, held_out, seed=3).share
    np.testing.assert_allclose(
        [share.value, share.low, share.high], [0.5122953494, 0.3803197836, 0.6425769685], rtol=1e-9
    )


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


def test_excluded_records_are_counted_one_by_one():
    rng = np.random.default_rng(6)
    members, held_out = rng.normal(0.8, 1.0, size=700), rng.normal(size=600)
    allowed = sorted(members)[int(0.01 * 699)]
    assert excluded(members, held_out, 0.01) == pytest.approx(sum(value < allowed for value in held_out) / 600)
    both = excluded(members, held_out, [0.001, 0.01])
    assert both[1] == excluded(members, held_out, 0.01)
    assert both[0] == pytest.approx(sum(value < min(members) for value in held_out) / 600)


def test_a_model_that_learned_nothing_exposes_nobody():
    rng = np.random.default_rng(3)
    found = [predict_exposure(*rng.standard_t(3, size=(2, 1500))) for _ in range(3)]
    assert max(each.share.value for each in found) < 0.01
    level = np.linspace(-2, 2, 9)
    assert share_above(*normals_of(level, 0 * level, 0.4)) == 0


def test_only_the_order_of_phi_matters():
    members, held_out, _ = drawn_model(800, 0.4, 0.5, 0.6, seed=4)
    assert predict_exposure(members, held_out) == predict_exposure(np.exp(members), np.exp(held_out))


def test_intervals_hold_the_value_and_narrow_with_the_records_and_the_error(monkeypatch):
    def width(n, error):
        members, held_out, _ = drawn_model(n, 0.4, 0.5, 0.6, seed=5)
        monkeypatch.setattr(exposed_share, "ERROR", error)
        share = predict_exposure(members, held_out).share
        assert 0 <= share.low <= share.value <= share.high <= 1
        return share.high - share.low

    assert width(4000, 0.0) < width(500, 0.0)
    assert width(4000, 0.0) < width(4000, 0.5)


@settings(max_examples=20)
@given(
    arrays(float, st.tuples(st.just(2), st.integers(500, 560)), elements=st.sampled_from([-np.inf, -1, 0, 3, np.inf]))
)
def test_ties_and_infinite_phi_give_a_share(phi):
    small = pytest.MonkeyPatch()
    with small.context() as patch:
        patch.setattr(exposed_share, "RESAMPLES", 2)
        patch.setattr(exposed_share, "SHUFFLES", 2)
        share = predict_exposure(phi[0], phi[1]).share
    assert 0 <= share.low <= share.value <= share.high <= 1


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
    assert PredictedExposure(Interval(low, low, high)).words == words
