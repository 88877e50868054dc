"""from_sklearn: the linear head of a fitted scikit-learn estimator, one function a kind, or another's predictions."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn import linear_model, neural_network
from sklearn.base import ClassifierMixin, RegressorMixin, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils import check_array, compute_sample_weight
from sklearn.utils.validation import check_is_fitted

from giveaway.checks import ROWS_PER_CHECK, InputError, as_tensor, check_shape, errors_about, fail
from giveaway.extract.sklearn_unseen import NETWORKS, kept_out, out_of_bag, rows_of
from giveaway.records.examples import check_inputs
from giveaway.records.head import Head
from giveaway.records.rows import linear_outputs

LEAST_PROBABILITY = 1e-12
HARMLESS = re.compile(r"X has \d+ features|Input (X )?contains (NaN|infinity)|Expected 2D array|Found array with")
SETTING = re.compile(r"The '(\w+)' parameter of \w+ must be (.+)\. Got (.+) instead")
ACCEPTED = "inputs the estimator accepts"
REFIT = "pass the X the estimator was fitted with"
DENSE_BYTES = 2**30  # a sparse X is made dense up to this size: a head's features are dense
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "tanh": np.tanh,
    "logistic": expit,
}


def from_sklearn(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    ids: Any = None,
    groups: Any = None,
    held_out: tuple[Any, Any] | None = None,
) -> Head:
    """Return the head of a fitted linear model, of the last layer of an MLP, or of a Pipeline that ends in one.

    Any other classifier with predict_proba and any other regressor (boosted trees, forests, nearest neighbours) gives a
    black box: outputs are logarithms of its probabilities, or its values. `X` is kept as the head's inputs, unless it
    is sparse or holds numbers that are not finite. A random forest, extra trees with bootstrap and bagging also tell,
    as `out_of_bag`, what those of their estimators say of a record that never saw it, or with groups its person.

    `X`, `y` and `sample_weight` are what the estimator was fitted with, in any fixed order (a bag: in the order of the
    fit, since it knows by row numbers what each estimator saw; another order is refused); `l2` follows from the
    estimator: 2·alpha for Ridge and RidgeClassifier, 1/C for LogisticRegression, alpha (2·alpha for regression) for
    an MLP, times records over batch size unless solver="lbfgs". Only liblinear penalizes the intercept.
    alpha times records (twice that for regression) for SGD with the logistic or squared loss. Class weights become
    sample weights. Records that early stopping kept out of the fit are told by its random_state and count as held out,
    unless `held_out` is given; rows keep their numbers as ids. X and y are then in the order of the fit.
    A sparse X is made dense where that takes at most 1 GiB, else refused.
    `held_out` is (X, y) of records that the estimator was not fitted with, such as a validation set.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> from_sklearn(LogisticRegression(C=2.0, max_iter=1000).fit(X, y), X, y)
    Head(n=150, d=4, m=3, loss='cross_entropy', l2=0.5, inputs=(4,))
    """
    if isinstance(estimator, type) or not hasattr(estimator, "predict"):
        got = f"the class {estimator.__name__}" if isinstance(estimator, type) else type(estimator).__name__
        remedy = "pass the object that was fitted; load it if it is in a file"
        raise fail("estimator", "a fitted estimator", got, remedy)
    whole, given = estimator, X
    estimator, X = last_step(whole, X)
    names: dict[str, Any] = {"model": type(estimator).__name__}
    black_box = type(estimator) not in FIELDS
    if black_box and not _is_black_box(estimator):
        expected = "one of " + ", ".join(kind.__name__ for kind in FIELDS) + ", or a Pipeline ending in one"
        remedy = "for another model build Head (a black box: features=None)"
        if is_classifier(estimator) and not hasattr(estimator, "coef_"):
            expected = "a classifier with predict_proba"
            remedy = "fit with voting='soft' or probability=True, or wrap it in CalibratedClassifierCV"
        raise fail("estimator", expected, type(estimator).__name__, remedy)
    with refusals(estimator):
        if not black_box or hasattr(estimator, "validation_fraction"):
            check_is_fitted(estimator)
    y = checked_targets(y, X.shape[0] if hasattr(X, "shape") else len(X))
    if (kept := kept_out(estimator, X, y, sample_weight)) is not None:
        n, rows = len(y), np.setdiff1d(np.arange(len(y)), kept)
        held_out = held_out or (rows_of(given, kept), y[kept])
        names["rows_proved_by"] = f"the validation split of early stopping, drawn again: {len(kept)} of {n} held out"
        beside = {"ids": np.arange(n) if ids is None else ids, "groups": groups, "sample_weight": sample_weight}
        for name, value in beside.items():
            if value is not None and np.shape(value) != (n,):
                got = f"shape {np.shape(value)}"
                raise fail(name, f"{n} of them, one a row of X", got, "pass one a record of the fit")
        ids, groups, sample_weight = (None if v is None else np.asarray(v)[rows] for v in beside.values())
        given, X, y = rows_of(given, rows), rows_of(X, rows), y[rows]
    with suppress(InputError):  # sparse, with gaps, or other things than numbers and text
        names["inputs"] = check_inputs(given, len(y))
    if held_out is not None:
        names["held_out"] = _held_out(whole, held_out)
    fields = _fields(estimator, X, y, sample_weight)
    left_out: Any = out_of_bag(estimator, X, fields["outputs"], sample_weight=sample_weight, groups=groups)
    if fields["loss"] == "cross_entropy":
        left_out = None if left_out is None else np.log(np.clip(left_out, LEAST_PROBABILITY, None))
        names["class_names"] = _class_names(estimator)
    return Head(ids=ids, groups=groups, out_of_bag=left_out, **names, **fields)


def _fields(estimator: Any, X: Any, y: Any, sample_weight: Any) -> dict[str, Any]:
    """Return the fields of a Head; X, sparse if it was, and y have the shapes that `estimator` was fitted with."""
    if type(estimator) not in FIELDS:
        return _predictions(estimator, X, y) | {"features": None, "sample_weight": sample_weight}
    with refusals(estimator):
        X = check_array(X, accept_sparse="csr", ensure_all_finite=False)
    y = checked_targets(y, X.shape[0])
    if X.shape[1] != estimator.n_features_in_:
        expected = f"{estimator.n_features_in_} columns, as the estimator was fitted with"
        raise fail("X", expected, f"{X.shape[1]} columns", REFIT)
    fields = {"penalize_intercept": False} | FIELDS[type(estimator)](estimator, y)
    fields["sample_weight"] = _weighted(estimator, y, sample_weight)
    parts = zip(("features", "weight", "bias"), _layer(estimator, X), strict=True)
    layer: dict[str, Any] = {name: None if part is None else as_tensor(name, part) for name, part in parts}
    return fields | layer | {"outputs": linear_outputs(**layer), "intercept": layer["bias"] is not None}


def settled(estimator: Any) -> Any:
    """Return the estimator with the best one found in place of a search, also where that is the last step."""
    if hasattr(estimator, "best_estimator_"):
        return settled(estimator.best_estimator_)
    if all(hasattr(estimator, name) for name in ("estimator", "refit", "cv", "scoring")):
        got = f"a {type(estimator).__name__} without a best estimator"
        raise fail("estimator", "a search that was fitted with refit", got, "fit it first: its best settings are used")
    if not isinstance(estimator, Pipeline):
        return estimator
    name, last = estimator.steps[-1]
    best = settled(last)
    return estimator if best is last else Pipeline([*estimator.steps[:-1], (name, best)])


def last_step(estimator: Any, X: Any) -> tuple[Any, Any]:
    """Return the last estimator of nested pipelines and searches, and what it is given for X."""
    estimator = settled(estimator)
    while isinstance(estimator, Pipeline):
        if len(estimator.steps) > 1:
            with refusals(estimator):
                X = estimator[:-1].transform(X)
        estimator = estimator.steps[-1][1]
    return estimator, X


def _held_out(estimator: Any, records: Any) -> tuple[Any, Any]:
    """Return what the estimator says of records that it was not fitted with, in the units of a head's outputs."""
    if not isinstance(records, tuple | list) or len(records) != 2:
        raise fail("held_out", "(X, y) of records held out", f"a {type(records).__name__}", "pass both, as X and y are")
    with errors_about("held_out "):
        fields = _fields(*last_step(estimator, records[0]), records[1], None)
        return fields["outputs"], fields["targets"]


