"""The records themselves from an .npz file: images or a matrix of numbers, and targets where they are asked for."""

from __future__ import annotations

import os

import numpy as np

from giveaway.checks import fail
from giveaway.extract.reading import reading


def inputs_from(path: str | os.PathLike[str], *, targets: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
    """`inputs` of the file as float64 (n, …), and `targets` if wanted.

    uint8 images (n, height, width, channels) become (n, channels, height, width) from 0 to 1; others stay as they are.
    """
    with reading("inputs", path, ".npz file") as file, np.load(file, allow_pickle=False) as stored:
        for key in ("inputs", *(("targets",) if targets else ())):
            if key not in stored.files:
                raise fail(key, f"the key {key} in {file.name}", "keys " + ", ".join(stored.files), "add it")
        return as_numbers(stored["inputs"]), stored["targets"] if targets else None


def as_numbers(inputs: np.ndarray, argument: str = "inputs") -> np.ndarray:
    """Inputs as float64, images with their channels first."""
    if inputs.dtype.kind not in "fiub":
        raise fail(
            argument, "images or a matrix of numbers", f"dtype {inputs.dtype}", "embed them, and pass the vectors"
        )
    if inputs.ndim == 4 and inputs.dtype == np.uint8:
        return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)) / 255.0
    return inputs.astype(np.float64)
