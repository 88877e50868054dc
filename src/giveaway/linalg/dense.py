"""Dense matrices: sums over pairs of features and forms back from them, an inverse, top eigen- and singular values
(docs/derivations.md)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.linalg import lapack

from giveaway.linalg.processes import in_threads

EPS, TINY = torch.finfo(torch.float64).eps, torch.finfo(torch.float64).tiny
ROWS = 512
RESIDUAL = 1e-7
ERROR = 1e-12
SQUARED_UP_TO = 24
SQUARINGS = (6, 2, 2, 2)  # between one look at the residuals and the next
LANCZOS_STEPS = 16
RESTARTS = 12
EXPANDED_BYTES = 1_100_000  # of one expanded tile: it should stay in the cache until the product has read it
BATCHED_FROM = 8  # numbers a pair from which a batched product contracts faster
PAIRS_BYTES = 32_000_000  # of the expanded pairs of all tiles
AT_ONCE_FROM = 512  # numbers a pair from which adding tile by tile would mostly move the result
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


def _cholesky_inverse_in_place(matrix: torch.Tensor) -> bool:
    if matrix.is_cuda:
        factor, info = torch.linalg.cholesky_ex(matrix, upper=True)
        if int(info) == 0:
            torch.cholesky_inverse(factor, upper=True, out=matrix)
        return int(info) == 0
    # SciPy's LAPACK works in place where torch would hold two more copies; a C-ordered upper triangle is its lower one.
    transposed = matrix.numpy().T
    _, info = lapack.dpotrf(transposed, lower=1, clean=0, overwrite_a=1)
    if info == 0:
        _, info = lapack.dpotri(transposed, lower=1, overwrite_c=1)
    return bool(info == 0)


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
    return scale * _top((matrices / scale).permute(2, 0, 1).contiguous())


def top_singular_value(matrices: torch.Tensor) -> torch.Tensor:
    """Return σ_max of square matrices (R, R, Q) → (Q,)."""
    if len(matrices) == 1:
        return matrices[0, 0].abs()
    scale = torch.maximum(matrices.amax(dim=(0, 1)), -matrices.amin(dim=(0, 1))).clamp_min(TINY)
    batch = (matrices / scale).permute(2, 0, 1).contiguous()
    return scale * _top(torch.bmm(batch, batch.mT)).sqrt()


def _top(matrices: torch.Tensor) -> torch.Tensor:
    """Return λ_max of (Q, R, R), whatever has not converged by decomposition."""
    squaring = matrices.shape[1] <= SQUARED_UP_TO
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(matrices.shape[1], generator=generator, dtype=matrices.dtype).to(matrices.device)
    value = matrices.new_zeros(len(matrices))
    open_rows, remaining = torch.arange(len(matrices), device=matrices.device), matrices
    state = matrices if squaring else (start / start.norm()).expand(len(matrices), -1)  # powers, or Ritz vectors
    for squarings in SQUARINGS if squaring else (0,) * RESTARTS:
        if squaring:
            ritz, still, state = _squaring_round(remaining, state, start, squarings)
        else:
            ritz, still, state = _lanczos_round(remaining, state)
        value[open_rows] = ritz
        if not bool(still.any()):
            return value
        open_rows, remaining, state = open_rows[still], remaining[still], state[still]
    value[open_rows] = torch.linalg.eigvalsh(remaining)[:, -1]
    return value


def _squaring_round(
    matrices: torch.Tensor, power: torch.Tensor, start: torch.Tensor, squarings: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Square the powers of the matrices; return the Ritz value, whether it is still off, and the powers."""
    # the trace lies between λ_max and R·λ_max: a few squarings can neither overflow nor vanish
    power = power / power.diagonal(dim1=1, dim2=2).sum(1).clamp_min(TINY)[:, None, None]
    for _ in range(squarings):
        power = torch.bmm(power, power)
    v = torch.matmul(power, start)
    v = v / v.norm(dim=1, keepdim=True).clamp_min(TINY)
    image = torch.bmm(matrices, v.unsqueeze(2)).squeeze(2)
    ritz = (v * image).sum(1)
    return ritz, torch.addcmul(image, v, ritz.unsqueeze(1), value=-1).norm(dim=1) > RESIDUAL * ritz, power


