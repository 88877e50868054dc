"""The linear heads of scikit-learn's estimators: features, weights, penalty and targets, one function a kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn import linear_model, neural_network
from sklearn.utils import compute_sample_weight

from giveaway.checks import ROWS_PER_CHECK, as_tensor, check_shape, fail

DENSE_BYTES = 2**30  # a sparse X is made dense up to this size: a head's features are dense
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "tanh": np.tanh,
    "logistic": expit,
}


def _least_squares(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    """Read LinearRegression and Ridge, whose penalty alpha·‖w‖² is l2 = 2·alpha."""
    if estimator.positive:
        raise fail("estimator", "unconstrained coefficients", "positive=True", "fit with positive=False")
    alpha = np.unique(getattr(estimator, "alpha", 0.0))
    if len(alpha) > 1:
        got = f"{len(alpha)} alphas"
        raise fail("estimator", "one alpha for all outputs", got, "fit and audit one estimator an output")
    penalty = {"l2": 2.0 * float(alpha[0]), "penalize_intercept": False}
    return _linear(estimator, X) | penalty | {"targets": y, "loss": "squared", "sample_weight": sample_weight}


def _ridge_classifier(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    """Read RidgeClassifier, a ridge regression on targets of −1 and 1, one column for two classes."""
    if y.ndim == 2:
        targets = np.where(y > 0, 1.0, -1.0)
    else:
        targets = 2.0 * np.eye(len(estimator.classes_))[class_indices(y, estimator.classes_)] - 1.0
        targets = targets[:, 1] if len(estimator.classes_) == 2 else targets
    return _least_squares(estimator, X, targets, _weighted(estimator, y, sample_weight))


def _logistic_regression(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    """Read LogisticRegression: one logit for two classes, softmax for more, or one binary head a class."""
    labels = class_indices(y, estimator.classes_)
    fields = _linear(estimator, X)
    several, liblinear = len(fields["weight"]) > 1, estimator.solver == "liblinear"
    mode = getattr(estimator, "multi_class", None)  # scikit-learn before 1.8
    if mode == "multinomial" and not several:
        got = "multi_class='multinomial' with two classes"
        raise fail("estimator", "the logistic loss for two classes", got, "fit without multi_class")
    one_vs_rest = several and (liblinear or mode == "ovr")
    if estimator.class_weight is not None:
        if one_vs_rest:
            got = "class_weight with one-vs-rest, which weighs a record differently in each class"
            raise fail("estimator", "one weight a record", got, "fit without class_weight, or multinomial")
        if sample_weight is not None and estimator.class_weight == "balanced":
            # Versions of scikit-learn differ in whether the balance counts records or their weights.
            got = "class_weight='balanced' with sample_weight"
            raise fail("estimator", "one source of weights", got, "give class_weight as a dict")
    if liblinear and fields["bias"] is not None and estimator.intercept_scaling != 1:
        got = f"intercept_scaling={estimator.intercept_scaling:g}"
        raise fail("estimator", "one penalty for weights and intercept", got, "fit with intercept_scaling=1")
    kind, ratio = estimator.penalty, estimator.l1_ratio
    if kind in ("deprecated", "elasticnet"):  # from 1.8 on l1_ratio alone tells, and penalty is "deprecated"
        kind = "l2" if not ratio else "l1" if ratio == 1 else "elasticnet"
    if kind in ("l1", "elasticnet"):
        raise fail("estimator", "an l2 penalty or none", f"penalty {kind}", "fit with l1_ratio=0 (penalty='l2')")
    l2 = 0.0 if kind is None or np.isinf(estimator.C) else 1.0 / float(estimator.C)
    fields |= {"l2": l2, "penalize_intercept": liblinear, "sample_weight": _weighted(estimator, y, sample_weight)}
    return fields | _labelled(labels, len(estimator.classes_), one_vs_rest)


def _stochastic(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    """Read SGDClassifier with the logistic loss, one binary head a class, and SGDRegressor with half the squared one;
    the penalty alpha/2·‖w‖² stands beside a mean."""
    classes = isinstance(estimator, linear_model.SGDClassifier)
    for name, wanted in (("loss", "log_loss" if classes else "squared_error"), ("penalty", "l2")):
        if (given := getattr(estimator, name)) != wanted and not (name == "penalty" and given is None):
            raise fail("estimator", f"{name}={wanted!r}", f"{name}={given!r}", f"fit with {name}={wanted!r}")
    l2 = 0.0 if estimator.penalty is None else float(estimator.alpha) * X.shape[0]
    fields = _linear(estimator, X) | {"penalize_intercept": False}
    if not classes:
        return fields | {"targets": y, "loss": "squared", "l2": 2.0 * l2, "sample_weight": sample_weight}
    labels, several = class_indices(y, estimator.classes_), len(fields["weight"]) > 1
    balanced_early = estimator.early_stopping and estimator.class_weight == "balanced"
    if estimator.class_weight is not None and (several or balanced_early):
        got = "class_weight with several classes, or balanced by records that were kept out of training"
        raise fail("estimator", "one known weight a record", got, "fit without class_weight")
    fields |= {"l2": l2, "sample_weight": _weighted(estimator, y, sample_weight)}
    return fields | _labelled(labels, len(estimator.classes_), several)


def _linear(estimator: Any, X: Any) -> dict[str, Any]:
    weight = np.atleast_2d(estimator.coef_)
    bias = np.broadcast_to(np.ravel(estimator.intercept_), len(weight)).copy() if estimator.fit_intercept else None
    return {"features": _dense(X), "weight": weight, "bias": bias}


def _labelled(labels: np.ndarray, classes: int, one_vs_rest: bool) -> dict[str, Any]:
    if one_vs_rest:
        return {"targets": np.eye(classes)[labels], "loss": "binary_cross_entropy"}
    return {"targets": labels, "loss": "cross_entropy"}


def _weighted(estimator: Any, y: np.ndarray, sample_weight: Any) -> Any:
    """Return the weights of the records, times those of their classes."""
    if not estimator.class_weight:
        return sample_weight
    factor = compute_sample_weight(estimator.class_weight, y)
    if sample_weight is None:
        return factor
    weight = as_tensor("sample_weight", sample_weight)
    check_shape("sample_weight", weight, (len(factor),), f"({len(factor)},), one weight a record")
    return weight.numpy() * factor


def _last_layer(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    """Read the last layer of MLPClassifier or MLPRegressor; features are what the last hidden layer gives."""
    if isinstance(estimator, neural_network.MLPRegressor):
        if getattr(estimator, "loss", "squared_error") != "squared_error":
            raise fail("estimator", "loss='squared_error'", f"loss={estimator.loss!r}", "fit with the squared loss")
        # Not 2·alpha·outputs: the loss MLPRegressor reports is a mean over outputs, the gradient it follows a sum.
        loss, targets, factor = "squared", y, 2.0
    else:
        multi_label = y.ndim == 2
        loss, factor = "binary_cross_entropy" if multi_label else "cross_entropy", 1.0
        targets = y if multi_label else class_indices(y, estimator.classes_)
    return {
        "features": _hidden(estimator, X),
        "weight": np.ascontiguousarray(estimator.coefs_[-1].T),
        "bias": estimator.intercepts_[-1],
        "targets": targets,
        "loss": loss,
        "l2": factor * float(estimator.alpha) * _penalties_a_pass(estimator, X.shape[0]),
        "penalize_intercept": False,
        "sample_weight": sample_weight,
    }


def _penalties_a_pass(estimator: Any, n: int) -> float:
    """Count how often the penalty enters one sum over the records: scikit-learn divides it by each batch's size."""
    if estimator.solver == "lbfgs":
        return 1.0
    size = min(200 if estimator.batch_size == "auto" else int(estimator.batch_size), n)
    full, rest = divmod(n, size)
    return n * (full / size + (1 / rest if rest else 0.0)) / (full + (rest > 0))


