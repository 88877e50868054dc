"""Leave-one-out distinguishability under a kernel that has not seen the trained model."""

from __future__ import annotations

import torch

from giveaway.gp.distinguishability import Divergence


def lood_kl(found: Divergence) -> torch.Tensor:
    """KL(f without ‖ f with) at the record's own input."""
    return found.kl


def lood_mean(found: Divergence) -> torch.Tensor:
    """½‖mean without − mean with‖², summed over outputs."""
    return found.mean
