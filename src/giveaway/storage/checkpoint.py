"""Checkpoints: where long numerical work saves what it has finished, so that a killed run can go on from there.

`FolderCheckpoint` keeps each set of tensors as one .npz, read without pickle; a file that is not whole by its checksums
counts as not there.
"""

import contextlib
import hashlib
import json
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.checks import fail
from giveaway.storage.arrays import write_archive
from giveaway.storage.files import MarkedFolder, private_folder, write_atomically

FOLDER = "checkpoint"
ABOUT = "about"  # the entry that says what the tensors belong to
EVERY = 60.0  # seconds between saves of partial work, at least
SHARE = 20  # how many times longer than the save itself that must be
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"


class Checkpoint:
    """A place for named sets of tensors; this one saves nothing."""

    def load(self, name: str) -> dict[str, torch.Tensor] | None:
        """Return what was last saved under `name`, on the CPU; None where there is nothing, or nothing whole."""
        return None

    def save(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        """Save `tensors` in place of what `name` had; a kill in between leaves that."""

    def due(self) -> bool:
        """Whether partial work should be saved again: not so often that saving takes a share of the time."""
        return False

    def drop(self, name: str) -> None:
        """Forget `name`."""


NO_CHECKPOINT = Checkpoint()


class UnfinishedWork(MarkedFolder):
    """The checkpoints that the processes of one audit share, in the folder `checkpoint` inside the audit's own."""

    marker, kind, argument = "checkpoint.json", "folder of unfinished work", "resume"
    names = rf"{NAME}-\d+\.npz"

    def __init__(self, audit: str | Path) -> None:
        super().__init__(Path(audit) / FOLDER)

    def remove(self) -> int:
        """Remove the files and the folder; return the number of files, 0 where there is no such folder."""
        removed = self.clear() if self.marked else 0
        if removed:
            with contextlib.suppress(OSError):  # something else is in it, or another process was quicker
                self.path.rmdir()
        return removed


class FolderCheckpoint(UnfinishedWork, Checkpoint):
    """The checkpoint of process `rank`, made after the first's; `digest` is all that must stay the same to go on."""

    def __init__(self, audit: str | Path, digest: dict[str, Any], *, resume: bool, rank: int = 0) -> None:
        super().__init__(audit)
        self.rank, self._ending = rank, f"-{rank}.npz"
        expected = json.loads(json.dumps(digest, allow_nan=False))  # as it will be read again
        self._sha256 = hashlib.sha256(json.dumps(expected, sort_keys=True).encode()).hexdigest()
        begun = self._begun_with(expected, resume)
        self.resumed = resume and begun
        private_folder(self.path)
        for file in self.files():
            ours = f"{self._ending}-" in file.name or (rank == 0 and file.name.startswith(f".{self.marker}-"))
            half_written = ours and file.suffix == ".part"
            if half_written or (not self.resumed and file.name.endswith(self._ending)):
                file.unlink(missing_ok=True)
        if not begun:
            self.write(expected)
        self._saved, self._took = time.monotonic(), 0.0

    def load(self, name: str) -> dict[str, torch.Tensor] | None:
        file = self._file(name)
        try:
            with zipfile.ZipFile(file) as archive:
                if archive.testzip() is not None:  # an entry is not as its checksum says
                    return None
        except Exception:  # zipfile raises many kinds, by which bytes are wrong: not whole, whichever it is
            return None
        with np.load(file, allow_pickle=False) as stored:
            about = json.loads(str(stored[ABOUT])) if ABOUT in stored.files else {}
            if about.get("sha256") != self._sha256:
                return None
            kinds = about["tensors"]
            tensors = {key: torch.from_numpy(stored[f"tensor.{key}"]) for key in kinds}
        return {key: one.view(torch.bfloat16) if kinds[key] == "bfloat16" else one for key, one in tensors.items()}

    def save(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        began = time.monotonic()
        kinds = {key: str(tensor.dtype).removeprefix("torch.") for key, tensor in tensors.items()}
        entries: dict[str, Any] = {ABOUT: np.array(json.dumps({"sha256": self._sha256, "tensors": kinds}))}
        for key, tensor in tensors.items():
            plain = tensor.detach()
            entries[f"tensor.{key}"] = plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain
        try:
            write_atomically(self._file(name), lambda stream: write_archive(stream, entries))
        except OSError as error:
            size = sum(tensor.nbytes for tensor in tensors.values()) / 1e9
            expected, got = f"room for {size:.1f} GB of unfinished work", f"{self.path} ({error.strerror or error})"
            raise fail("out", expected, got, "make room and add --resume") from error
        self._saved = time.monotonic()
        self._took = self._saved - began

    def due(self) -> bool:
        return time.monotonic() - self._saved >= max(EVERY, SHARE * self._took)

    def drop(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def finish(self) -> None:
        """Remove what was saved, now that the audit is written; the first process does so for all on its disk."""
        for file in self.files():
            if file.name.endswith(self._ending):
                file.unlink(missing_ok=True)
        if self.rank == 0 or [file.name for file in self.files()] == [self.marker]:
            self.remove()

    def abandon(self) -> bool:
        """Keep what was saved of an audit that failed, or remove a folder without any; return whether it was kept."""
        if self._has_work():
            return True
        if self.rank == 0:
            self.remove()
        return False

    def _begun_with(self, expected: dict[str, Any], resume: bool) -> bool:
        """Whether there is work to go on with; refuse it where that was not asked for, or it is another audit's."""
        if not self.marked or (self.rank == 0 and not self._has_work()):
            return False
        stored: dict[str, Any] | None = None
        with contextlib.suppress(ValueError):
            stored = self.read()
        begun_beside = self.rank > 0 and stored == expected  # by the first process, a moment ago
        if not resume and not begun_beside:
            remedy = "add --resume to go on with it, or remove it with giveaway purge"
            raise fail("out", "a folder without unfinished work", f"an unfinished audit in {self.path}", remedy)
        if stored is None:
            remedy = "remove it with giveaway purge, and begin again"
            raise fail("resume", f"a readable {self.marker}", str(self.path / self.marker), remedy)
        meaning = "the inputs and options that the audit was begun with"
        self.check(stored, expected, meaning, "give the same again, or remove it with giveaway purge")
        return True

    def _has_work(self) -> bool:
        """Whether anything was saved: a run that was killed before that has left nothing to go on with."""
        return any(file.suffix == ".npz" for file in self.files())

    def _file(self, name: str) -> Path:
        if not re.fullmatch(NAME, name):
            raise ValueError(f"name: expected letters, digits, dots and dashes, got {name!r}")
        return self.path / f"{name}{self._ending}"
