"""`giveaway lood`, and the records beside an audit, as a user meets them."""

import json
import os
import re
import shlex
import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import giveaway as ga
from giveaway.cli.audit_folder import RANKING_ONLY
from giveaway.extract import from_file
from giveaway.gp.nngp import KernelChoice
from giveaway.records import ScoreTable
from tests.gp.test_lood import brute_force, median_rbf
from tests.test_cli import one_line, read_csv

N, D, M = 30, 3, 3
SECRET = "patient"
FILES = {"scores.npz", "scores.csv", "lood.png", "config.toml", "audit.json"}


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(N, D))
    inputs[:3] *= 3.0
    return {"inputs": inputs, "targets": np.arange(N) * 5 % M}


@pytest.fixture
def file(tmp_path, monkeypatch, arrays) -> str:
    """records.npz in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    np.savez("records.npz", **arrays)
    return "records.npz"


@pytest.fixture
def images(tmp_path, monkeypatch) -> np.ndarray:
    """images.npz: bytes with channels last, and float targets."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    pictures = rng.integers(0, 256, (12, 5, 4, 3)).astype(np.uint8)
    np.savez("images.npz", inputs=pictures, targets=rng.normal(size=12))
    return pictures


def one_hot(targets: np.ndarray) -> np.ndarray:
    return (targets[:, None] == np.arange(M)) - 1.0 / M


def column(path: str, name: str) -> list[float]:
    return [float(row[name]) for row in read_csv(Path(path))]


# ------------------------------------------------------------------------------------------------ what it writes


def test_it_tells_what_it_does_and_beforehand_what_that_takes(done, file, monkeypatch):
    monkeypatch.setattr("giveaway.text.SECONDS_BETWEEN_LINES", 0.0)
    out = done("lood", file, "--dry-run")
    assert re.match(r"Gaussian process of 30 records: about .*, scaled up from 30 records timed here\n", out)
    told = json.loads(done("lood", file, "--dry-run", "--json"))
    assert (told["records"], told["bytes"]) == (N, 22 * N**2)
    assert os.listdir() == [file]
    done("lood", file)
    stages = ("factoring the kernel", "leaving records out")
    assert done.err == "".join(f"Gaussian process, {stage}: 0 %\n" for stage in stages)


def test_it_writes_a_private_folder_and_prints_a_ranking(done, drawn, file, arrays):
    out = done("lood", file, "--kernel", "rbf", "--noise", 0.2, "--out", "result", "--top", 4)
    assert done.err == ""
    kl, mean = brute_force(median_rbf(arrays["inputs"]), one_hot(arrays["targets"]), 0.2)
    np.testing.assert_allclose(column("result/scores.csv", "lood_kl"), kl, rtol=1e-8)
    np.testing.assert_allclose(column("result/scores.csv", "lood_mean"), mean, rtol=1e-8)
    order = np.argsort(-kl)
    printed = re.findall(r"^ +(\d+) +(\d+) +(\S+) +(\S+)$", out, flags=re.MULTILINE)
    assert [(int(rank), int(row)) for rank, row, _, _ in printed] == list(enumerate(order[:4], start=1))
    assert [cells[2:] for cells in printed] == [(f"{kl[row]:.4g}", f"{mean[row]:.4g}") for row in order[:4]]
    assert "The 4 of 30 records ranked highest, by lood_kl under RBF(length=" in out
    assert RANKING_ONLY in out

    result = Path("result")
    assert {path.name for path in result.iterdir()} == FILES
    assert stat.S_IMODE(result.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in result.iterdir()} == {0o600}
    meta = json.loads((result / "audit.json").read_text())
    assert {*meta["files"], "audit.json"} == FILES
    assert (meta["unit"], meta["rows"], meta["noise"], meta["outputs"]) == ("record", N, 0.2, M)
    assert meta["provenance"]["config"]["kernel"] == "rbf"
    config = tomllib.loads((result / "config.toml").read_text())
    assert (config["inputs"], config["kernel"], config["noise"]) == (file, "rbf", 0.2)
    assert (result / "lood.png").read_bytes().startswith(b"\x89PNG")
    np.testing.assert_array_equal(ScoreTable.load(result)["lood_kl"], column("result/scores.csv", "lood_kl"))


