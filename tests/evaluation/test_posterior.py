"""The posterior of few models and a score: against a loop over records, against known truths, and at the edges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import f as f_law

from giveaway.evaluation import effect_sizes, posterior, recall_at
from giveaway.evaluation.posterior import _pooled_deviation, _prior_variance, _regressed
from giveaway.records import Signals
from tests.conftest import refused

RECORDS = 3000


def world(models, informed, seed=0, records=RECORDS):
    """Signals of known effect sizes, and a score whose correlation with them is `informed`."""
    draw = np.random.default_rng(seed)
    score = draw.normal(size=records)
    effect = 1.5 + informed * score + np.sqrt(1 - informed**2) * draw.normal(size=records)
    deviation = np.sqrt(np.array([[8.0], [12.0]]) / draw.chisquare([[8.0], [12.0]], (2, records)))
    gap = effect * np.sqrt((deviation**2).mean(0))
    members = draw.random((models, records)) < 0.5
    level = draw.normal(2.0, 1.0, records)
    noise = np.where(members, deviation[0], deviation[1]) * draw.normal(size=members.shape)
    return Signals(level + np.where(members, gap / 2, -gap / 2) + noise, members, "phi"), score, effect


@pytest.mark.parametrize("informed", [0.0, 0.8])
@pytest.mark.parametrize("models", [4, 8, 32, 64])
def test_intervals_cover_the_known_effect(models, informed):
    signals, score, effect = world(models, informed)
    found = posterior(signals, score)
    assert 0.88 <= np.mean((found.low <= effect) & (effect <= found.high)) <= 0.935
    half = posterior(signals, score, confidence=0.5)
    assert 0.45 <= np.mean((half.low <= effect) & (effect <= half.high)) <= 0.57
    np.testing.assert_array_equal(half.effect_size, found.effect_size)


@pytest.mark.parametrize("models", [4, 8, 16])
def test_posterior_beats_the_score_and_the_models_alone(models):
    signals, score, effect = world(models, 0.8)
    found = posterior(signals, score)
    score_alone = np.polyval(np.polyfit(score, effect, 1), score)  # regressed on the truth itself
    alone = effect_sizes(signals).effect_size
    error = np.mean((found.effect_size - effect) ** 2)
    assert error < np.mean((score_alone - effect) ** 2)
    assert error < 0.5 * np.mean((alone - effect) ** 2)
    best = max(recall_at(each, effect, 0.05, 0.05) for each in (score, alone))
    assert recall_at(found.effect_size, effect, 0.05, 0.05) > best
    assert found.worth > models


def test_a_score_that_tells_nothing_or_the_contrary_leaves_lira():
    signals, score, effect = world(64, 0.0)
    alone = effect_sizes(signals).effect_size
    for column in (score, np.zeros(RECORDS)):
        found = posterior(signals, column).effect_size
        assert np.corrcoef(found, alone)[0, 1] > 0.97
        assert recall_at(found, effect, 0.05, 0.05) > recall_at(alone, effect, 0.05, 0.05) - 0.02
    backwards = posterior(*world(8, 0.8)[:1], -world(8, 0.8)[1]).effect_size  # its kind is learned, not assumed
    np.testing.assert_allclose(backwards, posterior(*world(8, 0.8)[:2]).effect_size, atol=1e-6)


def test_only_the_order_of_the_score_matters():
    signals, score, _ = world(8, 0.8)
    first, second = posterior(signals, score), posterior(signals, np.exp(3 * score))
    np.testing.assert_allclose(first.effect_size, second.effect_size, rtol=1e-9)
    assert first.worth == second.worth


def test_a_record_with_no_model_on_a_side_has_the_prior_alone():
    signals, score, _ = world(8, 0.8)
    members = signals.members.copy()
    members[:, :100] = True
    values = np.where(members == signals.members, signals.values[..., 0], 0.0)
    found = posterior(Signals(values, members, "phi"), score)
    assert np.isfinite(found.effect_size).all()
    width = found.high - found.low
    assert np.median(width[:100]) > np.median(width[100:])


def test_prior_variance_finds_the_law_that_made_the_variances():
    draw = np.random.default_rng(0)
    freedom = draw.integers(0, 8, 40_000).astype(float)
    z = draw.normal(size=40_000)
    scale = np.exp(0.7 * z - 1)
    variance = np.where(freedom > 0, scale * f_law.rvs(np.maximum(freedom, 1), 6, random_state=draw), 0.0)
    found, curve = _prior_variance(np.stack([np.ones(40_000), z], axis=1), freedom, variance)
    assert found == pytest.approx(6, rel=0.1)
    np.testing.assert_allclose(curve, scale, rtol=0.1)


def test_pooled_deviation_as_drawn():
    draw = np.random.default_rng(0)
    spread, freedom = np.array([[2.0], [0.5]]), np.array([[12.0], [20.0]])
    pooled = np.sqrt((spread * freedom / draw.chisquare(freedom, (2, 400_000))).mean(0))
    mean, unsure = _pooled_deviation(spread, freedom)
    assert mean[0] == pytest.approx(pooled.mean(), rel=0.02)
    assert unsure[0] == pytest.approx(pooled.var() / pooled.mean() ** 2, rel=0.15)


def test_regression_by_a_loop_over_records():
    """The last turn again, record by record, from the residual variance that it ends with."""
    draw = np.random.default_rng(1)
    n = 400
    z = draw.normal(size=n)
    basis = np.stack([np.ones(n), z], axis=1)
    noise, unsure, both = draw.uniform(0.2, 1.0, n), draw.uniform(0.0, 0.05, n), draw.random(n) < 0.9
    effect = 1 + z + draw.normal(0, 0.7, n)
    gap = effect + np.sqrt(noise + unsure * effect**2) * draw.normal(size=n)
    expected, residual = _regressed(basis, gap, noise, unsure, both)
    assert np.mean(residual) == pytest.approx(0.49, abs=0.2)
    normal, right = np.zeros((2, 2)), np.zeros(2)
    for i in range(n):
        if both[i]:
            weight = 1 / (noise[i] + residual[i] + unsure[i] * (residual[i] + expected[i] ** 2))
            normal += weight * np.outer(basis[i], basis[i])
            right += weight * basis[i] * gap[i]
    np.testing.assert_allclose(basis @ np.linalg.solve(normal, right), expected, atol=0.02)


def test_posterior_by_a_loop_over_records():
    """A world of one law for all records, whose constants are given: the textbook's posterior, record by record."""
    draw = np.random.default_rng(2)
    models, n = 16, 4000
    score, tau = draw.normal(size=n), 0.6
    effect = 2 + score + tau * draw.normal(size=n)
    members = draw.random((models, n)) < 0.5
    phi = np.where(members, effect, 0.0) + draw.normal(size=(models, n))
    found = posterior(Signals(phi, members, "phi"), score)
    for i in range(0, n, 40):
        inside, outside = phi[members[:, i], i], phi[~members[:, i], i]
        if len(inside) and len(outside):
            noise = 1 / len(inside) + 1 / len(outside)
            trust = tau**2 / (tau**2 + noise)
            textbook = 2 + score[i] + trust * (inside.mean() - outside.mean() - 2 - score[i])
            assert found.effect_size[i] == pytest.approx(textbook, abs=0.9)
            assert found.high[i] - found.low[i] == pytest.approx(2 * 1.645 * tau * np.sqrt(1 - trust), rel=0.5)
    assert np.mean((found.effect_size - effect) ** 2) < 1.25 * tau**2 * 0.25 / (tau**2 + 0.25)


