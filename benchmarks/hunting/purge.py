"""Folders that lead a removal elsewhere: links, names with a path in them, files of the user's under our names.

Every attack is planted into an audit folder with shadow models and unfinished work, beside a victim that is such a
folder, too; then the folder is purged, and purged once more. Neither the victim nor a file of the user's
may change.
"""

import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.hunting.folders import quick_pages
from benchmarks.hunting.kills import do, write_whole
from giveaway.auditing.store import AuditFolder
from giveaway.checks import InputError
from giveaway.storage.files import file_digest
from giveaway.storage.folder import LOCK, FolderCheckpoint

COUNT = 300
INNER = ("checkpoint", "signals")
NAMES = ("../victim/report.html", "/victim/report.html", "..", ".", "", "../victim", "signals/../../victim/report.html")


def contents(folder: Path) -> dict[str, str]:
    return {str(path): str(file_digest(path)) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def replaced(path: Path, target: Path, rng: random.Random) -> None:
    """Put a link to the target, or another name of the same file, in the place of a file or folder."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    if target.is_file() and rng.random() < 0.3:
        os.link(target, path)
    else:
        path.symlink_to(target if rng.random() < 0.5 else os.path.relpath(target, path.parent))


def plant(folder: Path, victim: Path, rng: random.Random) -> str:
    """Plant one attack, and say which."""
    kind = rng.choice(["file", "inner", "deep", "lock", "part", "name", "changed", "user's", "marker"])
    names = sorted(path.name for path in victim.iterdir() if path.is_file())
    deep = sorted(str(path.relative_to(victim)) for path in victim.rglob("*") if path.parent != victim)
    if kind == "file":
        replaced(folder / (name := rng.choice(names)), victim / name, rng)
    elif kind == "inner":
        replaced(folder / (name := rng.choice(INNER)), victim / name, rng)
    elif kind == "deep" and not (folder / (name := rng.choice(deep))).parent.is_symlink():
        replaced(folder / name, victim / name, rng)
    elif kind == "lock":
        replaced(folder / LOCK, rng.choice([victim / "report.html", victim / "new"]), rng)
    elif kind == "part":
        name, digest = rng.choice(list(AuditFolder(victim).listed().items()))
        replaced(folder / f".giveaway-{name}-{digest[:16]}.part", victim / name, rng)
    elif kind == "name" and (folder / "audit.json").is_file():
        stored = json.loads((folder / "audit.json").read_text())
        stored["files"][rng.choice(NAMES)] = AuditFolder(victim).listed()["report.html"]
        (folder / "audit.json").unlink()
        (folder / "audit.json").write_text(json.dumps(stored))
    elif kind == "changed" and (folder / "report.html").is_file():
        (folder / "report.html").unlink()
        (folder / "report.html").write_text("mine")
    elif kind == "user's":
        names = ["mydata-2024.npz", "model-000077.npy", "values.npy", "checkpoint-7.npz", "notes.json"]
        place = rng.choice([folder, folder / "checkpoint", folder / "signals"])
        if place.is_dir() and not place.is_symlink() and not (place / (name := rng.choice(names))).exists():
            (place / name).write_text("mine")
    elif kind == "marker":
        replaced(folder / "audit.json", victim / "audit.json", rng)
    return kind


def trained() -> int:
    """Train shadow models in the folder; 2 where a file that the purge had to keep is refused."""
    try:
        return do("shadows")
    except InputError:
        return 2


def hunt(count: int, seed: int) -> dict[str, Any]:
    rng, where, wrong = random.Random(seed), os.getcwd(), list[str]()
    with tempfile.TemporaryDirectory(prefix="hunt-") as place, quick_pages():
        os.chdir(place)
        try:
            write_whole()
            for name in ("victim", "prepared"):
                do("audit", name)
                do("shadows", name)
                FolderCheckpoint(name, {"of": name}, resume=False).save("sums", {"x": torch.ones(3)})
            victim, folder = Path("victim").resolve(), Path("F").resolve()
            before = contents(victim)
            for number in range(count):
                shutil.copytree("prepared", folder)
                kinds = [plant(folder, victim, rng) for _ in range(rng.choice([1, 2, 3]))]
                mine = {path for path in folder.rglob("*") if path.is_file() and path.read_bytes() == b"mine"}
                codes = [do("purge"), trained() if rng.random() < 0.1 and folder.exists() else 0, do("purge")]
                if contents(victim) != before:
                    wrong.append(f"{number}: {kinds}: the victim changed")
                    shutil.rmtree(victim)
                    shutil.copytree("prepared", victim)
                    before = contents(victim)
                lost = [path.name for path in mine if not path.exists() or path.read_bytes() != b"mine"]
                wrong += [f"{number}: {kinds}: {name} was the user's" for name in lost]
                wrong += [f"{number}: {kinds}: ended with {code}" for code in codes if code not in (0, 2)]
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.chdir(where)
    return {"attacks": count, "wrong": len(wrong), "first": wrong[:10]}
