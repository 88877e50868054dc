"""Inverse of a symmetric positive semi-definite matrix: Cholesky, or eigenvectors where it is singular."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.linalg import lapack

EPS = torch.finfo(torch.float64).eps
ROWS = 512


@dataclass(frozen=True)
class Inverse:
    """The inverse or pseudo-inverse of a matrix, as its upper triangle, and how it was computed."""

    upper: torch.Tensor
    rank: int
    method: str
    relative_cut: float

    @cached_property
    def full(self) -> torch.Tensor:
        """Both triangles: the lower one is filled in from the upper, in place (threads that race write the same)."""
        for i in range(0, len(self.upper), ROWS):
            corner = self.upper[i : i + ROWS, i : i + ROWS]
            corner.copy_(corner.triu() + corner.triu(1).T)
            self.upper[i + ROWS :, i : i + ROWS] = self.upper[i : i + ROWS, i + ROWS :].T
        return self.upper


def invert(assemble: Callable[[], torch.Tensor]) -> Inverse:
    """Invert the matrix whose upper triangle `assemble` writes into a new (P, P) tensor; that tensor is overwritten.

    Full rank is proved by ‖H‖_F·‖H⁻¹‖_F, an upper bound of the condition number, staying below 1/(P·eps). Where it does
    not, the matrix is assembled again and the pseudo-inverse on the numerical range is taken: the eigenvectors with
    eigenvalues above P·eps of the largest.
    """
    matrix = assemble()
    cut = len(matrix) * EPS
    norm = _frobenius(matrix)
    if norm > 0.0 and _cholesky_inverse_in_place(matrix) and norm * _frobenius(matrix) < 1.0 / cut:
        return Inverse(matrix, len(matrix), "cholesky", cut)
    del matrix
    return _eigen_inverse(assemble(), cut)


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


def _eigen_inverse(matrix: torch.Tensor, cut: float) -> Inverse:
    values, vectors = torch.linalg.eigh(matrix, UPLO="U")
    rank = int((values > cut * values[-1].clamp_min(0.0)).sum())
    largest = slice(len(values) - rank, None)  # eigenvalues ascend
    vectors = vectors[:, largest].mul_(values[largest].rsqrt())
    torch.mm(vectors, vectors.T, out=matrix)
    return Inverse(matrix, rank, "eigenvectors", cut)


def _frobenius(matrix: torch.Tensor) -> float:
    total = 0.0
    for i in range(0, len(matrix), ROWS):
        corner = matrix[i : i + ROWS, i : i + ROWS]
        total += float(2 * corner.triu(1).square().sum() + corner.diagonal().square().sum())
        total += 2 * float(matrix[i : i + ROWS, i + ROWS :].square().sum())
    return total**0.5