@given(
    st.integers(4, 9),
    st.integers(2, 60),
    st.sampled_from(["drawn", "constant", "rounded", "by side"]),
    st.sampled_from(["drawn", "constant", "tied"]),
    st.sampled_from([0.2, 0.5, 0.9]),
    st.sampled_from(["phi", "squared_error"]),
)
def test_edges_give_finite_numbers(models, records, values, scores, share, kind):
    draw = np.random.default_rng(models * 100 + records)
    members = draw.random((models, records)) < share
    members[:2, 0] = True, False  # one record at least has both sides
    phi = {
        "drawn": draw.normal(size=members.shape),
        "constant": np.full(members.shape, 0.5),
        "rounded": draw.integers(0, 2, members.shape).astype(float),
        "by side": np.where(members, 10.0, -10.0),
    }[values]
    score = {"drawn": draw.normal(size=records), "constant": np.ones(records), "tied": np.arange(records) // 3}[scores]
    found = posterior(Signals(phi**2 if kind == "squared_error" else phi, members, kind), score)
    for column in (found.effect_size, found.low, found.high):
        assert np.isfinite(column).all()
    assert (found.low <= found.effect_size).all()
    assert (found.effect_size <= found.high).all()


def test_what_is_refused():
    signals, score, _ = world(4, 0.5, records=100)
    refused("score: expected a finite number for each of 100 records", lambda: posterior(signals, score[:-1]))
    refused("score: expected a finite number", lambda: posterior(signals, np.full(100, np.nan)))
    refused("at least 4 models, got 3", lambda: posterior(signals.of_models(slice(0, 3)), score))
    refused("confidence: expected a share between 0 and 1", lambda: posterior(signals, score, confidence=1.0))
    everywhere = Signals(signals.values[..., 0], np.ones((4, 100), dtype=bool), "phi")
    refused("records in some of the models and not in others", lambda: posterior(everywhere, score))
