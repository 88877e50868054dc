"""Out-of-bag predictions of forests and bagging, against a loop over records and scikit-learn's own."""

import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from giveaway.cli.source import source_from
from giveaway.extract import from_sklearn
from giveaway.extract.sklearn_unseen import out_of_bag
from tests.conftest import refused
from tests.extract.examples import ROWS

SOME = np.arange(0, ROWS, 6)
PEOPLE = np.array([f"p{row // 2}" for row in range(ROWS)])
SEED = {"random_state": 0}
FEW = {"n_estimators": 9, "random_state": 0}
CLASSIFIERS = {
    "forest": RandomForestClassifier(**FEW),
    "forest of small samples": RandomForestClassifier(**FEW, max_samples=0.2),
    "balanced forest": RandomForestClassifier(**FEW, class_weight="balanced"),
    "forest balanced by sample": RandomForestClassifier(**FEW, class_weight="balanced_subsample"),
    "extra trees": ExtraTreesClassifier(**FEW, bootstrap=True, max_depth=3),
    "bagging": BaggingClassifier(**FEW),
    "some columns, some twice": BaggingClassifier(**FEW, max_features=0.7, bootstrap_features=True),
    "samples without replacement": BaggingClassifier(**FEW, bootstrap=False, max_samples=0.6),
    "samples that miss a class": BaggingClassifier(KNeighborsClassifier(1), **FEW, max_samples=3),
    "bagged forests": BaggingClassifier(RandomForestClassifier(3, **SEED), **FEW),
    "votes": BaggingClassifier(LinearSVC(**SEED), **FEW, max_features=0.7),
}
WITHOUT_SCORE = {"samples without replacement", "samples that miss a class"}  # of scikit-learn's own
REGRESSORS = {
    "forest": RandomForestRegressor(**FEW),
    "absolute errors": RandomForestRegressor(**FEW, criterion="absolute_error", max_depth=2),
    "extra trees": ExtraTreesRegressor(**FEW, bootstrap=True, max_samples=0.3),
    "bagging": BaggingRegressor(**FEW, max_features=0.7),
    "bagged ridge": BaggingRegressor(Ridge(), **FEW),
}


def one_by_one(bag, X, groups=None, rows=SOME):
    """Ask every estimator about every record, one at a time, unless it saw a record of the same person."""
    groups = np.arange(len(X)) if groups is None else groups
    columns = getattr(bag, "estimators_features_", [np.arange(X.shape[1])] * len(bag.estimators_))
    seen, found = bag.estimators_samples_, []
    for row in rows:
        said = []
        for one, drawn, used in zip(bag.estimators_, seen, columns, strict=True):
            if groups[row] in groups[drawn]:
                continue
            record = X[row : row + 1, used]
            if hasattr(one, "predict_proba"):
                by_class = dict(zip(one.classes_.astype(int), one.predict_proba(record)[0], strict=True))
                said.append([by_class.get(place, 0.0) for place in range(len(bag.classes_))])
            elif hasattr(bag, "classes_"):
                said.append(np.arange(len(bag.classes_)) == one.predict(record)[0])
            else:
                said.append(one.predict(record)[0])
        found.append(np.mean(said, axis=0) if said else None)
    shape = np.shape(next(one for one in found if one is not None))
    return np.array([np.full(shape, np.nan) if one is None else one for one in found])


def fitted(model, X, y, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few trees for some records, as wanted
        return model.fit(X, y, **options)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_against_a_loop(X, labels, name):
    model = fitted(CLASSIFIERS[name], X, labels)
    for groups in (None, PEOPLE):
        found = out_of_bag(model, X, model.predict_proba(X), groups=groups)
        np.testing.assert_allclose(found[SOME], one_by_one(model, X, groups), rtol=1e-12, atol=1e-15)
        told = np.isfinite(found).all(axis=1)
        np.testing.assert_allclose(found[told].sum(axis=1), 1.0)
    if name == "forest":
        assert 0 < told.sum() < ROWS  # some people were seen by all trees


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors_against_a_loop(X, values, name):
    model = fitted(REGRESSORS[name], X, values[:, 0])
    for groups in (None, PEOPLE):
        found = out_of_bag(model, X, model.predict(X), groups=groups)
        np.testing.assert_allclose(found[SOME], one_by_one(model, X, groups), rtol=1e-12)


@pytest.mark.parametrize("name", sorted({*CLASSIFIERS} - WITHOUT_SCORE))
def test_classifiers_against_scikit_learn(X, labels, name):
    model = fitted(clone(CLASSIFIERS[name]).set_params(n_estimators=30, oob_score=True), X, labels)
    found = out_of_bag(model, X, model.predict_proba(X))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, model.oob_decision_function_, rtol=1e-12)


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors_against_scikit_learn(X, values, name):
    model = fitted(clone(REGRESSORS[name]).set_params(n_estimators=30, oob_score=True), X, values[:, 0])
    np.testing.assert_allclose(out_of_bag(model, X, model.predict(X)), model.oob_prediction_, rtol=1e-12)


