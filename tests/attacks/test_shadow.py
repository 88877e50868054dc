from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from giveaway.attacks.shadow import collect_shadows, train_shadows
from giveaway.attacks.shadow_store import ShadowFolder, ShadowPlan, balanced_membership, model_seed, stored_seconds
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
        "seconds.csv",
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
    monkeypatch.setattr("giveaway.attacks.shadow_store.VERSION", "99.0")
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


# ------------------------------------------------------------------------------------------------ seconds


def sleeping(indices, seed):
    time.sleep(0.02)
    return noise_and_membership(indices, seed)


@pytest.mark.parametrize("options", [{}, {"workers": 2, "backend": "threading"}])
def test_the_seconds_of_training_are_summed_and_survive_a_resume(tmp_path, options):
    left = [3]

    def train(indices, seed):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return sleeping(indices, seed)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, train=train, code="1")
    assert stored_seconds(tmp_path, 2) >= 0.04
    assert stored_seconds(tmp_path, 6) is None
    began = time.perf_counter()
    run(tmp_path, train=sleeping, code="1", **options)
    took = time.perf_counter() - began
    first, every = stored_seconds(tmp_path, 2), stored_seconds(tmp_path, 6)
    assert 0.12 <= every <= 2 * took + 0.5  # two workers at most
    run(tmp_path, train=sleeping, code="1")
    assert (stored_seconds(tmp_path, 2), stored_seconds(tmp_path, 6)) == (first, every)


def test_seconds_of_models_trained_together_go_to_the_next_that_is_stored(tmp_path):
    plan = ShadowPlan(RECORDS, 4, "phi", {})

    def train_missing(missing):
        time.sleep(0.05)
        yield 9, np.zeros(RECORDS)  # not asked for
        for number in missing:
            yield number, np.zeros(RECORDS)

    collect_shadows(train_missing, plan, folder=tmp_path, on_model=lambda *_: time.sleep(0.1))
    lines = [line.split(",") for line in (tmp_path / "seconds.csv").read_text().splitlines()]
    assert [int(number) for number, _ in lines] == [0, 1, 2, 3]
    seconds = [float(value) for _, value in lines]
    assert 0.05 <= seconds[0] < 0.1  # what is done with a model is no training
    assert max(seconds[1:]) < 0.05
    assert stored_seconds(tmp_path, 4) == pytest.approx(sum(seconds))


def test_a_folder_without_seconds_is_read_and_they_are_unknown(tmp_path):
    run(tmp_path, 2)
    (tmp_path / "seconds.csv").unlink()
    assert stored_seconds(tmp_path, 2) is None
    assert run(tmp_path, 4).models == 4
    assert stored_seconds(tmp_path, 4) is None
    assert stored_seconds(tmp_path / "signals.npz", 4) is None


def test_of_a_model_trained_twice_the_last_line_counts_and_half_a_line_does_not(tmp_path):
    (tmp_path / "seconds.csv").write_text("0,1.000000\n1,2.000000\n0,4.000000\n2,8.0")
    assert stored_seconds(tmp_path, 2) == 6.0
    assert stored_seconds(tmp_path, 3) is None


# ------------------------------------------------------------------------------------------------ removal


def test_what_training_wrote_is_removed_and_nothing_else(tmp_path):
    folder = tmp_path / "run"

    def interrupt(done, models):
        if done == 3:
            raise KeyboardInterrupt

    options = {"population": 1, "train": partial(noise_and_membership, rows=RECORDS + 1), "code": "1"}
    run(folder, 2, **options)
    with pytest.raises(KeyboardInterrupt):
        run(folder, 6, **options, on_model=interrupt)
    (folder / ".values.npy-abc.part").write_bytes(b"half")
    mine = {"model-a.npy", "values.npy.bak", "notes.txt", ".notes.txt-abc.part"}
    for name in mine:
        (folder / name).write_text("mine")
    written = {file.name for file in folder.iterdir()} - mine
    assert {"model-000002.npy", "values.npy", "population.npy", "members.npy", "seconds.csv", "lock"} < written
    assert ShadowFolder(folder).marked
    assert ShadowFolder(folder).remove() == len(written)
    assert {file.name for file in folder.iterdir()} == mine
    assert not ShadowFolder(folder).marked
    run(tmp_path / "alone", 2)
    ShadowFolder(tmp_path / "alone").remove()
    assert not (tmp_path / "alone").exists()


def test_a_folder_in_use_is_not_removed(tmp_path):
    run(tmp_path, 2)
    before = sorted(file.name for file in tmp_path.iterdir())
    with open(tmp_path / "lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"folder: expected a folder of its own, got .*, in use by another run"):
            ShadowFolder(tmp_path).remove()
    assert sorted(file.name for file in tmp_path.iterdir()) == before


def test_an_interrupted_removal_can_be_repeated(tmp_path, monkeypatch):
    run(tmp_path / "run", 2)
    unlink, calls = Path.unlink, []

    def interrupted(path, missing_ok=False):
        calls.append(path)
        if len(calls) == 4:
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ShadowFolder(tmp_path / "run").remove()
    assert ShadowFolder(tmp_path / "run").marked
    ShadowFolder(tmp_path / "run").remove()
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------------ Dask, memory


def test_a_dask_cluster_gives_the_same_signals(tmp_path):
    distributed = pytest.importorskip("distributed", reason="no distributed: pip install giveaway[dask]")
    here = run(tmp_path / "loky", workers=2)
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        where = []

        def train(indices, seed):
            where.append(distributed.get_worker().address)  # raises where no worker of the cluster runs it
            return noise_and_membership(indices, seed)

        there = run(tmp_path / "dask", train=train, workers=-1, backend="dask")
        assert set(where) <= set(client.scheduler_info()["workers"])
    assert there.values.tobytes() == here.values.tobytes()
    np.testing.assert_array_equal(there.members, here.members)
    with pytest.raises(InputError, match=r"backend: expected a running cluster, got 'dask' without one; make a dist"):
        run(tmp_path / "none", backend="dask")


def peak_of(folder, models, **options):
    """The most memory that collecting takes, in bytes."""
    rows = 4000

    def train(indices, seed):
        return lambda: np.random.default_rng(seed).normal(size=(rows, 10))

    given = {"records": rows, "kind": "logits", "labels": np.zeros(rows, dtype=int), **options}
    tracemalloc.start()
    try:
        signals = train_shadows(train, models=models, folder=folder, fingerprint={}, code="1", **given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert signals.values.shape == (models, rows, 1, 10)
    return peak


@pytest.mark.parametrize("options", [{}, {"workers": 2, "backend": "threading"}])
def test_memory_does_not_grow_with_the_models(tmp_path, monkeypatch, options):
    one_model = 4000 * 10 * 8
    monkeypatch.setattr("giveaway.attacks.shadow.WAITING_BYTES", 10 * one_model)
    peak_of(tmp_path / "first", 2, **options)  # what is imported or cached once
    few, many = (peak_of(tmp_path / str(models), models, **options) for models in (10, 100))
    assert many - few < 0.2 * 90 * one_model, (few / one_model, many / one_model)
