"""How well a ranking finds what a truth finds, and what an attack achieves."""

from giveaway.evaluation.counts import DefensibleCount, ShadowCurve, defensible_count, shadow_curve
from giveaway.evaluation.ranking import (
    Agreement,
    AgreementTable,
    agreement,
    agreement_over_targets,
    recall_at,
    recall_curve,
    spearman,
)
from giveaway.evaluation.success import AttackSummary, EffectSizes, effect_sizes, success_at, success_rate, summarize

__all__ = [
    "Agreement",
    "AgreementTable",
    "AttackSummary",
    "DefensibleCount",
    "EffectSizes",
    "ShadowCurve",
    "agreement",
    "agreement_over_targets",
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
