"""What goes into an audit is found again in its restricted files only: its owner's alone, and removable."""

import base64
import itertools
import json
import shutil
import stat
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tests.conftest import without_pictures
from tests.every_command import (
    AUDITS,
    CELL,
    COLUMN,
    KEY,
    LABEL,
    PATH,
    PERSON,
    RECORD,
    SMALL,
    TEXT,
    N,
    World,
    contents,
    holds,
    made_arrays,
    made_signals,
    run,
    working_in,
    write_files,
)  # fmt: skip

NUMBER = 918273.64  # of a row
NAMES = (RECORD, PERSON)
CONTENTS = (TEXT, CELL, COLUMN)
RESTRICTED = {
    *("report.html", "scores.npz", "scores.csv", "people.npz", "people.csv", "look.npz", "audit.json", "config.toml"),
    *("canaries.csv", "weights.csv", "changes.csv"),
}
SHOWN = {TEXT: "renamed", CELL: "frame-shown", COLUMN: "frame-shown"}


def test_the_search_finds_what_is_hidden(tmp_path):
    told = {
        "plain.txt": RECORD.upper().encode(),
        "wide.bin": np.array([f"{RECORD}1"]).tobytes(),
        "page.html": b'<img src="data:x;base64,' + base64.b64encode(f"<svg>{RECORD}</svg>".encode()) + b'">',
        "address.txt": "".join(f"%{letter:02x}" for letter in RECORD.encode()).encode(),
        **{f"code{skip}.txt": base64.b64encode(b"x" * skip + RECORD.encode() + b"yz") for skip in range(4)},
    }
    for name, content in told.items():
        (tmp_path / name).write_bytes(content)
        assert holds(tmp_path / name, RECORD), name
    np.savez_compressed(tmp_path / "packed.npz", ids=np.array([f"{RECORD}{i}" for i in range(9)]), other=np.zeros(3))
    assert holds(tmp_path / "packed.npz", RECORD)
    assert not holds(tmp_path / "packed.npz", PERSON)


def test_ids_and_people_are_in_the_restricted_files_only(world):
    for marker in (*NAMES, SMALL, PATH):
        found = world.holding(marker)
        assert {Path(name).name for name in found} <= RESTRICTED, marker
    here = world.holding(RECORD)
    assert {f"records/{name}" for name in ("report.html", "scores.npz", "scores.csv", "canaries.csv")} <= here
    assert {"records/weights.csv", "records/changes.csv", "new-folder/canaries.csv", "weights.csv"} <= here
    assert {f"people/{name}" for name in ("report.html", "people.npz", "people.csv")} <= world.holding(PERSON)
    assert {"records/scores.csv", "records/report.html"} <= world.holding(SMALL)


def test_the_shareable_and_the_measured_files_are_there_to_be_searched(world):
    names = {str(path.relative_to(world.folder)) for path in world.written()}
    stated = {f"records/validation.{kind}" for kind in ("md", "csv", "json", "npz")}
    assert stated | {"records/summary.html", "records/summary.json", "records/gate.json", "index.html"} <= names


@pytest.mark.parametrize("marker", CONTENTS)
def test_records_themselves_are_in_no_file_unless_asked_for(world, marker):
    found = world.holding(marker)
    assert {Path(name).parts[0] for name in found} == {SHOWN[marker]}
    assert {Path(name).name for name in found} <= RESTRICTED
    assert {f"{SHOWN[marker]}/{name}" for name in ("report.html", "look.npz")} <= found


def test_pseudonyms_leave_no_name_anywhere(world):
    for name in ("renamed", "renamed-people"):
        for marker in (*NAMES, KEY):
            assert world.holding(marker, name) == set()
    assert TEXT in (world.folder / "renamed" / "report.html").read_text()
    assert world.holding(KEY) == set()
    made = (world.folder / "made-key").read_text().strip()
    assert len(made) == 64
    assert world.holding(made) == {"made-key"}


def test_labels_of_an_estimator_are_the_names_of_its_classes(world):
    found = world.holding(LABEL)
    assert {Path(name).parts[0] for name in found} == {"frame", "frame-shown"}
    assert {Path(name).name for name in found} <= {*RESTRICTED, "summary.html", "summary.json"}
    assert {f"frame/{name}" for name in ("report.html", "scores.npz", "scores.csv")} <= found


