"""Threshold attacks against their formulas, written out record by record, and attack models against plain fits."""

from itertools import product
from math import exp, log

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from giveaway.attacks.thresholds import shokri, threshold
from giveaway.checks import InputError
from giveaway.records import Signals
from tests.attacks.made import made
from tests.conftest import refused

CASES = ("loss", "confidence", "entropy")


def seen(seed, models=3, kind="logits"):
    logits = made(seed, targets=models, records=7, queries=2, classes=4)[0]
    return logits if kind == "logits" else Signals(logits.distribution(), logits.members, kind, logits.labels)


def written_out(p, y, by):
    return {"loss": log(p[y]), "confidence": p[y], "entropy": sum(q * log(q) for q in p)}[by]


def loop(signals, by):
    """(M, N, Q), one prediction at a time."""
    found = np.empty(signals.values.shape[:3])
    for m, i, q in np.ndindex(found.shape):
        p = [float(v) for v in signals.values[m, i, q]]
        if signals.kind == "logits":
            total = sum(exp(v) for v in p)
            p = [exp(v) / total for v in p]
        found[m, i, q] = written_out(p, int(signals.labels[i]), by)
    return found


@pytest.mark.parametrize("by", CASES)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_statistics_of_classes(by, kind):
    signals = seen(0, kind=kind)
    result = threshold(signals, by=by)
    np.testing.assert_allclose(result.scores, loop(signals, by).mean(2), rtol=1e-9)
    assert result.options == {"by": by, "calibrated": False}
    assert result.members is signals.members


@pytest.mark.parametrize("by", CASES)
def test_calibration_takes_off_the_mean_of_models_without_the_record(by):
    targets, references = made(1, records=7, queries=2, classes=4)
    own, theirs = loop(targets, by), loop(references, by)
    expected = np.empty(targets.members.shape)
    for i in range(targets.records):
        without = [theirs[m, i] for m in range(6) if not references.members[m, i]]
        expected[:, i] = (own[:, i] - np.mean(without, axis=0)).mean(1)
    np.testing.assert_allclose(threshold(targets, references, by=by).scores, expected, rtol=1e-9, atol=1e-12)


def test_hand_worked_values():
    p = np.array([[[0.5, 0.25, 0.25]]])
    signals = Signals(p, [[True]], "probabilities", [0])
    assert threshold(signals).scores[0, 0] == pytest.approx(-0.6931471805599453, abs=1e-9)
    assert threshold(signals, by="confidence").scores[0, 0] == pytest.approx(0.5, abs=1e-9)
    assert threshold(signals, by="entropy").scores[0, 0] == pytest.approx(-1.0397207708399179, abs=1e-9)


def test_phi_and_squared_errors():
    phi = np.array([[0.0, log(3.0), -800.0]])
    signals = Signals(phi, np.ones((1, 3)), "phi")
    np.testing.assert_allclose(threshold(signals).scores, [[log(0.5), log(0.75), -800.0]], rtol=1e-12)
    np.testing.assert_allclose(threshold(signals, by="confidence").scores, [[0.5, 0.75, 0.0]], atol=1e-12)
    errors = Signals(np.array([[[0.25, 1.0], [4.0, 0.0]]]), np.ones((1, 2)), "squared_error")
    np.testing.assert_allclose(threshold(errors, by="squared_error").scores, [[-0.625, -2.0]], rtol=1e-12)


def test_near_certain_predictions_stay_apart_and_finite():
    logits = np.array([[[40.0, 0.0], [45.0, 0.0], [0.0, 2000.0]]])
    signals = Signals(logits, np.ones((1, 3)), "logits", [0, 0, 0])
    scores = threshold(signals, by="entropy").scores[0]
    assert np.isfinite(scores).all()
    assert scores[0] < scores[1] < 0
    scores = threshold(signals).scores[0]
    np.testing.assert_allclose(scores, [-exp(-40), -exp(-45), -2000.0], rtol=1e-9)


def test_errors_say_what_to_do():
    signals = seen(0)
    phi = Signals(np.ones((1, 2)), np.ones((1, 2)), "phi")
    errors = Signals(np.ones((1, 2)), np.ones((1, 2)), "squared_error")
    refused("by: expected a known name, got 'losses'; did you mean loss", threshold, signals, by="losses")
    refused("by: expected by='squared_error' for signals of kind 'squared_error', got 'loss'", threshold, errors)
    with pytest.raises(InputError, match="by: expected a statistic of classes as by='loss' for signals of kind 'phi'"):
        threshold(phi, by="squared_error")
    refused("signals: expected logits or probabilities for the entropy, got phi", threshold, phi, by="entropy")
    refused(r"not trained on every record, got none at row 0 \(2 such rows\); add models", threshold, phi, phi)


