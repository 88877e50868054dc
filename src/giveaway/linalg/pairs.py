"""Sums of weighted feature products, and quadratic forms back from them, by both symmetries (docs/derivations.md)."""

from collections.abc import Iterator

import torch

from giveaway.linalg.processes import in_threads

EXPANDED_BYTES = 1_100_000  # of one expanded tile: it should stay in the cache until the product has read it
BATCHED_FROM = 8  # numbers a pair from which a batched product contracts faster
PAIRS_BYTES = 32_000_000  # of the expanded pairs of all tiles
AT_ONCE_FROM = 512  # numbers a pair from which adding tile by tile would mostly move the result
EXPANDED_COLUMNS = 720  # of one product, at most: enough for the product to run at full speed


class PairTiles:
    """Tiles over the upper triangle of feature pairs, each pair carrying p numbers."""

    def __init__(self, d: int, p: int, device: torch.device | None = None) -> None:
        self.d, self.p = d, p
        self.expand_weights = 2 * p <= d
        # a tile of a's also holds its own lower triangle: few a's waste little, many make the product efficient
        width = min(d // 8, -(-EXPANDED_COLUMNS // p)) if self.expand_weights else d // 16
        count = d // max(4, width) or 1
        self.edges = [(d * i // count, d * (i + 1) // count) for i in range(count)]
        sizes = [(d - s) * (e - s) for s, e in self.edges]
        self.pairs = torch.zeros(sum(sizes), p, dtype=torch.float64, device=device)
        pieces = zip(self.edges, self.pairs.split(sizes), strict=True)
        self.tiles = [piece.view(d - s, e - s, p) for (s, e), piece in pieces]

    def __iter__(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        for (start, end), tile in zip(self.edges, self.tiles, strict=True):
            yield start, end, tile

    def add(self, x: torch.Tensor, v: torch.Tensor) -> None:
        """Add the records x (d, c), v (p, c) to the sums; threads share the tiles among them."""
        rows = self._rows_at_a_time(x.shape[1])
        parts = [(x[:, i : i + rows].contiguous(), v[:, i : i + rows].contiguous()) for i in range(0, x.shape[1], rows)]

        def add_to(piece: tuple[int, int, torch.Tensor]) -> None:
            s, e, tile = piece
            space = x.new_empty(self._expansion * rows)
            for features, weights in parts:
                if self.expand_weights:
                    expanded = _expand(features[s:e], weights, space)
                    tile.view(self.d - s, -1).addmm_(features[s:], expanded.T)
                else:
                    tile.view(-1, self.p).addmm_(_expand(features[s:], features[s:e], space), weights.T)

        in_threads(add_to, self, x.device)

    def forms(self, x: torch.Tensor) -> torch.Tensor:
        """Return q (p, c), with this object's tiles as M."""
        out = x.new_empty(self.p, x.shape[1])
        rows = self._rows_at_a_time(x.shape[1])
        space = x.new_empty(rows * (len(self.pairs) if self._at_once else self._expansion))
        for i in range(0, x.shape[1], rows):
            part, target = x[:, i : i + rows], out[:, i : i + rows]
            if self._at_once:
                target.copy_(self.pairs.T @ self._all_pairs(part.contiguous(), space))
            elif self.expand_weights and self.p >= BATCHED_FROM:
                target.copy_(self._contracted(part.T.contiguous(), space).T)
            else:
                self._contract(part.contiguous(), space, target)
        return out

    def _all_pairs(self, x: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
        """Return the products of features, (pairs, c), in the order of the tiles."""
        products = space[: len(self.pairs) * x.shape[1]].view(-1, x.shape[1])
        sizes = [tile.shape[0] * tile.shape[1] for tile in self.tiles]
        for (s, e), piece in zip(self.edges, products.split(sizes), strict=True):
            _expand(x[s:], x[s:e], piece.view(-1))
        return products

    def _contract(self, x: torch.Tensor, space: torch.Tensor, target: torch.Tensor) -> None:
        """Set target = Σ_a x_a (Σ_b x_b M[b, a]) for records x (d, c), as (p, c)."""
        target.zero_()
        for s, e, tile in self:
            if not self.expand_weights:
                target.addmm_(tile.view(-1, self.p).T, _expand(x[s:], x[s:e], space))
                continue
            half = space[: (e - s) * self.p * x.shape[1]].view(-1, x.shape[1])
            torch.mm(tile.view(self.d - s, -1).T, x[s:], out=half)
            target += half.view(e - s, self.p, -1).mul_(x[s:e].unsqueeze(1)).sum(0)

    def _contracted(self, x: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
        """Return the same for records x (c, d), as (c, p), by a batched product: faster from some p on."""
        out = x.new_zeros(len(x), 1, self.p)
        for s, e, tile in self:
            half = space[: len(x) * (e - s) * self.p].view(len(x), -1)
            torch.mm(x[:, s:], tile.view(self.d - s, -1), out=half)
            out.baddbmm_(x[:, None, s:e], half.view(len(x), e - s, self.p))
        return out.squeeze(1)

    def _rows_at_a_time(self, count: int) -> int:
        rows = 1024
        if self.expand_weights:
            rows = min(2048, EXPANDED_BYTES // (8 * self._expansion) // 64 * 64)
        elif self._at_once:
            rows = min(1024, PAIRS_BYTES // (8 * len(self.pairs)) // 64 * 64)
        return max(1, min(max(rows, 128), count))

    @property
    def _at_once(self) -> bool:
        return not self.expand_weights and self.p >= AT_ONCE_FROM

    @property
    def _expansion(self) -> int:
        """The expanded numbers of a record in the widest tile."""
        return max(e - s for s, e in self.edges) * (self.p if self.expand_weights else self.d)


def _expand(left: torch.Tensor, right: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
    """Return (left × right, c) products of every row of left with every row of right."""
    size = len(left), len(right), left.shape[1]
    expanded = space[: size[0] * size[1] * size[2]].view(size)
    torch.mul(left.unsqueeze(1), right.unsqueeze(0), out=expanded)
    return expanded.view(-1, size[2])
