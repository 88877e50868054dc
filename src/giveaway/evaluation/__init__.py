"""How well a ranking finds what a truth finds, and what an attack achieves."""

# ruff: noqa: F401 (the names are for others)
from giveaway.evaluation.counts import defensible_count
from giveaway.evaluation.exposed_share import predict_exposure
from giveaway.evaluation.posterior import posterior
from giveaway.evaluation.ranking import agreement, recall_at, recall_curve, spearman
from giveaway.evaluation.success import effect_sizes, epsilon_by_record, shadow_curve, success_rate, summarize
