"""The command line as a user meets it: what it prints, where, with which exit code, and what it leaves on disk."""

import csv
import importlib
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import giveaway.cli
from giveaway import audit
from giveaway.checks import InputError
from giveaway.cli.audit_folder import RANKING_ONLY
from giveaway.cli.shadows import RECIPES
from giveaway.extract import from_file, from_sklearn
from giveaway.linalg.cg import SolveError
from giveaway.linalg.processes import ProcessError
from giveaway.records import ScoreTable
from tests import forked
from tests.conftest import config

N, D, M = 40, 4, 3
SECRET = "patient"
PAGES = {"report.html", "summary.html", "summary.json"}
FILES = {"scores.npz", "scores-digests.npz", "scores.csv", "look.npz", "config.toml", "audit.json", *PAGES}


@pytest.mark.parametrize(("error", "code"), [(InputError, 2), (SolveError, 1), (ProcessError, 1)])
def test_expected_failures_are_one_line_and_an_exit_code(error, code, monkeypatch, capsys):
    def fails(*_: object, **__: object) -> None:
        raise error("what: expected this, got\n  that; do so")

    monkeypatch.setattr(giveaway.cli.cli, "main", fails)
    with pytest.raises(SystemExit) as stopped:
        giveaway.cli.main()
    assert stopped.value.code == code
    assert capsys.readouterr().err == "giveaway: what: expected this, got that; do so\n"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.fixture
def arrays() -> dict:
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(M, D)), rng.normal(size=M)
    features = rng.normal(size=(N, D))
    return {"features": features, "weight": weight, "bias": bias, "targets": np.arange(N) % M}


@pytest.fixture
def file(folder, arrays) -> Path:
    """features.npz in the working folder, with an id a record and a key that means nothing here."""
    ids = np.array([f"{SECRET}-{i:03d}" for i in range(N)])
    np.savez(folder / "features.npz", **arrays, ids=ids, epoch=np.array(3))
    return folder / "features.npz"


def one_line(result: tuple[int, str, str], *, code: int = 2) -> str:
    """The only line that a failure prints."""
    found, out, err = result
    assert (found, out) == (code, ""), err
    told = ("note:", "Running your code", "Signals:")
    (line,) = [line for line in err.splitlines() if line and not line.startswith(told)]
    assert line.startswith("giveaway: ")
    return line.removeprefix("giveaway: ")


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


# ------------------------------------------------------------------------------------------------ audit


def stored(name: str = "audit.json", folder: str = "result") -> dict:
    return json.loads(Path(folder, name).read_text())


def test_an_audit_its_folder_its_report_and_its_end(done, drawn, file):
    out = done("audit", "--features", file, "--l2", 0.5, "--out", "result", "--config", "top=5")
    result = Path("result")
    assert {path.name for path in result.iterdir()} == FILES
    head, _ = from_file(file, l2=0.5)
    expected = audit(head)
    rows = read_csv(result / "scores.csv")
    assert [row["id"] for row in rows] == head.ids.tolist()
    assert [float(row["newton"]) for row in rows] == expected["newton"].tolist()
    printed = re.findall(r"^ +(\d+) +(\d+) ", out, flags=re.MULTILINE)
    assert [(int(rank), int(row)) for rank, row in printed] == list(enumerate(expected.order()[:5], start=1))
    assert "The 5 of 40 records ranked highest, by newton" in out
    assert RANKING_ONLY in out
    assert "note: ignored keys: epoch" in done.err
    np.testing.assert_array_equal(ScoreTable.load(result)["newton"], expected["newton"])
    assert stat.S_IMODE(result.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in result.iterdir()} == {0o600}
    page = result / "report.html"
    before = page.read_bytes()
    page.unlink()
    assert set(done("report", "result").splitlines()) == {f"Wrote result/{name}" for name in PAGES}
    assert page.read_bytes() == before
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert done("purge", "result") == f"Removed {len(FILES)} files\n"
    assert not result.exists()


def test_the_default_folder_and_ids(done, folder, arrays):
    np.savez("plain.npz", **arrays)
    done("audit", "--features", "plain.npz")
    assert [row["id"] for row in read_csv(folder / "giveaway-audit" / "scores.csv")] == [str(i) for i in range(N)]


