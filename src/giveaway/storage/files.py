"""Private files: a killed run leaves the old file or the new one, never half of one."""

import hashlib
import json
import math
import os
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from giveaway.checks import fail
from giveaway.text import shown_text

LONGEST = 60  # letters of a value that differs, in an error
JSON_BYTES, TOML_BYTES = 1 << 24, 1 << 16  # larger files are not ours, or were not written by hand


@contextmanager
def system_errors(
    argument: str, expected: str, path: Path | None, remedy: str = "choose another folder"
) -> Iterator[None]:
    """Turn what the system refuses inside into an InputError, which names the path if there is one."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise fail(argument, expected, f"{path} ({reason})" if path else reason, remedy) from error


def private_folder(folder: str | os.PathLike[str]) -> Path:
    """Make `folder`, readable by its owner only unless it is in use already, or say why it cannot be written."""
    path = Path(folder)
    with system_errors("out", "a folder that can be written", path):
        for place in (*reversed(path.parents), path):  # parents=True would leave those on the way open
            if not place.exists():
                place.mkdir(mode=0o700, exist_ok=True)
        if not any(path.iterdir()):
            path.chmod(0o700)
        (part := part_of(path / "writable")).touch(0o600, exist_ok=False)
        part.unlink(missing_ok=True)  # whoever holds the folder clears such files
    return path


def part_of(target: Path, token: str = "") -> Path:
    return target.parent / f".giveaway-{target.name}-{token[:16] or secrets.token_hex(4)}.part"


def write_part(target: Path, write: Callable[[BinaryIO], Any]) -> Path:
    """Run `write` on a new file beside `target` that is on the disk afterwards; return its temporary name."""
    part = part_of(target)
    with system_errors("out", "a place that can be written", target):
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w+b") as stream:
            write(stream)
            stream.flush()
            os.fsync(handle)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], Any]) -> None:
    """Run `write` on a temporary file beside `path`, then rename it into place with mode 0600."""
    part = write_part(Path(path), write)
    try:
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    sync(Path(path).parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    write_atomically(path, lambda stream: stream.write(as_bytes(text)))


def as_bytes(page: str | bytes) -> bytes:
    return page.encode("utf-8", "backslashreplace") if isinstance(page, str) else page


def parse_json(text: str) -> dict[str, Any]:
    """Read a JSON object; NaN and infinity, which no file of ours holds, are ValueErrors as all other faults are."""

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise ValueError("a number that is not finite")
        return number

    found = json.loads(text, parse_constant=finite, parse_float=finite)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def read_small(path: str | os.PathLike[str], most: int) -> str:
    """Return the text of a file without its byte-order mark; one of more than `most` bytes is a ValueError."""
    if Path(path).stat().st_size > most:
        raise ValueError(f"more than {most:,} bytes")
    return Path(path).read_text(encoding="utf-8-sig")


def read_json(argument: str, path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON file of ours, or refuse it in one line."""
    try:
        return parse_json(read_small(path, JSON_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise fail(argument, f"a readable {path.name}", str(path), remedy) from error


def read_toml(argument: str, path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """Read a TOML file of the user's, or refuse it in one line."""
    try:
        return tomllib.loads(read_small(path, TOML_BYTES))
    except OSError as error:
        raise fail(argument, kind, f"{path} ({type(error).__name__})", "check the path") from error
    except (ValueError, RecursionError) as error:
        got = f"{path} ({error if isinstance(error, ValueError) else type(error).__name__})"
        raise fail(argument, kind, got, "correct it") from error


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def file_digest(path: str | os.PathLike[str], folder: int | None = None) -> str | None:
    """Return the SHA-256 of a plain file; None of anything else, such as a link, and of what cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        with open(handle, "rb", closefd=False) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    finally:
        os.close(handle)


@contextmanager
def opened_folder(folder: Path, *, links: bool = True) -> Iterator[int]:
    """Hold a folder open, so that a link put into its place changes nothing; without `links` refuse one."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | (0 if links else os.O_NOFOLLOW))
    try:
        yield handle
    finally:
        os.close(handle)


def sync(folder: Path) -> None:
    with opened_folder(folder) as handle:
        os.fsync(handle)


def differences(stored: Mapping[str, Any], expected: Mapping[str, Any], words: Mapping[str, str] = {}) -> list[str]:
    """Say in words what differs, what both have first; entries of nested mappings by their own names, digests without
    their value."""
    lines, shared = [], {*stored} & {*expected}
    for name in sorted({*stored, *expected}, key=lambda name: (not name.endswith("_sha256"), name not in shared, name)):
        old, new = stored.get(name), expected.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differences(old, new, words)
        elif old != new and name in words:
            lines.append(words[name].format(old=old, new=new))
        elif old != new and (name.endswith("_sha256") or any(str(value).startswith("sha256 ") for value in (old, new))):
            lines.append(f"{name.removesuffix('_sha256')} differ")
        elif old != new:
            lines.append(f"{name} was {shown_text(repr(old), LONGEST)}, is {shown_text(repr(new), LONGEST)}")
    return lines