def test_the_screen_shows_no_name_value_or_path(world):
    for done in itertools.chain.from_iterable(world.runs.values()):
        for marker in (*NAMES, *CONTENTS, SMALL, PATH, KEY):  # a class may be named
            assert marker not in done.said, (done.arguments, marker)


def test_numbers_of_a_record_are_in_no_file(tmp_path):
    """Neither as text nor as the bytes of an array; the map and the scores are made of many of them."""
    rng = np.random.default_rng(4)
    arrays = made_arrays(40) | {"features": rng.normal(size=(40, 4))}
    inputs = rng.normal(size=(40, 2)) + NUMBER
    np.savez(tmp_path / "features.npz", **arrays)
    np.savez(tmp_path / "inputs.npz", inputs=inputs)
    with working_in(tmp_path):
        done = run("audit", "--features", "features.npz", "--inputs", "inputs.npz", "--out", "audit")
        assert done.code == 0, done.err
        assert run("canaries", "audit", "-k", 2, "--out", "audit").code == 0
    values = [*inputs.ravel(), *arrays["features"].ravel()]
    known = [value.tobytes() for value in values] + [f"{value:.8g}".encode() for value in values]
    for path in (tmp_path / "audit").iterdir():
        for held in contents(path):
            assert not any(form in held for form in known), path.name
    assert not any(f"{value:.8g}" in done.said for value in values)