def test_json_for_machines(done, file):
    result = json.loads(
        done("audit", "--features", file, "--l2", 0.5, "--out", "result", "--config", "top=4", "--json")
    )
    expected = audit(from_file(file, l2=0.5)[0])
    assert [entry["row"] for entry in result["top"]] == expected.order()[:4].tolist()
    assert [entry["newton"] for entry in result["top"]] == expected.top(4)["newton"].tolist()
    assert (result["unit"], result["rows"], result["ranked_by"]) == ("record", N, "newton")
    assert (result["statement"], result["folder"], result["curvature"]["rank"]) == (RANKING_ONLY, "result", 10)


@pytest.mark.parametrize("grouped", [False, True])
def test_stdout_and_stderr_carry_row_numbers_never_names(done, file, grouped):
    Path("people.txt").write_text("".join(f"{SECRET} {i // 2}\n" for i in range(N)))
    command = ("audit", "--features", file, "--out", "result", *(("--groups", "people.txt") if grouped else ()))
    for words in (command, (*command, "--json"), ("report", "result"), ("purge", "result")):
        assert words[0] != "purge" or SECRET in Path("result", "scores.csv").read_text()
        assert SECRET not in done(*words) + done.err


def test_errors_carry_no_names_either(giveaway, folder, arrays):
    ids = np.array([f"{SECRET}-{i // 2}" for i in range(N)])
    np.savez("twice.npz", **arrays, ids=ids)
    line = one_line(giveaway("audit", "--features", "twice.npz"))
    assert "20 repeated ids, the first at row 0" in line
    assert SECRET not in line


@pytest.mark.parametrize("suffix", [".txt", ".npy"])
def test_people(done, file, suffix):
    names = np.array([f"p{i % 10}" for i in range(N)])
    if suffix == ".txt":
        Path("people.txt").write_text("\n".join(names))
    else:
        np.save("people.npy", names)
    options = ("audit", "--features", file, "--groups", f"people{suffix}", "--out")
    assert "The 10 of 10 people ranked highest, by newton" in done(*options, "result")
    result = Path("result")
    assert {path.name for path in result.iterdir()} == FILES | {"people.csv", "people.npz"}
    assert [row["id"] for row in read_csv(result / "people.csv")] == sorted(set(names.tolist()))
    assert len(read_csv(result / "scores.csv")) == N
    assert "of 10 people" in (result / "report.html").read_text()
    assert stored()["unit"] == "person"
    assert done("purge", "result") == f"Removed {len(FILES) + 2} files\n"
    assert "of 40 records" in done(*options, "records", *config(by="record"))


def test_rare_options_reach_the_audit(giveaway, done, file):
    settings = config(optimum="refit", frozen=True, penalize_intercept=False)
    done("audit", "--features", file, "--out", "result", "--scores", "newton, leverage", "--l2", 0.5, *settings)
    meta = stored()
    options = {"unit": "record", "converged": True, "refit": True}
    assert meta["options"] == {"scores": ["newton", "leverage"], **options}
    assert (meta["frozen"], meta["penalize_intercept"]) == (True, False)
    assert meta["optimum"]["relative_gradient"] < 1e-9
    assert list(read_csv(Path("result", "scores.csv"))[0])[-2:] == ["newton", "leverage"]
    done("audit", "--features", file, "--l2", 1, *config(penalize_intercept=True), "--out", "penalized")
    assert stored(folder="penalized")["penalize_intercept"] is True
    refused = giveaway("audit", "--estimator", "any.skops", "--data", "any:one", *config(frozen=True))
    assert "frozen" in one_line(refused)


# ------------------------------------------------------------------------------------------------ the records


def records_of_kind(kind: str) -> np.ndarray:
    rng = np.random.default_rng(5)
    if kind == "matrix":
        return rng.normal(size=(N, 3))
    if kind in ("images", "plain images"):
        return rng.integers(0, 256, (N, 8, 8, 3) if kind == "images" else (N, 8, 8)).astype(np.uint8)
    if kind == "strings":
        return np.array([" ".join(rng.choice(["red", "blue", "cat", "dog"], 4)) for _ in range(N)])
    return np.c_[rng.normal(size=N).round(3).astype(str), rng.choice(["x", "y"], N)]


