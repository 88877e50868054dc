"""Gradients of single records' losses and Jacobians of their outputs, by vmap over records; and TracIn, which adds up
over the checkpoints of a training how far gradient steps on a record lowered its loss."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from giveaway.checks import check_number, fail
from giveaway.extract.batches import RecordBatch
from giveaway.network.jacobian import ColumnByColumn, doubt, of_each_record
from giveaway.network.network import Network, Values, near

Rows = slice | torch.Tensor | None
Checkpoint = tuple[Values, float]  # a state_dict and its learning rate


class RecordDerivatives:
    """Gradients and Jacobians of single records, as rows of P numbers. `notes` says where vmap could not be used."""

    def __init__(self, network: Network) -> None:
        self.network = network
        reason = doubt(network, self._agrees, "plain backward passes")
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

    def _agrees(self, first: RecordBatch) -> bool:
        """Compare the first records with plain backward passes."""
        network = self.network
        expected = self._one_by_one(torch.arange(first.rows), jacobians=True)
        jacobians, gradients = (of_each_record(network, first, jacobians=kind) for kind in (True, False))
        g = network.loss.gradient(network.outputs(slice(0, first.rows)), first.targets)
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


def tracin(network: Network, checkpoints: Sequence[Checkpoint], rows: Any = None) -> torch.Tensor:
    """Σ_c η_c ‖∇ℓ_i(θ_c)‖² (k,): the self-influence of records, by default of all."""
    if not checkpoints:
        raise fail("checkpoints", "at least one (state_dict, learning rate)", "none", "save some during training")
    total = torch.zeros((), dtype=torch.float64)
    for state, rate in checkpoints:
        remedy = "pass the learning rate of that part of the training"
        norms = RecordDerivatives(network.at(state)).norms(rows).double()
        total = total + check_number("checkpoints", rate, minimum=0.0, remedy=remedy) * norms.square()
    return total
