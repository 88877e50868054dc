"""Influence of all records by Kronecker factors with corrected eigenvalues: no solves (docs/derivations.md)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from giveaway.checks import check_number, fail
from giveaway.curvature.losses import unit_vectors
from giveaway.network.layers import tapped
from giveaway.network.network import Network
from giveaway.network.scores import NetworkScores

MOST_SIDE = 8_192  # of a factor whose eigenvectors are computed
NUMBERS_AT_ONCE = 4_000_000  # squared coordinates of gradients
PASSES = 3  # over the data, m backward passes each: the factors, the curvature along their eigenvectors, the scores


class LayerGradients(NamedTuple):
    """One layer in a batch: its inputs (b, T, i) at T positions, and the gradients (b, c, T, o) in its outputs of c
    combinations of the model's. Gradients in its weights are sums over positions of products of both."""

    inputs: torch.Tensor
    along: torch.Tensor


@dataclass
class FactoredLayer:
    """Eigenvectors of one layer's factors, and the curvature along their products (o, i)."""

    inputs: torch.Tensor
    outputs: torch.Tensor
    curvature: torch.Tensor

    @classmethod
    def of(cls, factors: list[torch.Tensor], dtype: torch.dtype) -> "FactoredLayer":
        inputs, outputs = (torch.linalg.eigh(matrix)[1].to(dtype) for matrix in factors)
        return cls(inputs, outputs, inputs.new_zeros(len(outputs), len(inputs)))

    def squares(self, layer: LayerGradients) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Squared coordinates of the gradients, some records at a time: as (b, c, o, i), or where a layer has one
        position as the two factors (b, c, o) and (b, i) of it."""
        x, d = layer.inputs @ self.inputs, layer.along @ self.outputs
        if x.shape[1] == 1:
            yield d.squeeze(2).square(), x.squeeze(1).square()
            return
        each = max(1, NUMBERS_AT_ONCE // (d.shape[1] * self.curvature.numel()))
        for some_d, some_x in zip(d.split(each), x.split(each), strict=True):
            yield torch.einsum("bcto,bti->bcoi", some_d, some_x).square(), None

    def add_curvature(self, layer: LayerGradients) -> None:
        """Add the squared coordinates of the gradients to the curvature."""
        for first, second in self.squares(layer):
            self.curvature += first.sum((0, 1)) if second is None else first.sum(1).T @ second

    def forms(self, layer: LayerGradients, damping: float) -> torch.Tensor:
        """Dᵀ(block + λ)⁻¹D (b, c) of the gradients D."""
        number, forms = torch.finfo(self.curvature.dtype), []
        floor = max(10 * number.eps * float(self.curvature.max()), number.tiny)
        inverse = 1.0 / (self.curvature + damping).clamp_min(floor)
        for first, second in self.squares(layer):
            if second is None:
                forms.append((first * inverse).sum((2, 3)))
            else:
                forms.append(torch.einsum("bco,oi,bi->bc", first, inverse, second))
        return torch.cat(forms)


def _pieces(network: Network, *, gradients: bool = False) -> Iterator[dict[str, LayerGradients]]:
    """Read all records once: of every layer that has factors, its gradients along the columns of W's root; with
    `gradients` that of the loss before them."""
    for _, batch in network.records.batches(network.work.rows(2 * network.m)):
        with network.evaluating():
            f, taps = tapped(network, batch, (nn.Linear, nn.Conv2d))
        u = network.loss.root(f, batch.targets, unit_vectors(f)).transpose(0, 1)  # (b, c, m)
        if gradients:
            u = torch.cat([network.loss.gradient(f, batch.targets).unsqueeze(1), u], 1)
        layers = {}
        for tap in taps:
            if tap.of_positions:
                x, derivative = tap.by_position()
                x = torch.cat([x, x.new_ones(*x.shape[:2], 1)], 2) if "bias" in tap.values else x
                if max(x.shape[2], derivative.shape[2]) <= MOST_SIDE:
                    layers[tap.name] = LayerGradients(x, torch.einsum("bcm,bmot->bcto", u, derivative))
        yield layers


@torch.no_grad()
def ekfac_records(network: Network, *, damping: float) -> NetworkScores:
    """Approximate `influence` and `gls_trace` of every record through the linear and convolutional layers chosen."""
    check_number("damping", damping, minimum=0.0, remedy="in units of the summed loss, as n times weight decay")
    sums: dict[str, list[torch.Tensor]] = {}
    for layers in _pieces(network):
        for name, layer in layers.items():
            sides = layer.inputs.flatten(0, 1).double(), layer.along.flatten(0, 2).double()
            pair = [side.T @ side for side in sides]
            sums[name] = [a + b for a, b in zip(sums[name], pair, strict=True)] if name in sums else pair
    if not sums:
        remedy = "choose linear or convolutional layers, or use a sketch"
        raise fail("parameters", "linear or convolutional layers for EKFAC", "none", remedy)
    factored = {name: FactoredLayer.of(factors, network.dtype) for name, factors in sums.items()}
    for layers in _pieces(network):
        for name, layer in layers.items():
            factored[name].add_curvature(layer)
    pieces = [
        torch.stack([factored[name].forms(layer, damping).double() for name, layer in layers.items()]).sum(0)
        for layers in _pieces(network, gradients=True)
    ]
    forms, covered = torch.cat(pieces), sum(layer.curvature.numel() for layer in factored.values())  # (n, 1 + m)
    left_out = f"EKFAC: {network.size - covered} of {network.size} parameters are in other layers, and left out"
    report: dict[str, Any] = {"curvature": "ekfac", "parameters": covered, "damping": damping, "passes": PASSES}
    report |= {"column_passes": PASSES * network.m, "notes": [left_out] if covered < network.size else []}
    columns, nothing = {"influence": forms[:, 0], "gls_trace": forms[:, 1:].sum(1)}, torch.zeros_like(forms[:, 0])
    return NetworkScores(torch.arange(network.n), columns, nothing.bool(), nothing, report)
