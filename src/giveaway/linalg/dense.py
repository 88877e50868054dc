"""The inverse of a large symmetric matrix; top eigen- and singular values of many small ones (docs/derivations.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.linalg import lapack

EPS, TINY = torch.finfo(torch.float64).eps, torch.finfo(torch.float64).tiny
ROWS = 512
RESIDUAL = 1e-7
ERROR = 1e-12
SQUARED_UP_TO = 24
SQUARINGS = (6, 2, 2, 2)  # between one look at the residuals and the next
LANCZOS_STEPS = 16
RESTARTS = 12


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
