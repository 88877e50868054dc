"""Kernels by name, for command lines and files."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from giveaway.checks import check_choice, fail
from giveaway.gp.conv_nngp import ConvNNGP, ConvNTK
from giveaway.gp.kernels import RBF, Kernel, Laplace, Linear, Sphere
from giveaway.gp.nngp import NNGP, NTK

LENGTH, VARIANCES, LAYERS = {"length"}, {"weight_variance", "bias_variance"}, {"depth", "activation"}
IMAGES = {"filter_size", "stride", "padding", "readout"}
TAKES = {
    "rbf": LENGTH,
    "laplace": LENGTH,
    "linear": VARIANCES,
    "nngp": VARIANCES | LAYERS,
    "ntk": VARIANCES | LAYERS,
    "conv_nngp": VARIANCES | LAYERS | IMAGES,
    "conv_ntk": VARIANCES | LAYERS | IMAGES,
}
KINDS: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "laplace": Laplace,
    "linear": Linear,
    "nngp": NNGP,
    "ntk": NTK,
    "conv_nngp": ConvNNGP,
    "conv_ntk": ConvNTK,
}
DEPTH = 3
SAMPLED = 1_000  # records whose distances give the typical length


@dataclass(frozen=True)
class KernelChoice:
    """A kernel in words; None takes the kernel's own default.

    `length` of rbf and laplace is the median distance between records unless given. `sphere` centres every record on
    its own mean and scales it to ‖x‖² = d first.
    """

    name: str
    length: float | None = None
    depth: int | None = None
    activation: str | None = None
    weight_variance: float | None = None
    bias_variance: float | None = None
    filter_size: int | None = None
    stride: int | None = None
    padding: str | None = None
    readout: str | None = None
    sphere: bool = False

    def options(self) -> dict[str, Any]:
        """What was given beside the name, refused where the kernel does not take it."""
        check_choice("kernel", self.name, KINDS)
        named = [field.name for field in fields(self) if field.name not in ("name", "sphere")]
        given = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        for name in given:
            if name not in TAKES[self.name]:
                fit = ", ".join(kernel for kernel, takes in TAKES.items() if name in takes)
                raise fail(name, f"one of the kernels {fit}", self.name, f"drop {name}, or choose another kernel")
        return given

    def kernel(self, inputs: torch.Tensor) -> Kernel:
        """The kernel for these inputs (n, …)."""
        options = self.options()
        if TAKES[self.name] is LENGTH and "length" not in options:
            options["length"] = median_distance(_on_sphere(inputs) if self.sphere else inputs)
        if "depth" in TAKES[self.name]:
            options.setdefault("depth", DEPTH)
        made = KINDS[self.name](**options)
        return Sphere(made, centre=True) if self.sphere else made


def median_distance(inputs: torch.Tensor) -> float:
    """The median distance between up to 1,000 evenly spaced records that are apart; 1 where none are."""
    step = -(-len(inputs) // SAMPLED)
    chosen = inputs[::step].flatten(1).to(torch.float64)
    distances = torch.pdist(chosen)
    apart = distances[distances > 0]
    return float(apart.quantile(0.5)) if len(apart) else 1.0


def _on_sphere(inputs: torch.Tensor) -> torch.Tensor:
    return Sphere(Linear(), centre=True).map(inputs)
