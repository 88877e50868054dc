from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from giveaway.attacks.retraining import Retraining
from giveaway.attacks.shadow import _compared, retrain_without
from giveaway.attacks.shadow_store import model_seed
from giveaway.checks import InputError
from giveaway.records import Signals
from tests.attacks.test_shadow import noise_and_membership
from tests.conftest import refused


def compared(inside, outside, kind="phi", labels=None, records=None):
    """The comparison of signals with and without each record."""
    sides = [
        Signals(np.array(v), np.full(np.shape(v)[:2], i == 0), kind, labels) for i, v in enumerate((inside, outside))
    ]
    return _compared(*sides, np.arange(sides[0].records) if records is None else records)


def test_phi_by_hand():
    # losses log(1 + e^-phi): ln 2 at 0, ln 3 at -ln 2, ln 1.5 at ln 2
    two = np.log(2.0)
    found = compared([[two, 0.0], [two, two]], [[-two, 0.0], [0.0, two]])
    expected = (np.log(3) + np.log(2)) / 2 - np.log(1.5)
    np.testing.assert_allclose(found.loss_gap, [expected, 0.0], atol=1e-12)
    np.testing.assert_allclose(found.memorization, [1.0, 0.0])
    np.testing.assert_allclose(found.auc, [1.0, 0.5])


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_vectors_by_hand(kind):
    inside = np.array([[[2.0, 1.0, 1.0]], [[6.0, 1.0, 1.0]]])  # p of class 0: 1/2, 3/4
    outside = np.array([[[1.0, 2.0, 1.0]], [[2.0, 1.0, 1.0]], [[1.0, 1.0, 8.0]]])  # 1/4, 1/2, 1/10
    sides = [np.log(v) if kind == "logits" else v / v.sum(-1, keepdims=True) for v in (inside, outside)]
    found = compared(*sides, kind=kind, labels=[0], records=[17])
    expected = np.log([4.0, 2.0, 10.0]).mean() - np.log([2.0, 4 / 3]).mean()
    np.testing.assert_allclose(found.loss_gap, [expected], atol=1e-12)
    np.testing.assert_allclose(found.memorization, [1 - 1 / 3])
    np.testing.assert_allclose(found.auc, [5.5 / 6])
    assert found.records == [17]


def test_squared_errors_by_hand():
    found = compared([[1.0], [3.0]], [[2.0], [6.0]], kind="squared_error")
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
        Retraining(train, records=20, kind="squared_error"), [4, 11], repeats=2, on_model=lambda *n: counts.append(n)
    )
    predicted = retrain_without(Retraining(Ridge(alpha=0.5, fit_intercept=False), x, y), [4, 11], repeats=2)
    np.testing.assert_allclose(predicted.loss_gap, found.loss_gap)
    hat = np.diag(x @ np.linalg.solve(x.T @ x + 0.5 * np.eye(3), x.T))[[4, 11]]
    error = (y - x @ np.linalg.solve(x.T @ x + 0.5 * np.eye(3), x.T @ y))[[4, 11]]
    np.testing.assert_allclose(found.loss_gap, (error / (1 - hat)) ** 2 - error**2, atol=1e-10)
    np.testing.assert_array_equal(found.auc, 1.0)
    assert counts == [(k, 6) for k in range(1, 7)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chosen": [7]}, "chosen: expected row numbers from 0 to"),
        ({"chosen": [1.5]}, "chosen: expected row numbers from 0 to"),
        ({"chosen": [0], "members": [0, 50]}, "members: expected row numbers from 0 to"),
        ({"chosen": [1], "members": [True] * 5}, "members: .* np.flatnonzero turns a mask into numbers"),
        ({"chosen": [0], "members": [1, 2]}, "chosen: expected records of the training set"),
        ({"repeats": 1}, "repeats: expected at least 2 models with and without, got 1"),
        ({"chosen": [0, 3, 0]}, "chosen: expected different records, got 1 repeated; name each once"),
        ({"kind": "probability"}, "kind: expected a known name, got 'probability'"),
        ({"kind": "logits"}, "y: expected the labels or values that outputs are held against, got none"),
        ({"y": [1, 2]}, "records: expected 2 records, as in y, got 5"),
        ({"backend": "spark"}, "backend: expected a known name, got 'spark'"),
        ({"workers": 0}, "workers: expected a count of at least 1, or -1"),
    ],
)
def test_driver_refusals(options, words):
    with pytest.raises(InputError, match=words):
        retrained(noise_and_membership, **{"chosen": [0], "records": 5, "repeats": 2, "kind": "phi", **options})


def retrained(train, chosen, **options):
    """Retrain with options of retrain_without and of Retraining."""
    asked = {name: options.pop(name) for name in ("repeats", "members", "seed", "folder") if name in options}
    return retrain_without(Retraining(train, **options), chosen, **asked)


