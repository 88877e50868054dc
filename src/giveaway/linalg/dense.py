"""Dense matrices: sums over pairs of features and forms back from them, an inverse, top eigen- and singular values
(docs/derivations.md)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from giveaway.linalg.processes import in_threads

EPS, TINY = torch.finfo(torch.float64).eps, torch.finfo(torch.float64).tiny
ROWS = 512
BLOCK, GPU_BLOCK = 512, 2_048  # rows of the triangles that are factored and inverted whole; a GPU needs large products
EXPANDED_BYTES = 1_100_000  # of one expanded tile: it should stay in the cache until the product has read it
BATCHED_FROM = 8  # numbers a pair from which a batched product contracts faster
EXPANDED_COLUMNS = 720  # of one product, at most: enough for the product to run at full speed


@dataclass(frozen=True)
class Inverse:
    """The inverse or pseudo-inverse of a matrix, as its upper triangle, and how it was computed."""

    upper: torch.Tensor
    rank: int
    method: str
    relative_cut: float
    norm: float

    @cached_property
    def full(self) -> torch.Tensor:
        """Both triangles: the lower one is filled in from the upper, in place (threads that race write the same)."""
        for i in range(0, len(self.upper), ROWS):
            corner = self.upper[i : i + ROWS, i : i + ROWS]
            corner.copy_(corner.triu() + corner.triu(1).T)
            self.upper[i + ROWS :, i : i + ROWS] = self.upper[i : i + ROWS, i + ROWS :].T
        return self.upper


def invert(assemble: Callable[[], torch.Tensor]) -> Inverse:
    """Invert the matrix whose upper triangle `assemble` makes; take the pseudo-inverse, above P·eps of the largest
    eigenvalue, where ‖H‖_F·‖H⁻¹‖_F does not prove a condition number below 1/(P·eps)."""
    matrix = assemble()
    cut = len(matrix) * EPS
    norm = _frobenius(matrix)
    if norm > 0.0 and _cholesky_inverse_in_place(matrix) and norm * (inverse := _frobenius(matrix)) < 1.0 / cut:
        return Inverse(matrix, len(matrix), "cholesky", cut, inverse)
    del matrix  # before another takes its space
    matrix = assemble()
    values, vectors = torch.linalg.eigh(matrix, UPLO="U")
    rank = int((values > cut * values[-1].clamp_min(0.0)).sum())
    largest = slice(len(values) - rank, None)  # eigenvalues ascend
    norm = float(values[largest].reciprocal().norm())
    vectors = vectors[:, largest].mul_(values[largest].rsqrt())
    torch.mm(vectors, vectors.T, out=matrix)
    return Inverse(matrix, rank, "eigenvectors", cut, norm)


def cholesky_in_place(matrix: torch.Tensor, *, clean: bool = True) -> int:
    """Put the lower Cholesky factor in the place of a matrix in column order, of which only the lower triangle is read;
    above it are zeros, or without `clean` what was there, beside the blocks of the diagonal: memory that nobody touched
    need not exist. Return 0, or the order of the leading minor that is not positive definite."""
    if matrix.is_cuda:
        info = torch.empty(0, dtype=torch.int32, device=matrix.device)
        torch.linalg.cholesky_ex(matrix, out=(matrix, info))
        return int(info)
    # by columns, so that nearly all of it is one kind of large product, without a copy of what is there already
    for start in range(0, len(matrix), BLOCK):
        stop = min(start + BLOCK, len(matrix))
        columns, size = matrix[start:, start:stop], stop - start
        columns.addmm_(matrix[start:, :start], matrix[start:stop, :start].T, alpha=-1.0)
        corner, stopped = torch.linalg.cholesky_ex(columns[:size])
        if stopped:
            return start + int(stopped)
        columns[:size] = corner
        for rows in columns[size:].split(ROWS):  # by pieces, whose memory is used again
            rows.copy_(torch.linalg.solve_triangular(corner.mT, rows, upper=True, left=False))
        if clean:
            matrix[:start, start:stop] = 0.0
    return 0


def invert_lower_(triangle: torch.Tensor) -> None:
    """Invert a lower triangular matrix in place, by products of blocks; beside the blocks of the diagonal nothing above
    it is read or written."""
    block = GPU_BLOCK if triangle.is_cuda else BLOCK
    for start in range(0, len(triangle), block):
        rows = triangle[start : start + block]
        corner = rows[:, start : start + block]
        identity = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
        corner.copy_(torch.linalg.solve_triangular(corner, identity, upper=False))
        before = (corner @ rows[:, :start]).neg_()
        for first in range(0, start, block):
            rows[:, first : first + block] = before[:, first:] @ triangle[first:start, first : first + block]


def _cholesky_inverse_in_place(matrix: torch.Tensor) -> bool:
    """Put the inverse in the place of a matrix of which only the upper triangle is read and written."""
    lower = matrix.T
    if cholesky_in_place(lower, clean=False) != 0:
        return False
    if matrix.is_cuda:
        torch.cholesky_inverse(lower, out=lower)
        return True
    invert_lower_(lower)
    for start in range(0, len(lower), BLOCK):  # L⁻ᵀ L⁻¹, whose rows need no row of L⁻¹ that lies before them
        stop = start + BLOCK
        lower[start:stop, :stop] = lower[start:, start:stop].T @ lower[start:, :stop]
    return True


def _frobenius(matrix: torch.Tensor) -> float:
    total = 0.0
    for i in range(0, len(matrix), ROWS):
        corner = matrix[i : i + ROWS, i : i + ROWS]
        total += float(2 * corner.triu(1).square().sum() + corner.diagonal().square().sum())
        total += 2 * float(matrix[i : i + ROWS, i + ROWS :].square().sum())
    return total**0.5


def top_eigenvalue(matrices: torch.Tensor) -> torch.Tensor:
    """Return λ_max of symmetric positive semi-definite matrices (R, R, Q) → (Q,)."""
    if len(matrices) == 1:
        return matrices[0, 0].clone()
    # the largest entry stands on the diagonal
    scale = matrices.diagonal(dim1=0, dim2=1).amax(1).clamp_min(TINY)
    return scale * torch.linalg.eigvalsh((matrices / scale).permute(2, 0, 1))[:, -1]


def top_singular_value(matrices: torch.Tensor) -> torch.Tensor:
    """Return σ_max of square matrices (R, R, Q) → (Q,)."""
    if len(matrices) == 1:
        return matrices[0, 0].abs()
    scale = matrices.abs().amax(dim=(0, 1)).clamp_min(TINY)
    batch = (matrices / scale).permute(2, 0, 1).contiguous()  # small matrices multiply slowly where they lie apart
    return scale * torch.linalg.eigvalsh(batch @ batch.mT)[:, -1].sqrt()


def solve_floored(
    matrices: torch.Tensor, right: torch.Tensor, floor: float, *, at_most_one: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solve for each of (Q, R, R) with its eigenvalues raised to `floor`, and say which had a lower one; `at_most_one`
    says that none is above 1."""
    factor, failed = torch.linalg.cholesky_ex(matrices)
    solved, low = torch.cholesky_solve(right, factor), failed > 0
    doubtful = ~low
    if at_most_one:  # then none is below the determinant
        doubtful &= factor.diagonal(dim1=1, dim2=2).square().prod(1) <= floor
    if bool(doubtful.any()):
        # this Cholesky factor exists exactly where no eigenvalue is below the floor
        shifted = matrices[doubtful] - floor * torch.eye(matrices.shape[1], dtype=factor.dtype, device=factor.device)
        low[doubtful] = torch.linalg.cholesky_ex(shifted)[1] > 0
    if bool(low.any()):
        values, vectors = torch.linalg.eigh(matrices[low])
        solved[low] = vectors @ (vectors.mT @ right[low] / values.clamp_min(floor).unsqueeze(2))
    return solved, low


