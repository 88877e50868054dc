"""The Jacobian of all records' outputs in the chosen parameters: passes over the data, in pieces that fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch

from giveaway.checks import InputError
from giveaway.extract.batches import RecordBatch
from giveaway.network.formed import LEAST_ROWS, Formed, Plan
from giveaway.network.layers import ByLayers
from giveaway.network.linearize import CHECKED, WAYS, Linearization, Way, method_of
from giveaway.network.network import Network, Values

TOGETHER = 32  # columns for which the number of records at once is chosen
MANY = 128  # columns, forth and back, for which layers' matrices are considered


@dataclass(frozen=True)
class Piece:
    """A batch with its place among the records, and its Jacobian."""

    rows: slice
    batch: RecordBatch
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
        self.plan = self._planned()
        if self.plan is None:
            extra = network.m if self.way is ByLayers else 0
            self.rows = network.work.rows(network.work.columns(TOGETHER) + extra)
        else:
            self.rows = network.work.rows_of_matrices(network.m, self.plan.numbers)
        self._kept: dict[int, Linearization] | None = {} if self._keepable() else None
        self._narrow = self.way
        if way is None and self.way is ByLayers and self._kept is None:
            with suppress(InputError):  # then layers are the only way
                self._narrow, _ = method_of(network)

    def pieces(self, columns: int, directions: int = 1) -> Iterator[Piece]:
        """All records once, for products with this many columns, forth or back or both; to be used inside
        `network.evaluating`."""
        way, formed = self._way(columns), self._formed(columns, directions)
        for rows, batch in self.network.records.batches(self.rows):
            found = None if self._kept is None else self._kept.get(rows.start)
            if found is None:
                found = way(self.network, batch)
                if self._kept is not None:
                    self._kept[rows.start] = found
            if formed:
                assert isinstance(found, ByLayers)
                found = Formed(found, formed)
            yield Piece(rows, batch, found)
            if isinstance(found, Formed):
                found.release()  # who is handed the next piece may still hold this one

    def push(self, right: torch.Tensor) -> Iterator[tuple[Piece, torch.Tensor]]:
        """Piece by piece J V (s, b, m) for V (P, s)."""
        wide = right.T
        parts = self._split(wide, self._width(len(wide)))
        self._count(wide)
        with self.network.evaluating():
            for piece in self.pieces(len(wide)):
                yield piece, torch.cat([piece.jacobian.forward(part) for part in parts])

    def pull(self, columns: int, cotangents: Callable[[Piece], torch.Tensor]) -> torch.Tensor:
        """Σ_j J_jᵀ u_j (P, s) for cotangents (s, b, m) of each piece."""
        total, width = self._zeros(columns), self._width(columns)
        self._count(total)
        with self.network.evaluating():
            for piece in self.pieces(columns):
                for at, part in zip(total.split(width), cotangents(piece).split(width), strict=True):
                    self._add(at, piece, part)
        return total.T

    def curved(self, right: torch.Tensor) -> torch.Tensor:
        """Σ_j J_jᵀ W_j J_j V (P, s) for V (P, s): the Gauss–Newton product."""
        wide, network = right.T, self.network
        total, width = self._zeros(len(wide)), self._width(len(wide), directions=2)
        parts = self._split(wide, width)
        self._count(wide)
        with network.evaluating():
            for piece in self.pieces(len(wide), directions=2):
                for at, part in zip(total.split(width), parts, strict=True):
                    u = piece.jacobian.forward(part)
                    self._add(at, piece, network.loss.curved(piece.outputs, piece.batch.targets, u))
        return total.T

    def _split(self, wide: torch.Tensor, width: int) -> list[Values]:
        """Some columns after others as tangents, laid out for every piece at once."""
        split = self.network.parameters.split
        return [{name: value.contiguous() for name, value in split(part).items()} for part in wide.split(width)]

    def _add(self, total: torch.Tensor, piece: Piece, u: torch.Tensor) -> None:
        found = piece.jacobian.backward(u)
        for name, place in self.network.parameters.places.items():
            total[:, place] += found[name].reshape(len(total), -1)

    def _zeros(self, columns: int) -> torch.Tensor:
        return torch.zeros(columns, self.network.size, dtype=self.network.dtype, device=self.network.device)

    def _way(self, columns: int) -> Way:
        # what layers saw costs m backward passes: too many for a few columns, unless it is kept
        return self._narrow if columns <= self.network.m else self.way

    def _formed(self, columns: int, directions: int) -> set[str]:
        """Layers that have their matrices formed for this many columns."""
        if self.plan is None or self._way(columns) is not ByLayers:
            return set()
        parts = -(-columns // self.network.work.columns_by_parameters(columns))
        return self.plan.names(directions * columns, 1 + directions * parts)

    def _width(self, columns: int, directions: int = 1) -> int:
        """Columns at once."""
        work, asked = self.network.work, max(columns, 1)
        if self.plan is None:
            return work.columns(asked)
        formed = self._formed(columns, directions)
        return work.columns(asked, self.rows, self.plan.in_passing(formed) if formed else None)

    def _count(self, wide: torch.Tensor) -> None:
        self.passes += 1
        self.column_passes += len(wide)

    def _few_outputs(self) -> bool:
        """Whether m backward passes a batch, and m derivatives a layer output, cost less than they save."""
        return self.network.m <= 2 * TOGETHER

    def _planned(self) -> Plan | None:
        """Layers whose matrices can be formed within the memory, where there are any."""
        if self.way is not ByLayers:
            return None
        network = self.network
        least, few = min(LEAST_ROWS, network.n), network.records.take(slice(0, min(CHECKED, network.n)))
        with network.evaluating():
            plan = Plan.of(
                ByLayers(network, few),
                MANY,
                lambda numbers: network.work.rows_of_matrices(network.m, numbers) >= least,
            )
        return plan if plan.able else None

    def _keepable(self) -> bool:
        """What the layers saw of all records fits in a quarter of the memory."""
        if self.way is not ByLayers:
            return False
        with self.network.evaluating():
            one = ByLayers(self.network, self.network.records.take(slice(0, 1)))
        return one.numbers * self.network.n * self.network.work.bytes <= self.network.work.memory // 4
