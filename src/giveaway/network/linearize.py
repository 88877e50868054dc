"""Products with the Jacobian J of a batch's outputs, for many columns at once, in the ways there are.

`forward` maps tangents (s, …) a parameter to J v (s, b, m), `backward` maps cotangents u (s, b, m) to Jᵀu, summed over
the batch. Layers that forward mode or vmap cannot trace are left to a slower way; `method_of` picks the first way whose
products agree with plain backward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch.func import jvp, vjp, vmap

from giveaway.checks import InputError, fail
from giveaway.extract.batches import RecordBatch
from giveaway.network.network import Network, Values

CHECKED = 3  # records of the check


class Linearization(Protocol):
    """What a way offers for one batch."""

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
        found = torch.autograd.grad(
            self._live,
            list(self.values.values()),
            u,
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
            materialize_grads=True,
        )
        return dict(zip(self.values, found, strict=True))


WAYS: dict[str, Way] = {
    "forward mode": ForwardMode,
    "double backward": DoubleBackward,
    "column by column": ColumnByColumn,
}


def method_of(network: Network, ways: Mapping[str, Way] = WAYS) -> tuple[Way, list[str]]:
    """The first of the ways that works for this network, and a note for each that did not."""
    batch = network.records.take(slice(0, min(CHECKED, network.n)))
    notes = []
    for name, way in ways.items():
        try:
            with network.evaluating():
                agrees = _agrees(network, batch, way(network, batch))
        except InputError:
            raise
        except Exception as error:  # what a layer raises under a transform is up to the layer
            notes.append(f"{name}: not possible for this model ({type(error).__name__})")
            continue
        if agrees:
            return way, notes
        notes.append(f"{name}: differs from plain backward passes, so it is not used")
    raise fail(
        "model",
        "layers that can be differentiated forwards, or twice backwards",
        "; ".join(notes),
        "choose parameters behind the layer that cannot, as parameters='head'",
    )


def _agrees(network: Network, batch: RecordBatch, found: Linearization) -> bool:
    """Jᵀu against plain autograd, and J v through ⟨u, J v⟩ = ⟨Jᵀu, v⟩, for two random columns."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(network.device, network.dtype)

    v, u = random(2, network.size), random(2, *found.outputs.shape)
    plain = ColumnByColumn(network, batch)
    expected = network.parameters.join(plain.backward(u))
    backward = network.parameters.join(found.backward(u))
    inner = (u * found.forward(network.parameters.split(v))).flatten(1).sum(1)
    scale = expected.norm(dim=1)
    loose = 10 * torch.finfo(network.dtype).eps ** 0.5  # TF32 may be at work
    return bool(
        (plain.outputs - found.outputs).abs().max() <= loose * plain.outputs.abs().max()
        and ((backward - expected).norm(dim=1) <= loose * scale).all()
        and ((inner - (expected * v).sum(1)).abs() <= loose * scale * v.norm(dim=1)).all()
    )
