"""Unfinished work of an audit, kept in a private folder inside the audit's own, so that a killed run can go on.

Each set of tensors is one .npz: read without pickle, whole by its checksums or taken as not there. `checkpoint.json`
is written first and says what the work was begun with; another audit is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from giveaway.checks import InputError, fail
from giveaway.storage.files import private_folder, write_atomically, write_json

FOLDER, BEGUN = "checkpoint", "checkpoint.json"
ABOUT = "about"  # the entry that says what the tensors belong to
PIECE_BYTES = 1 << 24  # of a tensor that is brought to the CPU and written at a time
EVERY = 60.0  # seconds between saves of partial work, at least
SHARE = 20  # how many times longer than the save itself that must be
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FILE = rf"({re.escape(BEGUN)}|{NAME.pattern}-\d+\.npz)"
OURS = re.compile(rf"{_FILE}|\.{_FILE}-\w+\.part")


class Checkpoint:
    """A `Kept` (linalg.kept) in `folder`/checkpoint, for process `rank` of an audit.

    `digest` is everything that must stay the same when the audit goes on: the hash of its inputs, options, number of
    processes, versions. Of several processes the first must have been here before the others are.
    """

    def __init__(
        self,
        folder: str | Path,
        digest: dict[str, Any],
        *,
        resume: bool,
        rank: int = 0,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.rank, self.every, self.clock = Path(folder) / FOLDER, rank, every, clock
        expected = json.loads(json.dumps(digest, allow_nan=False))  # as it will be read again
        self._sha256 = hashlib.sha256(json.dumps(expected, sort_keys=True).encode()).hexdigest()
        found = self._begun_with(expected, resume)
        self.resumed = resume and found
        private_folder(self.path)
        for file in _own_files(self.path):
            if _unfinished(file, rank) or (not self.resumed and self._is_own(file)):
                file.unlink(missing_ok=True)
        if not found:
            write_json(self.path / BEGUN, expected)
        self._saved, self._took = clock(), 0.0

    def load(self, name: str) -> dict[str, torch.Tensor] | None:
        """What was last saved under `name`, on the CPU; None where there is nothing, or nothing whole."""
        file = self._file(name)
        if not _is_whole(file):
            return None
        with np.load(file, allow_pickle=False) as stored:
            about = json.loads(str(stored[ABOUT])) if ABOUT in stored.files else {}
            if about.get("sha256") != self._sha256:
                return None
            return {key: _read(stored[f"tensor.{key}"], kind) for key, kind in about["tensors"].items()}

    def save(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        """Keep `tensors` in place of what `name` had: a kill in between leaves that."""
        began = self.clock()
        kinds = {key: str(tensor.dtype).removeprefix("torch.") for key, tensor in tensors.items()}
        about = json.dumps({"sha256": self._sha256, "tensors": kinds})

        def write(stream: BinaryIO) -> None:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
                with archive.open(f"{ABOUT}.npy", "w") as entry:
                    np.save(entry, np.array(about), allow_pickle=False)
                for key, tensor in tensors.items():
                    with archive.open(f"tensor.{key}.npy", "w", force_zip64=True) as entry:
                        _write(entry, tensor)

        try:
            write_atomically(self._file(name), write)
        except OSError as error:
            size = sum(tensor.nbytes for tensor in tensors.values()) / 1e9
            got = f"{self.path} ({error.strerror or error})"
            raise fail(
                "out", f"room for {size:.1f} GB of unfinished work", got, "make room and add --resume"
            ) from error
        self._saved = self.clock()
        self._took = self._saved - began

    def due(self) -> bool:
        """Whether partial work should be saved again: not so often that saving takes a share of the time."""
        return self.clock() - self._saved >= max(self.every, SHARE * self._took)

    def drop(self, name: str) -> None:
        """Forget `name`."""
        self._file(name).unlink(missing_ok=True)

    def files(self) -> list[str]:
        """Every file, relative to the audit's folder."""
        return [f"{FOLDER}/{file.name}" for file in _own_files(self.path)]

    def finish(self) -> None:
        """The audit is written: remove what was kept; the first process does so for all that share its disk."""
        for file in _own_files(self.path):
            if self._is_own(file):
                file.unlink(missing_ok=True)
        if self.rank == 0 or [file.name for file in _own_files(self.path)] == [BEGUN]:
            remove_checkpoint(self.path.parent)

    def abandon(self) -> bool:
        """The audit has ended before its time: keep what was saved, or remove what is left of nothing; whether it was
        kept."""
        if _saved_work(self.path):
            return True
        if self.rank == 0:
            remove_checkpoint(self.path.parent)
        return False

    def _begun_with(self, expected: dict[str, Any], resume: bool) -> bool:
        """Whether there is work to go on with; refused where that was not asked for, or it is of another audit."""
        marker = self.path / BEGUN
        if not marker.is_file() or (self.rank == 0 and not _saved_work(self.path)):
            return False
        found = _read_json(marker)
        begun_beside = self.rank > 0 and found == expected  # by the first process, a moment ago
        if not resume and not begun_beside:
            remedy = "add --resume to go on with it, or remove it with giveaway purge"
            raise fail("out", "a folder without unfinished work", f"an unfinished audit in {self.path}", remedy)
        if found is None:
            remedy = "remove it with giveaway purge, and begin again"
            raise fail("resume", f"a readable {BEGUN}", str(marker), remedy)
        different = _differences(found, expected)
        if different:
            raise _other_audit(different)
        return True

    def _is_own(self, file: Path) -> bool:
        return file.name.endswith(f"-{self.rank}.npz")

    def _file(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise ValueError(f"name: expected letters, digits, dots and dashes, got {name!r}")
        return self.path / f"{name}-{self.rank}.npz"


def remove_checkpoint(folder: str | Path) -> int:
    """Remove the unfinished work in an audit's folder, and how many files that were."""
    path = Path(folder) / FOLDER
    if not (path / BEGUN).is_file():
        return 0
    files = _own_files(path)
    for file in sorted(files, key=lambda file: file.name == BEGUN):  # last, so that a killed removal can be repeated
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else is in it, or another process was quicker
        path.rmdir()
    return len(files)


def _other_audit(different: list[str]) -> InputError:
    remedy = "give the same again, or remove it with giveaway purge"
    return fail("resume", "the inputs and options that the audit was begun with", "; ".join(different), remedy)


def _own_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(file for file in path.iterdir() if OURS.fullmatch(file.name) and file.is_file())


def _saved_work(path: Path) -> bool:
    """Whether anything was finished there: a run that was killed before that has left nothing to go on with."""
    return any(file.suffix == ".npz" for file in _own_files(path))


def _unfinished(file: Path, rank: int) -> bool:
    """What a killed process of this rank was writing."""
    own = f"-{rank}.npz-" in file.name or (rank == 0 and file.name.startswith(f".{BEGUN}-"))
    return own and file.suffix == ".part"


def _is_whole(file: Path) -> bool:
    """Whether the file is there, and every entry is as its checksum says."""
    if not file.is_file():
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    except Exception:  # zipfile raises many kinds, by which bytes are wrong: not whole, whichever it is
        return False


def _write(entry: Any, tensor: torch.Tensor) -> None:
    """One .npy, a piece at a time: neither a device's tensor nor a strided one is ever copied whole."""
    kept = tensor.detach()
    if kept.dtype == torch.bfloat16:  # NumPy has none
        kept = kept.view(torch.int16)
    descr = np.lib.format.dtype_to_descr(kept.new_empty(0, device="cpu").numpy().dtype)
    header = {"descr": descr, "fortran_order": False, "shape": tuple(kept.shape)}
    np.lib.format.write_array_header_1_0(entry, header)
    for piece in _pieces(kept):
        entry.write(piece.contiguous().cpu().numpy().data)


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.is_contiguous():
        tensor = tensor.view(-1)
    if tensor.numel():
        yield from tensor.split(max(1, PIECE_BYTES * len(tensor) // tensor.nbytes))


def _read(array: np.ndarray, kind: str) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """In words, those inside options and versions by their own names; hashes are not shown."""
    lines = []
    for key in sorted({*found, *expected}):
        old, new = found.get(key), expected.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += _differences(old, new)
        elif old != new:
            hashed = key.endswith("sha256")
            lines.append(f"{key.removesuffix('_sha256')} differ" if hashed else f"{key} was {old!r}, is {new!r}")
    return lines
