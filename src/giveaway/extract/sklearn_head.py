"""from_sklearn: the linear head of a fitted scikit-learn estimator, with its penalty in summed-loss units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils import compute_sample_weight
from sklearn.utils.validation import check_is_fitted

from giveaway.checks import ROWS_PER_CHECK, as_tensor, fail
from giveaway.extract.linear_outputs import linear_outputs
from giveaway.records.head import Head

DENSE_BYTES = 2**30  # a sparse X is made dense up to this size: a head's features are dense
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "tanh": np.tanh,
    "logistic": expit,
}


def from_sklearn(
    estimator: Any, X: Any, y: Any, *, sample_weight: Any = None, ids: Any = None, groups: Any = None
) -> Head:
    """The head of a fitted linear model, of the last layer of an MLP, or of a Pipeline that ends in one.

    `X`, `y` and `sample_weight` are what the estimator was fitted with, in any fixed order; `l2` follows from the
    estimator: 2·alpha for Ridge and RidgeClassifier, 1/C for LogisticRegression, alpha (2·alpha for regression) for
    an MLP, times records over batch size unless solver="lbfgs". Only liblinear penalizes the intercept.
    Class weights become sample weights. A sparse X is made dense where that takes at most 1 GiB, else refused.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> from_sklearn(LogisticRegression(C=2.0, max_iter=1000).fit(X, y), X, y)
    Head(n=150, d=4, m=3, loss='cross_entropy', l2=0.5)
    """
    final, X = _last_step(estimator, X)
    read = _READERS.get(type(final))
    if read is None:
        best = hasattr(final, "best_estimator_")
        raise fail(
            "estimator",
            "one of " + ", ".join(kind.__name__ for kind in _READERS) + ", or a Pipeline ending in one",
            type(final).__name__,
            "pass its best_estimator_" if best else "for another model build Head from arrays",
        )
    try:
        check_is_fitted(final)
    except NotFittedError as error:
        raise fail("estimator", "a fitted estimator", f"an unfitted {type(final).__name__}", "fit it first") from error
    X, y = _checked(final, X, y)
    fields = read(final, X, y, sample_weight)
    features, weight = as_tensor("X", fields.pop("features")), as_tensor("weight", fields.pop("weight"))
    bias = as_tensor("bias", fields.pop("bias")) if fields["intercept"] else fields.pop("bias")
    outputs = linear_outputs(features, weight, bias)
    return Head(features, outputs, weight=weight, bias=bias, ids=ids, groups=groups, **fields)


def _last_step(estimator: Any, X: Any) -> tuple[Any, Any]:
    """The final estimator of (nested) pipelines, and X as it reaches it."""
    while isinstance(estimator, Pipeline):
        if len(estimator.steps) > 1:
            try:
                X = estimator[:-1].transform(X)
            except NotFittedError as error:
                raise fail("estimator", "a fitted estimator", "an unfitted Pipeline", "fit it first") from error
            except ValueError as error:
                reason = (str(error).splitlines() or ["another input"])[0]
                raise fail("X", "inputs the pipeline accepts", reason, "pass X as it was given to fit") from error
        estimator = estimator.steps[-1][1]
    return estimator, X


def _checked(estimator: Any, X: Any, y: Any) -> tuple[Any, np.ndarray]:
    X = X.tocsr() if hasattr(X, "tocsr") else np.asarray(X)
    y = np.asarray(y)
    if X.ndim != 2:
        raise fail("X", "shape (records, features)", f"shape {X.shape}", "pass the X the estimator was fitted with")
    if y.ndim == 0 or len(y) != X.shape[0]:
        raise fail("y", f"{X.shape[0]} rows, one a row of X", f"shape {y.shape}", "pass the X and y of one data set")
    if X.shape[1] != estimator.n_features_in_:
        expected = f"{estimator.n_features_in_} columns, as the estimator was fitted with"
        raise fail("X", expected, f"{X.shape[1]} columns", "pass the X the estimator was fitted with")
    if X.dtype.kind not in "fiub":
        try:
            X = X.astype(np.float64)
        except (TypeError, ValueError) as error:
            remedy = "encode the columns as numbers, or pass the whole Pipeline"
            raise fail("X", "an array of numbers", f"dtype {X.dtype}", remedy) from error
    return X, y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y


def _dense(X: Any) -> np.ndarray:
    if isinstance(X, np.ndarray):
        return X
    size = X.shape[0] * X.shape[1] * X.dtype.itemsize
    if size > DENSE_BYTES:
        got = f"a sparse {X.shape[0]} by {X.shape[1]} matrix, {size / 2**30:.1f} GiB dense"
        raise fail("X", f"at most {DENSE_BYTES / 2**30:g} GiB of features", got, "reduce its columns (TruncatedSVD)")
    return X.toarray()


def _linear(estimator: Any, X: Any) -> dict[str, Any]:
    weight = np.atleast_2d(estimator.coef_)
    bias = np.broadcast_to(np.ravel(estimator.intercept_), len(weight)).copy() if estimator.fit_intercept else None
    return {"features": _dense(X), "weight": weight, "bias": bias, "intercept": bias is not None}


def _least_squares(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    if estimator.positive:
        raise fail("estimator", "unconstrained coefficients", "positive=True", "fit with positive=False")
    alpha = np.unique(getattr(estimator, "alpha", 0.0))
    if len(alpha) > 1:
        got = f"{len(alpha)} alphas"
        raise fail("estimator", "one alpha for all outputs", got, "fit and audit one estimator an output")
    return _linear(estimator, X) | {
        "targets": y,
        "loss": "squared",
        "l2": 2.0 * float(alpha[0]),
        "penalize_intercept": False,
        "sample_weight": sample_weight,
    }


def _ridge_classifier(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    if y.ndim == 2:
        targets = np.where(y > 0, 1.0, -1.0)
    else:
        labels = _class_indices(y, estimator.classes_)
        targets = 2.0 * _one_hot(labels, len(estimator.classes_)) - 1.0
        if len(estimator.classes_) == 2:
            targets = targets[:, 1]
    if estimator.class_weight:
        sample_weight = _times(sample_weight, compute_sample_weight(estimator.class_weight, y))
    return _least_squares(estimator, X, targets, sample_weight)


def _logistic_regression(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    labels = _class_indices(y, estimator.classes_)
    fields = _linear(estimator, X)
    several = len(fields["weight"]) > 1
    mode = getattr(estimator, "multi_class", None)  # scikit-learn before 1.8
    if mode == "multinomial" and not several:
        got = "multi_class='multinomial' with two classes"
        raise fail("estimator", "the logistic loss for two classes", got, "fit without multi_class")
    one_vs_rest = several and (estimator.solver == "liblinear" or mode == "ovr")
    if estimator.class_weight is not None:
        if one_vs_rest:
            got = "class_weight with one-vs-rest, which weighs a record differently in each class"
            raise fail("estimator", "one weight a record", got, "fit without class_weight, or multinomial")
        if sample_weight is not None and estimator.class_weight == "balanced":
            # Versions of scikit-learn differ in whether the balance counts records or their weights.
            got = "class_weight='balanced' with sample_weight"
            raise fail("estimator", "one source of weights", got, "give class_weight as a dict")
        sample_weight = _times(sample_weight, compute_sample_weight(estimator.class_weight, y))
    if estimator.solver == "liblinear" and fields["intercept"] and estimator.intercept_scaling != 1:
        # liblinear penalizes bias / scaling: a bias of its own only as the weight of a constant feature.
        scale = float(estimator.intercept_scaling)
        fields["features"] = np.column_stack([fields["features"], np.full(X.shape[0], scale)])
        fields["weight"] = np.column_stack([fields["weight"], fields["bias"] / scale])
        fields |= {"bias": None, "intercept": False}
    return fields | {
        "targets": _one_hot(labels, len(estimator.classes_)) if one_vs_rest else labels,
        "loss": "binary_cross_entropy" if one_vs_rest else "cross_entropy",
        "l2": _logistic_penalty(estimator),
        "penalize_intercept": estimator.solver == "liblinear",
        "sample_weight": sample_weight,
    }


def _logistic_penalty(estimator: Any) -> float:
    kind, ratio = estimator.penalty, estimator.l1_ratio
    if kind in ("deprecated", "elasticnet"):  # from 1.8 on l1_ratio alone tells, and penalty is "deprecated"
        kind = "l2" if not ratio else "l1" if ratio == 1 else "elasticnet"
    if kind in ("l1", "elasticnet"):
        raise fail("estimator", "an l2 penalty or none", f"penalty {kind}", "fit with l1_ratio=0 (penalty='l2')")
    return 0.0 if kind is None or np.isinf(estimator.C) else 1.0 / float(estimator.C)


def _mlp(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    if estimator.early_stopping:
        got = "early_stopping=True, which kept some of these records out of training"
        raise fail("estimator", "a fit on every record", got, "fit with early_stopping=False")
    weight, bias = estimator.coefs_[-1].T, estimator.intercepts_[-1]
    if isinstance(estimator, MLPRegressor):
        if getattr(estimator, "loss", "squared_error") != "squared_error":
            raise fail("estimator", "loss='squared_error'", f"loss={estimator.loss!r}", "fit with the squared loss")
        # Not 2·alpha·outputs: the loss MLPRegressor reports is a mean over outputs, the gradient it follows a sum.
        loss, targets, factor = "squared", y, 2.0
    else:
        multi_label = y.ndim == 2
        loss, factor = "binary_cross_entropy" if multi_label else "cross_entropy", 1.0
        targets = y if multi_label else _class_indices(y, estimator.classes_)
    return {
        "features": _last_hidden_layer(estimator, X),
        "weight": np.ascontiguousarray(weight),
        "bias": bias,
        "intercept": True,
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
    sizes = [size] * (n // size) + ([n % size] if n % size else [])
    return n * float(np.mean([1.0 / s for s in sizes]))


def _last_hidden_layer(estimator: Any, X: Any) -> np.ndarray:
    layers = list(zip(estimator.coefs_[:-1], estimator.intercepts_[:-1], strict=True))
    if not layers:
        return _dense(X)
    activate = ACTIVATIONS[estimator.activation]
    hidden = np.empty((X.shape[0], layers[-1][0].shape[1]), dtype=layers[-1][0].dtype)
    for start in range(0, X.shape[0], ROWS_PER_CHECK):
        block = X[start : start + ROWS_PER_CHECK]
        for coefs, intercepts in layers:
            block = activate(block @ coefs + intercepts)
        hidden[start : start + ROWS_PER_CHECK] = block
    return hidden


def _class_indices(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    if y.ndim != 1:
        raise fail("y", "one label a record", f"shape {y.shape}", "pass the y the estimator was fitted with")
    known = {label: index for index, label in enumerate(classes.tolist())}
    labels, inverse = np.unique(y, return_inverse=True)
    unknown = [at for at, label in enumerate(labels.tolist()) if label not in known]
    if unknown:
        row = int(np.flatnonzero(np.isin(inverse, unknown))[0])
        got = f"another label first in row {row}"
        raise fail("y", "labels the estimator was fitted with", got, "pass the y the estimator was fitted with")
    return np.array([known[label] for label in labels.tolist()])[inverse]


def _one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes)[labels]


def _times(sample_weight: Any, factor: np.ndarray) -> np.ndarray:
    return factor if sample_weight is None else as_tensor("sample_weight", sample_weight).numpy() * factor


_READERS: dict[type, Callable[[Any, Any, np.ndarray, Any], dict[str, Any]]] = {
    LinearRegression: _least_squares,
    Ridge: _least_squares,
    LogisticRegression: _logistic_regression,
    RidgeClassifier: _ridge_classifier,
    MLPClassifier: _mlp,
    MLPRegressor: _mlp,
}
