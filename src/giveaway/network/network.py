"""Network: a trained module, its records, its loss and the parameters chosen, checked before anything is trusted; and
Depths, the same module seen through its last layer, its last few, or all of it."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from giveaway.checks import check_positive, fail, free_memory, nearest
from giveaway.curvature.losses import loss_named
from giveaway.extract.batches import RecordBatch
from giveaway.extract.model_records import ModelRecords, read_records
from giveaway.extract.torch_model import evaluation_mode, unwrapped
from giveaway.records.examples import check_targets

FEW = 8  # records of the checks
MOST_ON_CPU = 1_000_000_000
CACHED_ON_CPU = 32_000_000  # bytes of activations that one piece touches on a CPU: more only leaves the caches
MOST_ROWS = 512
LEAST_ROWS = 32
DEPTH = re.compile(r"head|all|last:[1-9][0-9]*")

Values = dict[str, torch.Tensor]


def near(found: torch.Tensor, expected: torch.Tensor, size: torch.Tensor | None = None) -> bool:
    """Whether two ways to compute a thing agree, beside the norm of what is expected; TF32 may be at work."""
    size = expected.norm() if size is None else size
    return bool((found - expected).norm() <= 10 * torch.finfo(expected.dtype).eps ** 0.5 * size)


@dataclass(frozen=True)
class ParameterSet:
    """Copies of the chosen parameters, which flattened make vectors of P numbers, and of all that is `fixed`."""

    values: Values
    fixed: Values

    @classmethod
    def of(cls, model: nn.Module, chosen: set[str], dtype: torch.dtype | None) -> "ParameterSet":
        both: tuple[Values, Values] = {}, {}
        for name, value in chain(model.named_parameters(), model.named_buffers()):
            both[name not in chosen][name] = value.detach().clone().to(dtype if value.is_floating_point() else None)
        kinds = {kind for value in both[0].values() for kind in (value.dtype, value.device)}
        if len(kinds) != 2 or not all(value.is_floating_point() for value in both[0].values()):
            got, expected = " and ".join(sorted(map(str, kinds))), "real numbers of one dtype on one kind of device"
            raise fail("parameters", expected, got, "choose others, or pass dtype=")
        return cls(*both)

    @cached_property
    def places(self) -> dict[str, slice]:
        """The slice of a vector that each parameter has."""
        ends = [0, *accumulate(value.numel() for value in self.values.values())]
        return {name: slice(*edges) for name, edges in zip(self.values, pairwise(ends), strict=True)}

    def split(self, rows: torch.Tensor) -> Values:
        """Rows (s, P) as one (s, …) tensor a parameter."""
        return {name: rows[:, self.places[name]].reshape(-1, *value.shape) for name, value in self.values.items()}

    def join(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return torch.cat([parts[name].reshape(len(parts[name]), -1) for name in self.values], 1)


class Work:
    """`activations` that a record keeps for its backward pass (the difference between two records and one), `size`
    parameters, `bytes` of one number, the budget."""

    def __init__(self, network: "Network", memory: int | None) -> None:
        values = {name: value.clone().requires_grad_() for name, value in network.parameters.values.items()}
        own = {value.data_ptr() for value in (*values.values(), *network.parameters.fixed.values())}
        counts = []
        for rows in (1, min(2, network.n)):
            activations: dict[int, int] = {}

            def count(tensor: torch.Tensor, activations: dict[int, int] = activations) -> torch.Tensor:
                if tensor.data_ptr() not in own:
                    activations[tensor.data_ptr()] = tensor.numel()
                return tensor

            with network.evaluating(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                outputs = network.function(network.records.take(slice(0, rows)))(values)
            counts.append(sum(activations.values()) + outputs.numel())
        most, cached = (sys.maxsize,) * 2 if network.device.type == "cuda" else (MOST_ON_CPU, CACHED_ON_CPU)
        self.n, self.size, self.bytes = network.n, network.size, network.dtype.itemsize
        self.activations = max(counts[1] - counts[0] if self.n > 1 else counts[0], 1)
        self.memory = min(free_memory(network.device) // 4, most) if memory is None else memory
        self.cached = min(cached, self.memory // 2)

    def vectors(self, each: int) -> int:
        """How many times `each` vectors of parameters fit into the memory, at least once."""
        return max(1, self.memory // (each * self.size * self.bytes))

    def columns(self, asked: int) -> int:
        """Columns at once, of `asked`: three vectors of parameters each, twice, and the activations of LEAST_ROWS
        records."""
        by_records = self.cached // (min(LEAST_ROWS, self.n) * self.activations * self.bytes)
        return min(asked, self.vectors(6), max(by_records, 1))

    def rows(self, columns: int, held: int = 1) -> int:
        """Records at once for this many columns, by work that holds the activations so many times."""
        room = min(self.cached, self.memory // 2 // held)
        return max(1, min(MOST_ROWS, self.n, room // (columns * self.activations * self.bytes)))

    def rows_of_gradients(self, outputs: int = 1) -> int:
        """Records at once where each needs `outputs` vectors of parameters of its own."""
        return min(MOST_ROWS, self.vectors(4 * outputs), self.rows(outputs))


class Network:
    """`model` over the records of `data`, as a function of the parameters chosen.

    data : (inputs, targets) arrays, a Dataset, or a DataLoader that does not shuffle. Inputs may be a tuple (several
        arguments) or a dict (keywords).
    loss : "squared", "cross_entropy" or "binary_cross_entropy".
    parameters : "all", "head", "last:k", or names and patterns of layers and parameters.
    dtype : what to compute in; by default as the parameters are, half precision as float32.
    memory : bytes that one piece of work may take; by default a quarter of what is free, 1 GB at most on a CPU.

    The model is copied from, never written to: its mode, hooks, gradients and buffers stay as they are. There are `n`
    records with `m` outputs each, and `size` numbers in the parameters chosen.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        loss: str,
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
        some = records.take(slice(0, min(FEW, records.rows)))
        self.parameters = ParameterSet.of(self.model, {name for name, _ in self.model.named_parameters()}, dtype)
        run = partial(self.function(some), self.parameters.values)
        with self.evaluating(), torch.no_grad():
            outputs = self._checked_outputs(some)
            self.parameters = ParameterSet.of(self.model, chosen_names(self.model, parameters, run), dtype)
        self.loss = loss_named(loss, outputs.shape[1])
        y = check_targets(records.targets, outputs[:1].expand(records.rows, -1), loss, one_class=True)
        y = self.loss.targets(y)
        self.records: ModelRecords = replace(records, targets=y.to(outputs.dtype) if y.is_floating_point() else y)
        self.n, self.m = records.rows, outputs.shape[1]
        self.size = sum(value.numel() for value in self.parameters.values.values())
        self.work = Work(self, memory)

    def function(self, batch: RecordBatch) -> Callable[[Values], torch.Tensor]:
        """θ ↦ outputs (b, m) of a batch; to be called inside `self.evaluating()`."""

        def run(values: Values) -> torch.Tensor:
            found = functional_call(self.model, {**self.parameters.fixed, **values}, batch.arguments, batch.keywords)
            if isinstance(found, torch.Tensor):
                found = found.unsqueeze(1) if found.ndim == 1 else found
                if found.ndim == 2 and len(found) == batch.rows:
                    return found
            got = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
            remedy = "wrap the model so that it returns logits or predictions"
            raise fail("model", f"outputs (records, m) for {batch.rows} records", got, remedy)

        return run

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluate the model inside by kernels that every kind of differentiation knows: fused attention has neither
        forward-mode nor second derivatives."""
        fast = torch.backends.mha.get_fastpath_enabled()
        with evaluation_mode(self.model), sdpa_kernel(SDPBackend.MATH):
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                yield
            finally:
                torch.backends.mha.set_fastpath_enabled(fast)

    @torch.no_grad()
    def outputs(self, rows: slice | torch.Tensor | None = None) -> torch.Tensor:
        """Outputs (k, m) of the records with these numbers, by default of all."""
        numbers = torch.arange(self.n)[slice(None) if rows is None else rows]
        with self.evaluating():
            batches = (self.records.take(part) for part in numbers.split(self.work.rows(1)))
            return torch.cat([self.function(batch)(self.parameters.values) for batch in batches])

    def _checked_outputs(self, some: RecordBatch) -> torch.Tensor:
        """Outputs of a few records, refused where they change from call to call or with the company of a record."""
        values, half = self.parameters.values, (some.rows + 1) // 2
        first, again = (self.function(some)(values) for _ in range(2))
        if not bool(first.isfinite().all()):
            raise fail("model", "finite outputs", "NaN or infinity", "check the weights and the inputs")
        if not near(again, first):
            remedy = "turn off dropout and random layers"
            raise fail("model", "the same outputs in every call", "others in a second call", remedy)
        if not near(self.function(some.of_rows([*range(half)]))(values), first[:half]):
            got = "outputs that change with the other records of a batch"
            remedy = "use layers that treat each record alone, as batch norm with running statistics does"
            raise fail("model", "outputs that depend on a record alone", got, remedy)
        return first


def chosen_names(model: nn.Module, which: str | Sequence[str], run: Callable[[], Any]) -> set[str]:
    """The parameters that `which` names: "all", "head" (the last nn.Linear to run), "last:k" (the last k layers to run
    that own parameters), or names and patterns. Frozen ones count only if named one by one or by their layer's name."""
    own, modules = dict(model.named_parameters()), dict(model.named_modules(remove_duplicate=False))
    first = {id(value): key for key, value in own.items()}  # a shared parameter goes by its first name
    known = {key: first[id(value)] for key, value in model.named_parameters(remove_duplicate=False)}
    trained = {key for key, value in own.items() if value.requires_grad}
    chosen: set[str] = set()
    for name in [which] if isinstance(which, str) else which:
        if name == "all":
            matched = list(known)
        elif name == "head" or name.startswith("last:"):
            matched = _last(model, name, run)
        else:
            matched = [key for key in known if any(at == name or fnmatchcase(at, name) for at in _around(key))]
        if not matched:
            choices = ["all", "head", "last:2", *(key for key in modules if key), *known]
            expected = "names or patterns of layers with parameters, or of parameters"
            raise fail("parameters", expected, repr(name), nearest(name, choices))
        found = {known[key] for key in matched}
        chosen |= found if name in known or name in modules else found & trained
    if not chosen:
        raise fail("parameters", "parameters that training could change", "frozen ones only", "name their layer")
    return chosen


