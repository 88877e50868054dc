"""Estimators that are fitted again: what a search settled on, clones of it, and what a fitted one says of records."""

import hashlib
import inspect
from typing import Any

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.base import clone
from sklearn.pipeline import Pipeline

from giveaway.extract.sklearn_head import LEAST_PROBABILITY, class_indices
from giveaway.extract.sklearn_unseen import rows_of
from giveaway.storage.arrays import digest_of

SAME = 1e-6  # between predict_proba and the softmax of a decision function


def fitted_clone(
    estimator: Any, X: Any, y: np.ndarray, rows: np.ndarray, seed: int, sample_weight: np.ndarray | None = None
) -> Any:
    """Fit a clone of the estimator to some rows of X and y, with every random state set from the seed."""
    made = clone(estimator)
    states = [name for name in made.get_params() if name == "random_state" or name.endswith("__random_state")]
    made.set_params(**dict.fromkeys(states, seed >> 1))  # some libraries take 31 bits
    weights = {} if sample_weight is None else {f"{last_step(made)[1]}sample_weight": sample_weight}
    return made.fit(rows_of(X, rows), y[rows], **weights)


def last_step(estimator: Any) -> tuple[Any, str]:
    """Return the step of a Pipeline that predicts, however nested, and what its parameters have before their names."""
    prefix = ""
    while isinstance(estimator, Pipeline):
        prefix, estimator = f"{prefix}{estimator.steps[-1][0]}__", estimator.steps[-1][1]
    return estimator, prefix


def classifier_outputs(model: Any, X: Any, classes: np.ndarray) -> np.ndarray:
    """Return what a fitted classifier says of X, a column a class; a class that it never met gets next to nothing.

    Probabilities, or a decision function: where there is none, or its softmax is the probabilities, which are rounded.
    """
    decided = np.asarray(model.decision_function(X)) if hasattr(model, "decision_function") else None
    outputs = np.asarray(model.predict_proba(X)) if hasattr(model, "predict_proba") else None
    if decided is not None and (
        outputs is None or np.allclose(softmax(_columns(decided), axis=1), outputs, rtol=0, atol=SAME)
    ):
        outputs = decided
    if outputs is None:
        return np.asarray(model.predict(X))
    known = np.asarray(getattr(model, "classes_", classes))
    if np.array_equal(known, classes):
        return outputs
    outputs, places = _columns(outputs), class_indices(known, classes)
    least = 0.0 if outputs.min() >= 0 else logsumexp(outputs, axis=1)[:, None] + np.log(LEAST_PROBABILITY)
    filled = np.full((len(outputs), len(classes)), least, dtype=outputs.dtype)
    filled[:, places] = outputs
    return filled


def settings_of(estimator: Any) -> dict[str, str]:
    """Return the settings of an estimator that change what it learns, in words that another process would use too."""
    settings = {"type": type(estimator).__qualname__}
    for name, value in estimator.get_params(deep=True).items():
        if not name.endswith(("random_state", "n_jobs", "verbose")):
            settings[name] = _in_words(value)
    return settings


def source_digest(function: Any) -> str | None:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    try:
        return "sha256 " + hashlib.sha256(inspect.getsource(inspect.unwrap(function)).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def data_digest(value: Any) -> str:
    if hasattr(value, "tocsr"):
        sparse = value.tocsr()
        return "sha256 " + digest_of({name: getattr(sparse, name) for name in ("data", "indices", "indptr")})
    return "sha256 " + digest_of({"": value})


def _in_words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return data_digest(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_in_words, value))}]"
    if inspect.isroutine(value):
        return f"{value.__qualname__} {source_digest(value)}"
    text = repr(value)  # of an estimator its class: its own settings follow
    return type(value).__qualname__ if hasattr(value, "get_params") or " at 0x" in text else text


def _columns(outputs: np.ndarray) -> np.ndarray:
    """Return one decision value a record as the logits of two classes."""
    return np.stack([np.zeros_like(outputs), outputs], axis=1) if outputs.ndim == 1 else outputs
