"""The folder of a feature cache: what a model's layer saw of each record, so that the model runs once.

cache.json is there first, so that a killed run can be removed or run again, and says last that all files are whole.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.checks import fail
from giveaway.extract.npy_writer import NpyWriter
from giveaway.storage.files import LOCK, locked_folder, private_folder, write_atomically, write_json
from giveaway.version import VERSION

MARKER, KIND = "cache.json", "giveaway feature cache"
ROWS = ("features", "outputs", "targets")
FILES = (*(f"{name}.npy" for name in (*ROWS, "ids", "weight", "bias")), LOCK, MARKER)


class FeatureCache:
    """A cache folder in use by this run; made by `opened`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def facts(self) -> dict[str, Any] | None:
        """What the cache was made of; None where it is not whole."""
        if not (self.path / MARKER).is_file():
            return None
        found = _marker(self.path)
        sizes = {name: _size(self.path / name) for name in found.get("files", {})}
        return found if found.get("complete") and sizes == found["files"] else None

    def check(self, expected: dict[str, Any]) -> None:
        """Refuse a cache that was made of something else, and say what differs."""
        found, different = self.facts() or {}, []
        if found.get("model_sha256") != expected["model_sha256"]:
            different.append("the model or its weights differ")
        if found.get("rows") != expected["rows"]:
            different.append(f"{found.get('rows')} records then, {expected['rows']} now")
        elif found.get("rows_sha256") != expected["rows_sha256"]:
            different.append("the records differ")
        then, now = found.get("options", {}), expected["options"]
        for name in now:
            same = now[name] == then.get(name) or (name == "layer" and now[name] == found.get("layer"))
            if not same:
                different.append(f"{name} was {then.get(name)!r}, is {now[name]!r}")
        if different:
            remedy = "choose another folder, or remove this one with giveaway purge"
            raise fail("cache", "features of the same model and data", "; ".join(different), remedy)

    @contextmanager
    def writing(self) -> Iterator[dict[str, NpyWriter]]:
        """Writers of features, outputs and targets; nothing stays of them if the block fails."""
        unfinished = {"kind": KIND, "complete": False, "giveaway": VERSION, "files": {name: None for name in FILES}}
        write_json(self.path / MARKER, unfinished)
        self._clear(LOCK, MARKER)
        writers = {name: NpyWriter(self.path / f"{name}.npy") for name in ROWS}
        try:
            yield writers
            for writer in writers.values():
                writer.finish()
        except BaseException:
            for writer in writers.values():
                writer.close()
            self._clear(LOCK)
            raise

    def complete(self, facts: dict[str, Any], others: dict[str, Any]) -> None:
        """Add the arrays `others` (None where there is none), and say in cache.json that the cache is whole."""
        present = {name: np.asarray(value) for name, value in others.items() if value is not None}
        for name, array in present.items():
            write_atomically(self.path / f"{name}.npy", partial(np.save, arr=array, allow_pickle=False))
        files = [f"{name}.npy" for name in (*ROWS, *present)]
        sizes = {name: _size(self.path / name) for name in files}
        marker = {"kind": KIND, "complete": True, "giveaway": VERSION, **facts, "files": sizes}
        write_json(self.path / MARKER, marker)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, torch.Tensor, np.ndarray | None]:
        """Features and outputs as memory maps, targets, and ids if the batches carried them."""
        features, outputs = (np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ROWS[:2])
        targets = torch.from_numpy(np.load(self.path / "targets.npy", allow_pickle=False))
        ids = self.path / "ids.npy"
        return features, outputs, targets, np.load(ids, allow_pickle=False) if ids.is_file() else None

    def remove(self) -> int:
        """Remove every file of the cache, cache.json last, so that a killed removal can be repeated; their number."""
        return self._clear(LOCK, MARKER) + self._clear()

    def _clear(self, *kept: str) -> int:
        gone = [file for file in self._ours() if file.name not in kept]
        for file in gone:
            file.unlink()
        return len(gone)

    def _ours(self) -> list[Path]:
        names = "|".join(map(re.escape, FILES))
        pattern = re.compile(rf"({names})|\.({names})-\w+\.part")
        return [file for file in self.path.iterdir() if pattern.fullmatch(file.name) and file.is_file()]


@contextmanager
def opened(folder: str | os.PathLike[str]) -> Iterator[FeatureCache]:
    """The cache in `folder`, which must be new, empty or an earlier cache, and is refused to a second run."""
    path = Path(folder)
    if path.is_dir() and not is_feature_cache(path) and any(file.name != LOCK for file in path.iterdir()):
        got = f"{path} with other files"
        raise fail("cache", "a new, empty or earlier cache folder", got, "choose another folder")
    with locked_folder("cache", private_folder(path)):
        yield FeatureCache(path)


def is_feature_cache(folder: str | os.PathLike[str]) -> bool:
    """Whether from_torch wrote this folder, whole or not."""
    return (Path(folder) / MARKER).is_file() and _marker(Path(folder)).get("kind") == KIND


def remove_feature_cache(folder: str | os.PathLike[str]) -> int:
    """Remove the files of the cache, and the folder if nothing else is in it; their number."""
    path = Path(folder)
    if not is_feature_cache(path):
        raise fail("folder", f"a feature cache with its {MARKER}", str(path), "name the folder given as cache=")
    with locked_folder("cache", path):
        removed = FeatureCache(path).remove()
        if not any(path.iterdir()):
            path.rmdir()
    return removed


def _marker(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise fail("cache", f"a readable {MARKER}", str(path / MARKER), "remove it, or choose another folder")
    return found


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None
