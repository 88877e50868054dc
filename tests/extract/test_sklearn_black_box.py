"""Scikit-learn models without a linear head: their probabilities and values, and what is refused."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from giveaway import Head
from giveaway.checks import InputError
from giveaway.extract import from_sklearn
from tests.extract.sklearn_examples import D, N

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
    weights = np.linspace(1, 2, N)
    head = from_sklearn(model, X, y, ids=np.arange(N) + 9, groups=np.arange(N) // 2, sample_weight=weights)
    p = model.predict_proba(X)
    assert (head.linear, head.n, head.m, head.loss, head.width) == (False, N, classes, "cross_entropy", 0)
    np.testing.assert_allclose(head.outputs.exp().numpy(), np.maximum(p, 1e-12), rtol=1e-12)
    np.testing.assert_array_equal(model.classes_[head.targets.numpy()], y)
    loss = torch.nn.functional.cross_entropy(head.outputs, head.targets, reduction="none")
    own = p[np.arange(N), np.searchsorted(model.classes_, y)]
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


def test_sparse_gapped_text_and_tabular_inputs(X, labels, values):
    forest = RandomForestClassifier(5, random_state=0).fit(X, labels)
    assert from_sklearn(forest, sparse.csr_array(X), labels).inputs is None
    gaps = np.where(np.arange(N)[:, None] == 4, np.nan, X)
    boosted = HistGradientBoostingRegressor(max_iter=5).fit(gaps, values[:, 0])
    head = from_sklearn(boosted, gaps, values[:, 0])
    assert head.inputs is None
    np.testing.assert_array_equal(head.outputs[:, 0].numpy(), boosted.predict(gaps))
    texts = [f"{label} {row % 5}" for row, label in enumerate(labels)]
    model = make_pipeline(CountVectorizer(), RandomForestClassifier(5, random_state=0)).fit(texts, labels)
    assert from_sklearn(model, texts, labels).inputs == texts
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = RandomForestClassifier(5, random_state=0).fit(frame, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns where names are lost
        assert from_sklearn(model, frame, labels).inputs is frame


def test_saved_and_loaded(X, labels, tmp_path):
    head = from_sklearn(RandomForestClassifier(5, random_state=0).fit(X, labels), X, labels)
    head.save(tmp_path / "head.npz")
    again = Head.load(tmp_path / "head.npz")
    assert repr(again) == f"Head(n={N}, black box, m=3, loss='cross_entropy', inputs=({D},))"
    assert torch.equal(again.outputs, head.outputs)


@pytest.mark.parametrize(
    "model",
    [RandomForestClassifier(), RandomForestRegressor(), KNeighborsClassifier(), TransformedTargetRegressor(Ridge())],
    ids=lambda model: type(model).__name__,
)
def test_unfitted(X, labels, model):
    words = f"^estimator: expected a fitted estimator, got an unfitted {type(model).__name__}; fit it first$"
    with pytest.raises(InputError, match=words):
        from_sklearn(model, X, labels)


def test_what_does_not_fit(X, labels, values):
    forest = RandomForestClassifier(5, random_state=0).fit(X, labels)
    with pytest.raises(
        InputError, match=r"X: expected inputs the estimator accepts, got X has 3 features, .*; pass the X the"
    ):
        from_sklearn(forest, X[:, :3], labels)
    with pytest.raises(InputError, match=r"y: expected 90 rows, one a row of X, got shape \(89,\)"):
        from_sklearn(forest, X, labels[:-1])
    with pytest.raises(
        InputError, match="y: expected labels the estimator was fitted with, got another label first in"
    ):
        from_sklearn(forest, X, np.array([*labels[:2], "dog", *labels[3:]]))
    both = (values > values.mean(0)).astype(int)
    words = "estimator: expected a classifier of one label a record, got RandomForestClassifier with another kind of"
    with pytest.raises(InputError, match=words):
        from_sklearn(RandomForestClassifier(5, random_state=0).fit(X, both), X, both)


@pytest.mark.parametrize(
    ("model", "held_out"),
    [
        (HistGradientBoostingClassifier(max_iter=5, early_stopping=True), True),
        (HistGradientBoostingClassifier(max_iter=5, early_stopping=True, validation_fraction=None), False),
        (HistGradientBoostingClassifier(max_iter=5, early_stopping="auto"), False),  # on from 10,000 records
        (GradientBoostingClassifier(n_estimators=5, n_iter_no_change=3), True),
        (GradientBoostingClassifier(n_estimators=5), False),
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
    words = "estimator: expected a fit on every record, got early stopping on a validation set, .*; fit without early"
    with pytest.raises(InputError, match=words):
        from_sklearn(model, X, labels)
