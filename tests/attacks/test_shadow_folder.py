"""The folder of shadow models: killed and resumed runs, other plans, seconds, removal."""

import fcntl
import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from giveaway.attacks.shadow_store import ShadowFolder, ShadowStore, stored_seconds
from giveaway.storage.folder import LOCK
from tests import forked
from tests.attacks.test_shadow import RECORDS, interrupted_after, noise_and_membership, plain_loop, run
from tests.conftest import refused


def test_an_interrupted_run_goes_on(tmp_path):
    left = [3]
    train = interrupted_after(left)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, train=train)
    assert len(list(tmp_path.glob("model-*.npy"))) == 3
    left[0] = 3  # exactly the missing ones
    np.testing.assert_array_equal(run(tmp_path, train=train).values[..., 0], plain_loop()[0])
    assert sorted(file.name for file in tmp_path.iterdir()) == [
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


@pytest.mark.slow
def test_kill_9_and_resume(tmp_path):
    folder = tmp_path / "run"
    process = forked.started(["-c", SLOW_RUN, folder], os.environ, None, tmp_path)
    deadline = time.monotonic() + 60
    while len(list(folder.glob("model-*.npy"))) < 2 and time.monotonic() < deadline:
        if len(list(folder.glob("model-*.npy"))) == 1:
            refused(r"expected a folder of its own, got .* in use by another run", run, folder, models=20, code="1")
        time.sleep(0.02)
    process.kill()
    process.join()
    kept = len(list(folder.glob("model-*.npy")))
    assert 2 <= kept < 20
    (folder / ".giveaway-model-000019.npy-abcdef01.part").write_bytes(b"half")
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
    expected = plain_loop(rows=RECORDS + 1)[0]
    rename, names = os.replace, []

    def killed(source, target):
        names.append(Path(target).name)
        if names[-1] == at:
            raise KeyboardInterrupt
        rename(source, target)

    for at in ("values.npy", "population.npy", "members.npy", "signals.json"):
        with monkeypatch.context() as patch:
            patch.setattr("os.replace", killed)
            patch.setattr(ShadowFolder, "settle", lambda self: None)  # as after a kill
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path, 6, **options)
        assert names[-1] == at
        signals = run(tmp_path, 6, **options)
        np.testing.assert_array_equal(signals.values[..., 0], expected[:, :RECORDS])
        np.testing.assert_array_equal(signals.population[..., 0], expected[:, RECORDS:])
        ShadowFolder(tmp_path).remove()
        run(tmp_path, 2, **options)


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
        ({"y": np.zeros(RECORDS, dtype=int)}, "got labels differ;"),
        ({"population": 3}, "got population was 0, is 3;"),
        ({"train": changed_train}, "got code differ;"),
    ],
)
def test_a_changed_plan_is_refused(tmp_path, options, words):
    run(tmp_path, 2)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    refused(words, run, tmp_path, 4, **options)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_another_version_of_giveaway_and_a_second_run_are_refused(tmp_path, monkeypatch):
    run(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr("giveaway.attacks.shadow_store.VERSION", "99.0")
        refused(r"giveaway was '.*', is '99.0'", run, tmp_path, 4)
    with open(tmp_path / LOCK, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(r"got .*, in use by another run; wait for that run", run, tmp_path, 4)
    run(tmp_path, 4)


def test_files_are_private_and_a_folder_of_something_else_is_refused(tmp_path):
    run(tmp_path / "run", 2)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "run").iterdir()} == {0o600}
    refused("folder: expected a new, empty or earlier shadow folder", run, tmp_path)


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


def test_seconds_that_are_unknown_or_half_a_line_and_of_a_model_trained_twice_the_last(tmp_path):
    run(tmp_path / "run", 2)
    (tmp_path / "run" / "seconds.csv").unlink()
    assert run(tmp_path / "run", 4).models == 4
    assert stored_seconds(tmp_path / "run", 4) is None
    assert stored_seconds(tmp_path / "signals.npz", 4) is None
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
    (folder / ".giveaway-values.npy-abcdef01.part").write_bytes(b"half")
    mine = {"model-a.npy", "values.npy.bak", "notes.txt", ".notes.txt-abc.part"}
    for name in mine:
        (folder / name).write_text("mine")
    written = {file.name for file in folder.iterdir()} - mine
    assert {"model-000002.npy", "values.npy", "population.npy", "members.npy", "seconds.csv"} < written
    assert ShadowFolder(folder).marked
    assert ShadowFolder(folder).remove() == len(written) - 1  # and what was half written
    assert {file.name for file in folder.iterdir()} == mine
    assert not ShadowFolder(folder).marked
    run(tmp_path / "alone", 2)
    ShadowFolder(tmp_path / "alone").remove()
    assert not (tmp_path / "alone").exists()


# ------------------------------------------------------------------------------------------------ damage


def flipped(file):
    content = bytearray(file.read_bytes())
    content[-3] ^= 64
    file.write_bytes(content)


DAMAGES = {
    "no bytes": lambda file: file.write_bytes(b""),
    "half of them": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "a flipped bit": flipped,
    "another shape": lambda file: np.save(file, np.zeros((9, 2), dtype=np.load(file).dtype)),
    "others of its kind": lambda file: np.save(file, 1 - np.load(file).astype(float)),
    "a link": lambda file: (file.rename(file.parent.parent / "there"), file.symlink_to(file.parent.parent / "there")),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["model-000001.npy", "values.npy", "members.npy"])
def test_a_damaged_file_is_named_and_trained_again_once_it_is_removed(tmp_path, name, damage):
    folder = tmp_path / "run"

    def interrupt(done, models):
        raise KeyboardInterrupt if done == 2 else SystemExit

    if name.startswith("model"):
        with pytest.raises(SystemExit):
            run(folder, 4, code="1", on_model=interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(folder, 4, code="1", on_model=interrupt)
    else:
        run(folder, 4, code="1")
    DAMAGES[damage](folder / name)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    words = rf"expected {name} as it was written, got .*{name}, damaged or changed since; remove {name}, and run again"
    refused(words, run, folder, 6, code="1")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    (folder / name).unlink()
    np.testing.assert_array_equal(run(folder, 6, code="1").values[..., 0], plain_loop()[0])
    np.testing.assert_array_equal(run(folder, 6, code="1").members, plain_loop()[1])


def test_single_models_stay_until_the_array_holds_them(tmp_path, monkeypatch):
    write = ShadowStore._stage

    def other(self, name, rows, count):
        write(self, name, (row + 1 if name == "values" else row for row in rows), count)

    with monkeypatch.context() as patch:
        patch.setattr(ShadowStore, "_stage", other)
        refused(r"signals: expected the signals of model-000000.npy in values.npy, got others", run, tmp_path, 4)
    assert len(list(tmp_path.glob("model-*.npy"))) == 4
    (tmp_path / "values.npy").unlink()
    np.testing.assert_array_equal(run(tmp_path, 4).values[..., 0], plain_loop(4)[0])
