"""Scikit-learn models without a linear head: what they predict, as the fields of a black-box Head."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError

from giveaway.checks import fail
from giveaway.extract.reading import harmless_line
from giveaway.extract.sklearn_inputs import checked_targets, class_indices

LEAST_PROBABILITY = 1e-12


def predicts(estimator: Any) -> bool:
    """Whether `estimator` gives probabilities of classes, or values, and has no coefficients or search of its own.

    What is linear is not taken for a black box, which would hide most of its scores.
    """
    if hasattr(estimator, "coef_") or hasattr(estimator, "best_estimator_"):
        return False
    classifies = _is_a(ClassifierMixin, "classifier", estimator) and hasattr(estimator, "predict_proba")
    return classifies or _is_a(RegressorMixin, "regressor", estimator)


def predictions(estimator: Any, X: Any, y: Any, sample_weight: Any) -> dict[str, Any]:
    """Logarithms of the probabilities, in the order of classes_, with class indices; or values with squared loss."""
    probable = hasattr(estimator, "predict_proba")
    try:
        outputs = np.asarray(estimator.predict_proba(X) if probable else estimator.predict(X))
    except NotFittedError as error:
        got = f"an unfitted {type(estimator).__name__}"
        raise fail("estimator", "a fitted estimator", got, "fit it first") from error
    except ValueError as error:
        got, remedy = harmless_line(error), "pass the X the estimator was fitted with"
        raise fail("X", "inputs the estimator accepts", got, remedy) from error
    if _held_out(estimator):
        got = "early stopping on a validation set, which kept some of these records out of training"
        raise fail("estimator", "a fit on every record", got, "fit without early stopping")
    fields: dict[str, Any] = {"features": None, "sample_weight": sample_weight}
    if not probable:
        return fields | {"outputs": outputs, "targets": checked_targets(y, len(outputs)), "loss": "squared"}
    classes: Any = getattr(estimator, "classes_", None)
    if outputs.ndim != 2 or np.ndim(classes) != 1:
        got, remedy = f"{type(estimator).__name__} with another kind of outputs", "audit one label at a time"
        raise fail("estimator", "a classifier of one label a record", got, remedy)
    targets = class_indices(checked_targets(y, len(outputs)), np.asarray(classes))
    logits = np.log(np.clip(outputs, LEAST_PROBABILITY, None))
    return fields | {"outputs": logits, "targets": targets, "loss": "cross_entropy"}


def _is_a(mixin: type, kind: str, estimator: Any) -> bool:
    # the older mark as well: not every library that follows scikit-learn's interface derives from its classes
    return isinstance(estimator, mixin) or getattr(estimator, "_estimator_type", None) == kind


def _held_out(estimator: Any) -> bool:
    """Whether training stopped early by records that it did not train on."""
    if not getattr(estimator, "validation_fraction", None):
        return False
    patient = getattr(estimator, "n_iter_no_change", None) is not None  # GradientBoosting's only switch
    return bool(getattr(estimator, "do_early_stopping_", getattr(estimator, "early_stopping", patient)))
