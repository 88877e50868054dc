"""Which features to take of the records, by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from giveaway.checks import fail
from giveaway.views.blocks import Blocks
from giveaway.views.images import patch_features
from giveaway.views.tabular import tabular_features
from giveaway.views.text import text_features

Description = dict[str, str | int]


def features_of(
    inputs: Any,
    *,
    categorical: Sequence[int] = (),
    filters: int = 512,
    size: int = 6,
    pool: int = 2,
    features: int = 1024,
    dimensions: int = 4096,
    seed: int = 0,
) -> tuple[Description, Blocks]:
    """What was chosen, in words and numbers for the metadata, and the features as a callable per pass.

    Images: (n, c, h, w), or (n, h, w) of uint8. Text: a list or array of str. Tables: (n, columns) or (n,) numbers, or
    objects with `categorical` columns.

    >>> described, blocks = features_of(["to be", "or not"], dimensions=16)
    >>> described["view"], next(blocks()).shape
    ('text', torch.Size([2, 16]))
    """
    if _is_text(inputs):
        return {"view": "text", "dimensions": dimensions}, text_features(inputs, dimensions=dimensions)
    array = inputs if isinstance(inputs, torch.Tensor) else np.asarray(inputs)
    if array.ndim == 4 or (array.ndim == 3 and str(array.dtype).endswith("uint8")):
        blocks = patch_features(array, filters=filters, size=size, pool=pool, seed=seed)
        used = min(size, *array.shape[-2:])
        cells = min(pool, min(array.shape[-2:]) - used + 1)
        return {"view": "images", "filters": filters, "size": used, "pool": cells, "seed": seed}, blocks
    if array.ndim in (1, 2):
        table = array.reshape(len(array), -1)
        blocks = tabular_features(table, features=features, categorical=categorical, seed=seed)
        return {"view": "tabular", "features": features, "categorical": len(set(categorical)), "seed": seed}, blocks
    raise fail(
        "inputs",
        "images (n, c, h, w), strings, or a table (n, columns)",
        f"shape {tuple(array.shape)} of {array.dtype}",
        "reshape it (images of one channel: inputs[:, None]), or supply features of your own",
    )


def _is_text(inputs: Any) -> bool:
    """Whether the first record is a string; a list is not made an array, which would be as wide as its longest text."""
    if isinstance(inputs, np.ndarray):
        return inputs.ndim == 1 and (inputs.dtype.kind == "U" or (len(inputs) > 0 and isinstance(inputs[0], str)))
    return isinstance(inputs, str) or (isinstance(inputs, Sequence) and len(inputs) > 0 and isinstance(inputs[0], str))
