"""Kernel ridge regression of all records, and its left-out errors, from one Cholesky factor.

With K the kernel, K_λ = K + λI and a free constant, P = K_λ⁻¹ − K_λ⁻¹11ᵀK_λ⁻¹ / (1ᵀK_λ⁻¹1): leaving out the records S
gives the errors P_SS⁻¹ (P y)_S; the leverage of a record is 1 − λ P_ii. Exact: the constant and the weights are those
of a fit to the other records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from giveaway.views.kernel import kernel_matrix

NOISES = tuple(10.0 ** (k / 2) for k in range(-8, 5))  # λ beside a kernel of 1 on the diagonal
CHOSEN_ON = 3_000  # records, at random, on which λ is chosen: a variance, it does not grow with n
BLOCKS_AT_ONCE = 1 << 24  # numbers of the groups' blocks solved together


class LeftOutErrors(NamedTuple):
    """y minus what the others predict (n, C), and leverages (n,)."""

    error: torch.Tensor
    leverage: torch.Tensor


def left_out_errors(
    kernel: torch.Tensor, targets: torch.Tensor, noise: float, members: Sequence[torch.Tensor] = ()
) -> LeftOutErrors:
    """Of every record, or of every group; `members` are (B, s) row numbers by size. The kernel's lower half is used up.

    `kernel` (n, n) is overwritten. LinAlgError where a direction of it is below −λ/2, by rounding.
    """
    kernel.diagonal().add_(noise)
    torch.linalg.cholesky(kernel, out=kernel)
    inverse = torch.cholesky_inverse(kernel)
    sums = inverse.sum(0)
    weight = 1.0 / sums.sum()
    solved = inverse @ targets - torch.outer(sums, sums @ targets) * weight
    diagonal = inverse.diagonal() - sums.square() * weight
    if noise * float(diagonal.max()) > 2.0:  # at most 1 of a kernel without negative directions
        raise torch.linalg.LinAlgError("the kernel has a direction below −λ/2")
    error = solved / diagonal.unsqueeze(1)
    for rows in members:
        size = rows.shape[1]
        for part in rows.split(max(1, BLOCKS_AT_ONCE // size**2)) if size > 1 else ():
            block = inverse[part.unsqueeze(2), part.unsqueeze(1)]
            block -= sums[part].unsqueeze(2) * sums[part].unsqueeze(1) * weight
            error[part] = torch.linalg.solve(block, solved[part])
    return LeftOutErrors(error, (1.0 - noise * diagonal).clamp(0.0, 1.0))


def errors_of_rows(
    rows: torch.Tensor, targets: torch.Tensor, length: float, noise: float, members: Sequence[torch.Tensor] = ()
) -> tuple[LeftOutErrors, float]:
    """The left-out errors of scaled rows (n, d) and the λ used: the first of NOISES from `noise` on that can be.

    Distances of very many records that are nearly the same are mostly rounding: their kernel has negative directions.
    """
    while True:
        try:
            return left_out_errors(kernel_matrix(rows, length), targets, noise, members), noise
        except torch.linalg.LinAlgError:
            if noise >= NOISES[-1]:
                raise
            noise = min(larger for larger in NOISES if larger > noise)


def choose_noise(
    rows: torch.Tensor, targets: torch.Tensor, length: float, members: Sequence[torch.Tensor], *, seed: int
) -> float:
    """The λ of NOISES with the least squared left-out error on CHOSEN_ON records (whole groups)."""
    rows, targets, members = _some(rows, targets, members, seed)
    base = kernel_matrix(rows, length)
    errors = [_squared(base.clone(), targets, noise, members) for noise in NOISES]
    return NOISES[min(range(len(errors)), key=errors.__getitem__)]


def _squared(kernel: torch.Tensor, targets: torch.Tensor, noise: float, members: Sequence[torch.Tensor]) -> float:
    try:
        return float(left_out_errors(kernel, targets, noise, members).error.square().mean())
    except torch.linalg.LinAlgError:
        return math.inf


def _some(
    rows: torch.Tensor, targets: torch.Tensor, members: Sequence[torch.Tensor], seed: int
) -> tuple[torch.Tensor, torch.Tensor, Sequence[torch.Tensor]]:
    n = len(rows)
    if n <= CHOSEN_ON:
        return rows, targets, members
    generator = torch.Generator().manual_seed(seed)
    if not members:
        chosen = torch.randperm(n, generator=generator)[:CHOSEN_ON].to(rows.device)
        return rows[chosen], targets[chosen], ()
    sizes = torch.cat([torch.full((len(groups),), groups.shape[1]) for groups in members])
    taken = torch.zeros(len(sizes), dtype=torch.bool)
    room = CHOSEN_ON
    for group in torch.randperm(len(sizes), generator=generator).tolist():
        if sizes[group] <= room:
            taken[group] = True
            room -= int(sizes[group])
    if taken.sum() < 2:  # one group alone has nobody to predict it
        taken[sizes.argsort()[:2]] = True
    parts = zip(members, taken.split([len(groups) for groups in members]), strict=True)
    kept = [groups[own.to(groups.device)] for groups, own in parts]
    chosen = torch.cat([group.flatten() for group in kept])
    place = torch.zeros(n, dtype=torch.int64, device=rows.device)
    place[chosen] = torch.arange(len(chosen), device=rows.device)
    return rows[chosen], targets[chosen], [place[group] for group in kept]