@pytest.mark.parametrize("drawn", ["by weight", "evenly"])
def test_weights_of_the_fit(X, labels, drawn):
    """A record of weight 0 was seen by no tree, drawn or not: newer scikit-learn draws by weight, older evenly."""
    weights = np.where(np.arange(ROWS) % 5 == 0, 0.0, np.linspace(1, 2, ROWS))
    forest = fitted(RandomForestClassifier(**FEW), X, labels, sample_weight=weights if drawn == "by weight" else None)
    if drawn == "evenly":
        codes = np.unique(labels, return_inverse=True)[1]
        for tree, rows in zip(forest.estimators_, forest.estimators_samples_, strict=True):
            tree.fit(X, codes, sample_weight=np.bincount(rows, minlength=ROWS) * weights)
        refused("got others, or another order", out_of_bag, forest, X, forest.predict_proba(X))
    found = out_of_bag(forest, X, forest.predict_proba(X), sample_weight=weights)
    by_all = np.mean([tree.predict_proba(X[::5]) for tree in forest.estimators_], axis=0)
    np.testing.assert_allclose(found[::5], by_all)


def test_people_are_left_out_together(X, labels):
    """A tree that saw one record of a person says nothing of the others, whose own rows it never drew."""
    forest = fitted(RandomForestClassifier(**FEW), X, labels)
    alone, together = (out_of_bag(forest, X, forest.predict_proba(X), groups=g) for g in (None, PEOPLE))
    told = np.isfinite(together).all(axis=1)
    np.testing.assert_array_equal(told.reshape(-1, 2)[:, 0], told.reshape(-1, 2)[:, 1])
    assert np.abs(alone - together)[told].max() > 0.1
    assert out_of_bag(forest, X, forest.predict_proba(X), groups=np.zeros(ROWS, int)) is None  # one person, all trees


@given(st.integers(2, 30), st.integers(1, 6), st.integers(1, 5), st.integers(0, 3))
def test_any_shape(n, trees, columns, seed):
    rng = np.random.default_rng(seed)
    X, y = rng.integers(0, 3, (n, columns)).astype(float), rng.normal(size=n)  # equal records share leaves
    forest = RandomForestRegressor(trees, random_state=seed).fit(X, y)
    groups = rng.integers(0, n, n)
    found = out_of_bag(forest, X, forest.predict(X), groups=groups)
    try:
        expected = one_by_one(forest, X, groups, range(n))
    except StopIteration:  # every tree saw everybody
        assert found is None
        return
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_head_has_them_in_the_units_of_its_outputs(X, labels, values):
    forest = fitted(CLASSIFIERS["forest"], X, labels)
    head = from_sklearn(forest, X, labels, groups=PEOPLE)
    expected = np.log(np.maximum(one_by_one(forest, X, PEOPLE), 1e-12))
    np.testing.assert_allclose(head.out_of_bag[SOME].numpy(), expected, rtol=1e-9)
    assert head.out_of_bag.isnan().any()
    both = fitted(RandomForestRegressor(**FEW), X, values)
    head = from_sklearn(both, X, values)
    np.testing.assert_allclose(head.out_of_bag[SOME].numpy(), one_by_one(both, X), rtol=1e-12)
    one = fitted(REGRESSORS["bagged ridge"], X, values[:, 0])
    assert from_sklearn(one, X, values[:, 0]).out_of_bag.shape == (ROWS, 1)