@pytest.mark.parametrize(
    ("kind", "view", "suffix"),
    [
        ("matrix", "tabular", ".npz"),
        ("images", "images", ".npy"),
        pytest.param("plain images", "images", ".npz", marks=pytest.mark.slow),
        ("strings", "text", ".npy"),
        ("table", "tabular", ".npz"),
    ],
)
def test_inputs_of_every_kind(done, file, kind, view, suffix):
    given = records_of_kind(kind)
    np.savez("inputs.npz", inputs=given)
    np.save("inputs.npy", given)
    options = ("--features", file, "--l2", 0.5, "--out", "result", "--config", "top=5")
    out = done("audit", *options, "--inputs", f"inputs{suffix}", "--show-records")
    assert "The 5 of 40 records ranked highest, by fused" in out
    assert "note: The other records predict a left-out one with" in out
    assert SECRET not in out + done.err
    first = given.transpose(0, 3, 1, 2) if kind == "images" else given
    expected = audit(replace(from_file(file, l2=0.5)[0], inputs=first))
    rows = read_csv(Path("result", "scores.csv"))
    assert [float(row["fused"]) for row in rows] == expected["fused"].tolist()
    assert [row["nearest"] for row in rows] == expected["nearest"].tolist()
    assert SECRET in rows[0]["nearest"]
    assert (stored()["view"]["view"], stored()["no_view"]) == (view, None)
    assert " · nearest " in Path("result", "report.html").read_text()


def test_without_inputs_the_note_says_what_is_missing(done, file):
    words = "No fused score: the records themselves were not given (inputs)."
    assert f"note: {words}" in done("audit", "--features", file, "--out", "result")
    assert words in Path("result", "report.html").read_text()
    told = json.loads(done("audit", "--features", file, "--out", "result", "--json"))
    assert (told["view"], told["no_view"], told["ranked_by"]) == (None, words, "newton")


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("inputs", [True, False])
def test_a_black_box(giveaway, done, folder, arrays, inputs, options):
    outputs = arrays["features"] @ arrays["weight"].T
    given = {"inputs": records_of_kind("matrix")} if inputs else {}
    np.savez("box.npz", outputs=outputs, targets=arrays["targets"], **given)
    out = done("audit", "--features", "box.npz", "--out", "result", *options)
    assert "note: no features: a black box, of which only outputs and inputs can be scored" in done.err
    by = "fused" if inputs else "loss"
    if options:
        told = json.loads(out)
        assert (told["ranked_by"], told["optimum"], told["curvature"], told["repeats"]) == (by, None, None, None)
    else:
        assert f"of 40 records ranked highest, by {by}" in out
        assert "note: A black box: nothing inside the model was used." in out
        assert "optimum" not in out
    rows = read_csv(Path("result", "scores.csv"))
    scores = ["loss", "entropy", "margin", *(["left_out", "fused"] if inputs else [])]
    assert list(rows[0])[-len(scores) :] == scores
    done("report", "result")
    line = one_line(giveaway("audit", "--features", "box.npz", "--scores", "newton", "--out", "other"))
    assert line.startswith("scores: expected scores that exist for a black box, got newton; leave it out")
    assert not Path("other").exists()


def test_values_stay_in_the_files(done, folder):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    y = 7_000.0 + 1_000.0 * x[:, 0] ** 2
    np.savez("values.npz", features=np.maximum(x, 0.0), outputs=y + rng.normal(size=N), targets=y, inputs=x)
    out = done("audit", "--features", "values.npz", "--out", "result")
    assert re.search(r"The others predict it worse than 9\d % of the records", out)
    assert not re.search(r"predict \d", out)
    assert re.search(r"The other records predict [\d.e+]+, it is [\d.e+]+", Path("result", "report.html").read_text())


def test_neighbours_are_named_on_request_only(done, file):
    Path("people.txt").write_text("\n".join(f"{SECRET} {i % 10}" for i in range(N)))
    np.savez("inputs.npz", inputs=records_of_kind("matrix"))
    options = ("audit", "--features", file, "--groups", "people.txt", "--inputs", "inputs.npz", "--out")
    for folder, more in (("result", ()), ("shown", ("--show-records",))):
        out = done(*options, folder, *more)
        assert "of 10 people ranked highest, by fused" in out
        assert SECRET not in out + done.err
        people, rows = (read_csv(Path(folder, f"{name}.csv")) for name in ("people", "scores"))
        assert ("fused" in people[0], "nearest" in people[0], "nearest" in rows[0]) == (True, False, bool(more))
    out = done(*options, "records", *config(by="record"))
    page = Path("records", "report.html").read_text()
    assert "Nearest: " not in out + Path("records", "scores.csv").read_text()
    assert "· nearest " not in page
    assert ">record</th>" not in page.split('id="listing"')[1].split("</table>")[0]
    assert "attribute:nearest" not in np.load(Path("records", "scores.npz")).files


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"inputs": np.zeros((N - 1, 2))}, "inputs: expected 40 rows, one a record, got 39 rows"),
        ({"inputs": np.zeros((N, 2, 2))}, "inputs: expected images (n, c, h, w), strings, or a table (n, columns)"),
        ({"records": np.zeros((N, 2))}, "inputs: expected the key inputs in bad.npz, got keys records; add it"),
        ({"inputs": np.zeros((N, 2), dtype=complex)}, "inputs: expected images, numbers or strings, got dtype"),
    ],
)
def test_inputs_that_are_refused(giveaway, file, content, words):
    np.savez("bad.npz", **content)
    assert one_line(giveaway("audit", "--features", file, "--inputs", "bad.npz", "--out", "result")).startswith(words)
    assert not Path("result").exists()


