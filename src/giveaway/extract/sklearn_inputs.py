"""X and y as the last step of a scikit-learn estimator saw them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline

from giveaway.checks import fail
from giveaway.extract.reading import harmless_line

DENSE_BYTES = 2**30  # a sparse X is made dense up to this size: a head's features are dense


def last_step(estimator: Any, X: Any) -> tuple[Any, Any]:
    """The final estimator of (nested) pipelines, and X as it reaches it."""
    while isinstance(estimator, Pipeline):
        if len(estimator.steps) > 1:
            try:
                X = estimator[:-1].transform(X)
            except NotFittedError as error:
                raise fail("estimator", "a fitted estimator", "an unfitted Pipeline", "fit it first") from error
            except ValueError as error:
                got = harmless_line(error)
                raise fail("X", "inputs the pipeline accepts", got, "pass X as it was given to fit") from error
        estimator = estimator.steps[-1][1]
    return estimator, X


def checked_inputs(estimator: Any, X: Any, y: Any) -> tuple[Any, np.ndarray]:
    """X as numbers (sparse if it was) and y with one row a record, in the shapes `estimator` was fitted with."""
    X = X.tocsr() if hasattr(X, "tocsr") else np.asarray(X)
    if X.ndim != 2:
        raise fail("X", "shape (records, features)", f"shape {X.shape}", "pass the X the estimator was fitted with")
    y = checked_targets(y, X.shape[0])
    if X.shape[1] != estimator.n_features_in_:
        expected = f"{estimator.n_features_in_} columns, as the estimator was fitted with"
        raise fail("X", expected, f"{X.shape[1]} columns", "pass the X the estimator was fitted with")
    if X.dtype.kind not in "fiub":
        try:
            X = X.astype(np.float64)
        except (TypeError, ValueError) as error:
            remedy = "encode the columns as numbers, or pass the whole Pipeline"
            raise fail("X", "an array of numbers", f"dtype {X.dtype}", remedy) from error
    return X, y


def checked_targets(y: Any, n: int) -> np.ndarray:
    """y with one row a record, a single column as (n,)."""
    y = np.asarray(y)
    if y.ndim == 0 or len(y) != n:
        raise fail("y", f"{n} rows, one a row of X", f"shape {y.shape}", "pass the X and y of one data set")
    return y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y


def records_of(X: Any) -> Any:
    """X as the records themselves; None for a sparse X, for other things, and for numbers with gaps."""
    if hasattr(X, "tocsr"):
        return None
    if hasattr(X, "iloc") or (isinstance(X, list) and all(isinstance(row, str) for row in X)):
        return X
    try:
        array = np.asarray(X)
    except ValueError:  # rows of several lengths, which the estimator will refuse
        return None
    if array.dtype.kind not in "fiubUO" or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        return None
    return array


def dense(X: Any) -> np.ndarray:
    """X as an array, where a sparse one is small enough for that."""
    if isinstance(X, np.ndarray):
        return X
    size = X.shape[0] * X.shape[1] * X.dtype.itemsize
    if size > DENSE_BYTES:
        got = f"a sparse {X.shape[0]} by {X.shape[1]} matrix, {size / 2**30:.1f} GiB dense"
        raise fail("X", f"at most {DENSE_BYTES / 2**30:g} GiB of features", got, "reduce its columns (TruncatedSVD)")
    return X.toarray()


def class_indices(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The position of each label of y in `classes`."""
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


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """(n, classes) with a one at each record's class index."""
    return np.eye(classes)[labels]
