"""The folder of a feature cache: the features and outputs of each record, so that the model runs once.

cache.json comes last, and lists files that are whole; a cache without it, or with other files, is made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from giveaway.checks import fail
from giveaway.extract.torch_model import storable
from giveaway.records.rows import check_same_kind
from giveaway.storage.arrays import write_npy
from giveaway.storage.files import file_digest, part_of
from giveaway.storage.folder import MarkedFolder
from giveaway.version import VERSION

KIND = "giveaway feature cache"
ROWS = ("features", "outputs", "targets")
SHARE = "part-"  # what folders of the processes that share a cache begin with


class FeatureCache(MarkedFolder):
    """A cache of one model's features."""

    marker, kind, argument = "cache.json", "cache folder", "cache"
    words: ClassVar[Mapping[str, str]] = {
        "model_sha256": "the model or its weights differ",
        "rows": "{old} records then, {new} now",
        "rows_sha256": "the records differ",
        "held_out_sha256": "the records held out differ",
        "relatives": "it has no outputs on variants ({new})",
    }

    @property
    def marked(self) -> bool:
        return super().marked and self.read().get("kind") == KIND

    def facts(self) -> dict[str, Any] | None:
        """Return what the cache was made of; None where it is not whole."""
        listed = self.listed()
        whole = all(file_digest(self.path / name) == digest for name, digest in listed.items())
        return self.read() if listed and whole else None

    def check_made_of(self, expected: dict[str, Any]) -> None:
        """Refuse a cache that was made of something else, and say what differs."""
        stored = self.facts() or {}
        names = ("model_sha256", "rows") if stored.get("rows") != expected["rows"] else ("model_sha256", "rows_sha256")
        options, then = expected["options"], stored.get("options", {})
        if options.get("layer") == stored.get("layer"):  # named now, found by itself then
            then = {**then, "layer": options.get("layer")}
        old = {name: stored.get(name) for name in names} | {"options": {name: then.get(name) for name in options}}
        new = {name: expected[name] for name in names} | {"options": options}
        if "held_out_sha256" in expected:  # else it may hold more than is wanted
            old["held_out_sha256"], new["held_out_sha256"] = stored.get("held_out_sha256"), expected["held_out_sha256"]
        if lacking := [name for name in expected["relatives"] if name not in stored.get("relatives", ())]:
            new["relatives"] = ", ".join(lacking)
        remedy = "choose another folder, or remove this one with giveaway purge"
        self.check(old, new, "features of the same model and data", remedy)

    @contextmanager
    def writing(self) -> Iterator[Sinks]:
        """Give writers of rows by the names of their arrays; the files get their names when the cache is complete."""
        writers = Sinks(lambda name: NpyWriter(self.path / f"{name}.npy"))
        try:
            yield writers
            for name, writer in writers.items():
                writer.finish()
                self.stage(f"{name}.npy", writer.part)
        finally:
            for writer in writers.values():
                writer.close()

    def complete(self, facts: dict[str, Any], others: dict[str, Any]) -> None:
        """Add the arrays `others` (None where there is none), and list all of them in cache.json."""
        present = {name: np.asarray(value) for name, value in others.items() if value is not None}
        for name, array in present.items():
            self.stage(f"{name}.npy", partial(np.save, arr=array, allow_pickle=False))
        stale = self.listed().keys() - self.staged.keys()
        self.commit({"kind": KIND, "giveaway": VERSION, **facts})
        self.clear(stale)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays by name: targets and ids, if the batches carried them, in memory, others as memory maps."""
        arrays: dict[str, Any] = {"targets": torch.from_numpy(np.load(self.path / "targets.npy", allow_pickle=False))}
        for file in (self.path / name for name in sorted(self.listed())):
            if file.stem not in arrays:
                mode: Any = None if file.stem == "ids" else "r"
                arrays[file.stem] = np.load(file, mmap_mode=mode, allow_pickle=False)
        return arrays


class SharedCache(MarkedFolder):
    """A folder with the feature cache of each of several processes; it has no marker of its own."""

    marker, kind, argument = "", "cache folder", "cache"

    def inner(self) -> list[MarkedFolder]:
        found = map(FeatureCache, sorted(self.path.glob(f"{SHARE}*")))
        return [cache for cache in found if not cache.path.is_symlink() and (cache.marked or cache.interrupted())]

    def share(self, rank: int, size: int) -> FeatureCache:
        return FeatureCache(self.path / f"{SHARE}{rank}-of-{size}")


class Sinks(dict[str, Any]):
    """What blocks of rows go into, by the names of their arrays, each made when its first block comes."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Any:
        self[name] = self._make(name)
        return self[name]


class NpyWriter:
    """Writes rows of one array under a temporary name, however many there will be."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self.part = part_of(path)
        self._stream = os.fdopen(os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")
        self._like: torch.Tensor | None = None

    def add(self, block: torch.Tensor) -> None:
        block = storable(block).contiguous()
        if self._like is None:
            self._like = block[:0].clone()
            self._header()
        check_same_kind(self.path.stem, block, self._like)
        with _room():
            self._stream.write(block.numpy().data)
        self.rows += len(block)

    def finish(self) -> None:
        """Write the number of rows into the header, and the file to the disk."""
        with _room():
            self._stream.seek(0)
            self._header()
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()

    def close(self) -> None:
        """Leave the file as it is."""
        with suppress(OSError):  # what could not be written before cannot be written now
            self._stream.close()

    def _header(self) -> None:
        assert self._like is not None
        write_npy(self._stream, self._like.numpy().dtype, (self.rows, *self._like.shape[1:]))


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        got, remedy = error.strerror or str(error), "choose a folder on a larger disk, or stream=True"
        raise fail("cache", "room for the features", got, remedy) from error