# ------------------------------------------------------------------------------------------------ the user's model


@pytest.fixture
def user_code(folder, request) -> str:
    """A module of the user's in the working folder, under a name of its own."""
    name = "users_" + re.sub(r"\W", "_", request.node.name)
    (folder / f"{name}.py").write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "def model():\n"
        "    torch.manual_seed(1)\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))\n"
        "def tree():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(1))\n"
        "def dataset():\n"
        "    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))\n"
        "    return TensorDataset(x, torch.arange(30) % 3)\n"
        "def number():\n"
        "    return 3\n"
        "VALUE = 3\n"
    )
    return name


def test_a_model_its_weights_and_its_data(done, user_code):
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    torch.save(model.state_dict(), "weights.pt")
    options = ("--model", f"{user_code}:model", "--data", f"{user_code}:dataset", "--weights", "weights.pt")
    out = done("audit", *options, "--l2", 0.5, "--out", "result", "--layer", "2", "--config", "batch_size=7")
    assert f"Running your code: {user_code}:model and {user_code}:dataset" in done.err
    assert "of 30 records" in out
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    losses = torch.nn.functional.cross_entropy(model(x), torch.arange(30) % 3, reduction="none")
    written = [float(row["loss"]) for row in read_csv(Path("result", "scores.csv"))]
    np.testing.assert_allclose(written, losses.detach().numpy(), rtol=1e-5)


@pytest.fixture
def estimator(folder) -> Path:
    """A fitted estimator in estimator.skops, and its data in a module of the working folder."""
    skops = pytest.importorskip("skops.io")
    code = "from sklearn.datasets import load_iris\ndef data():\n    return load_iris(return_X_y=True)\n"
    (folder / "iris_data.py").write_text(code + "def inputs():\n    return data()[0]\n")
    model = LogisticRegression(C=0.5, max_iter=1000).fit(*load_iris(return_X_y=True))
    skops.dump(model, folder / "estimator.skops")
    joblib.dump(model, folder / "estimator.joblib")
    return folder


def test_an_estimator_and_its_data(giveaway, done, estimator):
    out = done("audit", "--estimator", "estimator.skops", "--data", "iris_data:data", "--json")
    assert "Running your code: iris_data:data" in done.err
    X, y = load_iris(return_X_y=True)
    expected = audit(from_sklearn(LogisticRegression(C=0.5, max_iter=1000).fit(X, y), X, y))
    assert [place["row"] for place in json.loads(out)["top"]] == expected.order("newton")[:10].tolist()
    options = ("--estimator", "estimator.joblib", "--data", "iris_data:data", "--out", "pickled")
    assert "which needs pickle" in one_line(giveaway("audit", *options))
    done("audit", *options, "--allow-pickle")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("estimator.skops", "data: expected --data module:function beside --estimator, got none"),
        ("estimator.skops --data iris_data:inputs", "data: expected a function that returns (X, y)"),
        ("estimator.skops --data iris_data:data --l2 1", "l2: expected --features or --model beside it"),
        ("missing.skops --data iris_data:data", "estimator: expected"),
    ],
)
def test_what_an_estimator_can_be_refused_for(giveaway, estimator, options, words):
    assert one_line(giveaway("audit", "--estimator", *options.split())).startswith(words)
    assert not Path("giveaway-audit").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("{m}:model", "data: expected --data module:function beside --model, got none"),
        ("nowhere_{m}:model --data {m}:dataset", "model: expected a module that can be imported, got"),
        ("{m}:modle --data {m}:dataset", "model: expected a function of {m}, got 'modle'; did you mean model"),
        ("{m} --data {m}:dataset", "model: expected module:function, got '{m}'"),
        ("{m}:VALUE --data {m}:dataset", "model: expected a function of {m}, got 'VALUE'"),
        ("{m}:model --data {m}:datset", "data: expected a function of {m}, got 'datset'; did you mean dataset"),
        ("{m}:model --data {m}:number", "data: expected a DataLoader or a Dataset, got int"),
        ("{m}:dataset --data {m}:dataset", "model: expected a torch.nn.Module, got TensorDataset"),
        ("{m}:model --data {m}:dataset --layer 22", "layer: expected"),
        ("{m}:tree --data {m}:dataset", "model: expected"),
        ("{m}:model --data {m}:dataset --weights no.pt", "weights: expected a"),
        ("{m}:model --data {m}:dataset --device gpu", "device: expected a device that torch can use"),
        ("{m}:model --data {m}:dataset --config batch_size=0", "batch_size: expected a finite number of at"),
    ],
)
def test_what_a_model_can_be_refused_for(giveaway, user_code, options, words):
    line = one_line(giveaway("audit", "--model", *options.format(m=user_code).split(), "--out", "result"))
    assert line.startswith(words.format(m=user_code))
    assert "; " in line
    assert not Path("result").exists()


