"""Models in scikit-learn's way that are fitted again, at once or batch by batch, and traces of those and of stages."""

import hashlib
import inspect
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.base import clone, is_classifier
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from giveaway.checks import check_whole, fail
from giveaway.extract.sklearn_head import LEAST_PROBABILITY, checked_targets, class_indices, last_step, refusals
from giveaway.extract.sklearn_unseen import LINEAR, NETWORKS, kept_out, rows_of
from giveaway.records.loss_trace import LossTrace
from giveaway.storage.arrays import digest_of

STAGES = 20
SAME = 1e-6  # between predict_proba and the softmax of a decision function
BATCH = 200  # MLPs' own size by default
PARTS = 20  # of an epoch of SGD, which steps record by record and is asked before each part
BOOSTED = "a scikit-learn GradientBoosting or HistGradientBoosting model, an XGBoost, LightGBM or CatBoost one"


def trace_of_stages(
    estimator: Any, X: Any, y: Any, *, stages: int = STAGES, ids: Any = None, sample_weight: Any = None
) -> LossTrace:
    """Return the losses of the records it was fitted on after the stages of a fitted boosted model.

    Takes scikit-learn's models with staged_predict, and the estimators of XGBoost, LightGBM and CatBoost, alone or at
    the end of a Pipeline, and for early stopping the `sample_weight` of the fit: records that it kept out are left out
    here, as by from_sklearn. The model is asked after at most `stages` of them, evenly spaced in the logarithm, the
    first and the last included: early stages generalize and late ones memorize, so every doubling of the model counts
    alike. Losses are cross-entropies, or squared errors of a regressor.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import GradientBoostingClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> trace_of_stages(GradientBoostingClassifier(n_estimators=30).fit(X, y), X, y)
    LossTrace(epochs=15, records=150)
    """
    check_whole("stages", stages, 2)
    estimator, X = last_step(estimator, X)
    with refusals(estimator):
        check_is_fitted(estimator)
    targets = checked_targets(y, X.shape[0] if hasattr(X, "shape") else len(X))
    kept = kept_out(estimator, X, targets, sample_weight)
    if kept is not None:  # the rows that from_sklearn takes, under the same ids
        rows = np.setdiff1d(np.arange(len(targets)), kept)
        X, targets, ids = rows_of(X, rows), targets[rows], rows if ids is None else np.asarray(ids)[rows]
    total, said_after = _staged(estimator, X)
    if total < 2:
        raise fail("estimator", "at least 2 stages", str(total), "a trace needs stages on the way")
    if classes := is_classifier(estimator):
        targets = class_indices(targets, np.asarray(estimator.classes_))
    counts = np.unique(np.geomspace(1, total, stages).round().astype(int))
    with refusals(estimator):
        losses = [_losses(said_after(count), targets, classes=classes) for count in counts.tolist()]
    return LossTrace.from_losses(np.stack(losses), targets=targets, ids=ids, made_of={"stages": counts.tolist()})


