"""Private files and marked folders: a killed run leaves the old file or the new one, never half of one.

A marker, a JSON file that is written first, says what a folder holds and what it was made of. A file is written under
a temporary name and renamed, so that a killed run leaves whole files and ".NAME-….part" files, which belong to the
folder too. Removal takes the marker last, so that a killed removal can be repeated.
"""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from giveaway.checks import fail

LOCK = "lock"
LONGEST = 60  # letters of a value that differs, in an error


def private_folder(folder: str | os.PathLike[str]) -> Path:
    """Make `folder`, readable by its owner only unless it is in use already, or say why it cannot be written."""
    path = Path(folder)
    try:
        for place in (*reversed(path.parents), path):  # parents=True would leave those on the way open
            if not place.exists():
                place.mkdir(mode=0o700, exist_ok=True)
        if not any(path.iterdir()):
            path.chmod(0o700)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".writable-"):
            pass
    except OSError as error:
        got = f"{path} ({error.strerror or error})"
        raise fail("out", "a folder that can be written", got, "choose another folder") from error
    return path


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], Any]) -> None:
    """Run `write` on a temporary file beside `path`, then rename it into place with mode 0600."""
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-", suffix=".part")
    except OSError as error:
        got = f"{target} ({error.strerror or error})"
        raise fail("out", "a place that can be written", got, "choose another folder") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    write_atomically(path, lambda stream: stream.write(text.encode("utf-8", "backslashreplace")))


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically; NaN is refused."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


class MarkedFolder:
    """A folder that one kind of work writes. A subclass says what the marker and the other files are called."""

    marker: ClassVar[str]
    kind: ClassVar[str]  # in words, such as "cache folder"
    names: ClassVar[str] = ""  # a regular expression of the other files
    argument: ClassVar[str] = "folder"  # the user's argument that named the folder
    beside: ClassVar[tuple[str, ...]] = (LOCK,)  # what a new folder may hold before its marker is there
    locks: ClassVar[bool] = False  # whether one run at a time may write it
    words: ClassVar[Mapping[str, str]] = {}  # how to say that an entry differs, with {old} and {new}

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def marked(self) -> bool:
        """Whether the marker is there."""
        return (self.path / self.marker).is_file()

    def read(self, argument: str | None = None) -> dict[str, Any]:
        """Read the marker, or say why it cannot be read."""
        file = self.path / self.marker
        if not file.is_file():
            expected = f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind} with {self.marker}"
            raise fail(argument or self.argument, expected, str(self.path), "name the folder that giveaway wrote")
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            stored = None
        if not isinstance(stored, dict):
            raise fail(argument or self.argument, f"a readable {self.marker}", str(file), "choose another folder")
        return stored

    def write(self, contents: Mapping[str, Any]) -> None:
        write_json(self.path / self.marker, contents)

    def claim(self) -> None:
        """Make the folder if there is none; refuse one that holds other files."""
        if self.path.is_dir() and not self.marked and any(file.name not in self.beside for file in self.path.iterdir()):
            expected, got = f"a new, empty or earlier {self.kind}", f"{self.path} with other files"
            raise fail(self.argument, expected, got, "choose another folder")
        private_folder(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, or refuse the folder where another run does. The lock file stays: all lock the same one."""
        import fcntl  # not every system has it, and most of the library goes without

        lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                got, remedy = f"{self.path}, in use by another run", "wait for that run, or choose another folder"
                raise fail(self.argument, "a folder of its own", got, remedy) from error
            yield
        finally:
            os.close(lock)

    def check(self, stored: Mapping[str, Any], expected: Mapping[str, Any], meaning: str, remedy: str) -> None:
        """Refuse a folder that was made of something else than `expected`, and say what differs."""
        different = differences(stored, expected, self.words)
        if different:
            raise fail(self.argument, meaning, "; ".join(different), remedy)

    def files(self) -> list[Path]:
        """Return every file of this kind of work, finished or not; others that lie here are not the folder's."""
        names = "|".join(filter(None, (re.escape(self.marker), LOCK if self.locks else "", self.names)))
        ours = re.compile(rf"({names})|\.({names})-\w+\.part")
        present = self.path.iterdir() if self.path.is_dir() else ()
        return sorted(file for file in present if ours.fullmatch(file.name) and file.is_file())

    def clear(self, *spared: str) -> int:
        """Remove the files but for those named, the marker last; return their number."""
        gone = [file for file in self.files() if file.name not in spared]
        for file in sorted(gone, key=lambda file: file.name == self.marker):
            file.unlink(missing_ok=True)
        return len(gone)

    def remove(self) -> int:
        """Remove every file of the folder, and the folder if nothing else is in it; return their number."""
        self.read("folder")
        with self.locked() if self.locks else nullcontext():
            removed = self.clear()
            self.remove_if_empty()
        return removed

    def remove_if_empty(self) -> None:
        if not any(self.path.iterdir()):
            self.path.rmdir()


def differences(stored: Mapping[str, Any], expected: Mapping[str, Any], words: Mapping[str, str] = {}) -> list[str]:
    """Say in words what differs; entries of nested mappings by their own names, digests without their value."""
    lines = []
    for name in sorted({*stored, *expected}, key=lambda name: (not name.endswith("_sha256"), name)):
        old, new = stored.get(name), expected.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differences(old, new, words)
        elif old != new and name in words:
            lines.append(words[name].format(old=old, new=new))
        elif old != new and (name.endswith("_sha256") or any(str(value).startswith("sha256 ") for value in (old, new))):
            lines.append(f"{name.removesuffix('_sha256')} differ")
        elif old != new:
            texts = (repr(old), repr(new))
            was, now = (text if len(text) <= LONGEST else text[: LONGEST - 1] + "…" for text in texts)
            lines.append(f"{name} was {was}, is {now}")
    return lines
