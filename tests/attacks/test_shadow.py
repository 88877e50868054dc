from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from giveaway.attacks.membership import balanced_membership, model_seed
from giveaway.attacks.shadow import train_shadows
from giveaway.checks import InputError
from giveaway.records import Signals

RECORDS = 23
POPULATION = 5


def noise_and_membership(indices, seed, rows=RECORDS):
    """A 'model' whose signals show its training set and its seed."""

    def predict():
        return np.random.default_rng(seed).normal(size=rows) + 3.0 * np.isin(np.arange(rows), indices)

    return predict


def run(folder, models=6, train=noise_and_membership, **options):
    given = {"records": RECORDS, "kind": "phi", "fingerprint": {"data": np.arange(3)}, **options}
    return train_shadows(train, models=models, folder=folder, **given)


def plain_loop(models=6, seed=0, rows=RECORDS):
    members = balanced_membership(models, RECORDS, seed=seed)
    seeds = [model_seed(number, seed=seed) for number in range(models)]
    rows_of = [noise_and_membership(np.flatnonzero(m), s, rows)() for m, s in zip(members, seeds, strict=True)]
    return np.stack(rows_of), members


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"workers": 2, "backend": "threading"}])
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
    options = {"population": POPULATION, "labels": labels, "population_labels": others, "kind": "logits"}
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
    trained = []

    def train(indices, seed):
        trained.append(seed)
        return noise_and_membership(indices, seed)

    run(tmp_path, 4, train)
    grown = run(tmp_path, 8, train)
    assert trained == [model_seed(number, seed=0) for number in range(8)]
    np.testing.assert_array_equal(grown.values[..., 0], plain_loop(8)[0])
    part = run(tmp_path, 2, train)
    assert len(trained) == 8
    assert part.models == 2
    assert Signals.load(tmp_path).models == 8


def test_an_interrupted_run_goes_on(tmp_path):
    left = [3]

    def train(indices, seed):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return noise_and_membership(indices, seed)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, train=train)
    assert len(list(tmp_path.glob("model-*.npy"))) == 3
    left[0] = 3  # exactly the missing ones
    np.testing.assert_array_equal(run(tmp_path, train=train).values[..., 0], plain_loop()[0])
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "lock",
        "members.npy",
        "shadow.json",
        "signals.json",
        "values.npy",
    ]


SLOW_RUN = """
import sys, time
import numpy as np
from tests.attacks.test_shadow import noise_and_membership, run

def train(indices, seed):
    time.sleep(0.2)
    return noise_and_membership(indices, seed)

run(sys.argv[1], models=20, train=train, code="1")
"""


def test_kill_9_and_resume(tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", SLOW_RUN, str(folder)], cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 60
    while len(list(folder.glob("model-*.npy"))) < 2 and time.monotonic() < deadline:
        if len(list(folder.glob("model-*.npy"))) == 1:
            with pytest.raises(InputError, match=r"expected a folder of its own, got .* in use by another run"):
                run(folder, models=20, code="1")
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = len(list(folder.glob("model-*.npy")))
    assert 2 <= kept < 20
    (folder / ".model-000019.npy-abc.part").write_bytes(b"half")
    trained = []

    def train(indices, seed):
        trained.append(seed)
        return noise_and_membership(indices, seed)

    signals = run(folder, models=20, train=train, code="1")
    assert len(trained) == 20 - kept
    np.testing.assert_array_equal(signals.values[..., 0], plain_loop(20)[0])
    assert not list(folder.glob(".*.part"))


def test_a_kill_while_the_array_is_assembled_loses_nothing(tmp_path, monkeypatch):
    options = {"train": partial(noise_and_membership, rows=RECORDS + 1), "population": 1}
    run(tmp_path, 2, **options)
    calls = []

    def killed(*arguments):
        calls.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr("giveaway.attacks.shadow_store.write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 6, **options)
    monkeypatch.undo()
    assert len(calls) == 1
    # as if values.npy were the last file written
    np.save(tmp_path / "population.npy", np.load(tmp_path / "population.npy")[:2])
    signals = run(tmp_path, 6, **options)
    expected = plain_loop(rows=RECORDS + 1)[0]
    np.testing.assert_array_equal(signals.values[..., 0], expected[:, :RECORDS])
    np.testing.assert_array_equal(signals.population[..., 0], expected[:, RECORDS:])


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
        f"ZeroDivisionError: no such luck; model 4 (seed {seeds[4]}): "
    )
    assert "4 finished models are kept in" in words
    assert "\n" not in words
    assert "in train" in caught.value.__notes__[0]
    np.testing.assert_array_equal(run(tmp_path, code="1").values[..., 0], plain_loop()[0])


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (np.full(RECORDS, np.nan), "NaN or infinity in its signals"),
        (np.zeros(RECORDS - 1), r"predict gave float64 of shape \(22,\) where floats of 23 rows were expected"),
        (np.zeros(RECORDS, dtype=int), "predict gave int64 of shape"),
        (np.zeros(RECORDS, dtype=np.float32), r"got float32 of shape \(23,\)"),
    ],
)
def test_unusable_signals_are_a_failure_of_that_model(tmp_path, gives, words):
    def train(indices, seed):
        return noise_and_membership(indices, seed) if seed != model_seed(3, seed=0) else lambda: gives

    with pytest.raises(InputError, match=rf"model 3 \(seed \d+\): .*{words}.*5 finished models are kept"):
        run(tmp_path, train=train)


