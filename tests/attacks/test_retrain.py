from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from giveaway.attacks.membership import model_seed
from giveaway.attacks.retrain import leave_one_out, retrain_without
from giveaway.checks import InputError


def test_phi_by_hand():
    # losses log(1 + e^-phi): ln 2 at 0, ln 3 at -ln 2, ln 1.5 at ln 2
    two = np.log(2.0)
    found = leave_one_out([[two, 0.0], [two, two]], [[-two, 0.0], [0.0, two]], kind="phi")
    expected = (np.log(3) + np.log(2)) / 2 - np.log(1.5)
    np.testing.assert_allclose(found.loss_gap, [expected, 0.0], atol=1e-12)
    np.testing.assert_allclose(found.memorization, [1.0, 0.0])
    np.testing.assert_allclose(found.auc, [1.0, 0.5])
    np.testing.assert_array_equal(found.records, [0, 1])


def test_logits_by_hand():
    inside = np.log([[[2.0, 1.0, 1.0]], [[6.0, 1.0, 1.0]]])  # p of class 0: 1/2, 3/4
    outside = np.log([[[1.0, 2.0, 1.0]], [[2.0, 1.0, 1.0]], [[1.0, 1.0, 8.0]]])  # 1/4, 1/2, 1/10
    found = leave_one_out(inside, outside, kind="logits", labels=[0], records=[17])
    expected = np.log([4.0, 2.0, 10.0]).mean() - np.log([2.0, 4 / 3]).mean()
    np.testing.assert_allclose(found.loss_gap, [expected], atol=1e-12)
    np.testing.assert_allclose(found.memorization, [1 - 1 / 3])
    np.testing.assert_allclose(found.auc, [5.5 / 6])
    assert found.records.tolist() == [17]


def test_squared_errors_by_hand():
    found = leave_one_out([[1.0], [3.0]], [[2.0], [6.0]], kind="squared_error")
    np.testing.assert_allclose(found.loss_gap, [2.0])
    np.testing.assert_allclose(found.auc, [0.75])
    assert found.memorization is None


def test_ridge_gap_equals_the_leverage_formula():
    """Without noise in training, the gap is e²/(1 − h)² − e² of the hat matrix."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3))
    y = x @ [1.0, 2.0, 3.0] + rng.normal(size=20)

    def train(indices, seed):
        model = Ridge(alpha=0.5, fit_intercept=False).fit(x[indices], y[indices])
        return lambda rows: (model.predict(x[rows]) - y[rows]) ** 2

    counts = []
    found = retrain_without(
        train, [4, 11], records=20, repeats=2, kind="squared_error", on_model=lambda *count: counts.append(count)
    )
    hat = np.diag(x @ np.linalg.solve(x.T @ x + 0.5 * np.eye(3), x.T))[[4, 11]]
    error = (y - x @ np.linalg.solve(x.T @ x + 0.5 * np.eye(3), x.T @ y))[[4, 11]]
    np.testing.assert_allclose(found.loss_gap, (error / (1 - hat)) ** 2 - error**2, atol=1e-10)
    np.testing.assert_array_equal(found.auc, 1.0)
    assert counts == [(k, 6) for k in range(1, 7)]


def test_training_sets_seeds_and_labels():
    calls = []

    def train(indices, seed):
        calls.append((indices.tolist(), seed))
        memory = set(indices.tolist())
        return lambda: np.array([[2.0, 0.0] if row in memory else [0.0, 1.0] for row in range(6)])

    found = retrain_without(
        train, [2], records=6, repeats=2, kind="logits", labels=np.array([1, 1, 0, 1, 1, 1]), members=[1, 2, 5], seed=3
    )
    seeds = [model_seed(number, seed=3) for number in range(2)]
    assert calls == [([1, 2, 5], seeds[0]), ([1, 2, 5], seeds[1]), ([1, 5], seeds[0]), ([1, 5], seeds[1])]
    np.testing.assert_allclose(found.memorization, [1.0])
    np.testing.assert_array_equal(found.records, [2])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "probabilities"}, "kind: expected a known name"),
        ({"without": [[1.0, 2.0]]}, r"without: expected shape \(models, 1\), got shape \(1, 2\)"),
        ({"without": [[np.nan]]}, "without: expected finite numbers, got NaN or infinity"),
        ({"kind": "logits"}, r"with_record: expected shape \(models, records, classes\)"),
        ({"kind": "logits", "with_record": [[[1.0, 2.0]]], "without": [[[1.0, 2.0]]]}, "labels: expected 1 class indi"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(InputError, match=words):
        leave_one_out(**{"with_record": [[1.0]], "without": [[1.0]], "kind": "phi", **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chosen": [7]}, "chosen: expected records of the training set"),
        ({"chosen": [0], "members": [1, 2]}, "chosen: expected records of the training set"),
        ({"repeats": 1}, "repeats: expected at least 2 models with and without, got 1"),
    ],
)
def test_driver_refusals(options, words):
    with pytest.raises(InputError, match=words):
        retrain_without(**{"train": None, "chosen": [0], "records": 5, "repeats": 2, "kind": "phi", **options})
