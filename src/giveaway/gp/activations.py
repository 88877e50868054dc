"""Activations φ by name, and what they do to a pair of Gaussian pre-activations (docs/derivations.md)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from giveaway.checks import check_number, fail

Order = tuple[int, int]


class Activation(ABC):
    """An activation φ and its dual for tensors that broadcast, differentiable once in all three arguments."""

    name: str

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Return φ(x), entry by entry."""

    @abstractmethod
    def moment(self, order: Order, qx: Tensor, qz: Tensor, c: Tensor) -> Tensor:
        """Return E[φ⁽ʲ⁾(u)φ⁽ᵏ⁾(v)] for orders (0, 0), (1, 1) and (2, 0), a new tensor; it is not differentiable."""

    def prepared(self, q: Tensor) -> tuple[Tensor, ...]:
        """Return what `of_pairs` wants to know of variances: it is the same for all pairs of a record."""
        return (q,)

    def of_pairs(self, left: Sequence[Tensor], right: Sequence[Tensor], c: Tensor) -> Tensor:
        """Return the moment of order (0, 0), from prepared variances."""
        return self.moment((0, 0), left[0], right[0], c)

    def dual(self, qx: Tensor, qz: Tensor, c: Tensor) -> Tensor:
        """Return E[φ(u)φ(v)]."""
        if not torch.is_grad_enabled():
            return self.moment((0, 0), qx, qz, c)
        return _Expected.apply(self, qx, qz, c)

    def __repr__(self) -> str:
        return self.name


