"""Products with the Jacobian layer by layer, and the layers' matrices where that pays (docs/derivations.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.func import functional_call, jvp, vjp, vmap

from giveaway.curvature.losses import unit_vectors
from giveaway.extract.batches import RecordBatch
from giveaway.network.network import Network, Values, near

LARGE = 1_000_000  # numbers of layer outputs from which one backward pass after another is as quick as all at once
LEAST_ROWS = 8  # records whose matrices must fit together, so that a pass is not all overhead
IN_PASSING = 3  # numbers for each of a layer's outputs while a column is multiplied
# multiplications in the time of one number to or from memory: measured on two cores, and on an H200 in TF32
MOVED = {"cpu": 10, "cuda": 64}
ONCE_THROUGH = 3  # times that a matrix is moved: written, read forth, read back

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


@dataclass(frozen=True)
class Tap:
    """One layer in a batch: what it was called with, and the derivative (b, m, Z) of the outputs in its own output."""

    name: str
    module: nn.Module
    values: Values  # the chosen parameters by the layer's own names
    fixed: Values
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    derivative: torch.Tensor
    shape: torch.Size  # of the layer's output

    def of_model(self, own: str) -> str:
        """Return the name in the model of a parameter that the layer calls `own`."""
        return f"{self.name}.{own}" if self.name else own

    @property
    def input(self) -> torch.Tensor:
        return next(iter((*self.arguments, *self.keywords.values())))

    @property
    def of_positions(self) -> bool:
        """Whether the layer multiplies its weights by its input at each of its positions, as `by_position` gives it."""
        module = self.module
        plain = isinstance(module, Convolution) and module.groups == 1 and module.padding_mode == "zeros"
        return "weight" in self.values and (isinstance(module, nn.Linear) or plain)

    @property
    def numbers(self) -> int:
        """How many numbers it takes to hold this in memory."""
        given = [value for value in (*self.arguments, *self.keywords.values()) if isinstance(value, torch.Tensor)]
        return self.derivative.numel() + sum(value.numel() for value in given)

    def by_position(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs (b, T, i) at the layer's positions, and the derivative as (b, m, o, T)."""
        b, m, _ = self.derivative.shape
        if isinstance(self.module, nn.Linear):
            inputs = self.input.reshape(b, -1, self.input.shape[-1])
            return inputs, self.derivative.view(b, m, -1, self.shape[-1]).transpose(2, 3)
        return _patches(self.input, self.module).mT, self.derivative.view(b, m, self.shape[1], -1)

    def forward(self, tangents: Values) -> torch.Tensor:
        """∂z/∂θ v as (b, s, Z)."""
        pushed = vmap(lambda tangent: jvp(self._local, (self.values,), (tangent,))[1])(tangents)
        return pushed.flatten(2).transpose(0, 1)

    def backward(self, cotangents: torch.Tensor) -> Values:
        """(∂z/∂θ)ᵀ of cotangents (b, s, Z)."""
        pull = vjp(self._local, self.values)[1]
        return vmap(lambda u: pull(u.view(self.shape))[0], in_dims=1)(cotangents)

    def _local(self, values: Values) -> torch.Tensor:
        return functional_call(self.module, {**self.fixed, **values}, self.arguments, self.keywords)


class ByLayers:
    """The Jacobian of one batch, layer by layer."""

    def __init__(self, network: Network, batch: RecordBatch) -> None:
        self.outputs, self.taps = tapped(network, batch)
        known = {tap.of_model(own) for tap in self.taps for own in tap.values}
        if known != set(network.parameters.values):
            raise RuntimeError("parameters that do not belong to layers that run once and return one tensor")

    def forward(self, tangents: Values) -> torch.Tensor:
        total: Any = 0
        for tap in self.taps:
            own = {name: tangents[tap.of_model(name)] for name in tap.values}
            total += torch.bmm(tap.forward(own), tap.derivative.mT)
        return total.transpose(0, 1)

    def backward(self, cotangents: torch.Tensor) -> Values:
        u = cotangents.transpose(0, 1)
        taken = ((tap, tap.backward(torch.bmm(u, tap.derivative))) for tap in self.taps)
        return {tap.of_model(name): value for tap, own in taken for name, value in own.items()}


class FormedJacobian(ByLayers):
    """The Jacobian of one batch, with the matrices of the layers called `names`."""

    def __init__(self, layers: ByLayers, names: Collection[str]) -> None:
        self.outputs, self.taps = layers.outputs, [tap for tap in layers.taps if tap.name not in names]
        self._matrices = {
            tap.of_model(own): matrix
            for tap in layers.taps
            if tap.name in names
            for own, matrix in multiplied_out(tap).items()
        }

    def release(self) -> None:
        self.taps.clear()
        self._matrices.clear()

    def forward(self, tangents: Values) -> torch.Tensor:
        total: Any = super().forward(tangents).flatten(1) if self.taps else 0
        for name, matrix in self._matrices.items():
            total += tangents[name].flatten(1) @ matrix.T
        return total.unflatten(1, self.outputs.shape)

    def backward(self, cotangents: torch.Tensor) -> Values:
        u = cotangents.flatten(1)
        return super().backward(cotangents) | {name: u @ matrix for name, matrix in self._matrices.items()}


