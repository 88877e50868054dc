"""Exact dense curvature of a head in float64: H = Σ_j s_j x_j x_jᵀ ⊗ W_j + λI, inverted once, used for every record.

Sums and forms run over pairs of features times the numbers of W (linalg.accumulate). Features are divided by their
root mean square first, which makes the numerical rank independent of their units, and features that are zero
throughout are left out: both leave every score as it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch

from giveaway.checks import fail
from giveaway.heads.blocks import Blocks, SeparateBlocks, SoftmaxBlocks
from giveaway.heads.losses import Logistic, Loss, Softmax, Squared, loss_of, triangle
from giveaway.linalg.accumulate import PairTiles
from giveaway.linalg.solve import Inverse, invert
from giveaway.records import Head

ROWS = 4096


class DenseCurvature:
    """The curvature of `head` at its outputs. `with_l2` gives the same sums under another penalty."""

    def __init__(self, head: Head, on_rows: Callable[[int], Any] = lambda rows: None) -> None:
        self.loss = loss_of(head)
        self.scale, self.alive = _feature_scale(head)
        _check_memory(int(self.alive.sum()) * self.parameters_per_feature)
        self.sums = PairTiles(int(self.alive.sum()), self._pairs(), head.features.device)
        for part in head.slices(ROWS):
            v = self.loss.pair_weights(head.outputs[part].to(torch.float64))
            if head.sample_weight is not None:
                v = v * head.sample_weight[part, None]
            self.sums.add(self._scaled(head.rows(part)), v)
            on_rows(len(v))
        self.penalized = torch.ones(head.width, dtype=torch.float64, device=head.features.device)
        if head.intercept and not head.penalize_intercept:
            self.penalized[-1] = 0.0
        self._factor(head.l2)

    def with_l2(self, l2: float) -> DenseCurvature:
        """The same head, penalized by `l2`; the sums are shared."""
        other = object.__new__(DenseCurvature)
        other.__dict__.update({k: self.__dict__[k] for k in ("loss", "scale", "alive", "sums", "penalized")})
        other._factor(l2)
        return other

    @property
    def parameters_per_feature(self) -> int:
        """Rows of one matrix that is inverted, a feature."""
        return self.loss.degrees if isinstance(self.loss, Softmax) else 1

    @property
    def size(self) -> int:
        """P, the parameters of the head in the directions that matter."""
        return len(self.alive) * self.loss.degrees

    @property
    def report(self) -> dict[str, Any]:
        """What the metadata says of this curvature."""
        shared = self.loss.m if isinstance(self.loss, Squared) else 1
        return {
            "curvature": "dense",
            "parameters": self.size,
            "rank": shared * sum(inverse.rank for inverse in self.inverses),
            "rank_relative_cut": self.inverses[0].relative_cut,
            "inverse": "/".join(sorted({inverse.method for inverse in self.inverses})),
            "dead_features": int((~self.alive).sum()),
            "features_scaled_by_rms": True,
            "l2": self.l2,
        }

    def quadratics(self, x: torch.Tensor) -> torch.Tensor:
        """The numbers of B for groups x (N, s, d), as `blocks` takes them; best asked for many groups at once."""
        n, s, _ = x.shape
        scaled = self._scaled(x.reshape(n * s, -1))
        return self.forms.forms(scaled) if s == 1 else self._cross(scaled.view(n, s, -1))

    def blocks(self, quadratics: torch.Tensor, outputs: torch.Tensor, sample_weight: torch.Tensor) -> Blocks:
        """Leverage blocks of groups with these quadratics, outputs (N, s, m) and sample weights (N, s)."""
        n, s, _ = outputs.shape
        if isinstance(self.loss, Softmax):
            r = self.loss.degrees
            if s == 1:
                quadratics = quadratics[:, _unpacking(r, outputs.device)]
            return SoftmaxBlocks(quadratics.view(n, s, r, s, r), torch.softmax(outputs, -1), sample_weight)
        assert isinstance(self.loss, (Squared, Logistic))
        separate = quadratics.view(n, -1, s, s)
        return SeparateBlocks(separate, self.loss.weights(outputs), sample_weight, self.loss.sensitivity)

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """H⁻¹ v for v (d, m): a gradient of the summed loss with respect to θ; softmax needs rows that sum to zero."""
        scaled = (v / self.scale.unsqueeze(1))[self.alive]
        basis = self._basis()
        reduced = scaled if basis is None else scaled @ basis
        if basis is not None:
            solved = (self.inverses[0].full() @ reduced.reshape(-1)).view_as(reduced) @ basis.T
        elif len(self.inverses) == 1:
            solved = self.inverses[0].full() @ reduced
        else:
            solved = torch.stack([inverse.full() @ reduced[:, k] for k, inverse in enumerate(self.inverses)], 1)
        out = torch.zeros_like(v)
        out[self.alive] = solved
        return out / self.scale.unsqueeze(1)

    def _pairs(self) -> int:
        r = self.loss.degrees
        if isinstance(self.loss, Softmax):
            return r * (r + 1) // 2
        return 1 if isinstance(self.loss, Squared) else r

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        x = x / self.scale
        return x if bool(self.alive.all()) else x[:, self.alive]

    def _factor(self, l2: float) -> None:
        self.l2 = l2
        self.ridge = (l2 * self.penalized / self.scale.square())[self.alive]
        self.inverses: list[Inverse] = []
        self.forms = PairTiles(self.sums.d, self.sums.p, self.ridge.device)
        if isinstance(self.loss, Softmax):
            self.inverses.append(invert(self._assemble_softmax))
            self._read_softmax(self.inverses[0].upper)
        else:
            for k in range(self.sums.p):
                self.inverses.append(invert(lambda k=k: self._assemble_separate(k)))  # type: ignore[misc]
                self._read_separate(k, self.inverses[k].upper)

    def _assemble_separate(self, k: int) -> torch.Tensor:
        d = self.sums.d
        matrix = self.ridge.new_empty(d, d)
        for s, e, tile in self.sums:
            matrix[s:e, s:] = tile[:, :, k].T
        matrix.diagonal().add_(self.ridge)
        return matrix

    def _read_separate(self, k: int, upper: torch.Tensor) -> None:
        for s, e, tile in self.forms:
            part = upper[s:e, s:].triu()
            part.diagonal().mul_(0.5)
            tile[:, :, k] = 2.0 * part.T

    def _assemble_softmax(self) -> torch.Tensor:
        d, r = self.sums.d, self.loss.degrees
        contrast = self._contrast()
        unpack = _unpacking(r, self.ridge.device)
        matrix = self.ridge.new_empty(d * r, d * r)
        for s, e, tile in self.sums:
            squares = contrast.T @ tile[:, :, unpack].view(d - s, e - s, r, r) @ contrast
            matrix.view(d, r, d, r)[s:e, :, s:] = squares.permute(1, 2, 0, 3)
        matrix.diagonal().add_(self.ridge.repeat_interleave(r))
        return matrix

    def _read_softmax(self, upper: torch.Tensor) -> None:
        d, r = self.sums.d, self.loss.degrees
        contrast = self._contrast()
        rows, columns = triangle(r, upper.device)
        for s, e, tile in self.forms:
            part = upper[s * r : e * r, s * r :].triu()
            part.diagonal().mul_(0.5)
            folded = part.view(e - s, r, d - s, r).permute(2, 0, 1, 3)
            squares = contrast @ folded @ contrast.T
            tile[:] = (squares + squares.mT)[:, :, rows, columns]

    def _basis(self) -> torch.Tensor | None:
        if not isinstance(self.loss, Softmax):
            return None
        return helmert(self.loss.m).to(self.ridge.device)

    def _contrast(self) -> torch.Tensor:
        """T with (f_k − f_m)_k = T·(Helmert coordinates of f)."""
        basis = self._basis()
        assert basis is not None
        return basis[:-1] - basis[-1]

    def _cross(self, x: torch.Tensor) -> torch.Tensor:
        """B of whole groups x (N, s, d): softmax (N, s, r, s, r) in contrast to the last class, else (N, k, s, s)."""
        n, s, d = x.shape
        flat = x.reshape(n * s, d)
        if not isinstance(self.loss, Softmax):
            return torch.stack([(flat @ inverse.full()).view(n, s, d) @ x.mT for inverse in self.inverses], 1)
        r = self.loss.degrees
        contrast = self._contrast()
        half = (flat @ self.inverses[0].full().view(d, r * d * r)).view(n, s * r, d, r)
        both = torch.einsum("nqbl,njb->nqjl", half, x).view(n, s, r, s, r)
        return torch.einsum("ku,niujv,lv->nikjl", contrast, both, contrast)


def helmert(m: int) -> torch.Tensor:
    """Orthonormal basis (m, m − 1) of the vectors that sum to zero."""
    basis = torch.zeros(m, m - 1, dtype=torch.float64)
    for k in range(1, m):
        basis[:k, k - 1] = 1.0
        basis[k, k - 1] = -float(k)
        basis[:, k - 1] /= math.sqrt(k * (k + 1))
    return basis


def _unpacking(r: int, device: torch.device) -> torch.Tensor:
    """For each entry of an (r, r) symmetric matrix, its place in the packed upper triangle."""
    rows, columns = triangle(r, device)
    place = torch.empty(r, r, dtype=torch.int64, device=device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=device)
    return place.view(-1)


def _feature_scale(head: Head) -> tuple[torch.Tensor, torch.Tensor]:
    """Root mean square of every column of the design matrix (1 where it is zero throughout), and which are not."""
    total = torch.zeros(head.width, dtype=torch.float64, device=head.features.device)
    for part in head.slices(ROWS):
        total += head.rows(part).square().sum(0)
    alive = total > 0
    return torch.where(alive, (total / head.n).sqrt(), 1.0), alive


def _check_memory(size: int) -> None:
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    needed = 2 * size * size * 8
    if needed > available:
        raise fail(
            "head",
            f"a dense curvature within the {available / 1e9:.1f} GB of free memory",
            f"{size} coupled parameters, which need {needed / 1e9:.1f} GB",
            "audit on a machine with more memory, or a head with fewer features or classes",
        )
