"""Models trained in slices, and on engines whose workers die: nothing is lost, nothing is there twice."""

import os
import signal
import sys
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from giveaway.attacks import collect_slices
from giveaway.attacks.shadow_store import ShadowFolder, stored_seconds
from giveaway.records import Signals
from tests import forked
from tests.attacks.test_shadow import POPULATION, RECORDS, interrupted_after, noise_and_membership, plain_loop, run
from tests.conftest import refused

PARTS = (range(4, 9), range(0, 4), range(9, 12))  # of any size, in any order


def of_slice(folder, only, models=12, **options):
    return run(folder, models, only=only, code="1", **options)


def test_slices_are_the_models_of_one_run(tmp_path):
    values, members = plain_loop(12)
    for only in PARTS:
        found = of_slice(tmp_path, only, about={"trained": "by hand"})
        np.testing.assert_array_equal(found.values[..., 0], values[only.start : only.stop])
    signals, about = collect_slices(tmp_path)
    assert about == {"trained": "by hand"}
    np.testing.assert_array_equal(signals.values[..., 0], values)
    np.testing.assert_array_equal(signals.members, members)
    assert stored_seconds(tmp_path, 12) > 0
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"members.npy", "seconds.csv", "shadow.json", "signals.json", "values.npy"}
    # the folder is that of one run: it grows, a slice of it is there already, and it is collected
    trained = []

    def train(indices, seed):
        trained.append(seed)
        return noise_and_membership(indices, seed)

    again = of_slice(tmp_path, PARTS[0], train=train)
    np.testing.assert_array_equal(again.values[..., 0], values[4:9])
    assert not trained
    np.testing.assert_array_equal(collect_slices(tmp_path)[0].values, signals.values)
    of_slice(tmp_path, range(12, 14), 14)
    np.testing.assert_array_equal(collect_slices(tmp_path)[0].values[..., 0], plain_loop(14)[0])
    np.testing.assert_array_equal(run(tmp_path, 16, code="1").values[..., 0], plain_loop(16)[0])


def test_labels_and_a_population_are_joined_too(tmp_path):
    def train(indices, seed):
        return lambda rows: np.stack([rows, rows + seed % 7, -rows], axis=1).astype(np.float32)

    y = np.arange(RECORDS + POPULATION) % 3
    options = {"population": POPULATION, "y": y, "kind": "logits", "train": train}
    whole = run(tmp_path / "whole", 4, **options)
    for only in (range(2), range(2, 4)):
        of_slice(tmp_path / "parts", only, 4, **options)
    joined, _ = collect_slices(tmp_path / "parts")
    for name in ("values", "members", "labels", "population", "population_labels"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))


def test_a_slice_that_was_stopped_goes_on_and_is_not_collected_before(tmp_path):
    left = [3]
    train = interrupted_after(left)
    with pytest.raises(KeyboardInterrupt):
        of_slice(tmp_path, range(4, 12), train=train)
    refused(
        "collect: expected all 12 models, got 12 missing, the first of them number 0; train", collect_slices, tmp_path
    )
    of_slice(tmp_path, range(4))
    refused(
        "collect: expected all 12 models, got 8 missing, the first of them number 4; train", collect_slices, tmp_path
    )
    left[0] = 5
    of_slice(tmp_path, range(4, 12), train=train)
    of_slice(tmp_path, range(4, 12), train=train)
    assert left == [0]
    np.testing.assert_array_equal(collect_slices(tmp_path)[0].values[..., 0], plain_loop(12)[0])


def test_collecting_that_is_killed_loses_nothing(tmp_path, monkeypatch):
    for only in PARTS:
        of_slice(tmp_path, only)
    remove, put = ShadowFolder.remove, ShadowFolder.stage

    def killed(self, *arguments):
        if self.path == tmp_path and len(list(tmp_path.glob("model-*"))) == 5:
            raise KeyboardInterrupt
        return put(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ShadowFolder, "stage", killed)
        with pytest.raises(KeyboardInterrupt):
            collect_slices(tmp_path)
    assert not (tmp_path / "signals.json").exists()

    def late(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ShadowFolder, "remove", late)
        with pytest.raises(KeyboardInterrupt):
            collect_slices(tmp_path)
    assert len(ShadowFolder(tmp_path).slices()) == 3
    np.testing.assert_array_equal(collect_slices(tmp_path)[0].values[..., 0], plain_loop(12)[0])
    assert not (tmp_path / "slices").exists()
    assert remove(ShadowFolder(tmp_path)) == 5
    assert not tmp_path.exists()