# ------------------------------------------------------------------------------------------------ bad input


def broken_features(kind: str, arrays: dict, path: Path) -> None:
    changed = {key: value.copy() for key, value in arrays.items()}
    changed["features"][3, 1] = np.nan
    if kind == "no targets":
        del changed["targets"]
    np.savez(path, **changed)
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-100])


BAD_FILES = {
    "truncated": "file: expected a whole .npz file, got bad.npz, truncated",
    "nan": "features: expected finite numbers, got NaN or infinity first in row 3",
    "no targets": "targets: expected the keys features, targets,",
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files_are_one_line_and_leave_nothing(giveaway, folder, arrays, kind):
    broken_features(kind, arrays, folder / "bad.npz")
    assert one_line(giveaway("audit", "--features", "bad.npz", "--out", "result")).startswith(BAD_FILES[kind])
    assert not Path("result").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--model a:b", "audit: expected one of --features, --model, --estimator and --lm, got --features and --model"),
        ("--l2 -1", "l2: expected a finite number of at least 0, got -1.0"),
        ("--l2 much", "Invalid value for '--l2': 'much' is not a valid float."),
        ("--scores newtom", "scores: expected a known name, got 'newtom'; did you mean"),
        ("--config by=person", "by: expected --groups beside person, got none"),
        ("--config by=cat", "by: expected a known name, got 'cat'"),
        ("--config json=true", "config: expected options of this command, got 'json'"),
        ("--config resume=true", "config: expected options of this command, got 'resume'"),
        ("--loss hinge", "loss: expected a known name, got 'hinge'"),
        ("--config top=0", "top: expected a finite number of at least 1, got 0"),
        ("--layer head", "layer: expected --model beside it, got --features"),
        ("--allow-pickle", "allow_pickle: expected --model or --estimator"),
        ("--groups missing.txt", "groups: expected a file that exists, got missing.txt; check the path"),
        ("--groups features.npz", "groups: expected a whole .npy of names, or text file with one a line, got"),
        ("--groups short.txt", "groups: expected one name a record, 40 in all"),
        ("--config missing.toml", "config: expected a readable TOML file"),
        ("--out features.npz/below", "out: expected a folder that can be written"),
        ("--out .", "out: expected a new, empty or earlier audit folder"),
        ("--feature", "No such option '--feature'"),
    ],
)
def test_bad_usage_is_one_line_and_leaves_nothing(giveaway, file, options, words):
    Path("short.txt").write_text("a\nb\n")
    before = sorted(os.listdir())
    assert one_line(giveaway("audit", "--features", "features.npz", *options.split())).startswith(words)
    assert sorted(os.listdir()) == before


def test_usage_of_the_command_itself(giveaway, done, folder):
    sources = "audit: expected one of --features, --model, --estimator and --lm, got none"
    assert one_line(giveaway("audit")).startswith(sources)
    missing = "file: expected a file that exists, got missing.npz"
    assert one_line(giveaway("audit", "--features", "missing.npz")).startswith(missing)
    code, out, err = giveaway("--help")
    assert (code, err) == (0, "")
    assert all(command in out for command in ("audit", "demo", "purge", "report"))
    assert not [line for text in (out, done("theory", "--help")) for line in text.splitlines()[1:] if "..." in line]
    assert giveaway("--version")[:2] == (0, "giveaway, version 0.2.0\n")
    done("audit", "--help")
    code, out, err = giveaway()
    assert (code, out) == (2, "")
    assert len(err.splitlines()) > 5
    assert one_line(giveaway("audti")).startswith("No such command 'audti'")
    assert one_line(giveaway("report")).startswith("Missing argument 'FOLDER'")


