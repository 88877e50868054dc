"""Largest eigen- and singular values of many small matrices at once, by iteration instead of a batched SVD.

Small matrices are squared repeatedly: A^(2^k) soon maps every vector onto the top eigenvector. Larger ones get Lanczos
steps, restarted from their Ritz vector. A residual ‖Av − ρv‖ leaves an error of its square over the gap below ρ: small
matrices stop where the residual is RESIDUAL·ρ, large ones where that estimate is ERROR·ρ. What has not converged (a
cluster at the top) is decomposed exactly.
"""

from __future__ import annotations

import torch

RESIDUAL = 1e-7
ERROR = 1e-12
SQUARED_UP_TO = 24
SQUARINGS = (6, 2, 2, 2)  # between one look at the residuals and the next
LANCZOS_STEPS = 16
RESTARTS = 12
TINY = torch.finfo(torch.float64).tiny


def top_eigenvalue(matrices: torch.Tensor) -> torch.Tensor:
    """Return λ_max of symmetric positive semi-definite matrices (R, R, Q) → (Q,)."""
    if len(matrices) == 1:
        return matrices[0, 0].clone()
    # the largest entry stands on the diagonal
    scale = matrices.diagonal(dim1=0, dim2=1).amax(1).clamp_min(TINY)
    return scale * _top(_over(matrices, scale))


def top_singular_value(matrices: torch.Tensor) -> torch.Tensor:
    """Return σ_max of square matrices (R, R, Q) → (Q,)."""
    if len(matrices) == 1:
        return matrices[0, 0].abs()
    scale = torch.maximum(matrices.amax(dim=(0, 1)), -matrices.amin(dim=(0, 1))).clamp_min(TINY)
    batch = _over(matrices, scale)
    return scale * _top(torch.bmm(batch, batch.mT)).sqrt()


def _over(matrices: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the matrices divided by `scale`, as (Q, R, R)."""
    return (matrices / scale).permute(2, 0, 1).contiguous()


def _top(matrices: torch.Tensor) -> torch.Tensor:
    return _by_squaring(matrices) if matrices.shape[1] <= SQUARED_UP_TO else _by_lanczos(matrices)


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
        still = torch.addcmul(image, v, ritz.unsqueeze(1), value=-1).norm(dim=1) > RESIDUAL * ritz
        if not bool(still.any()):
            return value
        open_rows, remaining, power = open_rows[still], remaining[still], power[still]
    value[open_rows] = torch.linalg.eigvalsh(remaining)[:, -1]
    return value


def _start(matrices: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(matrices.shape[1], generator=generator, dtype=matrices.dtype).to(matrices.device)


def _by_lanczos(matrices: torch.Tensor) -> torch.Tensor:
    start = _start(matrices)
    v = (start / start.norm()).expand(len(matrices), -1)
    value = matrices.new_zeros(len(matrices))
    open_rows, remaining = torch.arange(len(matrices), device=matrices.device), matrices
    for _ in range(RESTARTS):
        ritz, error, v = _lanczos_round(remaining, v)
        value[open_rows] = ritz
        still = error > ERROR * ritz
        if not bool(still.any()):
            return value
        open_rows, v, remaining = open_rows[still], v[still], remaining[still]
    value[open_rows] = torch.linalg.eigvalsh(remaining)[:, -1]
    return value


def _lanczos_round(matrices: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the top Ritz value, an estimate of its error, and the Ritz vector, after LANCZOS_STEPS from v (Q, R).

    Vectors are not kept orthogonal beyond the recurrence: what that loses shows as copies of converged Ritz values,
    which close the gap but leave the residual small.
    """
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
    return ritz, torch.minimum(residual, residual.square() / gap), vector