class PairTiles:
    """Tiles over the upper triangle of feature pairs, each pair carrying p numbers."""

    def __init__(self, d: int, p: int, device: torch.device | None = None) -> None:
        self.d, self.p = d, p
        self.expand_weights = 2 * p <= d
        # a tile of a's also holds its own lower triangle: few a's waste little, many make the product efficient
        width = min(d // 8, -(-EXPANDED_COLUMNS // p)) if self.expand_weights else d // 16
        count = d // max(4, width) or 1
        edges = [(d * i // count, d * (i + 1) // count) for i in range(count)]
        # the expanded numbers of a record in the widest tile
        self._expansion = max(e - s for s, e in edges) * (p if self.expand_weights else d)
        sizes = [(d - s) * (e - s) for s, e in edges]
        self.pairs = torch.zeros(sum(sizes), p, dtype=torch.float64, device=device)
        pieces = zip(edges, self.pairs.split(sizes), strict=True)
        self._tiles = [(s, e, piece.view(d - s, e - s, p)) for (s, e), piece in pieces]

    def __iter__(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        return iter(self._tiles)

    def add(self, x: torch.Tensor, v: torch.Tensor) -> None:
        """Add the records x (d, c), v (p, c) to the sums; threads share the tiles among them."""
        rows = self._rows_at_a_time(x.shape[1])
        parts = [(x[:, i : i + rows].contiguous(), v[:, i : i + rows].contiguous()) for i in range(0, x.shape[1], rows)]

        def add_to(piece: tuple[int, int, torch.Tensor]) -> None:
            s, e, tile = piece
            space = x.new_empty(self._expansion * rows)
            for features, weights in parts:
                if self.expand_weights:
                    expanded = _expand(features[s:e], weights, space)
                    tile.view(self.d - s, -1).addmm_(features[s:], expanded.T)
                else:
                    tile.view(-1, self.p).addmm_(_expand(features[s:], features[s:e], space), weights.T)

        in_threads(add_to, self, x.device)

    def forms(self, x: torch.Tensor) -> torch.Tensor:
        """Return q (p, c), with this object's tiles as M."""
        out = x.new_empty(self.p, x.shape[1])
        rows = self._rows_at_a_time(x.shape[1])
        space = x.new_empty(rows * self._expansion)
        for i in range(0, x.shape[1], rows):
            part, target = x[:, i : i + rows], out[:, i : i + rows]
            if self.expand_weights and self.p >= BATCHED_FROM:
                target.copy_(self._contracted(part.T.contiguous(), space).T)
            else:
                self._contract(part.contiguous(), space, target)
        return out

    def _contract(self, x: torch.Tensor, space: torch.Tensor, target: torch.Tensor) -> None:
        """Set target = Σ_a x_a (Σ_b x_b M[b, a]) for records x (d, c), as (p, c)."""
        target.zero_()
        for s, e, tile in self:
            if not self.expand_weights:
                target.addmm_(tile.view(-1, self.p).T, _expand(x[s:], x[s:e], space))
                continue
            half = space[: (e - s) * self.p * x.shape[1]].view(-1, x.shape[1])
            torch.mm(tile.view(self.d - s, -1).T, x[s:], out=half)
            target += half.view(e - s, self.p, -1).mul_(x[s:e].unsqueeze(1)).sum(0)

    def _contracted(self, x: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
        """Return the same for records x (c, d), as (c, p), by a batched product: faster from some p on."""
        out = x.new_zeros(len(x), 1, self.p)
        for s, e, tile in self:
            half = space[: len(x) * (e - s) * self.p].view(len(x), -1)
            torch.mm(x[:, s:], tile.view(self.d - s, -1), out=half)
            out.baddbmm_(x[:, None, s:e], half.view(len(x), e - s, self.p))
        return out.squeeze(1)

    def _rows_at_a_time(self, count: int) -> int:
        rows = min(2048, EXPANDED_BYTES // (8 * self._expansion) // 64 * 64) if self.expand_weights else 1024
        return max(1, min(max(rows, 128), count))


def _expand(left: torch.Tensor, right: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
    """Return (left × right, c) products of every row of left with every row of right."""
    size = len(left), len(right), left.shape[1]
    expanded = space[: size[0] * size[1] * size[2]].view(size)
    return torch.mul(left.unsqueeze(1), right.unsqueeze(0), out=expanded).view(-1, size[2])