class _Expected(torch.autograd.Function):
    """E[φ(u)φ(v)] of (qx, qz, c); its derivative in c is that of orders (1, 1), in qx half of that of orders (2, 0)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(phi: Activation, *given: Tensor) -> Tensor:
        return phi.moment((0, 0), *given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.phi, *given = inputs
        ctx.save_for_backward(*given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qx, qz, c = ctx.saved_tensors
        moment = ctx.phi.moment
        _, need_x, need_z, need_c = ctx.needs_input_grad
        by_x = (grad * moment((2, 0), qx, qz, c) / 2).sum_to_size(qx.shape) if need_x else None
        by_z = (grad * moment((2, 0), qz, qx, c) / 2).sum_to_size(qz.shape) if need_z else None
        by_c = (grad * moment((1, 1), qx, qz, c)).sum_to_size(c.shape) if need_c else None
        return None, by_x, by_z, by_c


class _Rectifier(Activation):
    """x for x > 0 and slope·x below, the identity at slope 1: slope·c plus (1 − slope)² times arc-cosine kernels."""

    def __init__(self, slope: float, name: str) -> None:
        self.slope, self.name = slope, name
        self._bend = (1.0 - slope) ** 2 / math.tau

    def __call__(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, self.slope * x)

    def prepared(self, q: Tensor) -> tuple[Tensor, ...]:
        return inverse_root(q), q.sqrt()

    def of_pairs(self, left: Sequence[Tensor], right: Sequence[Tensor], c: Tensor) -> Tensor:
        (inverse_x, root_x), (inverse_z, root_z) = left, right
        rho = (c * inverse_x).mul_(inverse_z).clamp_(-1.0, 1.0)
        sine = torch.addcmul(rho.new_ones(()), rho, rho, value=-1.0).sqrt_()
        result = torch.addcmul(sine, rho, rho.neg().acos_()).mul_(root_x * self._bend).mul_(root_z)
        return result.add_(c, alpha=self.slope) if self.slope else result

    def moment(self, order: Order, qx: Tensor, qz: Tensor, c: Tensor) -> Tensor:
        if order == (0, 0):
            c = c.expand(torch.broadcast_shapes(qx.shape, qz.shape, c.shape))
            return self.of_pairs(self.prepared(qx), self.prepared(qz), c)
        sine = (qx * qz - c * c).clamp_min_(0.0).sqrt_()
        if order == (2, 0):
            return quotient(sine, qx).mul_(self._bend)
        # unlike the arc cosine of a rounded correlation this is exact where qx = qz = c
        return torch.atan2(sine, 0.0 - c).mul_(self._bend).add_(self.slope)


class _ErfMixture(Activation):
    """Σ_k w_k erf(s_k x): a double sum of arcsines, one term for a pair of scales."""

    def __init__(self, name: str, function: Callable[[Tensor], Tensor], scales: Any, weights: Any) -> None:
        self.name, self._function = name, function
        self._terms = [(float(s), float(w)) for s, w in zip(scales, weights, strict=True)]

    def __call__(self, x: Tensor) -> Tensor:
        return self._function(x)

    def moment(self, order: Order, qx: Tensor, qz: Tensor, c: Tensor) -> Tensor:
        c = within_bounds(qx, qz, c)
        if order == (0, 0):
            right = [(w, t / (0.5 + t * t * qz).sqrt_()) for t, w in self._terms]
            total = torch.zeros_like(c)
            for s, w in self._terms:
                left = c * (s / (0.5 + s * s * qx).sqrt_())
                for weight, factor in right:
                    total.add_((left * factor).asin_(), alpha=w * weight)
            return total.mul_(2.0 / math.pi)
        determinant = (qx * qz - c * c).clamp_min(0.0)
        total = torch.zeros_like(determinant)
        for s, weight in self._terms:
            p = 1.0 + 2 * s * s * qx
            for t, other in self._terms:
                term = ((2 * s * t) ** 2 * determinant + (p + 2 * t * t * qz)).rsqrt()
                if order == (2, 0):
                    term = -2 * s * s * c / p * term
                total = total + (4 * s * t / math.pi * weight * other) * term
        return total


class _Gelu(Activation):
    """x Φ(x), by closed forms in D = (1+qx)(1+qz) − c²."""

    name = "gelu"

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x)

    def moment(self, order: Order, qx: Tensor, qz: Tensor, c: Tensor) -> Tensor:
        c = within_bounds(qx, qz, c)
        d = (qx * qz - c * c).clamp_min(0.0) + (1.0 + qx + qz)  # ≥ 1, without cancellation
        root = d.sqrt()
        if order == (2, 0):
            omega, k, s2 = qx / (1.0 + qx), c / (1.0 + qx), qz - c * c / (1.0 + qx)
            return (s2 * (2.0 - omega) - k * k * (1.0 + (1.0 + qx) / d)) / (math.tau * root)
        p = (1.0 + qx) * (1.0 + qz)
        if order == (1, 1):
            rest = c * (d * (2.0 + qx + qz) + p) / (p * d * root)
            return (torch.atan2(c, root) + rest).div_(math.tau).add_(0.25)
        angle = torch.atan2(c, root).add_(math.pi / 2).mul_(c)
        return (qx * qz * d).addcmul_(c, c).div_(p * root).add_(angle).div_(math.tau)


def _tanh() -> Activation:
    """Write tanh as a mixture of erf's: tanh(x) = E[erf(x/(√2 k))], k of Kolmogorov's distribution, since the logistic
    distribution is a normal one of random scale k. The density of log k falls off faster than any exponential on both
    sides, so that the trapezoidal rule in log k errs by less than 1e-12 for every x at once."""
    k = np.geomspace(0.22, 3.5, 20)
    j = np.arange(1, 12)[:, None]
    density = 8 * k * ((-1.0) ** (j + 1) * j**2 * np.exp(-2 * j**2 * k**2)).sum(0)
    # the series above cancels for small k; its theta-function twin does not
    odd = (2 * j - 1) ** 2 * np.pi**2 / 8
    twin = np.sqrt(2 * np.pi) * (np.exp(-odd / k**2) * (2 * odd / k**4 - 1 / k**2)).sum(0)
    weights = np.where(k < 1, twin, density) * k * np.log(k[1] / k[0])
    return _ErfMixture("tanh", torch.tanh, 1 / (np.sqrt(2) * k), weights)


def leaky_relu(slope: float = 0.01) -> Activation:
    """Make the activation that is x for x > 0 and slope·x below."""
    slope = check_number("slope", slope, minimum=-math.inf, remedy="give the factor of negative inputs")
    return _Rectifier(slope, f"leaky_relu({slope:g})")


ACTIVATIONS: dict[str, Activation] = {
    "relu": _Rectifier(0.0, "relu"),
    "leaky_relu": leaky_relu(),
    "erf": _ErfMixture("erf", torch.erf, [1.0], [1.0]),
    "gelu": _Gelu(),
    "tanh": _tanh(),
    "identity": _Rectifier(1.0, "identity"),
}


def as_activation(activation: str | Activation) -> Activation:
    """Look an activation up by its name ("leaky_relu" has slope 0.01); an Activation is returned as it is."""
    if isinstance(activation, Activation):
        return activation
    if activation in ACTIVATIONS:
        return ACTIVATIONS[activation]
    raise fail("activation", f"one of {', '.join(ACTIVATIONS)}", repr(activation), "choose one, or leaky_relu(slope)")


def square_root(x: Tensor) -> Tensor:
    """Return √x, and 0 with gradient 0 where x ≤ 0."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


def quotient(x: Tensor, y: Tensor) -> Tensor:
    """Return x/y, and 0 where y is 0."""
    there = y != 0
    return torch.where(there, x / torch.where(there, y, 1.0), 0.0)


def inverse_root(x: Tensor) -> Tensor:
    """Return 1/√x, and 0 with gradient 0 where x ≤ 0."""
    return quotient(torch.ones_like(x), square_root(x))


def within_bounds(qx: Tensor, qz: Tensor, c: Tensor) -> Tensor:
    """Cut c to ±√(qx qz), broadcast."""
    bound = (qx * qz).sqrt()
    return torch.minimum(torch.maximum(c, -bound), bound)
