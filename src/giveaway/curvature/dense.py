"""Exact dense curvature of a head in float64: H = Σ_j s_j x_j x_jᵀ ⊗ W_j + λI, inverted once, used for every record.

Sums and forms run over pairs of features times the numbers of W (linalg.pairs). In between, the matrix that is
inverted is scaled to a unit diagonal, which makes the numerical rank independent of the features' units and of how
sure the head is, and gets a one on the diagonal for features without any curvature: both leave every score as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

from giveaway.checks import check_memory, fail
from giveaway.curvature.blocks import Blocks, MatrixBlocks
from giveaway.curvature.losses import loss_of, triangle
from giveaway.linalg.inverse import Inverse, invert
from giveaway.linalg.pairs import PairTiles
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head
from giveaway.records.head import Window
from giveaway.storage.checkpoint import NO_CHECKPOINT, Checkpoint

SAVED_SUMS = "sums"
MOST_ROWS = 4_096
LEAST_ROWS = 1_024
ARRAY_BYTES, GPU_ARRAY_BYTES = 2_000_000, 256_000_000
PART_BYTES = 8_000_000  # of the features and the numbers of W in one part of the sums


class DenseCurvature:
    """The curvature of `head` at its outputs. `with_l2` gives the same sums under another penalty."""

    def __init__(
        self,
        head: Head,
        *,
        processes: Processes = ALONE,
        checkpoint: Checkpoint = NO_CHECKPOINT,
        on_window: Callable[[Window], Any] = lambda window: None,
    ) -> None:
        self.loss = loss_of(head)
        check_memory(
            "head",
            dense_bytes(head),
            what="a dense curvature",
            got=f"{head.width * self.parameters_per_feature} coupled parameters",
            remedy="take curvature=Sketch(), a machine with more memory, or a head with fewer features or classes",
            device=head.device,
        )
        self.sums = PairTiles(head.width, self.loss.pairs, head.device)
        self.taken_up = self._add_up(head, processes, checkpoint, on_window)
        self.diagonals = self._diagonals()
        self.penalized = torch.ones(head.width, dtype=torch.float64, device=head.device)
        if head.intercept and not head.penalize_intercept:
            self.penalized[-1] = 0.0
        self._factor(head.l2)

    def _add_up(
        self, head: Head, processes: Processes, checkpoint: Checkpoint, on_window: Callable[[Window], Any]
    ) -> bool:
        """Sum over the records, going on from a checkpoint; return whether there was one."""
        parts = processes.share(list(head.slices(_rows_at_a_time(head.width, self.sums.p))))
        earlier = checkpoint.load(SAVED_SUMS)
        first = 0
        if earlier is not None:
            self.sums.pairs.copy_(earlier["sums"])
            first = int(earlier["parts"])
        for place in range(first, len(parts)):
            window = head.window(parts[place])
            x, v = window.columns(), self.loss.pair_weights(window.outputs.to(torch.float64))
            if window.sample_weight is not None:
                v = v * window.sample_weight
            self.sums.add(x, v)
            on_window(window)
            if checkpoint.due():
                checkpoint.save(SAVED_SUMS, {"sums": self.sums.pairs, "parts": torch.tensor(place + 1)})
        processes.sum_(self.sums.pairs)
        return earlier is not None

    def with_l2(self, l2: float) -> DenseCurvature:
        """The same head, penalized by `l2`; the sums are shared."""
        other = object.__new__(DenseCurvature)
        other.__dict__.update({k: self.__dict__[k] for k in ("loss", "sums", "diagonals", "penalized")})
        other._factor(l2)
        return other

    @property
    def parameters_per_feature(self) -> int:
        """Rows of one matrix that is inverted, a feature."""
        return self.loss.degrees if self.loss.coupled else 1

    @property
    def size(self) -> int:
        """P, the parameters of the head in the directions that matter."""
        return self.sums.d * self.loss.degrees

    @property
    def report(self) -> dict[str, Any]:
        """What the metadata says of this curvature."""
        shared = self.loss.m if self.loss.shared else 1
        return {
            "curvature": "dense",
            "parameters": self.size,
            "rank": shared * sum(inverse.rank for inverse in self.inverses) - self._placeholders(),
            "rank_relative_cut": self.inverses[0].relative_cut,
            "inverse": "/".join(sorted({inverse.method for inverse in self.inverses})),
            "dead_features": int((self.diagonals == 0).all(0).sum()),
            "l2": self.l2,
        }

    def group_bytes(self, s: int) -> int:
        """How many bytes one array takes for a group of s records."""
        coupled = self.loss.m if self.loss.coupled else 1
        blocks = 8 * s * s * self.loss.m * coupled
        return blocks if s == 1 else max(blocks, 8 * s * self.sums.d * coupled**2)

    @property
    def array_bytes(self) -> int:
        """How many bytes one array of a batch may take; about eight are alive at a time."""
        return GPU_ARRAY_BYTES if self.scales.is_cuda else ARRAY_BYTES

    @property
    def windows_at_once(self) -> None:
        """Any number of windows: their arrays are small beside the curvature."""

    def window_blocks(self, window: Window, size: int = 1) -> DenseWindow:
        """Prepare the blocks of the groups of `size` consecutive rows of `window`."""
        return DenseWindow(self, window, size)

    def quadratics(self, x: torch.Tensor) -> torch.Tensor:
        """The numbers of B for records x (d, N), or for groups x (N, s, d), as `blocks` takes them."""
        return self.forms.forms(x) if x.ndim == 2 else self._cross(x)

    def blocks(self, quadratics: torch.Tensor, outputs: torch.Tensor, sample_weight: torch.Tensor) -> Blocks:
        """Leverage blocks of groups with these quadratics, outputs (N, s, m) and sample weights (N, s)."""
        n, s, m = outputs.shape
        if not self.loss.coupled:
            separate = quadratics.view(1, 1, -1, n) if quadratics.ndim == 2 else quadratics.permute(2, 3, 1, 0)
            block = separate.expand(s, s, m, n).reshape(s, 1, s, 1, m * n)
        elif quadratics.ndim == 2:
            places = pad(_unpacking(m - 1, outputs.device), (0, 1, 0, 1), value=len(quadratics))
            block = torch.cat([quadratics, quadratics.new_zeros(1, n)])[places].view(1, m, 1, m, n)
        else:
            block = pad(quadratics, (0, 1, 0, 0, 0, 1)).permute(1, 2, 3, 4, 0)
        return MatrixBlocks(block, self.loss.curvature(outputs), sample_weight, self.loss)

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """H⁻¹ v for v (d, m): a gradient of the summed loss with respect to θ; softmax needs rows that sum to zero."""
        if self.loss.coupled:
            basis, scale = self._basis(), self.scales[0].unsqueeze(1)
            reduced = v / scale @ basis
            return (self.inverses[0].full @ reduced.reshape(-1)).view_as(reduced) @ basis.T / scale
        if len(self.inverses) == 1:
            scale = self.scales[0].unsqueeze(1)
            return self.inverses[0].full @ (v / scale) / scale
        pairs = zip(self.inverses, self.scales, v.T, strict=True)
        return torch.stack([inverse.full @ (column / scale) / scale for inverse, scale, column in pairs], 1)

    def _diagonals(self) -> torch.Tensor:
        """Mean diagonal of the sums a feature, (inverted matrices, d)."""
        packed = torch.cat([tile.diagonal(dim1=0, dim2=1) for _, _, tile in self.sums], dim=1)
        if not bool(packed.isfinite().all()):
            raise fail("features", "numbers whose squares are finite", "larger ones", "rescale the features")
        if self.loss.coupled:
            rows, columns = triangle(self.loss.degrees, packed.device)
            return packed[rows == columns].mean(0, keepdim=True)
        return packed

    def _factor(self, l2: float) -> None:
        self.l2 = l2
        self.scales = (self.diagonals + l2 * self.penalized).sqrt()
        self.scales[self.scales == 0] = torch.inf
        self.inverses: list[Inverse] = []
        self.forms = PairTiles(self.sums.d, self.sums.p, self.scales.device)
        if self.loss.coupled:
            self.inverses.append(invert(self._assemble_softmax))
            self._read_softmax(self.inverses[0].upper)
        else:
            for k in range(self.sums.p):
                self.inverses.append(invert(lambda k=k: self._assemble_separate(k)))  # type: ignore[misc]
                self._read_separate(k, self.inverses[k].upper)

    def _placeholders(self) -> int:
        """Ones on the diagonal that stand for no curvature."""
        return int(self.scales.isinf().sum()) * self.loss.degrees // len(self.scales)

    def _ridge(self, k: int) -> torch.Tensor:
        """What is added to the diagonal of matrix k for each feature."""
        scale = self.scales[k]
        return torch.where(scale.isinf(), 1.0, self.l2 * self.penalized / scale / scale)

    def _rescaling(self, k: int, s: int, e: int) -> torch.Tensor:
        """1/(scale_b scale_a) for the pairs of tile (s, e)."""
        inverse = 1.0 / self.scales[k]
        return torch.outer(inverse[s:], inverse[s:e])

    def _assemble_separate(self, k: int) -> torch.Tensor:
        d = self.sums.d
        matrix = self.scales.new_empty(d, d)
        for s, e, tile in self.sums:
            matrix[s:e, s:] = (tile[:, :, k] * self._rescaling(k, s, e)).T
        matrix.diagonal().add_(self._ridge(k))
        return matrix

    def _read_separate(self, k: int, upper: torch.Tensor) -> None:
        for s, e, tile in self.forms:
            part = upper[s:e, s:].triu()
            part.diagonal().mul_(0.5)
            tile[:, :, k] = 2.0 * part.T * self._rescaling(k, s, e)

    def _assemble_softmax(self) -> torch.Tensor:
        d, r = self.sums.d, self.loss.degrees
        contrast = self._contrast()
        unpack = _unpacking(r, self.scales.device)
        matrix = self.scales.new_empty(d * r, d * r)
        for s, e, tile in self.sums:
            scaled = tile * self._rescaling(0, s, e).unsqueeze(2)
            squares = contrast.T @ (scaled[:, :, unpack] @ contrast)
            matrix.view(d, r, d, r)[s:e, :, s:] = squares.permute(1, 2, 0, 3)
        matrix.diagonal().add_(self._ridge(0).repeat_interleave(r))
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
            torch.mul(packed, self._rescaling(0, s, e).unsqueeze(2), out=tile)

    def _basis(self) -> torch.Tensor:
        return self.loss.basis().to(self.scales.device)

    def _contrast(self) -> torch.Tensor:
        """T with (f_k − f_m)_k = T·(Helmert coordinates of f)."""
        basis = self._basis()
        return basis[:-1] - basis[-1]

    def _cross(self, x: torch.Tensor) -> torch.Tensor:
        """B of whole groups x (N, s, d): softmax (N, s, r, s, r) in contrast to the last class, else (N, k, s, s)."""
        n, s, d = x.shape
        if not self.loss.coupled:
            scaled = [x / scale for scale in self.scales]
            return torch.stack([y @ inverse.full @ y.mT for y, inverse in zip(scaled, self.inverses, strict=True)], 1)
        r = self.loss.degrees
        contrast = self._contrast()
        x = x / self.scales[0]
        half = (x.view(n * s, d) @ self.inverses[0].full.view(d, r * d * r)).view(n, s * r, d, r)
        both = torch.einsum("nqbl,njb->nqjl", half, x).view(n, s, r, s, r)
        return torch.einsum("ku,niujv,lv->nikjl", contrast, both, contrast)


class DenseWindow:
    """The quadratic forms of a window's records, from which their blocks are made."""

    def __init__(self, curvature: DenseCurvature, window: Window, size: int) -> None:
        self._curvature, self._window, self._size = curvature, window, size
        x = window.columns() if size == 1 else window.rows().view(-1, size, window.width)
        self._quadratics = curvature.quadratics(x)

    def blocks(self, groups: slice, probes: slice | None) -> Blocks:
        """Return the blocks of these groups; there are no probes to choose from."""
        assert probes is None
        window = self._window.part(slice(groups.start * self._size, groups.stop * self._size))
        quadratics = self._quadratics[:, groups] if self._size == 1 else self._quadratics[groups]
        n = groups.stop - groups.start
        outputs = window.outputs.to(torch.float64).view(n, self._size, -1)
        return self._curvature.blocks(quadratics, outputs, window.weights.view(n, self._size))


def dense_bytes(head: Head) -> int:
    """What the sums and the inverse of a dense curvature take."""
    loss = loss_of(head)
    if loss.coupled:
        return 2 * 8 * (head.width * loss.degrees) ** 2
    matrices = 1 if loss.shared else head.m
    return 8 * (2 * matrices + 1) * head.width**2


def _rows_at_a_time(d: int, p: int) -> int:
    return max(LEAST_ROWS, min(MOST_ROWS, PART_BYTES // (8 * (d + p))))


def _unpacking(r: int, device: torch.device) -> torch.Tensor:
    """For each entry of an (r, r) symmetric matrix, its place in the packed upper triangle."""
    rows, columns = triangle(r, device)
    place = torch.empty(r, r, dtype=torch.int64, device=device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=device)
    return place
