"""Rows that are read in blocks, as often as needed: an array or memory map, or a callable that starts a new pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.checks import as_tensor, fail

Blocks = Callable[[], Iterator[torch.Tensor]]


@dataclass(frozen=True)
class RecordFeatures:
    """Features of n records, made when asked for: `of(rows)` for a slice or row numbers, a call for a pass over all.

    `shares` are the columns of each part and its share of squared distances between records, once the columns are
    standardized; without them every column counts alike.
    """

    n: int
    of: Callable[[slice | torch.Tensor], torch.Tensor]
    block: int
    shares: tuple[tuple[int, float], ...] = ()

    def __call__(self) -> Iterator[torch.Tensor]:
        for start in range(0, self.n, self.block):
            yield self.of(slice(start, min(start + self.block, self.n)))


def as_blocks(features: Any) -> Blocks:
    """`features` as a callable that starts a pass over (rows, d) blocks; an (n, d) array is one block, never copied."""
    if callable(features):
        return features
    if isinstance(features, Iterator):
        raise fail(
            "features",
            "an array, or a callable that returns a new iterator of blocks each time",
            f"an iterator ({type(features).__name__}) that can be read once",
            "pass the function that makes it",
        )
    tensor = as_tensor("features", features)
    return lambda: iter([tensor])


def float_blocks(blocks: Blocks, numbers: int) -> Iterator[torch.Tensor]:
    """One pass in float64, at most about `numbers` numbers a block, empty blocks left out."""
    width = None
    for given in blocks():
        block = as_tensor("features", given)
        if block.ndim != 2 or block.shape[1] != (width or block.shape[1]):
            expected = "blocks of shape (rows, d)" if width is None else f"blocks of shape (rows, {width})"
            raise fail("features", expected, f"shape {tuple(block.shape)}", "give one row a record, all equally long")
        width = block.shape[1]
        for part in block.split(max(1, numbers // max(1, width))):
            if len(part):
                yield part.to(torch.float64)
