"""from_sklearn: heads, black boxes, the inputs that are kept, and what is refused."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from scipy.special import softmax
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, LogisticRegressionCV, Ridge
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

import giveaway.extract.sklearn_head as sklearn_head
from giveaway.checks import InputError
from giveaway.extract import from_sklearn
from tests.conftest import refused
from tests.extract.examples import EXACT, LBFGS, ROWS, D, off_optimum


def test_pipeline_hands_transformed_inputs_to_its_last_step(X, labels):
    pipeline = make_pipeline(StandardScaler(), make_pipeline(LogisticRegression(C=0.5, **EXACT))).fit(X, labels)
    head = from_sklearn(pipeline, X, labels, ids=np.arange(ROWS) + 100, groups=np.arange(ROWS) // 2)
    np.testing.assert_allclose(head.features.numpy(), StandardScaler().fit_transform(X))
    assert off_optimum(head) < 1e-4
    assert head.ids[0] == 100
    assert head.groups[3] == 1
    refused("X: expected inputs the estimator accepts, got X has 4 features", from_sklearn, pipeline, X[:, :4], labels)
    refused("an unfitted Pipeline; fit it first", from_sklearn, make_pipeline(StandardScaler(), Ridge()), X, labels)


def test_features_keep_their_precision(X, values):
    small = X.astype(np.float32)
    head = from_sklearn(Ridge().fit(small, values), small, values)
    assert head.features.dtype == torch.float32
    assert head.features.data_ptr() == small.ctypes.data


def test_sparse_inputs_become_dense_up_to_a_limit(X, labels, monkeypatch):
    X = np.where(X > 2, X, 0)
    model = LogisticRegression(**EXACT).fit(sparse.csc_matrix(X), labels)
    head = from_sklearn(model, sparse.csc_matrix(X), labels)
    np.testing.assert_array_equal(head.features.numpy(), X)
    mlp = MLPClassifier(hidden_layer_sizes=(4,), **LBFGS).fit(sparse.csr_array(X), labels)
    monkeypatch.setattr(sklearn_head, "DENSE_BYTES", X.nbytes - 1)
    np.testing.assert_allclose(
        from_sklearn(mlp, sparse.csr_array(X), labels).outputs.softmax(1).numpy(), mlp.predict_proba(X), atol=1e-12
    )
    words = rf"got a sparse {ROWS} by {D} matrix, .* dense; reduce its columns \(TruncatedSVD"
    refused(words, from_sklearn, model, sparse.csr_array(X), labels)


UNSUPPORTED = [LogisticRegressionCV(), LinearSVC(), SVC(kernel="rbf"), KMeans(3, n_init=1), GaussianMixture(2)]


@pytest.mark.parametrize("estimator", UNSUPPORTED, ids=lambda estimator: type(estimator).__name__)
def test_unsupported_estimators_name_the_supported(X, labels, estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(X, labels)
    words = f"expected one of LinearRegression, Ridge, .*MLPRegressor, or a Pipeline .*, got {type(estimator).__name__}"
    words += r"; for another model build Head \(a black box: features=None\)$"
    if isinstance(estimator, SVC):
        words = "expected a classifier with predict_proba, got SVC; fit with voting='soft' or probability=True"
    refused(words, from_sklearn, estimator, X, labels)


def test_of_a_search_the_best_estimator_is_taken(X, labels):
    search = GridSearchCV(make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [0.1, 1.0]})
    found, best = (from_sklearn(one, X, labels) for one in (search.fit(X, labels), search.best_estimator_))
    assert (found.l2, found.model) == (best.l2, "LogisticRegression")
    np.testing.assert_array_equal(found.outputs, best.outputs)
    last = make_pipeline(StandardScaler(), GridSearchCV(LogisticRegression(), {"C": [0.1]})).fit(X, labels)
    assert from_sklearn(last, X, labels).l2 == 10.0
    shrinking = HalvingGridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, random_state=0).fit(X, labels)
    assert from_sklearn(shrinking, X, labels).l2 == 1 / shrinking.best_params_["C"]


def test_models_made_of_models_are_black_boxes(X, labels):
    votes = [("line", LogisticRegression()), ("tree", DecisionTreeClassifier(random_state=0))]
    for model in (VotingClassifier(votes, voting="soft"), CalibratedClassifierCV(LogisticRegression(), cv=3)):
        for whole in (model, make_pipeline(StandardScaler(), model)):
            head = from_sklearn(whole.fit(X, labels), X, labels)
            np.testing.assert_allclose(head.outputs.exp(), whole.predict_proba(X).clip(1e-12), rtol=1e-9)
    hard = VotingClassifier(votes).fit(X, labels)
    refused("got VotingClassifier; fit with voting='soft'", from_sklearn, hard, X, labels)


def test_bad_inputs(X, values, labels):
    fitted = LogisticRegression().fit(X, labels)
    refused("expected a fitted estimator, got an unfitted Ridge; fit it first", from_sklearn, Ridge(), X, values)
    refused(r"y: expected 90 rows, one a row of X, got shape \(89,\)", from_sklearn, fitted, X, labels[:-1])
    with pytest.raises(InputError, match="X: expected 5 columns, as the estimator was fitted with, got 3 columns"):
        from_sklearn(fitted, X[:, :3], labels)
    refused(r"X: expected inputs the estimator accepts, got Expected 2D array", from_sklearn, fitted, X[:, 0], labels)
    words = "y: expected labels the estimator was fitted with, got another label first in row 2"
    refused(words, from_sklearn, fitted, X, np.array([*labels[:2], "dog", *labels[3:]]))
    refused("y: expected one label a record", from_sklearn, fitted, X, values)
    refused(
        r"X: expected inputs the estimator accepts, got others \(ValueError\)",
        from_sklearn,
        fitted,
        np.full((ROWS, D), "a"),
        labels,
    )
    with pytest.raises(InputError, match="features: expected finite numbers, got NaN or infinity first in row 4"):
        from_sklearn(fitted, np.where(np.arange(ROWS)[:, None] == 4, np.nan, X), labels)
    with pytest.raises(InputError, match="unconstrained coefficients, got positive=True"):
        from_sklearn(LinearRegression(positive=True).fit(X, values), X, values)
    refused("one alpha for all outputs, got 2 alphas", from_sklearn, Ridge(alpha=[1.0, 2.0]).fit(X, values), X, values)


# ------------------------------------------------------------------------------------------------ X as the inputs


def test_the_inputs_are_x_before_the_pipeline(X, labels):
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, labels)
    head = from_sklearn(pipeline, X, labels)
    assert head.inputs is X
    assert not np.allclose(head.features.numpy(), X)
    assert repr(head).endswith(f"l2=1, inputs=({D},))")
    whole = np.round(X).astype(int)
    np.testing.assert_array_equal(from_sklearn(pipeline, whole.tolist(), labels).inputs, whole)


@pytest.mark.parametrize("last", [LogisticRegression(), RandomForestClassifier(5, random_state=0)], ids=["head", "box"])
def test_inputs_are_kept_as_they_were_given_unless_sparse_or_with_gaps(X, labels, last):
    texts = [f"word{row % 7} {label}" for row, label in enumerate(labels)]
    pipeline = make_pipeline(CountVectorizer(), last).fit(texts, labels)
    for given in (texts, np.array(texts), np.array(texts, dtype=object), pd.Series(texts)):
        assert from_sklearn(pipeline, given, labels).inputs == texts
    frame = pd.DataFrame({"age": X[:, 0], "town": np.where(X[:, 1] > 0, "x", "y")})
    encode = make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough")
    head = from_sklearn(make_pipeline(encode, last).fit(frame, labels), frame, labels)
    assert head.inputs is frame
    assert "inputs=(2,)" in repr(head)
    gaps = np.where(np.arange(ROWS)[:, None] == 4, np.nan, X)
    head = from_sklearn(make_pipeline(SimpleImputer(), last).fit(gaps, labels), gaps, labels)
    assert (head.inputs, head.n) == (None, ROWS)
    assert from_sklearn(last.fit(X, labels), sparse.csr_array(X), labels).inputs is None


CLASSIFIERS = [
    HistGradientBoostingClassifier(max_iter=5),
    RandomForestClassifier(5, random_state=0),
    KNeighborsClassifier(3),
    make_pipeline(StandardScaler(), DecisionTreeClassifier(random_state=0)),
]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda model: type(model).__name__)
def test_classifiers_give_logarithms_of_probabilities(X, labels, model, classes):
    y = labels if classes == 3 else np.where(labels == "ant", "zebra", "ape")
    model.fit(X, y)
    weights = np.linspace(1, 2, ROWS)
    head = from_sklearn(model, X, y, ids=np.arange(ROWS) + 9, groups=np.arange(ROWS) // 2, sample_weight=weights)
    p = model.predict_proba(X)
    assert (head.linear, head.n, head.m, head.loss, head.width) == (False, ROWS, classes, "cross_entropy", 0)
    np.testing.assert_allclose(head.outputs.exp().numpy(), np.maximum(p, 1e-12), rtol=1e-12)
    np.testing.assert_array_equal(model.classes_[head.targets.numpy()], y)
    loss = torch.nn.functional.cross_entropy(head.outputs, head.targets, reduction="none")
    own = p[np.arange(ROWS), np.searchsorted(model.classes_, y)]
    np.testing.assert_allclose(loss.numpy(), -np.log(np.maximum(own, 1e-12)), atol=1e-9)
    assert head.inputs is X
    assert (head.ids[0], head.groups[3], float(head.sample_weight[-1])) == (9, 1, 2.0)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(
    "model", [RandomForestRegressor(5, random_state=0), TransformedTargetRegressor(Ridge())], ids=["forest", "wrapped"]
)
def test_regressors_give_values(X, values, model, outputs):
    y = values[:, :1] if outputs == 1 else values
    model.fit(X, y.squeeze())
    head = from_sklearn(model, X, y)
    assert (head.linear, head.m, head.loss) == (False, outputs, "squared")
    np.testing.assert_allclose(head.outputs.numpy().squeeze(), model.predict(X))
    np.testing.assert_array_equal(head.targets.numpy(), y)


def test_gaps_and_names_of_columns_reach_a_black_box(X, labels, values):
    gaps = np.where(np.arange(ROWS)[:, None] == 4, np.nan, X)
    boosted = HistGradientBoostingRegressor(max_iter=5).fit(gaps, values[:, 0])
    head = from_sklearn(boosted, gaps, values[:, 0])
    assert head.inputs is None
    np.testing.assert_array_equal(head.outputs[:, 0].numpy(), boosted.predict(gaps))
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = RandomForestClassifier(5, random_state=0).fit(frame, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns where names are lost
        assert from_sklearn(model, frame, labels).inputs is frame


@pytest.mark.parametrize(
    "model",
    [RandomForestClassifier(), RandomForestRegressor(), KNeighborsClassifier(), TransformedTargetRegressor(Ridge())],
    ids=lambda model: type(model).__name__,
)
def test_unfitted(X, labels, model):
    words = f"^estimator: expected a fitted estimator, got an unfitted {type(model).__name__}; fit it first$"
    refused(words, from_sklearn, model, X, labels)


def test_what_does_not_fit(X, labels, values):
    forest = RandomForestClassifier(5, random_state=0).fit(X, labels)
    words = r"X: expected inputs the estimator accepts, got X has 3 features, .*; pass the X the"
    refused(words, from_sklearn, forest, X[:, :3], labels)
    refused(r"y: expected 90 rows, one a row of X, got shape \(89,\)", from_sklearn, forest, X, labels[:-1])
    words = "y: expected labels the estimator was fitted with, got another label first in"
    refused(words, from_sklearn, forest, X, np.array([*labels[:2], "dog", *labels[3:]]))
    both = (values > values.mean(0)).astype(int)
    words = "estimator: expected a classifier of one label a record, got RandomForestClassifier with another kind of"
    refused(words, from_sklearn, RandomForestClassifier(5, random_state=0).fit(X, both), X, both)


@pytest.mark.parametrize(
    ("model", "held_out"),
    [
        (HistGradientBoostingClassifier(max_iter=5, early_stopping=True, warm_start=True), True),
        (HistGradientBoostingClassifier(max_iter=5, early_stopping=True, validation_fraction=None), False),
        (HistGradientBoostingClassifier(max_iter=5, early_stopping="auto"), False),  # on from 10,000 records
        (GradientBoostingClassifier(n_estimators=5, n_iter_no_change=3), True),
        (GradientBoostingClassifier(n_estimators=5, n_iter_no_change=3, subsample=0.5, random_state=0), True),
        (GradientBoostingClassifier(n_estimators=5), False),
        (MLPClassifier(max_iter=5, early_stopping=True, random_state=np.random.RandomState(0)), True),
        (type("OwnMLP", (MLPClassifier,), {})(max_iter=5), False),
        (type("OwnMLP", (MLPClassifier,), {})(max_iter=5, early_stopping=True), True),
    ],
)
def test_records_held_out_of_training_are_no_members(X, labels, model, held_out):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, labels)
    if not held_out:
        assert not from_sklearn(model, X, labels).linear
        return
    words = (
        "estimator: expected a fit on every record, or a validation split that can .*, got early stopping with.*; fit"
    )
    refused(words, from_sklearn, model, X, labels)


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(**EXACT),
        make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", **EXACT)),
        MLPClassifier((4,), max_iter=5),
        RandomForestClassifier(20, random_state=0),
        make_pipeline(StandardScaler(), HistGradientBoostingClassifier(max_iter=3)),
        Ridge(),
        RandomForestRegressor(20, random_state=0),
    ],
)
def test_what_is_said_of_records_that_were_not_fitted(X, labels, values, model):
    regression, rest = hasattr(model, "alpha") or isinstance(model, RandomForestRegressor), slice(70, ROWS)
    y = values[:, 0] if regression and not isinstance(model, MLPClassifier) else labels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X[:70], y[:70])
    head = from_sklearn(model, X[:70], y[:70], held_out=(X[rest], y[rest]))
    outputs, targets = (part.numpy() for part in head.held_out)
    assert head.n == 70
    if head.loss == "squared":
        np.testing.assert_allclose(outputs[:, 0], model.predict(X[rest]))
        np.testing.assert_allclose(targets[:, 0], y[rest])
        return
    np.testing.assert_allclose(softmax(outputs, axis=1), model.predict_proba(X[rest]), atol=1e-9)
    np.testing.assert_array_equal(model.classes_[targets], y[rest])
    one = from_sklearn(model, X[:70], y[:70], held_out=(X[70:71], y[70:71]))
    np.testing.assert_allclose(one.held_out[0], outputs[:1])


def test_records_held_out_that_cannot_be_read(X, labels):
    for model in (
        LogisticRegression(**EXACT).fit(X, labels),
        RandomForestClassifier(20, random_state=0).fit(X, labels),
    ):
        words = r"^held_out: expected \(X, y\) of records held out, got a ndarray"
        refused(words, from_sklearn, model, X, labels, held_out=X)
        refused("^held_out y: expected 4 rows", from_sklearn, model, X, labels, held_out=(X[:4], labels[:3]))
        refused("^held_out X: expected", from_sklearn, model, X, labels, held_out=(X[:4, :2], labels[:4]))
        words = "^held_out y: expected labels the estimator was fitted with"
        refused(words, from_sklearn, model, X, labels, held_out=(X[:1], np.array(["dog"])))
