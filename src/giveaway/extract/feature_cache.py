"""The folder of a feature cache: the features and outputs of each record, so that the model runs once.

cache.json comes last, and lists files that are whole; a cache without it, or with other files, is made again.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch

from giveaway.extract.torch_model import storable
from giveaway.records.rows import check_same_kind
from giveaway.storage.arrays import write_npy
from giveaway.storage.files import file_digest, part_of, system_errors
from giveaway.storage.folder import MarkedFolder
from giveaway.version import VERSION

KIND = "giveaway feature cache"
ROWS = ("features", "outputs", "targets")
SHARE = "part-"  # what folders of the processes that share a cache begin with
_room = partial(system_errors, "cache", "room for the features", None, "choose a folder on a larger disk")


class FeatureCache(MarkedFolder):
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

    def check_made_of(self, stored: dict[str, Any], expected: dict[str, Any]) -> None:
        names = ["model_sha256", "rows" if stored.get("rows") != expected["rows"] else "rows_sha256"]
        names += ["held_out_sha256"] if "held_out_sha256" in expected else []  # else it may hold more than is wanted
        options, then = expected["options"], stored.get("options", {})
        if options.get("layer") == stored.get("layer"):  # named now, found by itself then
            then = {**then, "layer": options.get("layer")}
        old = {name: stored.get(name) for name in names} | {"options": {name: then.get(name) for name in options}}
        new = {name: expected[name] for name in names} | {"options": options}
        if lacking := [name for name in expected["relatives"] if name not in stored.get("relatives", ())]:
            new["relatives"] = ", ".join(lacking)
        remedy = "choose another folder, or remove this one with giveaway purge"
        self.check(old, new, "features of the same model and data", remedy)

    @contextmanager
    def writing(self) -> "Iterator[RowWriters]":
        """Give writers of rows by the names of their arrays; the files get their names when the cache is complete."""
        writers = RowWriters(self.path)
        try:
            yield writers
            for name in writers.files:
                self.stage(f"{name}.npy", writers.finish(name))
        finally:
            for _, stream, _ in writers.files.values():
                with suppress(OSError):  # what could not be written before cannot be written now
                    stream.close()

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


class RowWriters:
    """Writes rows of several arrays under temporary names, however many there will be."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, Counter[str]()
        self.files: dict[str, tuple[Path, BinaryIO, torch.Tensor]] = {}  # with rows like those of the first block

    def add(self, name: str, block: torch.Tensor) -> None:
        block = storable(block).contiguous()
        with _room():
            if name not in self.files:
                part = part_of(self.folder / f"{name}.npy")
                handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                self.files[name] = part, os.fdopen(handle, "w+b"), block[:0].clone()
                self._header(name)
            _, stream, like = self.files[name]
            check_same_kind(name, block, like)
            stream.write(block.numpy().data)
        self.rows[name] += len(block)

    def finish(self, name: str) -> Path:
        """Write the number of rows into the header, and the file to the disk; return its temporary name."""
        part, stream, _ = self.files[name]
        with _room():
            stream.seek(0)
            self._header(name)
            stream.flush()
            os.fsync(stream.fileno())
        return part

    def _header(self, name: str) -> None:
        _, stream, like = self.files[name]
        write_npy(stream, like.numpy().dtype, (self.rows[name], *like.shape[1:]))
