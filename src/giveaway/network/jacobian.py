"""The Jacobian of all records' outputs in the chosen parameters: passes over the data, in pieces that fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch

from giveaway.checks import InputError
from giveaway.network.batches import Batch
from giveaway.network.layers import ByLayers
from giveaway.network.linearize import WAYS, Linearization, Way, method_of
from giveaway.network.network import Network

TOGETHER = 32  # columns for which the number of records at once is chosen


@dataclass(frozen=True)
class Piece:
    """A batch with its place among the records, and its Jacobian."""

    rows: slice
    batch: Batch
    jacobian: Linearization

    @property
    def outputs(self) -> torch.Tensor:
        return self.jacobian.outputs


class Jacobian:
    """Passes with J and Jᵀ. `notes` says which ways could not be taken, `passes` how often all records were read and
    `column_passes` the same times columns."""

    def __init__(self, network: Network, way: Way | None = None) -> None:
        self.network = network
        self.passes, self.column_passes = 0, 0
        ways = {"layer by layer": ByLayers, **WAYS} if self._few_outputs() else WAYS
        self.way, notes = (way, []) if way is not None else method_of(network, ways)
        # that layers do not suffice costs time, not trust
        self.notes = [note for note in notes if not note.startswith("layer by layer: not possible")]
        extra = network.m if self.way is ByLayers else 0
        self.rows = network.work.rows(network.work.columns(TOGETHER) + extra)
        self._kept: dict[int, Linearization] | None = {} if self._keepable() else None
        self._narrow = self.way
        if way is None and self.way is ByLayers and self._kept is None:
            with suppress(InputError):  # then layers are the only way
                self._narrow, _ = method_of(network)

    def pieces(self, columns: int) -> Iterator[Piece]:
        """All records once, for products with this many columns; to be used inside `network.evaluating`."""
        # what layers saw costs m backward passes: too many for a few columns, unless it is kept
        way = self._narrow if columns <= self.network.m else self.way
        for rows, batch in self.network.records.batches(self.rows):
            found = None if self._kept is None else self._kept.get(rows.start)
            if found is None:
                found = way(self.network, batch)
                if self._kept is not None:
                    self._kept[rows.start] = found
            yield Piece(rows, batch, found)

    def push(self, right: torch.Tensor) -> Iterator[tuple[Piece, torch.Tensor]]:
        """Piece by piece J V (s, b, m) for V (P, s)."""
        wide, split = right.T, self.network.parameters.split
        self._count(wide)
        with self.network.evaluating():
            for piece in self.pieces(len(wide)):
                yield piece, torch.cat([piece.jacobian.forward(split(part)) for part in self._columns(wide)])

    def pull(self, columns: int, cotangents: Callable[[Piece], torch.Tensor]) -> torch.Tensor:
        """Σ_j J_jᵀ u_j (P, s) for cotangents (s, b, m) of each piece."""
        total = self._zeros(columns)
        self._count(total)
        with self.network.evaluating():
            for piece in self.pieces(columns):
                self._add(total, piece, cotangents(piece))
        return total.T

    def curved(self, right: torch.Tensor) -> torch.Tensor:
        """Σ_j J_jᵀ W_j J_j V (P, s) for V (P, s): the Gauss–Newton product."""
        wide, network = right.T, self.network
        total = self._zeros(len(wide))
        self._count(wide)
        with network.evaluating():
            for piece in self.pieces(len(wide)):
                for at, part in zip(total.split(self._width(wide)), self._columns(wide), strict=True):
                    u = piece.jacobian.forward(network.parameters.split(part))
                    self._add(at, piece, network.loss.curved(piece.outputs, piece.batch.targets, u))
        return total.T

    def _add(self, total: torch.Tensor, piece: Piece, u: torch.Tensor) -> None:
        for at, part in zip(self._columns(total), self._columns(u), strict=True):
            found = piece.jacobian.backward(part)
            for name, place in self.network.parameters.places.items():
                at[:, place] += found[name].reshape(len(at), -1)

    def _zeros(self, columns: int) -> torch.Tensor:
        return torch.zeros(columns, self.network.size, dtype=self.network.dtype, device=self.network.device)

    def _columns(self, wide: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return wide.split(self._width(wide))

    def _width(self, wide: torch.Tensor) -> int:
        return self.network.work.columns(max(len(wide), 1))

    def _count(self, wide: torch.Tensor) -> None:
        self.passes += 1
        self.column_passes += len(wide)

    def _few_outputs(self) -> bool:
        """Whether m backward passes a batch, and m derivatives a layer output, cost less than they save."""
        return self.network.m <= 2 * TOGETHER

    def _keepable(self) -> bool:
        """What the layers saw of all records fits in a quarter of the memory."""
        if self.way is not ByLayers:
            return False
        with self.network.evaluating():
            one = ByLayers(self.network, self.network.records.take(slice(0, 1)))
        return one.numbers * self.network.n * self.network.work.bytes <= self.network.work.memory // 4
