"""The records themselves from an .npz file: images or a matrix of numbers, and targets where they are asked for."""

from __future__ import annotations

import os

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
                raise fail(key, f"the key {key} in {file.name}", "keys " + ", ".join(stored.files), "add it")
        return as_numbers(stored["inputs"]), stored["targets"] if targets else None


def as_numbers(inputs: np.ndarray, argument: str = "inputs") -> np.ndarray:
    """Inputs as float64, images with their channels first."""
    if inputs.dtype.kind not in "fiub":
        raise fail(
            argument, "images or a matrix of numbers", f"dtype {inputs.dtype}", "embed them, and pass the vectors"
        )
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):
        return _channels_first(inputs, argument) / 255.0
    return inputs.astype(np.float64)


def _channels_first(images: np.ndarray, argument: str) -> np.ndarray:
    if images.ndim == 3:
        return images[:, None]
    if images.shape[3] in CHANNELS:
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    if images.shape[1] in CHANNELS:
        return images
    got = f"shape {images.shape}"
    raise fail(argument, "images with 1, 3 or 4 channels, last or first", got, "pass floats if they are no images")
