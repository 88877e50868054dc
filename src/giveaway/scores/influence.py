"""First-order estimates of the loss gap between a model without the record and one with it."""

from __future__ import annotations

import torch

from giveaway.scores.batch import Batch


def influence(batch: Batch) -> torch.Tensor:
    """gᵀ B g: the influence function."""
    return (batch.gradient * batch.image).sum(dim=(1, 2))


def newton(batch: Batch) -> torch.Tensor:
    """gᵀ B (I − W B)⁻¹ g: the same with the record's curvature taken out, one Newton step of leaving it out."""
    return (batch.gradient * batch.left_out.step).sum(dim=(1, 2))
