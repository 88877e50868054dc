"""Products with the Jacobian layer by layer: J = Σ_l D_l ∂z_l/∂θ_l, with D_l = ∂f/∂z_l of a layer's output z_l.

What a layer sees (its input and D_l) is computed once a batch by m backward passes and serves every column: a product
then costs one multiplication by the layer's parameters instead of two, and none by the layers below those chosen. It
pays where the outputs are few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, jvp, vjp, vmap
from torch.nn.grad import conv2d_weight

from giveaway.curvature.losses import unit_vectors
from giveaway.extract.batches import RecordBatch
from giveaway.network.network import Network, Values

LARGE = 1_000_000  # numbers of layer outputs from which one backward pass after another is as quick as all at once

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class NotByLayers(RuntimeError):
    """The parameters chosen do not all belong to layers that run once and return one tensor."""


@dataclass(frozen=True)
class Tap:
    """One layer and what it saw of a batch: its input, and the derivative (b, m, Z) of the outputs in its own."""

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
    def of_positions(self) -> bool:
        """Whether the layer multiplies its weights by what is at each of its positions, which are known here."""
        return "weight" in self.values and (isinstance(self.module, nn.Linear) or plain_convolution(self.module))

    @property
    def numbers(self) -> int:
        """How many numbers it takes to keep this in memory."""
        given = [value for value in (*self.arguments, *self.keywords.values()) if isinstance(value, torch.Tensor)]
        return self.derivative.numel() + sum(value.numel() for value in given)

    def forward(self, tangents: Values) -> torch.Tensor:
        """∂z/∂θ v as (b, s, Z)."""
        if isinstance(self.module, nn.Linear) and "weight" in tangents:
            return self._linear_forward(tangents)
        if self._plain_images and "weight" in tangents:
            return self._convolution_forward(tangents)
        found = vmap(lambda tangent: jvp(self._local, (self.values,), (tangent,))[1])(tangents)
        return found.flatten(2).transpose(0, 1)

    def backward(self, cotangents: torch.Tensor) -> Values:
        """(∂z/∂θ)ᵀ of cotangents (b, s, Z)."""
        if isinstance(self.module, nn.Linear) and "weight" in self.values:
            return self._linear_backward(cotangents)
        if self._plain_images and "weight" in self.values:
            return self._convolution_backward(cotangents)
        pull = vjp(self._local, self.values)[1]
        return vmap(lambda u: pull(u.view(self.shape))[0], in_dims=1)(cotangents)

    @cached_property
    def input(self) -> torch.Tensor:
        return self.arguments[0] if self.arguments else next(iter(self.keywords.values()))

    @property
    def _plain_images(self) -> bool:
        return isinstance(self.module, nn.Conv2d) and plain_convolution(self.module)

    def _local(self, values: Values) -> torch.Tensor:
        return functional_call(self.module, {**self.fixed, **values}, self.arguments, self.keywords)

    def _linear_forward(self, tangents: Values) -> torch.Tensor:
        weight = tangents["weight"]  # (s, o, i)
        x = self.input.reshape(-1, self.input.shape[-1])  # (b·T, i)
        found = (x @ weight.reshape(-1, weight.shape[2]).T).unflatten(1, weight.shape[:2])  # (b·T, s, o)
        if "bias" in tangents:
            found = found + tangents["bias"]
        if self.input.ndim == 2:
            return found
        return found.unflatten(0, (len(self.input), -1)).transpose(1, 2).flatten(2)

    def _linear_backward(self, cotangents: torch.Tensor) -> Values:
        s = cotangents.shape[1]
        x = self.input.reshape(-1, self.input.shape[-1])
        u = cotangents
        if self.input.ndim > 2:
            u = u.unflatten(2, (-1, self.shape[-1])).transpose(1, 2).flatten(0, 1)  # (b·T, s, o)
        found = {"weight": (u.flatten(1).T @ x).unflatten(0, (s, -1))}
        if "bias" in self.values:
            found["bias"] = u.sum(0)
        return found

    def _convolution_forward(self, tangents: Values) -> torch.Tensor:
        weight, module = tangents["weight"], self.module
        assert isinstance(module, nn.Conv2d)
        found = nn.functional.conv2d(
            self.input, weight.flatten(0, 1), None, module.stride, module.padding, module.dilation
        ).view(len(self.input), *weight.shape[:2], -1)
        if "bias" in tangents:
            found = found + tangents["bias"].unsqueeze(-1)
        return found.flatten(2)

    def _convolution_backward(self, cotangents: torch.Tensor) -> Values:
        module = self.module
        assert isinstance(module, nn.Conv2d)
        b, s, _ = cotangents.shape
        u = cotangents.view(b, s * self.shape[1], *self.shape[2:])
        shape = (s * self.shape[1], *module.weight.shape[1:])
        x, padding = padded(self.input, module)
        weight = conv2d_weight(x, shape, u, module.stride, padding, module.dilation)
        found = {"weight": weight.unflatten(0, (s, -1))}
        if "bias" in self.values:
            found["bias"] = u.sum((0, 2, 3)).view(s, -1)
        return found


class ByLayers:
    """The Jacobian of one batch, layer by layer."""

    def __init__(self, network: Network, batch: RecordBatch) -> None:
        self.outputs, self.taps = tapped(network, batch)
        known = {tap.of_model(own) for tap in self.taps for own in tap.values}
        if known != set(network.parameters.values):
            raise NotByLayers

    @property
    def numbers(self) -> int:
        """How many numbers it takes to keep this in memory."""
        return sum(tap.numbers for tap in self.taps)

    def forward(self, tangents: Values) -> torch.Tensor:
        return forward_of(self.taps, tangents)

    def backward(self, cotangents: torch.Tensor) -> Values:
        return backward_of(self.taps, cotangents)


def forward_of(taps: Sequence[Tap], tangents: Values) -> torch.Tensor:
    """J v (s, b, m) of some layers."""
    total: torch.Tensor | None = None
    for tap in taps:
        own = {name: tangents[tap.of_model(name)] for name in tap.values}
        part = torch.bmm(tap.forward(own), tap.derivative.mT)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total.transpose(0, 1)


def backward_of(taps: Sequence[Tap], cotangents: torch.Tensor) -> Values:
    """Jᵀu of some layers for cotangents (s, b, m)."""
    u = cotangents.transpose(0, 1)
    found: Values = {}
    for tap in taps:
        own = tap.backward(torch.bmm(u, tap.derivative))
        found |= {tap.of_model(name): value for name, value in own.items()}
    return found


def tapped(
    network: Network, batch: RecordBatch, kinds: tuple[type[nn.Module], ...] = (nn.Module,)
) -> tuple[torch.Tensor, list[Tap]]:
    """Outputs of a batch, and a tap for each layer of these kinds that has no layers below it, owns chosen parameters
    that no other layer shares, runs once and returns one tensor."""
    own = _owned(network, kinds)
    calls: dict[str, list[tuple[Any, Any, torch.Tensor]]] = {name: [] for name in own}

    def watch(name: str) -> Any:
        def hook(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
            given = (
                tuple(_detached(value) for value in arguments),
                {key: _detached(value) for key, value in keywords.items()},
            )
            calls[name].append((*given, output))
            # a copy goes on: an operation in place would change what was seen
            return output.clone() if isinstance(output, torch.Tensor) else output

        return hook

    modules = dict(network.model.named_modules())
    handles = [modules[name].register_forward_hook(watch(name), with_kwargs=True) for name in own]
    try:
        with torch.enable_grad():
            live = {name: value.clone().requires_grad_() for name, value in network.parameters.values.items()}
            f = network.function(batch)(live)
    finally:
        for handle in handles:
            handle.remove()
    once = {name: seen[0] for name, seen in calls.items() if len(seen) == 1 and isinstance(seen[0][2], torch.Tensor)}
    once = {name: seen for name, seen in once.items() if seen[2].ndim > 1 and len(seen[2]) == batch.rows}
    derivatives = _derivatives(f, [seen[2] for seen in once.values()])
    taps = [
        Tap(name, modules[name], *own[name], *seen[:2], derivative, seen[2].shape)
        for (name, seen), derivative in zip(once.items(), derivatives, strict=True)
    ]
    return f.detach(), taps


def _owned(network: Network, kinds: tuple[type[nn.Module], ...]) -> dict[str, tuple[Values, Values]]:
    """Layers that could be tapped, each with its chosen parameters and the rest, by the layer's own names."""
    parameters, found = network.parameters, {}
    shared = {name for name, _ in network.model.named_parameters(remove_duplicate=False)}
    shared -= {name for name, _ in network.model.named_parameters()}
    alike = {id(value) for name, value in network.model.named_parameters(remove_duplicate=False) if name in shared}
    for name, module in network.model.named_modules():
        prefix = f"{name}." if name else ""
        own = dict(module.named_parameters(recurse=False))
        chosen = {key: parameters.values[prefix + key] for key in own if prefix + key in parameters.values}
        tied = any(id(value) in alike for value in own.values())
        if chosen and not tied and isinstance(module, kinds) and not any(True for _ in module.children()):
            rest = {key: parameters.fixed[prefix + key] for key in own if prefix + key in parameters.fixed}
            buffers = {key: parameters.fixed[prefix + key] for key, _ in module.named_buffers(recurse=False)}
            found[name] = (chosen, rest | buffers)
    return found