def tapped(
    network: Network, batch: RecordBatch, kinds: tuple[type[nn.Module], ...] = (nn.Module,)
) -> tuple[torch.Tensor, list[Tap]]:
    """Outputs of a batch, and a tap for each layer of these kinds that has no layers below it, owns chosen parameters
    that no other layer shares, runs once and returns one tensor."""
    own = _owned(network, kinds)
    calls: dict[nn.Module, list[tuple[Any, Any, torch.Tensor]]] = defaultdict(list)

    def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        named = {key: _detached(value) for key, value in keywords.items()}
        calls[module].append((tuple(_detached(value) for value in arguments), named, output))
        # a copy goes on: an operation in place would change what was recorded
        return output.clone() if isinstance(output, torch.Tensor) else output

    modules = dict(network.model.named_modules())
    handles = [modules[name].register_forward_hook(hook, with_kwargs=True) for name in own]
    try:
        with torch.enable_grad():
            live = {name: value.clone().requires_grad_() for name, value in network.parameters.values.items()}
            f = network.function(batch)(live)
    finally:
        for handle in handles:
            handle.remove()
    once = [(name, *calls[modules[name]][0]) for name in own if len(calls[modules[name]]) == 1]
    once = [call for call in once if isinstance(call[3], torch.Tensor) and call[3].ndim > 1]
    once = [call for call in once if len(call[3]) == batch.rows]
    derivatives = zip(once, _derivatives(f, [call[3] for call in once]), strict=True)
    return f.detach(), [
        Tap(name, modules[name], *own[name], arguments, keywords, derivative, output.shape)
        for (name, arguments, keywords, output), derivative in derivatives
    ]


def _owned(network: Network, kinds: tuple[type[nn.Module], ...]) -> dict[str, tuple[Values, Values]]:
    """Layers that could be tapped, each with its chosen parameters and the rest, by the layer's own names."""
    parameters, found = network.parameters, {}
    uses = Counter(id(value) for _, value in network.model.named_parameters(remove_duplicate=False))
    for name, module in network.model.named_modules():
        prefix = f"{name}." if name else ""
        own = dict(module.named_parameters(recurse=False))
        names = [*own, *(key for key, _ in module.named_buffers(recurse=False))]
        chosen, rest = (
            {key: some[prefix + key] for key in names if prefix + key in some}
            for some in (parameters.values, parameters.fixed)
        )
        tied = any(uses[id(value)] > 1 for value in own.values())
        if chosen and not tied and isinstance(module, kinds) and not any(True for _ in module.children()):
            found[name] = (chosen, rest)
    return found


