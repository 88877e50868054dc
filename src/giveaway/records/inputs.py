"""The records themselves as arrays: what is an image, and where its channels are."""

from __future__ import annotations

from typing import Any

import numpy as np

from giveaway.checks import fail

CHANNELS = (1, 3, 4)


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
