"""Baselines that look at a record's own output. A group's loss and entropy are summed, its margin is its worst."""

from __future__ import annotations

import torch

from giveaway.curvature.losses import Logistic, Softmax
from giveaway.scores.batch import Batch


def loss(batch: Batch) -> torch.Tensor:
    """ℓ."""
    return batch.loss.value(batch.outputs, batch.targets).sum(1)


def gradient_norm(batch: Batch) -> torch.Tensor:
    """‖∇ℓ‖ with respect to the head's parameters, bias included: ‖x‖·‖g‖ for one record."""
    if batch.outputs.shape[1] == 1:
        return batch.row_norms[:, 0] * batch.gradient.norm(dim=(1, 2))
    return torch.bmm(batch.x.mT, batch.gradient).norm(dim=(1, 2))


def entropy(batch: Batch) -> torch.Tensor:
    """−Σ p log p of the prediction."""
    assert isinstance(batch.loss, (Softmax, Logistic))
    return batch.loss.entropy(batch.outputs).sum(1)


def margin(batch: Batch) -> torch.Tensor:
    """max_{c≠y} f_c − f_y."""
    assert isinstance(batch.loss, (Softmax, Logistic))
    return batch.loss.margin(batch.outputs, batch.targets).amax(1)