@pytest.mark.parametrize(
    ("flags", "choice"),
    [
        ("", KernelChoice("nngp", depth=3)),  # the default
        ("--kernel rbf --length 0.7", KernelChoice("rbf", length=0.7)),
        ("--kernel laplace --sphere", KernelChoice("laplace", sphere=True)),
        ("--kernel linear --weight-variance 0.5", KernelChoice("linear", weight_variance=0.5)),
        ("--kernel nngp --bias-variance 2", KernelChoice("nngp", bias_variance=2.0)),
        ("--kernel nngp --depth 2 --activation erf", KernelChoice("nngp", depth=2, activation="erf")),
    ],
)
def test_options_reach_the_kernel(done, file, arrays, flags, choice):
    done("lood", file, *flags.split(), "--out", "result")
    expected = ga.lood(choice, arrays["inputs"], arrays["targets"], 0.05)
    np.testing.assert_allclose(column("result/scores.csv", "lood_kl"), expected["lood_kl"], rtol=1e-12)
    np.testing.assert_allclose(column("result/scores.csv", "lood_mean"), expected["lood_mean"], rtol=1e-12)


def test_convolutions_of_images(giveaway, done, images):
    flags = ("--kernel", "conv_nngp", "--depth", 1, "--filter-size", 2, "--stride", 2, "--padding", "valid")
    done("lood", "images.npz", *flags, "--readout", "pool", "--out", "result")
    pixels = images.transpose(0, 3, 1, 2) / 255.0
    choice = KernelChoice("conv_nngp", depth=1, filter_size=2, stride=2, padding="valid", readout="pool")
    expected = ga.lood(choice, pixels, np.load("images.npz")["targets"], 0.05)
    np.testing.assert_allclose(column("result/scores.csv", "lood_kl"), expected["lood_kl"], rtol=1e-10)
    assert giveaway("purge", "result")[1] == "Removed 5 files\n"
    assert not Path("result").exists()


@pytest.mark.parametrize("suffix", [".txt", ".npy"])
def test_people(done, file, arrays, suffix):
    names = np.array([f"{SECRET}{i % 7}" for i in range(N)])
    if suffix == ".txt":
        Path("people.txt").write_text("\n".join(names))
    else:
        np.save("people.npy", names)
    out = done("lood", file, "--kernel", "rbf", "--groups", f"people{suffix}", "--out", "result")
    assert done.err == ""
    people = sorted(set(names.tolist()))
    assert [row["id"] for row in read_csv(Path("result", "scores.csv"))] == people
    rows = [np.flatnonzero(name == names) for name in people]
    kl, mean = brute_force(median_rbf(arrays["inputs"]), one_hot(arrays["targets"]), 0.05, rows)
    np.testing.assert_allclose(column("result/scores.csv", "lood_kl"), kl, rtol=1e-7)
    np.testing.assert_allclose(column("result/scores.csv", "lood_mean"), mean, rtol=1e-7)
    assert "The 7 of 7 people ranked highest, by lood_kl" in out
    assert "Rows are lines of scores.csv" in out
    assert SECRET not in out
    assert {path.name for path in Path("result").iterdir()} == FILES


