"""Folders that somebody tampered with: every command on them ends in a result or in one line, never in a traceback.

Entries of the JSON files, arrays of the .npz files and bytes of any file are changed, taken away or exchanged, one to
three at a time; then a command that reads the folder runs. `unforeseen` counts lines that name a place in the code
instead of what is wrong with the folder.
"""

import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from giveaway.cli import main
from giveaway.records import ScoreTable

COUNT = 5_000
N = 220
JUNK: list[Any] = [None, True, -1, 0, 2**70, 1e308, float("nan"), "text", "", "\x1b[2J", [], [[]], {}, {"a": []}]
JUNK += [["a", 1], "9" * 400, [1e400], -0.5]
RULES = 'schema = 1\n[[rule]]\nname = "few"\nmeasure = "measured_count"\nleast_power = 0.0\nat_most = 500\n'
PICTURE = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
COMMANDS = [
    *[("report", "F")] * 2,
    *[("canaries", "F", "-k", "3", "--json")] * 4,
    *[("weights", "F", "--out", "F")] * 4,
    ("compare", "F", "whole"),
    ("compare", "whole", "F", "--json"),
    *[("gate", "F", "rules.toml")] * 4,
    ("index", "F", "whole", "--out", "index.html"),
    ("validate", "F", "--signals", "signals.npz"),
    *[("purge", "F")] * 2,
]


def run(*arguments: str) -> tuple[int, str]:
    """Run the command line here; code 99 stands for a traceback."""
    said = io.StringIO()
    command = mock.patch.object(sys, "argv", ["giveaway", *arguments])
    with command, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
            code = 99
    return int(code or 0), said.getvalue()


@contextlib.contextmanager
def quick_pages() -> Iterator[None]:
    """Put empty pictures into every page: drawing them takes longer than all the rest."""
    made = {"picture.figure_bytes": PICTURE, "validation.figure_bytes": PICTURE, "report.bokeh_script": ""}
    made["report.maps"] = {"item": "{}", "drawn": "0 points"}
    with contextlib.ExitStack() as stack:
        for name, value in made.items():
            stack.enter_context(mock.patch(f"giveaway.reporting.{name}", return_value=value))
        yield


def write_whole() -> None:
    """Audit and validate made-up records, with every optional part."""
    rng = np.random.default_rng(0)
    features, weight = rng.normal(size=(N, 4)), rng.normal(size=(3, 4))
    arrays = {"features": features, "weight": weight, "bias": rng.normal(size=3), "targets": np.arange(N) % 3}
    np.savez("features.npz", **arrays, ids=np.array([f"person {i}" for i in range(N)]))
    np.savez("text.npz", inputs=np.array([f"red cat {i % 7} {i}" for i in range(N)]))
    Path("wards.csv").write_text("ward\n" + "".join(f"ward {i % 2}\n" for i in range(N)))
    members = np.stack([rng.permutation(np.arange(8) < 4) for _ in range(N)], axis=1)
    Path("rules.toml").write_text(RULES)
    more: tuple[str, ...] = (
        "--inputs",
        "text.npz",
        "--subgroups",
        "wards.csv",
        "--show-records",
    )
    _must("audit", "--features", "features.npz", "--l2", "0.5", *more, "--out", "whole")
    gap = 1 + 3 * np.argsort(np.argsort(ScoreTable.load("whole")["fused"])) / N  # signals go with the ranking
    np.savez("signals.npz", phi=rng.normal(size=members.shape) + gap * members, members=members)
    _must("validate", "whole", "--signals", "signals.npz")
    _must("gate", "whole", "rules.toml")


def _must(*command: str) -> None:
    code, said = run(*command)
    if code:
        raise RuntimeError(said)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every entry of nested JSON, as its container and its key."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [(value, key) for key, _ in inside]
    return found + [place for _, each in inside if isinstance(each, dict | list) for place in places(each)]


def change_json(text: str, rng: random.Random) -> str:
    found = json.loads(text)
    if rng.random() < 0.05 or not places(found):
        return json.dumps(rng.choice(JUNK))
    where, key = rng.choice(places(found))
    kind = rng.random()
    if kind < 0.2:
        del where[key]
    elif kind < 0.25:
        where[key] = [where[key]]
    elif kind < 0.3 and isinstance(where, dict):
        where[f"{key}\u202e"] = where.pop(key)
    elif kind < 0.35:
        where[key] = json.loads("[" * 500 + "]" * 500)
    else:
        where[key] = rng.choice(JUNK)
    return json.dumps(found)


