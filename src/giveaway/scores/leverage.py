"""Leverage and the generalized leverage score: how far a record's own target pulls its own prediction."""

from __future__ import annotations

import torch

from giveaway.scores.batch import Batch


def leverage(batch: Batch) -> torch.Tensor:
    """trace(W B)/r, in [0, 1] for one record; a group's is summed over its records, and lies in [0, records]."""
    return (gls_trace(batch) / batch.loss.degrees).clamp(0.0, batch.outputs.shape[1])


def gls_trace(batch: Batch) -> torch.Tensor:
    """trace(W B)."""
    return batch.blocks.trace()


def gls_frobenius(batch: Batch) -> torch.Tensor:
    """‖W B‖_F."""
    return batch.blocks.frobenius()


def gls_spectral(batch: Batch) -> torch.Tensor:
    """‖W B‖₂."""
    return batch.blocks.spectral()


def gls_trace_logit(batch: Batch) -> torch.Tensor:
    """trace of ∂f/∂y."""
    return batch.blocks.trace(logit=True)


def gls_frobenius_logit(batch: Batch) -> torch.Tensor:
    """‖∂f/∂y‖_F."""
    return batch.blocks.frobenius(logit=True)


def gls_spectral_logit(batch: Batch) -> torch.Tensor:
    """‖∂f/∂y‖₂."""
    return batch.blocks.spectral(logit=True)