# ------------------------------------------------------------------------------------------------ config, folders


def test_flags_go_before_the_config_file_and_the_resolved_options_are_saved(done, file):
    Path("options.toml").write_text(
        'features = "features.npz"\nl2 = 0.25\nscores = ["newton", "loss"]\npenalize-intercept = false\n'
        'out = "from-config"\ntop = 3\n'
    )
    assert "The 3 of 40 records ranked highest" in done(
        "audit", "--config", "options.toml", "--l2", 0.5, "--out", "from-flag"
    )
    assert not Path("from-config").exists()
    meta = stored(folder="from-flag")
    assert (meta["l2"], meta["penalize_intercept"], meta["options"]["scores"]) == (0.5, False, ["newton", "loss"])
    saved = tomllib.loads(Path("from-flag", "config.toml").read_text())
    assert saved == {"features": "features.npz", "l2": 0.5, "scores": "newton,loss", "penalize_intercept": False}
    assert meta["provenance"]["config"] == saved


def test_the_saved_options_repeat_the_audit(done, file):
    done("audit", "--features", "features.npz", "--l2", 0.5, *config(penalize_intercept=False), "--out", "result")
    before = Path("result", "scores.csv").read_bytes()
    for out in ("result", "again"):
        done("audit", "--config", "result/config.toml", "--out", out)
        assert Path(out, "scores.csv").read_bytes() == before


def test_a_folder_of_another_audit_is_refused_and_the_difference_printed(giveaway, done, file, arrays):
    done("audit", "--features", "features.npz", "--l2", 0.5, "--out", "result")
    before = {path.name: path.read_bytes() for path in Path("result").iterdir()}
    line = one_line(giveaway("audit", "--features", "features.npz", "--l2", 0.25, "--out", "result"))
    assert line.startswith("out: expected an audit of the same inputs and options, got ")
    assert "l2 was 0.5, is 0.25" in line
    np.savez("features.npz", **arrays | {"features": arrays["features"][::-1]})
    line = one_line(giveaway("audit", "--features", "features.npz", "--l2", 0.5, "--out", "result"))
    assert "inputs differ" in line
    assert "l2 was" not in line
    assert {path.name: path.read_bytes() for path in Path("result").iterdir()} == before
    assert giveaway("audit", "--features", "features.npz", "--l2", 0.5, "--out", "result", "--overwrite")[0] == 0
    assert {path.name for path in Path("result").iterdir()} == before.keys()
    assert Path("result/scores.csv").read_bytes() != before["scores.csv"]


def test_report_and_purge_of_folders_without_an_audit(giveaway, folder):
    assert one_line(giveaway("report", "nowhere")).startswith("folder: expected an audit folder with audit.json")
    assert one_line(giveaway("purge", "nowhere")).startswith("folder: expected an audit folder with audit.json")


# ------------------------------------------------------------------------------------------------ interruption


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("giveaway.curvature.choice", "DenseCurvature"),
        ("giveaway.reporting.folder", "make_extras"),
        ("giveaway.reporting.folder", "render"),
        ("giveaway.reporting.folder", "save_audit"),
        ("giveaway.auditing.run", "count_duplicates"),
    ],
)
@pytest.mark.parametrize("existed", [False, True])
def test_ctrl_c_leaves_nothing_half_written(giveaway, file, monkeypatch, module, function, existed):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if existed:
        Path("result").mkdir()
    importlib.import_module("giveaway.auditing.run")
    for owner in [importlib.import_module(module), sys.modules["giveaway.auditing.run"]]:
        if hasattr(owner, function):
            monkeypatch.setattr(owner, function, interrupt)
    code, out, err = giveaway("audit", "--features", file, "--out", "result")
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "giveaway: interrupted; no file is half-written"
    assert Path("result").exists() is existed
    assert not existed or os.listdir("result") == []


@pytest.mark.slow
def test_a_real_ctrl_c_in_the_middle(folder):
    (folder / "interrupted.py").write_text(
        "import os, signal, torch\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def model():\n"
        "    return torch.nn.Linear(4, 3)\n"
        "class Records(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n"
        "        return 30\n"
        "    def __getitem__(self, row):\n"
        "        if row == 20:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        return torch.full((4,), float(row)), row % 3\n"
    )
    about = ("--model", "interrupted:model", "--data", "interrupted:Records", "--out", "result")
    done = forked.python("-m", "giveaway", "audit", *about, folder=folder)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "giveaway: interrupted; no file is half-written"
    assert not (folder / "result").exists()


