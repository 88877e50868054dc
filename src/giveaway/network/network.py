"""Network: a trained module, its records, its loss and the parameters chosen, checked before anything is trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from giveaway.checks import fail, free_memory
from giveaway.curvature.losses import Loss, LossFunction, loss_named
from giveaway.extract.batches import RecordBatch
from giveaway.extract.model_records import ModelRecords, read_records
from giveaway.extract.torch_model import evaluation_mode, unwrapped
from giveaway.network.parameters import ParameterSet, choose, layers_in_run_order

FEW = 8  # records of the checks
MOST_ON_CPU = 1_000_000_000
CACHED_ON_CPU = 32_000_000  # bytes of activations that one piece touches on a CPU: more only leaves the caches
MOST_ROWS = 512
LEAST_ROWS = 32

Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Work:
    """`activations` that a record keeps for its backward pass, `size` parameters, `bytes` of one number, the budget."""

    n: int
    size: int
    activations: int
    bytes: int
    memory: int
    cached: int

    @classmethod
    def measured(
        cls, function: Callable[[int], Callable[[Any], torch.Tensor]], network: Network, memory: int | None
    ) -> Work:
        """Counts what the model keeps for one record, as the difference between two and one."""
        values = {name: value.clone().requires_grad_() for name, value in network.parameters.values.items()}
        own = {value.data_ptr() for value in (*values.values(), *network.parameters.fixed.values())}
        counts = []
        for rows in (1, min(2, network.n)):
            activations: dict[int, int] = {}

            def keep(tensor: torch.Tensor, activations: dict[int, int] = activations) -> torch.Tensor:
                if tensor.data_ptr() not in own:
                    activations[tensor.data_ptr()] = tensor.numel()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                found = function(rows)(values)
            counts.append(sum(activations.values()) + found.numel())
        if memory is None:
            memory = free_memory(network.device) // 4
            memory = memory if network.device.type == "cuda" else min(memory, MOST_ON_CPU)
        number = torch.empty(0, dtype=network.dtype).element_size()
        cached = memory // 2 if network.device.type == "cuda" else CACHED_ON_CPU
        each = max(counts[-1] - counts[0] if network.n > 1 else counts[0], 1)
        return cls(network.n, network.size, each, number, memory, min(cached, memory // 2))

    def columns(self, asked: int, rows: int = LEAST_ROWS, numbers: int | None = None) -> int:
        """Columns at once, of `asked`: three vectors of parameters each, and `rows` records with `numbers` each, by
        default its activations."""
        by_records = self.cached // (min(rows, self.n) * (numbers or self.activations) * self.bytes)
        return min(self.columns_by_parameters(asked), max(by_records, 1))

    def columns_by_parameters(self, asked: int) -> int:
        """Columns at once, of `asked`, that their parameters leave room for."""
        return max(1, min(asked, self.memory // (2 * 3 * self.size * self.bytes)))

    def rows(self, columns: int) -> int:
        """Records at once for this many columns."""
        return max(1, min(MOST_ROWS, self.n, self.cached // (columns * self.activations * self.bytes)))

    def rows_of_matrices(self, outputs: int, numbers: int) -> int:
        """Records at once where each needs the derivatives of `outputs` in all activations, and `numbers` more."""
        # the derivatives are twice there while they are laid out, and once while the rest is formed
        each = (1 + outputs) * self.activations + max(outputs * self.activations, numbers)
        return max(1, min(MOST_ROWS, self.n, self.memory // (2 * each * self.bytes)))

    def rows_of_gradients(self, outputs: int = 1) -> int:
        """Records at once where each needs `outputs` vectors of parameters of its own."""
        by_parameters = self.memory // (4 * outputs * self.size * self.bytes)
        return max(1, min(MOST_ROWS, by_parameters, self.rows(outputs)))


class Network:
    """`model` over the records of `data`, as a function of the parameters chosen.

    Parameters
    ----------
    data : (inputs, targets) arrays, a Dataset, or a DataLoader that does not shuffle. Inputs may be a tuple (several
        arguments) or a dict (keywords).
    loss : "squared", "cross_entropy", "binary_cross_entropy", or a twice differentiable function from outputs (b, m)
        and targets to one loss a record (b,).
    parameters : "all", "head", "last:k", or names and patterns of layers and parameters.
    dtype : what to compute in; by default as the parameters are, half precision as float32.
    memory : bytes that one piece of work may take; by default a quarter of what is free, 1 GB at most on a CPU.

    The model is copied from, never written to: its mode, hooks, gradients and buffers stay as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        loss: str | LossFunction | Loss,
        parameters: str | Sequence[str] = "all",
        dtype: torch.dtype | None = None,
        memory: int | None = None,
    ) -> None:
        self.model = unwrapped(model)
        first = next((value for value in self.model.parameters() if value.is_floating_point()), None)
        if first is None:
            raise fail("model", "a module with parameters", "none", "pass the trained module")
        if dtype is None and first.dtype in (torch.float16, torch.bfloat16):
            dtype = torch.float32
        self.dtype, self.device = dtype or first.dtype, first.device
        records = read_records(data, self.device, self.dtype)
        some = records.take(slice(0, min(FEW, records.n)))
        everything = choose(self.model, [name for name, _ in self.model.named_parameters()], list, dtype=dtype)
        with differentiable(self.model), torch.no_grad():
            outputs = self._checked_outputs(everything, some)
            self.parameters: ParameterSet = choose(
                self.model,
                parameters,
                lambda: layers_in_run_order(self.model, lambda: self._run(everything, everything.values, some)),
                dtype=dtype,
            )
        self.loss = loss_named(loss, outputs.shape[1])
        targets = self.loss.check_targets(records.targets, outputs)
        self.records: ModelRecords = replace(records, targets=targets)
        self.m = outputs.shape[1]
        with differentiable(self.model):
            self.work = Work.measured(lambda rows: self.function(self.records.take(slice(0, rows))), self, memory)

    @property
    def n(self) -> int:
        return self.records.n

    @property
    def size(self) -> int:
        """P, the parameters chosen."""
        return self.parameters.count

    def function(self, batch: RecordBatch) -> Callable[[Values], torch.Tensor]:
        """θ ↦ outputs (b, m) of a batch; to be called inside `self.evaluating()`."""
        return lambda values: self._run(self.parameters, values, batch)

    def evaluating(self) -> Any:
        """Return the context in which the model may be called."""
        return differentiable(self.model)

    def at(self, state: Values) -> Network:
        """The same network with the parameters and buffers of `state`, as a state_dict names them."""
        other = object.__new__(Network)
        other.__dict__.update(self.__dict__)
        known = dict(self.model.state_dict(keep_vars=True))
        if set(state) != set(known) or any(state[name].shape != known[name].shape for name in known):
            wrong = len(set(state) ^ set(known)) or "some"
            raise fail("checkpoints", "state_dicts of this model", f"{wrong} entries that differ", "pass its own")
        here = {**self.parameters.values, **self.parameters.fixed}
        there = {name: state.get(name, value).detach().to(value.device, value.dtype) for name, value in here.items()}
        other.parameters = ParameterSet(
            {name: there[name] for name in self.parameters.values},
            {name: there[name] for name in self.parameters.fixed},
        )
        return other

    @torch.no_grad()
    def outputs(self, rows: slice | torch.Tensor | None = None) -> torch.Tensor:
        """Outputs (k, m) of the records with these numbers, by default of all."""
        numbers = torch.arange(self.n)[slice(None) if rows is None else rows]
        with self.evaluating():
            parts = [
                self.function(self.records.take(part))(self.parameters.values)
                for part in numbers.split(self.work.rows(1))
            ]
        return torch.cat(parts)

    def _run(self, parameters: ParameterSet, values: Values, batch: RecordBatch) -> torch.Tensor:
        found = functional_call(self.model, {**parameters.fixed, **values}, batch.arguments, batch.keywords)
        if isinstance(found, torch.Tensor) and found.ndim == 1:
            found = found.unsqueeze(1)
        if not isinstance(found, torch.Tensor) or found.ndim != 2 or len(found) != batch.rows:
            got = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
            remedy = "wrap the model so that it returns logits or predictions"
            raise fail("model", f"outputs (records, m) for {batch.rows} records", got, remedy)
        return found

    def _checked_outputs(self, everything: ParameterSet, some: RecordBatch) -> torch.Tensor:
        """Outputs of a few records, refused where they change from call to call or with the company of a record."""
        first, again = (self._run(everything, everything.values, some) for _ in range(2))
        if not bool(first.isfinite().all()):
            raise fail("model", "finite outputs", "NaN or infinity", "check the weights and the inputs")
        half = slice(0, (some.rows + 1) // 2)
        alone = RecordBatch(
            tuple(value[half] for value in some.arguments),
            {name: value[half] for name, value in some.keywords.items()},
            some.targets[half],
        )
        if not self._same(first, again):
            got = "others in a second call"
            raise fail("model", "the same outputs in every call", got, "turn off dropout and random layers")
        if not self._same(first[half], self._run(everything, everything.values, alone)):
            got = "outputs that change with the other records of a batch"
            remedy = "use layers that treat each record alone, as batch norm with running statistics does"
            raise fail("model", "outputs that depend on a record alone", got, remedy)
        return first

    @staticmethod
    def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
        loose = 10 * torch.finfo(one.dtype).eps ** 0.5  # TF32 may be at work
        return bool((one - other).abs().max() <= loose * one.abs().max().clamp_min(1e-30))


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Evaluate `model` inside by kernels that every kind of differentiation knows: fused attention has neither
    forward-mode nor second derivatives."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with evaluation_mode(model), sdpa_kernel(SDPBackend.MATH):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