def test_json_for_machines(giveaway, done, file, arrays):
    out = done("lood", file, "--kernel", "rbf", "--out", "result", "--top", 3, "--json")
    assert done.err == ""
    result = json.loads(out)
    kl, _ = brute_force(median_rbf(arrays["inputs"]), one_hot(arrays["targets"]), 0.05)
    order = np.argsort(-kl)[:3]
    assert [entry["row"] for entry in result["top"]] == order.tolist()
    assert [entry["lood_kl"] for entry in result["top"]] == pytest.approx(kl[order].tolist(), rel=1e-8)
    assert (result["folder"], result["unit"], result["rows"], result["noise"]) == ("result", "record", N, 0.05)
    assert all(Path("result", name).is_file() for name in result["files"])
    again = done("lood", file, "--kernel", "rbf", "--out", "result", "--top", 99)
    assert "The 30 of 30 records ranked highest" in again
    line = one_line(giveaway("report", "result"))
    assert line.startswith("folder: expected an audit of a model, got result, which has none; see the tables")


# ------------------------------------------------------------------------------------------------ folders


def test_a_folder_of_other_options_or_records_is_refused_and_stays_as_it_was(giveaway, done, file, arrays):
    done("lood", file, "--out", "result")
    before = {path.name: path.read_bytes() for path in Path("result").iterdir()}
    same = "out: expected an audit of the same inputs and options, got {}; "
    same += "choose another folder, or write over it (overwrite=True, --overwrite)"
    for flags, words in (
        ("--noise 0.3", "noise was 0.05, is 0.3"),
        ("--kernel rbf", "kernel was 'nngp', is 'rbf'"),
        ("--depth 2", "depth was None, is 2"),
        ("--sphere", "sphere was False, is True"),
    ):
        assert one_line(giveaway("lood", file, *flags.split(), "--out", "result")) == same.format(words)
    for changed in ("inputs", "targets"):
        other = {name: values.copy() for name, values in arrays.items()}
        other[changed][-1] = other[changed][0]
        np.savez(file, **other)
        assert one_line(giveaway("lood", file, "--out", "result")) == same.format("inputs differ")
    assert {path.name: path.read_bytes() for path in Path("result").iterdir()} == before


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("missing.npz", "inputs: expected a file that exists, got missing.npz; check the path"),
        ("", "Missing argument 'INPUTS'"),
        ("records.npz --kernel rbg", "kernel: expected a known name, got 'rbg'; did you mean rbf?"),
        ("records.npz --length 2", "length: expected one of the kernels rbf, laplace, got nngp"),
        ("records.npz --noise much", "Invalid value for '--noise': 'much' is not a valid float."),
        ("records.npz --groups short.txt", "groups: expected one name a record, 30 in all, got shape (2,)"),
        ("records.npz --top 0", "Invalid value for '--top': 0 is not in the range x>=1."),
        ("records.npz --kernal rbf", "No such option '--kernal'"),
    ],
)
def test_bad_usage_is_one_line_and_leaves_nothing(giveaway, file, flags, words):
    Path("short.txt").write_text("a\nb\n")
    before = sorted(os.listdir())
    assert one_line(giveaway("lood", *shlex.split(flags))).startswith(words)
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": np.array([f"{SECRET} {i}" for i in range(N)])}, "inputs: expected images or a matrix of numbers"),
        ({"targets": np.arange(9)}, "targets: expected shape (30,) or (30, outputs), got shape (9, 9)"),
        ({"targets": np.array([SECRET] * N)}, "targets: expected an array of numbers, got dtype <U7"),
    ],
)
def test_bad_files_are_one_line_and_leave_nothing(giveaway, file, arrays, changes, words):
    np.savez(file, **{name: value for name, value in (arrays | changes).items() if value is not None})
    line = one_line(giveaway("lood", file))
    assert line.startswith(words)
    assert SECRET not in line
    assert os.listdir() == [file]


def test_an_earlier_result_survives_a_failed_run(giveaway, done, file, monkeypatch):
    done("lood", file, "--out", "result")
    before = {path.name: path.read_bytes() for path in Path("result").iterdir()}

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("giveaway.figures.lood_map", interrupted)
    assert one_line(giveaway("lood", file, "--out", "result"), code=130).startswith("interrupted")
    assert {path.name: path.read_bytes() for path in Path("result").iterdir()} == before
    assert one_line(giveaway("lood", file, "--out", "new"), code=130).startswith("interrupted")
    assert not Path("new").exists()


