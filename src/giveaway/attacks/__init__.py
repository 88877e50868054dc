"""Membership-inference attacks, each a pure function of Signals, and the training of the models that give them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from giveaway.attacks.lira import lira, lira_within
from giveaway.attacks.rmia import rmia
from giveaway.attacks.thresholds import AttackScores, shokri, threshold

if TYPE_CHECKING:
    from giveaway.attacks.recipes import RECIPES, train_recipe
    from giveaway.attacks.retraining import Retraining
    from giveaway.attacks.shadow import RetrainedRecords, leave_one_out, retrain_without, train_shadows
    from giveaway.attacks.shadow_store import balanced_membership, model_seed
    from giveaway.attacks.stacked import train_stacked
    from giveaway.attacks.training import Training

_HOMES = {  # an audit must not wait for what trains models
    **dict.fromkeys(("RECIPES", "train_recipe"), "recipes"),
    "Retraining": "retraining",
    **dict.fromkeys(("RetrainedRecords", "leave_one_out", "retrain_without", "train_shadows"), "shadow"),
    **dict.fromkeys(("balanced_membership", "model_seed"), "shadow_store"),
    **dict.fromkeys(("Training", "train_stacked"), "stacked"),
}

__all__ = ["RECIPES", "AttackScores", "RetrainedRecords", "Retraining", "Training", "balanced_membership"]
__all__ += [
    "leave_one_out",
    "lira",
    "lira_within",
    "model_seed",
    "retrain_without",
    "rmia",
    "shokri",
    "threshold",
    "train_recipe",
]
__all__ += ["train_shadows", "train_stacked"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'giveaway.attacks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"giveaway.attacks.{_HOMES[name]}"), name)
