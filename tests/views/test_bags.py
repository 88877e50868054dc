"""The view of the bag: losses of out-of-bag predictions, by record and by person, and what has none."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from giveaway import Head, from_sklearn
from giveaway.scores.fusion import normal_scores
from giveaway.views.all_views import BagsView
from tests.conftest import KINDS, made_arrays

SILENT = [2, 3, 50]


def head_of(kind, **options):
    made = made_arrays(kind)
    n, m = made["outputs"].shape
    bag = np.random.default_rng(1).normal(size=(n, m))
    bag[SILENT] = np.nan
    keep = {name: made[name] for name in ("outputs", "targets", "loss")}
    return Head(None, **keep, out_of_bag=bag, **options), bag


def loss_by_hand(kind, f, y):
    if kind.startswith("squared"):
        return float(((f - y) ** 2).sum())
    if kind in ("one_logit", "multi_label"):
        p = 1 / (1 + np.exp(-f))
        return -float((y * np.log(p) + (1 - y) * np.log(1 - p)).sum())
    p = np.exp(f) / np.exp(f).sum()
    right = y if np.ndim(y) else np.eye(len(f))[int(y)]
    return -float((right * np.log(p)).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_losses_by_hand(kind):
    head, bag = head_of(kind)
    view = BagsView(head)
    assert np.flatnonzero(~view.told).tolist() == SILENT
    assert view.report == {"without_out_of_bag": 3}
    targets = head.targets.numpy()
    expected = [loss_by_hand(kind, bag[row], targets[row]) for row in np.flatnonzero(view.told)]
    np.testing.assert_allclose(view.losses[view.told], expected, rtol=1e-12)
    np.testing.assert_allclose(view.losses[SILENT], np.median(expected))


def test_people_are_summed_and_unknown_where_one_record_is():
    groups = np.arange(60) // 2  # rows 2 and 3 are one person, 50 and 51 another
    head, _ = head_of("classes", groups=groups)
    alone, together = BagsView(replace(head, groups=None)), BagsView(head)
    assert np.flatnonzero(~together.told).tolist() == [1, 25]
    sums = alone.losses.reshape(30, 2).sum(1)
    np.testing.assert_allclose(together.losses[together.told], sums[together.told])
    assert together.attributes() == {}


@given(st.integers(0, 20), st.integers(2, 40), st.integers(0, 5))
def test_what_no_tree_is_left_for_is_in_the_middle(silent, told, seed):
    n = told + silent
    bag = np.random.default_rng(seed).permutation(np.concatenate([np.full(silent, np.nan), np.arange(told) + 1.0]))
    view = BagsView(Head(None, np.zeros(n), np.zeros(n), "squared", out_of_bag=bag))
    middle = normal_scores(view.losses)
    np.testing.assert_allclose(middle[np.isnan(bag)], 0.0, atol=1e-12)
    order = np.argsort(bag[~np.isnan(bag)])
    assert (np.diff(middle[~np.isnan(bag)][order]) > 0).all()


def test_what_the_trees_say():
    X, y = load_iris(return_X_y=True)
    forest = RandomForestClassifier(4, random_state=0).fit(X, y)
    view = BagsView(from_sklearn(forest, X, y))
    said = view.attributes()["trees_say"]
    assert 0 < (~view.told).sum() < 40
    assert set(said[~view.told]) == {-1}
    row = int(np.flatnonzero(view.told & (said != y))[0])
    trees = [t for t, seen in zip(forest.estimators_, forest.estimators_samples_, strict=True) if row not in seen]
    assert said[row] == np.mean([tree.predict_proba(X[row : row + 1])[0] for tree in trees], axis=0).argmax()
    values = RandomForestRegressor(4, random_state=0).fit(X, y)
    head = from_sklearn(values, X, y)
    np.testing.assert_array_equal(BagsView(head).attributes()["trees_say"], head.out_of_bag[:, 0].numpy())
