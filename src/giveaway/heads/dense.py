"""Exact dense curvature of a head in float64: H = Σ_j s_j x_j x_jᵀ ⊗ W_j + λI, inverted once, used for every record.

Sums and forms run over pairs of features times the numbers of W (linalg.accumulate). In between, the matrix that is
inverted has its features divided by their root mean square, which makes the numerical rank independent of their units,
and a one on the diagonal for features that are zero throughout: both leave every score as it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

from giveaway.checks import fail
from giveaway.heads.blocks import Blocks, SeparateBlocks, SoftmaxBlocks
from giveaway.heads.losses import Logistic, Softmax, Squared, loss_of, triangle
from giveaway.linalg.accumulate import PairTiles
from giveaway.linalg.solve import Inverse, invert
from giveaway.records import Head

ROWS = 4096


class DenseCurvature:
    """The curvature of `head` at its outputs. `with_l2` gives the same sums under another penalty."""

    def __init__(self, head: Head, on_rows: Callable[[int], Any] = lambda rows: None) -> None:
        self.loss = loss_of(head)
        _check_memory(head.width * self.parameters_per_feature)
        device = head.features.device
        self.sums = PairTiles(head.width, self._pairs(), device)
        squares = torch.zeros(head.width, dtype=torch.float64, device=device)
        for part in head.slices(ROWS):
            x, v = head.columns(part), self.loss.pair_weights(head.outputs[part].to(torch.float64))
            if head.sample_weight is not None:
                v = v * head.sample_weight[part]
            self.sums.add(x, v)
            squares += x.norm(dim=1).square()
            on_rows(x.shape[1])
        self.alive = squares > 0
        self.scale = torch.where(self.alive, (squares / head.n).sqrt(), 1.0)
        self.penalized = torch.ones_like(squares)
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
        return self.sums.d * self.loss.degrees

    @property
    def report(self) -> dict[str, Any]:
        """What the metadata says of this curvature."""
        shared = self.loss.m if isinstance(self.loss, Squared) else 1
        dead = int((~self.alive).sum())
        return {
            "curvature": "dense",
            "parameters": self.size,
            "rank": shared * sum(inverse.rank for inverse in self.inverses) - dead * self.loss.degrees,
            "rank_relative_cut": self.inverses[0].relative_cut,
            "inverse": "/".join(sorted({inverse.method for inverse in self.inverses})),
            "dead_features": dead,
            "features_scaled_by_rms": True,
            "l2": self.l2,
        }

    def quadratics(self, x: torch.Tensor) -> torch.Tensor:
        """The numbers of B for records x (d, N), or for groups x (N, s, d), as `blocks` takes them."""
        return self.forms.forms(x) if x.ndim == 2 else self._cross(x / self.scale)

    def blocks(self, quadratics: torch.Tensor, outputs: torch.Tensor, sample_weight: torch.Tensor) -> Blocks:
        """Leverage blocks of groups with these quadratics, outputs (N, s, m) and sample weights (N, s)."""
        n, _, m = outputs.shape
        if isinstance(self.loss, Softmax):
            if quadratics.ndim == 2:
                places = pad(_unpacking(m - 1, outputs.device), (0, 1, 0, 1), value=len(quadratics))
                block = torch.cat([quadratics, quadratics.new_zeros(1, n)])[places].view(1, m, 1, m, n)
            else:
                block = pad(quadratics, (0, 1, 0, 0, 0, 1)).permute(1, 2, 3, 4, 0).contiguous()
            return SoftmaxBlocks(block, torch.softmax(outputs, -1), sample_weight)
        assert isinstance(self.loss, (Squared, Logistic))
        separate = quadratics.view(1, 1, -1, n) if quadratics.ndim == 2 else quadratics.permute(2, 3, 1, 0)
        return SeparateBlocks(separate, self.loss.weights(outputs), sample_weight, self.loss.sensitivity)

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """H⁻¹ v for v (d, m): a gradient of the summed loss with respect to θ; softmax needs rows that sum to zero."""
        scaled = v / self.scale.unsqueeze(1)
        if isinstance(self.loss, Softmax):
            basis = self._basis()
            reduced = scaled @ basis
            solved = (self.inverses[0].full @ reduced.reshape(-1)).view_as(reduced) @ basis.T
        elif len(self.inverses) == 1:
            solved = self.inverses[0].full @ scaled
        else:
            solved = torch.stack([inverse.full @ scaled[:, k] for k, inverse in enumerate(self.inverses)], 1)
        return solved / self.scale.unsqueeze(1)

    def _pairs(self) -> int:
        r = self.loss.degrees
        if isinstance(self.loss, Softmax):
            return r * (r + 1) // 2
        return 1 if isinstance(self.loss, Squared) else r

    def _factor(self, l2: float) -> None:
        self.l2 = l2
        ridge = l2 * self.penalized / self.scale.square()
        self.ridge = torch.where(self.alive | (ridge > 0), ridge, 1.0)
        self.inverses: list[Inverse] = []
        self.forms = PairTiles(self.sums.d, self.sums.p, self.ridge.device)
        if isinstance(self.loss, Softmax):
            self.inverses.append(invert(self._assemble_softmax))
            self._read_softmax(self.inverses[0].upper)
        else:
            for k in range(self.sums.p):
                self.inverses.append(invert(lambda k=k: self._assemble_separate(k)))  # type: ignore[misc]
                self._read_separate(k, self.inverses[k].upper)

    def _rescaling(self, s: int, e: int) -> torch.Tensor:
        """1/(scale_b scale_a) for the pairs of tile (s, e)."""
        return 1.0 / torch.outer(self.scale[s:], self.scale[s:e])

    def _assemble_separate(self, k: int) -> torch.Tensor:
        d = self.sums.d
        matrix = self.ridge.new_empty(d, d)
        for s, e, tile in self.sums:
            matrix[s:e, s:] = (tile[:, :, k] * self._rescaling(s, e)).T
        matrix.diagonal().add_(self.ridge)
        return matrix

    def _read_separate(self, k: int, upper: torch.Tensor) -> None:
        for s, e, tile in self.forms:
            part = upper[s:e, s:].triu()
            part.diagonal().mul_(0.5)
            tile[:, :, k] = 2.0 * part.T * self._rescaling(s, e)

    def _assemble_softmax(self) -> torch.Tensor:
        d, r = self.sums.d, self.loss.degrees
        contrast = self._contrast()
        unpack = _unpacking(r, self.ridge.device)
        matrix = self.ridge.new_empty(d * r, d * r)
        for s, e, tile in self.sums:
            scaled = tile * self._rescaling(s, e).unsqueeze(2)
            squares = contrast.T @ (scaled[:, :, unpack] @ contrast)
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
            squares = contrast @ (folded @ contrast.T)
            packed = squares[:, :, rows, columns] + squares[:, :, columns, rows]
            torch.mul(packed, self._rescaling(s, e).unsqueeze(2), out=tile)

    def _basis(self) -> torch.Tensor:
        return helmert(self.loss.m).to(self.ridge.device)

    def _contrast(self) -> torch.Tensor:
        """T with (f_k − f_m)_k = T·(Helmert coordinates of f)."""
        basis = self._basis()
        return basis[:-1] - basis[-1]

    def _cross(self, x: torch.Tensor) -> torch.Tensor:
        """B of whole groups x (N, s, d): softmax (N, s, r, s, r) in contrast to the last class, else (N, k, s, s)."""
        n, s, d = x.shape
        flat = x.reshape(n * s, d)
        if not isinstance(self.loss, Softmax):
            return torch.stack([(flat @ inverse.full).view(n, s, d) @ x.mT for inverse in self.inverses], 1)
        r = self.loss.degrees
        contrast = self._contrast()
        half = (flat @ self.inverses[0].full.view(d, r * d * r)).view(n, s * r, d, r)
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
    return place


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
