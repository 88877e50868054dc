"""What an audit asks of a curvature, dense or sketched."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from giveaway.curvature.blocks import Blocks
from giveaway.records.rows import Window


class Look(Protocol):
    """What a curvature says of a window's groups of records."""

    def blocks(self, part: slice, probes: slice | None) -> Blocks:
        """Leverage blocks of the groups in `part`, by all probes of a sketch or some of them."""
        ...


class Curvature(Protocol):
    """H of a head, as far as scores need it."""

    @property
    def report(self) -> dict[str, Any]: ...

    @property
    def array_bytes(self) -> int:
        """That one array of a batch of blocks may take."""
        ...

    @property
    def looks_at_once(self) -> int | None:
        """Threads that may look at once, None for any number."""
        ...

    def group_bytes(self, s: int) -> int:
        """Of one array of a group of s records."""
        ...

    def look(self, window: Window, size: int = 1) -> Look:
        """At the groups of `size` consecutive rows of `window`."""
        ...

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """H⁻¹ v for v (d, m)."""
        ...
