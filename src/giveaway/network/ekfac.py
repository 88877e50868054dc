"""Influence of all records by Kronecker factors with corrected eigenvalues (EKFAC): three passes, no solves.

Layers are taken apart (the curvature between two of them is left out). A layer's Gauss–Newton block
Σ_j,c vec(D_jc) vec(D_jc)ᵀ, D_jc the gradient of output direction c of record j in the layer's weights (bias as a last
column), is diagonalized approximately by the eigenvectors of its two factors A = Σ a aᵀ over inputs and G = Σ δ δᵀ over
output gradients. Along those directions its diagonal is computed exactly. Cheap, and exact only where both hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from giveaway.checks import check_number, fail
from giveaway.curvature.losses import unit_vectors
from giveaway.network.layers import Tap, patches, tapped
from giveaway.network.network import Network
from giveaway.network.scores import NetworkScores

MOST_SIDE = 8_192  # of a factor whose eigenvectors are computed


@dataclass(frozen=True)
class LayerInputs:
    """What one layer saw of a batch: inputs (b, T, i) at its positions, output derivatives (b, m, T, o)."""

    inputs: torch.Tensor
    derivative: torch.Tensor

    @classmethod
    def of(cls, tap: Tap) -> LayerInputs:
        x, d = tap.input, tap.derivative
        if isinstance(tap.module, nn.Conv2d):
            inputs = patches(x, tap.module).mT
            derivative = d.unflatten(2, (tap.shape[1], -1)).mT
        else:
            inputs = x.reshape(len(x), -1, x.shape[-1])
            derivative = d.unflatten(2, (-1, tap.shape[-1]))
        if "bias" in tap.values:
            inputs = torch.cat([inputs, inputs.new_ones(*inputs.shape[:2], 1)], 2)
        return cls(inputs, derivative)

    def along(self, u: torch.Tensor) -> torch.Tensor:
        """δ (b, c, T, o) of cotangents u (b, c, m)."""
        return torch.einsum("bcm,bmto->bcto", u, self.derivative)


@dataclass
class FactoredLayer:
    """Eigenvectors of one layer's factors, and the curvature along their products (o, i)."""

    weight: str
    bias: str | None
    inputs: torch.Tensor
    outputs: torch.Tensor
    curvature: torch.Tensor

    def squares(self, layer: LayerInputs, u: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor | None]]:
        """Squared coordinates of the gradients along u (b, c, m), some records at a time: as (b, c, o, i), or where a
        layer has one position as the two factors (b, c, o) and (b, i) of it."""
        x, d = layer.inputs @ self.inputs, layer.along(u) @ self.outputs
        if x.shape[1] == 1:
            yield slice(None), d.squeeze(2).square(), x.squeeze(1).square()
            return
        each = max(1, 4_000_000 // (d.shape[1] * self.curvature.numel()))
        for start in range(0, len(x), each):
            part = slice(start, start + each)
            yield part, torch.einsum("bcto,bti->bcoi", d[part], x[part]).square(), None

    def add_curvature(self, layer: LayerInputs, u: torch.Tensor) -> None:
        """Add the squared coordinates of the gradients along u (b, c, m) to the curvature."""
        for _, first, second in self.squares(layer, u):
            self.curvature += first.sum((0, 1)) if second is None else first.sum(1).T @ second

    def forms(self, layer: LayerInputs, u: torch.Tensor, damping: float) -> torch.Tensor:
        """Dᵀ(block + λ)⁻¹D (b, c) of the gradients D along u (b, c, m)."""
        inverse, found = 1.0 / self._damped(damping), []
        for _, first, second in self.squares(layer, u):
            if second is None:
                found.append((first * inverse).sum((2, 3)))
            else:
                found.append(torch.einsum("bco,oi,bi->bc", first, inverse, second))
        return torch.cat(found)

    def _damped(self, damping: float) -> torch.Tensor:
        floor = 10 * torch.finfo(self.curvature.dtype).eps * self.curvature.max()
        return (self.curvature + damping).clamp_min(max(float(floor), torch.finfo(self.curvature.dtype).tiny))


class Kronecker:
    """The layers of a network that have Kronecker factors. Two passes over the data, m backward passes each."""

    passes = 2

    def __init__(self, network: Network) -> None:
        self.network = network
        self.rows = network.work.rows(2 * network.m)
        self.layers: dict[str, FactoredLayer] | None = None
        with torch.no_grad():
            self.layers = self._factors()
            for f, y, inputs in self.pieces():
                u = self.roots(f, y)
                for name, layer_inputs in inputs.items():
                    self.layers[name].add_curvature(layer_inputs, u)

    @property
    def covered(self) -> set[str]:
        """Names of the parameters in these layers."""
        pairs = ((layer.weight, layer.bias) for layer in (self.layers or {}).values())
        return {name for pair in pairs for name in pair if name is not None}

    def roots(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The columns of W's root as cotangents (b, c, m)."""
        return self.network.loss.root(f, y, unit_vectors(f)).transpose(0, 1)

    def pieces(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, dict[str, LayerInputs]]]:
        """Read all records once: outputs, targets, and the inputs and derivatives of each layer."""
        for _, batch in self.network.records.batches(self.rows):
            with self.network.evaluating():
                f, taps = tapped(self.network, batch, (nn.Linear, nn.Conv2d))
            known = [tap for tap in taps if _factored(tap) and (self.layers is None or tap.name in self.layers)]
            yield f, batch.targets, {tap.name: LayerInputs.of(tap) for tap in known}

    def _factors(self) -> dict[str, FactoredLayer]:
        sums: dict[str, list[torch.Tensor]] = {}
        for f, y, inputs in self.pieces():
            u = self.roots(f, y)
            for name, layer_inputs in inputs.items():
                x, d = layer_inputs.inputs.flatten(0, 1).double(), layer_inputs.along(u).flatten(0, 2).double()
                if max(x.shape[1], d.shape[1]) > MOST_SIDE:
                    continue
                pair = (x.T @ x, d.T @ d)
                sums[name] = [a + b for a, b in zip(sums[name], pair, strict=True)] if name in sums else list(pair)
        layers = {}
        for name, factors in sums.items():
            prefix = f"{name}." if name else ""
            bias = prefix + "bias" if prefix + "bias" in self.network.parameters.values else None
            q, p = (torch.linalg.eigh(matrix)[1].to(self.network.dtype) for matrix in factors)
            layers[name] = FactoredLayer(prefix + "weight", bias, q, p, q.new_zeros(len(p), len(q)))
        return layers


def _factored(tap: Tap) -> bool:
    plain = not isinstance(tap.module, nn.Conv2d) or (tap.module.groups == 1 and tap.module.padding_mode == "zeros")
    return plain and "weight" in tap.values and isinstance(tap.input, torch.Tensor)


def ekfac_records(network: Network, *, damping: float) -> NetworkScores:
    """Approximate `influence` and `gls_trace` of every record through the linear and convolutional layers chosen."""
    check_number("damping", damping, minimum=0.0, remedy="in units of the summed loss, as n times weight decay")
    factors = Kronecker(network)
    if not factors.layers:
        remedy = "choose linear or convolutional layers, or use a sketch"
        raise fail("parameters", "linear or convolutional layers for EKFAC", "none", remedy)
    influence, trace = [], []
    with torch.no_grad():
        for f, y, inputs in factors.pieces():
            g = network.loss.gradient(f, y).unsqueeze(1)
            u = torch.cat([g, factors.roots(f, y)], 1)
            forms = sum(factors.layers[name].forms(one, u, damping).double() for name, one in inputs.items())
            assert isinstance(forms, torch.Tensor)
            influence.append(forms[:, 0])
            trace.append(forms[:, 1:].sum(1))
    columns = {"influence": torch.cat(influence), "gls_trace": torch.cat(trace)}
    covered = sum(network.parameters.values[name].numel() for name in factors.covered)
    notes = []
    if covered < network.size:
        notes.append(f"EKFAC: {network.size - covered} of {network.size} parameters are in other layers, and left out")
    report: dict[str, Any] = {
        "curvature": "ekfac",
        "parameters": covered,
        "damping": damping,
        "passes": factors.passes + 1,
        "column_passes": (factors.passes + 1) * network.m,
        "notes": notes,
    }
    nothing = torch.zeros_like(columns["influence"])
    return NetworkScores(torch.arange(network.n), columns, nothing.bool(), nothing, report)
