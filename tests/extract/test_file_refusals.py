"""from_file refuses missing keys, arrays that do not fit, pickles, and damaged files, always in one line."""

import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from giveaway.checks import InputError
from giveaway.extract import from_file
from tests.extract.examples import Bomb
from tests.extract.stored import FILES, FOLDERS, ONCE, D, M, N, linear, made, plain, refusal, save, written

KEYS = "the keys features, targets, and weight with bias, or outputs in"


def first_rows(count, **changes):
    return {name: value[:count] for name, value in made().items() if name not in ONCE} | changes


MISSING = {
    "features": (plain(features=None), "features: expected ", "; add the array features"),
    "targets": (plain(targets=None), "targets: expected ", "; add the array targets"),
    "both": (plain(weight=None), "outputs: expected ", "got keys bias, features, targets; add outputs or weight"),
    "everything": ({"junk": np.arange(2)}, "features: expected ", "got keys junk; add the array features"),
    "targets of a black box": ({"outputs": linear(made())}, "targets: expected ", "got keys outputs; add the array t"),
    "features beside a weight": (plain(features=None, outputs=linear(made())), "features: expected ", "add the array"),
}


@pytest.mark.parametrize("case", MISSING)
@pytest.mark.parametrize("form", FILES)
def test_missing_keys_are_named(tmp_path, form, case):
    stored, start, end = MISSING[case]
    message = refusal(written(tmp_path, stored, form))
    assert message.startswith(start + KEYS)
    assert end in message


@pytest.mark.parametrize("form", FOLDERS)
def test_no_targets_in_a_folder(tmp_path, form):
    folder = written(tmp_path, {name: value for name, value in made().items() if name != "targets"}, form)
    assert refusal(folder).startswith(f"targets: expected {KEYS}")


UNFIT = {
    "bias: expected weight together with bias, got bias alone": plain(outputs=linear(made()), weight=None),
    "weight: expected shape (outputs, 4), a column a feature, got shape (3, 2)": plain(weight=np.ones((3, 2))),
    "bias: expected shape (3,), one number an output, got shape (2,)": plain(bias=np.ones(2)),
    "features: expected shape (records, features), got shape (23,)": plain(features=np.ones(N)),
    "outputs: expected features @ weight.T + bias, got a difference": plain(outputs=linear(made())[::-1]),
    "l2: expected shape (1,), one penalty for the whole head, got shape (2,)": plain(l2=np.ones(2)),
    "features: expected an array of numbers, got dtype <U1": plain(features=np.full((N, D), "a")),
    "features: expected finite numbers, got NaN": plain(features=np.full((N, D), np.nan)),
    "options: expected what Head.save writes in head.npz, got another text": plain(options=np.array("{}")),
    "outputs: expected logits, got probabilities, ": {"outputs": np.full((N, M), 1 / M), "targets": made()["targets"]},
}


@pytest.mark.parametrize("words", UNFIT)
def test_arrays_that_do_not_fit(tmp_path, words):
    assert refusal(written(tmp_path, UNFIT[words])).startswith(words)


@pytest.mark.parametrize("l2", [float("nan"), float("inf"), -1.0])
def test_a_penalty_that_is_no_number(tmp_path, l2):
    assert refusal(written(tmp_path, plain()), l2=l2).startswith("l2: expected a finite number of at least 0")


def test_files_and_folders_of_something_else(tmp_path):
    words = "file: expected an .npz or .safetensors file, got head.csv; save the arrays"
    assert refusal(tmp_path / "head.csv").startswith(words)
    assert refusal(tmp_path / "absent.npz").startswith("file: expected a file that exists, got ")
    with (tmp_path / "single.npz").open("wb") as stream:
        np.save(stream, made()["features"])
    assert refusal(tmp_path / "single.npz").startswith("file: expected a whole .npz file, got single.npz")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("nothing")
    words = "file: expected a folder with .npy, .npz or .safetensors files, got none in"
    assert refusal(tmp_path / "empty").startswith(words)
    folder = written(tmp_path, made(), "npz folder")
    np.save(folder / "features.npy", made()["features"])
    assert refusal(folder).startswith("file: expected files of one kind in the folder, got .npy and .npz in rows; keep")


# ------------------------------------------------------------------------------------------------ shards


@pytest.mark.parametrize("kind", FILES)
def test_shards_that_do_not_fit_each_other(tmp_path, kind):
    folder, last = written(tmp_path, made(), f"{kind} folder"), f"z.{kind}"
    for words, shard in {
        "features: expected rows of shape (4,) and type float32 as": first_rows(
            2, features=np.ones((2, 5), np.float32)
        ),
        "features: expected rows of shape (4,) and type float32 as in": first_rows(2, features=np.ones((2, D))),
        f"targets: expected 3 rows in {last}, as of features, got 2": first_rows(3, targets=np.arange(2)),
    }.items():
        save(folder / last, shard)
        assert refusal(folder).startswith(words)
    rows = first_rows(2)
    del rows["targets"]
    save(folder / last, rows)
    assert refusal(folder).startswith(f"targets: expected 2 rows in {last}, as of features, got 0 rows; write one row")
    (folder / last).unlink()
    save(folder / f"head.{kind}", {"weight": made()["weight"]})
    words = f"weight: expected one weight in the folder, got one in head.{kind} and one in part-003.{kind}; keep one of"
    assert refusal(folder).startswith(words)


