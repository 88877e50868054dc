"""How well a ranking finds what a truth finds."""

from giveaway.evaluation.ranking import recall_at, spearman

__all__ = ["recall_at", "spearman"]
