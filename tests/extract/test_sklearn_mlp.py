"""The penalty is right exactly when the fitted coefficients are stationary in the Head's own objective."""

import warnings

import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier, MLPRegressor

from giveaway.checks import InputError
from giveaway.extract import from_sklearn
from tests.extract.sklearn_examples import LBFGS, N, off_optimum


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
    weights = np.linspace(0.2, 3, N)
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
    double = gradient_descent(MLPRegressor, Z, values, alpha=2.0, batch_size=N, learning_rate_init=0.05, max_iter=1500)
    head = from_sklearn(double, Z, values)
    assert head.l2 == 4.0
    assert off_optimum(head) < 1e-6
    assert off_optimum(head, l2=8.0) > 0.9


def test_mlp_trained_in_batches_is_penalized_once_a_batch(Z, labels):
    model = gradient_descent(
        MLPClassifier, Z, labels, alpha=2.0, batch_size=20, learning_rate_init=0.01, max_iter=600, momentum=0.0
    )
    head = from_sklearn(model, Z, labels)
    assert head.l2 == pytest.approx(2.0 * N * (4 / 20 + 1 / 10) / 5)
    assert off_optimum(head) < 0.2  # the noise of stochastic steps
    assert off_optimum(head, l2=2.0) > 0.6


def test_mlp_refusals(X, labels, values):
    model = MLPClassifier(hidden_layer_sizes=(4,), max_iter=2, early_stopping=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, labels)
        poisson = MLPRegressor(hidden_layer_sizes=(4,), loss="poisson", max_iter=2).fit(X, np.abs(values[:, 0]))
    with pytest.raises(InputError, match="early_stopping=True, which kept some of these records out of training"):
        from_sklearn(model, X, labels)
    with pytest.raises(InputError, match="expected loss='squared_error', got loss='poisson'"):
        from_sklearn(poisson, X, np.abs(values[:, 0]))
