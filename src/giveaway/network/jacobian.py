"""The Jacobian J of the outputs in the chosen parameters: products for one batch in several ways, and passes over all
records in pieces that fit in memory."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

import torch
from torch.func import jvp, vjp, vmap

from giveaway.checks import InputError, fail
from giveaway.extract.batches import RecordBatch
from giveaway.network.layers import LEAST_ROWS, ByLayers, FormedJacobian, FormingPlan
from giveaway.network.network import Network, Values, near

CHECKED = 3  # records of the check
TOGETHER = 32  # columns for which the number of records at once is chosen
MANY = 128  # columns, forth and back, for which layers' matrices are considered


class Linearization(Protocol):
    """Products with the Jacobian of one batch: `forward` maps tangents (s, …) a parameter to J v (s, b, m), `backward`
    maps cotangents u (s, b, m) to Jᵀu, summed over the batch."""

    outputs: torch.Tensor

    def forward(self, tangents: Values) -> torch.Tensor: ...
    def backward(self, cotangents: torch.Tensor) -> Values: ...


Way = Callable[[Network, RecordBatch], Linearization]


class ForwardMode:
    """J v in forward mode, Jᵀu in reverse mode, both vmapped over columns."""

    def __init__(self, network: Network, batch: RecordBatch) -> None:
        self.function, self.values = network.function(batch), network.parameters.values
        self.outputs, self._backward = vjp(self.function, self.values)[:2]

    def forward(self, tangents: Values) -> torch.Tensor:
        return vmap(lambda tangent: jvp(self.function, (self.values,), (tangent,))[1])(tangents)

    def backward(self, cotangents: torch.Tensor) -> Values:
        return vmap(lambda u: self._backward(u)[0])(cotangents)


class DoubleBackward(ForwardMode):
    """J v as the backward pass of the backward pass, which is linear in its cotangent; vmapped over columns."""

    def forward(self, tangents: Values) -> torch.Tensor:
        twice = vjp(lambda u: self._backward(u)[0], torch.zeros_like(self.outputs))[1]
        return vmap(lambda tangent: twice(tangent)[0])(tangents)


class ColumnByColumn:
    """The same two passes by plain autograd, one column after another: for layers that vmap cannot trace."""

    def __init__(self, network: Network, batch: RecordBatch) -> None:
        self.values = {name: value.clone().requires_grad_() for name, value in network.parameters.values.items()}
        with torch.enable_grad():
            self._live = network.function(batch)(self.values)
        self.outputs = self._live.detach()

    def forward(self, tangents: Values) -> torch.Tensor:
        with torch.enable_grad():
            u = torch.zeros_like(self.outputs).requires_grad_()
            linear = self._gradients(u, create_graph=True)
            columns = []
            for k in range(len(next(iter(tangents.values())))):
                parts = [(linear[name] * tangents[name][k].view_as(linear[name])).sum() for name in linear]
                (column,) = torch.autograd.grad(sum(parts), u, retain_graph=True)  # type: ignore[arg-type]
                columns.append(column)
        return torch.stack(columns)

    def backward(self, cotangents: torch.Tensor) -> Values:
        columns = [self._gradients(u) for u in cotangents]
        return {name: torch.stack([column[name] for column in columns]) for name in self.values}

    def _gradients(self, u: torch.Tensor, *, create_graph: bool = False) -> Values:
        options = {"retain_graph": True, "create_graph": create_graph, "materialize_grads": True}
        found = torch.autograd.grad(self._live, list(self.values.values()), u, **options)
        return dict(zip(self.values, found, strict=True))


WAYS: dict[str, Way] = {
    "forward mode": ForwardMode,
    "double backward": DoubleBackward,
    "column by column": ColumnByColumn,
}


def doubt(network: Network, agrees: Callable[[RecordBatch], bool], truth: str) -> str | None:
    """Why a quick way is not used: it does not work for this network, or `agrees` says of a few records that it differs
    from `truth`; None where it may be used."""
    try:
        with network.evaluating():
            agreed = agrees(network.records.take(slice(0, min(CHECKED, network.n))))
        return None if agreed else f"differs from {truth}, so it is not used"
    except InputError:
        raise
    except Exception as error:  # what a layer raises under a transform is up to the layer
        return f"not possible for this model ({type(error).__name__})"


def method_of(network: Network, ways: Mapping[str, Way] = WAYS) -> tuple[Way, list[str]]:
    """The first of the ways that works for this network, and a note for each that did not."""
    notes: list[str] = []
    for name, way in ways.items():

        def agrees(batch: RecordBatch, way: Way = way) -> bool:
            return _agrees(network, way(network, batch), ColumnByColumn(network, batch))

        reason = doubt(network, agrees, "plain backward passes")
        if reason is None:
            return way, notes
        notes.append(f"{name}: {reason}")
    remedy = "choose parameters behind the layer that cannot, as parameters='head'"
    raise fail("model", "layers that can be differentiated forwards, or twice backwards", "; ".join(notes), remedy)


def random_columns(network: Network, *shape: int) -> torch.Tensor:
    """Two random vectors (2, …), the same in every run."""
    drawn = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return drawn.to(network.device, network.dtype)


def _agrees(network: Network, found: Linearization, plain: Linearization) -> bool:
    """Jᵀu against plain autograd, and J v through ⟨u, J v⟩ = ⟨Jᵀu, v⟩, for two random columns."""
    v, u = random_columns(network, network.size), random_columns(network, *found.outputs.shape)
    backward, expected = (network.parameters.join(way.backward(u)) for way in (found, plain))
    inner = (u * found.forward(network.parameters.split(v))).flatten(1).sum(1)
    same = near(found.outputs, plain.outputs) and near(backward, expected)
    return same and near(inner, (expected * v).sum(1), expected.norm() * v.norm())


class Piece(NamedTuple):
    """A batch with its place among the records, and its Jacobian."""

    rows: slice
    batch: RecordBatch
    jacobian: Linearization

    @property
    def outputs(self) -> torch.Tensor:
        return self.jacobian.outputs

    @property
    def numbers(self) -> torch.Tensor:
        return torch.arange(self.rows.start, self.rows.stop, device=self.outputs.device)


class Jacobian:
    """Passes with J and Jᵀ. `notes` says which ways could not be taken, `passes` how often all records were read and
    `column_passes` the same times columns."""

    def __init__(self, network: Network, way: Way | None = None) -> None:
        self.network = network
        self.passes, self.column_passes = 0, 0
        # with few outputs, m backward passes a batch and m derivatives a layer output cost less than they save
        ways = {"layer by layer": ByLayers, **WAYS} if network.m <= 2 * TOGETHER else WAYS
        self.way, notes = (way, []) if way is not None else method_of(network, ways)
        # that layers do not suffice costs time, not trust
        self.notes = [note for note in notes if not note.startswith("layer by layer: not possible")]
        self.plan: FormingPlan | None = None
        self._linearizations: dict[int, Linearization] | None = None
        work = network.work
        self.rows = work.rows(work.columns(TOGETHER) + (network.m if self.way is ByLayers else 0))
        if self.way is ByLayers:
            self._plan_layers()
        self._narrow = self.way
        if way is None and self.way is ByLayers and self._linearizations is None:
            with suppress(InputError):  # then layers are the only way
                self._narrow, _ = method_of(network)

    def pieces(self, columns: int, directions: int = 1) -> Iterator[Piece]:
        """Read all records once, for products with this many columns, forth or back or both."""
        self.passes += 1
        self.column_passes += columns
        way, formed, held = self._way(columns), self._formed(columns, directions), self._linearizations
        with self.network.evaluating():
            for rows, batch in self.network.records.batches(self.rows):
                layers = None if held is None else held.get(rows.start)
                layers = way(self.network, batch) if layers is None else layers
                if held is not None:
                    held[rows.start] = layers
                if not formed:
                    yield Piece(rows, batch, layers)
                    continue
                assert isinstance(layers, ByLayers)
                matrices = FormedJacobian(layers, formed)
                yield Piece(rows, batch, matrices)
                matrices.release()  # who is handed the next piece may still hold this one

    def push(self, right: torch.Tensor) -> Iterator[tuple[Piece, torch.Tensor]]:
        """Piece by piece J V (s, b, m) for V (P, s)."""
        parts = self._split(right.T, self._width(right.shape[1]))
        for piece in self.pieces(right.shape[1]):
            yield piece, torch.cat([piece.jacobian.forward(part) for part in parts])

    def pull(self, columns: int, cotangents: Callable[[Piece], torch.Tensor]) -> torch.Tensor:
        """Σ_j J_jᵀ u_j (P, s) for cotangents (s, b, m) of each piece."""
        total, width = self._zeros(columns), self._width(columns)
        for piece in self.pieces(columns):
            for at, part in zip(total.split(width), cotangents(piece).split(width), strict=True):
                self._add(at, piece, part)
        return total.T

    def curved(self, right: torch.Tensor) -> torch.Tensor:
        """Σ_j J_jᵀ W_j J_j V (P, s) for V (P, s): the Gauss–Newton product."""
        columns, loss = right.shape[1], self.network.loss
        total, width = self._zeros(columns), self._width(columns, directions=2)
        parts = self._split(right.T, width)
        for piece in self.pieces(columns, directions=2):
            for at, part in zip(total.split(width), parts, strict=True):
                u = piece.jacobian.forward(part)
                self._add(at, piece, loss.curve(piece.outputs, piece.batch.targets, u))
        return total.T

    def _split(self, wide: torch.Tensor, width: int) -> list[Values]:
        """Split the columns into parts and lay them out as tangents, once for all pieces."""
        split = self.network.parameters.split
        return [{name: value.contiguous() for name, value in split(part).items()} for part in wide.split(width)]

    def _add(self, total: torch.Tensor, piece: Piece, u: torch.Tensor) -> None:
        found = piece.jacobian.backward(u)
        for name, place in self.network.parameters.places.items():
            total[:, place] += found[name].reshape(len(total), -1)

    def _zeros(self, columns: int) -> torch.Tensor:
        return torch.zeros(columns, self.network.size, dtype=self.network.dtype, device=self.network.device)

    def _way(self, columns: int) -> Way:
        # layers cost m backward passes: too many for a few columns, unless they are held
        return self._narrow if columns <= self.network.m else self.way

    def _formed(self, columns: int, directions: int) -> set[str]:
        if self.plan is None or self._way(columns) is not ByLayers:
            return set()
        parts = -(-columns // self.network.work.vectors(6))
        return self.plan.names(directions * columns, 1 + directions * parts)

    def _width(self, columns: int, directions: int = 1) -> int:
        work, asked = self.network.work, max(columns, 1)
        if self.plan is None:
            return work.columns(asked)
        formed = self._formed(columns, directions)
        return work.columns(asked, self.rows, self.plan.in_passing(formed) if formed else None)

    def _plan_layers(self) -> None:
        """Plan which layers' matrices are formed, and whether layers are held: in a quarter of the memory."""
        network, work = self.network, self.network.work
        least, few = min(LEAST_ROWS, network.n), network.records.take(slice(0, min(CHECKED, network.n)))
        with network.evaluating():
            one = ByLayers(network, network.records.take(slice(0, 1)))
            plan = FormingPlan.of(
                ByLayers(network, few), MANY, lambda numbers: work.rows_of_matrices(network.m, numbers) >= least
            )
        if plan.able:
            self.plan, self.rows = plan, work.rows_of_matrices(network.m, plan.numbers)
        if sum(tap.numbers for tap in one.taps) * network.n * work.bytes <= work.memory // 4:
            self._linearizations = {}
