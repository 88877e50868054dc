"""Membership-inference attacks, each a pure function of Signals, and the training of the models that give them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from giveaway.attacks.lira import lira, lira_within
from giveaway.attacks.rmia import rmia
from giveaway.attacks.shokri import shokri
from giveaway.attacks.thresholds import AttackScores, threshold

if TYPE_CHECKING:
    from giveaway.attacks.recipes import RECIPES, train_recipe
    from giveaway.attacks.retrain import RetrainedRecords, leave_one_out, retrain_without
    from giveaway.attacks.shadow import train_shadows
    from giveaway.attacks.shadow_store import balanced_membership, model_seed
    from giveaway.attacks.stacked import Training, train_stacked

_HOMES = {  # an audit must not wait for what trains models
    "retrain": ("RetrainedRecords", "leave_one_out", "retrain_without"),
    "recipes": ("RECIPES", "train_recipe"),
    "shadow": ("train_shadows",),
    "shadow_store": ("balanced_membership", "model_seed"),
    "stacked": ("Training", "train_stacked"),
}

__all__ = [
    "RECIPES",
    "AttackScores",
    "RetrainedRecords",
    "Training",
    "balanced_membership",
    "leave_one_out",
    "lira",
    "lira_within",
    "model_seed",
    "retrain_without",
    "rmia",
    "shokri",
    "threshold",
    "train_recipe",
    "train_shadows",
    "train_stacked",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"giveaway.attacks.{home}"), name)
    raise AttributeError(f"module 'giveaway.attacks' has no attribute {name!r}")