def change_array(array: np.ndarray, rng: random.Random) -> np.ndarray:
    changes: list[Callable[[], np.ndarray]] = [
        lambda: array[: len(array) // 2],
        lambda: np.concatenate([array, array]),
        lambda: array.reshape(1, -1),
        lambda: array.reshape(-1)[0],
        lambda: array[:0],
        lambda: np.full(array.shape, np.nan),
        lambda: np.full(array.shape, -(2**40)),
        lambda: np.full(array.shape, 2**63, dtype=np.uint64),
        lambda: np.full(array.shape, "text"),
        lambda: np.full(array.shape, b"bytes"),
        lambda: np.full(array.shape, 1e308),
        lambda: np.full(array.shape, 1j),
        lambda: np.full(array.shape, np.datetime64("2020-01-01")),
        lambda: np.zeros(array.shape, dtype=[("a", "i4")]),
    ]
    return rng.choice(changes)()


def change_npz(path: Path, rng: random.Random) -> None:
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    name = rng.choice(list(arrays))
    kind = rng.random()
    if kind < 0.15:
        del arrays[name]
    elif kind < 0.25:
        arrays[f"{name}x"] = arrays.pop(name)
    elif arrays[name].ndim == 0 and arrays[name].dtype.kind == "U" and kind < 0.95:
        arrays[name] = np.array(change_json(str(arrays[name]), rng))
    elif arrays[name].ndim:
        arrays[name] = change_array(arrays[name], rng)
    else:
        arrays[name] = np.array("{")
    np.savez(path, **arrays)


def change_bytes(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"0")
    kind = rng.randrange(7)
    if kind == 0:
        content = content[: rng.randrange(len(content) + 1)]
    elif kind == 1:
        for _ in range(rng.randrange(1, 20)):
            content[rng.randrange(len(content))] = rng.randrange(256)
    elif kind == 2:
        content = bytearray()
    elif kind == 3:
        content = bytearray(rng.choice([b"[" * 100_000, b"\xff\xfe{}", b"null", b'{"files": ["../x", "/etc/passwd"]}']))
    if kind < 4:
        path.write_bytes(content)
    elif kind == 4:
        shutil.copy(rng.choice([other for other in path.parent.iterdir() if other.is_file()]), "other")
        shutil.move("other", path)
    else:
        path.unlink()
        if kind == 5:
            path.mkdir()


def tamper(folder: Path, rng: random.Random) -> str:
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.suffix in (".json", ".npz"))
    path = rng.choice(files)
    if rng.random() < 0.2:
        change_bytes(path, rng)
        return f"bytes of {path.name}"
    try:
        if path.suffix == ".npz":
            change_npz(path, rng)
        else:
            path.write_text(change_json(path.read_text(encoding="utf-8"), rng), encoding="utf-8")
    except Exception:  # changed before, so that it cannot be changed again
        change_bytes(path, rng)
    return f"{path.name}"


def hunt(count: int, seed: int) -> dict[str, Any]:
    rng, outcomes, examples = random.Random(seed), Counter[str](), {}
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place), quick_pages():
        write_whole()
        for number in range(count):
            shutil.copytree("whole", "F")
            changed = [tamper(Path("F"), rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
            command = rng.choice(COMMANDS)
            code, said = run(*command)
            lines = [line for line in said.splitlines() if line.startswith("giveaway: ")]
            kind = {0: "a result", 1: "refused", 2: "refused", 3: "a result"}.get(code, "traceback")
            kind = "unforeseen" if code == 1 and " at line " in said else kind
            if kind in ("refused", "unforeseen") and (len(lines) != 1 or len(lines[0]) > 1_000):
                kind = "not one line"
            if "Traceback (" in said:
                kind = "traceback"
            outcomes[kind] += 1
            if kind in ("traceback", "unforeseen", "not one line"):
                told = said.splitlines()
                frames = [line.strip() for line in told if "giveaway/" in line and "File" in line]
                key = f"{command[0]}: {(told or [''])[-1][:100]} {frames[-1][-60:] if frames else ''}"
                examples.setdefault(key, [number, *changed])
            shutil.rmtree("F", ignore_errors=True)
    wrong = {name: outcomes.get(name, 0) for name in ("traceback", "unforeseen", "not one line")}
    return {"folders": count, "a result": outcomes["a result"], "refused": outcomes["refused"], **wrong} | (
        {"examples": examples} if examples else {}
    )