def _derivatives(f: torch.Tensor, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """∂f/∂z (b, m, Z) for each layer output z."""
    if not outputs:
        return []
    each = unit_vectors(f)
    if sum(z.numel() for z in outputs) < LARGE:
        with suppress(RuntimeError):  # a backward pass that vmap does not know
            found = torch.autograd.grad(
                f, outputs, each, is_grads_batched=True, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            return [value.flatten(2).transpose(0, 1).contiguous() for value in found]
    laid_out = [z.new_empty(len(z), len(each), z[0].numel()) for z in outputs]
    for k, u in enumerate(each):
        rows = torch.autograd.grad(f, outputs, u, retain_graph=True, allow_unused=True, materialize_grads=True)
        for at, row in zip(laid_out, rows, strict=True):
            at[:, k] = row.flatten(1)
    return laid_out


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def plain_convolution(module: nn.Module) -> bool:
    """Whether every output of the convolution sees every input channel, and zeros around the image."""
    return isinstance(module, Convolution) and module.groups == 1 and module.padding_mode == "zeros"


def patches(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """Return what a plain convolution's weights multiply at each position, (b, i·k, L), in one copy for all records."""
    assert isinstance(module, Convolution)
    x, padding = padded(x, module)
    x = nn.functional.pad(x, [zeros for both in reversed(padding) for zeros in (both, both)]).contiguous()
    along = list(zip(x.shape[2:], module.kernel_size, module.dilation, module.stride, strict=True))
    positions = [(size - d * (k - 1) - 1) // stride + 1 for size, k, d, stride in along]
    steps = [d * step for (_, _, d, _), step in zip(along, x.stride()[2:], strict=True)]
    strides = [stride * step for (*_, stride), step in zip(along, x.stride()[2:], strict=True)]
    seen = x.as_strided((*x.shape[:2], *module.kernel_size, *positions), (*x.stride()[:2], *steps, *strides))
    return seen.reshape(len(x), -1, math.prod(positions))


def padded(x: torch.Tensor, module: Convolution) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The input of a convolution with what its padding still has to add, as numbers."""
    if not isinstance(module.padding, str):
        return x, module.padding
    nothing = (0,) * len(module.kernel_size)
    if module.padding == "valid":
        return x, nothing
    around = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    # "same": the odd pixel goes to the end; the last dimension comes first
    sides = [side for both in reversed(around) for side in (both // 2, both - both // 2)]
    return nn.functional.pad(x, sides), nothing
