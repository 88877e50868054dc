"""The only registry of scores: column name → function and what it needs; and what sketched scores are off by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.scores import formulas, fusion, predicted
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

    @property
    def name(self) -> str:
        return self.function.__name__


_SCORES = [
    Score(formulas.loss, curvature=False, features=False),
    Score(formulas.gradient_norm, curvature=False),
    Score(formulas.entropy, curvature=False, features=False, classes=True),
    Score(formulas.margin, curvature=False, features=False, classes=True),
    Score(formulas.leverage),
    Score(formulas.gls_trace),
    Score(formulas.gls_frobenius),
    Score(formulas.gls_spectral),
    Score(formulas.gls_trace_logit, ranks=False),
    Score(formulas.gls_frobenius_logit, ranks=False),
    Score(formulas.gls_spectral_logit, ranks=False),
    Score(formulas.influence),
    Score(formulas.newton),
    Score(formulas.loo_gap),
    Score(fusion.left_out, source="others", curvature=False, features=False),
    Score(fusion.trace, source="trace", curvature=False, features=False),
    Score(fusion.lt_iqr, source="trace", curvature=False, features=False, ranks=False),
    Score(fusion.relatives, source="relatives", curvature=False, features=False),
    Score(fusion.out_of_bag, source="bag", curvature=False, features=False),
    Score(fusion.fused, source="fused", curvature=False, features=False),
    Score(predicted.predicted_success, source="theory"),
    Score(predicted.predicted_auc, source="theory"),
    Score(predicted.predicted_tpr, source="theory"),
    Score(predicted.predicted_tpr_low, source="theory"),
    Score(formulas.lood_kl, source="process", curvature=False, features=False),
    Score(formulas.lood_mean, source="process", curvature=False, features=False),
]

VIEWS = ("others", "trace", "relatives", "bag")  # sources that tell what the model would say without a record
CATALOGUE = {score.name: score for score in _SCORES}
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
    known = error > 0
    if not known.any():
        return None
    of_score = error[known] / np.maximum(score[known], 0.1 * error[known])
    return round(float(np.sqrt(np.mean(of_score**2))), 6)  # the spread of few parts varies: its mean square does not
