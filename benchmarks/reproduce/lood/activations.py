"""What different activations give away: both distances of all records under wide networks that differ in activation
and depth only (the LOOD paper's section 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.reproduce.lood.bounds import distance_to_constant
from giveaway.checks import check_choice, fail
from giveaway.gp.activations import Activation, as_activation, inverse_root
from giveaway.gp.distinguishability import divergence
from giveaway.gp.kernels import Kernel, KernelLike, Linear, Mapped, Sphere, diagonal_of, kernel_matrix
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import kernel_regression

SETTINGS = ("sphere", "critical", "raw")
ROUNDING = 1e-12  # of variances that should be 0 or 1


@dataclass(frozen=True)
class ActivationRow:
    """Means over the records for one activation and depth, over ReLU's mean (`…_ratio`), and the share of records above
    ReLU's (`…_higher`); no constant is nearer to all of the kernel than `constant`."""

    activation: str
    depth: int
    kl: float
    kl_ratio: float
    kl_higher: float
    mean: float
    mean_ratio: float
    mean_higher: float
    constant: float
    distance: float


@dataclass(frozen=True, eq=False)
class ActivationStudy:
    """`kl` and `mean` (A, L, n): both distances of each record for A activations, ReLU first, and L depths."""

    setting: str
    activations: tuple[str, ...]
    depths: tuple[int, ...]
    kl: np.ndarray
    mean: np.ndarray
    rows: tuple[ActivationRow, ...]


def activation_study(
    inputs: Any,
    targets: Any,
    *,
    noise: float,
    depths: Sequence[int],
    activations: Sequence[str | Activation],
    setting: str = "sphere",
) -> ActivationStudy:
    """Measure all records under wide networks that differ in activation and depth only: which gives more away?

    ReLU is added where it is not among the activations. `inputs` (n, …), `targets` (n,) or (n, C) and `noise` are those
    of `fit`. The answer depends on how inputs and variances are scaled, so there are three settings:

    "sphere"    each record less its own mean, on the sphere ‖x‖² = d, and K(x, z)/√(K(x, x)K(z, z)) for K of σw² = 2,
                σb = 0: every activation has K(x, x) = 1.
    "critical"  the same records, with the σw² and σb² that keep K(x, x) = 1 and σw² E[φ'(u)²] = 1 in every layer. Only
                there do all kernels tend to a constant at a rate of Proposition H.1 of the paper: the distance is
                Θ(L⁻²) for rectifiers and Θ(L⁻¹) for smooth activations.
    "raw"       records as they come, σw² = 2, σb = 0. A rectifier then keeps the scale of its input at any depth, while
                an activation that lets less through, as GELU does, shrinks the kernel against the noise.
    """
    x, y = (torch.as_tensor(given, dtype=torch.float64) for given in (inputs, targets))
    y = y.unsqueeze(1) if y.ndim == 1 else y
    chosen = {activation.name: activation for activation in map(as_activation, ["relu", *activations])}
    kl, mean = (np.empty((len(chosen), len(depths), len(x))) for _ in range(2))
    rows = []
    for i, (name, activation) in enumerate(chosen.items()):
        for j, depth in enumerate(depths):
            kernel = study_kernel(setting, depth, activation)
            matrix = kernel_matrix(kernel, x)
            distance = divergence(kernel_regression(matrix, y, noise))
            kl[i, j], mean[i, j] = distance.kl.cpu().numpy(), distance.mean.cpu().numpy()
            compared: list[float] = []
            for own, relu in ((kl[i, j], kl[0, j]), (mean[i, j], mean[0, j])):
                base = float(relu.mean())
                ratio = float(own.mean()) / base if base > 0.0 else math.nan
                compared += [float(own.mean()), ratio, float((own > relu).mean())]
            compared += distance_to_constant(matrix)
            rows.append(ActivationRow(name, int(depth), *compared))
    return ActivationStudy(setting, tuple(chosen), tuple(int(depth) for depth in depths), kl, mean, tuple(rows))


def study_kernel(setting: str, depth: int, activation: str | Activation) -> Kernel:
    """Make the kernel of one activation and depth in one of the settings."""
    check_choice("setting", setting, SETTINGS)
    if setting == "critical":  # records on the sphere where K⁰(x, x) = 1 too, which the later layers keep
        weight, bias = critical_variances(activation)
        unit = _UnitNNGP(depth, activation, weight_variance=weight, bias_variance=bias)
        return _OnSphere(unit, math.sqrt((1.0 - bias) / weight))
    raw = NNGP(depth, activation, weight_variance=2.0)
    return raw if setting == "raw" else Sphere(Correlation(raw), centre=True)


class Correlation(Kernel):
    """K(x, z) / √(K(x, x) K(z, z)); 0 where a record has K(x, x) = 0."""

    def __init__(self, kernel: KernelLike) -> None:
        self.kernel = kernel

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        left, right = (inverse_root(diagonal_of(self.kernel, records)) for records in (X, Z))
        return self.kernel(X, Z) * left[:, None] * right

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        variance = diagonal_of(self.kernel, X)
        return variance * inverse_root(variance).square()


class _OnSphere(Mapped):
    """The kernel of records centred and put on the sphere ‖x‖² = radius²·d."""

    def __init__(self, kernel: KernelLike, radius: float) -> None:
        self.kernel, self.radius = kernel, radius

    def map(self, X: torch.Tensor) -> torch.Tensor:
        return self.radius * Sphere(Linear(), centre=True).map(X.flatten(1))


class _UnitNNGP(NNGP):
    """Variances of 1 but for rounding are 1: where that fixed point is unstable, as GELU's is, rounding would grow."""

    def _variance(self, layer: Any, q: torch.Tensor) -> torch.Tensor:
        variance = super()._variance(layer, q)
        return torch.where((variance - 1.0).abs() < ROUNDING, 1.0, variance)


def critical_variances(activation: str | Activation) -> tuple[float, float]:
    """Return σw² = 1/E[φ'(u)²] and σb² = 1 − σw² E[φ(u)²], u ~ N(0, 1): they keep unit variance and small angles."""
    phi = as_activation(activation)
    one = torch.ones((), dtype=torch.float64)
    weight = 1.0 / float(phi.moment((1, 1), one, one, one))
    bias = 1.0 - weight * float(phi.dual(one, one, one))
    if bias < -ROUNDING:
        raise fail("activation", "one with E[φ²] ≤ E[φ'²] at unit variance", phi.name, 'use the setting "sphere"')
    return weight, max(bias, 0.0)
