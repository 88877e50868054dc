"""What a training can try: by the keywords of a function, by the parameters of an estimator."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Perceptron, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from giveaway.attacks import Retraining
from giveaway.findings.remedies import Remedy, remedies
from tests.conftest import refused

X, Y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2


def found(model: object, **options: object) -> tuple[list[Remedy], dict[str, str]]:
    return remedies(Retraining(model, X, Y.astype(float) if isinstance(model, Ridge) else Y), **options)


def labels(model: object, **options: object) -> list[str]:
    tried = [remedy.label for remedy in found(model, **options)[0]]
    assert tried[0] == "as it is"
    assert "most exposed count less" in tried
    return [label for label in tried[1:] if "most exposed" not in label]


def bare(rows, seed): ...


def able(rows, seed, device="cpu", *, l2=0.5, epochs=20, sample_weight=None, epsilon=None, width=3): ...


def test_a_function_is_offered_what_its_keywords_allow():
    assert labels(able) == ["l2=5", "l2=50", "epochs=10", "epochs=5", "epsilon=8", "epsilon=3", "epsilon=1"]
    assert found(able)[1] == {}
    plain = found(bare)
    assert [remedy.drop for remedy in plain[0]] == [0.0, 0.01, 0.05]
    assert plain[1] == {
        "stronger penalty": "l2= is no keyword of your function",
        "early stop": "epochs= is no keyword of your function",
        "most exposed count less": "sample_weight= is no keyword of your function",
        "DP-SGD": "epsilon= is no keyword of your function",
    }

    def untold(rows, seed, epochs=None, l2=0.0): ...

    assert found(untold)[1]["early stop"] == "epochs= has no number as its default"
    assert [remedy.label for remedy in found(untold)[0][1:3]] == ["l2=0.001", "l2=0.01"]


def test_weights_need_the_audit_of_a_head():
    why = "weights come from newton and influence, which the audit of a linear head has"
    assert found(able, weighted=False)[1] == {"most exposed count less": why}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (LogisticRegression(C=10, max_iter=500), ["C=1", "C=0.1"]),
        (Ridge(alpha=2.0), ["alpha=20", "alpha=200"]),
        (RandomForestClassifier(50), ["min_samples_leaf=5", "min_samples_leaf=20", "max_depth=12", "max_depth=6"]),
        (RandomForestClassifier(50, max_depth=9, min_samples_leaf=0.1), ["max_depth=4"]),
        (MLPClassifier(alpha=0.0, max_iter=100), ["alpha=0.001", "alpha=0.01", "max_iter=50", "max_iter=25"]),
    ],
)
def test_an_estimator_is_offered_what_its_parameters_allow(model, expected):
    assert labels(model) == expected
    told = found(make_pipeline(StandardScaler(), model))[0][1]
    step = type(model).__name__.lower()
    (name,) = told.settings
    assert name == f"{step}__{expected[0].partition('=')[0]}"
    changed = told.applied(Retraining(make_pipeline(StandardScaler(), model), X, Y), None)
    assert changed.model.get_params()[name] == told.settings[name]
    assert model.get_params()[name.partition("__")[2]] != told.settings[name]  # the user's own stays as it was


def test_boosted_trees_can_stop_early():
    offered = labels(HistGradientBoostingClassifier())
    assert {"max_iter=50", "l2_regularization=1", "min_samples_leaf=100"} <= set(offered)
    assert "stronger penalty" in found(RandomForestClassifier())[1]


def test_xgboost_leaves_its_settings_none():
    xgboost = pytest.importorskip("xgboost")
    assert labels(xgboost.XGBClassifier()) == ["reg_lambda=10", "reg_lambda=100"]  # its own is 1
    told = found(xgboost.XGBClassifier())[1]["early stop"]
    assert told == "its n_estimators is None: name values with --try n_estimators=50,100"
    assert "n_estimators=50" in labels(xgboost.XGBClassifier(), tried={"n_estimators": [50]})


def test_a_penalty_that_is_off_has_no_strength():
    for model in (LogisticRegression(penalty=None), Perceptron(penalty=None)):
        offered, missing = found(make_pipeline(StandardScaler(), model))
        assert "stronger penalty" not in {remedy.kind for remedy in offered}
        assert missing["stronger penalty"] == "its penalty is None: name another with --try penalty=l2"
    assert labels(LogisticRegression(C=np.inf)) == ["C=1", "C=0.1"]


def test_weights_multiply_those_of_the_training():
    own, weights = np.arange(40) + 1.0, np.linspace(0.1, 1.0, 40)
    remedy = next(remedy for remedy in found(LogisticRegression())[0] if remedy.weighted)
    training = Retraining(LogisticRegression(), X, Y, sample_weight=own)
    np.testing.assert_array_equal(remedy.applied(training, weights).sample_weight, own * weights)
    np.testing.assert_array_equal(remedy.applied(Retraining(bare, y=Y), weights).sample_weight, weights)


def test_weights_reach_the_last_step_of_a_nested_pipeline():
    inner = Pipeline([("scale", StandardScaler()), ("last", LogisticRegression())])
    weight, rows = np.linspace(0.1, 1.0, 40), np.arange(30)
    said = Retraining(Pipeline([("inner", inner)]), X, Y, sample_weight=weight).train(rows, 0)
    scale = StandardScaler().fit(X[:30])
    expected = LogisticRegression().fit(scale.transform(X[:30]), Y[:30], sample_weight=weight[:30])
    np.testing.assert_allclose(said, expected.decision_function(scale.transform(X)))


def test_values_of_the_users_own():
    assert labels(able, tried={"l2": [7], "width": [1, 2]})[:1] == ["l2=7"]
    offered = labels(able, tried={"l2": [7], "epsilon": [2.0], "width": [1, 2]})
    assert offered[-3:] == ["width=1", "width=2", "epsilon=2"]
    model = make_pipeline(StandardScaler(), LogisticRegression())
    assert labels(model, tried={"standardscaler__with_mean": [False]})[-1] == "standardscaler__with_mean=False"
    dropped = [remedy.drop for remedy in found(bare, tried={"drop": [0.2]})[0]]
    assert dropped == [0.0, 0.2]
    refused("try: expected a keyword of your function, got 'l3'", found, able, tried={"l3": [1]})
    refused("try: expected a parameter of your estimator, got 'c'", found, LogisticRegression(), tried={"c": [1]})
    for wrong in (1.5, 0.0, "many"):
        refused(
            "try: expected a share of the records above 0 and below 1 for drop", found, bare, tried={"drop": [wrong]}
        )
