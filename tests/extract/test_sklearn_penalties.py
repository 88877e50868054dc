"""The penalty is right exactly when the fitted coefficients are stationary in the Head's own objective."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor

from giveaway.checks import InputError
from giveaway.extract import from_sklearn
from tests.conftest import refused
from tests.extract.examples import EXACT, LBFGS, ROWS, off_optimum


def test_linear_regression_is_stationary_without_penalty(X, values):
    head = from_sklearn(LinearRegression().fit(X, values), X, values)
    assert (head.loss, head.l2, head.intercept) == ("squared", 0.0, True)
    assert off_optimum(head) < 1e-9


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("outputs", [1, 2])
def test_ridge_penalty_is_twice_alpha_and_spares_the_intercept(X, values, outputs, fit_intercept):
    y = values[:, 0] if outputs == 1 else values
    weights = np.linspace(0.5, 2, ROWS)
    ridge = Ridge(alpha=7.0, fit_intercept=fit_intercept).fit(X, y, sample_weight=weights)
    head = from_sklearn(ridge, X, y, sample_weight=weights)
    assert head.l2 == 14.0
    assert head.intercept is fit_intercept
    assert off_optimum(head) < 1e-9
    assert off_optimum(head, l2=7.0) > 0.4
    np.testing.assert_allclose(head.outputs.numpy().squeeze(), ridge.predict(X))


def test_logistic_regression_with_two_classes_is_one_logit(X, labels):
    y = np.where(labels == "ant", "zebra", "ape")
    model = LogisticRegression(C=0.2, **EXACT).fit(X, y)
    head = from_sklearn(model, X, y)
    assert (head.m, head.l2, head.penalize_intercept) == (1, 5.0, False)
    assert off_optimum(head) < 1e-4
    assert off_optimum(replace(head, penalize_intercept=True)) > 0.1
    np.testing.assert_array_equal(head.targets.numpy(), (y == "zebra").astype(int))
    np.testing.assert_allclose(head.outputs.numpy()[:, 0], model.decision_function(X))


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_multinomial_logistic_regression(X, labels, fit_intercept):
    model = LogisticRegression(C=0.5, fit_intercept=fit_intercept, **EXACT).fit(X, labels)
    head = from_sklearn(model, X, labels)
    assert (head.m, head.l2, head.loss) == (3, 2.0, "cross_entropy")
    assert off_optimum(head) < 1e-4
    np.testing.assert_array_equal(model.classes_[head.targets.numpy()], labels)


@pytest.mark.parametrize("scaling", [1.0, 5.0])
def test_liblinear_penalizes_the_intercept_as_its_scaling_says(X, labels, scaling):
    y = (labels == "bee").astype(int)
    model = LogisticRegression(C=0.3, solver="liblinear", intercept_scaling=scaling, **EXACT).fit(X, y)
    head = from_sklearn(model, X, y)
    assert off_optimum(head) < 1e-4
    assert head.penalize_intercept
    np.testing.assert_allclose(head.outputs.numpy()[:, 0], model.decision_function(X))


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
    head = from_sklearn(one_vs_rest(X, labels, C=0.3), X, labels)
    assert (head.m, head.loss) == (3, "binary_cross_entropy")
    assert off_optimum(head) < 1e-4


def test_one_vs_rest_with_class_weight_is_refused(X, labels):
    model = one_vs_rest(X, labels)
    model.class_weight = "balanced"
    refused("one weight a record, got class_weight with one-vs-rest", from_sklearn, model, X, labels)


def test_old_two_class_softmax_is_refused(X, labels):
    model = LogisticRegression().fit(X, labels == "ant")
    model.multi_class = "multinomial"
    refused("multi_class='multinomial' with two classes", from_sklearn, model, X, labels == "ant")


@pytest.mark.parametrize("settings", [{"C": np.inf}, {"penalty": None}])
def test_logistic_regression_without_penalty(X, labels, settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)
        model = LogisticRegression(**settings, **EXACT).fit(X, labels)
        head = from_sklearn(model, X, labels)
    assert head.l2 == 0.0
    assert off_optimum(head) < 1e-3


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"l1_ratio": 1.0}, "penalty l1"), ({"l1_ratio": 0.5}, "penalty elasticnet"), ({"penalty": "l1"}, "penalty l1")],
)
def test_other_penalties_are_refused(X, labels, settings, named):
    model = LogisticRegression().fit(X, labels)
    model.set_params(**settings)
    words = rf"estimator: expected an l2 penalty or none, got {named}; fit with l1_ratio=0"
    refused(words, from_sklearn, model, X, labels)


@pytest.mark.parametrize("class_weight", ["balanced", {"ant": 3.0, "bee": 1.0, "cat": 0.5}])
@pytest.mark.parametrize("kind", [LogisticRegression, RidgeClassifier])
def test_class_weights_become_sample_weights(X, labels, kind, class_weight):
    model = kind(class_weight=class_weight, **EXACT).fit(X, labels)
    head = from_sklearn(model, X, labels)
    assert head.sample_weight is not None
    assert off_optimum(head) < 1e-4


def test_class_weights_multiply_sample_weights(X, labels):
    weights = np.linspace(0.2, 3, ROWS)
    model = LogisticRegression(class_weight={"ant": 3.0}, **EXACT).fit(X, labels, sample_weight=weights)
    assert off_optimum(from_sklearn(model, X, labels, sample_weight=weights)) < 1e-4
    words = r"sample_weight: expected shape \(90,\), one weight a record, got shape \(89,\)"
    refused(words, from_sklearn, model, X, labels, sample_weight=weights[1:])
    model.class_weight = "balanced"
    with pytest.raises(InputError, match="one source of weights, got class_weight='balanced' with sample_weight"):
        from_sklearn(model, X, labels, sample_weight=weights)


def test_ridge_classifier_is_least_squares_on_signs(X, labels):
    head = from_sklearn(RidgeClassifier(alpha=4.0).fit(X, labels), X, labels)
    assert (head.loss, head.m, head.l2) == ("squared", 3, 8.0)
    assert off_optimum(head) < 1e-9
    np.testing.assert_array_equal(head.targets.numpy().argmax(1), np.unique(labels, return_inverse=True)[1])
    binary = from_sklearn(RidgeClassifier(alpha=4.0).fit(X, labels == "bee"), X, labels == "bee")
    assert binary.m == 1
    assert off_optimum(binary) < 1e-9


def test_multi_label_ridge_classifier(X, values):
    y = (values > values.mean(0)).astype(int)
    assert off_optimum(from_sklearn(RidgeClassifier(alpha=4.0).fit(X, y), X, y)) < 1e-9


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
def test_mlp_classifier_last_layer(Z, labels, activation):
    model = MLPClassifier(hidden_layer_sizes=(6, 4), activation=activation, **LBFGS).fit(Z, labels)
    head = from_sklearn(model, Z, labels)
    assert (head.features.shape[1], head.m, head.l2) == (4, 3, 0.3)
    np.testing.assert_allclose(head.outputs.softmax(1).numpy(), model.predict_proba(Z), atol=1e-12)
    if activation != "relu":  # lbfgs stops at a kink
        assert off_optimum(head) < 0.02


def test_mlp_classifier_with_one_logit_and_with_several_labels(Z, values, labels):
    binary = labels == "bee"
    head = from_sklearn(MLPClassifier(hidden_layer_sizes=(4,), activation="tanh", **LBFGS).fit(Z, binary), Z, binary)
    assert (head.m, head.loss) == (1, "cross_entropy")
    assert off_optimum(head) < 0.02
    several = (values > values.mean(0)).astype(int)
    head = from_sklearn(MLPClassifier(hidden_layer_sizes=(4,), activation="tanh", **LBFGS).fit(Z, several), Z, several)
    assert head.loss == "binary_cross_entropy"
    assert off_optimum(head) < 0.02


def test_mlp_sample_weights(Z, labels):
    weights = np.linspace(0.2, 3, ROWS)
    model = MLPClassifier(hidden_layer_sizes=(4,), activation="tanh", **LBFGS).fit(Z, labels, sample_weight=weights)
    assert off_optimum(from_sklearn(model, Z, labels, sample_weight=weights)) < 0.02
    assert off_optimum(from_sklearn(model, Z, labels)) > 0.2


def gradient_descent(kind, Z, y, **options):
    model = kind(hidden_layer_sizes=(), solver="sgd", tol=0, n_iter_no_change=10**6, random_state=0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(Z, y)


def test_mlp_regressor_penalty_is_two_alpha_whatever_the_outputs(Z, values):
    single = MLPRegressor(hidden_layer_sizes=(4,), activation="tanh", **LBFGS).fit(Z, values[:, 0])
    head = from_sklearn(single, Z, values[:, 0])
    assert head.l2 == 0.6
    assert off_optimum(head) < 0.02
    np.testing.assert_allclose(head.outputs.numpy()[:, 0], single.predict(Z))
    double = gradient_descent(
        MLPRegressor, Z, values, alpha=2.0, batch_size=ROWS, learning_rate_init=0.05, max_iter=1500
    )
    head = from_sklearn(double, Z, values)
    assert head.l2 == 4.0
    assert off_optimum(head) < 1e-6
    assert off_optimum(head, l2=8.0) > 0.9


def test_mlp_trained_in_batches_is_penalized_once_a_batch(Z, labels):
    model = gradient_descent(
        MLPClassifier, Z, labels, alpha=2.0, batch_size=20, learning_rate_init=0.01, max_iter=600, momentum=0.0
    )
    head = from_sklearn(model, Z, labels)
    assert head.l2 == pytest.approx(2.0 * ROWS * (4 / 20 + 1 / 10) / 5)
    assert off_optimum(head) < 0.2  # the noise of stochastic steps
    assert off_optimum(head, l2=2.0) > 0.6


def test_mlp_refusals(X, labels, values):
    model = MLPClassifier(hidden_layer_sizes=(4,), max_iter=2, early_stopping=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, labels)
        poisson = MLPRegressor(hidden_layer_sizes=(4,), loss="poisson", max_iter=2).fit(X, np.abs(values[:, 0]))
    refused("early_stopping=True, which kept some of these records out of training", from_sklearn, model, X, labels)
    refused("expected loss='squared_error', got loss='poisson'", from_sklearn, poisson, X, np.abs(values[:, 0]))
