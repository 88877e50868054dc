"""Largest eigen- and singular values of many small matrices at once, by iteration instead of a batched SVD.

Small matrices are squared repeatedly: A^(2^k) soon maps every vector onto the top eigenvector. Larger ones get Lanczos
steps, restarted from their Ritz vector. Both stop a matrix on its residual ‖Av − ρv‖ ≤ TOLERANCE·ρ; the error of ρ is
of the square of that. What has not converged (a cluster at the top) is decomposed exactly.
"""

from __future__ import annotations

import torch

TOLERANCE = 1e-7
SQUARED_UP_TO = 24
SQUARINGS = (6, 2, 2, 2)  # between one look at the residuals and the next
LANCZOS_STEPS = 12
RESTARTS = 12
TINY = torch.finfo(torch.float64).tiny


def top_eigenvalue(matrices: torch.Tensor) -> torch.Tensor:
    """λ_max of symmetric positive semi-definite matrices (R, R, Q) → (Q,)."""
    if len(matrices) == 1:
        return matrices[0, 0].clone()
    batch = matrices.permute(2, 0, 1).contiguous()
    return _by_squaring(batch) if len(matrices) <= SQUARED_UP_TO else _by_lanczos(batch, symmetric=True)


def top_singular_value(matrices: torch.Tensor) -> torch.Tensor:
    """σ_max of square matrices (R, R, Q) → (Q,)."""
    if len(matrices) == 1:
        return matrices[0, 0].abs()
    batch = matrices.permute(2, 0, 1).contiguous()
    if len(matrices) <= SQUARED_UP_TO:
        return _by_squaring(torch.bmm(batch.mT, batch)).sqrt()
    return _by_lanczos(batch, symmetric=False).sqrt()


def _by_squaring(matrices: torch.Tensor) -> torch.Tensor:
    start = _start(matrices)
    value = matrices.new_zeros(len(matrices))
    open_rows, remaining, power = torch.arange(len(matrices), device=matrices.device), matrices, matrices
    for squarings in SQUARINGS:
        # the trace lies between λ_max and R·λ_max: a few squarings can neither overflow nor vanish
        power = power / power.diagonal(dim1=1, dim2=2).sum(1).clamp_min(TINY)[:, None, None]
        for _ in range(squarings):
            power = torch.bmm(power, power)
        v = torch.matmul(power, start)
        v = v / v.norm(dim=1, keepdim=True).clamp_min(TINY)
        image = torch.bmm(remaining, v.unsqueeze(2)).squeeze(2)
        ritz = (v * image).sum(1)
        value[open_rows] = ritz
        still = torch.addcmul(image, v, ritz.unsqueeze(1), value=-1).norm(dim=1) > TOLERANCE * ritz
        if not bool(still.any()):
            return value
        open_rows, remaining, power = open_rows[still], remaining[still], power[still]
    value[open_rows] = torch.linalg.eigvalsh(remaining)[:, -1]
    return value


def _start(matrices: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(matrices.shape[1], generator=generator, dtype=matrices.dtype).to(matrices.device)


def _by_lanczos(matrices: torch.Tensor, *, symmetric: bool) -> torch.Tensor:
    """λ_max of A, or of AᵀA where A is not symmetric."""
    count, size = matrices.shape[:2]
    start = _start(matrices)
    v = start.expand(count, size) / start.norm()
    value = matrices.new_zeros(count)
    open_rows = torch.arange(count, device=matrices.device)
    remaining = matrices
    for _ in range(RESTARTS):
        ritz, residual, v = _lanczos_round(remaining, v, symmetric)
        value[open_rows] = ritz
        still = residual > TOLERANCE * ritz
        if not bool(still.any()):
            return value
        open_rows, v, remaining = open_rows[still], v[still], remaining[still]
    exact = torch.linalg.eigvalsh(remaining) if symmetric else torch.linalg.svdvals(remaining).square()
    value[open_rows] = exact.amax(dim=1)
    return value


def _lanczos_round(
    matrices: torch.Tensor, v: torch.Tensor, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    basis = matrices.new_zeros(len(matrices), LANCZOS_STEPS, matrices.shape[1])
    small = matrices.new_zeros(len(matrices), LANCZOS_STEPS, LANCZOS_STEPS)
    beta = matrices.new_zeros(len(matrices))
    for step in range(LANCZOS_STEPS):
        basis[:, step] = v
        w = torch.bmm(matrices, v.unsqueeze(2))
        if not symmetric:
            w = torch.bmm(w.mT, matrices).mT
        small[:, step, step] = (w.squeeze(2) * v).sum(1)
        known = basis[:, : step + 1]
        for _ in range(2):
            w = torch.baddbmm(w, known.mT, torch.bmm(known, w), alpha=-1)
        beta = w.norm(dim=(1, 2))
        # an invariant subspace has been found: what follows would be rounding noise
        beta = torch.where(beta > 1e-14 * small[:, 0, 0], beta, 0.0)
        v = w.squeeze(2) / torch.where(beta > 0, beta, torch.inf)[:, None]
        if step + 1 < LANCZOS_STEPS:
            small[:, step, step + 1] = small[:, step + 1, step] = beta
    values, vectors = torch.linalg.eigh(small)
    top = vectors[:, :, -1]
    ritz_vector = torch.bmm(top.unsqueeze(1), basis).squeeze(1)
    ritz_vector = ritz_vector / ritz_vector.norm(dim=1, keepdim=True).clamp_min(TINY)
    return values[:, -1].clamp_min(0.0), beta * top[:, -1].abs(), ritz_vector
