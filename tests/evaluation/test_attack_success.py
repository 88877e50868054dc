"""Effect sizes, success rates, and ROC figures against direct computation, known laws and measured truth."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.reproduce.gls.truth import success_at
from sklearn.metrics import roc_auc_score, roc_curve

from giveaway.attacks.lira import lira
from giveaway.attacks.thresholds import AttackScores
from giveaway.evaluation import effect_sizes, shadow_curve, success_rate, summarize
from giveaway.evaluation.success import ShadowCurve
from giveaway.records import Signals
from tests.conftest import refused

SETS = {"bloodmnist": "bloodmnist_cnn_signals", "cifar10": "cifar10_cnn_signals_10k"}


def measured(shared: Path, name: str) -> tuple[Signals, dict[str, np.ndarray]]:
    """The 216 models of a set, and what is known of the same records."""
    stored = np.load(shared / "truth" / f"{SETS[name]}.npz")
    records = stored["phi"].shape[1]
    members = np.unpackbits(stored["members"], axis=1)[:, :records].astype(bool)
    truth = np.load(shared / "truth" / f"{name}_cnn_truth.npz")
    return Signals(stored["phi"], members, "phi"), {key: truth[key][:records] for key in truth.files}


@pytest.mark.parametrize("name", SETS)
def test_measured_truth_is_reproduced(shared, name):
    signals, truth = measured(shared, name)
    references = signals.of_models(slice(0, 200))
    effect = effect_sizes(references)
    rate = success_rate(lira(references, references, centre="mean"))
    np.testing.assert_allclose(rate, truth["attack_success_rate"], atol=1e-3)
    np.testing.assert_allclose(effect.effect_size, truth["effect_size"], atol=1e-3)
    for ours, theirs in (("mean_in", "mu_in"), ("mean_out", "mu_out"), ("deviation_in", "sd_in")):
        np.testing.assert_allclose(getattr(effect, ours), truth[theirs], atol=1e-3)


@pytest.mark.parametrize(
    ("name", "top", "expected"),
    [
        ("cifar10", 0.01, {2: 0.46, 4: 0.77, 8: 0.83, 16: 0.86, 32: 0.95, 100: 0.99}),
        ("cifar10", 0.05, {2: 0.36, 4: 0.53, 8: 0.61, 32: 0.67, 100: 0.77}),
        ("bloodmnist", 0.01, {2: 0.48, 4: 0.83, 8: 0.98, 16: 1.0, 32: 1.0, 100: 1.0}),
        ("bloodmnist", 0.05, {2: 0.31, 4: 0.48, 8: 0.67, 16: 0.75, 32: 0.83, 100: 0.88}),
    ],
)
@pytest.mark.parametrize("target", [200, pytest.param(201, marks=pytest.mark.slow)])
def test_worth_of_shadow_models_as_measured(shared, name, top, expected, target):
    signals, _ = measured(shared, name)
    own = signals.of_models(slice(0, 200)).of_records(np.flatnonzero(signals.members[target]))
    curve = shadow_curve(own, sizes=tuple(expected), top=top, keep=0.05)
    np.testing.assert_allclose(curve.recall, list(expected.values()), atol=0.05)


def simulated(effect: np.ndarray, models: int, seed: int) -> Signals:
    rng = np.random.default_rng(seed)
    members = np.stack([rng.permutation(np.arange(models) < models // 2) for _ in effect], axis=1)
    return Signals(rng.normal(size=members.shape) + members * effect, members, "phi")


@pytest.mark.parametrize("digits", [1, 8])
def test_roc_figures_equal_scikit_learn_s(digits):
    rng = np.random.default_rng(0)
    members = rng.random((3, 400)) < 0.4
    scores = np.round(rng.normal(size=members.shape) + 0.8 * members, digits)
    summary = summarize(AttackScores("made", scores, members), resamples=20)
    assert summary.auc.value == pytest.approx(roc_auc_score(members.ravel(), scores.ravel()), rel=1e-12)
    false, true, _ = roc_curve(members.ravel(), scores.ravel(), drop_intermediate=False)
    for rate, interval in summary.true_positive_rate.items():
        assert interval.value == true[false <= rate].max()
        assert interval.low <= interval.value <= interval.high
    assert summary.balanced_accuracy.value == pytest.approx((1 + (true - false).max()) / 2)
    assert (summary.members, summary.nonmembers) == (members.sum(), (~members).sum())


@pytest.mark.parametrize(("runs", "slack"), [(100, 0.08), pytest.param(1000, 0.03, marks=pytest.mark.slow)])
def test_intervals_cover_at_their_level(runs, slack):
    rng = np.random.default_rng(1)
    covered = 0
    for repeat in range(runs):
        members = rng.random((1, 200)) < 0.5
        summary = summarize(
            AttackScores("none", rng.normal(size=members.shape), members), resamples=100, confidence=0.9, seed=repeat
        )
        covered += summary.auc.low <= 0.5 <= summary.auc.high
    assert covered / runs == pytest.approx(0.9, abs=slack)


def test_success_of_each_record_at_a_false_positive_rate():
    members = np.array([[1], [1], [1], [0], [0], [0], [0]], dtype=bool)
    scores = np.array([[5.0], [2.5], [1.0], [4.0], [2.0], [0.0], [-1.0]])
    attack = AttackScores("made", scores, members)
    assert success_at(attack, 0.0)[0] == pytest.approx(1 / 3)
    assert success_at(attack, 0.25)[0] == pytest.approx(2 / 3)
    assert success_at(attack, 0.5)[0] == pytest.approx(1.0)
    assert success_rate(attack, threshold=2.2)[0] == pytest.approx(5 / 7)


def test_worth_is_interpolated_in_the_logarithm():
    curve = ShadowCurve((2, 4, 8), np.array([0.4, 0.6, 0.8]), np.zeros(3))
    assert curve.worth(0.5) == pytest.approx(np.sqrt(8))
    assert curve.worth(0.6) == 4
    assert (curve.worth(0.3), curve.worth(0.9)) == (0.0, float("inf"))


def test_what_is_refused():
    signals = simulated(np.ones(20), 8, seed=0)
    with pytest.raises(ValueError, match="sizes: expected at most 4 with 4 models for the truth, got 8"):
        shadow_curve(signals, sizes=(2, 8), truth_models=4)
    everyone = AttackScores("made", np.ones((2, 3)), np.ones((2, 3), dtype=bool))
    refused("attack: expected members and non-members, got 6 and 0", summarize, everyone)