def _hidden(estimator: Any, X: Any) -> np.ndarray:
    layers = list(zip(estimator.coefs_[:-1], estimator.intercepts_[:-1], strict=True))
    if not layers:
        return _dense(X)
    hidden = np.empty((X.shape[0], layers[-1][0].shape[1]), dtype=layers[-1][0].dtype)
    for start in range(0, X.shape[0], ROWS_PER_CHECK):
        block = X[start : start + ROWS_PER_CHECK]
        for coefs, intercepts in layers:
            block = ACTIVATIONS[estimator.activation](block @ coefs + intercepts)
        hidden[start : start + ROWS_PER_CHECK] = block
    return hidden


def _dense(X: Any) -> np.ndarray:
    """Return X as an array; refuse a sparse one that is too large for that."""
    if isinstance(X, np.ndarray):
        return X
    size = X.shape[0] * X.shape[1] * X.dtype.itemsize
    if size > DENSE_BYTES:
        got = f"a sparse {X.shape[0]} by {X.shape[1]} matrix, {size / 2**30:.1f} GiB dense"
        raise fail("X", f"at most {DENSE_BYTES / 2**30:g} GiB of features", got, "reduce its columns (TruncatedSVD)")
    return X.toarray()


def class_indices(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    if y.ndim != 1:
        raise fail("y", "one label a record", f"shape {y.shape}", "pass the y the estimator was fitted with")
    known = {label: index for index, label in enumerate(classes.tolist())}
    indices = np.array([known.get(label, -1) for label in y.tolist()])
    if (indices < 0).any():
        got = f"another label first in row {int(np.argmin(indices))}"
        raise fail("y", "labels the estimator was fitted with", got, "pass the y the estimator was fitted with")
    return indices


FIELDS: dict[type, Callable[[Any, Any, np.ndarray, Any], dict[str, Any]]] = {
    linear_model.LinearRegression: _least_squares,
    linear_model.Ridge: _least_squares,
    linear_model.LogisticRegression: _logistic_regression,
    linear_model.RidgeClassifier: _ridge_classifier,
    linear_model.SGDClassifier: _stochastic,
    linear_model.SGDRegressor: _stochastic,
    neural_network.MLPClassifier: _last_layer,
    neural_network.MLPRegressor: _last_layer,
}
