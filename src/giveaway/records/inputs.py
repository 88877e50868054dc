"""The records themselves as arrays: what is an image, and where its channels are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, fail

CHANNELS = (1, 3, 4)
TEXT_BYTES = 2**31  # strings are saved as wide as the longest of them, up to this size in all


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


def check_inputs(value: Any, n: int) -> Any:
    """The records themselves, n rows: a tensor, an array, a DataFrame, or a list of strings."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
    elif isinstance(value, list | tuple):
        value = list(value) if all(isinstance(row, str) for row in value) else _array_of_rows(value)
    elif hasattr(value, "iloc"):
        value = value.to_numpy() if value.ndim == 1 else value
    elif not isinstance(value, np.ndarray):
        if not hasattr(value, "__array__"):
            remedy = "pass the records themselves, dense, in the order of the outputs"
            raise fail("inputs", "an array, a DataFrame or a list of strings", f"a {type(value).__name__}", remedy)
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and value.ndim == 1 and _holds_strings(value):
        value = value.tolist()  # not an array, which is as wide as its longest string
    rows = "shape ()" if getattr(value, "ndim", 1) == 0 else f"{len(value)} rows"
    if rows != f"{n} rows":
        raise fail("inputs", f"{n} rows, one a record", rows, "align them with the outputs")
    if isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        check_finite("inputs", as_tensor("inputs", value))
    return value


def saveable(inputs: Any) -> np.ndarray:
    """As an array of numbers or strings that an .npz gives back as it was, without pickle."""
    stored = to_numpy(inputs) if isinstance(inputs, torch.Tensor) else inputs
    if isinstance(inputs, list) and 4 * len(inputs) * max(map(len, inputs)) <= TEXT_BYTES:
        stored = np.array(inputs)
        if stored.tolist() != inputs:  # NumPy drops zeros at the end of a string
            stored = inputs
    if not isinstance(stored, np.ndarray) or stored.dtype.kind not in "fiubU":
        kinds = {
            list: "strings that are too long, or end in zeros",
            np.ndarray: f"dtype {getattr(stored, 'dtype', '')}",
        }
        got = kinds.get(type(stored), f"a {type(stored).__name__}")
        remedy = "save dataclasses.replace(head, inputs=None), and the records apart"
        raise fail("inputs", "numbers or strings, which need no pickle", got, remedy)
    return stored


def _array_of_rows(rows: Any) -> np.ndarray:
    try:
        return np.asarray(rows)
    except (ValueError, TypeError, RuntimeError) as error:
        expected, got = "rows that make one array", "rows of several shapes or of other things"
        raise fail("inputs", expected, got, "make all records alike, and pass an array") from error


def _holds_strings(array: np.ndarray) -> bool:
    return array.dtype.kind == "U" or (array.dtype.kind == "O" and all(isinstance(value, str) for value in array))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """On the CPU."""
    # NumPy has no bfloat16; float32 holds it exactly
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
