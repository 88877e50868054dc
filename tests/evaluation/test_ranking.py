"""Rankings against SciPy and every way to break ties, their agreement, and what attacks achieve: effect sizes, success
and ROC figures against direct computation, known laws and measured truth."""

import csv
import io
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from benchmarks.reproduce.gls.truth import success_at
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score, roc_curve

from giveaway import Head, audit
from giveaway.attacks.lira import lira
from giveaway.attacks.thresholds import AttackScores
from giveaway.evaluation import (
    agreement,
    effect_sizes,
    recall_at,
    recall_curve,
    shadow_curve,
    spearman,
    success_rate,
    summarize,
)
from giveaway.evaluation.success import ShadowCurve
from giveaway.records import Signals
from tests.conftest import refused

few_values = st.lists(st.integers(0, 3), min_size=5, max_size=5)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=60))
def test_spearman_with_ties(pairs):
    a, b = np.array(pairs, dtype=float).T
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    else:
        assert spearman(a, b) == 0.0


def recall_over_all_tie_breaks(scores, truth, top: int, keep: int) -> float:
    """Mean over the orders of the rows of the recall of plain stable sorts: ties at random, scores apart from truth."""

    def chance_inside(values: list[float], count: int) -> np.ndarray:
        inside = np.zeros(len(values))
        orders = list(permutations(range(len(values))))
        for order in orders:
            chosen = sorted(order, key=lambda row: -values[row])[:count]
            inside[chosen] += 1 / len(orders)
        return inside

    return float(chance_inside(scores, keep) @ chance_inside(truth, top)) / top


@given(few_values, few_values, st.integers(1, 5), st.integers(1, 5))
def test_recall_gives_ties_fractional_credit(scores, truth, top, keep):
    expected = recall_over_all_tie_breaks(scores, truth, top, keep)
    assert recall_at(scores, truth, top=top / 5, keep=keep / 5) == pytest.approx(expected, abs=1e-12)


@given(few_values, few_values, st.integers(1, 5))
def test_the_curve_with_ties_is_recall_at_everywhere(scores, truth, top):
    keeps, recalls = recall_curve(scores, truth, top / 5)
    np.testing.assert_allclose(keeps, [0.2, 0.4, 0.6, 0.8, 1.0])
    expected = [recall_at(scores, truth, top / 5, keep) for keep in keeps]
    np.testing.assert_allclose(recalls, expected, rtol=0, atol=1e-14)


def test_the_curve_without_ties_is_exactly_recall_at():
    rng = np.random.default_rng(2)
    scores, truth = rng.normal(size=(2, 3001))
    keeps, recalls = recall_curve(scores, truth, 0.01)
    assert recalls.tolist() == [recall_at(scores, truth, 0.01, keep) for keep in keeps]
    assert (keeps[0], keeps[-1], recalls[-1]) == (1 / 3001, 1.0, 1.0)
    assert 100 < len(keeps) <= 200
    assert (np.diff(keeps) > 0).all()
    own, some = recall_curve(scores, truth, 0.01, [0.5, 0.0305, 0.2])
    assert own.tolist() == [0.5, 0.0305, 0.2]
    assert some.tolist() == [recall_at(scores, truth, 0.01, keep) for keep in own]


def test_counts_are_rounded_shares():
    scores = np.arange(100.0)
    truth = np.where(np.arange(100) == 97, 1000.0, -np.arange(100.0))
    assert recall_at(scores, truth, top=0.012, keep=0.026) == 1.0
    assert recall_at(scores, truth, top=0.012, keep=0.024) == 0.0


@pytest.mark.parametrize(
    ("call", "arguments", "words"),
    [
        (recall_at, ([1, 2, 3], [1, 2, 3], 0.1, 1.0), "top: expected a share that keeps 1 to 3 records"),
        (recall_at, ([1, 2, 3], [1, 2, 3], 0.5, 1.5), "keep: expected a share that keeps 1 to 3 records"),
        (recall_curve, ([1, 2, 3], [1, 2, 3], 0.5, [0.5, 0.1]), "keeps: expected a share that keeps 1 to 3 .* got 0.1"),
        (recall_curve, ([1, 2, 3], [1, 2, 3], np.nan), "top: expected a share that keeps 1 to 3 records, got nan"),
        (recall_at, ([1, 2, 3], [1, 2], 0.5, 0.5), "scores: expected two rankings of the same records"),
        (spearman, ([1], [1]), r"got shapes \(1,\) and \(1,\); align them"),
    ],
)
def test_refused(call, arguments, words):
    refused(words, call, *arguments)


def made(n: int = 2000, noise: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)
    return truth + noise * rng.normal(size=n), truth


def test_values_are_those_of_the_single_functions():
    scores, truth = made()
    table = agreement({"a": scores, "b": -scores}, truth, shares=[(0.02, 0.1)])
    for name, values, row in zip("ab", (scores, -scores), table.rows, strict=True):
        assert row.score == name
        assert row.recall[0.02, 0.1].value == recall_at(values, truth, 0.02, 0.1)
        assert row.spearman.value == pytest.approx(spearman(values, truth))


@pytest.mark.slow
def test_intervals_cover_the_value_of_a_large_sample():
    scores, truth = made(400_000)
    recall, rank = recall_at(scores, truth, 0.05, 0.05), spearman(scores, truth)
    covered = np.zeros(2)
    for seed in range(1, 101):
        row = agreement({"a": made(1000, seed=seed)[0]}, made(1000, seed=seed)[1], shares=[(0.05, 0.05)]).rows[0]
        interval = row.recall[0.05, 0.05]
        covered += [interval.low <= recall <= interval.high, row.spearman.low <= rank <= row.spearman.high]
    assert covered[0] >= 85
    assert covered[1] >= 89


