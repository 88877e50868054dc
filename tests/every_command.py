"""Every command, run once in one folder on inputs in which each name, value and path carries a marker."""

import base64
import contextlib
import io
import itertools
import os
import re
import sys
import traceback
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import joblib
import numpy as np
import pandas
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from giveaway.cli import main
from tests.conftest import without_pictures

N = 100  # as many as a validation needs
RECORD, PERSON, TEXT, CELL, COLUMN = "zqrecordmark", "zqpersonmark", "zqwordsmark", "zqcellmark", "zqcolumnmark"
SMALL, PATH, KEY, LABEL = "zqsmallmark", "zqplacemark", "zqkeymarkzqkeymark", "zqlabelmark"
RULES = """schema = 1
[[rule]]
name = "few exposed"
measure = "measured_count"
least_power = 0.0
at_most = {at_most}
"""
WAIVER = '[[waiver]]\nrule = "few exposed"\nowner = "Ada"\nexpires = 9999-01-01\nreason = "a fix is on its way"\n'


@dataclass
class Run:
    """What one command left on the screen."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


def run(*arguments: object) -> Run:
    """Run the command line as on a terminal: UTF-8, and click takes nothing out of what is printed."""
    given = tuple(map(str, arguments))
    screens = [io.TextIOWrapper(io.BytesIO(), "utf-8", how, newline="") for how in ("strict", "backslashreplace")]
    code: object = 0
    with (
        mock.patch.object(sys, "argv", ["giveaway", *given]),
        mock.patch("click.utils.should_strip_ansi", return_value=False),
        contextlib.redirect_stdout(screens[0]),
        contextlib.redirect_stderr(screens[1]),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        except Exception:
            traceback.print_exc()  # what Python itself would do
            code = 1
    said = []
    for screen in screens:
        screen.flush()
        said.append(screen.buffer.getvalue().decode("utf-8"))
    return Run(given, code if isinstance(code, int) else 1, *said)


@contextlib.contextmanager
def working_in(folder: Path, *, umask: int | None = None) -> Iterator[None]:
    """With `folder` as the working folder and importable, and, if asked for, new files open to everybody."""
    path, modules = [*sys.path], {*sys.modules}
    before = None if umask is None else os.umask(umask)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        if before is not None:
            os.umask(before)
        sys.path[:] = path
        for name in {*sys.modules} - modules:
            if name.startswith("users_"):
                del sys.modules[name]


def made_arrays(n: int = N) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    features = rng.normal(size=(n, 4))
    return {"features": features, "weight": weight, "bias": bias, "targets": np.arange(n) % 3}


def made_signals(n: int = N, models: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    members = np.stack([rng.permutation(np.arange(models) < models // 2) for _ in range(n)], axis=1)
    told = made_arrays(n)
    logits = told["features"] @ told["weight"].T + told["bias"]
    known = np.take_along_axis(logits, told["targets"][:, None], axis=1)[:, 0] - logits.mean(axis=1)
    return {"phi": rng.normal(size=members.shape) + 3 * members + known, "members": members}  # of these records


def write_files(folder: Path) -> None:
    """Everything a user could hand over, each thing with its marker, under names with one."""
    rng = np.random.default_rng(2)
    ids = np.array([f"{RECORD}{i:03d}" for i in range(N)])
    words = [" ".join(rng.choice(["red", "blue", "cat", "dog"], 4)) + f" {TEXT}{i}" for i in range(N)]
    np.savez(folder / f"{PATH}-features.npz", **made_arrays(), ids=ids)
    later = made_arrays()
    np.savez(folder / f"{PATH}-later.npz", **later | {"weight": later["weight"] * 0.5}, ids=ids)
    np.savez(folder / f"{PATH}-text.npz", inputs=np.array(words))
    (folder / f"{PATH}-people.txt").write_text("".join(f"{PERSON} {i // 2}\n" for i in range(N)))
    wards = [SMALL if i in (3, 30, 60) else f"ward {i % 2}" for i in range(N)]
    (folder / f"{PATH}-subgroups.csv").write_text("ward\n" + "".join(f"{ward}\n" for ward in wards))
    (folder / f"{PATH}-key").write_text(KEY)
    np.savez(folder / f"{PATH}-signals.npz", **made_signals())
    (folder / f"{PATH}-met.toml").write_text(RULES.format(at_most=N))
    (folder / f"{PATH}-missed.toml").write_text(RULES.format(at_most=0))
    (folder / f"{PATH}-waived.toml").write_text(RULES.format(at_most=0) + WAIVER)
    cells = [f"{CELL}{i % 4}" for i in range(N)]
    frame = pandas.DataFrame({f"{COLUMN} a": (rng.normal(size=N) > 0).astype(float), f"{COLUMN} b": cells})
    y = np.array([f"{LABEL}{i % 2}" for i in range(N)])
    columns = make_pipeline(OneHotEncoder(), LogisticRegression())
    joblib.dump(columns.fit(frame, y), folder / "model.joblib")
    joblib.dump((frame, y), folder / "frame.joblib")
    (folder / "users_frame.py").write_text("import joblib\ndef data():\n    return joblib.load('frame.joblib')\n")
    for epoch in (1, 2):
        weights = {"weight": torch.full((3, 4), float(epoch)), "bias": torch.zeros(3)}
        save_file(weights, folder / f"{PATH}-epoch{epoch}.safetensors")
    (folder / "users_network.py").write_text(
        f"import torch\ndef make():\n    return torch.nn.Linear(4, 3)\ndef data():\n"
        f"    return [{{'input': torch.ones(4) * i, 'y': i % 3, 'id': f'{RECORD}{{i}}'}} for i in range({N})]\n"
    )


def forms(marker: str) -> tuple[list[bytes], list[bytes]]:
    """The marker as it could stand in a file, in any case: plain, wide, escaped; and letter by letter: as base64."""
    wide = [marker.encode(kind) for kind in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")]
    escaped = "".join(f"%{byte:02x}" for byte in marker.encode()).encode()
    # at each of three places; its first letters depend on what goes before, its last on what follows
    coded = [base64.b64encode(b"\0" * skip + marker.encode())[4 if skip else 0 : -4] for skip in range(3)]
    return [form.lower() for form in (*wide, escaped, marker.encode().hex().encode())], coded


def contents(path: Path) -> Iterator[bytes]:
    """A file's bytes, those of the members of a zip (an .npz), and those of what a page holds as base64."""
    held = path.read_bytes()
    yield held
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as packed:
            yield from (name.encode() for name in packed.namelist())
            yield from (packed.read(name) for name in packed.namelist())
    for found in re.findall(rb";base64,([A-Za-z0-9+/=]{8,})", held):
        yield base64.b64decode(found)