def plain(targets, references):
    """The attack-model attack by plain fits of scikit-learn, one class and one row at a time."""
    scores = np.zeros(targets.members.shape)
    for group in (np.flatnonzero(targets.labels == c) for c in set(targets.labels.tolist())):
        learned = [(softmax(references.values[m, i, q]), references.members[m, i])
                   for i in group for m in range(references.models) for q in range(references.queries)]  # fmt: skip
        model = LogisticRegression(max_iter=1000).fit(*(np.array(column) for column in zip(*learned, strict=True)))
        for m, i, q in product(range(targets.models), group, range(targets.queries)):
            p = model.predict_proba([softmax(targets.values[m, i, q])])[0, list(model.classes_).index(True)]
            scores[m, i] += np.log(p / (1 - p)) / targets.queries
    return scores


@pytest.mark.parametrize("queries", [1, 2])
def test_shokri_against_a_plain_fit(queries):
    targets, references = made(1, records=24, queries=queries)
    expected, classifier = plain(targets, references), LogisticRegression(max_iter=1000)
    for given in (None, classifier):
        result = shokri(targets, references, classifier=given)
        np.testing.assert_allclose(result.scores, expected, atol=2e-3)
        assert result.options["classifier"] == "LogisticRegression(max_iter=1000)"
    assert np.ptp(expected) > 0.1
    assert not hasattr(classifier, "coef_")  # what is handed over is left as it was


def test_certain_answers_of_the_attack_model_stay_finite():
    _, references = made(3, records=24)
    result = shokri(references, references, classifier=DecisionTreeClassifier(random_state=0))
    assert np.isfinite(result.scores).all()
    np.testing.assert_array_equal(result.scores > 0, references.members)


def test_shokri_against_the_pipeline_of_art():
    words = "adversarial-robustness-toolbox is not installed: no comparison with its pipeline"
    inference = pytest.importorskip("art.attacks.inference.membership_inference", reason=words)
    estimators = pytest.importorskip("art.estimators.classification.scikitlearn", reason=words)
    targets, references = made(5, records=60)
    targets, references = (each.of_records(targets.labels == 0) for each in (targets, references))
    flat, inside = references.distribution().reshape(-1, 3), references.members.ravel()
    labels = np.arange(len(flat)) % 3  # ART appends the label, which is one for all of a class: it counts for nothing
    host = estimators.SklearnClassifier(LogisticRegression().fit(flat, labels))
    attack = inference.MembershipInferenceBlackBox(host, attack_model_type="lr", scaler_type=None)
    labels = np.zeros(len(flat), dtype=int)
    attack.fit(flat[inside], labels[inside], flat[~inside], labels[~inside], pred=flat[inside], test_pred=flat[~inside])
    seen = targets.distribution().reshape(-1, 3)
    theirs = attack.infer(seen, np.zeros(len(seen), dtype=int), pred=seen, probabilities=True)[:, -1]
    ours = shokri(targets, references, classifier=LogisticRegression()).scores.ravel()
    np.testing.assert_allclose(np.log(theirs / (1 - theirs)), ours, atol=2e-3)
    assert np.ptp(ours) > 0.1


def test_many_rows_are_drawn_by_the_seed(monkeypatch):
    targets, references = made(9, references=6, records=90, queries=2)
    targets, references = (each.of_records(targets.labels == 1) for each in (targets, references))
    every = shokri(targets, references).scores
    counted = []

    class Counting(LogisticRegression):
        def fit(self, X, y):
            counted.append(len(y))
            return super().fit(X, y)

    monkeypatch.setattr("giveaway.attacks.thresholds.MOST_ROWS", references.values[..., 0].size)
    np.testing.assert_array_equal(shokri(targets, references).scores, every)
    monkeypatch.setattr("giveaway.attacks.thresholds.MOST_ROWS", 120)
    one, same, other = (shokri(targets, references, classifier=Counting(), seed=seed).scores for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-3
    assert counted == [120] * 3


def test_what_shokri_refuses():
    targets, references = made(10, records=24)
    words = "classifier: expected a scikit-learn classifier with predict_proba, got LinearSVC"
    refused(words, shokri, targets, references, classifier=LinearSVC())
    one_sided = references.members.copy()
    one_sided[:, references.labels == 1] = True
    lacking = Signals(references.values, one_sided, "logits", references.labels)
    refused("references: expected members and non-members in class 1, got only members; add", shokri, targets, lacking)
    nothing = Signals(references.values, one_sided & False, "logits", references.labels)
    refused("members and non-members in class 0, got only non-members", shokri, targets, nothing)
    phi = Signals(np.ones((2, 24)), np.ones((2, 24)), "phi")
    refused("signals: expected logits or probabilities, got phi; store the whole prediction", shokri, phi, phi)
