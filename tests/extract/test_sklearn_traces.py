"""Traces of boosted trees and of fits batch by batch, against staged predictions and weights put together by hand."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from giveaway import LossTrace
from giveaway.extract import fit_traced, from_sklearn, trace_of_stages
from giveaway.records.loss_trace import identity_of
from tests.conftest import refused

HALF = 1e-3
FLOWERS, KINDS = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[KINDS]
PEOPLE, DISEASE = load_diabetes(return_X_y=True)
DISEASE = DISEASE / 100  # squared errors within float16


def boosted(kind: str, stages: int):
    """A fitted boosted model, X, y, and the same model fitted with `k` stages: what k stages of it say."""
    if kind in ("XGBClassifier", "XGBRegressor"):
        package = pytest.importorskip("xgboost", reason="XGBoost is not installed: pip install giveaway[xgboost]")
        options = {"max_depth": 2, "learning_rate": 0.3, "subsample": 0.8, "random_state": 0, "nthread": 1}
    elif kind in ("LGBMClassifier", "LGBMRegressor"):
        package = pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install giveaway[lightgbm]")
        options = {"num_leaves": 4, "min_child_samples": 5, "random_state": 0, "verbose": -1, "n_jobs": 1}
    elif kind in ("CatBoostClassifier", "CatBoostRegressor"):
        package = pytest.importorskip("catboost", reason="CatBoost is not installed: pip install giveaway[catboost]")
        options = {"depth": 2, "learning_rate": 0.3, "random_seed": 0, "thread_count": 1, "verbose": 0}
        options |= {"allow_writing_files": False}
    else:
        package, options = None, {"max_depth": 2, "random_state": 0}
    of_sklearn = {
        each.__name__: each
        for each in (
            GradientBoostingClassifier,
            GradientBoostingRegressor,
            HistGradientBoostingClassifier,
            HistGradientBoostingRegressor,
        )
    }
    make = of_sklearn[kind] if package is None else getattr(package, kind)
    classes = "Classifier" in kind
    X, y = (FLOWERS, KINDS if package is not None and "XGB" in kind else NAMES) if classes else (PEOPLE, DISEASE)
    count = "max_iter" if kind.startswith("Hist") else "n_estimators"

    def fitted(k: int):
        return make(**options, **{count: k}).fit(X, y)

    return fitted(stages), X, y, fitted


BOOSTED = [
    "GradientBoostingClassifier",
    "GradientBoostingRegressor",
    "HistGradientBoostingClassifier",
    "HistGradientBoostingRegressor",
    "XGBClassifier",
    "XGBRegressor",
    "LGBMClassifier",
    "LGBMRegressor",
    "CatBoostClassifier",
    "CatBoostRegressor",
]


@pytest.mark.parametrize("kind", BOOSTED)
def test_a_stage_says_what_a_model_of_so_many_stages_says(kind: str) -> None:
    """The first k stages are the model that the same seed makes with k stages, in every one of these libraries."""
    model, X, y, fitted = boosted(kind, 7)
    trace = trace_of_stages(model, X, y)
    assert trace.epochs == 7
    for stages in (1, 4, 7):
        small = fitted(stages)
        if "Classifier" in kind:
            own = small.predict_proba(X)[np.arange(len(y)), np.searchsorted(small.classes_, y)]
            expected = -np.log(own)
        else:
            expected = (small.predict(X) - y) ** 2
        np.testing.assert_allclose(trace.losses[stages - 1], expected, rtol=3e-3, atol=1e-5)
    assert trace.identity == identity_of(len(y), targets=from_sklearn(model, X, y).targets)


@pytest.mark.parametrize("kind", ["GradientBoostingClassifier", "XGBRegressor", "LGBMClassifier"])
def test_every_doubling_of_a_model_counts_alike(kind: str) -> None:
    model, X, y, _ = boosted(kind, 64)
    every, some = trace_of_stages(model, X, y, stages=10_000), trace_of_stages(model, X, y, stages=7)
    assert every.epochs == 64
    np.testing.assert_array_equal(some.losses, every.losses[[0, 1, 3, 7, 15, 31, 63]])
    assert trace_of_stages(model, X, y).epochs == 17  # 20, less those that round to the same stage


def test_stages_behind_a_pipeline_and_other_ensembles() -> None:
    scaled = make_pipeline(StandardScaler(), GradientBoostingClassifier(n_estimators=3, random_state=0))
    trace = trace_of_stages(scaled.fit(FLOWERS, NAMES), FLOWERS, NAMES, ids=[f"f{row}" for row in range(150)])
    plain = trace_of_stages(scaled[-1], scaled[:-1].transform(FLOWERS), NAMES)
    np.testing.assert_array_equal(trace.losses, plain.losses)
    assert set(trace.identity) == {"ids", "targets"}
    stumps = AdaBoostClassifier(n_estimators=6, random_state=0).fit(FLOWERS, NAMES)
    last = -np.log(np.clip(stumps.predict_proba(FLOWERS)[np.arange(150), KINDS], 1e-12, 1))
    np.testing.assert_allclose(trace_of_stages(stumps, FLOWERS, NAMES).losses[-1], last, rtol=HALF)


def test_stages_that_early_stopping_left_out_do_not_count() -> None:
    xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed: pip install giveaway[xgboost]")
    lightgbm = pytest.importorskip("lightgbm", reason="LightGBM is not installed: pip install giveaway[lightgbm]")
    X, y, held_out = PEOPLE[150:], DISEASE[150:], (PEOPLE[:150], DISEASE[:150])
    trees = xgboost.XGBRegressor(n_estimators=99, early_stopping_rounds=3, nthread=1, learning_rate=0.2)
    trees.fit(X, y, eval_set=[held_out], verbose=False)
    light = lightgbm.LGBMRegressor(n_estimators=99, verbose=-1, n_jobs=1, learning_rate=0.2)
    stop = lightgbm.early_stopping(3, verbose=False)
    light.fit(X, y, eval_X=held_out[:1], eval_y=held_out[1:], callbacks=[stop])
    for model, stages in ((trees, trees.best_iteration + 1), (light, light.best_iteration_)):
        trace = trace_of_stages(model, X, y, stages=10_000)
        assert trace.epochs == stages < 96
        np.testing.assert_allclose(trace.losses[-1], (model.predict(X) - y) ** 2, rtol=3e-3, atol=1e-5)


def test_what_has_no_stages_is_refused() -> None:
    forest = RandomForestClassifier(3, random_state=0).fit(FLOWERS, KINDS)
    refused("estimator: expected a scikit-learn GradientBoosting", trace_of_stages, forest, FLOWERS, KINDS)
    refused("fitted estimator", trace_of_stages, GradientBoostingClassifier(), FLOWERS, KINDS)
    one = GradientBoostingRegressor(n_estimators=1).fit(PEOPLE, DISEASE)
    refused("at least 2 stages, got 1", trace_of_stages, one, PEOPLE, DISEASE)
    two = GradientBoostingRegressor(n_estimators=2).fit(PEOPLE, DISEASE)
    refused("y: expected 442 rows", trace_of_stages, two, PEOPLE, DISEASE[1:])
    refused("stages: expected a whole number of at least 2", trace_of_stages, two, PEOPLE, DISEASE, stages=1)


def forward(model, X: np.ndarray) -> np.ndarray:
    """What an MLP of ReLUs says, from its weights."""
    for weight, bias in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        X = np.maximum(X @ weight + bias, 0)
    return X @ model.coefs_[-1] + model.intercepts_[-1]


@pytest.mark.parametrize("kind", ["adam", "sgd", "regression", "sgd classes", "sgd two classes", "sgd values"])
def test_without_shuffling_it_is_the_fit_of_the_estimator(kind: str) -> None:
    """The same weights as fit to rounding; and each loss is what the model says before the batch is learned."""
    X, y = StandardScaler().fit_transform(FLOWERS), NAMES
    fixed = {"shuffle": False, "random_state": 3}
    network = {**fixed, "hidden_layer_sizes": (6,), "batch_size": 40, "max_iter": 4, "n_iter_no_change": 99}
    if kind in ("adam", "sgd"):
        model = MLPClassifier(**network, solver=kind)
    elif kind == "regression":
        model, X, y = MLPRegressor(**network), PEOPLE, DISEASE
    elif kind == "sgd values":
        model, X, y = SGDRegressor(**fixed, max_iter=4, tol=None), PEOPLE, DISEASE
    else:
        model = SGDClassifier(**fixed, loss="log_loss", max_iter=4, tol=None)
        y = np.where(y == "setosa", "yes", "no") if "two" in kind else y
    fitted, trace = fit_traced(model, X, y, epochs=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it did not converge
        whole = model.fit(X, y)
    weights = "coefs_" if hasattr(whole, "coefs_") else "coef_"
    for mine, theirs in zip(getattr(fitted, weights), getattr(whole, weights), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
    size = 40 if weights == "coefs_" else 150
    assert trace.epochs == 4
    assert np.isnan(trace.losses[0, : min(size, 200)]).all()
    assert not np.isnan(trace.losses[1:]).any()
    if weights == "coefs_":  # the last batch of the last epoch, when all before it are learned
        last = slice(len(y) - len(y) % 40, len(y))
        again, _ = fit_traced(model, X, y, epochs=3)
        for start in range(0, last.start, 40):
            again.batch_size = 40
            again.partial_fit(X[start : start + 40], y[start : start + 40])
        f = forward(again, X[last])
        if kind == "regression":
            expected = (f[:, 0] - y[last]) ** 2
        else:
            expected = np.log(np.exp(f - f[np.arange(len(f)), KINDS[last]][:, None]).sum(1))
        np.testing.assert_allclose(trace.losses[3, last], expected, rtol=HALF, atol=1e-6)


def test_shuffled_fits_learn_and_record_every_record_once_an_epoch(tmp_path) -> None:
    model = make_pipeline(StandardScaler(), MLPClassifier((8,), batch_size=50, random_state=0, learning_rate_init=0.03))
    fitted, trace = fit_traced(model, FLOWERS, NAMES, epochs=8, path=tmp_path / "losses.trace")
    assert fitted.score(FLOWERS, NAMES) > 0.9
    assert not hasattr(model[-1], "coefs_")
    assert fitted[-1].get_params() == model[-1].get_params()
    losses = np.array(trace.losses, float)
    assert np.isnan(losses[0]).sum() == 50
    assert not np.isnan(losses[1:]).any()
    assert np.nanmean(losses[0]) > 2 * losses[-1].mean()
    again = fit_traced(model, FLOWERS, NAMES, epochs=8)[1]
    np.testing.assert_array_equal(again.losses, trace.losses)
    trace.close()
    assert LossTrace(tmp_path / "losses.trace").identity == identity_of(
        150, targets=from_sklearn(fitted, FLOWERS, NAMES).targets
    )


def test_what_cannot_be_fitted_batch_by_batch_is_refused() -> None:
    cases = {
        r"one of MLPClassifier, .*, or a Pipeline ending in one, got LogisticRegression": LogisticRegression(),
        "another solver, which batches can keep, got solver='lbfgs'": MLPClassifier(solver="lbfgs"),
        "loss='log_loss', got loss='hinge'; make it with": SGDClassifier(),
        "loss='squared_error', got loss='huber'": SGDRegressor(loss="huber"),
        "early_stopping=False, got early_stopping=True": MLPRegressor(early_stopping=True),
        "got learning_rate='adaptive'": MLPClassifier(solver="sgd", learning_rate="adaptive"),
        "got class_weight='balanced'; choose another": SGDClassifier(loss="log_loss", class_weight="balanced"),
    }
    for words, model in cases.items():
        refused(words, fit_traced, model, FLOWERS, KINDS, epochs=2)
    refused("epochs: expected a whole number of at least 2", fit_traced, MLPClassifier(), FLOWERS, KINDS, epochs=1)
    refused("y: expected 150 rows, one a row of X", fit_traced, MLPClassifier(), FLOWERS, KINDS[1:], epochs=2)
    refused("y: expected one label a record", fit_traced, MLPClassifier(), FLOWERS, np.eye(3)[KINDS], epochs=2)