def test_texts():
    scores, truth = made()
    table = agreement({"newton": scores}, truth)
    (row,) = csv.DictReader(io.StringIO(table.to_csv()))
    assert row["score"] == "newton"
    assert float(row["top 1% in 5%_low"]) <= float(row["top 1% in 5%"]) <= float(row["top 1% in 5%_high"])
    head, rule, body, _, caption = table.to_markdown().splitlines()
    assert head == "| score | top 1% in 5% | top 5% in 5% | spearman |"
    assert rule == "|---|---|---|---|"
    assert body.startswith(f"| newton | {float(row['top 1% in 5%']):.2f} (")

    assert caption == "2000 records; in brackets 95% intervals, bootstrap over records (spearman: Fisher's)."
    without = agreement({"newton": scores}, truth, resamples=0).to_markdown()
    assert without.splitlines()[-1] == "2000 records; without intervals."


def test_scores_of_an_audit_against_measured_signals(shared):
    """The recalls of the audited target, from the signals of its own records instead of the stored truth."""
    signals, _ = measured(shared, "bloodmnist")
    stored = np.load(shared / "truth" / "bloodmnist_cnn_target_200.npz")
    outputs = stored["features"].astype(float) @ stored["weight"].T.astype(float) + stored["bias"]
    head = Head(stored["features"], outputs, stored["targets"].astype(int), "cross_entropy", l2=0.01)
    effect = effect_sizes(signals.of_models(slice(0, 200))).effect_size[stored["index"]]
    table = agreement({"newton": audit(head, scores=["newton"])["newton"]}, effect)
    (row,) = table.rows
    assert [round(cell.value, 3) for cell in row.recall.values()] == [0.817, 0.595]
    assert round(row.spearman.value, 3) == 0.751


def test_agreements_that_are_refused():
    refused("scores: expected at least one score and one pair of shares, got none", agreement, {}, [1.0, 2.0])
    scores, truth = made(50)
    refused("scores: expected two rankings of the same records", agreement, {"a": scores[1:]}, truth)


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
    curve = ShadowCurve((2, 4, 8), np.array([0.4, 0.6, 0.8]))
    assert curve.worth(0.5) == pytest.approx(np.sqrt(8))
    assert curve.worth(0.6) == 4
    assert (curve.worth(0.3), curve.worth(0.9)) == (0.0, float("inf"))


def test_scores_are_held_against_the_truths_that_lira_is():
    """The effects themselves: what they find of a truth of 10 models is not what they find of one of all 40."""
    effect = np.random.default_rng(0).normal(size=1_000)
    signals = simulated(effect, 40, seed=1)
    curve = shadow_curve(signals, sizes=[2, 4], truth_models=10, draws=6, seed=3, scores={"known": effect})
    rng = np.random.default_rng(3)
    expected = []
    for _ in range(6):
        others = signals.of_models(np.sort(rng.permutation(40)[:10]))
        known = np.minimum(others.members.sum(0), (~others.members).sum(0)) >= 2
        truth = np.where(known, effect_sizes(others).effect_size, -np.inf)
        expected.append(recall_at(effect, truth, 0.01, 0.05))
    expected = np.mean(expected)
    assert curve.of_scores == {"known": pytest.approx(expected)}
    assert expected < recall_at(effect, effect_sizes(signals).effect_size, 0.01, 0.05)


def test_records_that_the_truth_cannot_tell_are_none_of_its_top():
    """Nine in ten models have a record: of 32, three out of ten records have no more than one without it."""
    rng = np.random.default_rng(2)
    members = rng.random((64, 2_000)) < 0.9
    members = members[:, np.minimum(members.sum(0), (~members).sum(0)) >= 3]
    level, effect = 5 + 4 * rng.normal(size=members.shape[1]), 1.5 * np.abs(rng.normal(size=members.shape[1]))
    signals = Signals(level + members * effect + rng.normal(size=members.shape), members, "phi")
    curve = shadow_curve(
        signals, sizes=[2, 8, 32], truth_models=32, draws=10, scores={"effect": effect, "level": level}
    )
    assert curve.of_scores["level"] < 0.1 < 0.6 < curve.of_scores["effect"]
    assert (np.diff(curve.recall) > 0.1).all()
    alone = effect_sizes(Signals(np.full((4, 1), 5.0), np.ones((4, 1), dtype=bool), "phi"))
    assert alone.effect_size == 0


def test_attacks_that_are_refused():
    signals = simulated(np.ones(20), 8, seed=0)
    with pytest.raises(ValueError, match="sizes: expected at most 4 with 4 models for the truth, got 8"):
        shadow_curve(signals, sizes=(2, 8), truth_models=4)
    everyone = AttackScores("made", np.ones((2, 3)), np.ones((2, 3), dtype=bool))
    refused("attack: expected members and non-members, got 6 and 0", summarize, everyone)


@pytest.mark.parametrize(
    "function", [spearman, lambda a, b: recall_at(a, b, 0.5, 0.5), lambda a, b: recall_curve(a, b, 0.5)]
)
def test_a_record_without_a_place_is_refused(function):
    words = r"scores: expected a place for every record, got NaN for 1 of 4; leave these records out"
    for pair in permutations(([1.0, 2.0, np.nan, 4.0], [1.0, 2.0, 3.0, 4.0])):
        refused(words, function, *pair)


def test_attacks_have_a_number_for_every_record():
    words = "scores: expected a number for every record of every model, got 1 NaN; leave those records out"
    refused(words, AttackScores, "own", np.array([[0.0, np.nan]]), np.array([[True, False]]))
