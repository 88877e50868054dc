"""Membership-inference attacks, each a pure function of Signals, and the training of the models that give them."""

import importlib
from typing import TYPE_CHECKING, Any

from giveaway.attacks.lira import lira, lira_within
from giveaway.attacks.rmia import rmia
from giveaway.attacks.thresholds import AttackScores, shokri, threshold

if TYPE_CHECKING:
    from giveaway.attacks.retraining import Retraining
    from giveaway.attacks.shadow import RetrainedRecords, retrain_without, train_shadows
    from giveaway.attacks.shadow_store import balanced_membership, model_seed
    from giveaway.attacks.slices import collect_slices

# where that is which trains models: an audit must not wait for it
_HOMES = {"Retraining": "retraining", "balanced_membership": "shadow_store", "model_seed": "shadow_store"}
_HOMES |= {"RetrainedRecords": "shadow", "retrain_without": "shadow", "train_shadows": "shadow"}
_HOMES |= {"collect_slices": "slices"}
__all__ = ["AttackScores", "RetrainedRecords", "Retraining", "balanced_membership", "collect_slices", "lira"]
__all__ += ["lira_within", "model_seed", "retrain_without", "rmia", "shokri", "threshold", "train_shadows"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'giveaway.attacks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"giveaway.attacks.{_HOMES[name]}"), name)