def test_whatever_the_forest_was_given(X, labels):
    """A pipeline, a DataFrame, a sparse matrix and gaps reach the trees as in the fit."""
    forest = RandomForestClassifier(**FEW)
    plain = from_sklearn(forest.fit(X, labels), X, labels).out_of_bag
    frame = pd.DataFrame(X, columns=list("abcde"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = from_sklearn(fitted(forest, frame, labels), frame, labels).out_of_bag
        np.testing.assert_array_equal(found, plain)
        found = from_sklearn(forest.fit(sparse.csc_matrix(X), labels), sparse.csc_matrix(X), labels).out_of_bag
        np.testing.assert_array_equal(found, plain)
    piped = make_pipeline(StandardScaler(), forest).fit(X, labels)
    expected = one_by_one(forest, StandardScaler().fit_transform(X))
    found = from_sklearn(piped, X, labels).out_of_bag.exp().numpy()
    np.testing.assert_allclose(found[SOME], np.maximum(expected, 1e-12))
    gaps = np.where(X > 1, np.nan, X)
    forest.fit(gaps, labels)
    np.testing.assert_allclose(out_of_bag(forest, gaps, forest.predict_proba(gaps))[SOME], one_by_one(forest, gaps))


@pytest.mark.parametrize(
    "model",
    [
        ExtraTreesClassifier(3, random_state=0),
        RandomForestClassifier(3, random_state=0, bootstrap=False),
        BaggingClassifier(n_estimators=3, bootstrap=False),
        type("OwnForest", (RandomForestClassifier,), {})(3, random_state=0),
        KNeighborsClassifier(3),
    ],
    ids=["extra trees", "forest", "bagging", "another library's", "neighbours"],
)
def test_no_bag(X, labels, model):
    assert from_sklearn(fitted(model, X, labels), X, labels).out_of_bag is None


def test_rows_of_another_fit_are_refused(X, labels, values):
    remedy = "; pass X and sample_weight of the fit, in its order, "
    remedy += r"or build Head\(None, outputs, ...\) without out_of_bag$"
    forest = fitted(CLASSIFIERS["forest"], X, labels)
    words = f"^X: expected the 90 records that the estimator was fitted on, got 89 records{remedy}"
    refused(words, from_sklearn, forest, X[1:], labels[1:])
    words = r"^X: expected the records .* on, got others, or another order \(tree 0 has other records in its leaves\)"
    order = np.r_[1, 0, 2:ROWS]
    for model in (forest, fitted(REGRESSORS["bagging"], X, values[:, 0])):
        refused(words + remedy, from_sklearn, model, X[::-1], labels[::-1] if model is forest else values[::-1, 0])
    refused("got others, or another order", from_sklearn, forest, X[order], labels[order])
    moved = X + np.eye(ROWS, 5) * 9
    refused("got others, or another order", from_sklearn, forest, moved, labels)
    ridge = fitted(BaggingRegressor(Ridge(), **FEW, oob_score=True), X, values[:, 0])
    words = r"got others, or another order \(the estimator's own out-of-bag predictions differ\)"
    refused(words + remedy, from_sklearn, ridge, X[::-1], values[::-1, 0])


def test_warm_starts(X, labels):
    """A forest knows the seeds of all its trees, bagging only those of the last fit."""
    forest = RandomForestClassifier(5, random_state=0, warm_start=True, oob_score=True)
    fitted(forest, X, labels)
    fitted(forest.set_params(n_estimators=9), X, labels)
    np.testing.assert_allclose(out_of_bag(forest, X, forest.predict_proba(X))[SOME], one_by_one(forest, X))
    other = X[::-1] + 1
    fitted(forest.set_params(n_estimators=12), other, labels)
    refused("X: expected the records that the estimator was fitted on, got others", from_sklearn, forest, other, labels)
    bag = fitted(BaggingClassifier(n_estimators=5, random_state=0, warm_start=True), X, labels)
    fitted(bag.set_params(n_estimators=9), X, labels)
    words = "^estimator: expected a bag that knows what each of its estimators saw, got the draws of 4 of its 9 estim"
    refused(words + "ators, as after warm_start; fit it at once$", from_sklearn, bag, X, labels)


def test_several_labels_a_record_are_refused(X, values):
    both = (values > values.mean(0)).astype(int)
    forest = fitted(RandomForestClassifier(**FEW), X, both)
    refused("estimator: expected a classifier of one label a record", from_sklearn, forest, X, both)


def test_a_stored_forest_reaches_the_command_line_with_its_people(X, labels, tmp_path, monkeypatch):
    forest = fitted(CLASSIFIERS["forest"], X, labels)
    skops = pytest.importorskip("skops.io")
    skops.dump(forest, tmp_path / "forest.skops")
    joblib.dump(forest, tmp_path / "forest.joblib")
    np.savez(tmp_path / "data.npz", X=X, y=labels)
    (tmp_path / "people.txt").write_text("\n".join(PEOPLE))
    (tmp_path / "forest_data.py").write_text(
        "import numpy as np\ndef data():\n    held = np.load('data.npz')\n    return held['X'], held['y']\n"
    )
    monkeypatch.chdir(tmp_path)
    expected = from_sklearn(forest, X, labels, groups=PEOPLE).out_of_bag.numpy()
    for file in ("forest.skops", "forest.joblib"):
        options = {"estimator": file, "data": "forest_data:data", "allow_pickle": True, "groups": "people.txt"}
        head, _ = source_from(options, lambda words: None)
        np.testing.assert_array_equal(head.out_of_bag.numpy(), expected)
        assert head.groups.tolist() == PEOPLE.tolist()
