"""Private, atomic files: a killed run leaves the old file or the new one, never half of one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from giveaway.checks import fail


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
        reason = error.strerror or str(error)
        raise fail("out", "a folder that can be written", f"{path} ({reason})", "choose another folder") from error
    return path


def write_atomically(path: str | os.PathLike[str], write: Callable[[BinaryIO], Any]) -> None:
    """Run `write` on a temporary file beside `path`, then rename it into place with mode 0600."""
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-", suffix=".part")
    except OSError as error:
        reason = error.strerror or str(error)
        raise fail("out", "a place that can be written", f"{target} ({reason})", "choose another folder") from error
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