def _lanczos_round(matrices: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take LANCZOS_STEPS from v (Q, R); return the top Ritz value, whether it is still off, and the Ritz vector. What
    the recurrence loses of orthogonality shows as copies of converged values, which leave the residual small."""
    basis = matrices.new_zeros(len(matrices), LANCZOS_STEPS, matrices.shape[1])
    small = matrices.new_zeros(len(matrices), LANCZOS_STEPS, LANCZOS_STEPS)
    before, beta = torch.zeros_like(v), matrices.new_zeros(len(matrices))
    for step in range(LANCZOS_STEPS):
        basis[:, step] = v
        w = torch.bmm(v.unsqueeze(1), matrices).squeeze(1)
        alpha = torch.linalg.vecdot(w, v)
        small[:, step, step] = alpha
        w = torch.addcmul(w, alpha.unsqueeze(1), v, value=-1).addcmul_(beta.unsqueeze(1), before, value=-1)
        beta = torch.linalg.vector_norm(w, dim=1)
        # an invariant subspace has been found: what follows would be rounding noise
        beta.masked_fill_(beta <= 1e-14 * small[:, 0, 0], 0.0)
        before, v = v, w / beta.masked_fill(beta == 0, torch.inf).unsqueeze(1)
        if step + 1 < LANCZOS_STEPS:
            small[:, step, step + 1] = small[:, step + 1, step] = beta
    values, vectors = torch.linalg.eigh(small)
    ritz, top = values[:, -1].clamp_min(0.0), vectors[:, :, -1]
    residual = beta * top[:, -1].abs()
    vector = torch.bmm(top.unsqueeze(1), basis).squeeze(1)
    vector = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True).clamp_min(TINY)
    gap = (ritz - values[:, -2]).clamp_min(TINY)
    return ritz, torch.minimum(residual, residual.square() / gap) > ERROR * ritz, vector


class PairTiles:
    """Tiles over the upper triangle of feature pairs, each pair carrying p numbers."""

    def __init__(self, d: int, p: int, device: torch.device | None = None) -> None:
        self.d, self.p = d, p
        self.expand_weights = 2 * p <= d
        # a tile of a's also holds its own lower triangle: few a's waste little, many make the product efficient
        width = min(d // 8, -(-EXPANDED_COLUMNS // p)) if self.expand_weights else d // 16
        count = d // max(4, width) or 1
        self.edges = [(d * i // count, d * (i + 1) // count) for i in range(count)]
        sizes = [(d - s) * (e - s) for s, e in self.edges]
        self.pairs = torch.zeros(sum(sizes), p, dtype=torch.float64, device=device)
        pieces = zip(self.edges, self.pairs.split(sizes), strict=True)
        self.tiles = [piece.view(d - s, e - s, p) for (s, e), piece in pieces]

    def __iter__(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        for (start, end), tile in zip(self.edges, self.tiles, strict=True):
            yield start, end, tile

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
        space = x.new_empty(rows * (len(self.pairs) if self._at_once else self._expansion))
        for i in range(0, x.shape[1], rows):
            part, target = x[:, i : i + rows], out[:, i : i + rows]
            if self._at_once:
                target.copy_(self.pairs.T @ self._all_pairs(part.contiguous(), space))
            elif self.expand_weights and self.p >= BATCHED_FROM:
                target.copy_(self._contracted(part.T.contiguous(), space).T)
            else:
                self._contract(part.contiguous(), space, target)
        return out

    def _all_pairs(self, x: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
        """Return the products of features, (pairs, c), in the order of the tiles."""
        products = space[: len(self.pairs) * x.shape[1]].view(-1, x.shape[1])
        sizes = [tile.shape[0] * tile.shape[1] for tile in self.tiles]
        for (s, e), piece in zip(self.edges, products.split(sizes), strict=True):
            _expand(x[s:], x[s:e], piece.view(-1))
        return products

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
        rows = 1024
        if self.expand_weights:
            rows = min(2048, EXPANDED_BYTES // (8 * self._expansion) // 64 * 64)
        elif self._at_once:
            rows = min(1024, PAIRS_BYTES // (8 * len(self.pairs)) // 64 * 64)
        return max(1, min(max(rows, 128), count))

    @property
    def _at_once(self) -> bool:
        return not self.expand_weights and self.p >= AT_ONCE_FROM

    @property
    def _expansion(self) -> int:
        """The expanded numbers of a record in the widest tile."""
        return max(e - s for s, e in self.edges) * (self.p if self.expand_weights else self.d)


def _expand(left: torch.Tensor, right: torch.Tensor, space: torch.Tensor) -> torch.Tensor:
    """Return (left × right, c) products of every row of left with every row of right."""
    size = len(left), len(right), left.shape[1]
    expanded = space[: size[0] * size[1] * size[2]].view(size)
    torch.mul(left.unsqueeze(1), right.unsqueeze(0), out=expanded)
    return expanded.view(-1, size[2])
