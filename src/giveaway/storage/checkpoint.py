"""Checkpoints: where long numerical work saves what it has finished, so that a killed run can go on from there.

`FolderCheckpoint` keeps each set of tensors as one .npz, read without pickle; a file that is not whole by its checksum
counts as not there. Of several processes, each has a folder of its own.
"""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.checks import fail
from giveaway.storage.arrays import write_archive
from giveaway.storage.files import file_digest, private_folder
from giveaway.storage.folder import MarkedFolder

FOLDER, OF_PROCESS = "checkpoint", "process-"
EVERY = 60.0  # seconds between saves of partial work, at least
SHARE = 20  # how many times longer than the save itself that must be
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"


class Checkpoint:
    """A place for named sets of tensors; this one saves nothing."""

    def load(self, name: str) -> dict[str, torch.Tensor] | None:
        """Return what was last saved under `name`, on the CPU, bfloat16 as float32; None where that is not whole."""
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
    """The folder `checkpoint` inside an audit's own; those of processes other than the first lie within it."""

    marker, kind, argument = "checkpoint.json", "folder of unfinished work", "resume"

    def inner(self) -> list[MarkedFolder]:
        others = [UnfinishedWork(path) for path in sorted(self.path.glob(f"{OF_PROCESS}*"))]
        return [work for work in others if work.marked or (work.interrupted() and not work.path.is_symlink())]


class FolderCheckpoint(UnfinishedWork, Checkpoint):
    """The checkpoint of process `rank`, made after the first's; `digest` is all that must stay the same to go on."""

    def __init__(self, audit: str | Path, digest: dict[str, Any], *, resume: bool, rank: int = 0) -> None:
        self._first = UnfinishedWork(Path(audit) / FOLDER)
        super().__init__(self._first.path / (f"{OF_PROCESS}{rank}" if rank else ""))
        for folder in (self._first, self):
            folder.refuse_link()
        self.rank = rank
        expected = json.loads(json.dumps(digest, allow_nan=False))  # as it will be read again
        self.resumed = self._begun_with(expected, resume) and resume
        private_folder(self.path)
        self.settle()
        if not self.resumed:
            self.clear()
        self.commit(expected)
        self._saved, self._took = time.monotonic(), 0.0

    def load(self, name: str) -> dict[str, torch.Tensor] | None:
        file = self._file(name)
        if (digest := self.listed().get(file.name)) is None or file_digest(file) != digest:
            return None
        with np.load(file, allow_pickle=False) as stored:
            return {key: torch.from_numpy(stored[key]) for key in stored.files}

    def save(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        began = time.monotonic()
        plain = {key: tensor.detach() for key, tensor in tensors.items()}
        try:
            self.stage(self._file(name).name, lambda stream: write_archive(stream, plain))
            self.commit()
        except OSError as error:
            size = sum(tensor.nbytes for tensor in tensors.values()) / 1e9
            expected, got = f"room for {size:.1f} GB of unfinished work", f"{self.path} ({error.strerror or error})"
            raise fail("out", expected, got, "make room and add --resume") from error
        self._saved = time.monotonic()
        self._took = self._saved - began

    def due(self) -> bool:
        return time.monotonic() - self._saved >= max(EVERY, SHARE * self._took)

    def drop(self, name: str) -> None:
        self.clear([self._file(name).name])

    def finish(self, *, failed: bool = False) -> None:
        """Remove what was saved, by the first process for all; of an audit that failed it stays where there is any."""
        if self.rank == 0 and self.marked and not (failed and self._has_work()):
            self.remove()

    def _begun_with(self, expected: dict[str, Any], resume: bool) -> bool:
        """Whether there is work to go on with; refuse it where that was not asked for, or it is another audit's."""
        first = self._first
        if not first.marked or (self.rank == 0 and not self._has_work()):
            return False
        stored = {name: value for name, value in first.read().items() if name != "files"}
        if not resume and (self.rank == 0 or stored != expected):  # else the first process began it a moment ago
            remedy = "add --resume to go on with it, or remove it with giveaway purge"
            raise fail("out", "a folder without unfinished work", f"an unfinished audit in {first.path}", remedy)
        meaning = "the inputs and options that the audit was begun with"
        self.check(stored, expected, meaning, "give the same again, or remove it with giveaway purge")
        return True

    def _has_work(self) -> bool:
        """Whether anything was saved: a run that was killed before that has left nothing to go on with."""
        return any(work.listed() for work in (self._first, *self._first.inner()))

    def _file(self, name: str) -> Path:
        if not re.fullmatch(NAME, name):
            raise ValueError(f"name: expected letters, digits, dots and dashes, got {name!r}")
        return self.path / f"{name}.npz"