@pytest.mark.slow
def test_exit_codes_of_the_real_command(file):
    command = ["-m", "giveaway", "audit", "--features", "features.npz"]
    fine = subprocess.run(
        [sys.executable, *command, "--json"], cwd=file.parent, capture_output=True, text=True, timeout=120
    )
    assert fine.returncode == 0
    assert json.loads(fine.stdout)["rows"] == N
    bad = forked.python(*command, "--l2", "-1", folder=file.parent)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.splitlines()[-1].startswith("giveaway: l2: expected a finite number of at least 0")


def test_help_loads_no_torch():
    code = (
        "import sys\n"
        "from giveaway.cli import main\n"
        "for words in ('--help', 'audit --help', '--version', 'nothing'):\n"
        "    sys.argv = ['giveaway', *words.split()]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit:\n"
        "        pass\n"
        "    heavy = {'torch', 'numpy', 'scipy', 'sklearn', 'jinja2'} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)


# ------------------------------------------------------------------------------------------------ demo


@pytest.mark.slow
def test_the_demo_trains_audits_and_prints_ten_records(done, folder):
    state = torch.random.get_rng_state()
    out = done("demo", "--out", "demo")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert "The 10 of 899 records ranked highest, by fused" in out
    header, *rows = [line.split() for line in out.splitlines() if re.match(r"^rank|^ +\d+ ", line)]
    assert header == ["rank", "row", "fused", "newton", "class", "residual", "why"]
    table = ScoreTable.load("demo")
    assert [int(row[1]) for row in rows] == table.order()[:10].tolist()
    assert [int(row[4]) for row in rows] == table.top(10)["class"].tolist()
    assert "The other records predict" in out
    assert "It was harder to learn than 99 % of the records; learned by epoch " in out
    assert "Nearest: " in out
    assert re.search(r"note: The other records predict a left-out one with [\d.]+ % of the squared error", out)
    assert {path.name for path in Path("demo").iterdir()} == FILES
    out = done("demo", "--out", "demo", "--json")
    told = json.loads(out)
    assert (told["rows"], told["ranked_by"], told["no_view"]) == (899, "fused", None)
    assert told["view"]["view"] == "images"
    assert not told["view"]["head_is_exact"]
    assert told["fusion"]["weights"]["trace"] > 0
    assert "trace" not in told  # it names rows


def test_validate_compares_an_audit_with_shadow_models(giveaway, done, folder):
    rng = np.random.default_rng(0)
    n = 150
    ids = np.array([f"{SECRET}-{i:03d}" for i in range(n)])
    features, outputs, targets = rng.normal(size=(n, 3)), rng.normal(size=(n, 2)), np.arange(n) % 2
    np.savez("large.npz", features=features, outputs=outputs, targets=targets, ids=ids)
    members = np.stack([rng.permutation(np.arange(16) < 8) for _ in range(2 * n)], axis=1)
    phi = rng.normal(size=members.shape) + members
    phi[:, ::2] += np.where(targets == 1, 1, -1) * (outputs[:, 1] - outputs[:, 0])
    np.savez("others.npz", phi=phi, members=members)
    np.savez("signals.npz", phi=phi[:, ::2], members=members[:, ::2])
    done("audit", "--features", "large.npz", "--loss", "cross_entropy", "--out", "result")
    options = ("validate", "result", "--signals", "signals.npz")
    line = one_line(giveaway("validate", "result", "--signals", "others.npz"))
    assert line.startswith(f"signals: expected signals on the table's {n} records")
    out = done(*options, "--json")
    result = json.loads(out)
    assert result["models"] == 16
    assert set(result["agreement"]) == set(ScoreTable.load("result").columns)
    out = done(*options)
    assert out.startswith(result["conclusion"])
    assert SECRET not in out
    assert "Whether the audited model is one of the 16 is not known" in out
    assert "training 16 models took an unknown time." in out
    assert json.loads(Path("result/validation.json").read_text())["agreement"] == result["agreement"]
    without = json.loads(giveaway(*options, "--target-model", 3, "--target-model", 5, "--json")[1])
    assert (result["target"], without["target"], without["models"]) == (None, [3, 5], 14)
    line = one_line(giveaway(*options, "--target-model", 16))
    assert line.startswith("target: expected models of the signals, 0 to 15, got (16,); number the audited model")
    out = done("purge", "result")
    assert out.splitlines()[1:] == [f"Kept: the signals it was validated with, in {folder / 'signals.npz'}"]
    assert not Path("result").exists()
    assert Path("signals.npz").exists()


@pytest.mark.slow
def test_validate_trains_shadow_models_of_a_recipe(giveaway, done, folder, monkeypatch):
    code = (
        "from sklearn.datasets import load_iris\n"
        "def data():\n    X, y = load_iris(return_X_y=True)\n    return X[:, :2], y\n"
        "def inputs():\n    return data()[0]\n"
    )
    (folder / "flowers.py").write_text(code)
    X, y = load_iris(return_X_y=True)
    model = LogisticRegression(C=1.0).fit(X[:, :2], y)
    from_sklearn(model, X[:, :2], y).save("head.npz")
    done("audit", "--features", "head.npz", "--out", "result")
    options = ("validate", "result", "--recipe", "logistic", "--data", "flowers:data", "--models", "16", "--json")
    code, out, err = giveaway(*options)
    assert (code, "Running your code: flowers:data" in err) == (0, True)
    first = json.loads(out)
    assert (first["models"], first["records"]) == (16, 150)
    again = json.loads(giveaway(*options)[1])
    assert again["agreement"] == first["agreement"]
    more = json.loads(giveaway(*options, "--models", "32")[1])
    assert more["models"] == 32
    assert one_line(giveaway(*options, "--models", "32", "--seed", 1)).startswith("folder: expected")
    assert first["target"] == []
    assert 0 < first["seconds"]["training"] == again["seconds"]["training"] < more["seconds"]["training"]
    stored = giveaway("validate", "result")[1]
    assert "training 32 models took " in stored
    assert "unknown time" not in stored
    trained = "The shadow models are LogisticRegressions of giveaway's recipe logistic; the count is of these, whose "
    trained += "settings need not be those of the audited model. "
    trained += "Outputs are taken as logits, one for each class."
    assert first["trained"] == trained
    quick = clone(RECIPES["mlp"]).set_params(max_iter=20)  # what is said needs no optimum
    monkeypatch.setitem(RECIPES, "mlp", quick)
    done("validate", "result", "--signals", "other", "--recipe", "mlp", "--data", "flowers:data", "--models", "8")
    words = "MLPClassifiers of giveaway's recipe mlp; the audited model is a LogisticRegression: the count is of MLPCla"
    assert words in json.loads(Path("result/validation.json").read_text())["trained"]
    signals = folder / "other"
    kept = f"Kept: the signals it was validated with, in {signals}; giveaway purge {signals} removes them"
    assert giveaway("purge", "result")[1].splitlines()[1:] == [kept]
    assert not Path("result").exists()
    count = len(list(signals.iterdir()))
    assert giveaway("purge", signals)[:2] == (0, f"Removed {count} files\n")
    assert not signals.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "signals: expected signals of shadow models, got none in result/signals; train them: --train module:"),
        (("--models", "8"), "models: expected --train or --estimator or --recipe beside it, got none; drop --models"),
        (
            ("--recipe", "mlp", "--models", "8"),
            "data: expected --data module:function, got none, and none in the audit",
        ),
        (("--recipe", "mlp", "--data", "nowhere:x"), "data: expected a module that can be imported, got 'nowhere'"),
        (("--recipe", "mpl", "--data", "math:gamma", "--models", "8"), "recipe: expected a known name, got 'mpl'; did"),
        (("--recipe", "mlp", "--models", "6"), "models: expected a whole number of at least 8, got 6; fewer show not"),
        (("--recipe", "mlp", "--device", "cpu"), "device: expected --train beside it, got --recipe; drop --device, or"),
        (("--recipe", "mlp", "--allow-pickle"), "allow_pickle: expected --estimator beside it, got --recipe; drop"),
        (("--train", "a:b", "--recipe", "mlp"), "recipe: expected one way to train, got --train and --recipe; drop"),
        (("--train", "nowhere:x"), "train: expected a module that can be imported, got 'nowhere'; run from the folder"),
        (("--estimator", "none.skops"), "estimator: expected a file that exists, got none.skops; check the path"),
        (
            ("--recipe", "mlp", "--target-model", "3"),
            "target_model: expected signals that hold the audited model, got --recipe, which trains others; drop",
        ),
    ],
)
def test_what_validate_refuses(giveaway, file, options, words):
    audit(from_file(file)[0], scores="newton").save("result")
    assert one_line(giveaway("validate", "result", *options)).startswith(words)
