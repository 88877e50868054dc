"""Products with the curvature of a head that is never formed: H V = Σ_j x_j (W_j (x_jᵀ V)) + λV, and Aᵀ Ω with H = AᵀA.

Vectors are (D, k, s): D the width of the design matrix (padded where the matrix units want it), k the outputs that are
told apart (one where all share a curvature), s columns. Softmax vectors sum to zero over the outputs. On a GPU the
passes over memory between two matrix products would cost half as much as the products; large work compiles each pass.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch

from giveaway.curvature.losses import loss_of
from giveaway.curvature.output_curvature import SoftmaxCurvature
from giveaway.linalg.precision import Parts, Precision
from giveaway.linalg.probes import signs
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head
from giveaway.records.head import Window

ALIGNED = 8  # numbers in a row, on a GPU
HOST_BYTES, GPU_BYTES = 8_000_000, 2_200_000_000  # of one array between two products
LEAST_ROWS, MOST_ROWS = 128, 16_384
FUSED_FROM = 1e8  # records × outputs on a GPU, from which compiling pays
CACHED = 1 << 20  # numbers of an array that a CPU passes over many times


class HeadProducts:
    """Products with H of `head` at penalty `l2`, summed over the processes of `processes`.

    Softmax windows of `fused_rows` records go through compiled passes.
    """

    def __init__(
        self, head: Head, l2: float, *, processes: Processes = ALONE, on_rows: Callable[[int], Any] = lambda n: None
    ):
        self.head, self.l2, self.processes, self.on_rows = head, l2, processes, on_rows
        self.loss = loss_of(head)
        self.k = 1 if self.loss.shared else head.m
        on_gpu = head.device.type == "cuda"
        self.width = -(-head.width // ALIGNED) * ALIGNED if on_gpu else head.width
        self._bytes = GPU_BYTES if on_gpu else HOST_BYTES
        # what torch compiles for a GPU goes through a C compiler; the report says whether there was one
        compiles = "CC" in os.environ or any(shutil.which(name) for name in ("gcc", "clang"))
        large = on_gpu and compiles and float(head.n) * self.k >= FUSED_FROM
        self.fused_rows = MOST_ROWS if large and self.loss.coupled else None
        self._fused: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.penalty = torch.full((self.width, 1, 1), l2, dtype=torch.float64, device=head.device)
        self.penalty[head.width :] = 0.0
        if head.intercept and not head.penalize_intercept:
            self.penalty[head.width - 1] = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (D, k) of a vector."""
        return self.width, self.k

    def as_vectors(self, parameters: torch.Tensor) -> torch.Tensor:
        """Lay out parameters (d, m) as one vector, or as m vectors where outputs share a curvature."""
        padded = torch.nn.functional.pad(parameters, (0, 0, 0, self.width - len(parameters)))
        return padded.unsqueeze(1 if self.loss.shared else 2)

    def as_parameters(self, vectors: torch.Tensor) -> torch.Tensor:
        """Undo `as_vectors`."""
        return vectors.squeeze(1 if self.loss.shared else 2)[: self.head.width]

    def slices(self, columns: int) -> list[slice]:
        """This process's records, in consecutive pieces for products of so many columns."""
        rows = self._bytes // (4 * self.k * columns)
        rows = max(LEAST_ROWS, min(MOST_ROWS, 1 << max(rows, 1).bit_length() - 1))
        return self.processes.share(list(self.head.slices(rows)))

    def windows(self, columns: int) -> Iterator[Window]:
        """Read those pieces one after the other."""
        return map(self.head.window, self.slices(columns))

    def apply(self, v: torch.Tensor, precision: Precision) -> torch.Tensor:
        """H v."""
        s = v.shape[2]
        total = torch.zeros(self.width, self.k * s, dtype=precision.dtype, device=v.device)
        factor = precision.parts(v.reshape(self.width, -1))
        for window in self.windows(s):
            x = precision.parts(window.rows(precision.dtype, self.width))
            u = precision.product(x, factor).view(len(window), self.k, s)
            precision.add_product(total, tuple(part.T for part in x), self._curve(u, window, precision))
            self.on_rows(len(window))
        self.processes.sum_(total)
        return self.project_(total.view_as(v)).addcmul_(v, self.penalty.to(v.dtype))

    def draw(self, seed: int, probes: slice, precision: Precision) -> torch.Tensor:
        """Aᵀ Ω for the signs Ω of these probes."""
        s = probes.stop - probes.start
        total = torch.zeros(self.width, self.k * s, dtype=precision.dtype, device=self.head.device)
        for window in self.windows(s):
            x = precision.parts(window.rows(precision.dtype, self.width))
            rooted = self._rooted_signs(seed, window, probes, precision)
            precision.add_product(total, tuple(part.T for part in x), rooted)
            self.on_rows(len(window))
        self.processes.sum_(total)
        # the penalty's own signs come after those of the records
        features = torch.arange(self.head.n, self.head.n + self.width, device=self.head.device)
        penalty = signs(seed, features, self.k, probes, dtype=precision.dtype) * self.penalty.sqrt().to(precision.dtype)
        return self.project_(total.view(self.width, self.k, s) + penalty)

    def project_(self, v: torch.Tensor) -> torch.Tensor:
        """Take from vectors v, in place, what softmax does not see: rounding puts some of it there."""
        return v.sub_(v.mean(1, keepdim=True)) if self.loss.coupled else v

    def diagonal(self, window: Window) -> torch.Tensor:
        """The diagonal of s_j W_j in float64, (rows, k); for softmax it is not all of W."""
        return self.loss.diagonal(window.outputs[:, : self.k].to(torch.float64)) * window.weights.unsqueeze(1)

    def _curve(self, u: torch.Tensor, window: Window, precision: Precision) -> Parts:
        """s_j W_j u_j for u (rows, k, s), as (rows, k·s) factors of `precision`; u is overwritten."""
        if not self.loss.coupled:
            return precision.parts(u.mul_(self.diagonal(window).to(u.dtype).unsqueeze(2)).flatten(1))
        p, weight = self._probabilities(window, precision)
        if precision.name in ("bf16", "bf16x3"):
            curved = self._compiled(_curve_in_halves if precision.name == "bf16x3" else _curve_bf16, window)
            return tuple(part.flatten(1) for part in curved(u, p, weight))
        u -= u.gather(1, p.argmax(1)[:, None, None].expand(-1, 1, u.shape[2]))
        u -= torch.bmm(p.unsqueeze(1), u)
        return precision.parts(u.mul_((p * weight).unsqueeze(2)).flatten(1))

    def _rooted_signs(self, seed: int, window: Window, probes: slice, precision: Precision) -> Parts:
        """S_j ω_j with S Sᵀ = s_j W_j and the signs ω of these probes, as (rows, k·s) factors of `precision`."""
        columns = self.k * (probes.stop - probes.start)
        rows = max(1, CACHED // columns)
        if window.numbers.is_cuda or len(window) <= rows:
            return precision.parts(self._rooted(seed, window, probes, precision).flatten(1))
        rooted = torch.empty(len(window), columns, dtype=precision.dtype)
        for start in range(0, len(window), rows):
            part = slice(start, start + rows)
            rooted[part] = self._rooted(seed, window.part(part), probes, precision).flatten(1)
        return precision.parts(rooted)

    def _rooted(self, seed: int, window: Window, probes: slice, precision: Precision) -> torch.Tensor:
        if self.loss.coupled:
            p, weight = self._probabilities(window, precision)
            return self._compiled(_root_softmax, window)(seed, window.numbers, probes.start, probes.stop, p, weight)
        root = self.diagonal(window).sqrt().to(precision.dtype).unsqueeze(2)
        return signs(seed, window.numbers, self.k, probes, dtype=precision.dtype) * root

    def _probabilities(self, window: Window, precision: Precision) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(window.outputs.to(precision.dtype), 1), window.weights.to(precision.dtype).unsqueeze(1)

    def _compiled(self, plain: Callable[..., Any], window: Window) -> Callable[..., Any]:
        """Compile a pass for windows of the usual size: every other size would be compiled anew."""
        if len(window) != self.fused_rows:
            return plain
        if plain not in self._fused:
            self._fused[plain] = torch.compile(plain, dynamic=False)
        return self._fused[plain]


def _curve_wide(u: torch.Tensor, p: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    softmax = SoftmaxCurvature(p.unsqueeze(2))
    return weight.unsqueeze(2) * softmax.curve(softmax.contrast(u.float(), -2), -2)


def _curve_bf16(u: torch.Tensor, p: torch.Tensor, weight: torch.Tensor) -> Parts:
    return (_curve_wide(u, p, weight).to(torch.bfloat16),)


def _curve_in_halves(u: torch.Tensor, p: torch.Tensor, weight: torch.Tensor) -> Parts:
    curved = _curve_wide(u, p, weight)
    high = curved.to(torch.bfloat16)
    return high, (curved - high.float()).to(torch.bfloat16)


def _root_softmax(
    seed: int, numbers: torch.Tensor, start: int, stop: int, p: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    omega = signs(seed, numbers, p.shape[1], slice(start, stop), dtype=p.dtype)
    return SoftmaxCurvature(p.unsqueeze(2)).root(omega, -2) * weight.sqrt().unsqueeze(2)