def test_what_is_refused(tmp_path):
    for only in (range(3, 3), range(-1, 4), range(8, 13), range(0, 8, 2)):
        refused(r"only: expected models in 0:12, got .*; count from 0", of_slice, tmp_path, only)
    of_slice(tmp_path, range(4))
    refused(
        "only: expected models that no other slice has, got some of 0:4; name slices", of_slice, tmp_path, range(2, 6)
    )
    refused(r"only: expected the models of a slice, got 1 slices .*; collect the slices", run, tmp_path, 12)
    of_slice(tmp_path, range(4, 12), seed=1)
    words = r"folder: expected slices of one recipe and version, got seed was 1, is 0; remove .*000004-000012 with"
    refused(words, collect_slices, tmp_path)
    ShadowFolder(tmp_path / "slices" / "000004-000012").remove()
    of_slice(tmp_path, range(4, 12))
    damaged = tmp_path / "slices" / "000004-000012" / "values.npy"
    damaged.write_bytes(damaged.read_bytes()[:-8] + b"damaged!")
    refused("expected values.npy as it was written, got .*damaged or changed since", collect_slices, tmp_path)


def test_slices_of_two_types_are_refused_and_the_odd_one_can_be_trained_again(tmp_path):
    def rounded(chosen, seed, *rest):
        return lambda: noise_and_membership(chosen, seed, *rest)().astype(np.float32)

    of_slice(tmp_path, range(4))
    of_slice(tmp_path, range(4, 12), train=rounded)
    for _ in range(2):
        refused("collect: expected signals of one kind and type, got model 4", collect_slices, tmp_path)
    ShadowFolder(tmp_path / "slices" / "000004-000012").remove()
    of_slice(tmp_path, range(4, 12))
    np.testing.assert_array_equal(collect_slices(tmp_path)[0].values[..., 0], plain_loop(12)[0])


def test_another_version_is_refused_and_all_slices_are_removed_with_their_folder(tmp_path, monkeypatch):
    of_slice(tmp_path / "run", range(4))
    monkeypatch.setattr("giveaway.attacks.shadow_store.VERSION", "99.0")
    of_slice(tmp_path / "run", range(4, 12))
    refused(r"one recipe and version, got giveaway was '99.0', is ", collect_slices, tmp_path / "run")
    ShadowFolder(tmp_path / "run").remove()
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------------------------------------ engines


@contextmanager
def cluster(engine):
    """Two workers of an engine that really runs."""
    if engine == "dask":
        distributed = pytest.importorskip("distributed", reason="no distributed: pip install giveaway[dask]")
        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
        forked.serve()  # or each worker, and what replaces one, would import all the libraries
        with (
            import_module("dask").config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
            distributed.LocalCluster(**options) as made,
            distributed.Client(made),
        ):
            yield
    elif engine == "ray":
        ray = pytest.importorskip("ray", reason="no Ray: pip install giveaway[ray]")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        try:
            yield
        finally:
            ray.shutdown()
    else:
        yield


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loky", "dask", "ray"])
def test_a_worker_that_is_killed_loses_nothing_and_nothing_is_there_twice(tmp_path, monkeypatch, engine):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # or Ray writes a token into the home folder
    log, killed = tmp_path / "log", tmp_path / "killed"

    def train(indices, seed):
        with log.open("a") as stream:
            stream.write(f"{seed} {os.getpid()}\n")
        time.sleep(0.1)
        if log.read_text().count("\n") >= 5 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.random.default_rng(seed).normal(size=RECORDS) + 3.0 * np.isin(np.arange(RECORDS), indices)

    def again():
        return run(tmp_path / "run", 12, train, code="1", workers=2, backend=engine)

    with cluster(engine):
        if engine == "dask":  # whose scheduler gives the lost model to the other worker
            signals = again()
        else:
            refused("workers: expected processes that live, got one that was killed.* finished models are kept", again)
            kept = len(list((tmp_path / "run").glob("model-*.npy")))
            assert kept >= 3
            signals = again()
    assert killed.exists()
    np.testing.assert_array_equal(signals.values[..., 0], plain_loop(12)[0])
    assert Signals.load(tmp_path / "run").models == 12
    said = [line.split() for line in log.read_text().splitlines()]
    assert len({process for _, process in said} - {str(os.getpid())}) >= 2
    assert len({seed for seed, _ in said}) == 12
    assert len(said) <= 16  # of each worker what it had in hand when one was killed, and what was not yet handed over
    assert not list(Path(tmp_path / "run").glob("model-*"))


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_an_engine_that_is_not_there_is_said_in_a_line(tmp_path, monkeypatch, engine):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = rf"backend: expected a running cluster, got '{engine}' without one; pip install giveaway\[{engine}\], and"
    refused(words, run, tmp_path, backend=engine)