def _is_black_box(estimator: Any) -> bool:
    """Whether it predicts; a linear model is not taken for a black box, which would hide most scores."""
    # the older mark as well: not every library that follows scikit-learn's interface derives from its classes
    mark = getattr(estimator, "_estimator_type", None)
    classifies = isinstance(estimator, ClassifierMixin) or mark == "classifier"
    predicts = (classifies and hasattr(estimator, "predict_proba")) or isinstance(estimator, RegressorMixin)
    return (predicts or mark == "regressor") and not hasattr(estimator, "coef_")


def _predictions(estimator: Any, X: Any, y: Any) -> dict[str, Any]:
    """Return logarithms of probabilities with class indices, or values, and the loss that goes with them."""
    probable = hasattr(estimator, "predict_proba")
    with refusals(estimator):
        outputs = np.asarray(estimator.predict_proba(X) if probable else estimator.predict(X))
    if not probable:
        return {"outputs": outputs, "targets": checked_targets(y, len(outputs)), "loss": "squared"}
    classes: Any = getattr(estimator, "classes_", None)
    if outputs.ndim != 2 or np.ndim(classes) != 1:
        got, remedy = f"{type(estimator).__name__} with another kind of outputs", "audit one label at a time"
        raise fail("estimator", "a classifier of one label a record", got, remedy)
    targets = class_indices(checked_targets(y, len(outputs)), np.asarray(classes))
    return {"outputs": np.log(np.clip(outputs, LEAST_PROBABILITY, None)), "targets": targets, "loss": "cross_entropy"}