ROWS = 12
OPTIONS = {"records": ROWS, "repeats": 3, "kind": "phi", "members": np.arange(10), "seed": 5}
CHOSEN = [7, 0, 4]
train_noise = partial(noise_and_membership, rows=ROWS)


def naive():
    """The same comparison by plain loops."""
    seeds = [model_seed(number, seed=5) for number in range(3)]
    everyone = np.arange(10)
    inside = [[noise_and_membership(everyone, seed, ROWS)()[record] for record in CHOSEN] for seed in seeds]
    outside = [
        [noise_and_membership(np.delete(everyone, record), seed, ROWS)()[record] for record in CHOSEN] for seed in seeds
    ]
    return compared(inside, outside)


@pytest.mark.parametrize(("options", "kept"), [({}, False), pytest.param({"workers": 2}, True, marks=pytest.mark.slow)])
def test_every_way_to_run_equals_plain_loops(tmp_path, options, kept):
    stored = {"folder": tmp_path / "run"} if kept else {}
    found = retrained(train_noise, CHOSEN, **OPTIONS, **options, **stored)
    expected = naive()
    for name in ("loss_gap", "memorization", "auc"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_array_equal(found.records, CHOSEN)


def test_finished_models_are_stored_at_once_and_a_killed_run_goes_on(tmp_path):
    left, folder = [5], tmp_path / "run"

    def train(indices, seed):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return train_noise(indices, seed)

    stored = {**OPTIONS, "folder": folder, "fingerprint": {"data": np.arange(3)}}
    with pytest.raises(KeyboardInterrupt):
        retrained(train, CHOSEN, **stored)
    assert len(list(folder.glob("model-*.npy"))) == 5
    left[0] = 3 * 4 - 5  # exactly the missing ones
    np.testing.assert_array_equal(retrained(train, CHOSEN, **stored).loss_gap, naive().loss_gap)
    signals = Signals.load(folder)
    assert signals.values.shape[:2] == (12, 3)
    np.testing.assert_array_equal(signals.members, np.tile(~np.eye(4, 3, -1, dtype=bool), (3, 1)))
    left[0] = 4  # one more round, the earlier ones as they were
    assert retrained(train, CHOSEN, **{**stored, "repeats": 4}).records.tolist() == CHOSEN
    np.testing.assert_array_equal(Signals.load(folder).values[:12], signals.values)
    for chosen, change, words in (
        (CHOSEN, {"fingerprint": {"data": np.arange(4)}}, "got data differ"),
        (CHOSEN, {"seed": 6}, "got seed was 5, is 6"),
        (CHOSEN, {"members": np.arange(11)}, "got members differ"),
        (CHOSEN[::-1], {}, "got chosen differ"),
    ):
        words = f"folder: expected shadow models of the same plan, {words}"
        refused(words, retrained, train, chosen, **{**stored, **change})


@pytest.mark.parametrize("kept", [False, True])
def test_a_train_that_raises_names_record_model_and_seed_and_the_others_go_on(tmp_path, kept):
    seed_1, done = model_seed(1, seed=5), []

    def train(indices, seed):
        if seed == seed_1 and (4 not in indices or len(indices) == 10):
            raise ZeroDivisionError("no such\nluck")
        done.append(seed)
        return train_noise(indices, seed)

    stored = {"folder": tmp_path / "run", "code": "1"} if kept else {}
    with pytest.raises(InputError) as caught:
        retrained(train, CHOSEN, **OPTIONS, **stored)
    words = str(caught.value)
    line = train.__code__.co_firstlineno + 2
    assert words.startswith(
        f"train: expected signals from all 12 models, got 2 without: model 1 with all records (seed {seed_1}): "
        f"ZeroDivisionError at line {line} of test_retrain.py; model 1 without record 4 (seed {seed_1}): ZeroDivisionEr"
    )
    assert len(done) == 10
    kept_words = f"10 finished models are kept in {tmp_path / 'run'}: repair train and run again"
    assert words.endswith(kept_words if kept else "repair train, and pass folder= to keep finished models")


def test_logits_and_wrong_signals():
    labels = np.arange(ROWS) % 3

    def train(indices, seed):
        return lambda rows: np.eye(3)[labels[rows]] * np.isin(rows, indices)[:, None]

    found = retrained(train, CHOSEN, **{**OPTIONS, "kind": "logits", "y": labels, "records": None})
    np.testing.assert_allclose(found.loss_gap, np.log(3) - np.log((np.e + 2) / np.e))
    np.testing.assert_array_equal(found.auc, 1.0)
    with pytest.raises(InputError, match=r"outputs: expected 12 rows, one a record, got shape \(3,\)"):
        retrained(lambda indices, seed: lambda: np.zeros(3), CHOSEN, **OPTIONS)
    with pytest.raises(InputError, match="predict: expected one query a record, got 2"):
        retrained(lambda indices, seed: lambda: np.zeros((ROWS, 2)), CHOSEN, **OPTIONS)
