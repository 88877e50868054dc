"""Activations by name, with their duals in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from giveaway.checks import check_number, fail
from giveaway.gp.duals import Activation, correlation, quotient, square_root, within_bounds
from giveaway.gp.elu import Elu

TANH_NODES = 20


class _Rectifier(Activation):
    """x for x > 0, slope·x below: slope·c plus (1 − slope)² times the arc-cosine kernels."""

    def __init__(self, slope: float, name: str) -> None:
        self.slope = slope
        self.name = name
        self._bend = (1.0 - slope) ** 2

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, self.slope * x)

    def _dual(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        rho = correlation(qx, qz, c)
        sine = (rho * rho).neg_().add_(1.0).sqrt_()
        result = rho.neg().acos_().mul_(rho).add_(sine).mul_(qx.sqrt().mul_(self._bend / math.tau)).mul_(qz.sqrt())
        return result.add_(c, alpha=self.slope) if self.slope else result

    def _derivative(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        # unlike the arc cosine of a rounded correlation this is exact where qx = qz = c
        sine = (qx * qz - c * c).clamp_min_(0.0).sqrt_()
        return torch.atan2(sine, 0.0 - c).mul_(self._bend / math.tau).add_(self.slope)

    def _dual_by_variance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (self._bend / (2 * math.tau)) * quotient(square_root(qx * qz - c * c), qx)

    def _derivative_by_covariance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        sine = square_root(qx * qz - c * c)
        return (self._bend / math.tau) * quotient(torch.ones_like(sine), sine)

    def _derivative_by_variance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (-self._bend / (2 * math.tau)) * quotient(quotient(c, qx), square_root(qx * qz - c * c))


class _Identity(Activation):
    """x."""

    name = "identity"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def _dual(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return c + self._none(qx, qz, c)

    def _derivative(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return 1.0 + self._none(qx, qz, c)

    def _none(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(torch.broadcast_tensors(qx, qz, c)[2])

    _dual_by_variance = _derivative_by_covariance = _derivative_by_variance = _none


class _ErfMixture(Activation):
    """Σ_k w_k erf(s_k x): a double sum of arcsines, one term for a pair of scales.

    With P = 1 + 2 s² qx, Q = 1 + 2 t² qz for scales s and t, a term of the dual is (2/π) arcsin(2 s t c / √(PQ)); its
    derivative in c is (4 s t/π) / √D, D = PQ − 4 s² t² c² ≥ 1.
    """

    def __init__(self, name: str, function: Callable[[torch.Tensor], torch.Tensor], scales: Any, weights: Any) -> None:
        self.name = name
        self._function = function
        self._terms = [(float(s), float(w)) for s, w in zip(scales, weights, strict=True)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._function(x)

    def _dual(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        c = within_bounds(qx, qz, c)
        right = [(w, t / (0.5 + t * t * qz).sqrt_()) for t, w in self._terms]
        total = torch.zeros_like(c)
        for s, w in self._terms:
            left = c * (s / (0.5 + s * s * qx).sqrt_())
            for weight, factor in right:
                total.add_((left * factor).asin_(), alpha=w * weight)
        return total.mul_(2.0 / math.pi)

    def _derivative(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return self._sum(qx, qz, c, lambda s, t, c, p, q, d: d.rsqrt())

    def _dual_by_variance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return self._sum(qx, qz, c, lambda s, t, c, p, q, d: -s * s * c / p * d.rsqrt())

    def _derivative_by_covariance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return self._sum(qx, qz, c, lambda s, t, c, p, q, d: (2 * s * t) ** 2 * c * d.pow(-1.5))

    def _derivative_by_variance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return self._sum(qx, qz, c, lambda s, t, c, p, q, d: -s * s * q * d.pow(-1.5))

    def _sum(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor, term: Callable[..., Any]) -> torch.Tensor:
        """Σ w_s w_t (4 s t/π)·term(s, t, c, P, Q, D)."""
        c = within_bounds(qx, qz, c)
        determinant = (qx * qz - c * c).clamp_min(0.0)
        total = torch.zeros_like(determinant)
        for s, weight in self._terms:
            p = 1.0 + 2 * s * s * qx
            for t, other in self._terms:
                q = 1.0 + 2 * t * t * qz
                d = (2 * s * t) ** 2 * determinant + (p + 2 * t * t * qz)
                total = total + (4 * s * t / math.pi * weight * other) * term(s, t, c, p, q, d)
        return total


class _Gelu(Activation):
    """x Φ(x). With P = (1+qx)(1+qz), D = P − c²:

    E[φφ] = c/4 + c arcsin(c/√P)/2π + (qx qz D + c²)/(2π P √D).
    """

    name = "gelu"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x)

    def _dual(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        c, d, root = self._parts(qx, qz, c)
        p = (1.0 + qx) * (1.0 + qz)
        angle = torch.atan2(c, root).add_(math.pi / 2).mul_(c)
        return (qx * qz * d).addcmul_(c, c).div_(p * root).add_(angle).div_(math.tau)

    def _derivative(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        c, d, root = self._parts(qx, qz, c)
        p = (1.0 + qx) * (1.0 + qz)
        rest = c * (d * (2.0 + qx + qz) + p) / (p * d * root)
        return (torch.atan2(c, root) + rest).div_(math.tau).add_(0.25)

    # Multiplying by the density ϕ(u) leaves a Gaussian with u of variance ω, v of variance s² and covariance k;
    # multiplying by ϕ(u)ϕ(v) one with variances α, β and covariance γ.

    def _dual_by_variance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        c, d, root = self._parts(qx, qz, c)
        omega, k, s2 = qx / (1.0 + qx), c / (1.0 + qx), qz - c * c / (1.0 + qx)
        return (s2 * (2.0 - omega) - k * k * (1.0 + (1.0 + qx) / d)) / (2 * math.tau * root)

    def _derivative_by_covariance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        c, d, root = self._parts(qx, qz, c)
        alpha, beta, gamma = 1.0 - (1.0 + qz) / d, 1.0 - (1.0 + qx) / d, c / d
        return ((2.0 - alpha) * (2.0 - beta) + 2.0 * gamma * gamma) / (math.tau * root)

    def _derivative_by_variance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        c, d, root = self._parts(qx, qz, c)
        omega, k, alpha, gamma = qx / (1.0 + qx), c / (1.0 + qx), 1.0 - (1.0 + qz) / d, c / d
        return (k * (2.0 * omega + alpha - 4.0) + gamma * (3.0 * alpha - 4.0)) / (2 * math.tau * root)

    @staticmethod
    def _parts(qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """c within its bounds, D ≥ 1 without cancellation, √D."""
        c = within_bounds(qx, qz, c)
        d = (qx * qz - c * c).clamp_min(0.0) + (1.0 + qx + qz)
        return c, d, d.sqrt()


def _tanh() -> Activation:
    """tanh as a mixture of erf's: tanh(x) = E[erf(x/(√2 k))] for k of Kolmogorov's distribution, since the logistic
    distribution is a normal one of random scale k. The density of log k falls off faster than any exponential on both
    sides, so that the trapezoidal rule in log k errs by less than 1e-12 for every x at once."""
    k = np.geomspace(0.22, 3.5, TANH_NODES)
    j = np.arange(1, 12)[:, None]
    density = 8 * k * ((-1.0) ** (j + 1) * j**2 * np.exp(-2 * j**2 * k**2)).sum(0)
    # the series above cancels for small k; its theta-function twin does not
    odd = (2 * j - 1) ** 2 * np.pi**2 / 8
    twin = np.sqrt(2 * np.pi) * (np.exp(-odd / k**2) * (2 * odd / k**4 - 1 / k**2)).sum(0)
    weights = np.where(k < 1, twin, density) * k * np.log(k[1] / k[0])
    return _ErfMixture("tanh", torch.tanh, 1 / (np.sqrt(2) * k), weights)


def leaky_relu(slope: float = 0.01) -> Activation:
    """x for x > 0, slope·x below."""
    slope = check_number("slope", slope, minimum=-math.inf, remedy="give the factor of negative inputs")
    return _Rectifier(slope, f"leaky_relu({slope:g})")


relu: Activation = _Rectifier(0.0, "relu")
erf: Activation = _ErfMixture("erf", torch.erf, [1.0], [1.0])
gelu: Activation = _Gelu()
elu: Activation = Elu()
tanh: Activation = _tanh()
identity: Activation = _Identity()

ACTIVATIONS: dict[str, Activation] = {
    "relu": relu,
    "leaky_relu": leaky_relu(),
    "erf": erf,
    "gelu": gelu,
    "elu": elu,
    "tanh": tanh,
    "identity": identity,
}


def as_activation(activation: str | Activation) -> Activation:
    """An activation by its name ("leaky_relu" has slope 0.01), or the object itself."""
    if isinstance(activation, Activation):
        return activation
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        names = ", ".join(ACTIVATIONS)
        raise fail("activation", f"one of {names}", repr(activation), "choose one, or leaky_relu(slope)")
    return ACTIVATIONS[activation]