def _around(name: str) -> list[str]:
    """The name of a parameter, and of the modules around it, the innermost first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _last(model: nn.Module, name: str, run: Callable[[], Any]) -> list[str]:
    """Parameters of the last layers to run: of modules that own some, or whose children do that never start."""
    order: list[str] = []
    modules = dict(model.named_modules())
    with ExitStack() as hooks:
        for layer, module in modules.items():
            hooks.enter_context(module.register_forward_pre_hook(lambda *_, layer=layer: order.append(layer)))
        run()
    started = {layer: place for place, layer in enumerate(order)}
    layers: dict[str, list[str]] = {}
    for key, _ in model.named_parameters(remove_duplicate=False):
        layers.setdefault(next((at for at in _around(key)[1:] if at in started), ""), []).append(key)
    last = sorted(layers, key=lambda layer: started.get(layer, -1))
    if name == "head":
        if not (last := [layer for layer in last if isinstance(modules.get(layer), nn.Linear)]):
            raise fail("parameters", "a linear layer at the end", "a model without one that runs", "name the layers")
        return layers[last[-1]]
    count = name.removeprefix("last:")
    if not count.isdecimal() or not 1 <= int(count) <= len(last):
        raise fail("parameters", 'last:k, as "last:2"', repr(name), f"the model has {len(last)} layers with parameters")
    return [key for layer in last[-int(count) :] for key in layers[layer]]


class Depths:
    """A model and its training records, to be audited through more than the last layer.

    model, data, loss, dtype : as `giveaway.network.Network` takes them.
    damping : λ > 0, beside the summed loss: n times the weight decay of a mean loss.
    depths : "head" (the last linear layer), "last:k" (the last k layers that own parameters), "all".
    memory : gigabytes that a piece of work may take; by default a quarter of what is free, 1 on a CPU.

    >>> import torch, giveaway as ga
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    >>> x, y = torch.eye(3).repeat(4, 1), torch.arange(12) % 2
    >>> deep = ga.network.Depths(model, (x, y), loss="cross_entropy", depths=["head", "all"], damping=0.5)
    >>> ga.audit(deep, scores=["newton", "leverage"]).columns
    ('newton_head', 'leverage_head', 'newton_all', 'leverage_all')
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        loss: str,
        damping: float,
        depths: str | Sequence[str] = ("all",),
        memory: float | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.damping = check_positive("damping", damping, remedy="n times the weight decay suits a mean loss")
        limit = None if memory is None else int(1e9 * check_positive("memory", memory, remedy="give gigabytes"))
        self.networks: dict[str, Network] = {}
        for depth in checked_depths("depths", depths):
            self.networks[depth] = Network(model, data, loss=loss, parameters=depth, dtype=dtype, memory=limit)
            records = self.first.records  # as they were read; another depth has other parameters alone
            data = (records.arguments or records.keywords, records.targets)

    @property
    def first(self) -> Network:
        """The network of the first depth; the others differ in their parameters alone."""
        return next(iter(self.networks.values()))

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """What the model is called with, by the place or the name of each argument."""
        records = self.first.records
        return {**{str(place): value for place, value in enumerate(records.arguments)}, **records.keywords}


def checked_depths(argument: str, depths: str | Sequence[str]) -> tuple[str, ...]:
    """Names of depths, each once."""
    wanted = (depths,) if isinstance(depths, str) else tuple(depths)
    for depth in wanted:
        if not isinstance(depth, str) or not DEPTH.fullmatch(depth):
            raise fail(argument, "head, all or last:k", repr(depth), "say how many layers, as last:2")
    if not wanted:
        raise fail(argument, "at least one depth", "none", "name one, as all")
    return tuple(dict.fromkeys(wanted))


def suffix(depth: str) -> str:
    """How the columns of a depth end."""
    return f"_{depth.replace(':', '')}"
