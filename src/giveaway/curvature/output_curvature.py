"""W_j, the curvature of a record's loss in its outputs, and its root S_j, on many columns at once.

On a GPU these passes over memory would cost half as much as the products beside them; large work compiles each into
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from giveaway.curvature.losses import Logistic, Loss, Softmax, Squared
from giveaway.linalg.precision import Parts, Precision
from giveaway.linalg.probes import signs
from giveaway.records.rows import Window

CACHED = 1 << 20  # numbers of an array that a CPU passes over many times


def diagonal_curvature(loss: Loss, window: Window) -> torch.Tensor:
    """The diagonal of W in float64, (rows, k): of softmax too, where it is not all of W."""
    f = window.outputs.to(torch.float64)
    if isinstance(loss, Softmax):
        p = torch.softmax(f, 1)
        return p * loss.complement(p)
    assert isinstance(loss, (Squared, Logistic))
    return loss.weights(f[:, :1] if isinstance(loss, Squared) else f)


class OutputCurvature:
    """s_j W_j and its root, of a head's records; windows of `fused_rows` records go through compiled passes."""

    def __init__(self, loss: Loss, *, fused_rows: int | None) -> None:
        self._loss = loss
        self.fused_rows = fused_rows if isinstance(loss, Softmax) else None
        self._fused: dict[Callable[..., Any], Callable[..., Any]] = {}

    def curve(self, u: torch.Tensor, window: Window, precision: Precision) -> Parts:
        """s_j W_j u_j for u (rows, k, s), as (rows, k·s) factors of `precision`; u is overwritten."""
        if not isinstance(self._loss, Softmax):
            weight = diagonal_curvature(self._loss, window) * window.weights.unsqueeze(1)
            return precision.parts(u.mul_(weight.to(u.dtype).unsqueeze(2)).flatten(1))
        p, weight = self._probabilities(window, precision)
        if precision.name in ("bf16", "bf16x3"):
            curved = self._quick(_curve_in_halves if precision.name == "bf16x3" else _curve_bf16, window)
            return tuple(part.flatten(1) for part in curved(u, p, weight))
        u -= u.gather(1, _top(p, u))
        u -= torch.bmm(p.unsqueeze(1), u)
        return precision.parts(u.mul_((p * weight).unsqueeze(2)).flatten(1))

    def draw(self, seed: int, window: Window, k: int, probes: slice, precision: Precision) -> Parts:
        """S_j ω_j with S Sᵀ = s_j W_j and the signs ω of these probes, as (rows, k·s) factors of `precision`."""
        s = probes.stop - probes.start
        rows = max(1, CACHED // (k * s))
        if window.numbers.is_cuda or len(window) <= rows:
            return precision.parts(self._draw(seed, window, k, probes, precision).flatten(1))
        drawn = torch.empty(len(window), k * s, dtype=precision.dtype)
        for start in range(0, len(window), rows):
            part = slice(start, start + rows)
            drawn[part] = self._draw(seed, window.part(part), k, probes, precision).flatten(1)
        return precision.parts(drawn)

    def _draw(self, seed: int, window: Window, k: int, probes: slice, precision: Precision) -> torch.Tensor:
        numbers = window.numbers
        if isinstance(self._loss, Softmax):
            p, weight = self._probabilities(window, precision)
            return self._quick(_draw_softmax, window)(seed, numbers, probes.start, probes.stop, p, weight)
        root = (diagonal_curvature(self._loss, window) * window.weights.unsqueeze(1)).sqrt().unsqueeze(2)
        return signs(seed, numbers, k, probes, dtype=precision.dtype) * root.to(precision.dtype)

    def _probabilities(self, window: Window, precision: Precision) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(window.outputs.to(precision.dtype), 1), window.weights.to(precision.dtype).unsqueeze(1)

    def _quick(self, plain: Callable[..., Any], window: Window) -> Callable[..., Any]:
        """Compiled, for windows of the usual size: every other size would be compiled anew."""
        if len(window) != self.fused_rows:
            return plain
        if plain not in self._fused:
            self._fused[plain] = torch.compile(plain, dynamic=False)
        return self._fused[plain]


def _top(p: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Where u (rows, k, s) is of the most probable class. Contrasts to it keep the digits of records that the head is
    sure of, which a difference of 1 − p would lose."""
    return p.argmax(1)[:, None, None].expand(-1, 1, u.shape[2])


def _curve_bf16(u: torch.Tensor, p: torch.Tensor, weight: torch.Tensor) -> Parts:
    wide = u.float() - u.gather(1, _top(p, u)).float()
    mean = (p.unsqueeze(2) * wide).sum(1, keepdim=True)
    return (((p * weight).unsqueeze(2) * (wide - mean)).to(torch.bfloat16),)


def _curve_in_halves(u: torch.Tensor, p: torch.Tensor, weight: torch.Tensor) -> Parts:
    wide = u - u.gather(1, _top(p, u))
    mean = (p.unsqueeze(2) * wide).sum(1, keepdim=True)
    curved = (p * weight).unsqueeze(2) * (wide - mean)
    high = curved.to(torch.bfloat16)
    return high, (curved - high.float()).to(torch.bfloat16)


def _draw_softmax(
    seed: int, numbers: torch.Tensor, start: int, stop: int, p: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    drawn = signs(seed, numbers, p.shape[1], slice(start, stop), dtype=p.dtype) * p.sqrt().unsqueeze(2)
    # ω√p − p Σ ω√p, with 1 − p of the most probable class as the sum of the others
    top = torch.nn.functional.one_hot(p.argmax(1), p.shape[1]).to(p.dtype).unsqueeze(2)
    own, others = (drawn * top).sum(1, keepdim=True), (drawn * (1 - top)).sum(1, keepdim=True)
    rest = (p.unsqueeze(2) * (1 - top)).sum(1, keepdim=True)
    p = p.unsqueeze(2)
    rooted = torch.where(top > 0, own * rest - p * others, drawn - p * (own + others))
    return rooted * weight.sqrt().unsqueeze(2)
