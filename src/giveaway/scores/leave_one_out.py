"""The loss gap itself, at the parameters that leaving the record out leads to."""

from __future__ import annotations

import torch

from giveaway.scores.batch import Batch


def loo_gap(batch: Batch) -> torch.Tensor:
    """ℓ(f + step) − ℓ(f): exact for squared loss, at the Newton step otherwise; summed over a group's records."""
    return batch.loss.gap(batch.outputs, batch.targets, batch.left_out.step).sum(1)
