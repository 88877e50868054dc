"""Linear scikit-learn models: coefficients, targets and penalty as the fields of a Head."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import compute_sample_weight

from giveaway.checks import as_tensor, check_shape, fail
from giveaway.extract.sklearn_inputs import class_indices, dense, one_hot


def least_squares(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    """LinearRegression, and Ridge: its penalty alpha·‖w‖² is l2 = 2·alpha."""
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


def ridge_classifier(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    """RidgeClassifier: ridge regression on targets of −1 and 1, one column for two classes."""
    if y.ndim == 2:
        targets = np.where(y > 0, 1.0, -1.0)
    else:
        labels = class_indices(y, estimator.classes_)
        targets = 2.0 * one_hot(labels, len(estimator.classes_)) - 1.0
        if len(estimator.classes_) == 2:
            targets = targets[:, 1]
    if estimator.class_weight:
        sample_weight = _times(sample_weight, compute_sample_weight(estimator.class_weight, y))
    return least_squares(estimator, X, targets, sample_weight)


def logistic_regression(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any) -> dict[str, Any]:
    """LogisticRegression: one logit for two classes, softmax for more, or one binary head a class (one-vs-rest)."""
    labels = class_indices(y, estimator.classes_)
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
    if estimator.solver == "liblinear" and fields["bias"] is not None and estimator.intercept_scaling != 1:
        # liblinear penalizes bias / scaling: a bias of its own only as the weight of a constant feature.
        scale = float(estimator.intercept_scaling)
        fields["features"] = np.column_stack([fields["features"], np.full(X.shape[0], scale)])
        fields["weight"] = np.column_stack([fields["weight"], fields["bias"] / scale])
        fields["bias"] = None
    return fields | {
        "targets": one_hot(labels, len(estimator.classes_)) if one_vs_rest else labels,
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


def _linear(estimator: Any, X: Any) -> dict[str, Any]:
    weight = np.atleast_2d(estimator.coef_)
    bias = np.broadcast_to(np.ravel(estimator.intercept_), len(weight)).copy() if estimator.fit_intercept else None
    return {"features": dense(X), "weight": weight, "bias": bias}


def _times(sample_weight: Any, factor: np.ndarray) -> np.ndarray:
    if sample_weight is None:
        return factor
    weight = as_tensor("sample_weight", sample_weight)
    check_shape("sample_weight", weight, (len(factor),), f"({len(factor)},), one weight a record")
    return weight.numpy() * factor
