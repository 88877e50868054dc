"""The records themselves from a file: images, numbers or strings, and targets where they are asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.checks import fail
from giveaway.extract.reading import reading

CHANNELS = (1, 3, 4)


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


def as_numbers(inputs: np.ndarray, argument: str = "inputs") -> np.ndarray:
    """Inputs as float64, images with their channels first."""
    if inputs.dtype.kind not in "fiub":
        raise fail(
            argument, "images or a matrix of numbers", f"dtype {inputs.dtype}", "embed them, and pass the vectors"
        )
    if _are_images(inputs):
        return np.ascontiguousarray(_channels_first(inputs, argument)) / 255.0
    return inputs.astype(np.float64)


def as_records(inputs: np.ndarray, argument: str = "inputs") -> Any:
    """Inputs in their own type, never copied: uint8 images with their channels first, one string a record as a list."""
    if inputs.dtype.kind not in "fiubU":
        remedy = "convert them to numbers or str"
        raise fail(argument, "images, numbers or strings", f"dtype {inputs.dtype}", remedy)
    if inputs.dtype.kind == "U" and inputs.ndim == 1:
        return inputs.tolist()
    return _channels_first(inputs, argument) if _are_images(inputs) else inputs


def _are_images(inputs: np.ndarray) -> bool:
    return inputs.dtype == np.uint8 and inputs.ndim in (3, 4)


def _channels_first(images: np.ndarray, argument: str) -> np.ndarray:
    if images.ndim == 3:
        return images[:, None]
    if images.shape[3] in CHANNELS:
        return images.transpose(0, 3, 1, 2)
    if images.shape[1] in CHANNELS:
        return images
    got = f"shape {images.shape}"
    raise fail(argument, "images with 1, 3 or 4 channels, last or first", got, "pass floats if they are no images")


def _missing(key: str, file: Path, present: list[str]) -> Exception:
    return fail(key, f"the key {key} in {file.name}", "keys " + ", ".join(present), "add it")
