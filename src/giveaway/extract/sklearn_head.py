"""from_sklearn: the linear head of a fitted scikit-learn estimator, or what any other one predicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.utils.validation import check_is_fitted

from giveaway.checks import as_tensor, fail
from giveaway.extract.linear_outputs import linear_outputs
from giveaway.extract.sklearn_black_box import predictions, predicts
from giveaway.extract.sklearn_inputs import checked_inputs, last_step, records_of
from giveaway.extract.sklearn_linear import least_squares, logistic_regression, ridge_classifier
from giveaway.extract.sklearn_mlp import last_layer
from giveaway.records.head import Head

READERS: dict[type, Callable[[Any, Any, np.ndarray, Any], dict[str, Any]]] = {
    LinearRegression: least_squares,
    Ridge: least_squares,
    LogisticRegression: logistic_regression,
    RidgeClassifier: ridge_classifier,
    MLPClassifier: last_layer,
    MLPRegressor: last_layer,
}


def from_sklearn(
    estimator: Any, X: Any, y: Any, *, sample_weight: Any = None, ids: Any = None, groups: Any = None
) -> Head:
    """The head of a fitted linear model, of the last layer of an MLP, or of a Pipeline that ends in one.

    Any other classifier with predict_proba and any other regressor (boosted trees, forests, nearest neighbours) gives a
    black box: outputs are logarithms of its probabilities, or its values. `X` is kept as the head's inputs, unless it
    is sparse or holds numbers that are not finite.

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
    Head(n=150, d=4, m=3, loss='cross_entropy', l2=0.5, inputs=(4,))
    """
    inputs = records_of(X)
    final, X = last_step(estimator, X)
    read = READERS.get(type(final))
    if read is None and predicts(final):
        return Head(ids=ids, groups=groups, inputs=inputs, **predictions(final, X, y, sample_weight))
    if read is None:
        best = hasattr(final, "best_estimator_")
        raise fail(
            "estimator",
            "one of " + ", ".join(kind.__name__ for kind in READERS) + ", or a Pipeline ending in one",
            type(final).__name__,
            "pass its best_estimator_" if best else "for another model build Head (a black box: features=None)",
        )
    try:
        check_is_fitted(final)
    except NotFittedError as error:
        raise fail("estimator", "a fitted estimator", f"an unfitted {type(final).__name__}", "fit it first") from error
    fields = read(final, *checked_inputs(final, X, y), sample_weight)
    intercept = fields["bias"] is not None
    for name in ("features", "weight", "bias") if intercept else ("features", "weight"):
        fields[name] = as_tensor(name, fields[name])
    outputs = linear_outputs(fields["features"], fields["weight"], fields["bias"])
    return Head(outputs=outputs, intercept=intercept, ids=ids, groups=groups, inputs=inputs, **fields)
