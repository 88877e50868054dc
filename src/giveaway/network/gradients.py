"""Derivatives of single records by vmap over records: gradients of their losses and Jacobians of their outputs; and
TracIn, which sums what a record's own gradient steps did to its loss over checkpoints of the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.func import grad, jacrev, vmap

from giveaway.checks import InputError, check_number, fail
from giveaway.curvature.losses import unit_vectors
from giveaway.extract.batches import RecordBatch
from giveaway.network.jacobian import CHECKED, ColumnByColumn
from giveaway.network.network import Network, Values

Rows = slice | torch.Tensor | None
Checkpoint = tuple[Values, float]  # a state_dict and its learning rate


class RecordDerivatives:
    """Gradients and Jacobians of single records, as rows of P numbers. `notes` says where vmap could not be used."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.notes: list[str] = []
        self._vmapped = self._check()

    def gradients(self, rows: Rows = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """∇_θ ℓ_i (b, P) with the record numbers, in pieces; by default of all records."""
        for numbers in self._numbers(rows).split(self.network.work.rows_of_gradients()):
            with self.network.evaluating():
                if self._vmapped:
                    found = self._join(self._each(self._loss, grad, numbers))
                else:
                    found = torch.cat([self._alone(int(i), self._gradient) for i in numbers])
            yield numbers, found

    def jacobians(self, rows: Rows = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """J_i (b, m, P) with the record numbers, in pieces."""
        for numbers in self._numbers(rows).split(self.network.work.rows_of_gradients(self.network.m)):
            with self.network.evaluating():
                if self._vmapped:
                    found = self._join(self._each(self._outputs, jacrev, numbers), self.network.m)
                else:
                    found = torch.stack([self._alone(int(i), unit_vectors) for i in numbers])
            yield numbers, found

    def _numbers(self, rows: Rows) -> torch.Tensor:
        return row_numbers(self.network, rows)

    def _outputs(self, values: Values, batch: RecordBatch) -> torch.Tensor:
        return self.network.function(batch)(values)[0]

    def _loss(self, values: Values, batch: RecordBatch) -> torch.Tensor:
        return self.network.loss.value(self.network.function(batch)(values), batch.targets)[0]

    def _gradient(self, f: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        assert targets is not None
        return self.network.loss.gradient(f, targets).unsqueeze(0)

    def _each(
        self, function: Callable[[Values, RecordBatch], torch.Tensor], derivative: Any, numbers: torch.Tensor
    ) -> Values:
        batch = self.network.records.take(numbers)

        def one(values: Values, arguments: tuple[torch.Tensor, ...], keywords: Values, target: torch.Tensor) -> Any:
            alone = RecordBatch(
                tuple(value.unsqueeze(0) for value in arguments),
                {name: value.unsqueeze(0) for name, value in keywords.items()},
                target.unsqueeze(0),
            )
            return derivative(lambda inner: function(inner, alone))(values)

        given = (self.network.parameters.values, batch.arguments, batch.keywords, batch.targets)
        return vmap(one, in_dims=(None, 0, 0, 0))(*given)

    def _join(self, parts: Values, outputs: int | None = None) -> torch.Tensor:
        rows = len(next(iter(parts.values())))
        shape = (rows,) if outputs is None else (rows, outputs)
        return torch.cat([parts[name].reshape(*shape, -1) for name in self.network.parameters.values], -1)

    def _alone(self, number: int, cotangents: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Backward passes of one record, in the company of another: some models drop a batch dimension of one."""
        other = number - 1 if number else min(1, self.network.n - 1)
        batch = self.network.records.take(torch.tensor([number, other]))
        plain = ColumnByColumn(self.network, batch)
        u = cotangents(plain.outputs) if cotangents is unit_vectors else cotangents(plain.outputs, batch.targets)
        u = u.clone()
        u[:, 1] = 0
        return self.network.parameters.join(plain.backward(u))

    def _check(self) -> bool:
        """Whether vmap gives what plain backward passes do; the first records are compared."""
        numbers = torch.arange(min(CHECKED, self.network.n))
        loose = 10 * torch.finfo(self.network.dtype).eps ** 0.5
        with self.network.evaluating():
            expected = torch.stack([self._alone(int(i), unit_vectors) for i in numbers])
            try:
                found = self._join(self._each(self._outputs, jacrev, numbers), self.network.m)
                slopes = self._join(self._each(self._loss, grad, numbers))
            except InputError:
                raise
            except Exception as error:  # what a layer raises under a transform is up to the layer
                self.notes.append(f"record by record: vmap is not possible for this model ({type(error).__name__})")
                return False
            g = self.network.loss.gradient(self.network.outputs(numbers), self.network.records.take(numbers).targets)
        summed = (g.unsqueeze(-1) * expected).sum(1)
        bound = loose * expected.norm()
        if bool((found - expected).norm() <= bound) and bool((slopes - summed).norm() <= bound * g.norm().clamp_min(1)):
            return True
        self.notes.append("record by record: vmap differs from plain backward passes, so it is not used")
        return False


def row_numbers(network: Network, rows: Any) -> torch.Tensor:
    """Record numbers (k,) from a slice, a sequence of them, or None for all."""
    if rows is None or isinstance(rows, slice):
        return torch.arange(network.n)[slice(None) if rows is None else rows]
    numbers = torch.as_tensor(rows).to("cpu")
    whole = numbers.dtype in (torch.int64, torch.int32) and numbers.ndim == 1 and len(numbers) > 0
    if not whole or bool((numbers < 0).any()) or bool((numbers >= network.n).any()):
        raise fail("rows", f"record numbers from 0 to {network.n - 1}", "others", "pass a list of row numbers")
    return numbers.to(torch.int64)


def gradient_norm(network: Network, rows: Rows = None) -> torch.Tensor:
    """‖∇_θ ℓ_i‖ through the chosen parameters, (k,)."""
    found = RecordDerivatives(network).gradients(rows)
    return torch.cat([torch.linalg.vector_norm(part, dim=1) for _, part in found])


def tracin(network: Network, checkpoints: Sequence[Checkpoint], rows: Any = None) -> torch.Tensor:
    """Σ_c η_c ‖∇ℓ_i(θ_c)‖² (k,): the self-influence of records, by default of all."""
    total: torch.Tensor | float = 0.0
    for at, rate in _checked(network, checkpoints):
        parts = [part.double().square().sum(1) for _, part in RecordDerivatives(at).gradients(rows)]
        total = total + rate * torch.cat(parts)
    assert isinstance(total, torch.Tensor)
    return total


def tracin_between(network: Network, checkpoints: Sequence[Checkpoint], rows: Any, others: Any = None) -> torch.Tensor:
    """Σ_c η_c ∇ℓ_i(θ_c)ᵀ∇ℓ_j(θ_c) (k, l) of the records `rows` with `others` (by default all)."""
    total: torch.Tensor | float = 0.0
    for at, rate in _checked(network, checkpoints):
        derivatives = RecordDerivatives(at)
        own = torch.cat([part for _, part in derivatives.gradients(row_numbers(network, rows))])
        parts = [own @ part.T for _, part in derivatives.gradients(others)]
        total = total + rate * torch.cat(parts, 1).double()
    assert isinstance(total, torch.Tensor)
    return total


def _checked(network: Network, checkpoints: Sequence[Checkpoint]) -> Iterator[tuple[Network, float]]:
    if not checkpoints:
        raise fail("checkpoints", "at least one (state_dict, learning rate)", "none", "save some during training")
    for state, rate in checkpoints:
        remedy = "pass the learning rate of that part of the training"
        yield network.at(state), check_number("checkpoints", rate, minimum=0.0, remedy=remedy)
