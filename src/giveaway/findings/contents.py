"""The most exposed records themselves, for a report whose reader asked to see them: pictures, text or columns."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.records.inputs import CHANNELS, to_numpy
from giveaway.text import shown_text

MOST_LETTERS = 400
MOST_COLUMNS = 24
SMALLEST_SIDE = 96  # pixels: smaller images are enlarged by whole factors
LARGEST_SIDE = 192


@dataclass(frozen=True)
class Contents:
    """A PNG or a text of each of `rows`; the other of the two is empty."""

    rows: np.ndarray
    texts: tuple[str, ...]
    pictures: tuple[bytes, ...]


def contents_of(inputs: Any, rows: np.ndarray) -> Contents:
    """What `rows` of the records hold: images as PNG, strings cut, a table's columns with their names."""
    if hasattr(inputs, "iloc"):
        names = [shown_text(name, 40) for name in inputs.columns[:MOST_COLUMNS]]
        return _texts(rows, [_columns(names, inputs.iloc[int(row)].tolist(), len(inputs.columns)) for row in rows])
    if isinstance(inputs, list | tuple):
        return _texts(rows, [shown_text(inputs[int(row)], MOST_LETTERS) for row in rows])
    held = inputs[np.sort(rows)]
    chosen = (to_numpy(held) if isinstance(held, torch.Tensor) else np.asarray(held))[np.argsort(np.argsort(rows))]
    if chosen.ndim in (3, 4) and chosen.dtype.kind in "fiub":
        return Contents(rows, ("",) * len(rows), tuple(_png(image) for image in _as_colours(chosen)))
    if chosen.ndim == 1:
        return _texts(rows, [shown_text(value, MOST_LETTERS) for value in chosen.tolist()])
    flat = chosen.reshape(len(chosen), -1)
    names = [str(place) for place in range(min(MOST_COLUMNS, flat.shape[1]))]
    return _texts(rows, [_columns(names, line, flat.shape[1]) for line in flat[:, :MOST_COLUMNS].tolist()])


def _texts(rows: np.ndarray, texts: list[str]) -> Contents:
    return Contents(rows, tuple(texts), (b"",) * len(rows))


def _columns(names: list[str], values: list[Any], width: int) -> str:
    told = (f"{value:.4g}" if isinstance(value, float) else shown_text(value, 40) for value in values)
    more = f", … {width - len(names)} more" if width > len(names) else ""
    return ", ".join(f"{name}: {value}" for name, value in zip(names, told, strict=False)) + more


def _as_colours(images: np.ndarray) -> np.ndarray:
    """(n, h, w, 3) bytes, stretched from the smallest to the largest number of each image."""
    if images.ndim == 3:
        images = images[:, :, :, None]
    elif images.shape[1] in CHANNELS and images.shape[3] not in CHANNELS:
        images = images.transpose(0, 2, 3, 1)
    images = images[..., :3] if images.shape[3] >= 3 else np.repeat(images[..., :1], 3, axis=3)
    values = images.astype(np.float64)
    low, high = values.min((1, 2, 3), keepdims=True), values.max((1, 2, 3), keepdims=True)
    return np.round(255 * (values - low) / np.maximum(high - low, 1e-300)).clip(0, 255).astype(np.uint8)


def _png(image: np.ndarray) -> bytes:
    from matplotlib.image import imsave

    step = max(1, -(-max(image.shape[:2]) // LARGEST_SIDE))
    image = image[::step, ::step]
    factor = max(1, SMALLEST_SIDE // max(image.shape[:2]))
    stream = io.BytesIO()
    imsave(stream, image.repeat(factor, 0).repeat(factor, 1), format="png")
    return stream.getvalue()
