"""Training shadow models: the split of the records, the engine, its failures, its memory."""

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway.attacks.retraining import Retraining
from giveaway.attacks.shadow import train_shadows
from giveaway.attacks.shadow_store import balanced_membership, model_membership, model_seed
from giveaway.checks import InputError
from giveaway.records import Signals
from tests.conftest import refused

RECORDS = 23
POPULATION = 5
ONE_MODEL = 4000 * 10 * 8  # bytes


def noise_and_membership(indices, seed, rows=RECORDS):
    """A 'model' whose signals show its training set and its seed."""

    def predict():
        return np.random.default_rng(seed).normal(size=rows) + 3.0 * np.isin(np.arange(rows), indices)

    return predict


def run(folder, models=6, train=noise_and_membership, **options):
    """Train with options of train_shadows and of Retraining."""
    asked = {name: options.pop(name) for name in ("seed", "population", "on_model", "only", "about") if name in options}
    given = {"kind": "phi", "fingerprint": {"data": np.arange(3)}, **options}
    given.setdefault("records", None if "y" in given else RECORDS + asked.get("population", 0))
    return train_shadows(Retraining(train, **given), models=models, folder=folder, **asked)


def interrupted_after(left):
    """A training that is interrupted after left[0] models."""

    def train(indices, seed):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return noise_and_membership(indices, seed)

    return train


def plain_loop(models=6, seed=0, rows=RECORDS):
    members = balanced_membership(models, RECORDS, seed=seed)
    seeds = [model_seed(number, seed=seed) for number in range(models)]
    rows_of = [noise_and_membership(np.flatnonzero(m), s, rows)() for m, s in zip(members, seeds, strict=True)]
    return np.stack(rows_of), members


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"workers": 2}, marks=pytest.mark.slow), {"workers": 2, "backend": "threading"}]
)
def test_signals_equal_a_plain_loop(tmp_path, options):
    signals = run(tmp_path / "run", **options)
    values, members = plain_loop()
    np.testing.assert_array_equal(signals.values[..., 0], values)
    np.testing.assert_array_equal(signals.members, members)
    assert isinstance(signals.values.base, np.memmap)
    assert Signals.load(tmp_path / "run").models == 6


def test_population_labels_and_the_rows_to_predict(tmp_path):
    def train(indices, seed):
        return lambda rows: np.stack([rows, rows + seed % 7, -rows], axis=1).astype(np.float32)

    labels, others = np.arange(RECORDS) % 3, np.arange(POPULATION) % 3
    options = {"population": POPULATION, "y": np.concatenate([labels, others]), "kind": "logits"}
    signals = run(tmp_path, 4, train, **options)
    assert signals.values.shape == (4, RECORDS, 1, 3)
    assert signals.values.dtype == np.float32
    np.testing.assert_array_equal(signals.values[2, :, 0, 0], np.arange(RECORDS))
    np.testing.assert_array_equal(signals.population[2, :, 0, 0], RECORDS + np.arange(POPULATION))
    np.testing.assert_array_equal(signals.labels, labels)
    more = run(tmp_path, 6, train, **options)
    np.testing.assert_array_equal(more.values[:4], signals.values)
    np.testing.assert_array_equal(more.population[:4], signals.population)


def test_added_models_leave_the_earlier_ones_and_fewer_are_a_part(tmp_path):
    trained, seen = [], []

    def train(indices, seed):
        trained.append(seed)
        return noise_and_membership(indices, seed)

    run(tmp_path, 4, train, on_model=lambda *counts: seen.append(counts))
    grown = run(tmp_path, 8, train, on_model=lambda *counts: seen.append(counts))
    assert trained == [model_seed(number, seed=0) for number in range(8)]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4), (5, 8), (6, 8), (7, 8), (8, 8)]
    np.testing.assert_array_equal(grown.values[..., 0], plain_loop(8)[0])
    part = run(tmp_path, 2, train)
    assert len(trained) == 8
    assert part.models == 2
    assert Signals.load(tmp_path).models == 8


def test_a_train_that_raises_names_model_and_seed_and_the_others_go_on(tmp_path):
    seeds = [model_seed(number, seed=0) for number in range(6)]

    def train(indices, seed):
        if seed in (seeds[1], seeds[4]):
            raise ZeroDivisionError("no such\nluck")
        return noise_and_membership(indices, seed)

    with pytest.raises(InputError) as caught:
        run(tmp_path, train=train, code="1")
    words = str(caught.value)
    assert words.startswith(
        f"train: expected signals from all 6 models, got 2 without: model 1 (seed {seeds[1]}): "
        f"ZeroDivisionError at line {train.__code__.co_firstlineno + 2} of test_shadow.py; model 4 (seed {seeds[4]}): "
    )
    assert "4 finished models are kept in" in words
    assert "\n" not in words
    assert "in train" in caught.value.__notes__[0]
    np.testing.assert_array_equal(run(tmp_path, code="1").values[..., 0], plain_loop()[0])


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (np.full(RECORDS, np.nan), "outputs: expected finite numbers, got NaN or infinity in 23 rows, first in row 0"),
        (np.zeros(RECORDS - 1), r"outputs: expected 23 rows, one a record, got shape \(22,\); predict every record"),
        (np.zeros(RECORDS, dtype=int), "outputs: expected floating-point numbers, got int64, as of predicted classes"),
        (np.zeros(RECORDS, dtype=np.float32), r"got float32 of shape \(23,\)"),
    ],
)
def test_unusable_signals_are_a_failure_of_that_model(tmp_path, gives, words):
    def train(indices, seed):
        return noise_and_membership(indices, seed) if seed != model_seed(3, seed=0) else lambda: gives

    refused(rf"model 3 \(seed \d+\): .*{words}.*5 finished models are kept", run, tmp_path, train=train)