# ------------------------------------------------------------------------------------------------ beside an audit


@pytest.fixture
def features(file, arrays) -> str:
    """features.npz of a head over the same records."""
    rng = np.random.default_rng(2)
    weight, bias = rng.normal(size=(M, 4)), rng.normal(size=M)
    np.savez("features.npz", features=rng.normal(size=(N, 4)), weight=weight, bias=bias, targets=arrays["targets"])
    return "features.npz"


def test_inputs_add_the_kernel_s_columns_to_an_audit(done, features, file, arrays):
    common = ("audit", "--features", features, "--l2", 0.5, "--out")
    done(*common, "plain")
    out = done(*common, "more", "--inputs", file, "--config", "noise=0.05")
    plain, more = read_csv(Path("plain/scores.csv")), read_csv(Path("more/scores.csv"))
    assert more[0].keys() - plain[0].keys() == {"left_out", "fused", "others_say", "lood_kl", "lood_mean"}
    assert [{k: row[k] for k in plain[0]} for row in more] == plain
    x = arrays["inputs"]
    kl, mean = brute_force(median_rbf((x - x.mean(0)) / x.std(0)), one_hot(arrays["targets"]), 0.05)
    np.testing.assert_allclose([float(row["lood_kl"]) for row in more], kl, rtol=1e-8)
    np.testing.assert_allclose([float(row["lood_mean"]) for row in more], mean, rtol=1e-8)
    assert "by fused" in out
    meta = json.loads(Path("more/audit.json").read_text())
    assert meta["kernel"]["noise"] == 0.05
    assert meta["kernel"]["kernel"].startswith("RBF(length=")
    assert json.loads(Path("plain/audit.json").read_text())["kernel"] is None


def test_people_and_their_records_both_have_the_columns(done, features, file, arrays):
    names = np.arange(N) // 3
    np.save("people.npy", names)
    flags = ("--features", features, "--inputs", file, "--groups", "people.npy", "--config", "kernel=linear")
    done("audit", *flags, "--out", "result")
    x = arrays["inputs"]
    z = (x - x.mean(0)) / x.std(0)
    K, y = z @ z.T, one_hot(arrays["targets"])
    np.testing.assert_allclose(column("result/scores.csv", "lood_kl"), brute_force(K, y, 0.05)[0], rtol=1e-8)
    rows = [np.flatnonzero(names == name) for name in range(N // 3)]
    assert len(rows) == 10
    head = from_file(features)[0]
    table = ga.audit(
        replace(ga.Head(head.features, head.outputs, head.targets, head.loss, groups=names), inputs=x), kernel="linear"
    )
    np.testing.assert_allclose(column("result/people.csv", "lood_kl"), table["lood_kl"], rtol=1e-10)
    expected = brute_force(K + 1e-9 * np.eye(N), y, 0.05, rows)[1]  # three records of rank three
    np.testing.assert_allclose(column("result/people.csv", "lood_mean"), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--config kernel=rbf", "inputs: expected --inputs beside kernel and noise, got none; name the file"),
        ("--config noise=1", "inputs: expected --inputs beside kernel and noise, got none; name the file"),
        ("--inputs missing.npz", "inputs: expected a file that exists, got missing.npz"),
        ("--inputs features.npz", "inputs: expected the key inputs in features.npz, got keys features"),
        ("--inputs short.npz", "inputs: expected 30 rows, one a record, got 29 rows; align them"),
    ],
)
def test_what_is_refused_beside_an_audit(giveaway, features, arrays, flags, words):
    np.savez("short.npz", inputs=arrays["inputs"][:-1])
    before = sorted(os.listdir())
    line = [row for row in giveaway("audit", "--features", features, *flags.split())[2].splitlines() if row][-1]
    assert line.startswith(f"giveaway: {words}")
    assert sorted(os.listdir()) == before
