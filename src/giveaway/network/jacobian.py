"""The Jacobian J of the outputs in the chosen parameters: products for one batch in several ways, passes over all
records in pieces that fit in memory, and the derivatives of single records by vmap over them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.func import grad, jacrev, jvp, vjp, vmap
from torch.utils.flop_counter import FlopCounterMode

from giveaway.checks import InputError, fail
from giveaway.extract.batches import RecordBatch
from giveaway.network.network import Network, Values, near

LEAST_CHECKED, CHECKED = 3, 8  # records of the check
TOGETHER = 32  # columns for which the number of records at once is chosen
LEAST_FORMED = 8  # records whose J must fit together, so that a pass is not all overhead
COLUMN = 3  # about the operations of a column, over those of the outputs alone

Rows = slice | torch.Tensor | None


class ForwardMode:
    """J v in forward mode, Jᵀu in reverse mode, both vmapped over columns."""

    def __init__(self, network: Network, batch: RecordBatch) -> None:
        self.function, self.values = network.function(batch), network.parameters.values
        self.outputs, self._backward = vjp(self.function, self.values)[:2]

    def forward(self, tangents: Values) -> torch.Tensor:
        return vmap(lambda tangent: jvp(self.function, (self.values,), (tangent,))[1])(tangents)

    def backward(self, cotangents: torch.Tensor) -> Values:
        return vmap(lambda u: self._backward(u)[0])(cotangents)


class Formed:
    """J itself, (b·m, P): few numbers where weights are shared by many positions, or most of the network is fixed."""

    def __init__(self, network: Network, batch: RecordBatch) -> None:
        self._parameters = network.parameters
        with torch.no_grad():
            self.outputs = network.function(batch)(network.parameters.values)
        self._matrix = of_each_record(network, batch, jacobians=True).flatten(0, 1).detach()

    def forward(self, tangents: Values) -> torch.Tensor:
        return (self._parameters.join(tangents) @ self._matrix.T).unflatten(1, self.outputs.shape)

    def backward(self, cotangents: torch.Tensor) -> Values:
        return self._parameters.split(cotangents.flatten(1) @ self._matrix)


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
            columns: list[torch.Tensor] = []
            for column in zip(*(tangents[name] for name in linear), strict=True):
                parts = [(a * b.view_as(a)).sum() for a, b in zip(linear.values(), column, strict=True)]
                columns += torch.autograd.grad(sum(parts), u, retain_graph=True)
        return torch.stack(columns)

    def backward(self, cotangents: torch.Tensor) -> Values:
        columns = [self._gradients(u) for u in cotangents]
        return {name: torch.stack([column[name] for column in columns]) for name in self.values}

    def _gradients(self, u: torch.Tensor, *, create_graph: bool = False) -> Values:
        options = {"retain_graph": True, "create_graph": create_graph, "materialize_grads": True}
        found = torch.autograd.grad(self._live, list(self.values.values()), u, **options)
        return dict(zip(self.values, found, strict=True))


# products with the Jacobian of one batch: `forward` maps tangents (s, …) a parameter to J v (s, b, m), `backward` maps
# cotangents u (s, b, m) to Jᵀu, summed over the batch
Linearization = ForwardMode | Formed | ColumnByColumn
Way = Callable[[Network, RecordBatch], Linearization]


def of_each_record(network: Network, batch: RecordBatch, *, jacobians: bool) -> torch.Tensor:
    """Return ∇_θ ℓ_i (b, P), or with `jacobians` J_i (b, m, P), by vmap over records."""

    def one(values: Values, arguments: tuple[torch.Tensor, ...], keywords: Values, target: torch.Tensor) -> Any:
        named = {name: value.unsqueeze(0) for name, value in keywords.items()}
        alone = RecordBatch(tuple(value.unsqueeze(0) for value in arguments), named, target.unsqueeze(0))
        function = network.function(alone)
        if jacobians:
            return jacrev(lambda inner: function(inner)[0])(values)
        return grad(lambda inner: network.loss.value(function(inner), alone.targets)[0])(values)

    parameters = network.parameters.values
    parts = vmap(one, in_dims=(None, 0, 0, 0))(parameters, batch.arguments, batch.keywords, batch.targets)
    shape = (batch.rows, network.m) if jacobians else (batch.rows,)
    return torch.cat([parts[name].reshape(*shape, -1) for name in parameters], -1)


def doubt(network: Network, agrees: Callable[[RecordBatch], bool]) -> str | None:
    """Why a quick way is not used: it does not work for this network, or `agrees` says of a few records that it differs
    from plain backward passes; None where it may be used."""
    try:
        with network.evaluating():
            agreed = agrees(network.records.take(checked_rows(network)))
        return None if agreed else "differs from plain backward passes, so it is not used"
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # what a layer raises under a transform is up to the layer
        return f"not possible for this model ({type(error).__name__})"


def checked_rows(network: Network) -> torch.Tensor:
    """Numbers of a few records from the first to the last: those beside each other may be alike, blank or padded."""
    work = network.work
    most = max(LEAST_CHECKED, work.memory // (max(4 * network.m * work.size, 8 * work.activations) * work.bytes))
    return torch.linspace(0, work.n - 1, min(work.n, CHECKED, most)).round().long()


def method_of(network: Network) -> tuple[Way, list[str]]:
    """Forward mode where it works for this network; else plain backward passes, and a note."""
    if (forwards := _doubt_of(network, ForwardMode)) is None:
        return ForwardMode, []
    if (backwards := _doubt_of(network, ColumnByColumn)) is None:
        return ColumnByColumn, [f"forward mode: {forwards}"]
    expected, got = "layers that can be differentiated forwards, or twice backwards", f"{forwards}; {backwards}"
    raise fail("model", expected, got, "choose parameters behind the layer that cannot, as parameters='head'")


def _doubt_of(network: Network, way: Way) -> str | None:
    return doubt(network, lambda batch: _agrees(network, way(network, batch), ColumnByColumn(network, batch)))


def forming_pays(network: Network) -> bool:
    """Whether products with J itself take fewer operations than passes through the model, and J fits for some records
    at a time."""
    with FlopCounterMode(display=False) as counter:
        network.outputs(slice(0, 1))
    fits = network.work.rows_of_gradients(network.m) >= min(LEAST_FORMED, network.n)
    return fits and 2 * network.m * network.size <= COLUMN * counter.get_total_flops()


def _agrees(network: Network, found: Linearization, plain: Linearization) -> bool:
    """Jᵀu against plain autograd, and J v through ⟨u, J v⟩ = ⟨Jᵀu, v⟩, for two random columns."""
    shapes = (2, network.size), (2, *found.outputs.shape)
    drawn = (torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) for shape in shapes)
    v, u = (columns.to(network.device, network.dtype) for columns in drawn)
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
        self.network, work = network, network.work
        self.passes, self.column_passes = 0, 0
        self.way, self.notes = (way, []) if way is not None else method_of(network)
        self.rows = work.rows(work.columns(TOGETHER))
        self.formed: dict[int, Linearization] | None = None  # what is held of J itself; None where it is not formed
        if way is None and forming_pays(network):
            if (reason := _doubt_of(network, Formed)) is None:
                self.formed, self.rows = {}, work.rows_of_gradients(network.m)
            elif reason.startswith("differs"):  # that it is not possible costs time, not trust
                self.notes.append(f"formed: {reason}")
        self._holds = network.n * network.m * network.size * work.bytes <= work.memory // 4

    def pieces(self, columns: int) -> Iterator[Piece]:
        """Read all records once, for products with this many columns."""
        self.passes += 1
        self.column_passes += columns
        held = self.formed if self._forms(columns) else None
        way = self.way if held is None else Formed
        with self.network.evaluating():
            for rows, batch in self.network.records.batches(self.rows):
                jacobian = None if held is None else held.get(rows.start)
                jacobian = way(self.network, batch) if jacobian is None else jacobian
                if held is not None and self._holds:
                    held[rows.start] = jacobian
                yield Piece(rows, batch, jacobian)

    def push(self, right: torch.Tensor) -> Iterator[tuple[Piece, torch.Tensor]]:
        """Piece by piece J V (s, b, m) for V (P, s)."""
        parts = self._split(right)
        for piece in self.pieces(right.shape[1]):
            yield piece, torch.cat([piece.jacobian.forward(part) for part in parts])

    def pull(self, columns: int, cotangents: Callable[[Piece], torch.Tensor]) -> torch.Tensor:
        """Σ_j J_jᵀ u_j (P, s) for cotangents (s, b, m) of each piece."""
        return self._pulled(columns, lambda piece: cotangents(piece).split(self._width(columns)))

    def curved(self, right: torch.Tensor) -> torch.Tensor:
        """Σ_j J_jᵀ W_j J_j V (P, s) for V (P, s): the Gauss–Newton product."""
        parts, curve = self._split(right), self.network.loss.curve

        def curved(piece: Piece) -> Iterator[torch.Tensor]:
            return (curve(piece.outputs, piece.jacobian.forward(part)) for part in parts)

        return self._pulled(right.shape[1], curved)

    def _split(self, right: torch.Tensor) -> list[Values]:
        """Split the columns into parts and lay them out as tangents, once for all pieces."""
        split, parts = self.network.parameters.split, right.T.split(self._width(right.shape[1]))
        return [{name: value.contiguous() for name, value in split(part).items()} for part in parts]

    def _pulled(self, columns: int, cotangents: Callable[[Piece], Iterable[torch.Tensor]]) -> torch.Tensor:
        """Σ_j J_jᵀ u_j (P, s) for cotangents that come part by part."""
        network = self.network
        total = torch.zeros(columns, network.size, dtype=network.dtype, device=network.device)
        for piece in self.pieces(columns):
            for at, u in zip(total.split(self._width(columns)), cotangents(piece), strict=True):
                found = piece.jacobian.backward(u)
                for name, place in network.parameters.places.items():
                    at[:, place] += found[name].reshape(len(at), -1)
        return total.T

    def _forms(self, columns: int) -> bool:
        # J costs m backward passes: too many for a few columns, unless it is held
        return self.formed is not None and (self._holds or columns > self.network.m)

    def _width(self, columns: int) -> int:
        work, asked = self.network.work, max(columns, 1)
        return min(asked, work.vectors(6)) if self._forms(columns) else work.columns(asked)


class RecordDerivatives:
    """Gradients and Jacobians of single records, as rows of P numbers. `notes` says where vmap could not be used."""

    def __init__(self, network: Network) -> None:
        self.network = network
        reason = doubt(network, self._agrees)
        self.notes = [] if reason is None else [f"vmap over records: {reason}"]

    def gradients(self, rows: Rows = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield ∇_θ ℓ_i (b, P) with the record numbers, in pieces; by default of all records."""
        return self._pieces(rows, jacobians=False)

    def jacobians(self, rows: Rows = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield J_i (b, m, P) with the record numbers, in pieces; by default of all records."""
        return self._pieces(rows, jacobians=True)

    def norms(self, rows: Rows = None) -> torch.Tensor:
        """Return ‖∇_θ ℓ_i‖ (k,) of these records, by default of all."""
        return torch.cat([torch.linalg.vector_norm(part, dim=1) for _, part in self.gradients(rows)])

    def _pieces(self, rows: Rows, *, jacobians: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        network = self.network
        for numbers in row_numbers(network, rows).split(network.work.rows_of_gradients(network.m if jacobians else 1)):
            with network.evaluating():
                if self.notes:
                    each = self._one_by_one(numbers, jacobians=jacobians)
                else:
                    each = of_each_record(network, network.records.take(numbers), jacobians=jacobians)
            yield numbers, each

    def _one_by_one(self, numbers: torch.Tensor, *, jacobians: bool) -> torch.Tensor:
        """Plain backward passes of each record beside another one: some models drop a batch dimension of one."""
        network, found = self.network, []
        for number in numbers.tolist():
            batch = network.records.take(torch.tensor([number, number - 1 if number else min(1, network.n - 1)]))
            plain = ColumnByColumn(network, batch)
            f = plain.outputs
            own = torch.eye(network.m).to(f) if jacobians else network.loss.gradient(f, batch.targets)[:1]
            rows = network.parameters.join(plain.backward(torch.stack([own, torch.zeros_like(own)], 1)))
            found.append(rows if jacobians else rows[0])
        return torch.stack(found)

    def _agrees(self, some: RecordBatch) -> bool:
        """Compare the records that are checked with plain backward passes."""
        network, numbers = self.network, checked_rows(self.network)
        expected = self._one_by_one(numbers, jacobians=True)
        jacobians, gradients = (of_each_record(network, some, jacobians=kind) for kind in (True, False))
        g = network.loss.gradient(network.outputs(numbers), some.targets)
        along = (g.unsqueeze(-1) * expected).sum(1)
        return near(jacobians, expected) and near(gradients, along, expected.norm() * g.norm().clamp_min(1))


def row_numbers(network: Network, rows: Any) -> torch.Tensor:
    """Record numbers (k,) from a slice, a sequence of them, or None for all."""
    if rows is None or isinstance(rows, slice):
        return torch.arange(network.n)[slice(None) if rows is None else rows]
    numbers = torch.as_tensor(rows).to("cpu")
    whole = numbers.dtype in (torch.int64, torch.int32) and numbers.ndim == 1 and len(numbers) > 0
    if not whole or bool((numbers < 0).any()) or bool((numbers >= network.n).any()):
        raise fail("rows", f"record numbers from 0 to {network.n - 1}", "others", "pass a list of row numbers")
    return numbers.to(torch.int64)
