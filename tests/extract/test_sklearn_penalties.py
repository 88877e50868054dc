"""The penalty is right exactly when the fitted coefficients are stationary in the Head's own objective."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor

from giveaway.extract import from_sklearn
from tests.conftest import refused
from tests.extract.examples import EXACT, LBFGS, ROWS, off_optimum

WEIGHTS = np.linspace(0.2, 3, ROWS)
TANH = {"hidden_layer_sizes": (4,), "activation": "tanh", **LBFGS}
DESCENT = {"hidden_layer_sizes": (), "solver": "sgd", "tol": 0, "n_iter_no_change": 10**6, "random_state": 0}


def stationary(model, X, y, below, weights=None, **fields):
    """Fit the model; return its head, which has these fields and is at the optimum of its own objective."""
    weighted = {} if weights is None else {"sample_weight": weights}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y, **weighted)
        head = from_sklearn(model, X, y, **weighted)
    assert {name: getattr(head, name) for name in fields} == fields
    assert off_optimum(head) < below
    return head


def test_linear_regression_is_stationary_without_penalty(X, values):
    stationary(LinearRegression(), X, values, 1e-9, loss="squared", l2=0.0, intercept=True)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("outputs", [1, 2])
def test_ridge_penalty_is_twice_alpha_and_spares_the_intercept(X, values, outputs, fit_intercept):
    y = values[:, 0] if outputs == 1 else values
    ridge = Ridge(alpha=7.0, fit_intercept=fit_intercept)
    head = stationary(ridge, X, y, 1e-9, WEIGHTS, l2=14.0, intercept=fit_intercept)
    assert off_optimum(head, l2=7.0) > 0.4
    np.testing.assert_allclose(head.outputs.numpy().squeeze(), ridge.predict(X))


def test_logistic_regression_with_two_classes_is_one_logit(X, labels):
    y = np.where(labels == "ant", "zebra", "ape")
    model = LogisticRegression(C=0.2, **EXACT)
    head = stationary(model, X, y, 1e-4, m=1, l2=5.0, penalize_intercept=False)
    assert off_optimum(replace(head, penalize_intercept=True)) > 0.1
    np.testing.assert_array_equal(head.targets.numpy(), (y == "zebra").astype(int))
    np.testing.assert_allclose(head.outputs.numpy()[:, 0], model.decision_function(X))


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_multinomial_logistic_regression(X, labels, fit_intercept):
    model = LogisticRegression(C=0.5, fit_intercept=fit_intercept, **EXACT)
    head = stationary(model, X, labels, 1e-4, m=3, l2=2.0, loss="cross_entropy")
    np.testing.assert_array_equal(model.classes_[head.targets.numpy()], labels)


def test_liblinear_penalizes_the_intercept(X, labels):
    model, bees = LogisticRegression(C=0.3, solver="liblinear", **EXACT), (labels == "bee").astype(int)
    head = stationary(model, X, bees, 1e-4, penalize_intercept=True)
    np.testing.assert_allclose(head.outputs.numpy()[:, 0], model.decision_function(X))
    model.set_params(intercept_scaling=5.0).fit(X, bees)
    refused("expected one penalty for weights and intercept, got intercept_scaling=5", from_sklearn, model, X, bees)


def one_vs_rest(X, labels, **options):
    """What scikit-learn before 1.8 stored for liblinear on several classes: one binary fit a class."""
    classes = np.unique(labels)
    fits = [LogisticRegression(solver="liblinear", **options, **EXACT).fit(X, labels == c) for c in classes]
    model = fits[0]
    model.coef_ = np.vstack([fit.coef_ for fit in fits])
    model.intercept_ = np.hstack([fit.intercept_ for fit in fits])
    model.classes_ = classes
    return model


def test_one_vs_rest_is_independent_binary_heads(X, labels):
    model = one_vs_rest(X, labels, C=0.3)
    head = from_sklearn(model, X, labels)
    assert (head.m, head.loss) == (3, "binary_cross_entropy")
    assert off_optimum(head) < 1e-4
    model.class_weight = "balanced"
    refused("one weight a record, got class_weight with one-vs-rest", from_sklearn, model, X, labels)


def test_old_two_class_softmax_is_refused(X, labels):
    model = LogisticRegression().fit(X, labels == "ant")
    model.multi_class = "multinomial"
    refused("multi_class='multinomial' with two classes", from_sklearn, model, X, labels == "ant")


@pytest.mark.parametrize("settings", [{"C": np.inf}, {"penalty": None}])
def test_logistic_regression_without_penalty(X, labels, settings):
    stationary(LogisticRegression(**settings, **EXACT), X, labels, 1e-3, l2=0.0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"l1_ratio": 1.0}, "penalty l1"), ({"l1_ratio": 0.5}, "penalty elasticnet"), ({"penalty": "l1"}, "penalty l1")],
)
def test_other_penalties_are_refused(X, labels, settings, named):
    model = LogisticRegression().fit(X, labels).set_params(**settings)
    words = rf"estimator: expected an l2 penalty or none, got {named}; fit with l1_ratio=0"
    refused(words, from_sklearn, model, X, labels)


@pytest.mark.parametrize("class_weight", ["balanced", {"ant": 3.0, "bee": 1.0, "cat": 0.5}])
@pytest.mark.parametrize("kind", [LogisticRegression, RidgeClassifier])
def test_class_weights_become_sample_weights(X, labels, kind, class_weight):
    assert stationary(kind(class_weight=class_weight, **EXACT), X, labels, 1e-4).sample_weight is not None


def test_class_weights_multiply_sample_weights(X, labels):
    model = LogisticRegression(class_weight={"ant": 3.0}, **EXACT)
    stationary(model, X, labels, 1e-4, WEIGHTS)
    words = r"sample_weight: expected shape \(90,\), one weight a record, got shape \(89,\)"
    refused(words, from_sklearn, model, X, labels, sample_weight=WEIGHTS[1:])
    model.class_weight = "balanced"
    words = "one source of weights, got class_weight='balanced' with sample_weight"
    refused(words, from_sklearn, model, X, labels, sample_weight=WEIGHTS)


def test_ridge_classifier_is_least_squares_on_signs(X, labels, values):
    head = stationary(RidgeClassifier(alpha=4.0), X, labels, 1e-9, loss="squared", m=3, l2=8.0)
    np.testing.assert_array_equal(head.targets.numpy().argmax(1), np.unique(labels, return_inverse=True)[1])
    stationary(RidgeClassifier(alpha=4.0), X, labels == "bee", 1e-9, m=1)
    stationary(RidgeClassifier(alpha=4.0), X, (values > values.mean(0)).astype(int), 1e-9)  # several labels


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
def test_mlp_classifier_last_layer(Z, labels, activation):
    model = MLPClassifier(hidden_layer_sizes=(6, 4), activation=activation, **LBFGS)
    below = np.inf if activation == "relu" else 0.02  # lbfgs stops at a kink
    head = stationary(model, Z, labels, below, width=5, m=3, l2=0.3)
    np.testing.assert_allclose(head.outputs.softmax(1).numpy(), model.predict_proba(Z), atol=1e-12)


def test_mlp_classifier_with_one_logit_several_labels_and_weights(Z, values, labels):
    stationary(MLPClassifier(**TANH), Z, labels == "bee", 0.02, m=1, loss="cross_entropy")
    stationary(MLPClassifier(**TANH), Z, (values > values.mean(0)).astype(int), 0.02, loss="binary_cross_entropy")
    model = MLPClassifier(**TANH)
    stationary(model, Z, labels, 0.02, WEIGHTS)
    assert off_optimum(from_sklearn(model, Z, labels)) > 0.2


def test_mlp_regressor_penalty_is_two_alpha_whatever_the_outputs(Z, values):
    single = MLPRegressor(**TANH)
    head = stationary(single, Z, values[:, 0], 0.02, l2=0.6)
    np.testing.assert_allclose(head.outputs.numpy()[:, 0], single.predict(Z))
    double = MLPRegressor(alpha=2.0, batch_size=ROWS, learning_rate_init=0.05, max_iter=1500, **DESCENT)
    assert off_optimum(stationary(double, Z, values, 1e-6, l2=4.0), l2=8.0) > 0.9


def test_mlp_trained_in_batches_is_penalized_once_a_batch(Z, labels):
    model = MLPClassifier(alpha=2.0, batch_size=20, learning_rate_init=0.01, max_iter=600, momentum=0.0, **DESCENT)
    head = stationary(model, Z, labels, 0.2)  # the noise of stochastic steps
    assert head.l2 == pytest.approx(2.0 * ROWS * (4 / 20 + 1 / 10) / 5)
    assert off_optimum(head, l2=2.0) > 0.6


def test_mlp_refusals(X, values):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        poisson = MLPRegressor(hidden_layer_sizes=(4,), loss="poisson", max_iter=2).fit(X, np.abs(values[:, 0]))
    refused("expected loss='squared_error', got loss='poisson'", from_sklearn, poisson, X, np.abs(values[:, 0]))


SLOW_STEPS = {"alpha": 0.05, "max_iter": 3000, "tol": None, "random_state": 0, "average": 10 * ROWS}


def test_sgd_penalty_is_alpha_times_the_records(Z, labels, values):
    ant = labels == "ant"
    head = stationary(SGDClassifier("log_loss", **SLOW_STEPS), Z, ant, 0.02, l2=0.05 * ROWS, m=1)
    assert off_optimum(head, l2=0.1 * ROWS) > 0.1
    several = stationary(SGDClassifier("log_loss", **SLOW_STEPS), Z, labels, 0.02, loss="binary_cross_entropy")
    assert off_optimum(several, l2=0.1 * ROWS) > 0.1
    weighed = SGDClassifier("log_loss", class_weight={False: 1.0, True: 3.0}, **SLOW_STEPS)
    assert off_optimum(replace(stationary(weighed, Z, ant, 0.02), sample_weight=None)) > 0.1
    line = stationary(SGDRegressor(**SLOW_STEPS), Z, values[:, 0], 0.02, l2=0.1 * ROWS)
    assert off_optimum(line, l2=0.05 * ROWS) > 0.02
    refused("expected loss='log_loss', got loss='hinge'", from_sklearn, SGDClassifier().fit(Z, ant), Z, ant)
    lasso = SGDRegressor(penalty="l1").fit(Z, values[:, 0])
    refused("expected penalty='l2', got penalty='l1'", from_sklearn, lasso, Z, values[:, 0])
