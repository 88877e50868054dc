"""LiRA against the definition written out, and against known laws."""

import numpy as np
import pytest
from scipy.stats import norm

from giveaway.attacks.lira import CENTRES, MODES, VARIANCES, lira, lira_within
from giveaway.evaluation import success_rate
from giveaway.records import Signals
from tests.conftest import refused


def made(models: int, records: int, queries: int, seed: int, leak: float = 1.0) -> Signals:
    """Every record has at least three models on either side."""
    rng = np.random.default_rng(seed)
    half = np.arange(models) < models // 2
    members = np.stack([rng.permutation(half) for _ in range(records)], axis=1)
    difficulty = rng.normal(size=(1, records, 1))
    phi = difficulty + leak * members[:, :, None] + rng.gamma(2.0, size=(models, records, queries))
    return Signals(phi, members, "phi")


def by_loops(targets: Signals, references: Signals, mode: str, variance: str, centre: str) -> np.ndarray:
    """The definition, a record and a query at a time."""
    middle = {"median": np.median, "mean": np.mean}[centre]
    own = {
        (i, q, side): references.values[references.members[:, i] == (side == 0), i, q]
        for i, q, side in np.ndindex(references.records, references.queries, 2)
    }
    every = [np.concatenate([v for key, v in own.items() if key[2] == side]) for side in (0, 1)]
    around = [np.concatenate([v - middle(v) for key, v in own.items() if key[2] == side]) for side in (0, 1)]
    scores = np.zeros(targets.members.shape)
    for t, i, q in np.ndindex(targets.values.shape):
        value, sides = targets.values[t, i, q], []
        for side in (0, 1):
            spread = {
                "per_record": np.std(own[i, q, side]),
                "global_residual": np.std(around[side]),
                "global_total": np.std(every[side]),
            }[variance]
            sides.append((middle(own[i, q, side]), spread + 1e-30))
        outside = norm.logpdf(value, *sides[1])
        scores[t, i] += {
            "online": norm.logpdf(value, *sides[0]) - outside,
            "offline_onesided": -norm.logsf(value, *sides[1]),
            "offline_twosided": -outside,
        }[mode] / targets.queries
    return scores


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("centre", CENTRES)
@pytest.mark.parametrize("models", [8, 9])
def test_every_variant_is_its_definition(mode, variance, centre, models, monkeypatch):
    monkeypatch.setattr("giveaway.records.signals.BLOCK_NUMBERS", models * 2 * 3)
    signals = made(models + 3, 7, 2, seed=models)
    targets, references = signals.of_models(slice(0, 3)), signals.of_models(slice(3, None))
    found = lira(targets, references, mode=mode, variance=variance, centre=centre)
    expected = by_loops(targets, references, mode, variance, centre)
    np.testing.assert_allclose(found.scores, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.members, targets.members)


def test_a_case_worked_by_hand():
    """IN {2, 4, 9}: median 4, σ = √(26/3); OUT {−1, 0, 4}: median 0, σ = √(14/3)."""
    phi = np.array([[2.0], [4.0], [9.0], [-1.0], [0.0], [4.0]])
    references = Signals(phi, np.arange(6)[:, None] < 3, "phi")
    target = Signals(np.array([[3.0]]), np.array([[True]]), "phi")
    expected = (-0.5 * 1 / (26 / 3) - 0.5 * np.log(26 / 3)) - (-0.5 * 9 / (14 / 3) - 0.5 * np.log(14 / 3))
    np.testing.assert_allclose(lira(target, references).scores, [[expected]], rtol=1e-12)
    assert expected == pytest.approx(0.5970738, abs=1e-7)


def test_leaving_a_model_out_of_its_own_statistics():
    signals = made(10, 6, 2, seed=1)
    found = lira_within(signals)
    for model in range(10):
        others = signals.of_models(np.delete(np.arange(10), model))
        own = signals.of_models(slice(model, model + 1))
        expected = lira(own, others, centre="mean").scores[0]
        np.testing.assert_allclose(found.scores[model], expected, rtol=1e-9, atol=1e-9)


def test_success_follows_the_effect_size():
    """φ normal with equal variances: the likelihood ratio is right with probability Φ(effect/2)."""
    rng = np.random.default_rng(0)
    members = np.stack([rng.permutation(np.arange(400) < 200) for _ in range(300)], axis=1)
    for effect in (0.0, 1.0, 2.5):
        phi = rng.normal(size=members.shape) + effect * members
        for variance in ("per_record", "global_residual"):
            rate = success_rate(lira_within(Signals(phi, members, "phi"), variance=variance)).mean()
            assert rate == pytest.approx(norm.cdf(effect / 2), abs=0.006)


def test_one_variance_for_all_records_is_better_with_few_models():
    """Deviations of records differ by a factor of 1.5; of 12 models either side has 5 or 6 of the others."""
    rng = np.random.default_rng(0)
    members = np.stack([rng.permutation(np.arange(12) < 6) for _ in range(4000)], axis=1)
    phi = (rng.normal(size=members.shape) + 1.5 * members) * rng.uniform(0.8, 1.2, size=4000)
    signals = Signals(phi, members, "phi")
    own, pooled = (lira_within(signals, variance=name) for name in ("per_record", "global_residual"))
    assert success_rate(pooled).mean() > success_rate(own).mean() + 0.02
    for model in range(12):
        target, others = signals.of_models([model]), signals.of_models(np.delete(np.arange(12), model))
        expected = lira(target, others, variance="global_residual", centre="mean").scores[0]
        np.testing.assert_allclose(pooled.scores[model], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("variance", ["per_record", "global_residual"])
@pytest.mark.parametrize("value", [0.1, np.log(3), np.log(201)])
def test_records_of_which_all_models_say_the_same_are_not_told_apart(variance, value):
    """Their mean, in floating point, need not be what all models say."""
    members = np.random.default_rng(0).permuted(np.arange(64)[:, None] % 2 == np.zeros((1, 300)), axis=0)
    for rest in (value, np.random.default_rng(1).normal(size=(64, 300))):
        phi = np.concatenate([np.full((64, 300), value), np.broadcast_to(rest, (64, 300))], axis=1)
        signals = Signals(phi, np.concatenate([members, members], axis=1), "phi")
        found = lira_within(signals, variance=variance)
        assert (success_rate(found)[:300] == 0.5).all()
        assert np.isfinite(found.scores).all()


def test_what_is_refused():
    signals = made(8, 3, 1, seed=0)
    refused("mode: expected a known name, got 'offline'; did you mean", lira, signals, signals, mode="offline")
    lone = Signals(signals.values, np.arange(8)[:, None] < np.array([[4, 1, 4]]), "phi")
    refused("at least 2 models with and without every record, got 1 at row 1; add models", lira, lone, lone)
    lira(lone, lone, mode="offline_onesided")
