import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, LogisticRegressionCV, Ridge
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

import giveaway.extract.sklearn_head as sklearn_head
from giveaway.checks import InputError
from giveaway.extract import from_sklearn
from tests.extract.sklearn_examples import EXACT, LBFGS, D, N, off_optimum


def test_pipeline_hands_transformed_inputs_to_its_last_step(X, labels):
    pipeline = make_pipeline(StandardScaler(), make_pipeline(LogisticRegression(C=0.5, **EXACT))).fit(X, labels)
    head = from_sklearn(pipeline, X, labels, ids=np.arange(N) + 100, groups=np.arange(N) // 2)
    np.testing.assert_allclose(head.features.numpy(), StandardScaler().fit_transform(X))
    assert off_optimum(head) < 1e-4
    assert head.ids[0] == 100
    assert head.groups[3] == 1
    with pytest.raises(InputError, match="X: expected inputs the estimator accepts, got X has 4 features"):
        from_sklearn(pipeline, X[:, :4], labels)
    with pytest.raises(InputError, match="an unfitted Pipeline; fit it first"):
        from_sklearn(make_pipeline(StandardScaler(), Ridge()), X, labels)


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
    with pytest.raises(
        InputError, match=rf"got a sparse {N} by {D} matrix, .* dense; reduce its columns \(TruncatedSVD"
    ):
        from_sklearn(model, sparse.csr_array(X), labels)


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegressionCV(),
        LinearSVC(),
        SVC(kernel="rbf"),
        KMeans(3, n_init=1),
        GaussianMixture(2),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_unsupported_estimators_name_the_supported(X, labels, estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(X, labels)
    words = (
        f"expected one of LinearRegression, Ridge, .*MLPRegressor, or a Pipeline .*, got {type(estimator).__name__};"
    )
    with pytest.raises(InputError, match=words + r" for another model build Head \(a black box: features=None\)$"):
        from_sklearn(estimator, X, labels)


def test_grid_search_points_to_its_best_estimator(X, labels):
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}).fit(X, labels)
    with pytest.raises(InputError, match="got GridSearchCV; pass its best_estimator_"):
        from_sklearn(search, X, labels)


def test_bad_inputs(X, values, labels):
    fitted = LogisticRegression().fit(X, labels)
    with pytest.raises(InputError, match="expected a fitted estimator, got an unfitted Ridge; fit it first"):
        from_sklearn(Ridge(), X, values)
    with pytest.raises(InputError, match=r"y: expected 90 rows, one a row of X, got shape \(89,\)"):
        from_sklearn(fitted, X, labels[:-1])
    with pytest.raises(InputError, match="X: expected 5 columns, as the estimator was fitted with, got 3 columns"):
        from_sklearn(fitted, X[:, :3], labels)
    with pytest.raises(InputError, match=r"X: expected shape \(records, features\), got shape \(90,\)"):
        from_sklearn(fitted, X[:, 0], labels)
    with pytest.raises(
        InputError, match="y: expected labels the estimator was fitted with, got another label first in row 2"
    ):
        from_sklearn(fitted, X, np.array([*labels[:2], "dog", *labels[3:]]))
    with pytest.raises(InputError, match="y: expected one label a record"):
        from_sklearn(fitted, X, values)
    with pytest.raises(InputError, match="X: expected an array of numbers, got dtype <U1"):
        from_sklearn(fitted, np.full((N, D), "a"), labels)
    with pytest.raises(InputError, match="features: expected finite numbers, got NaN or infinity first in row 4"):
        from_sklearn(fitted, np.where(np.arange(N)[:, None] == 4, np.nan, X), labels)
    with pytest.raises(InputError, match="unconstrained coefficients, got positive=True"):
        from_sklearn(LinearRegression(positive=True).fit(X, values), X, values)
    with pytest.raises(InputError, match="one alpha for all outputs, got 2 alphas"):
        from_sklearn(Ridge(alpha=[1.0, 2.0]).fit(X, values), X, values)


# ------------------------------------------------------------------------------------------------ X as the inputs


def test_the_inputs_are_x_before_the_pipeline(X, labels):
    pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, labels)
    head = from_sklearn(pipeline, X, labels)
    assert head.inputs is X
    assert not np.allclose(head.features.numpy(), X)
    assert repr(head).endswith(f"l2=1, inputs=({D},))")
    whole = np.round(X).astype(int)
    np.testing.assert_array_equal(from_sklearn(pipeline, whole.tolist(), labels).inputs, whole)


def test_strings_and_tables_are_kept_as_they_were_given(X, labels):
    texts = [f"word{row % 7} {label}" for row, label in enumerate(labels)]
    pipeline = make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, labels)
    for given in (texts, np.array(texts), np.array(texts, dtype=object), pd.Series(texts)):
        assert from_sklearn(pipeline, given, labels).inputs == texts
    frame = pd.DataFrame({"age": X[:, 0], "town": np.where(X[:, 1] > 0, "x", "y")})
    encode = make_column_transformer((OneHotEncoder(), ["town"]), remainder="passthrough")
    pipeline = make_pipeline(encode, LogisticRegression()).fit(frame, labels)
    head = from_sklearn(pipeline, frame, labels)
    assert head.inputs is frame
    assert repr(head).endswith("inputs=(2,))")


def test_sparse_inputs_and_numbers_with_gaps_are_not_kept(X, labels):
    assert from_sklearn(LogisticRegression().fit(X, labels), sparse.csr_array(X), labels).inputs is None
    gaps = np.where(np.arange(N)[:, None] == 4, np.nan, X)
    head = from_sklearn(make_pipeline(SimpleImputer(), LogisticRegression()).fit(gaps, labels), gaps, labels)
    assert head.inputs is None
    assert head.n == N
