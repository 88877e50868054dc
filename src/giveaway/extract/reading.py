"""Files a user hands over: what goes wrong while one is read, in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from giveaway.checks import InputError, fail

HARMLESS = re.compile(r"X has \d+ features|Input (X )?contains (NaN|infinity)|Expected 2D array|Found array with")


@contextmanager
def reading(argument: str, path: str | os.PathLike[str], kind: str) -> Iterator[Path]:
    """Read `path` inside, as the user's `argument`; any failure to read it as `kind` becomes an InputError."""
    file = Path(path)
    try:
        if not file.is_file():
            raise fail(argument, "a file that exists", str(file), "check the path")
        yield file
    except (InputError, MemoryError):
        raise
    except PermissionError as error:
        raise fail(argument, "a file that can be read", str(file), "check its permissions") from error
    except (ImportError, AttributeError) as error:
        got = f"{file.name}, which needs more ({first_line(error)})"
        remedy = "run from the folder that holds that code, or install it"
        raise fail(argument, "a file whose code can be imported", got, remedy) from error
    except Exception as error:  # damaged zips and pickles fail with nearly every exception there is
        got = f"{file.name}, truncated or not of that format"
        raise fail(argument, f"a whole {kind}", got, "write the file again") from error


def harmless_line(error: Exception) -> str:
    """What scikit-learn says where that cannot hold a value of a record, else the error's type alone."""
    line = first_line(error)
    return line if HARMLESS.match(line) else f"others ({type(error).__name__})"


def first_line(error: Exception) -> str:
    """The first line of what `error` says, or its type where it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
