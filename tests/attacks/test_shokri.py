"""The attack-model attack against plain scikit-learn fits, one class at a time."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from giveaway.attacks.thresholds import shokri
from giveaway.checks import InputError
from giveaway.records import Signals
from tests.attacks.made import made
from tests.conftest import refused


def rows_of(signals, i, arrange, one_hot):
    """(model, query, features) of one record, by loops."""
    found = []
    for m in range(signals.models):
        for q in range(signals.queries):
            p = list(softmax(signals.values[m, i, q].astype(np.float64)))
            p = sorted(p, reverse=True) if arrange else p
            found.append((m, p + [float(c == signals.labels[i]) for c in range(len(p))] * one_hot))
    return found


def plain(targets, references, *, per_class=True, arrange=False):
    scores = np.zeros(targets.members.shape)
    groups = [np.flatnonzero(targets.labels == c) for c in set(targets.labels.tolist())]
    for group in groups if per_class else [range(targets.records)]:
        learned = [
            (row, references.members[m, i]) for i in group for m, row in rows_of(references, i, arrange, not per_class)
        ]
        model = LogisticRegression(max_iter=1000).fit(
            np.array([row for row, _ in learned]), np.array([member for _, member in learned])
        )
        for i in group:
            for m, row in rows_of(targets, i, arrange, not per_class):
                p = model.predict_proba([row])[0, list(model.classes_).index(True)]
                scores[m, i] += np.log(p / (1 - p)) / targets.queries
    return scores


@pytest.mark.parametrize("per_class", [True, False])
@pytest.mark.parametrize("features", ["probabilities", "sorted_probabilities"])
@pytest.mark.parametrize("queries", [1, 2])
def test_against_a_plain_fit(per_class, features, queries):
    targets, references = made(1, records=24, queries=queries)
    expected = plain(targets, references, per_class=per_class, arrange=features != "probabilities")
    classifier = None if per_class else LogisticRegression(max_iter=1000)
    result = shokri(targets, references, per_class=per_class, features=features, classifier=classifier)
    np.testing.assert_allclose(result.scores, expected, atol=2e-3)
    assert np.ptp(expected) > 0.1
    assert result.options["classifier"] == "LogisticRegression(max_iter=1000)"
    assert not hasattr(classifier, "coef_")  # what is handed over is left as it was


def test_the_pooled_default_is_a_network_with_the_seed():
    targets, references = made(2, records=60)
    inputs, truth = [], []
    for m in range(references.models):
        for i in range(references.records):
            inputs.append(rows_of(references, i, False, True)[m][1])
            truth.append(references.members[m, i])
    network = MLPClassifier((64,), max_iter=1000, random_state=5).fit(np.array(inputs), np.array(truth))
    seen = np.array([[rows_of(targets, i, False, True)[m][1] for i in range(60)] for m in range(targets.models)])
    p = network.predict_proba(seen.reshape(-1, 6))[:, 1].reshape(targets.members.shape)
    result = shokri(targets, references, per_class=False, seed=5)
    np.testing.assert_allclose(result.scores, np.log(p / (1 - p)), atol=1e-6)
    assert result.options["classifier"] == "MLPClassifier(hidden_layer_sizes=(64,), max_iter=1000, random_state=5)"


def test_certain_answers_of_the_attack_model_stay_finite():
    _, references = made(3, records=24)
    result = shokri(references, references, classifier=DecisionTreeClassifier(random_state=0))
    assert np.isfinite(result.scores).all()
    np.testing.assert_array_equal(result.scores > 0, references.members)


def test_against_the_pipeline_of_art():
    words = "adversarial-robustness-toolbox is not installed: no comparison with its pipeline"
    inference = pytest.importorskip("art.attacks.inference.membership_inference", reason=words)
    estimators = pytest.importorskip("art.estimators.classification.scikitlearn", reason=words)

    targets, references = made(5, records=60)
    flat = references.distribution().reshape(-1, 3)
    labels, inside = np.tile(references.labels, references.models), references.members.ravel()
    host = estimators.SklearnClassifier(LogisticRegression().fit(flat, labels))
    attack = inference.MembershipInferenceBlackBox(host, attack_model_type="lr", scaler_type=None)
    attack.fit(flat[inside], labels[inside], flat[~inside], labels[~inside], pred=flat[inside], test_pred=flat[~inside])
    seen = targets.distribution().reshape(-1, 3)
    theirs = attack.infer(seen, np.tile(targets.labels, targets.models), pred=seen, probabilities=True)[:, -1]
    ours = shokri(targets, references, per_class=False, classifier=LogisticRegression()).scores.ravel()
    np.testing.assert_allclose(np.log(theirs / (1 - theirs)), ours, atol=2e-3)
    assert np.ptp(ours) > 0.1


def test_most_rows_draws_by_the_seed():
    targets, references = made(9, references=6, records=90, queries=2)
    few = {"most_rows": 120, "per_class": False, "classifier": LogisticRegression()}
    one, same, other = (shokri(targets, references, seed=seed, **few).scores for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-3
    every = shokri(targets, references, most_rows=None).scores
    np.testing.assert_array_equal(
        every, shokri(targets, references, most_rows=6 * 2 * np.bincount(targets.labels).max()).scores
    )
    counted = []

    class Counting(LogisticRegression):
        def fit(self, X, y):
            counted.append(len(y))
            return super().fit(X, y)

    shokri(targets, references, **{**few, "classifier": Counting()})
    assert counted == [120]


def test_errors_say_what_to_do():
    targets, references = made(10, records=24)
    with pytest.raises(InputError, match="features: expected a known name, got 'sorted'; choose from prob"):
        shokri(targets, references, features="sorted")
    with pytest.raises(
        InputError, match="classifier: expected a scikit-learn classifier with predict_proba, got LinearSVC"
    ):
        shokri(targets, references, classifier=LinearSVC())
    refused("most_rows: expected at least 2 or None, got 0", shokri, targets, references, most_rows=0)
    one_sided = references.members.copy()
    one_sided[:, references.labels == 1] = True
    lacking = Signals(references.values, one_sided, "logits", references.labels)
    refused("references: expected members and non-members in class 1, got only members; add", shokri, targets, lacking)
    shokri(targets, lacking, per_class=False, classifier=LogisticRegression())
    nothing = Signals(references.values, one_sided & False, "logits", references.labels)
    with pytest.raises(InputError, match="members and non-members in every class together, got only non-members"):
        shokri(targets, nothing, per_class=False)
    phi = Signals(np.ones((2, 24)), np.ones((2, 24)), "phi")
    refused("signals: expected logits or probabilities, got phi; store the whole prediction", shokri, phi, phi)
