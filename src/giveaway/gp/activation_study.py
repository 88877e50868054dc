"""Which activation gives more away: leave-one-out distances of wide networks that differ in activation and depth only.

The answer depends on how inputs and variances are scaled, so there are three settings:

    "sphere"    each record less its own mean, on the sphere ‖x‖² = d, and K(x, z)/√(K(x, x)K(z, z)) for K of σw² = 2,
                σb = 0: every activation has K(x, x) = 1.
    "critical"  the same records, with the σw² and σb² that keep K(x, x) = 1 and σw² E[φ'(u)²] = 1 in every layer. Only
                there do all kernels tend to a constant at a rate of Proposition H.1 of the LOOD paper: the distance is
                Θ(L⁻²) for rectifiers and Θ(L⁻¹) for smooth activations. (At other variances a smooth activation may
                keep its distance, however deep.)
    "raw"       records as they come, σw² = 2, σb = 0. A rectifier then keeps the scale of its input at any depth, while
                an activation that lets less through, as GELU does, shrinks the kernel against the noise.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_choice, check_finite, fail
from giveaway.gp.activations import as_activation
from giveaway.gp.bounds import distance_to_constant
from giveaway.gp.divergence import lood
from giveaway.gp.duals import Activation
from giveaway.gp.kernels import Correlation, Kernel, Sphere, kernel_matrix
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit

SETTINGS = ("sphere", "critical", "raw")
REFERENCE = "relu"
ROUNDING = 1e-12  # of variances that should be 0 or 1


@dataclass(frozen=True)
class ActivationRow:
    """Means over the records for one activation and depth, each beside ReLU's of the same depth.

    `…_ratio` is the mean over ReLU's mean, `…_higher` the share of records whose own value is above ReLU's. Every entry
    of the kernel matrix is within `distance` of `constant`, and no other constant is closer.
    """

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

    def to_csv(self) -> str:
        """The rows as comma-separated text, the setting in the first column."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["setting", *(field.name for field in fields(ActivationRow))])
        writer.writerows([self.setting, *astuple(row)] for row in self.rows)
        return stream.getvalue()

    def to_markdown(self) -> str:
        """The rows as a table, four digits each."""
        lines = [
            "| activation | depth | KL | over ReLU | higher in | mean distance | over ReLU | higher in | to constant |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in self.rows:
            kl = f"{row.kl:.4g} | {row.kl_ratio:.4g} | {100 * row.kl_higher:.4g} %"
            mean = f"{row.mean:.4g} | {row.mean_ratio:.4g} | {100 * row.mean_higher:.4g} %"
            lines.append(f"| {row.activation} | {row.depth} | {kl} | {mean} | {row.distance:.4g} |")
        return "\n".join(lines) + "\n"


def activation_study(
    inputs: Any,
    targets: Any,
    *,
    noise: float,
    depths: Sequence[int],
    activations: Sequence[str | Activation],
    setting: str = "sphere",
) -> ActivationStudy:
    """Both distances of all records for every depth and activation; ReLU is added where it is not among them.

    `inputs` (n, …), `targets` (n,) or (n, C) and the noise variance are as for `posterior.fit`.
    """
    check_choice("setting", setting, SETTINGS)
    x = as_tensor("inputs", inputs).to(torch.float64)
    if x.ndim < 2 or len(x) == 0:
        raise fail("inputs", "records as (n, …)", f"shape {tuple(x.shape)}", "give one record a row")
    check_finite("inputs", x)
    if len(depths) == 0:
        raise fail("depths", "at least one depth", "none", "give the numbers of hidden layers to compare")
    chosen = {activation.name: activation for activation in map(as_activation, [REFERENCE, *activations])}
    kl, mean = (np.empty((len(chosen), len(depths), len(x))) for _ in range(2))
    nearest = {}
    for i, activation in enumerate(chosen.values()):
        for j, depth in enumerate(depths):
            kernel = study_kernel(setting, depth, activation)
            matrix = kernel_matrix(kernel, x)
            nearest[i, j] = distance_to_constant(matrix)
            found = lood(fit(kernel, x, targets, noise, matrix=matrix))
            kl[i, j], mean[i, j] = found.kl.cpu().numpy(), found.mean.cpu().numpy()
    rows = [
        ActivationRow(name, int(depth), *_beside(kl[:, j], i), *_beside(mean[:, j], i), *nearest[i, j])
        for i, name in enumerate(chosen)
        for j, depth in enumerate(depths)
    ]
    return ActivationStudy(setting, tuple(chosen), tuple(int(depth) for depth in depths), kl, mean, tuple(rows))


def study_kernel(setting: str, depth: int, activation: str | Activation) -> Kernel:
    """The kernel of one activation and depth in one of the settings."""
    check_choice("setting", setting, SETTINGS)
    if setting == "raw":
        return NNGP(depth, activation, weight_variance=2.0)
    if setting == "sphere":
        return Sphere(Correlation(NNGP(depth, activation, weight_variance=2.0)), centre=True)
    return _CriticalSphere(depth, activation)


class _CriticalSphere(Sphere):
    """Records on the sphere where K⁰(x, x) = 1 too, which the later layers keep: ‖x‖² = d(1 − σb²)/σw²."""

    def __init__(self, depth: int, activation: str | Activation) -> None:
        weight, bias = critical_variances(activation)
        super().__init__(_UnitNNGP(depth, activation, weight_variance=weight, bias_variance=bias), centre=True)
        self._radius = math.sqrt((1.0 - bias) / weight)

    def map(self, X: torch.Tensor) -> torch.Tensor:
        return self._radius * super().map(X)


class _UnitNNGP(NNGP):
    """Variances of 1 but for rounding are 1: where that fixed point is unstable, as GELU's is, rounding would grow."""

    def _variances_after(self, qx: torch.Tensor, qz: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        after = super()._variances_after(qx, qz)
        x, z = (torch.where((q - 1.0).abs() < ROUNDING, 1.0, q) for q in after)
        return x, z


def critical_variances(activation: str | Activation) -> tuple[float, float]:
    """σw² = 1/E[φ'(u)²] and σb² = 1 − σw² E[φ(u)²] for u ~ N(0, 1): unit variance is kept, and so are small angles."""
    phi = as_activation(activation)
    one = torch.ones((), dtype=torch.float64)
    weight = 1.0 / float(phi.dual_derivative(one, one, one))
    bias = 1.0 - weight * float(phi.dual(one, one, one))
    if bias < -ROUNDING:
        raise fail("activation", "one with E[φ²] ≤ E[φ'²] at unit variance", phi.name, 'use the setting "sphere"')
    return weight, max(bias, 0.0)


def _beside(values: np.ndarray, place: int) -> tuple[float, float, float]:
    """The mean of row `place` of values (A, n), its ratio to that of row 0, and the share of entries above row 0."""
    own, reference = values[place], values[0]
    base = float(reference.mean())
    ratio = float(own.mean()) / base if base > 0.0 else math.nan
    return float(own.mean()), ratio, float((own > reference).mean())
