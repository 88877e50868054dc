"""W_j, the curvature of a record's loss in its outputs, on many columns at once.

On a GPU these passes over memory would cost half as much as the products beside them; large work compiles them into
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from giveaway.heads.losses import Logistic, Loss, Softmax, Squared
from giveaway.linalg.precision import Parts, Precision
from giveaway.records.window import Window


def diagonal_curvature(loss: Loss, window: Window) -> torch.Tensor:
    """The diagonal of W in float64, (rows, k): of softmax too, where it is not all of W."""
    f = window.outputs.to(torch.float64)
    if isinstance(loss, Softmax):
        p = torch.softmax(f, 1)
        return p * loss.complement(p)
    assert isinstance(loss, (Squared, Logistic))
    return loss.weights(f[:, :1] if isinstance(loss, Squared) else f)


class OutputCurvature:
    """s_j W_j of a head's records; `fused` compiles it, where a compiler is there."""

    def __init__(self, loss: Loss, *, fused: bool) -> None:
        self._loss = loss
        self._softmax: dict[str, Callable[..., Any]] = {"bf16": _curve_softmax, "bf16x3": _curve_softmax_in_halves}
        self.fused = fused and isinstance(loss, Softmax)
        if self.fused:
            self._softmax = {name: torch.compile(plain, dynamic=True) for name, plain in self._softmax.items()}

    def __call__(self, u: torch.Tensor, window: Window, precision: Precision) -> Parts:
        """s_j W_j u_j for u (rows, k, s), as (rows, k·s) factors of `precision`; u is overwritten."""
        if not isinstance(self._loss, Softmax):
            weight = diagonal_curvature(self._loss, window) * window.weights.unsqueeze(1)
            return precision.parts(u.mul_(weight.to(u.dtype).unsqueeze(2)).flatten(1))
        wide = torch.float64 if u.dtype == torch.float64 else torch.float32
        p = torch.softmax(window.outputs.to(wide), 1)
        weighted = p if window.sample_weight is None else p * window.weights.to(wide).unsqueeze(1)
        if precision.name in self._softmax:
            return tuple(part.flatten(1) for part in self._softmax[precision.name](u, p, weighted))
        u -= torch.bmm(p.unsqueeze(1), u)
        return precision.parts(u.mul_(weighted.unsqueeze(2)).flatten(1))


def _curve_softmax(u: torch.Tensor, p: torch.Tensor, weighted: torch.Tensor) -> Parts:
    wide = u.float()
    mean = (p.unsqueeze(2) * wide).sum(1, keepdim=True)
    return ((weighted.unsqueeze(2) * (wide - mean)).to(torch.bfloat16),)


def _curve_softmax_in_halves(u: torch.Tensor, p: torch.Tensor, weighted: torch.Tensor) -> Parts:
    mean = (p.unsqueeze(2) * u).sum(1, keepdim=True)
    curved = weighted.unsqueeze(2) * (u - mean)
    high = curved.to(torch.bfloat16)
    return high, (curved - high.float()).to(torch.bfloat16)
