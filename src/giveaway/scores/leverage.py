"""Leverage and the generalized leverage score: how far a record's own target pulls its own prediction."""

from __future__ import annotations

import torch

from giveaway.linalg.spectral import top_eigenvalue, top_singular_value
from giveaway.scores.batch import Batch

TINY = torch.finfo(torch.float64).tiny
SMALLEST, LARGEST = 1e-145, 1e145


def leverage(batch: Batch) -> torch.Tensor:
    """trace(W B)/r, in [0, 1] for one record; a group's is summed over its records, and lies in [0, records]."""
    return (gls_trace(batch) / batch.loss.degrees).clamp(0.0, batch.outputs.shape[1])


def gls_trace(batch: Batch) -> torch.Tensor:
    """trace(W B)."""
    return _trace(batch, batch.blocks.spread)


def gls_frobenius(batch: Batch) -> torch.Tensor:
    """‖W B‖_F."""
    return _frobenius(batch, batch.blocks.sensitivity)


def gls_spectral(batch: Batch) -> torch.Tensor:
    """‖W B‖₂."""
    return batch.per_group(top_singular_value(batch.blocks.sensitivity)).amax(0)


def gls_trace_logit(batch: Batch) -> torch.Tensor:
    """trace of ∂f/∂y."""
    return _trace(batch, batch.blocks.logit_sensitivity)


def gls_frobenius_logit(batch: Batch) -> torch.Tensor:
    """‖∂f/∂y‖_F."""
    return _frobenius(batch, batch.blocks.logit_sensitivity)


def gls_spectral_logit(batch: Batch) -> torch.Tensor:
    """‖∂f/∂y‖₂."""
    largest = top_singular_value if batch.blocks.lopsided else top_eigenvalue
    return batch.per_group(largest(batch.blocks.logit_sensitivity)).amax(0)


def _trace(batch: Batch, matrices: torch.Tensor) -> torch.Tensor:
    return batch.per_group(matrices.diagonal(dim1=0, dim2=1).sum(1)).sum(0)


def _frobenius(batch: Batch, matrices: torch.Tensor) -> torch.Tensor:
    norms = _root_sum_of_squares(batch, matrices)
    lost = (norms < SMALLEST) | (norms > LARGEST)
    if not bool(lost.any()):
        return norms
    # heads that are very sure of their records have blocks whose squares leave float64
    scale = batch.per_group(matrices.abs().amax(dim=(0, 1))).amax(0).clamp_min(TINY)
    scaled = matrices / scale.repeat(batch.blocks.per_group)
    return torch.where(lost, scale * _root_sum_of_squares(batch, scaled), norms)


def _root_sum_of_squares(batch: Batch, matrices: torch.Tensor) -> torch.Tensor:
    return batch.per_group(matrices.square().sum(dim=(0, 1))).sum(0).sqrt()
