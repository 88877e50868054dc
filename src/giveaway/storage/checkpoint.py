"""Checkpoints: where long numerical work saves what it has finished, so that a killed run can go on from there.

`FolderCheckpoint` keeps each set of tensors as one .npz, read without pickle; a file that is not whole by its checksum
counts as not there. The processes that share the folder have a listing each.
"""

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.checks import InputError, fail
from giveaway.storage.arrays import write_archive
from giveaway.storage.files import file_digest, private_folder
from giveaway.storage.folder import MarkedFolder

FOLDER = "checkpoint"
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
    """The checkpoints that the processes of one audit share, in the folder `checkpoint` inside the audit's own."""

    kind, argument = "folder of unfinished work", "resume"

    def __init__(self, audit: str | Path, rank: int = 0) -> None:
        super().__init__(Path(audit) / FOLDER)
        self.marker = f"checkpoint-{rank}.json" if rank else "checkpoint.json"

    def of_all(self) -> list["UnfinishedWork"]:
        names = (re.fullmatch(r"checkpoint(?:-(\d+))?\.json", file.name) for file in self.path.glob("checkpoint*"))
        found = [UnfinishedWork(self.path.parent, int(name[1] or 0)) for name in names if name]
        return [work for work in found if work.marked]

    def remove(self) -> int:
        """Remove the files and the folder; return the number of files, 0 where there is no such folder."""
        every = self.of_all()
        for part in MarkedFolder.parts(self) if not self.path.is_symlink() else ():
            part.unlink(missing_ok=True)
        removed = sum(work.clear() for work in every)
        self.kept = [file for work in every for file in work.kept]
        self.remove_if_empty()
        return removed


class FolderCheckpoint(UnfinishedWork, Checkpoint):
    """The checkpoint of process `rank`, made after the first's; `digest` is all that must stay the same to go on."""

    def __init__(self, audit: str | Path, digest: dict[str, Any], *, resume: bool, rank: int = 0) -> None:
        super().__init__(audit, rank)
        self.refuse_link()
        self.rank, self._ending = rank, f"-{rank}.npz"
        expected = json.loads(json.dumps(digest, allow_nan=False))  # as it will be read again
        first = UnfinishedWork(audit)
        self.resumed = self._begun_with(first if first.marked else self, expected, resume) and resume
        private_folder(self.path)
        self.settle()
        if not self.resumed:
            self.clear()
        self.commit(expected)
        self._saved, self._took = time.monotonic(), 0.0

    def parts(self) -> list[Path]:
        """Return this process's own files under temporary names: the others are at work."""
        return [file for file in super().parts() if self._ending in file.name or f"-{self.marker}-" in file.name]

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
        if self.rank == 0 and not (failed and self._has_work()):
            self.remove()

    def _begun_with(self, first: UnfinishedWork, expected: dict[str, Any], resume: bool) -> bool:
        """Whether there is work to go on with; refuse it where that was not asked for, or it is another audit's."""
        stored: dict[str, Any] | None = None
        with contextlib.suppress(InputError):
            if not first.marked or (self.rank == 0 and not self._has_work()):
                return False
            stored = {name: value for name, value in first.read().items() if name != "files"}
        begun_beside = self.rank > 0 and stored == expected  # by the first process, a moment ago
        if not resume and not begun_beside:
            remedy = "add --resume to go on with it, or remove it with giveaway purge"
            raise fail("out", "a folder without unfinished work", f"an unfinished audit in {self.path}", remedy)
        if stored is None:
            remedy = f"remove the folder {self.path}, and begin again"
            raise fail("resume", f"a readable {first.marker}", str(self.path / first.marker), remedy)
        meaning = "the inputs and options that the audit was begun with"
        self.check(stored, expected, meaning, "give the same again, or remove it with giveaway purge")
        return True

    def _has_work(self) -> bool:
        """Whether anything was saved: a run that was killed before that has left nothing to go on with."""
        return any(work.listed() for work in self.of_all())

    def _file(self, name: str) -> Path:
        if not re.fullmatch(NAME, name):
            raise ValueError(f"name: expected letters, digits, dots and dashes, got {name!r}")
        return self.path / f"{name}{self._ending}"