def _derivatives(f: torch.Tensor, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """∂f/∂z (b, m, Z) for each layer output z."""
    if not outputs:
        return []
    each, pull = unit_vectors(f), partial(torch.autograd.grad, f, outputs, retain_graph=True, materialize_grads=True)
    if sum(z.numel() for z in outputs) < LARGE:
        with suppress(RuntimeError):  # a backward pass that vmap does not know
            found = pull(each, is_grads_batched=True)
            return [value.flatten(2).transpose(0, 1).contiguous() for value in found]
    laid_out = [z.new_empty(len(z), len(each), z[0].numel()) for z in outputs]
    for k, u in enumerate(each):
        for at, row in zip(laid_out, pull(u), strict=True):
            at[:, k] = row.flatten(1)
    return laid_out


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _patches(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """What a plain convolution's weights multiply at each position, (b, i·k, L), in one copy for all records."""
    assert isinstance(module, Convolution)
    x, axes = _padded(x, module), len(module.kernel_size)
    for axis, (k, d, stride) in enumerate(zip(module.kernel_size, module.dilation, module.stride, strict=True), 2):
        x = x.unfold(axis, d * (k - 1) + 1, stride)[..., ::d]
    positions = x.shape[2 : 2 + axes].numel()
    return x.permute(0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes)).reshape(len(x), -1, positions)


def _padded(x: torch.Tensor, module: Convolution) -> torch.Tensor:
    """The input of a convolution with the zeros that it adds around it."""
    padding: Any = module.padding
    if padding == "valid":
        return x
    if padding == "same":  # the odd pixel goes to the end
        around = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        sides = [(both // 2, both - both // 2) for both in around]
    else:
        sides = [(side, side) for side in padding]
    flat = [side for both in reversed(sides) for side in both]  # the last dimension comes first
    return nn.functional.pad(x, flat) if any(flat) else x


class LayerCost(NamedTuple):
    """What one layer costs a record: its parameters, its outputs, and the multiplications of one column."""

    parameters: int
    outputs: int
    through: int

    @classmethod
    def of(cls, tap: Tap) -> LayerCost:
        parameters, outputs = sum(value.numel() for value in tap.values.values()), tap.shape[1:].numel()
        if not tap.of_positions:
            return cls(parameters, outputs, outputs)
        return cls(parameters, outputs, parameters * outputs // len(tap.values["weight"]))

    def saved(self, m: int, columns: int, moved: int) -> int:
        """How many multiplications the layer's matrix saves for this many columns, when moving one of its numbers to
        memory and back counts as `moved` of them."""
        without = columns * (self.through + m * self.outputs)
        return without - m * (self.through + (columns + moved) * self.parameters)


@dataclass(frozen=True)
class FormingPlan:
    """Which layers have their matrices formed: those of `able` for which it pays."""

    m: int
    costs: dict[str, LayerCost]
    able: frozenset[str]
    moved: int

    @classmethod
    def of(cls, layers: ByLayers, columns: int, fits: Callable[[int], bool]) -> FormingPlan:
        """Plan products with up to this many columns. `layers` has few records; `fits` says whether LEAST_ROWS records
        of so many numbers each fit in memory; where they do not, the layers that save least for their memory go."""
        m, costs = layers.outputs.shape[1], {tap.name: LayerCost.of(tap) for tap in layers.taps}
        moved = MOVED.get(layers.outputs.device.type, MOVED["cuda"])
        saved = {name: cost.saved(m, columns, ONCE_THROUGH * moved) for name, cost in costs.items()}
        paying = [name for name in costs if saved[name] > 0]
        able = sorted(paying, key=lambda name: saved[name] / costs[name].parameters)
        while able and not fits(m * sum(costs[name].parameters for name in able)):
            del able[0]
        right = frozenset(tap.name for tap in layers.taps if tap.name in able and _right(tap))
        return cls(m, costs, right, moved)

    def names(self, columns: int, times: int = ONCE_THROUGH) -> set[str]:
        """Return the layers that are formed for this many columns, when a matrix is moved `times` times."""
        return {name for name in self.able if self.costs[name].saved(self.m, columns, times * self.moved) > 0}

    @property
    def numbers(self) -> int:
        """How many numbers the matrices of one record have."""
        return self.m * sum(self.costs[name].parameters for name in self.able)

    def in_passing(self, names: Collection[str]) -> int:
        """How many numbers the other layers hold for one record and column."""
        return IN_PASSING * max((cost.outputs for name, cost in self.costs.items() if name not in names), default=1)


def multiplied_out(tap: Tap) -> Values:
    """A matrix (b·m, P) a parameter of the layer."""
    if not tap.of_positions:
        return _pulled(tap)
    inputs, derivative = tap.by_position()
    b, m, _, positions = derivative.shape
    found = {"weight": torch.bmm(derivative.reshape(b, -1, positions), inputs).view(b * m, -1)}
    if "bias" in tap.values:
        found["bias"] = derivative.sum(3).flatten(0, 1)
    return found


def _pulled(tap: Tap) -> Values:
    """The matrices of any layer by backward passes from every output, record by record."""

    def one(arguments: Sequence[Any], keywords: dict[str, Any], derivative: torch.Tensor) -> Values:
        given = tuple(_alone(value) for value in arguments)
        named = {key: _alone(value) for key, value in keywords.items()}
        pull = vjp(lambda values: functional_call(tap.module, {**tap.fixed, **values}, given, named), tap.values)[1]
        return vmap(lambda u: pull(u.view(1, *tap.shape[1:]))[0])(derivative)

    placed = tuple(0 if isinstance(value, torch.Tensor) else None for value in tap.arguments)
    named = {key: 0 if isinstance(value, torch.Tensor) else None for key, value in tap.keywords.items()}
    found = vmap(one, in_dims=(placed, named, 0))(tap.arguments, tap.keywords, tap.derivative)
    return {name: value.flatten(0, 1).flatten(1) for name, value in found.items()}


def _alone(value: Any) -> Any:
    return value.unsqueeze(0) if isinstance(value, torch.Tensor) else value


def _right(tap: Tap) -> bool:
    """Check that the layer's matrix can be formed, and gives what its backward pass does for two random cotangents."""
    b, m, _ = tap.derivative.shape
    try:
        found = multiplied_out(tap)
    except Exception:  # what a layer raises under a transform is up to the layer
        return False
    u = torch.randn(2, b, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(tap.derivative)
    expected = tap.backward(torch.bmm(u.transpose(0, 1), tap.derivative))
    return all(near(u.flatten(1) @ found[name], value.flatten(1)) for name, value in expected.items())