def test_lood_shows_no_name_or_path(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / f"{PATH}-records.npz", inputs=rng.normal(size=(30, 3)), targets=np.arange(30) % 2)
    (tmp_path / f"{PATH}-people.txt").write_text("".join(f"{PERSON} {i // 2}\n" for i in range(30)))
    source = ("lood", f"{PATH}-records.npz", "--kernel", "rbf")
    with working_in(tmp_path, umask=0):
        done = [
            run(*source, "--out", "lood"),
            run(*source, "--out", "lood", "--json"),
            run(*source, "--groups", f"{PATH}-people.txt", "--out", "people"),
        ]
    assert [each.code for each in done] == [0, 0, 0]
    written = [path for name in ("lood", "people") for path in (tmp_path / name).iterdir()]
    assert {path.name for path in written if holds(path, PERSON)} == {"scores.csv", "scores.npz"}
    assert {path.name for path in written if holds(path, PATH)} <= {"scores.npz", "audit.json", "config.toml"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    for each in done:
        assert PERSON not in each.said
        assert PATH not in each.said, each.arguments


def modes(folder: Path, skip: set[str]) -> dict[str, str]:
    """Everything below `folder` that others may touch, with its mode."""
    wanted = {True: 0o700, False: 0o600}
    found = [path for path in folder.rglob("*") if path.name not in skip and "__pycache__" not in path.parts]
    assert found
    return {
        str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in found
        if stat.S_IMODE(path.stat().st_mode) != wanted[path.is_dir()]
    }


def test_everything_is_its_owner_s_alone_whatever_the_umask(world):
    assert modes(world.folder, world.handed_over) == {}


def test_folders_made_on_the_way_are_its_owner_s_alone_too(tmp_path):
    np.savez(tmp_path / "features.npz", **made_arrays(40))
    with working_in(tmp_path, umask=0), without_pictures():
        assert run("audit", "--features", "features.npz", "--out", "deep/er/audit").code == 0
    assert modes(tmp_path, {"features.npz"}) == {}


@pytest.mark.slow
def test_shadow_models_trained_here_are_their_owner_s_alone(tmp_path):
    write_files(tmp_path)
    handed = {path.name for path in tmp_path.iterdir()}
    (tmp_path / "users_pair.py").write_text(
        "import numpy as np\n"
        f"def data():\n    a = np.load('{PATH}-features.npz')\n    return a['features'], a['targets']\n"
    )
    with working_in(tmp_path, umask=0):
        assert run("audit", "--features", f"{PATH}-features.npz", "--out", "audit").code == 0
        recipe = ("--recipe", "logistic", "--data", "users_pair:data", "--models", 8)
        done = run("validate", "audit", *recipe)
        assert done.code == 0, done.err
        assert modes(tmp_path, {*handed, "users_pair.py"}) == {}
        assert (tmp_path / "audit" / "signals").is_dir()
        assert RECORD not in done.said
        assert not any(holds(path, RECORD) for path in (tmp_path / "audit" / "signals").rglob("*") if path.is_file())
        assert run("purge", "audit").code == 0
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {*handed, "users_pair.py"}


def audits(world: World) -> list[Path]:
    return sorted(path for path in world.folder.iterdir() if (path / "audit.json").is_file())


def test_every_file_of_an_audit_is_listed_and_purged(world, tmp_path):
    assert {path.name for path in audits(world)} == {*AUDITS, "later", "frame", "frame-shown"}
    for folder in audits(world):
        listed = json.loads((folder / "audit.json").read_text())["files"]
        models = {"remedies"} if folder.name == "frame" else set()
        assert {*listed, "audit.json", *models} == {path.name for path in folder.iterdir()}, folder.name
        copied = shutil.copytree(folder, tmp_path / folder.name)
        done = run("purge", copied)
        assert done.code == 0
        assert not copied.exists()
        for marker in (*NAMES, *CONTENTS):
            assert marker not in done.said
    listed = json.loads((world.folder / "records" / "audit.json").read_text())["files"]
    wanted = {"validation.npz", "look.npz", "gate.json", "canaries.csv", "weights.csv", "changes.csv"}
    assert wanted <= set(listed)


@pytest.fixture(scope="module")
def provoking(tmp_path_factory, world) -> Path:
    """A folder of files that are refused, with markers wherever a message could pick one up."""
    folder = tmp_path_factory.mktemp("provoking")
    arrays = made_arrays()
    ids = np.array([f"{RECORD}{i:03d}" for i in range(N)])
    changed = {
        "fine": {"ids": ids},
        "twice": {"ids": np.array([f"{RECORD}{i // 2}" for i in range(N)])},
        "few-ids": {"ids": ids[:-1]},
        "odd-ids": {"ids": np.array([f"{RECORD}{i}".encode() for i in range(N)])},
        "hole": {"features": np.where(np.arange(4 * N).reshape(N, 4) == 9, np.nan, NUMBER), "ids": ids},
        "label": {"targets": np.where(np.arange(N) == 7, 918273, arrays["targets"]), "ids": ids},
        "words": {"targets": np.array([f"{LABEL}{i % 3}" for i in range(N)]), "ids": ids},
        "apart": {"outputs": np.full((N, 3), NUMBER), "ids": ids},
        "weights": {"sample_weight": np.where(np.arange(N) == 3, -NUMBER, 1.0), "ids": ids},
    }
    for name, more in changed.items():
        np.savez(folder / f"{name}.npz", **arrays | more)
    for name, given in {
        "short-text": np.array([f"{TEXT}{i}" for i in range(N - 1)]),
        "bytes": np.array([f"{TEXT}{i}".encode() for i in range(N)]),
        "text": np.array([f"{TEXT}{i}" for i in range(N)]),
        "cells": np.array([[f"{CELL}{i}", "1"] for i in range(N)]),
        "holes": np.where(np.arange(2 * N).reshape(N, 2) == 5, np.nan, NUMBER),
    }.items():
        np.savez(folder / f"{name}.npz", inputs=given, targets=np.arange(N) % 2)
    np.savez(folder / "word-targets.npz", inputs=np.ones((N, 2)), targets=np.array([f"{LABEL}{i}" for i in range(N)]))
    (folder / "cut.npz").write_bytes((folder / "text.npz").read_bytes()[:-200])
    (folder / "few.txt").write_text(f"{PERSON}\n" * 3)
    np.save(folder / "odd.npy", np.full(N, NUMBER))
    (folder / "latin.txt").write_bytes(f"{PERSON} \xe9\n".encode("latin-1") * N)
    (folder / "headless.csv").write_text("".join(f"{SMALL}{i % 2}\n" for i in range(N)))
    (folder / "ragged.csv").write_text("a,b\n" + f"{SMALL},1\n" * (N - 1) + f"{SMALL}\n")
    (folder / "weak-key").write_text(KEY[:12])
    np.savez(folder / "signals.npz", **made_signals(N + 1))
    (folder / "bad.toml").write_text(f'features = "fine.npz"\nl2 = "{TEXT}\n')
    X = np.arange(2.0 * N).reshape(N, 2) % 7
    y = np.array([f"{LABEL}{i % 2}" for i in range(N)])
    joblib.dump(make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y), folder / "model.joblib")
    joblib.dump(RandomForestClassifier(3, random_state=0).fit(X, y), folder / "forest.joblib")
    joblib.dump(make_pipeline(OneHotEncoder(), LogisticRegression()).fit(X, y), folder / "levels.joblib")
    joblib.dump(X, folder / "x.joblib")
    (folder / "users_bad.py").write_text(
        "import joblib, numpy as np\n"
        "X = joblib.load('x.joblib')\n"
        f"y = np.array(['{LABEL}%d' % (i % 2) for i in range({N})])\n"
        f"def word():\n    Z = X.astype(object)\n    Z[3, 1] = '{CELL}'\n    return Z, y\n"
        f"def unseen():\n    Z = X.copy()\n    Z[3, 1] = {NUMBER}\n    return Z, y\n"
        f"def label():\n    z = y.copy()\n    z[3] = '{LABEL}9'\n    return X, z\n"
        "def hole():\n    Z = X.copy()\n    Z[3, 1] = np.nan\n    return Z, y\n"
        "def short():\n    return X[:-1], y\n"
    )
    shutil.copytree(world.folder / "records", folder / "records")
    shutil.copytree(world.folder / "renamed", folder / "renamed")
    return folder


