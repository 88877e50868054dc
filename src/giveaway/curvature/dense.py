"""Exact dense curvature of a head in float64, inverted once, used for every record (docs/derivations.md)."""

from typing import Any

import torch
from torch.nn.functional import pad

from giveaway.checks import check_memory
from giveaway.curvature.blocks import Blocks, BlocksOf, MatrixBlocks
from giveaway.curvature.losses import OutputCurvature, loss_of
from giveaway.linalg.dense import EPS, Inverse, PairTiles, invert
from giveaway.linalg.processes import HERE, Execution
from giveaway.records import Head
from giveaway.records.head import Window

SAVED_SUMS = "sums"
LOST = 1e-10
MOST_ROWS = 4_096
LEAST_ROWS = 1_024
ARRAY_BYTES, GPU_ARRAY_BYTES = 2_000_000, 256_000_000
PART_BYTES = 8_000_000  # of the features and the numbers of W in one part of the sums
MOST_OPERATIONS = 1e11  # of orthogonal factors that are worth the digits where records are more than features


class DenseCurvature:
    """The curvature of `head` at its outputs, of P = `size` parameters, summed over the records of all processes. One
    array of a batch of blocks may take `array_bytes`, so that any number of windows may be scored at once."""

    windows_at_once: int | None = None

    def __init__(self, head: Head, execution: Execution = HERE) -> None:
        processes, checkpoint = execution.processes, execution.checkpoint
        self._r = head.m - 1 if loss_of(head).coupled else 1  # rows of an inverted matrix a feature
        remedy = "take curvature=Sketch(), a machine with more memory, or a head with fewer features or classes"
        self._begin(head, dense_bytes(head), f"{head.width * self._r} coupled parameters", remedy)
        self.sums = PairTiles(head.width, self.loss.pairs, head.device)
        earlier, first = checkpoint.load(SAVED_SUMS), 0
        if earlier is not None:
            self.sums.pairs.copy_(earlier["sums"])
            first = int(earlier["parts"])
        rows = max(LEAST_ROWS, min(MOST_ROWS, PART_BYTES // (8 * (head.width + self.loss.pairs))))
        parts = processes.share(list(head.slices(rows)))
        for place in range(first, len(parts)):
            window = head.window(parts[place])
            x, v = window.columns(), self.loss.pair_weights(window.outputs.to(torch.float64))
            self.sums.add(x, v if head.sample_weight is None else v * window.weights)
            execution.on_rows(len(window))
            if checkpoint.due():
                checkpoint.save(SAVED_SUMS, {"sums": self.sums.pairs, "parts": torch.tensor(place + 1)})
        processes.sum_(self.sums.pairs)
        # the mean diagonal of the sums a feature, (inverted matrices, d)
        self.diagonals = torch.cat([tile.diagonal(dim1=0, dim2=1) for _, _, tile in self.sums], dim=1)
        if self.loss.coupled:
            places = _unpacking(self._r, head.device).diagonal()
            self.diagonals = self.diagonals[places].mean(0, keepdim=True)
        self.penalized = (torch.arange(head.width, device=head.device) < head.penalized).to(torch.float64)
        self._factor()

    def _begin(self, head: Head, needed: int, got: str, remedy: str) -> None:
        check_memory("head", needed, what="a dense curvature", got=got, remedy=remedy, device=head.device)
        self.loss, self.l2 = loss_of(head), head.l2
        self.size = head.width * self.loss.degrees
        self.array_bytes = GPU_ARRAY_BYTES if head.device.type == "cuda" else ARRAY_BYTES

    @property
    def report(self) -> dict[str, Any]:
        shared = self.loss.m if self.loss.shared else 1
        # ones on the diagonal that stand for no curvature
        placeholders = int(self.scales.isinf().sum()) * self.loss.degrees // len(self.scales)
        return {
            "curvature": "dense",
            "parameters": self.size,
            "rank": shared * sum(inverse.rank for inverse in self.inverses) - placeholders,
            "rank_relative_cut": self.inverses[0].relative_cut,
            "inverse": "/".join(sorted({inverse.method for inverse in self.inverses})),
            "dead_features": int((self.diagonals == 0).all(0).sum()),
            "l2": self.l2,
        }

    def group_bytes(self, s: int) -> int:
        coupled = self.loss.m if self.loss.coupled else 1
        blocks = 8 * s * s * self.loss.m * coupled
        return blocks if s == 1 else max(blocks, 8 * s * self.sums.d * coupled**2)

    def window_blocks(self, window: Window, size: int = 1) -> BlocksOf:
        """Prepare the blocks of the groups of `size` consecutive rows of `window`; the function that is returned makes
        those of some groups."""
        x = window.columns() if size == 1 else window.rows().view(-1, size, window.width)
        quadratics = self.forms.forms(x) if size == 1 else self._cross(x)
        x, matrices = x.T.unsqueeze(1) if size == 1 else x, zip(self.inverses, self.scales, strict=True)
        sizes = [inverse.norm * (x / scale).square().sum((1, 2)) for inverse, scale in matrices]
        errors, relative = EPS * torch.stack(sizes).amax(0), EPS * max(inverse.norm for inverse in self.inverses)

        def blocks(groups: slice, curvature: OutputCurvature, weight: torch.Tensor, probes: slice | None) -> Blocks:
            assert probes is None  # a sketch has them
            chosen = quadratics[:, groups] if size == 1 else quadratics[groups]
            block = self._block(chosen, groups.stop - groups.start, size)
            return MatrixBlocks(block, curvature, weight, self.loss, error=(errors[groups], relative))

        return blocks

    def _block(self, quadratics: torch.Tensor, n: int, s: int) -> torch.Tensor:
        """B of n groups of s records as `MatrixBlocks` takes it, from their quadratic forms."""
        m = self.loss.m
        if not self.loss.coupled:
            separate = quadratics.view(1, 1, -1, n) if s == 1 else quadratics.permute(2, 3, 1, 0)
            return separate.expand(s, s, m, n).reshape(s, 1, s, 1, m * n)
        if s > 1:
            return pad(quadratics, (0, 1, 0, 0, 0, 1)).permute(1, 2, 3, 4, 0)
        places = pad(_unpacking(m - 1, quadratics.device), (0, 1, 0, 1), value=len(quadratics))
        return torch.cat([quadratics, quadratics.new_zeros(1, n)])[places].view(1, m, 1, m, n)

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """H⁻¹ v for v (d, m): a gradient of the summed loss with respect to θ; softmax needs rows that sum to zero."""
        scales = self.scales.unsqueeze(2)
        if self.loss.coupled:
            basis = self.loss.basis().to(v)
            reduced = v / scales[0] @ basis
            return (self.inverses[0].full @ reduced.reshape(-1)).view_as(reduced) @ basis.T / scales[0]
        parts = zip(self.inverses, scales, v.chunk(len(self.inverses), 1), strict=True)
        return torch.cat([inverse.full @ (part / scale) / scale for inverse, scale, part in parts], 1)

    def _factor(self) -> None:
        self.scales = (self.diagonals + self.l2 * self.penalized).sqrt()
        self.scales[self.scales == 0] = torch.inf
        self.inverses: list[Inverse] = []
        self.forms = PairTiles(self.sums.d, self.sums.p, self.scales.device)
        for k in range(len(self.scales)):
            self.inverses.append(invert(lambda k=k: self._assembled(k)))  # type: ignore[misc]
            self._read(k, self.inverses[k].upper)

    def _rescaling(self, k: int, s: int, e: int) -> torch.Tensor:
        """1/(scale_b scale_a) for the pairs of tile (s, e) of matrix k."""
        inverse = 1.0 / self.scales[k]
        return torch.outer(inverse[s:], inverse[s:e]).unsqueeze(2)

    def _assembled(self, k: int) -> torch.Tensor:
        """The upper triangle of matrix k, with a unit diagonal."""
        d, r, scale = self.sums.d, self._r, self.scales[k]
        matrix = scale.new_empty(d * r, d * r)
        for s, e, tile in self.sums:
            if self.loss.coupled:
                scaled, contrast = tile * self._rescaling(k, s, e), self._contrast()
                squares = contrast.T @ (scaled[:, :, _unpacking(r, tile.device)] @ contrast)
            else:
                squares = (tile[:, :, k : k + 1] * self._rescaling(k, s, e)).unsqueeze(3)
            matrix.view(d, r, d, r)[s:e, :, s:] = squares.permute(1, 2, 0, 3)
        ridge = torch.where(scale.isinf(), 1.0, self.l2 * self.penalized / scale / scale)
        matrix.diagonal().add_(ridge.repeat_interleave(r))
        return matrix

    def _read(self, k: int, upper: torch.Tensor) -> None:
        """Write the quadratic forms of the inverse of matrix k into the tiles."""
        d, r = self.sums.d, self._r
        for s, e, tile in self.forms:
            part = upper[s * r : e * r, s * r :].triu()
            part.diagonal().mul_(0.5)
            if self.loss.coupled:
                contrast, (rows, columns) = self._contrast(), torch.triu_indices(r, r, device=tile.device)
                squares = contrast @ (part.view(e - s, r, d - s, r).permute(2, 0, 1, 3) @ contrast.T)
                packed = squares[:, :, rows, columns] + squares[:, :, columns, rows]
                torch.mul(packed, self._rescaling(k, s, e), out=tile)
            else:
                tile[:, :, k : k + 1] = 2.0 * part.T.unsqueeze(2) * self._rescaling(k, s, e)

    def _contrast(self) -> torch.Tensor:
        """T with (f_k − f_m)_k = T·(Helmert coordinates of f), for softmax."""
        basis = self.loss.basis().to(self.scales.device)
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


class OrthogonalCurvature(DenseCurvature):
    """The same of a penalized head by orthogonal factors of its records, which keep the digits of 1 − h where leverages
    lie near 1: few records, or features that nearly repeat others."""

    def __init__(self, head: Head, execution: Execution = HERE) -> None:
        got = f"{head.n} records of {head.width} features"
        self._begin(head, orthogonal_bytes(head), got, "take curvature=Sketch(), or a machine with more memory")
        x = torch.zeros(head.n, head.width, dtype=torch.float64, device=head.device)
        outputs, weight = x.new_zeros(head.n, 1, head.m), x.new_zeros(head.n, 1, 1)
        for part in execution.processes.share(list(head.slices(MOST_ROWS))):
            window = head.window(part)
            x[part], outputs[part, 0], weight[part, 0, 0] = window.rows(), window.outputs.to(x), window.weights
            execution.on_rows(len(window))
        for tensor in (x, outputs, weight):
            execution.processes.sum_(tensor)
        self._dead = int((x == 0).all(0).sum())
        self._basis: torch.Tensor | None = None
        penalized = head.penalized
        if penalized >= head.n:  # features enter by their coordinates in the span of the records
            self._basis, coordinates = torch.linalg.qr(x[:, :penalized].T)
            x, penalized = torch.cat([coordinates.T, x[:, penalized:]], 1), head.n
        self.x, self.penalized = x, (torch.arange(x.shape[1], device=x.device) < penalized).to(x)
        # the outputs that the loss sees of a matrix (c, r), and Sᵀ of them for every matrix (n, c, r)
        self._seen, curvature = x.new_ones(1, 1), self.loss.curvature(outputs)
        if self.loss.coupled:
            self._seen = self.loss.basis().to(x)
            contrast = curvature.contrast(self._seen.T.expand(head.n, -1, -1), -1)
            self._roots = [curvature.root_transposed(contrast, -1).mT * weight.sqrt()]
        else:
            self._roots = list((weight * curvature.weights).sqrt().split(1, 2))[: 1 if self.loss.shared else None]
        self._factor()

    def _factor(self) -> None:
        size = self.x.shape[1] * self._seen.shape[1]
        each = torch.einsum("nd,cr->ncdr", self.x, self._seen).reshape(-1, size)
        penalty = torch.diag((self.l2 * self.penalized).sqrt().repeat_interleave(self._seen.shape[1]))
        self.factors, self.y, self.u, self.norm, self.condition, self._idle = [], [], [], 0.0, 0.0, 0
        for root in self._roots:
            a = torch.einsum("nd,ncr->ncdr", self.x, root).reshape(-1, size)
            stack = torch.cat([a, penalty])
            reflectors, scales = torch.geqrf(stack)
            beside = torch.diag(a.new_ones(len(reflectors)))[:, size:]
            self.u.append(torch.ormqr(reflectors, scales, beside)[: len(a)].reshape(len(self.x), -1, len(a)))
            self.factors.append(factor := reflectors[:size].triu())
            # a bias without any curvature, and what a penalty below rounding cannot tell from the rest
            idle = factor.diagonal().abs() <= size * EPS * stack.norm(dim=0)
            factor[idle], factor[:, idle] = 0.0, 0.0
            factor.diagonal()[idle] = 1.0
            self._idle += int(idle.sum()) * (self.loss.m if self.loss.shared else 1)
            inverse = torch.linalg.solve_triangular(factor, torch.diag((~idle).to(a)), upper=True)
            self.norm = max(self.norm, float(inverse.norm()))
            condition = float(inverse.norm() * factor.norm())
            self.condition = max(self.condition, torch.inf if bool(idle.any()) else condition)
            self.y.append((each @ inverse).view(len(self.x), -1, size))

    @property
    def report(self) -> dict[str, Any]:
        told = {"curvature": "dense", "parameters": self.size, "rank": self.size - self._idle, "inverse": "orthogonal"}
        return told | {"dead_features": self._dead, "l2": self.l2}

    def group_bytes(self, s: int) -> int:
        return 8 * s * len(self._seen) * max(s * self.loss.m, 2 * self.u[0].shape[2])

    def window_blocks(self, window: Window, size: int = 1) -> BlocksOf:
        def blocks(groups: slice, curvature: OutputCurvature, weight: torch.Tensor, probes: slice | None) -> Blocks:
            n, numbers = groups.stop - groups.start, window.numbers[groups.start * size : groups.stop * size]

            def gram(factors: list[torch.Tensor]) -> torch.Tensor:
                """F Fᵀ of every group (Q, R, R)."""
                own = torch.stack([one[numbers].reshape(n, size * len(self._seen), -1) for one in factors])
                return (own @ own.mT).expand(self.loss.m // len(self._seen), -1, -1, -1).flatten(0, 1)

            block = gram(self.y).permute(1, 2, 0).reshape(size, len(self._seen), size, len(self._seen), -1)
            error = (EPS * self.norm) ** 2 * self.x[numbers].square().sum(1).view(n, size).sum(1)
            both = error, EPS * self.condition
            return MatrixBlocks(block, curvature, weight, self.loss, complement=gram(self.u), error=both)

        return blocks

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        d, k = (0, 0) if self._basis is None else self._basis.shape
        inside = v if self._basis is None else torch.cat([self._basis.T @ v[:d], v[d:]])
        columns = inside @ self._seen if self.loss.coupled else inside
        parts = [columns.reshape(-1, 1)] if self.loss.coupled else columns.chunk(len(self.factors), 1)
        solved = [torch.cholesky_solve(part, r, upper=True) for part, r in zip(parts, self.factors, strict=True)]
        within = solved[0].view(columns.shape) @ self._seen.T if self.loss.coupled else torch.cat(solved, 1)
        if self._basis is None:
            return within
        outside = v[:d] - self._basis @ inside[:k]
        outside -= self._basis @ (self._basis.T @ outside)  # what rounding left inside would be divided by l2
        return torch.cat([self._basis @ within[:k] + outside / self.l2, within[k:]])


def dense_bytes(head: Head) -> int:
    """What the sums and the inverse of a dense curvature take."""
    loss = loss_of(head)
    matrices = 2 * loss.degrees**2 if loss.coupled else 2 * loss.pairs + 1
    return 8 * matrices * head.width**2


def is_wide(head: Head) -> bool:
    """Whether there is a penalty, and at least as many features as records."""
    return head.l2 > 0 and head.features.shape[1] >= head.n


def orthogonal_bytes(head: Head) -> int:
    """What the features and the factors take."""
    coupled = head.m if loss_of(head).coupled else 1
    return 8 * (3 * head.n * head.width + (8 + 3 * head.m // coupled) * (head.n * coupled) ** 2)


def keeps_digits(head: Head, curvature: DenseCurvature, available: int) -> bool:
    """Whether `curvature` cut directions, or lost more than LOST of what its inverse says to rounding, which orthogonal
    factors would keep, within `available` bytes and MOST_OPERATIONS."""
    coupled = head.m if loss_of(head).coupled else 1
    affordable = orthogonal_bytes(head) <= available and coupled**3 * head.n**2 * head.width <= MOST_OPERATIONS
    lost = any(one.method != "cholesky" or EPS * one.norm > LOST for one in curvature.inverses)
    return head.l2 > 0 and lost and affordable


def _unpacking(r: int, device: torch.device) -> torch.Tensor:
    """For each entry of an (r, r) symmetric matrix, its place in the packed upper triangle."""
    rows, columns = torch.triu_indices(r, r, device=device)
    place = torch.empty(r, r, dtype=torch.int64, device=device)
    place[rows, columns] = place[columns, rows] = torch.arange(len(rows), device=device)
    return place
