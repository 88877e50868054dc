"""Products with the curvature of a head that is never formed: H V = Σ_j x_j (W_j (x_jᵀ V)) + λV, and Aᵀ Ω with H = AᵀA.

Vectors are (D, k, s): D the width of the design matrix (padded where the matrix units want it), k the outputs that are
told apart (one where all share a curvature), s columns. Softmax vectors sum to zero over the outputs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch

from giveaway.curvature.losses import Softmax, Squared, loss_of
from giveaway.curvature.output_curvature import OutputCurvature
from giveaway.linalg.precision import Precision
from giveaway.linalg.probes import signs
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head
from giveaway.records.rows import Window

ALIGNED = 8  # numbers in a row, on a GPU
HOST_BYTES, GPU_BYTES = 8_000_000, 2_200_000_000  # of one array between two products
LEAST_ROWS, MOST_ROWS = 128, 16_384
FUSED_FROM = 1e8  # records × outputs on a GPU, from which compiling pays


class HeadProducts:
    """Products with H of `head` at penalty `l2`, summed over all `processes`."""

    def __init__(
        self, head: Head, l2: float, *, processes: Processes = ALONE, on_rows: Callable[[int], Any] = lambda n: None
    ):
        self.head, self.l2, self.processes, self.on_rows = head, l2, processes, on_rows
        self.loss = loss_of(head)
        self.k = 1 if isinstance(self.loss, Squared) else head.m
        on_gpu = head.device.type == "cuda"
        self.width = -(-head.width // ALIGNED) * ALIGNED if on_gpu else head.width
        self._bytes = GPU_BYTES if on_gpu else HOST_BYTES
        # what torch compiles for a GPU goes through a C compiler; the report says whether there was one
        compiles = "CC" in os.environ or any(shutil.which(name) for name in ("gcc", "clang"))
        fused = on_gpu and compiles and float(head.n) * self.k >= FUSED_FROM
        self.curvature = OutputCurvature(self.loss, fused_rows=MOST_ROWS if fused else None)
        self.penalty = torch.full((self.width, 1, 1), l2, dtype=torch.float64, device=head.device)
        self.penalty[head.width :] = 0.0
        if head.intercept and not head.penalize_intercept:
            self.penalty[head.width - 1] = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """Of a vector."""
        return self.width, self.k

    def as_vectors(self, parameters: torch.Tensor) -> torch.Tensor:
        """Parameters (d, m) as one vector, or as m where outputs share a curvature."""
        padded = torch.nn.functional.pad(parameters, (0, 0, 0, self.width - len(parameters)))
        return padded.unsqueeze(1 if isinstance(self.loss, Squared) else 2)

    def as_parameters(self, vectors: torch.Tensor) -> torch.Tensor:
        """The way back."""
        return vectors.squeeze(1 if isinstance(self.loss, Squared) else 2)[: self.head.width]

    def slices(self, columns: int) -> list[slice]:
        """This process's records, in consecutive pieces for products of so many columns."""
        rows = self._bytes // (4 * self.k * columns)
        rows = max(LEAST_ROWS, min(MOST_ROWS, 1 << max(rows, 1).bit_length() - 1))
        return self.processes.share(list(self.head.slices(rows)))

    def windows(self, columns: int) -> Iterator[Window]:
        """The same, read."""
        return map(self.head.window, self.slices(columns))

    def apply(self, v: torch.Tensor, precision: Precision) -> torch.Tensor:
        """H v."""
        s = v.shape[2]
        total = torch.zeros(self.width, self.k * s, dtype=precision.dtype, device=v.device)
        factor = precision.parts(v.reshape(self.width, -1))
        for window in self.windows(s):
            x = precision.parts(window.rows(precision.dtype, self.width))
            u = precision.product(x, factor).view(len(window), self.k, s)
            curved = self.curvature.curve(u, window, precision)
            precision.add_product(total, tuple(part.T for part in x), curved)
            self.on_rows(len(window))
        self.processes.sum_(total)
        return self.project_(total.view_as(v)).addcmul_(v, self.penalty.to(v.dtype))

    def draw(self, seed: int, probes: slice, precision: Precision) -> torch.Tensor:
        """Aᵀ Ω for the signs Ω of these probes."""
        s = probes.stop - probes.start
        total = torch.zeros(self.width, self.k * s, dtype=precision.dtype, device=self.head.device)
        for window in self.windows(s):
            x = precision.parts(window.rows(precision.dtype, self.width))
            drawn = self.curvature.draw(seed, window, self.k, probes, precision)
            precision.add_product(total, tuple(part.T for part in x), drawn)
            self.on_rows(len(window))
        self.processes.sum_(total)
        # the penalty's own signs come after those of the records
        features = torch.arange(self.head.n, self.head.n + self.width, device=self.head.device)
        penalty = signs(seed, features, self.k, probes, dtype=precision.dtype) * self.penalty.sqrt().to(precision.dtype)
        return self.project_(total.view(self.width, self.k, s) + penalty)

    def project_(self, v: torch.Tensor) -> torch.Tensor:
        """Take from v what softmax does not see: rounding puts some of it there."""
        return v.sub_(v.mean(1, keepdim=True)) if isinstance(self.loss, Softmax) else v
