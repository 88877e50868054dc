"""Sums of weighted feature products, and quadratic forms back from them, using both symmetries.

For features x (c, d) and weights v (c, p) the sums are G[a, b, p] = Σ_j x_ja x_jb v_jp. Only b ≥ a is kept, cut into
tiles of a few a's: tile (s, e) holds [b − s, a − s, p] for a in s:e and b in s:d. The forms are the transpose
operation, q[j, p] = Σ_{a, b} x_ja x_jb M[b, a, p]. Each is one matrix product a tile; which factor is expanded before
the product (weights or feature pairs) is a matter of which is the smaller.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

TILE = 16
ROWS = 512


class PairTiles:
    """Tiles over the upper triangle of feature pairs, each pair carrying p numbers."""

    def __init__(self, d: int, p: int, device: torch.device | None = None) -> None:
        count = max(1, d // TILE)
        self.d, self.p = d, p
        self.edges = [(d * i // count, d * (i + 1) // count) for i in range(count)]
        self.tiles = [torch.zeros(d - s, e - s, p, dtype=torch.float64, device=device) for s, e in self.edges]

    def __iter__(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        for (start, end), tile in zip(self.edges, self.tiles, strict=True):
            yield start, end, tile

    @property
    def expand_weights(self) -> bool:
        return 2 * self.p <= self.d

    def add(self, x: torch.Tensor, v: torch.Tensor) -> None:
        """Add the rows x (c, d), v (c, p) to the sums, `ROWS` at a time."""
        for i in range(0, len(x), ROWS):
            self._add_block(x[i : i + ROWS], v[i : i + ROWS])

    def merge(self, other: PairTiles) -> None:
        """Add the sums of other rows."""
        for tile, more in zip(self.tiles, other.tiles, strict=True):
            tile += more

    def forms(self, x: torch.Tensor) -> torch.Tensor:
        """q (c, p), with this object's tiles as M."""
        out = x.new_zeros(len(x), self.p)
        for i in range(0, len(x), ROWS):
            self._forms_block(x[i : i + ROWS], out[i : i + ROWS])
        return out

    def _add_block(self, x: torch.Tensor, v: torch.Tensor) -> None:
        for s, e, tile in self:
            if self.expand_weights:
                weighted = x[:, s:e, None] * v[:, None, :]
                tile.view(self.d - s, -1).addmm_(x[:, s:].T, weighted.view(len(x), -1))
            else:
                products = x[:, s:, None] * x[:, None, s:e]
                tile.view(-1, self.p).addmm_(products.view(len(x), -1).T, v)

    def _forms_block(self, x: torch.Tensor, out: torch.Tensor) -> None:
        for s, e, tile in self:
            if self.expand_weights:
                partial = x[:, s:] @ tile.view(self.d - s, -1)
                out.unsqueeze(1).baddbmm_(x[:, None, s:e], partial.view(len(x), e - s, self.p))
            else:
                products = x[:, s:, None] * x[:, None, s:e]
                out.addmm_(products.view(len(x), -1), tile.view(-1, self.p))
