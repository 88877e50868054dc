"""How well a ranking finds what a truth finds, and what an attack achieves."""

from giveaway.evaluation.agreement import Agreement, AgreementTable, agreement, agreement_over_targets
from giveaway.evaluation.attack_success import EffectSizes, effect_sizes, success_at, success_rate
from giveaway.evaluation.defensible_count import DefensibleCount, defensible_count
from giveaway.evaluation.ranking import recall_at, recall_curve, spearman
from giveaway.evaluation.retraining import RetrainingTable, beside
from giveaway.evaluation.roc import AttackSummary, summarize
from giveaway.evaluation.worth import ShadowCurve, shadow_curve

__all__ = [
    "Agreement",
    "AgreementTable",
    "AttackSummary",
    "DefensibleCount",
    "EffectSizes",
    "RetrainingTable",
    "ShadowCurve",
    "agreement",
    "agreement_over_targets",
    "beside",
    "defensible_count",
    "effect_sizes",
    "recall_at",
    "recall_curve",
    "shadow_curve",
    "spearman",
    "success_at",
    "success_rate",
    "summarize",
]
