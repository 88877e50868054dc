"""Early stopping: which records a fit kept out, against what scikit-learn was seen to keep out."""

import warnings

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.model_selection import BaseShuffleSplit, GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import scale

import giveaway as ga
from giveaway.extract import trace_of_stages
from tests.conftest import refused

X, LABELS = (part[:200] for part in load_breast_cancer(return_X_y=True))
X, KINDS = scale(X), load_iris().target_names[np.arange(200) % 7 % 3]
WEIGHTS = np.linspace(0.5, 2, 200)
STOPPING = {"early_stopping": True, "random_state": 3}
ENDED = {"n_iter_no_change": 3, "random_state": 3}
MODELS = [
    (HistGradientBoostingClassifier(max_iter=9, **STOPPING), LABELS),
    (HistGradientBoostingClassifier(max_iter=9, early_stopping=True), KINDS),  # keeps the seed that it drew
    (HistGradientBoostingClassifier(max_iter=9, class_weight="balanced", **STOPPING), KINDS),
    (HistGradientBoostingClassifier(max_iter=9, scoring="accuracy", **STOPPING), LABELS),
    (HistGradientBoostingRegressor(max_iter=9, **STOPPING), X[:, 0]),
    (GradientBoostingClassifier(n_estimators=9, **ENDED), KINDS),
    (GradientBoostingRegressor(n_estimators=9, **ENDED), X[:, 0]),
    (MLPClassifier((5, 4), max_iter=9, learning_rate_init=0.05, **STOPPING), LABELS),
    (MLPClassifier((5,), max_iter=9, **STOPPING), KINDS),
    (MLPRegressor(hidden_layer_sizes=(5,), max_iter=9, validation_fraction=0.3, **STOPPING), X[:, 0]),
    (SGDClassifier("log_loss", **STOPPING), KINDS),
    (SGDClassifier("log_loss", **STOPPING), LABELS),
    (SGDRegressor(**STOPPING), X[:, 0]),
]


def fitted(model, y, **weights):
    """Fit the model; return it with the rows that scikit-learn was seen to keep out."""
    seen = []
    split = BaseShuffleSplit.split

    def watched(self, *arguments, **options):
        for trained, kept in split(self, *arguments, **options):
            seen.append(kept)
            yield trained, kept

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(BaseShuffleSplit, "split", watched)
        model.fit(X, y, **weights)
    return model, np.sort(seen[0])


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(("model", "y"), MODELS)
def test_records_kept_out_count_as_held_out(model, y, weighed):
    weights = {"sample_weight": WEIGHTS} if weighed else {}
    model, kept = fitted(model, y, **weights)
    head = ga.from_sklearn(model, X, y, **weights)
    np.testing.assert_array_equal(head.ids, np.setdiff1d(np.arange(200), kept))
    assert head.rows_proved_by == (f"the validation split of early stopping, drawn again: {len(kept)} of 200 held out")
    np.testing.assert_array_equal(head.inputs, X[head.ids])
    if weighed:
        np.testing.assert_array_equal(head.sample_weight, WEIGHTS[head.ids])
    alone = ga.from_sklearn(model, X, y, **weights, held_out=(X[kept], y[kept]))
    for one, other in zip(head.held_out, alone.held_out, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(head.held_out[1]) == len(kept)
    order = np.random.default_rng(0).permutation(200)
    mixed = {name: values[order] for name, values in weights.items()}
    words = (
        "the (records of the fit, in its order|records that the estimator was fitted on), got others, or another order"
    )
    if not isinstance(model, MLPClassifier):  # which notes an accuracy alone: two orders may share it
        refused(words, ga.from_sklearn, model, X[order], y[order], **mixed)
    refused(words, ga.from_sklearn, model, -9 * X, y, **weights)


def test_ids_groups_and_traces_go_along():
    names, people = np.array([f"r{row}" for row in range(200)]), np.arange(200) // 2
    model, kept = fitted(HistGradientBoostingClassifier(max_iter=9, **STOPPING), KINDS)
    head = ga.from_sklearn(model, X, KINDS, ids=names, groups=people)
    rows = np.setdiff1d(np.arange(200), kept)
    np.testing.assert_array_equal(head.ids, names[rows])
    np.testing.assert_array_equal(head.groups, people[rows])
    refused(r"ids: expected 200 of them.*, got shape \(180,\)", ga.from_sklearn, model, X, KINDS, ids=names[rows])
    table = ga.audit(ga.from_sklearn(model, X, KINDS), trace=trace_of_stages(model, X, KINDS))
    assert "trace" in table.columns
    np.testing.assert_array_equal(table.ids, rows)
    assert table.meta.rows_proved_by.endswith("20 of 200 held out")


def test_a_pipeline_in_a_search_on_a_table():
    table = pandas.DataFrame(X, columns=[f"c{place}" for place in range(30)])
    network = make_pipeline(HistGradientBoostingClassifier(max_iter=5, **STOPPING))
    search = GridSearchCV(network, {"histgradientboostingclassifier__max_iter": [3, 5]}, cv=2).fit(table, LABELS)
    head = ga.from_sklearn(search, table, LABELS)
    assert (head.n, len(head.held_out[1])) == (180, 20)


def test_a_network_that_never_stops_early_saw_all():
    model = MLPClassifier((4,), solver="lbfgs", max_iter=5, **STOPPING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, LABELS)
    assert ga.from_sklearn(model, X, LABELS).n == 200


def test_what_cannot_be_drawn_again_or_proved():
    drawn, _ = fitted(MLPClassifier((4,), max_iter=3, early_stopping=True), KINDS)
    words = "early stopping without a whole number as random_state; fit with random_state=0, or without early"
    refused(words, ga.from_sklearn, drawn, X, KINDS)
    y = np.exp(X[:, 0])
    gamma, _ = fitted(HistGradientBoostingRegressor(loss="gamma", max_iter=3, **STOPPING), y)
    refused("got early stopping on loss='gamma'", ga.from_sklearn, gamma, X, y)
    balanced = SGDClassifier("log_loss", class_weight="balanced", **STOPPING)
    refused("balanced by records that were kept out", ga.from_sklearn, fitted(balanced, LABELS)[0], X, LABELS)
