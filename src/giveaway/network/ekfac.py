"""Influence of all records by Kronecker factors with corrected eigenvalues: no solves (docs/derivations.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from giveaway.checks import check_number, fail
from giveaway.curvature.losses import unit_vectors
from giveaway.network.layers import Tap, tapped
from giveaway.network.network import Network
from giveaway.network.scores import NetworkScores

MOST_SIDE = 8_192  # of a factor whose eigenvectors are computed
NUMBERS_AT_ONCE = 4_000_000  # squared coordinates of gradients


class LayerInputs(NamedTuple):
    """One layer in a batch: inputs (b, T, i) at its positions, output derivatives (b, m, T, o)."""

    inputs: torch.Tensor
    derivative: torch.Tensor

    @classmethod
    def of(cls, tap: Tap) -> LayerInputs:
        inputs, derivative = tap.by_position()
        if "bias" in tap.values:
            inputs = torch.cat([inputs, inputs.new_ones(*inputs.shape[:2], 1)], 2)
        return cls(inputs, derivative.mT)

    def along(self, u: torch.Tensor) -> torch.Tensor:
        """δ (b, c, T, o) of cotangents u (b, c, m)."""
        return torch.einsum("bcm,bmto->bcto", u, self.derivative)


@dataclass
class FactoredLayer:
    """Eigenvectors of one layer's factors, and the curvature along their products (o, i)."""

    names: list[str]  # of its parameters
    inputs: torch.Tensor
    outputs: torch.Tensor
    curvature: torch.Tensor

    def squares(self, layer: LayerInputs, u: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Squared coordinates of the gradients along u (b, c, m), some records at a time: as (b, c, o, i), or where a
        layer has one position as the two factors (b, c, o) and (b, i) of it."""
        x, d = layer.inputs @ self.inputs, layer.along(u) @ self.outputs
        if x.shape[1] == 1:
            yield d.squeeze(2).square(), x.squeeze(1).square()
            return
        each = max(1, NUMBERS_AT_ONCE // (d.shape[1] * self.curvature.numel()))
        for some_d, some_x in zip(d.split(each), x.split(each), strict=True):
            yield torch.einsum("bcto,bti->bcoi", some_d, some_x).square(), None

    def add_curvature(self, layer: LayerInputs, u: torch.Tensor) -> None:
        """Add the squared coordinates of the gradients along u (b, c, m) to the curvature."""
        for first, second in self.squares(layer, u):
            self.curvature += first.sum((0, 1)) if second is None else first.sum(1).T @ second

    def forms(self, layer: LayerInputs, u: torch.Tensor, damping: float) -> torch.Tensor:
        """Dᵀ(block + λ)⁻¹D (b, c) of the gradients D along u (b, c, m)."""
        number, forms = torch.finfo(self.curvature.dtype), []
        floor = max(10 * number.eps * float(self.curvature.max()), number.tiny)
        inverse = 1.0 / (self.curvature + damping).clamp_min(floor)
        for first, second in self.squares(layer, u):
            if second is None:
                forms.append((first * inverse).sum((2, 3)))
            else:
                forms.append(torch.einsum("bco,oi,bi->bc", first, inverse, second))
        return torch.cat(forms)


class Kronecker:
    """The layers of a network that have Kronecker factors. Two passes over the data, m backward passes each."""

    passes = 2

    def __init__(self, network: Network) -> None:
        self.network = network
        self.layers: dict[str, FactoredLayer] | None = None
        with torch.no_grad():
            self.layers = self._factors()
            for f, y, inputs in self.pieces():
                u = self.roots(f, y)
                for name, layer_inputs in inputs.items():
                    self.layers[name].add_curvature(layer_inputs, u)

    def roots(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The columns of W's root as cotangents (b, c, m)."""
        return self.network.loss.root(f, y, unit_vectors(f)).transpose(0, 1)

    def pieces(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, dict[str, LayerInputs]]]:
        """Read all records once: outputs, targets, and the inputs and derivatives of each layer."""
        network = self.network
        for _, batch in network.records.batches(network.work.rows(2 * network.m)):
            with network.evaluating():
                f, taps = tapped(network, batch, (nn.Linear, nn.Conv2d))
            known = [tap for tap in taps if tap.of_positions and (self.layers is None or tap.name in self.layers)]
            yield f, batch.targets, {tap.name: LayerInputs.of(tap) for tap in known}

    def _factors(self) -> dict[str, FactoredLayer]:
        sums: dict[str, list[torch.Tensor]] = {}
        for f, y, inputs in self.pieces():
            u = self.roots(f, y)
            for name, layer_inputs in inputs.items():
                x, d = layer_inputs.inputs.flatten(0, 1).double(), layer_inputs.along(u).flatten(0, 2).double()
                if max(x.shape[1], d.shape[1]) <= MOST_SIDE:
                    pair = (x.T @ x, d.T @ d)
                    sums[name] = [a + b for a, b in zip(sums[name], pair, strict=True)] if name in sums else list(pair)
        layers, parameters = {}, self.network.parameters.values
        for name, factors in sums.items():
            own = [f"{name}.{end}" if name else end for end in ("weight", "bias")]
            q, p = (torch.linalg.eigh(matrix)[1].to(self.network.dtype) for matrix in factors)
            layers[name] = FactoredLayer([n for n in own if n in parameters], q, p, q.new_zeros(len(p), len(q)))
        return layers


def ekfac_records(network: Network, *, damping: float) -> NetworkScores:
    """Approximate `influence` and `gls_trace` of every record through the linear and convolutional layers chosen."""
    check_number("damping", damping, minimum=0.0, remedy="in units of the summed loss, as n times weight decay")
    factors = Kronecker(network)
    if not factors.layers:
        remedy = "choose linear or convolutional layers, or use a sketch"
        raise fail("parameters", "linear or convolutional layers for EKFAC", "none", remedy)
    pieces = []
    with torch.no_grad():
        for f, y, inputs in factors.pieces():
            u = torch.cat([network.loss.gradient(f, y).unsqueeze(1), factors.roots(f, y)], 1)
            layers = [factors.layers[name].forms(one, u, damping).double() for name, one in inputs.items()]
            pieces.append(torch.stack(layers).sum(0))
    forms = torch.cat(pieces)  # (n, 1 + m)
    covered = sum(network.parameters.values[n].numel() for layer in factors.layers.values() for n in layer.names)
    left_out = f"EKFAC: {network.size - covered} of {network.size} parameters are in other layers, and left out"
    report: dict[str, Any] = {
        "curvature": "ekfac",
        "parameters": covered,
        "damping": damping,
        "passes": factors.passes + 1,
        "column_passes": (factors.passes + 1) * network.m,
        "notes": [left_out] if covered < network.size else [],
    }
    columns, nothing = {"influence": forms[:, 0], "gls_trace": forms[:, 1:].sum(1)}, torch.zeros_like(forms[:, 0])
    return NetworkScores(torch.arange(network.n), columns, nothing.bool(), nothing, report)
