"""The only registry of scores: column name → function and what it needs; and what sketched scores are off by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from giveaway.scores import formulas, fusion
from giveaway.scores.formulas import ScoreBatch


@dataclass(frozen=True)
class Score:
    """One column: the function that computes it from what its `source` gives, and what it needs."""

    function: Callable[[Any], Any]
    source: str = "head"  # or one of VIEWS, "fused", "process", "theory"
    curvature: bool = True
    features: bool = True  # a linear head, which a black box has not
    classes: bool = False  # exists for class targets only
    ranks: bool = True  # among the default columns wherever its source is


CATALOGUE = {
    "loss": Score(formulas.loss, curvature=False, features=False),
    "gradient_norm": Score(lambda batch: batch.make_gradient_norm(), curvature=False),
    "entropy": Score(formulas.entropy, curvature=False, features=False, classes=True),
    "margin": Score(formulas.margin, curvature=False, features=False, classes=True),
    "leverage": Score(formulas.leverage),
    "gls_trace": Score(lambda batch: batch.blocks.trace()),
    "gls_frobenius": Score(lambda batch: batch.blocks.frobenius()),
    "gls_spectral": Score(lambda batch: batch.blocks.spectral()),
    "gls_trace_logit": Score(lambda batch: batch.blocks.trace(logit=True), ranks=False),
    "gls_frobenius_logit": Score(lambda batch: batch.blocks.frobenius(logit=True), ranks=False),
    "gls_spectral_logit": Score(lambda batch: batch.blocks.spectral(logit=True), ranks=False),
    "influence": Score(formulas.influence),
    "newton": Score(formulas.newton),
    "loo_gap": Score(formulas.loo_gap),
    "left_out": Score(fusion.left_out, source="others", curvature=False, features=False),
    "trace": Score(attrgetter("roots"), source="trace", curvature=False, features=False),
    "lt_iqr": Score(attrgetter("iqr"), source="trace", curvature=False, features=False, ranks=False),
    "relatives": Score(attrgetter("variants"), source="relatives", curvature=False, features=False),
    "out_of_bag": Score(attrgetter("bag"), source="bag", curvature=False, features=False),
    "fused": Score(fusion.fused, source="fused", curvature=False, features=False),
    "predicted_success": Score(attrgetter("success"), source="theory"),
    "predicted_auc": Score(lambda prediction: prediction.curve.auc(), source="theory"),
    "predicted_tpr": Score(lambda prediction: prediction.curve.tpr(0.01), source="theory"),
    "predicted_tpr_low": Score(lambda prediction: prediction.curve.tpr(0.001), source="theory"),
    "lood_kl": Score(attrgetter("kl"), source="process", curvature=False, features=False),
    "lood_mean": Score(attrgetter("mean"), source="process", curvature=False, features=False),
}

VIEWS = ("others", "trace", "relatives", "bag")  # sources that tell what the model would say without a record
OF_BATCH = tuple(name for name, score in CATALOGUE.items() if score.source == "head")  # networks have them too


def scores_of(batch: ScoreBatch, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """These scores of a batch, each (N,)."""
    return {name: CATALOGUE[name].function(batch) for name in names}


def standard_errors(parts: Sequence[ScoreBatch], names: Sequence[str]) -> dict[str, torch.Tensor]:
    """The standard errors of sketched scores: the spread between scores from disjoint parts of the probes."""
    each = [scores_of(batch, names) for batch in parts]
    return {name: torch.stack([one[name] for one in each]).std(0) / len(parts) ** 0.5 for name in names}


def relative_error(score: np.ndarray, error: np.ndarray) -> float | None:
    """A column's typical error over its score, at most 10, among rows whose error is known; None where none is."""
    if not (known := error > 0).any():
        return None
    of_score = error[known] / np.maximum(score[known], 0.1 * error[known])
    return round(float(np.sqrt(np.mean(of_score**2))), 6)  # the spread of few parts varies: its mean square does not