def changed_train(indices, seed):
    return noise_and_membership(indices, seed)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fingerprint": {"data": np.arange(4)}}, "got data differ; train them in another folder"),
        ({"fingerprint": {"data": np.arange(3), "epochs": 5}}, "got epochs was None, is 5;"),
        ({"seed": 1}, "got seed was 0, is 1;"),
        ({"kind": "squared_error"}, "got kind was 'phi', is 'squared_error';"),
        ({"records": 22}, "got records was 23, is 22;"),
        ({"labels": np.zeros(RECORDS, dtype=int)}, "got labels differ;"),
        ({"population": 3}, "got population was 0, is 3;"),
        ({"train": changed_train}, "got code differ;"),
    ],
)
def test_a_changed_plan_is_refused(tmp_path, options, words):
    run(tmp_path, 2)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(InputError, match=words):
        run(tmp_path, 4, **options)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_another_version_of_giveaway_is_refused(tmp_path, monkeypatch):
    run(tmp_path, 2)
    monkeypatch.setattr("giveaway.attacks.shadow_store.__version__", "99.0")
    with pytest.raises(InputError, match=r"giveaway was '.*', is '99.0'"):
        run(tmp_path, 4)


def test_a_second_run_on_the_folder_is_refused(tmp_path):
    run(tmp_path, 2)
    with open(tmp_path / "lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"got .*, in use by another run; wait for that run"):
            run(tmp_path, 4)
    run(tmp_path, 4)


def test_files_are_private(tmp_path):
    run(tmp_path / "run", 2)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "run").iterdir()} == {0o600}


def test_devices_go_round(tmp_path):
    def train(indices, seed, device):
        return lambda: np.full(RECORDS, float(device[-1]))

    signals = run(tmp_path, 4, train, devices=("cuda:1", "cuda:2"))
    np.testing.assert_array_equal(signals.values[:, 0, 0], [1, 2, 1, 2])


def test_progress(tmp_path):
    seen = []
    run(tmp_path, 4, on_model=lambda *counts: seen.append(counts))
    run(tmp_path, 6, on_model=lambda *counts: seen.append(counts))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4), (5, 6), (6, 6)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"models": 5}, "models: expected an even number of models, got 5"),
        ({"kind": "logit"}, "kind: expected a known name, got 'logit'; did you mean logits"),
        ({"kind": "logits"}, "labels: expected a class index a record, got none"),
        ({"labels": [1, 2]}, r"labels: expected 23 class indices, got shape \(2,\)"),
        ({"backend": "spark"}, "backend: expected a known name, got 'spark'"),
        ({"workers": 0}, "workers: expected a count of at least 1, or -1"),
        ({"devices": ("cpu",)}, "devices: expected a train that takes device=, got one that does not"),
        ({"fingerprint": {"seed": 1}}, "fingerprint: expected names of its own, got seed"),
        ({"fingerprint": {"a": object()}}, "fingerprint: expected arrays, numbers, strings.*got object"),
    ],
)
def test_refusals(tmp_path, options, words):
    with pytest.raises(InputError, match=words):
        run(tmp_path / "new", **options)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match="folder: expected a new, empty or earlier shadow folder"):
        run(tmp_path)


def test_a_train_that_cannot_be_sent_is_refused(tmp_path):
    held = threading.Lock()

    def train(indices, seed):
        with held:
            return noise_and_membership(indices, seed)

    with pytest.raises(InputError, match="train: expected a function that can be sent to another process"):
        run(tmp_path, train=train, workers=2)


def test_a_killed_worker_is_said_in_a_line(tmp_path):
    def train(indices, seed):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(InputError, match="workers: expected processes that live, got one that was killed"):
        run(tmp_path, train=train, workers=2)
