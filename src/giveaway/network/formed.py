"""Layers' Jacobians multiplied out: a matrix D_l ∂z_l/∂θ_l of (b·m, P_l) a layer, once a batch.

With s columns a layer of L positions (pixels, tokens) takes s·L·P_l multiplications a record. Its matrix takes m·L·P_l
and then s·m·P_l: less where there are more columns than outputs, and more positions than either. But it is written and
read, m·P_l numbers at a time, and on a GPU that costs more than most multiplications: layers of few positions and many
parameters are better left as they are, and so is a layer of one position, as its two factors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap

from giveaway.network.layers import ByLayers, Tap, backward_of, forward_of, patches
from giveaway.network.network import Values

LEAST_ROWS = 8  # records whose matrices must fit together, so that a pass is not all overhead
IN_PASSING = 3  # numbers for each of a layer's outputs while a column is multiplied
# multiplications in the time of one number to or from memory: measured on two cores, and on an H200 in TF32
MOVED = {"cpu": 10, "cuda": 64}
ONCE_THROUGH = 3  # times that a matrix is moved: written, read forth, read back


class FormedJacobian:
    """The Jacobian of one batch, with the matrices of the layers called `names`."""

    def __init__(self, layers: ByLayers, names: Collection[str]) -> None:
        self.outputs = layers.outputs
        self._others = [tap for tap in layers.taps if tap.name not in names]
        self._matrices = {
            tap.of_model(own): matrix
            for tap in layers.taps
            if tap.name in names
            for own, matrix in multiplied_out(tap).items()
        }

    def release(self) -> None:
        """Free the memory of the matrices; the outputs stay."""
        self._others.clear()
        self._matrices.clear()

    def forward(self, tangents: Values) -> torch.Tensor:
        total = None if not self._others else forward_of(self._others, tangents).flatten(1)
        for name, matrix in self._matrices.items():
            columns = tangents[name].flatten(1)
            total = columns @ matrix.T if total is None else torch.addmm(total, columns, matrix.T)
        assert total is not None
        return total.unflatten(1, self.outputs.shape)

    def backward(self, cotangents: torch.Tensor) -> Values:
        u = cotangents.flatten(1)
        return backward_of(self._others, cotangents) | {name: u @ matrix for name, matrix in self._matrices.items()}


@dataclass(frozen=True)
class LayerCost:
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
        able = sorted(
            (name for name in costs if saved[name] > 0), key=lambda name: saved[name] / costs[name].parameters
        )
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
        return {name: value.flatten(0, 1).flatten(1) for name, value in _pulled(tap).items()}
    b, m, _ = tap.derivative.shape
    if isinstance(tap.module, nn.Linear):
        inputs = tap.input.reshape(b, -1, tap.input.shape[-1])  # (b, T, i)
        derivative = tap.derivative.view(b, m, -1, tap.shape[-1]).transpose(2, 3)
    else:
        inputs = patches(tap.input, tap.module).mT
        derivative = tap.derivative.view(b, m, tap.shape[1], -1)
    found = {"weight": torch.bmm(derivative.reshape(b, -1, inputs.shape[1]), inputs).view(b * m, -1)}
    if "bias" in tap.values:
        found["bias"] = derivative.sum(3).flatten(0, 1)
    return found


def _pulled(tap: Tap) -> Values:
    """Return the matrix (b, m, …) of any layer by backward passes from every output, record by record."""

    def one(arguments: Sequence[Any], keywords: dict[str, Any], derivative: torch.Tensor) -> Values:
        given = [value.unsqueeze(0) if isinstance(value, torch.Tensor) else value for value in arguments]
        named = {
            key: value.unsqueeze(0) if isinstance(value, torch.Tensor) else value for key, value in keywords.items()
        }

        def local(values: Values) -> torch.Tensor:
            return functional_call(tap.module, {**tap.fixed, **values}, tuple(given), named)

        pull = vjp(local, tap.values)[1]
        return vmap(lambda u: pull(u.view(1, *tap.shape[1:]))[0])(derivative)

    placed = tuple(0 if isinstance(value, torch.Tensor) else None for value in tap.arguments)
    named = {key: 0 if isinstance(value, torch.Tensor) else None for key, value in tap.keywords.items()}
    return vmap(one, in_dims=(placed, named, 0))(tap.arguments, tap.keywords, tap.derivative)


def _right(tap: Tap) -> bool:
    """Check that the layer's matrix can be formed, and gives what its backward pass does for two random cotangents."""
    b, m, _ = tap.derivative.shape
    try:
        found = multiplied_out(tap)
    except Exception:  # what a layer raises under a transform is up to the layer
        return False
    u = torch.randn(2, b, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(tap.derivative)
    expected = tap.backward(torch.bmm(u.transpose(0, 1), tap.derivative))
    loose = 10 * torch.finfo(u.dtype).eps ** 0.5  # TF32 may be at work
    return all(
        bool((u.flatten(1) @ found[name] - value.flatten(1)).norm() <= loose * value.norm())
        for name, value in expected.items()
    )
