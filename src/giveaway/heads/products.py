"""Products with the curvature of a head that is never formed: H V = Σ_j x_j (W_j (x_jᵀ V)) + λV, and Aᵀ Ω with H = AᵀA.

Vectors are (D, k, s): D the width of the design matrix (padded where the matrix units want it), k the outputs that are
told apart (one where all share a curvature), s columns. Softmax vectors sum to zero over the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from giveaway.heads.losses import Logistic, Loss, Softmax, Squared, loss_of
from giveaway.linalg.precision import Precision
from giveaway.linalg.probes import signs
from giveaway.linalg.team import ALONE, Team
from giveaway.records import Head
from giveaway.records.window import Window

ALIGNED = 8  # numbers in a row, on a GPU
HOST_BYTES, GPU_BYTES = 32_000_000, 1_200_000_000  # of one array between two products
LEAST_ROWS, MOST_ROWS = 32, 16_384


class HeadProducts:
    """Products with H of `head` at penalty `l2`, summed over the processes of `team`."""

    def __init__(self, head: Head, l2: float, *, team: Team = ALONE, on_rows: Callable[[int], Any] = lambda n: None):
        self.head, self.l2, self.team, self.on_rows = head, l2, team, on_rows
        self.loss = loss_of(head)
        self.k = 1 if isinstance(self.loss, Squared) else head.m
        on_gpu = head.device.type == "cuda"
        self.width = -(-head.width // ALIGNED) * ALIGNED if on_gpu else head.width
        self._bytes = GPU_BYTES if on_gpu else HOST_BYTES
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

    def windows(self, columns: int) -> Iterator[Window]:
        """This process's records, in windows for products of so many columns."""
        rows = self._bytes // (4 * self.k * columns)
        rows = max(LEAST_ROWS, min(MOST_ROWS, 1 << max(rows, 1).bit_length() - 1))
        for part in self.team.share(list(self.head.slices(rows))):
            yield self.head.window(part)

    def apply(self, v: torch.Tensor, precision: Precision) -> torch.Tensor:
        """H v."""
        s = v.shape[2]
        flat = v.reshape(self.width, -1)
        total = torch.zeros(flat.shape, dtype=precision.kept, device=v.device)
        factor = flat.to(precision.factor)
        for window in self.windows(s):
            x = window.rows(precision.factor, self.width)
            u = precision.product(x, factor).view(len(x), self.k, s)
            self._curve(u, window)
            precision.add_product(total, x.T, u.view(len(x), -1))
            self.on_rows(len(x))
        self.team.sum_(total)
        return total.view_as(v).addcmul_(v, self.penalty.to(v.dtype))

    def draw(self, seed: int, probes: slice, precision: Precision) -> torch.Tensor:
        """Aᵀ Ω for the signs Ω of these probes."""
        s = probes.stop - probes.start
        total = torch.zeros(self.width, self.k * s, dtype=precision.kept, device=self.head.device)
        for window in self.windows(s):
            u = self.root(signs(seed, window.numbers, self.k, probes, dtype=precision.kept), window)
            precision.add_product(total, window.rows(precision.factor, self.width).T, u.view(len(window), -1))
            self.on_rows(len(window))
        self.team.sum_(total)
        # the penalty's own signs come after those of the records
        features = torch.arange(self.head.n, self.head.n + self.width, device=self.head.device)
        penalty = signs(seed, features, self.k, probes, dtype=precision.kept) * self.penalty.sqrt().to(precision.kept)
        return total.view(self.width, self.k, s) + self.projected(penalty)

    def root(self, u: torch.Tensor, window: Window) -> torch.Tensor:
        """S_j u_j with S Sᵀ = W, for u (rows, k, s)."""
        weight = window.weights.sqrt().to(u.dtype)[:, None, None]
        if isinstance(self.loss, Softmax):
            p = self.probabilities(window, u.dtype).unsqueeze(2)
            root = p.sqrt()
            u = u * root
            return (u - p * u.sum(1, keepdim=True)).mul_(weight)
        return u * self.diagonal(window).sqrt().to(u.dtype).unsqueeze(2) * weight

    def projected(self, v: torch.Tensor) -> torch.Tensor:
        """v without what softmax does not see."""
        return v - v.mean(1, keepdim=True) if isinstance(self.loss, Softmax) else v

    def probabilities(self, window: Window, dtype: torch.dtype) -> torch.Tensor:
        """p (rows, m)."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return torch.softmax(window.outputs.to(wide), 1).to(dtype)

    def diagonal(self, window: Window) -> torch.Tensor:
        """The diagonal of W (rows, k), where it is one."""
        return output_curvature(self.loss, window)

    def _curve(self, u: torch.Tensor, window: Window) -> None:
        """u_j ← s_j W_j u_j in place, for u (rows, k, s)."""
        if isinstance(self.loss, Softmax):
            p = self.probabilities(window, u.dtype)
            u -= torch.bmm(p.unsqueeze(1), u)
            weighted = p if window.sample_weight is None else p * window.weights.to(u.dtype).unsqueeze(1)
            u *= weighted.unsqueeze(2)
        else:
            u *= (self.diagonal(window) * window.weights.unsqueeze(1)).to(u.dtype).unsqueeze(2)


def output_curvature(loss: Loss, window: Window) -> torch.Tensor:
    """The diagonal of W in float64, (rows, k): of softmax too, where it is not all of W."""
    f = window.outputs.to(torch.float64)
    if isinstance(loss, Softmax):
        p = torch.softmax(f, 1)
        return p * loss.complement(p)
    assert isinstance(loss, (Squared, Logistic))
    return loss.weights(f[:, :1] if isinstance(loss, Squared) else f)