def test_devices_go_round(tmp_path):
    def train(indices, seed, device):
        return lambda: np.full(RECORDS, float(device[-1]))

    signals = run(tmp_path, 4, train, devices=("cuda:1", "cuda:2"))
    np.testing.assert_array_equal(signals.values[:, 0, 0], [1, 2, 1, 2])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"models": 5}, "models: expected an even number of models, got 5"),
        ({"kind": "logit"}, "kind: expected a known name, got 'logit'; did you mean logits"),
        ({"kind": "logits"}, "y: expected the labels or values that outputs are held against, got none; pass y="),
        ({"y": [1, 2], "records": 23}, "records: expected 2 records, as in y, got 23; pass X and y of the same"),
        ({"backend": "spark"}, "backend: expected a known name, got 'spark'"),
        ({"workers": 0}, "workers: expected a count of at least 1, or -1"),
        (
            {"devices": ("cpu",)},
            r"train: expected a function of \(rows, seed, device\), got one of \(indices, seed, rows=23\); t",
        ),
        ({"fingerprint": {"seed": 1}}, "fingerprint: expected names of its own, got seed"),
        ({"fingerprint": {"a": object()}}, "fingerprint: expected arrays, numbers, strings.*got object"),
    ],
)
def test_refusals(tmp_path, options, words):
    refused(words, run, tmp_path / "new", **options)


@pytest.mark.slow
def test_a_train_that_cannot_be_sent_is_said_in_a_line(tmp_path):
    held = threading.Lock()

    def locked(indices, seed):
        with held:
            return noise_and_membership(indices, seed)

    refused("train: expected a function that can be sent to another", run, tmp_path, train=locked, workers=2)


# ------------------------------------------------------------------------------------------------ memory


def peak_of(folder, models, **options):
    """The most memory that collecting takes, in models."""

    def train(indices, seed):
        return lambda: np.random.default_rng(seed).normal(size=(4000, 10))

    training = Retraining(train, y=np.zeros(4000, dtype=int), kind="logits", code="1", **options)
    tracemalloc.start()
    try:
        signals = train_shadows(training, models=models, folder=folder)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert signals.values.shape == (models, 4000, 1, 10)
    return peak / ONE_MODEL


@pytest.mark.parametrize("options", [{}, {"workers": 2, "backend": "threading"}])
def test_memory_does_not_grow_with_the_models(tmp_path, monkeypatch, options):
    monkeypatch.setattr("giveaway.attacks.shadow.WAITING_BYTES", 10 * ONE_MODEL)
    peak_of(tmp_path / "first", 2, **options)  # what is imported or cached once
    few, many = (peak_of(tmp_path / str(models), models, **options) for models in (10, 50))
    assert many - few < 14, (few, many)  # of 40: ten may wait, and two are in hand


# ------------------------------------------------------------------------------------------------ membership


@given(pairs=st.integers(1, 10), records=st.integers(2, 60), seed=st.integers(0, 2**40))
def test_every_record_is_in_half_the_models_and_every_model_has_half_the_records(pairs, records, seed):
    members = balanced_membership(2 * pairs, records, seed=seed)
    assert (members.sum(axis=0) == pairs).all()
    assert set(members.sum(axis=1)) <= {records // 2, records - records // 2}


def test_more_models_leave_the_earlier_ones_and_seeds_and_pairs_differ():
    all_at_once = balanced_membership(20, 40, seed=4)
    np.testing.assert_array_equal(balanced_membership(6, 40, seed=4), all_at_once[:6])
    np.testing.assert_array_equal(balanced_membership(4, 40, seed=4, first=6), all_at_once[6:10])
    np.testing.assert_array_equal(model_membership(7, 40, seed=4), all_at_once[7])
    members = all_at_once[::2]
    assert len(np.unique(members, axis=0)) == 10
    assert not np.array_equal(members, balanced_membership(20, 40, seed=1)[::2])
    assert len({model_seed(number, seed=seed) for number in range(100) for seed in (0, 1)}) == 200


def test_membership_of_two_records_is_independent():
    members = balanced_membership(4000, 40, seed=0)[::2]
    together = np.corrcoef(members[:, :6].T)
    # without replacement two records are correlated by −1/(N − 1)
    assert np.abs(together[np.triu_indices(6, 1)] + 1 / 39).max() < 0.08


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"models": 3}, "models: expected an even number of models, got 3; half of them leave each record out"),
        ({"models": 0}, "models: expected an even number of models, got 0"),
        ({"first": 1}, "models: expected an even number of models, got 4 from model 1 on"),
        ({"records": 1}, "records: expected at least two records, got 1"),
    ],
)
def test_membership_refusals(options, words):
    refused(words, balanced_membership, **{"models": 4, "records": 10, "seed": 0, **options})
