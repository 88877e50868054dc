"""Membership-inference attacks, each a pure function of Signals, and the training of the models that give them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from giveaway.attacks.leave_one_out import LeaveOneOut, leave_one_out
from giveaway.attacks.lira import lira, lira_within
from giveaway.attacks.result import AttackScores
from giveaway.attacks.rmia import rmia
from giveaway.attacks.shokri import shokri
from giveaway.attacks.thresholds import threshold

if TYPE_CHECKING:
    from giveaway.attacks.recipes import RECIPES, train_recipe
    from giveaway.attacks.retrain import retrain_without
    from giveaway.attacks.shadow import train_shadows
    from giveaway.attacks.stacked import train_stacked
    from giveaway.attacks.training import Training

# an audit must not wait for what trains models
_HOMES = {
    "RECIPES": "recipes",
    "Training": "training",
    "retrain_without": "retrain",
    "train_recipe": "recipes",
    "train_shadows": "shadow",
    "train_stacked": "stacked",
}

__all__ = [
    "RECIPES",
    "AttackScores",
    "LeaveOneOut",
    "Training",
    "leave_one_out",
    "lira",
    "lira_within",
    "retrain_without",
    "rmia",
    "shokri",
    "threshold",
    "train_recipe",
    "train_shadows",
    "train_stacked",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'giveaway.attacks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"giveaway.attacks.{_HOMES[name]}"), name)
