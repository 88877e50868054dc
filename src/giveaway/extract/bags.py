"""Out-of-bag predictions: what those estimators of a bag say of a record that never saw it, or never saw its person."""

from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
from sklearn import ensemble
from sklearn.base import is_classifier
from sklearn.tree import BaseDecisionTree
from sklearn.utils import check_array

from giveaway.checks import ROWS_PER_CHECK, check_names, fail

FORESTS: tuple[Any, ...] = (ensemble.RandomForestClassifier, ensemble.RandomForestRegressor)
FORESTS += (ensemble.ExtraTreesClassifier, ensemble.ExtraTreesRegressor)
BAGGING = (ensemble.BaggingClassifier, ensemble.BaggingRegressor)
OF_THE_FIT = "pass X and sample_weight of the fit, in its order, or build Head(None, outputs, ...) without out_of_bag"


def out_of_bag(
    estimator: Any, X: Any, outputs: np.ndarray, *, sample_weight: Any = None, groups: Any = None
) -> np.ndarray | None:
    """Average what the estimators of a fitted bag say of the records (with `groups`, people) that they never saw, in
    the shape of `outputs`, NaN where all saw them; None for no bag, and where all saw everybody. `X` and
    `sample_weight` are those of the fit, in its order: leaves that hold as many records, or an oob_score repeated,
    prove it."""
    if type(estimator) not in FORESTS + BAGGING or (not estimator.bootstrap and type(estimator) in FORESTS):
        return None
    n, shape = len(outputs), outputs.shape[1:]
    if estimator._n_samples != n:
        expected = f"the {estimator._n_samples} records that the estimator was fitted on"
        raise fail("X", expected, f"{n} records", OF_THE_FIT)
    dtype = np.float32 if type(estimator) in FORESTS else None  # what trees compare with their thresholds
    rows = check_array(X, accept_sparse="csr", dtype=dtype, ensure_all_finite=False)
    person = np.arange(n)
    if groups is not None:
        person = np.unique(check_names("groups", groups, n, unique=False), return_inverse=True)[1]
    counted = np.ones(n, dtype=bool) if sample_weight is None else np.asarray(sample_weight) > 0
    total, voices = np.zeros(outputs.shape), np.zeros(n, dtype=np.int64)
    for place, (one, drawn, columns) in enumerate(_estimators_of(estimator)):
        saw, met = np.zeros((2, n), dtype=bool)
        saw[drawn] = counted[drawn]
        met[person[saw]] = True
        left_out = np.flatnonzero(~met[person])
        given = rows if columns is None else rows[:, columns]
        if isinstance(one, BaseDecisionTree):
            leaves = one.apply(given)
            check_leaves(one, leaves[saw], place)
            values = _in_columns(one, one.tree_.value[:, 0], shape) if is_classifier(one) else one.tree_.value[:, :, 0]
            total[left_out] += values[leaves[left_out]].reshape(-1, *shape)
        else:
            for start in range(0, len(left_out), ROWS_PER_CHECK):
                part = left_out[start : start + ROWS_PER_CHECK]
                total[part] += _said(one, given[part], shape)
        voices[left_out] += 1
    total[voices == 0] = np.nan
    total /= np.maximum(voices, 1).reshape(-1, *(1 for _ in shape))
    own = getattr(estimator, "oob_decision_function_", getattr(estimator, "oob_prediction_", None))
    if groups is None and own is not None and not estimator.warm_start:  # which keeps what an earlier fit found
        known = np.isfinite(total).reshape(n, -1).all(axis=1)
        if own.shape != total.shape or not np.allclose(own[known], total[known], rtol=1e-5, atol=1e-6):
            got = "others, or another order (the estimator's own out-of-bag predictions differ)"
            raise fail("X", "the records that the estimator was fitted on", got, OF_THE_FIT)
    return total if voices.any() else None


def _estimators_of(bag: Any) -> Iterator[tuple[Any, np.ndarray, np.ndarray | None]]:
    """Yield each estimator, the rows drawn for it, and its columns where it has not all of them in their order."""
    if type(bag) in FORESTS:
        one = copy(bag)  # the rows of one tree at a time, which the forest draws again from the tree's seed
        for tree in bag.estimators_:
            one.estimators_ = [tree]
            yield tree, one.estimators_samples_[0], None
        return
    samples, features = bag.estimators_samples_, bag.estimators_features_
    if len(samples) != len(bag.estimators_):
        got = f"the draws of {len(samples)} of its {len(bag.estimators_)} estimators, as after warm_start"
        raise fail("estimator", "a bag that knows what each of its estimators saw", got, "fit it at once")
    every = np.arange(bag.n_features_in_)
    for one, drawn, columns in zip(bag.estimators_, samples, features, strict=True):
        yield one, drawn, None if np.array_equal(columns, every) else columns


def check_leaves(tree: BaseDecisionTree, leaves: np.ndarray, place: int) -> None:
    """Refuse records that are not the ones which this tree grew on: some leaf holds more or fewer of them."""
    nodes = tree.tree_
    held = np.bincount(leaves, minlength=nodes.node_count)
    if not np.array_equal(held, np.where(nodes.children_left < 0, nodes.n_node_samples, 0)):
        got = f"others, or another order (tree {place} has other records in its leaves)"
        raise fail("X", "the records that the estimator was fitted on", got, OF_THE_FIT)


def _said(one: Any, rows: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return probabilities, one's votes where it has none, or values."""
    if hasattr(one, "predict_proba"):
        return _in_columns(one, one.predict_proba(rows), shape)
    values = np.asarray(one.predict(rows))
    return np.eye(shape[0])[values.astype(int)] if is_classifier(one) else values.reshape(-1, *shape)


def _in_columns(one: Any, probabilities: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a column for each class of the bag, of which one estimator may have seen only some."""
    placed = np.zeros((len(probabilities), *shape))
    placed[:, one.classes_.astype(int)] = probabilities
    return placed
