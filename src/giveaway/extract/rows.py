"""Blocks of rows, joined into one tensor."""

from __future__ import annotations

import torch

from giveaway.checks import fail


class Rows:
    """Blocks of rows joined into one tensor, written in place where the number of rows is known beforehand."""

    def __init__(self, name: str, total: int | None) -> None:
        self._name, self._total, self._filled = name, total, 0
        self._blocks: list[torch.Tensor] = []

    def add(self, block: torch.Tensor) -> None:
        """Append the rows of `block`, which are like those before."""
        if self._blocks:
            check_alike(self._name, block, self._blocks[0])
        if self._total is None:
            self._blocks.append(block)
            return
        if not self._blocks:
            self._blocks.append(block.new_empty(self._total, *block.shape[1:]))
        self._blocks[0][self._filled : self._filled + len(block)] = block
        self._filled += len(block)

    def joined(self) -> torch.Tensor:
        """All rows, in the order they came."""
        return self._blocks[0] if len(self._blocks) == 1 else torch.cat(self._blocks)


def check_alike(name: str, block: torch.Tensor, first: torch.Tensor) -> None:
    """Refuse a block whose rows are of another kind than those of the first."""
    if (kind := row_kind(block)) != (known := row_kind(first)):
        raise fail(name, f"rows of {known} in every batch", f"rows of {kind}", "make all records alike")


def row_kind(block: torch.Tensor) -> str:
    """What a row of `block` is, in words."""
    return f"shape {tuple(block.shape[1:])} and type {str(block.dtype).removeprefix('torch.')}"