FROM_FILE = ("audit", "--out", "never", "--features")
FROM_ESTIMATOR = ("audit", "--out", "never", "--allow-pickle", "--estimator", "model.joblib", "--data")
PROVOKED: dict[str, tuple[object, ...]] = {
    **{name: (*FROM_FILE, f"{name}.npz") for name in ("twice", "few-ids", "odd-ids", "hole", "label", "words")},
    **{name: (*FROM_FILE, f"{name}.npz") for name in ("apart", "weights")},
    **{
        f"inputs {name}": (*FROM_FILE, "fine.npz", "--inputs", f"{name}.npz")
        for name in ("short-text", "bytes", "cut", "holes")
    },
    "kernel of text": (*FROM_FILE, "fine.npz", "--inputs", "text.npz", "--config", "kernel=rbf"),
    "kernel of a table": (*FROM_FILE, "fine.npz", "--inputs", "cells.npz", "--config", "kernel=rbf"),
    **{f"groups {name}": (*FROM_FILE, "fine.npz", "--groups", name) for name in ("few.txt", "odd.npy", "latin.txt")},
    **{f"subgroups {name}": (*FROM_FILE, "fine.npz", "--subgroups", f"{name}.csv") for name in ("headless", "ragged")},
    "a weak key": (*FROM_FILE, "fine.npz", "--pseudonymize", "weak-key"),
    "config": ("audit", "--out", "never", "--config", "bad.toml"),
    **{f"estimator {name}": (*FROM_ESTIMATOR, f"users_bad:{name}") for name in ("word", "label", "hole", "short")},
    "forest word": ("audit", "--allow-pickle", "--estimator", "forest.joblib", "--data", "users_bad:word"),
    "an unseen level": ("audit", "--allow-pickle", "--estimator", "levels.joblib", "--data", "users_bad:unseen"),
    "signals": ("validate", "records", "--signals", "signals.npz"),
    "compare": ("compare", "records", "renamed"),
    **{f"lood {name}": ("lood", f"{name}.npz", "--out", "never") for name in ("text", "bytes", "holes")},
    "lood targets": ("lood", "word-targets.npz", "--out", "never"),
    "lood groups": ("lood", "holes.npz", "--groups", "few.txt", "--out", "never"),
}


@pytest.mark.parametrize("case", PROVOKED)
def test_no_error_tells_a_name_or_a_value(provoking, case):
    with working_in(provoking):
        done = run(*PROVOKED[case])
    assert done.code == 2
    assert done.out == ""
    (line,) = [
        part
        for part in done.err.splitlines()
        if part and not part.startswith(("note:", "Running your code", "Signals:"))
    ]
    assert line.startswith("giveaway: ")
    for marker in (*NAMES, *CONTENTS, SMALL, LABEL, KEY[:12], "918273"):
        assert marker not in done.said
    assert not (provoking / "never").exists()


def test_too_many_subgroups_are_refused_without_naming_one(provoking):
    np.savez(provoking / "large.npz", **made_arrays(220))
    (provoking / "large.csv").write_text("ward\n" + "".join(f"{SMALL}{i}\n" for i in range(220)))
    with working_in(provoking):
        done = run(*FROM_FILE, "large.npz", "--subgroups", "large.csv")
    assert (done.code, done.out) == (2, "")
    assert SMALL not in done.err
