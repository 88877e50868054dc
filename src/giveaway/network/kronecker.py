"""Kronecker-factored curvature of linear and convolutional layers, with eigenvalues of its own (EKFAC).

A layer's Gauss–Newton block Σ_j,c vec(D_jc) vec(D_jc)ᵀ, D_jc the gradient of output direction c of record j in the
layer's weights (bias as a last column), is diagonalized approximately by the eigenvectors of its two factors
A = Σ a aᵀ over inputs and G = Σ δ δᵀ over output gradients. Along those directions its diagonal is computed exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from giveaway.extract.batches import RecordBatch
from giveaway.network.convolutions import patches
from giveaway.network.layers import Tap, tapped
from giveaway.network.losses import units
from giveaway.network.network import Network

MOST_SIDE = 8_192  # of a factor whose eigenvectors are computed


@dataclass(frozen=True)
class Seen:
    """What one layer saw of a batch: inputs (b, T, i) at its positions, output derivatives (b, m, T, o)."""

    inputs: torch.Tensor
    derivative: torch.Tensor

    @classmethod
    def of(cls, tap: Tap) -> Seen:
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
class Layer:
    """Eigenvectors of one layer's factors, and the curvature along their products (o, i)."""

    weight: str
    bias: str | None
    inputs: torch.Tensor
    outputs: torch.Tensor
    curvature: torch.Tensor

    def squares(self, seen: Seen, u: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor | None]]:
        """Squared coordinates of the gradients along u (b, c, m), some records at a time: as (b, c, o, i), or where a
        layer has one position as the two factors (b, c, o) and (b, i) of it."""
        x, d = seen.inputs @ self.inputs, seen.along(u) @ self.outputs
        if x.shape[1] == 1:
            yield slice(None), d.squeeze(2).square(), x.squeeze(1).square()
            return
        each = max(1, 4_000_000 // (d.shape[1] * self.curvature.numel()))
        for start in range(0, len(x), each):
            part = slice(start, start + each)
            yield part, torch.einsum("bcto,bti->bcoi", d[part], x[part]).square(), None

    def forms(self, seen: Seen, u: torch.Tensor, damping: float) -> torch.Tensor:
        """Dᵀ(block + λ)⁻¹D (b, c) of the gradients D along u (b, c, m)."""
        inverse, found = 1.0 / self._damped(damping), []
        for _, first, second in self.squares(seen, u):
            if second is None:
                found.append((first * inverse).sum((2, 3)))
            else:
                found.append(torch.einsum("bco,oi,bi->bc", first, inverse, second))
        return torch.cat(found)

    def solve(self, right: torch.Tensor, damping: float) -> torch.Tensor:
        """(block + λ)⁻¹ of matrices (s, o, i)."""
        turned = self.outputs.T @ right @ self.inputs
        return self.outputs @ (turned / self._damped(damping)) @ self.inputs.T

    def _damped(self, damping: float) -> torch.Tensor:
        floor = 10 * torch.finfo(self.curvature.dtype).eps * self.curvature.max()
        return (self.curvature + damping).clamp_min(max(float(floor), torch.finfo(self.curvature.dtype).tiny))


class Kronecker:
    """The layers of a network that have Kronecker factors. Two passes over the data, m backward passes each."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.rows = network.work.rows(2 * network.m)
        self.layers = self._factors()
        with torch.no_grad():
            for batch, found in self.pieces():
                u = self.roots(*found[:2], batch)
                for name, seen in found[2].items():
                    for _, first, second in self.layers[name].squares(seen, u):
                        if second is None:
                            self.layers[name].curvature += first.sum((0, 1))
                        else:
                            self.layers[name].curvature += first.sum(1).T @ second
        self.passes = 2

    @property
    def covered(self) -> set[str]:
        """Names of the parameters in these layers."""
        pairs = ((layer.weight, layer.bias) for layer in self.layers.values())
        return {name for pair in pairs for name in pair if name is not None}

    def roots(self, f: torch.Tensor, y: torch.Tensor, _: RecordBatch | None = None) -> torch.Tensor:
        """The columns of W's root as cotangents (b, c, m)."""
        return self.network.loss.rooted(f, y, units(f)).transpose(0, 1)

    def pieces(self) -> Iterator[tuple[RecordBatch, tuple[torch.Tensor, torch.Tensor, dict[str, Seen]]]]:
        """All records once: outputs, targets, and what each layer saw."""
        for _, batch in self.network.records.batches(self.rows):
            with self.network.evaluating():
                f, taps = tapped(self.network, batch, (nn.Linear, nn.Conv2d))
            known = self.layers if hasattr(self, "layers") else None
            seen = {tap.name: Seen.of(tap) for tap in taps if _factored(tap) and (known is None or tap.name in known)}
            yield batch, (f, batch.targets, seen)

    def solve(self, right: torch.Tensor, damping: float) -> torch.Tensor:
        """(blocks + λ)⁻¹ of rows (s, P); what no layer here covers comes back as it was."""
        found, places = right.clone(), self.network.parameters.places
        for layer in self.layers.values():
            o = len(layer.outputs)
            matrices = right[:, places[layer.weight]].unflatten(1, (o, -1))
            if layer.bias is not None:
                matrices = torch.cat([matrices, right[:, places[layer.bias]].unsqueeze(2)], 2)
            solved = layer.solve(matrices, damping)
            if layer.bias is not None:
                found[:, places[layer.bias]] = solved[:, :, -1]
                solved = solved[:, :, :-1]
            found[:, places[layer.weight]] = solved.flatten(1)
        return found

    def _factors(self) -> dict[str, Layer]:
        sums: dict[str, list[torch.Tensor]] = {}
        with torch.no_grad():
            for batch, (f, y, found) in self.pieces():
                u = self.roots(f, y, batch)
                for name, seen in found.items():
                    x, d = seen.inputs.flatten(0, 1).double(), seen.along(u).flatten(0, 2).double()
                    if max(x.shape[1], d.shape[1]) > MOST_SIDE:
                        continue
                    pair = (x.T @ x, d.T @ d)
                    sums[name] = [a + b for a, b in zip(sums[name], pair, strict=True)] if name in sums else list(pair)
        layers = {}
        for name, (inputs, outputs) in sums.items():
            prefix = f"{name}." if name else ""
            bias = prefix + "bias" if prefix + "bias" in self.network.parameters.values else None
            q, p = (torch.linalg.eigh(matrix)[1].to(self.network.dtype) for matrix in (inputs, outputs))
            layers[name] = Layer(prefix + "weight", bias, q, p, q.new_zeros(len(p), len(q)))
        return layers


def _factored(tap: Tap) -> bool:
    plain = not isinstance(tap.module, nn.Conv2d) or (tap.module.groups == 1 and tap.module.padding_mode == "zeros")
    return plain and "weight" in tap.values and isinstance(tap.input, torch.Tensor)
