"""The last layer of a scikit-learn multi-layer perceptron, as the fields of a Head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.neural_network import MLPRegressor

from giveaway.checks import ROWS_PER_CHECK, fail
from giveaway.extract.sklearn_inputs import class_indices, dense

ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "tanh": np.tanh,
    "logistic": expit,
}


def last_layer(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    """MLPClassifier and MLPRegressor: features are what the last hidden layer gives."""
    if estimator.early_stopping:
        got = "early_stopping=True, which kept some of these records out of training"
        raise fail("estimator", "a fit on every record", got, "fit with early_stopping=False")
    if isinstance(estimator, MLPRegressor):
        if getattr(estimator, "loss", "squared_error") != "squared_error":
            raise fail("estimator", "loss='squared_error'", f"loss={estimator.loss!r}", "fit with the squared loss")
        # Not 2·alpha·outputs: the loss MLPRegressor reports is a mean over outputs, the gradient it follows a sum.
        loss, targets, factor = "squared", y, 2.0
    else:
        multi_label = y.ndim == 2
        loss, factor = "binary_cross_entropy" if multi_label else "cross_entropy", 1.0
        targets = y if multi_label else class_indices(y, estimator.classes_)
    return {
        "features": _last_hidden_layer(estimator, X),
        "weight": np.ascontiguousarray(estimator.coefs_[-1].T),
        "bias": estimator.intercepts_[-1],
        "targets": targets,
        "loss": loss,
        "l2": factor * float(estimator.alpha) * _penalties_a_pass(estimator, X.shape[0]),
        "penalize_intercept": False,
        "sample_weight": sample_weight,
    }


def _penalties_a_pass(estimator: Any, n: int) -> float:
    """How often the penalty counts for one sum over the records: scikit-learn divides it by each batch's size."""
    if estimator.solver == "lbfgs":
        return 1.0
    size = min(200, n) if estimator.batch_size == "auto" else min(int(estimator.batch_size), n)
    full, rest = divmod(n, size)
    inverse_sizes = full / size + (1 / rest if rest else 0.0)
    return n * inverse_sizes / (full + (rest > 0))


def _last_hidden_layer(estimator: Any, X: Any) -> np.ndarray:
    layers = list(zip(estimator.coefs_[:-1], estimator.intercepts_[:-1], strict=True))
    if not layers:
        return dense(X)
    activate = ACTIVATIONS[estimator.activation]
    hidden = np.empty((X.shape[0], layers[-1][0].shape[1]), dtype=layers[-1][0].dtype)
    for start in range(0, X.shape[0], ROWS_PER_CHECK):
        block = X[start : start + ROWS_PER_CHECK]
        for coefs, intercepts in layers:
            block = activate(block @ coefs + intercepts)
        hidden[start : start + ROWS_PER_CHECK] = block
    return hidden
