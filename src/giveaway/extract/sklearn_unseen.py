"""Records that a fitted scikit-learn model, or a part of it, never saw: out of the bag, or kept out by early stopping.

Either is proved: leaves hold as many records, an out-of-bag score or the score of the validation set is repeated.
"""

from numbers import Integral
from typing import Any

import numpy as np
from sklearn import ensemble
from sklearn.base import clone, is_classifier
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.metrics import check_scoring, log_loss, mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.tree import BaseDecisionTree
from sklearn.utils import check_array, check_random_state, compute_sample_weight

from giveaway.checks import check_names, fail

FORESTS: tuple[Any, ...] = (ensemble.RandomForestClassifier, ensemble.RandomForestRegressor)
FORESTS += (ensemble.ExtraTreesClassifier, ensemble.ExtraTreesRegressor)
BAGGING = (ensemble.BaggingClassifier, ensemble.BaggingRegressor)
HISTOGRAMS = (ensemble.HistGradientBoostingClassifier, ensemble.HistGradientBoostingRegressor)
BOOSTED = (ensemble.GradientBoostingClassifier, ensemble.GradientBoostingRegressor)
NETWORKS, LINEAR = (MLPClassifier, MLPRegressor), (SGDClassifier, SGDRegressor)
OF_THE_FIT = "pass X and sample_weight of the fit, in its order, or build Head(None, outputs, ...) without out_of_bag"
SAME = 1e-6  # between what the fit noted of the records that it kept out and what the model says of them now


def out_of_bag(
    estimator: Any, X: Any, outputs: np.ndarray, *, sample_weight: Any = None, groups: Any = None
) -> np.ndarray | None:
    """Average what the estimators of a fitted bag say of the records (with `groups`, people) that they never saw, in
    the shape of `outputs`, NaN where all saw them; None for no bag, and where all saw everybody."""
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
    samples = estimator.estimators_samples_
    if len(samples) != len(estimator.estimators_):
        got = f"the draws of {len(samples)} of its {len(estimator.estimators_)} estimators, as after warm_start"
        raise fail("estimator", "a bag that knows what each of its estimators saw", got, "fit it at once")
    every = np.arange(estimator.n_features_in_)
    features = getattr(estimator, "estimators_features_", [every] * len(samples))
    for place, (one, drawn, columns) in enumerate(zip(estimator.estimators_, samples, features, strict=True)):
        saw, met = np.zeros((2, n), dtype=bool)
        saw[drawn] = counted[drawn]
        met[person[saw]] = True
        left_out = np.flatnonzero(~met[person])
        given = rows if np.array_equal(columns, every) else rows[:, columns]
        if isinstance(one, BaseDecisionTree):
            check_leaves(one, one.apply(given[saw]), place)
        if not len(left_out):
            continue
        if hasattr(one, "predict_proba"):
            total[np.ix_(left_out, one.classes_.astype(int))] += one.predict_proba(given[left_out])
        else:
            values = np.asarray(one.predict(given[left_out]))
            total[left_out] += np.eye(*shape)[values.astype(int)] if is_classifier(one) else values.reshape(-1, *shape)
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


def check_leaves(tree: BaseDecisionTree, leaves: np.ndarray, place: int) -> None:
    """Refuse records that are not the ones which this tree grew on: some leaf holds more or fewer of them."""
    nodes = tree.tree_
    held = np.bincount(leaves, minlength=nodes.node_count)
    if not np.array_equal(held, np.where(nodes.children_left < 0, nodes.n_node_samples, 0)):
        got = f"others, or another order (tree {place} has other records in its leaves)"
        raise fail("X", "the records that the estimator was fitted on", got, OF_THE_FIT)