def _class_names(estimator: Any) -> tuple[str, ...] | None:
    """Return what the classes are called; None where they are the numbers from 0 on."""
    classes = np.asarray(estimator.classes_)
    if classes.dtype.kind in "iuf" and np.array_equal(classes, np.arange(len(classes))):
        return None
    return tuple(str(name) if str(name).strip() else repr(name) for name in classes.tolist())


def checked_targets(y: Any, n: int) -> np.ndarray:
    y = np.asarray(y)
    if y.ndim == 0 or len(y) != n:
        raise fail("y", f"{n} rows, one a row of X", f"shape {y.shape}", "pass the X and y of one data set")
    return y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y


@contextmanager
def refusals(estimator: Any, argument: str = "X", expected: str = ACCEPTED, remedy: str = REFIT) -> Iterator[None]:
    """Say in our words what scikit-learn refuses; its own words only where they cannot hold a value of a record."""
    try:
        yield
    except NotFittedError as error:
        got = f"an unfitted {type(estimator).__name__}"
        raise fail("estimator", "a fitted estimator", got, "fit it first") from error
    except ValueError as error:
        line = str(error).partition("\n")[0]
        if setting := SETTING.match(line):
            raise fail("estimator", f"{setting[1]} to be {setting[2]}", setting[3], "set it to one of those") from error
        got = line if HARMLESS.match(line) else f"others ({type(error).__name__})"
        raise fail(argument, expected, got, remedy) from error


def _least_squares(estimator: Any, y: np.ndarray) -> dict[str, Any]:
    """Read LinearRegression and Ridge, whose penalty alpha·‖w‖² is l2 = 2·alpha."""
    if estimator.positive:
        raise fail("estimator", "unconstrained coefficients", "positive=True", "fit with positive=False")
    alpha = np.unique(getattr(estimator, "alpha", 0.0))
    if len(alpha) > 1:
        got = f"{len(alpha)} alphas"
        raise fail("estimator", "one alpha for all outputs", got, "fit and audit one estimator an output")
    return {"targets": y, "loss": "squared", "l2": 2.0 * float(alpha[0])}


def _ridge_classifier(estimator: Any, y: np.ndarray) -> dict[str, Any]:
    """Read RidgeClassifier, a ridge regression on targets of −1 and 1, one column for two classes."""
    if y.ndim == 2:
        targets = np.where(y > 0, 1.0, -1.0)
    else:
        targets = 2.0 * np.eye(len(estimator.classes_))[class_indices(y, estimator.classes_)] - 1.0
        targets = targets[:, 1] if len(estimator.classes_) == 2 else targets
    return _least_squares(estimator, targets)


def _logistic_regression(estimator: Any, y: np.ndarray) -> dict[str, Any]:
    """Read LogisticRegression: one logit for two classes, softmax for more, or one binary head a class."""
    several, liblinear = estimator.coef_.shape[0] > 1, estimator.solver == "liblinear"
    mode = getattr(estimator, "multi_class", None)  # scikit-learn before 1.8
    if mode == "multinomial" and not several:
        got = "multi_class='multinomial' with two classes"
        raise fail("estimator", "the logistic loss for two classes", got, "fit without multi_class")
    one_vs_rest = several and (liblinear or mode == "ovr")
    if estimator.class_weight is not None and one_vs_rest:
        got = "class_weight with one-vs-rest, which weighs a record differently in each class"
        raise fail("estimator", "one weight a record", got, "fit without class_weight, or multinomial")
    if liblinear and estimator.fit_intercept and estimator.intercept_scaling != 1:
        got = f"intercept_scaling={estimator.intercept_scaling:g}"
        raise fail("estimator", "one penalty for weights and intercept", got, "fit with intercept_scaling=1")
    kind, ratio = estimator.penalty, estimator.l1_ratio
    if kind in ("deprecated", "elasticnet"):  # from 1.8 on l1_ratio alone tells, and penalty is "deprecated"
        kind = "l2" if not ratio else "l1" if ratio == 1 else "elasticnet"
    if kind in ("l1", "elasticnet"):
        raise fail("estimator", "an l2 penalty or none", f"penalty {kind}", "fit with l1_ratio=0 (penalty='l2')")
    l2 = 0.0 if kind is None or np.isinf(estimator.C) else 1.0 / float(estimator.C)
    return _labelled(estimator, y, one_vs_rest) | {"l2": l2, "penalize_intercept": liblinear}


