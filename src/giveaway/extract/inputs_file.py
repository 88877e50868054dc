"""The records themselves from a file: images, numbers or strings, and targets where they are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.checks import fail
from giveaway.extract.reading import reading
from giveaway.records.inputs import as_numbers, as_records


def inputs_from(path: str | os.PathLike[str], *, targets: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
    """`inputs` of the file as float64 (n, …), and `targets` if wanted.

    uint8 images, with 1, 3 or 4 channels last or first or with none, become (n, channels, height, width) from 0 to 1;
    other numbers stay as they are.
    """
    with reading("inputs", path, ".npz file") as file, np.load(file, allow_pickle=False) as stored:
        for key in ("inputs", *(("targets",) if targets else ())):
            if key not in stored.files:
                raise _missing(key, file, stored.files)
        return as_numbers(stored["inputs"]), stored["targets"] if targets else None


def records_from(path: str | os.PathLike[str]) -> Any:
    """`inputs` of an .npz file, or an .npy file mapped into memory, as they are stored.

    Only uint8 images get their channels first, and a row of strings becomes a list. A table of numbers and words is one
    of strings, (n, columns).
    """
    mapped = Path(path).suffix == ".npy"
    with reading("inputs", path, ".npy file" if mapped else ".npz file") as file:
        try:
            if mapped:
                return as_records(np.load(file, mmap_mode="r", allow_pickle=False))
            with np.load(file, allow_pickle=False) as stored:
                if "inputs" not in stored.files:
                    raise _missing("inputs", file, stored.files)
                return as_records(stored["inputs"])
        except ValueError as error:
            if not any(words in str(error) for words in ("Object arrays", "Python objects in dtype")):
                raise
            remedy = "save plain numbers, or a table as strings: table.astype(str)"
            raise fail("inputs", "arrays that need no pickle", f"{file.name}, which needs it", remedy) from error


def _missing(key: str, file: Path, present: list[str]) -> Exception:
    return fail(key, f"the key {key} in {file.name}", "keys " + ", ".join(present), "add it")
