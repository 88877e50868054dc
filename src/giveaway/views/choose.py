"""Which features to take of the records, by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from giveaway.checks import fail
from giveaway.views.blocks import RecordFeatures
from giveaway.views.images import as_images, patch_features
from giveaway.views.tables import as_table
from giveaway.views.tabular import tabular_features
from giveaway.views.text import text_features

SIDE = 32  # pixels; larger images are averaged down to between this and twice this
PATCH_SHARES = (3 / 16, 5 / 16)  # of the side: patches of 6 and 10 for 32 × 32
SMALLEST_PATCH = 3
FILTERS = 256  # of each size
CELLS = 4  # by as many, over which responses are averaged
PIXEL_SHARE = 0.2  # of squared distances that the pixels have beside the patches
DIMENSIONS = 4096  # of hashed text

Description = dict[str, Any]


def features_of(
    inputs: Any, *, seed: int = 0, device: torch.device | str = "cpu"
) -> tuple[Description, RecordFeatures]:
    """What was chosen, in words and numbers for the metadata, and the features.

    Images: (n, c, h, w), or (n, h, w) of uint8. Text: a list or array of str. Tables: (n, columns) or (n,) numbers, a
    DataFrame, or a matrix of objects or strings, some of whose columns may be categories.

    >>> described, features = features_of(["to be", "or not"])
    >>> described["view"], next(features()).shape
    ('text', torch.Size([2, 4096]))
    """
    if hasattr(inputs, "iloc") and inputs.ndim == 1:  # a column of a DataFrame
        inputs = np.asarray(inputs)
    if _is_text(inputs):
        return {"view": "text", "dimensions": DIMENSIONS}, text_features(inputs, dimensions=DIMENSIONS)
    array = inputs if isinstance(inputs, torch.Tensor) or hasattr(inputs, "iloc") else _as_array(inputs)
    if array.ndim and 0 in array.shape:
        got = f"shape {tuple(array.shape)}"
        raise fail("inputs", "at least one record, of one number at least", got, "give one row a record")
    if array.ndim == 4 or (array.ndim == 3 and str(array.dtype).endswith("uint8")):
        return _of_images(array, seed, device)
    if array.ndim in (1, 2):
        table, categorical = as_table(array)
        described = {"view": "tabular", "columns": table.shape[1], "categorical": len(categorical)}
        return described, tabular_features(table, categorical=categorical)
    raise fail(
        "inputs",
        "images (n, c, h, w), strings, or a table (n, columns)",
        f"shape {tuple(array.shape)} of {array.dtype}",
        "reshape it (images of one channel: inputs[:, None]), or supply features of your own",
    )


def _of_images(array: Any, seed: int, device: torch.device | str) -> tuple[Description, RecordFeatures]:
    """Patches of two sizes and, as their normalization takes brightness and colour out, the image itself, coarsely."""
    images = _averaged(as_images(array))
    side = min(images.shape[2:])
    sizes = sorted({min(side, max(SMALLEST_PATCH, round(share * side))) for share in PATCH_SHARES})
    banks = [
        patch_features(images, filters=FILTERS, size=size, pool=CELLS, seed=seed + k, device=device)
        for k, size in enumerate(sizes)
    ]

    def of(rows: slice | torch.Tensor) -> torch.Tensor:
        return torch.cat([*(bank.of(rows) for bank in banks), _coarse(images[rows].to(device))], dim=1)

    width = banks[0].of(slice(0, 1)).shape[1]
    pixels = _coarse(images[:1]).shape[1]
    shares = (*((width, (1.0 - PIXEL_SHARE) / len(banks)) for _ in banks), (pixels, PIXEL_SHARE))
    described = {"view": "images", "side": side, "patches": sizes, "filters": FILTERS, "cells": CELLS, "seed": seed}
    return described, RecordFeatures(len(images), of, banks[0].block, shares)


def _coarse(images: torch.Tensor) -> torch.Tensor:
    """The pixels (r, …), averaged two by two where there are as many."""
    factor = 2 if min(images.shape[2:]) >= 2 else 1
    return functional.avg_pool2d(images.float(), factor).flatten(1)


def _averaged(images: torch.Tensor) -> torch.Tensor:
    """Larger images averaged over squares of whole pixels, so that an image costs about the same whatever its size."""
    factor = min(images.shape[2:]) // SIDE
    if factor < 2:
        return images
    return torch.cat([functional.avg_pool2d(part.float(), factor) for part in images.split(256)])


def _as_array(inputs: Any) -> np.ndarray:
    try:
        return np.asarray(inputs)
    except ValueError as error:
        got = f"rows of different lengths ({str(error)[:60]} …)"
        raise fail("inputs", "one shape for all records", got, "pad or cut them to one length") from None


def _is_text(inputs: Any) -> bool:
    """Whether the first record is a string; a list is not made an array, which would be as wide as its longest text."""
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 1 and (inputs.dtype.kind == "U" or (len(inputs) > 0 and isinstance(inputs[0], str)))
    return isinstance(inputs, str) or (isinstance(inputs, Sequence) and len(inputs) > 0 and isinstance(inputs[0], str))