def _stochastic(estimator: Any, y: np.ndarray) -> dict[str, Any]:
    """Read SGDClassifier with the logistic loss, one binary head a class, and SGDRegressor with half the squared one;
    the penalty alpha/2·‖w‖² stands beside a mean."""
    classes = isinstance(estimator, linear_model.SGDClassifier)
    for name, wanted in (("loss", "log_loss" if classes else "squared_error"), ("penalty", "l2")):
        if (given := getattr(estimator, name)) != wanted and not (name == "penalty" and given is None):
            raise fail("estimator", f"{name}={wanted!r}", f"{name}={given!r}", f"fit with {name}={wanted!r}")
    l2 = 0.0 if estimator.penalty is None else float(estimator.alpha) * len(y)
    if not classes:
        return {"targets": y, "loss": "squared", "l2": 2.0 * l2}
    several = estimator.coef_.shape[0] > 1
    balanced_early = estimator.early_stopping and estimator.class_weight == "balanced"
    if estimator.class_weight is not None and (several or balanced_early):
        got = "class_weight with several classes, or balanced by records that were kept out of training"
        raise fail("estimator", "one known weight a record", got, "fit without class_weight")
    return _labelled(estimator, y, several) | {"l2": l2}


def _labelled(estimator: Any, y: np.ndarray, one_vs_rest: bool) -> dict[str, Any]:
    labels = class_indices(y, estimator.classes_)
    if one_vs_rest:
        return {"targets": np.eye(len(estimator.classes_))[labels], "loss": "binary_cross_entropy"}
    return {"targets": labels, "loss": "cross_entropy"}


def _network(estimator: Any, y: np.ndarray) -> dict[str, Any]:
    """Read the last layer of MLPClassifier or MLPRegressor."""
    if isinstance(estimator, neural_network.MLPRegressor):
        if getattr(estimator, "loss", "squared_error") != "squared_error":
            raise fail("estimator", "loss='squared_error'", f"loss={estimator.loss!r}", "fit with the squared loss")
        # Not 2·alpha·outputs: the loss MLPRegressor reports is a mean over outputs, the gradient it follows a sum.
        fields, factor = {"targets": y, "loss": "squared"}, 2.0
    elif y.ndim == 2:
        fields, factor = {"targets": y, "loss": "binary_cross_entropy"}, 1.0
    else:
        fields, factor = _labelled(estimator, y, False), 1.0
    n, passes = len(y), 1.0  # how often the penalty enters one sum over the records
    if estimator.solver != "lbfgs":  # scikit-learn divides it by the size of each batch
        size = min(200 if estimator.batch_size == "auto" else int(estimator.batch_size), n)
        full, rest = divmod(n, size)
        passes = n * (full / size + (1 / rest if rest else 0.0)) / (full + (rest > 0))
    return fields | {"l2": factor * float(estimator.alpha) * passes}


def _weighted(estimator: Any, y: np.ndarray, sample_weight: Any) -> Any:
    """Return the weights of the records, times those of their classes."""
    class_weight = getattr(estimator, "class_weight", None)
    if not class_weight:
        return sample_weight
    factor = compute_sample_weight(class_weight, y)
    if sample_weight is None:
        return factor
    if isinstance(estimator, linear_model.LogisticRegression) and class_weight == "balanced":
        # Versions of scikit-learn differ in whether the balance counts records or their weights.
        got = "class_weight='balanced' with sample_weight"
        raise fail("estimator", "one source of weights", got, "give class_weight as a dict")
    weight = as_tensor("sample_weight", sample_weight)
    check_shape("sample_weight", weight, (len(factor),), f"({len(factor)},), one weight a record")
    return weight.numpy() * factor


def _layer(estimator: Any, X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return features, weight and bias; of an MLP those of the last layer, whose features the last hidden one gives."""
    if isinstance(estimator, NETWORKS):
        return _hidden(estimator, X), np.ascontiguousarray(estimator.coefs_[-1].T), estimator.intercepts_[-1]
    weight = np.atleast_2d(estimator.coef_)
    bias = np.broadcast_to(np.ravel(estimator.intercept_), len(weight)).copy() if estimator.fit_intercept else None
    return _dense(X), weight, bias


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
    if (size := X.shape[0] * X.shape[1] * X.dtype.itemsize) > DENSE_BYTES:
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


FIELDS: dict[type, Callable[[Any, np.ndarray], dict[str, Any]]] = {
    linear_model.LinearRegression: _least_squares,
    linear_model.Ridge: _least_squares,
    linear_model.LogisticRegression: _logistic_regression,
    linear_model.RidgeClassifier: _ridge_classifier,
    linear_model.SGDClassifier: _stochastic,
    linear_model.SGDRegressor: _stochastic,
    neural_network.MLPClassifier: _network,
    neural_network.MLPRegressor: _network,
}
