"""How well a ranking finds what a truth finds, and what an attack achieves."""

from giveaway.evaluation.counts import DefensibleCount, defensible_count
from giveaway.evaluation.exposed_share import predict_exposure
from giveaway.evaluation.posterior import EffectPosterior, posterior
from giveaway.evaluation.ranking import (
    Agreement,
    AgreementTable,
    agreement,
    agreement_over_targets,
    recall_at,
    recall_curve,
    spearman,
)
from giveaway.evaluation.success import (
    AttackSummary,
    EffectSizes,
    ShadowCurve,
    effect_sizes,
    shadow_curve,
    success_at,
    success_rate,
    summarize,
)

__all__ = ["Agreement", "AgreementTable", "AttackSummary", "DefensibleCount", "EffectPosterior"]
__all__ += ["EffectSizes", "ShadowCurve"]
__all__ += [
    "agreement",
    "agreement_over_targets",
    "defensible_count",
    "effect_sizes",
    "posterior",
    "predict_exposure",
    "recall_at",
    "recall_curve",
    "shadow_curve",
]
__all__ += ["spearman", "success_at", "success_rate", "summarize"]
