"""A folder for one run at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from giveaway.checks import fail

LOCK = "lock"


@contextmanager
def locked_folder(argument: str, folder: Path) -> Iterator[None]:
    """Hold the folder's lock, or refuse `argument` where another run does. The file stays: all lock the same one."""
    import fcntl  # not every system has it, and most of the library goes without

    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            got = f"{folder}, in use by another run"
            raise fail(argument, "a folder of its own", got, "wait for that run, or choose another folder") from error
        yield
    finally:
        os.close(lock)
