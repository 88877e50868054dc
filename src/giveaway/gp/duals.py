"""What an activation φ does to a pair of Gaussian pre-activations.

For (u, v) ~ N(0, [[qx, c], [c, qz]]) an activation answers the dual E[φ(u)φ(v)] and the dual of its derivative
E[φ'(u)φ'(v)]. Their own derivatives are again such expectations (Price's theorem):

    ∂/∂c E[f(u)g(v)] = E[f'(u)g'(v)],    ∂/∂qx E[f(u)g(v)] = ½ E[f''(u)g(v)],

so gradients are written out instead of traced through the formulas: they stay finite where u = ±v, where the formulas
themselves have square roots at zero. A covariance beyond ±√(qx qz) by rounding counts as lying on the bound. Where a
derivative has no limit (a kink met by a variance of zero, the step kernel at u = v) it is given as 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

Expectation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Activation(ABC):
    """φ with its duals; tensors of any shapes that broadcast, differentiable in all three arguments."""

    name: str

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """φ(x), entry by entry."""

    def dual(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """E[φ(u)φ(v)]."""
        result: torch.Tensor = _Expected.apply(self._dual, self._dual_by_variance, self.dual_derivative, qx, qz, c)
        return result

    def dual_derivative(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """E[φ'(u)φ'(v)]."""
        result: torch.Tensor = _Expected.apply(
            self._derivative, self._derivative_by_variance, self._derivative_by_covariance, qx, qz, c
        )
        return result

    @abstractmethod
    def _dual(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """E[φ(u)φ(v)] as a new tensor; never traced, so it may work in place on what it makes."""

    @abstractmethod
    def _derivative(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """E[φ'(u)φ'(v)] as a new tensor; never traced either."""

    @abstractmethod
    def _dual_by_variance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """½ E[φ''(u)φ(v)]."""

    @abstractmethod
    def _derivative_by_covariance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """E[φ''(u)φ''(v)]."""

    @abstractmethod
    def _derivative_by_variance(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """½ E[φ'''(u)φ'(v)]."""

    def __repr__(self) -> str:
        return self.name


class _Expected(torch.autograd.Function):
    """An expectation of (qx, qz, c), with its derivatives in qx and in c (that in qz is the first with u and v
    swapped)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        value: Expectation,
        by_variance: Expectation,
        by_covariance: Expectation,
        qx: torch.Tensor,
        qz: torch.Tensor,
        c: torch.Tensor,
    ) -> torch.Tensor:
        return value(qx, qz, c)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, ctx.by_variance, ctx.by_covariance, *given = inputs
        ctx.save_for_backward(*given)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        qx, qz, c = ctx.saved_tensors
        *_, need_x, need_z, need_c = ctx.needs_input_grad
        return (
            None,
            None,
            None,
            (grad * ctx.by_variance(qx, qz, c)).sum_to_size(qx.shape) if need_x else None,
            (grad * ctx.by_variance(qz, qx, c)).sum_to_size(qz.shape) if need_z else None,
            (grad * ctx.by_covariance(qx, qz, c)).sum_to_size(c.shape) if need_c else None,
        )


def square_root(x: torch.Tensor) -> torch.Tensor:
    """√x, 0 with gradient 0 where x ≤ 0."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


def quotient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x/y, 0 where y is 0."""
    there = y != 0
    return torch.where(there, x / torch.where(there, y, 1.0), 0.0)


def correlation(qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """c/√(qx qz) within ±1 as a new tensor, 0 where a variance is 0; not traced."""
    c = c.expand(torch.broadcast_shapes(qx.shape, qz.shape, c.shape))
    scales = [torch.where(q > 0, q.rsqrt(), 0.0) for q in (qx, qz)]
    return (c * scales[0]).mul_(scales[1]).clamp_(-1.0, 1.0)


def within_bounds(qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """c within ±√(qx qz), broadcast; its gradient passes as if nothing had been cut."""
    bound = (qx * qz).sqrt().detach()
    cut = torch.minimum(torch.maximum(c.detach(), -bound), bound)
    return cut + (c - c.detach()) if c.requires_grad else cut