def kept_out(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any = None) -> np.ndarray | None:
    """Return the row numbers that the fit kept out of training to know when to stop; None where it kept none.

    The fitted estimator must agree that it kept these: by the score that it noted of them (HistGradientBoosting, MLP),
    by its first tree (GradientBoosting), or by being fitted again with the same coefficients (SGD, which is cheap).
    What an MLPClassifier notes is an accuracy, which another order of the same records may share.
    """
    patient = getattr(estimator, "n_iter_no_change", None) is not None  # GradientBoosting's only switch
    stopping = getattr(estimator, "do_early_stopping_", getattr(estimator, "early_stopping", patient))
    never = getattr(estimator, "solver", None) == "lbfgs"  # of networks
    if never or not (getattr(estimator, "validation_fraction", None) and stopping):
        return None
    seed = getattr(estimator, "_random_seed", getattr(estimator, "random_state", None))  # drawn, or given
    unsure = {
        f"by {type(estimator).__name__}": not isinstance(estimator, HISTOGRAMS + BOOSTED + NETWORKS + LINEAR),
        "without a whole number as random_state": not isinstance(seed, Integral),
        "with warm_start": getattr(estimator, "warm_start", False),
        "with subsample below 1": isinstance(estimator, BOOSTED) and estimator.subsample < 1,
    }
    if reasons := list(filter(unsure.get, unsure)):
        expected = "a fit on every record, or a validation split that can be drawn again"
        remedy = "fit with random_state=0, or without early stopping"
        raise fail("estimator", expected, f"early stopping {reasons[0]}", remedy)
    state: Any = seed
    stratified = is_classifier(estimator)
    if isinstance(estimator, NETWORKS):
        state = check_random_state(seed)
        state.random_sample(sum(array.size for array in (*estimator.coefs_, *estimator.intercepts_)))  # initial weights
        stratified = stratified and estimator.n_outputs_ == 1
    drawn = {"test_size": estimator.validation_fraction, "random_state": state, "stratify": y if stratified else None}
    trained, kept = train_test_split(np.arange(len(y)), **drawn)
    if not _agrees(estimator, X, y, sample_weight, trained, kept):
        got = "others, or another order (by the validation split of early stopping)"
        raise fail("X", "the records of the fit, in its order", got, "pass X, y and sample_weight of the fit")
    return np.sort(kept)


def rows_of(X: Any, rows: np.ndarray) -> Any:
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    if isinstance(X, list):
        return [X[row] for row in rows.tolist()]
    return (X.tocsr() if hasattr(X, "tocsr") else np.asarray(X))[rows]


def _agrees(estimator: Any, X: Any, y: np.ndarray, sample_weight: Any, trained: np.ndarray, kept: np.ndarray) -> bool:
    weight = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if isinstance(estimator, LINEAR):
        again = clone(estimator).fit(X, y, sample_weight=weight)
        return np.allclose(again.coef_, estimator.coef_, rtol=SAME, atol=SAME * np.abs(estimator.coef_).max())
    if isinstance(estimator, BOOSTED):
        tree, counted = estimator.estimators_[0, 0], trained if weight is None else trained[weight[trained] > 0]
        check_leaves(tree, tree.apply(check_array(rows_of(X, counted), accept_sparse="csr")), 0)
        return True
    some, targets = rows_of(X, kept), y[kept]
    if getattr(estimator, "class_weight", None) is not None:
        weight = compute_sample_weight(estimator.class_weight, y) * (1.0 if weight is None else weight)
    weights = {} if weight is None else {"sample_weight": weight[kept]}
    if isinstance(estimator, NETWORKS):
        return bool(np.isclose(estimator.score(some, targets, **weights), estimator.best_validation_score_, SAME, SAME))
    if estimator.scoring != "loss":
        now = check_scoring(estimator, estimator.scoring)(estimator, some, targets, **weights)
    elif is_classifier(estimator):
        now = -log_loss(targets, estimator.predict_proba(some), labels=estimator.classes_, **weights)
    elif estimator.loss == "squared_error":
        now = -0.5 * mean_squared_error(targets, estimator.predict(some), **weights)
    else:
        got, remedy = f"early stopping on loss={estimator.loss!r}", "fit without it, or with a scoring by name"
        raise fail("estimator", "early stopping on the squared error or a named scoring", got, remedy)
    return bool(np.isclose(now, estimator.validation_score_[-1], rtol=SAME, atol=SAME))
