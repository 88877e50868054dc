"""Marked folders: one lock, one listing with checksums, one way to write and one to remove, for every kind of work.

A marker, a JSON file, says what a folder was made of and lists its files with their SHA-256. Files are staged: written
and synced under temporary names beside their places. A commit then writes the marker, and only after that gives them
their names, so that whoever comes next can finish what a kill interrupted: the temporary name holds the checksum that
the marker lists. Only listed files whose checksum still holds are ever removed, the marker after the others; a link is
never followed.
"""

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

import numpy as np
import torch

from giveaway.checks import fail
from giveaway.storage import files
from giveaway.storage.arrays import write_archive
from giveaway.storage.files import file_digest, opened_folder, part_of, private_folder, sync, system_errors

MOST_NAMED = 4  # differences
UNFINISHED, OF_PROCESS = "checkpoint", "process-"
EVERY = 60.0  # seconds between saves of partial work, at least
SHARE = 20  # how many times longer than the save itself that must be
NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
LOCK = ".giveaway-lock"
PART = re.compile(r"\.giveaway-.+-[0-9a-f]{8,16}\.part")  # a file that was not given its name


class MarkedFolder:
    """A folder that one kind of work writes, one run at a time. A subclass says what the marker is called."""

    marker: str
    kind: ClassVar[str]  # in words, such as "cache folder"
    argument: ClassVar[str] = "folder"  # the user's argument that named the folder

    beside: ClassVar[tuple[str, ...]] = ()  # what a new folder may hold before its marker is there
    links: ClassVar[bool] = False  # whether the folder may be named by a link to it
    again: ClassVar[str] = "run the same command again"  # what writes a file that was removed
    words: ClassVar[Mapping[str, str]] = {}  # how to say that an entry differs, with {old} and {new}

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.staged: dict[str, str] = {}
        self.kept: list[Path] = []  # what a removal left, as it is not what was written

    @property
    def marked(self) -> bool:
        file = self.path / self.marker
        return file.is_file() and not file.is_symlink() and (self.links or not self.path.is_symlink())

    def read(self, argument: str | None = None) -> dict[str, Any]:
        if not (file := self.path / self.marker).is_file():
            expected = f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind} with {self.marker}"
            raise fail(argument or self.argument, expected, str(self.path), "name the folder that giveaway wrote")
        return files.read_json(argument or self.argument, file, f"remove {self.path}, or choose another folder")

    def listed(self) -> dict[str, str]:
        """Return the names of the folder's files, and the SHA-256 of each."""
        stored = self.read("folder").get("files") if self.marked else None
        known = stored.items() if isinstance(stored, Mapping) else ()
        return {name: digest for name, digest in known if Path(name).name == name and isinstance(digest, str)}

    def verified(self, name: str) -> Path:
        """Return where the file is, if it is; refuse one that is not what was written, as far as it is listed."""
        path, digest = self.path / name, self.listed().get(name)
        if digest is None:
            return path
        for place in (path, part_of(path, digest), path):  # before the end of a commit it is beside its place
            if file_digest(place) == digest:
                return place
        if os.path.lexists(path):
            got, remedy = f"{path}, damaged or changed since", f"remove {name}, and {self.again}"
            raise fail(self.argument, f"{name} as it was written", got, remedy)
        return path

    def claim(self) -> None:
        """Make the folder if there is none; refuse one that holds other files."""
        if not self.links:
            self.refuse_link()
        present = [file.name for file in self.path.iterdir()] if self.path.is_dir() and not self.marked else []
        if any(name not in (LOCK, *self.beside) and not PART.fullmatch(name) for name in present):
            expected, got = f"a new, empty or earlier {self.kind}", f"{self.path} with other files"
            raise fail(self.argument, expected, got, "choose another folder")
        private_folder(self.path)

    def refuse_link(self) -> None:
        if self.path.is_symlink():
            remedy = "name the folder itself, or remove the link"
            raise fail(self.argument, "a folder", f"{self.path}, a link to one", remedy)

    @contextmanager
    def locked(self, *, new: bool = False, among_others: bool = False) -> Iterator[Self]:
        """Hold the folder while the block runs, or refuse it where another run does; finish what a kill interrupted. A
        `new` one is made, and goes again where nothing came of it; it may lie `among_others`, files of the user's. What
        was staged and not committed is gone afterwards."""
        made = new and not self.path.exists()
        if not new:
            self.read("folder")
        else:
            private_folder(self.path) if among_others else self.claim()
        try:
            with opened_folder(self.path, links=self.links) as folder, os.fdopen(self._lock(folder)):
                try:
                    self.settle()
                    yield self
                finally:
                    self.settle()
                    with suppress(FileNotFoundError):
                        os.unlink(LOCK, dir_fd=folder)
        finally:
            if made:
                self.remove_if_empty()

    def _lock(self, folder: int) -> int:
        """Lock the lock file; it may be another by then, as the run that held it removed it."""
        import fcntl  # not every system has it, and most of the library goes without

        while True:
            with system_errors(self.argument, "a lock that can be written", self.path / LOCK, "remove it"):
                lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(lock), os.stat(LOCK, dir_fd=folder, follow_symlinks=False)):
                        return lock
            except OSError as error:
                os.close(lock)
                got, remedy = f"{self.path}, in use by another run", "wait for that run, or choose another folder"
                raise fail(self.argument, "a folder of its own", got, remedy) from error
            os.close(lock)

    def settle(self) -> None:
        """Give the listed files their names where a kill came before that; clear what belongs to no listing."""
        self.staged = {}
        with suppress(OSError, ValueError):  # a marker that cannot be read is told where it is needed
            for name, digest in self.listed().items():
                if (part := part_of(self.path / name, digest)).exists():
                    os.replace(part, self.path / name)
        for part in self.parts():
            part.unlink(missing_ok=True)

    def parts(self) -> list[Path]:
        present = sorted(self.path.iterdir()) if self.path.is_dir() else []
        return [file for file in present if PART.fullmatch(file.name)]

    def interrupted(self) -> bool:
        return bool(self.parts()) or os.path.lexists(self.path / LOCK)

    def stage(self, name: str, write: Callable[[BinaryIO], Any] | Path) -> None:
        """Write a file beside its place, or take one that was written there."""
        if (self.path / name).exists() and name not in self.listed():
            got, remedy = f"{self.path / name}, which the folder does not list", "move it elsewhere"
            raise fail(self.argument, f"a place for {name}", got, remedy)
        part = write if isinstance(write, Path) else files.write_part(self.path / name, write)
        if (digest := file_digest(part)) is None:
            raise fail(self.argument, f"{name} on the disk", "none", "check the disk")
        os.replace(part, part_of(self.path / name, digest))
        self.staged[name] = digest

    def commit(self, contents: Mapping[str, Any] | None = None, *, without: Collection[str] = ()) -> None:
        """List what was staged in the marker, whose other contents may change, and give the files their names."""
        stored = contents if contents is not None else self.read()
        listed = {name: digest for name, digest in self.listed().items() if name not in without} | self.staged
        sync(self.path)  # the files are there before a listing that names them
        files.write_text(self.path / self.marker, files.as_json({**stored, "files": listed}))
        for name, digest in self.staged.items():
            os.replace(part_of(self.path / name, digest), self.path / name)
        self.staged = {}
        sync(self.path)

    def save_pages(self, pages: Mapping[str, str | bytes], contents: Mapping[str, Any] | None = None) -> list[Path]:
        for name, page in pages.items():
            content = files.as_bytes(page)
            self.stage(name, lambda stream, content=content: stream.write(content))  # type: ignore[misc]
        self.commit(contents)
        return [self.path / name for name in pages]

    def check(self, stored: Mapping[str, Any], expected: Mapping[str, Any], meaning: str, remedy: str) -> None:
        """Refuse a folder that was made of something else than `expected`, and say what differs."""
        made_of = {name: value for name, value in stored.items() if name != "files"}
        if different := files.differences(made_of, expected, self.words):
            more = [f"and {len(different) - MOST_NAMED} more"] if len(different) > MOST_NAMED else []
            raise fail(self.argument, meaning, "; ".join(different[:MOST_NAMED] + more), remedy)

    def clear(self, names: Collection[str] | None = None) -> int:
        """Remove the listed files, or those of these names, as far as they are what was written; return their number.
        All of them take the marker along, which goes last."""
        listed = self.listed()
        gone, removed = [name for name in listed if names is None or name in names], 0
        with opened_folder(self.path, links=self.links) as folder:
            for name in gone:
                if file_digest(name, folder) == listed[name]:
                    os.unlink(name, dir_fd=folder)
                    removed += 1
                elif os.path.lexists(self.path / name):
                    self.kept.append(self.path / name)
            if names is None and self.marked:
                os.unlink(self.marker, dir_fd=folder)
                return removed + 1
        if names is not None:
            self.commit(without=gone)
        return removed

    def remove(self) -> int:
        """Remove every file of the folder, and the folder if nothing else is in it; return their number."""
        self.refuse_link()
        inner = self.inner()
        if not (inner or self.interrupted()):
            self.read("folder")
        with self.locked(new=True, among_others=True):
            removed = sum(folder.remove() for folder in inner) + self.clear()
        self.kept += [file for folder in inner for file in folder.kept]
        self.remove_if_empty()
        return removed

    def inner(self) -> "list[MarkedFolder]":
        """Return the folders of its own in this one, which are removed with it."""
        return []

    def remove_if_empty(self) -> None:
        with suppress(OSError):  # something else is in it, or another process was quicker
            self.path.rmdir()


class Checkpoint:
    """A place for named sets of tensors, so that a killed run can go on from there; this one saves nothing."""

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
    """The checkpoint of process `rank`, made after the first's: one .npz, read without pickle, for each set of tensors.
    `digest` is all that must stay the same to go on."""

    def __init__(self, audit: str | Path, digest: dict[str, Any], *, resume: bool, rank: int = 0) -> None:
        self._first = UnfinishedWork(Path(audit) / UNFINISHED)
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
        expected = f"room for {sum(tensor.nbytes for tensor in plain.values()) / 1e9:.1f} GB of unfinished work"
        with system_errors("out", expected, self.path, "make room and add --resume"):
            self.stage(self._file(name).name, lambda stream: write_archive(stream, plain))
            self.commit()
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