def test_npy_files_that_do_not_fit_each_other(tmp_path):
    folder = written(tmp_path, made(), "npy folder")
    np.save(folder / "features-001.npy", np.ones((0, D + 1)))
    message = refusal(folder)
    assert message.startswith("features: expected rows of shape (4,) and type float32 as in ")
    assert "got rows of shape (5,) and type float64 in features-001.npy" in message
    np.save(folder / "features-001.npy", np.ones((0, D)))
    assert "got rows of shape (4,) and type float64 in features-001.npy; write all shards with" in refusal(folder)
    np.save(folder / "features.npy", made()["features"])
    assert refusal(folder).startswith("features: expected one features in the folder, or features-*.npy alone, got")
    for file in folder.glob("features*"):
        file.unlink()
    np.save(folder / "features.npy", made()["features"])
    np.save(folder / "targets-000.npy", np.arange(8) % M)
    assert refusal(folder).startswith("targets: expected 23 rows, one a record, got shape (22,)")
    np.save(folder / "weight-1.npy", made()["weight"])
    assert refusal(folder).startswith("weight: expected one weight in the folder, got one in weight-1.npy and one in")


# ------------------------------------------------------------------------------------------------ damage


def test_pickled_arrays_are_refused_unread(tmp_path):
    bombs = np.array([Bomb(tmp_path / "exploded")] * N, dtype=object)
    one, some, parts = (tmp_path / name for name in ("one.npz", "some", "parts"))
    for place in (some, parts):
        place.mkdir()
    np.savez(one, allow_pickle=True, **plain(targets=bombs))
    np.savez(parts / "a.npz", allow_pickle=True, **made() | {"features": bombs})
    np.save(written(some, made(), "npy folder", [0, N]) / "features-000.npy", bombs, allow_pickle=True)
    for path in (one, parts, some / "rows"):
        assert refusal(path).startswith("file: expected arrays that need no pickle, got ")
    (tmp_path / "raw.npz").write_bytes(b"\x80\x04N.")
    assert refusal(tmp_path / "raw.npz").startswith("file: expected a whole .npz file, got raw.npz")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("form", [*FILES, *FOLDERS])
def test_damaged_files_fail_in_one_line_whatever_the_damage(tmp_path, monkeypatch, form, large, step):
    kind, _, folder = form.partition(" ")
    if large:
        for place in ("records.rows", "extract.user_files"):
            monkeypatch.setattr(f"giveaway.{place}.LARGE_BYTES", 1)
    path = damaged = written(tmp_path, plain(), form, [0, N])
    if folder:
        damaged = path / ("features-000.npy" if kind == "npy" else f"part-000.{kind}")
    whole, errors = damaged.read_bytes(), []
    for size in (0, 3, 50, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:size])
        words = f"file: expected a whole .{kind} file, got {damaged.name}, truncated or not of that format; write"
        assert refusal(path).startswith(words)
    for at in range(0, len(whole), min(step, 5) if kind == "npy" else step):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            from_file(path)  # a changed number may pass; anything but an InputError fails the test
        except InputError as error:
            errors.append(str(error))
    assert len(errors) > 10
    assert not any("\n" in error or "pickle" in error for error in errors)


@pytest.mark.parametrize("large", [False, True])
def test_members_that_lie(tmp_path, monkeypatch, large):
    if large:
        monkeypatch.setattr("giveaway.extract.user_files.LARGE_BYTES", 1)
    source = written(tmp_path, plain())
    changes = {"long": lambda octets: octets + b"more", "garbled": lambda _: b"\x93NUMPY\x01\x00 no header"}
    for name, change in changes.items():
        path = tmp_path / f"{name}.npz"
        with zipfile.ZipFile(path, "w") as archive, zipfile.ZipFile(source) as stored:
            for member in stored.namelist():
                octets = stored.read(member)
                archive.writestr(member, change(octets) if member == "features.npy" else octets)
        if large or name == "garbled":
            words = f"file: expected a whole .npz file, got {name}.npz, truncated or not"
            assert refusal(path).startswith(words)


def test_a_type_that_is_not_known(tmp_path):
    tensors = {name: torch.as_tensor(value) for name, value in made().items()}
    tensors["features"] = tensors["features"].to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "head.safetensors")
    words = "features: expected numbers of a known type in head.safetensors, got type F8_E4M3; convert it to float32"
    assert refusal(tmp_path / "head.safetensors").startswith(words)