def holds(path: Path, marker: str) -> bool:
    plain, coded = forms(marker)
    for held in contents(path):
        folded = held.lower()
        if any(form in folded for form in plain) or any(form in held for form in coded):
            return True
    return False


@dataclass
class World:
    """A folder in which every command was run once, with what each of them said."""

    folder: Path
    handed_over: set[str]
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def written(self) -> list[Path]:
        """Every file that a command wrote, but not what Python compiles of the code that was handed over."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        return sorted(path for path in files if path.name not in self.handed_over)

    def holding(self, marker: str, audit: str | None = None) -> set[str]:
        """The written files that hold `marker`, as paths from the folder."""
        files = [p for p in self.written() if audit is None or p.relative_to(self.folder).parts[0] == audit]
        return {str(p.relative_to(self.folder)) for p in files if holds(p, marker)}


AUDITS = {
    "records": ("--inputs", f"{PATH}-text.npz", "--subgroups", f"{PATH}-subgroups.csv", "--access", "weights"),
    "people": ("--inputs", f"{PATH}-text.npz", "--groups", f"{PATH}-people.txt", "--json"),
    "renamed": ("--inputs", f"{PATH}-text.npz", "--pseudonymize", f"{PATH}-key", "--show-records"),
    "renamed-people": ("--groups", f"{PATH}-people.txt", "--pseudonymize", "made-key"),
}


def made_world(folder: Path) -> World:
    """Run every command, with a umask that forbids nobody anything."""
    write_files(folder)
    made = World(folder, {path.name for path in folder.iterdir()} | {"__pycache__"})
    source = ("audit", "--features", f"{PATH}-features.npz", "--l2", 0.5)
    estimator = ("audit", "--estimator", "model.joblib", "--data", "users_frame:data", "--allow-pickle")
    commands: dict[str, list[tuple[object, ...]]] = {
        name: [(*source, *options, "--out", name)] for name, options in AUDITS.items()
    }
    commands["records"] += [
        ("canaries", "records", "--out", "records"),
        ("weights", "records", "--out", "records/weights.csv"),
        ("audit", "--features", f"{PATH}-later.npz", *AUDITS["records"], "--out", "later"),
        ("compare", "records", "later", "--out", "records"),
        ("report", "records"),
        ("validate", "records", "--signals", f"{PATH}-signals.npz"),
        ("gate", "records", f"{PATH}-missed.toml"),
        ("gate", "records", f"{PATH}-met.toml", "--json"),
        ("gate", "records", f"{PATH}-waived.toml"),
        ("export", "records", "--to", "json", "--by", "Ada", "--gate", f"{PATH}-waived.toml", "--out", "record.json"),
        ("export", "records", "--to", "model-card", "--gate", f"{PATH}-missed.toml", "--out", "card.md"),
        ("export", "later", "--to", "model-card"),
        ("index", "records", "later", "--out", "index.html"),
        ("canaries", "records", "--out", "new-folder", "--json"),
        ("weights", "records", "--out", "weights.csv", "--json"),
        ("compare", "records", "later", "--json"),
    ]
    commands["people"] += [
        ("canaries", "people", "--out", "people"),
        ("weights", "people", "--out", "people"),
        ("export", "people", "--to", "json", "--out", "people.json"),
        ("validate", "people", "--signals", f"{PATH}-signals.npz", "--json"),
        ("export", "people", "--to", "model-card", "--out", "people.md"),
    ]
    commands["frame"] = [(*estimator, "--out", "frame")]
    commands["frame"] += [("mitigate", "frame", "--allow-pickle", "--models", "0")]
    commands["frame-shown"] = [(*estimator, "--show-records", "--out", "frame-shown")]
    network = ("--model", "users_network:make", "--data", "users_network:data")
    commands["trace"] = [("trace", *network, "--checkpoints", f"{PATH}-epoch*.safetensors", "--out", "losses.trace")]
    commands["theory"] = [
        ("theory", "tradeoff", "--h", "0.1,0.5"),
        ("theory", "gap", "--leverage", "1,5", "--error", "1", "--freedom", "50"),
        ("theory", "privacy", "--true-positives", "9", "--members", "9", "--false-positives", "1", "--nonmembers", "9"),
    ]
    with working_in(folder, umask=0):
        for name, listed in commands.items():
            made.runs[name] = []
            for arguments in listed:
                drawn = name == "records" and arguments[0] in ("audit", "validate") and "later" not in arguments
                with contextlib.nullcontext() if drawn else without_pictures(maps=True):
                    made.runs[name].append(run(*arguments))
    for done in itertools.chain.from_iterable(made.runs.values()):
        assert done.code == (3 if done.arguments[::2] == ("gate", f"{PATH}-missed.toml") else 0), (
            done.arguments,
            done.err,
        )
    return made