def fit_traced(
    estimator: Any, X: Any, y: Any, *, epochs: int, ids: Any = None, path: str | os.PathLike[str] | None = None
) -> tuple[Any, LossTrace]:
    """Fit a copy of `estimator` for so many epochs; return it, and the losses that its training saw.

    Takes MLPClassifier and MLPRegressor (solver "adam" or "sgd"), SGDClassifier (log_loss) and SGDRegressor
    (squared_error), alone or at the end of a Pipeline. A batch is predicted first, which gives its losses, and then
    goes to partial_fit. The very first batch has no losses: there is no model yet to ask.

    What `fit` does otherwise: it draws other orders of the records from the same random_state, and stops when the loss
    no longer falls, where this goes on for all `epochs`. `n_iter_` and `loss_curve_` count batches here. Without
    shuffling, the weights are the same as those of `fit` with as many epochs.

    path : a file to record into; by default the trace is in memory.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import SGDClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> fitted, trace = fit_traced(SGDClassifier(loss="log_loss", random_state=0), X, y, epochs=20)
    >>> trace
    LossTrace(epochs=20, records=150)
    """
    check_whole("epochs", epochs, 2)
    if isinstance(estimator, Pipeline):
        whole = clone(estimator)
        if len(whole.steps) > 1:
            X = whole[:-1].fit_transform(X, y)
        name, last = whole.steps[-1]
        fitted, trace = fit_traced(last, X, y, epochs=epochs, ids=ids, path=path)
        whole.steps[-1] = (name, fitted)
        return whole, trace
    _check_partial_fit(estimator)
    model = clone(estimator)
    X = X if hasattr(X, "iloc") else X.tocsr() if hasattr(X, "tocsr") else np.asarray(X)
    y = checked_targets(y, X.shape[0])
    n, classes = len(y), is_classifier(model)
    first = {"classes": np.unique(y)} if classes else {}
    targets = class_indices(y, first["classes"]) if classes else y
    trace = LossTrace(n, path, targets=targets, ids=ids)
    network = isinstance(model, NETWORKS)
    size = max(BATCH, -(-n // PARTS)) if not network else BATCH if model.batch_size == "auto" else model.batch_size
    size, state = min(n, int(size)), model.random_state
    rng = np.random.default_rng(state.randint(2**31) if hasattr(state, "randint") else state)
    fitted = False
    for _ in range(epochs):
        order = rng.permutation(n) if model.shuffle else np.arange(n)
        for rows in np.array_split(order, range(size, n, size)):
            batch = rows_of(X, rows)
            with refusals(model):
                losses = np.full(len(rows), np.nan)
                if fitted:
                    predicted = model.predict_proba(batch) if classes else model.predict(batch)
                    losses = _losses(predicted, targets[rows], classes=classes)
                trace.add(rows, losses)
                if network:
                    model.batch_size = len(rows)  # the last batch of an epoch may be smaller
                model.partial_fit(batch, y[rows], **({} if fitted else first))
            fitted = True
    if network:
        model.batch_size = estimator.batch_size
    return model, trace


def _staged(estimator: Any, X: Any) -> tuple[int, Callable[[int], np.ndarray]]:
    """Return how many stages a fitted model predicts with, and what it says of X after so many; ask in order."""
    classes = is_classifier(estimator)
    predict = estimator.predict_proba if classes else estimator.predict
    packages = {kind.__module__.partition(".")[0] for kind in type(estimator).__mro__}  # which need not be installed
    if "xgboost" in packages:
        best = getattr(estimator, "best_iteration", None)
        total = estimator.get_booster().num_boosted_rounds() if best is None else best + 1
        return total, lambda count: np.asarray(predict(X, iteration_range=(0, count)))
    if "lightgbm" in packages:
        total = estimator.best_iteration_ or estimator.n_estimators_
        return total, lambda count: np.asarray(predict(X, num_iteration=count))
    if "catboost" in packages:
        return estimator.tree_count_, lambda count: np.asarray(predict(X, ntree_end=count))
    if not hasattr(estimator, "staged_predict"):
        raise fail("estimator", BOOSTED, type(estimator).__name__, "record a trace in training, or use checkpoints")
    total = estimator.n_iter_ if hasattr(estimator, "n_iter_") else len(estimator.estimators_)
    staged = enumerate((estimator.staged_predict_proba if classes else estimator.staged_predict)(X), start=1)
    return total, lambda count: next(said for stage, said in staged if stage == count)


def _losses(predicted: np.ndarray, targets: np.ndarray, *, classes: bool) -> np.ndarray:
    """Return one loss a record: the cross-entropy of probabilities, or the squared error of values."""
    if classes:
        return -np.log(np.clip(predicted[np.arange(len(targets)), targets], LEAST_PROBABILITY, 1.0)).astype(np.float64)
    return ((predicted - targets).reshape(len(targets), -1).astype(np.float64) ** 2).sum(1)


def _check_partial_fit(estimator: Any) -> None:
    """Refuse what cannot be fitted batch by batch with the same meaning."""
    if not isinstance(estimator, NETWORKS + LINEAR):
        expected = "one of " + ", ".join(kind.__name__ for kind in NETWORKS + LINEAR) + ", or a Pipeline ending in one"
        raise fail("estimator", expected, type(estimator).__name__, "for boosted trees use trace_of_stages")
    settings = {"solver": "sgd"} | estimator.get_params()
    others = {"solver": "lbfgs", "class_weight": "balanced"}  # which ask for all records at once
    others |= {"learning_rate": "adaptive"} if settings["solver"] == "sgd" else {}
    for name, value in others.items():
        if settings.get(name) == value:
            raise fail("estimator", f"another {name}, which batches can keep", f"{name}={value!r}", "choose another")
    loss = "log_loss" if is_classifier(estimator) else "squared_error"
    for name, wanted in (("loss", loss), ("early_stopping", False)):
        if (given := getattr(estimator, name, wanted)) != wanted:
            raise fail("estimator", f"{name}={wanted!r}", f"{name}={given!r}", f"make it with {name}={wanted!r}")


def fitted_clone(
    estimator: Any, X: Any, y: np.ndarray, rows: np.ndarray, seed: int, sample_weight: np.ndarray | None = None
) -> Any:
    """Fit a clone of the estimator to some rows of X and y, with every random state set from the seed."""
    made = clone(estimator)
    states = [name for name in made.get_params() if name == "random_state" or name.endswith("__random_state")]
    made.set_params(**dict.fromkeys(states, seed >> 1))  # some libraries take 31 bits
    weights = {} if sample_weight is None else {f"{predicting_step(made)[1]}sample_weight": sample_weight}
    return made.fit(rows_of(X, rows), y[rows], **weights)


def predicting_step(estimator: Any) -> tuple[Any, str]:
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
    given, left_out = estimator.get_params(deep=True).items(), ("random_state", "n_jobs", "verbose")
    settings = {name: _in_words(value) for name, value in given if not name.endswith(left_out)}
    return {"type": type(estimator).__qualname__} | settings


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
