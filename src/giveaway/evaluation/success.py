"""What an attack achieves, record by record and over all of them (ROC), and what a score is worth in shadow models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from giveaway.attacks.lira import moments, side_moments
from giveaway.attacks.thresholds import AttackScores
from giveaway.checks import fail
from giveaway.evaluation.ranking import Interval, percentile_intervals, recall_at
from giveaway.records import Signals
from giveaway.theory.tradeoff import LowerBound, epsilon_lower_bound

RATES = (0.1, 0.01, 0.001, 0.0001)
LARGEST_EFFECT = 1000.0


@dataclass(frozen=True)
class EffectSizes:
    """For every record, mean and standard deviation (ddof 0) of φ over models trained with and without it, and
    (μ_in − μ_out) / √((σ_in² + σ_out²)/2)."""

    mean_in: np.ndarray
    mean_out: np.ndarray
    deviation_in: np.ndarray
    deviation_out: np.ndarray
    effect_size: np.ndarray


def effect_sizes(models: Signals) -> EffectSizes:
    """Measure LiRA's signal without the ties of its success rate; several queries are averaged.

    Where φ does not vary, an effect size has no bound and is given as 1,000, or −1,000. It is 0 for a record that all
    models were trained with, or none.
    """
    columns = np.empty((5, models.records))
    for rows in models.blocks():
        phi, members = models.statistic(rows), models.members[:, rows]
        (with_it, inside, varied_in), (without, outside, varied_out) = moments(phi, members), moments(phi, ~members)
        effect = _ratio(inside - outside, np.sqrt((varied_in + varied_out) / 2))
        effect = np.where((with_it > 0) & (without > 0), effect, 0.0)
        stacked = (inside, outside, np.sqrt(varied_in), np.sqrt(varied_out), effect)
        columns[:, rows] = [values.mean(axis=1) for values in stacked]
    return EffectSizes(*columns)


def _ratio(gap: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    least = np.maximum(deviation, np.abs(gap) / LARGEST_EFFECT)
    return np.divide(gap, least, out=np.zeros_like(gap), where=least > 0)


def success_rate(attack: AttackScores, *, threshold: float = 0.0) -> np.ndarray:
    """Return the share of the target models for which the attack is right about each record."""
    return ((attack.scores > threshold) == attack.members).mean(axis=0)


def epsilon_by_record(
    attack: AttackScores, *, delta: float, confidence: float = 0.95, threshold: float = 0.0
) -> LowerBound:
    """Return, record by record, the ε that this training leaks of it at the least, with the models as trials.

    Models that set the attack's scores must not be among the trials: `lira(some, others)`, never `lira_within`. The
    confidence is each record's own; for all n at once give 1 − (1 − confidence)/n.

    >>> members = np.repeat([[True], [False]], 50, axis=0)
    >>> epsilon_by_record(AttackScores("lira", np.where(members, 1.0, -1.0), members, {}), delta=0).value.round(2)
    array([2.57])
    """
    says, inside = attack.scores > threshold, attack.members
    counts = [mask.sum(axis=0) for mask in (says & inside, inside, says & ~inside, ~inside)]
    return epsilon_lower_bound(*counts, delta=delta, confidence=confidence)


@dataclass(frozen=True)
class AttackSummary:
    """The attack on all records of all target models: its ROC curve and the figures of it that people quote.

    `nonmembers` limits what can be said: a false-positive rate below 1/nonmembers allows none at all.
    `false_positives` and `true_positives` are the rates at every threshold, from the strictest on.
    """

    attack: str
    auc: Interval
    balanced_accuracy: Interval
    true_positive_rate: dict[float, Interval]
    members: int
    nonmembers: int
    confidence: float
    false_positives: np.ndarray
    true_positives: np.ndarray

    def tpr(self, rates: np.ndarray) -> np.ndarray:
        """Return the largest true-positive rate of a threshold whose false-positive rate is at most the one given."""
        return _tpr_at(self.false_positives, self.true_positives, rates)


def summarize(
    attack: AttackScores,
    *,
    rates: Sequence[float] = RATES,
    confidence: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
) -> AttackSummary:
    """Summarize the attack on all records of all target models, with bootstrap intervals.

    Intervals are percentiles over resampled records (each with all of its models) and, where there are several,
    resampled target models.
    """
    inside, outside = int(attack.members.sum()), int((~attack.members).sum())
    if not inside or not outside:
        raise fail("attack", "members and non-members", f"{inside} and {outside}", "take targets that left records out")
    # thresholds from the strictest: entries with the same score pass together
    place = np.unique(-attack.scores, return_inverse=True)[1].reshape(-1)
    members = attack.members.reshape(-1)
    generator = np.random.default_rng(seed)
    targets, records = attack.scores.shape
    curve = _roc(place, members, np.ones(place.shape))
    drawn = []
    for _ in range(resamples):
        by_record = generator.multinomial(records, np.full(records, 1 / records))
        by_target = generator.multinomial(targets, np.full(targets, 1 / targets)) if targets > 1 else np.ones(1)
        weight = np.outer(by_target, by_record).reshape(-1).astype(np.float64)
        drawn.append(_figures(*_roc(place, members, weight), rates))
    auc, accuracy, *at_rates = percentile_intervals(_figures(*curve, rates), np.array(drawn), confidence)
    by_rate = dict(zip(rates, at_rates, strict=True))
    return AttackSummary(attack.attack, auc, accuracy, by_rate, inside, outside, confidence, *curve)


def _roc(place: np.ndarray, members: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return false- and true-positive rates at every threshold, starting from (0, 0)."""
    steps = int(place.max()) + 1
    passed = [np.bincount(place, weights=weight * side, minlength=steps).cumsum() for side in (~members, members)]
    false_positives, true_positives = (np.concatenate([[0.0], p / p[-1] if p[-1] > 0 else p * np.nan]) for p in passed)
    return false_positives, true_positives


def _tpr_at(false_positives: np.ndarray, true_positives: np.ndarray, rates: Sequence[float] | np.ndarray) -> np.ndarray:
    return true_positives[np.searchsorted(false_positives, np.asarray(rates) + 1e-12, side="right") - 1]


def _figures(false_positives: np.ndarray, true_positives: np.ndarray, rates: Sequence[float]) -> np.ndarray:
    auc = (np.diff(false_positives) * (true_positives[1:] + true_positives[:-1]) / 2).sum()
    accuracy = (1 + (true_positives - false_positives).max()) / 2
    return np.array([auc, accuracy, *_tpr_at(false_positives, true_positives, rates)])


@dataclass(frozen=True)
class ShadowCurve:
    """The mean recall of LiRA with each number of shadow models, and of scores against the same truths."""

    sizes: tuple[int, ...]
    recall: np.ndarray
    of_scores: Mapping[str, float] = field(default_factory=dict)

    def worth(self, recall: float) -> float:
        """Return the number of shadow models at which LiRA reaches `recall`, interpolated in its logarithm.

        0 where two models already find more, infinity where all of the sizes find less.
        """
        risen, first = np.unique(np.maximum.accumulate(self.recall), return_index=True)  # the fewest of equal recall
        logs = np.log(np.array(self.sizes)[first])
        return float(np.exp(np.interp(recall, risen, logs, left=-np.inf, right=np.inf)))


def shadow_curve(
    models: Signals,
    *,
    sizes: Sequence[int] = (2, 4, 8, 16, 32, 64),
    top: float = 0.01,
    keep: float = 0.05,
    truth_models: int = 100,
    draws: int = 20,
    seed: int = 0,
    scores: Mapping[str, np.ndarray] = {},
) -> ShadowCurve:
    """Measure how many of the truth's top records LiRA finds with S of the models; other models give the truth.

    Each draw takes S models for the attack and `truth_models` others for the effect sizes that are the truth. LiRA
    ranks by the gap of the means over the standard deviation, pooled or each record's own, whichever finds more on
    average. A record that the S models cannot tell (all with it, or all without) ranks last; so it does in the truth
    with fewer than two models on a side. `scores` are held against the same truths: one of more models is less noisy,
    and would flatter them.
    """
    if max(sizes) + truth_models > models.models:
        expected = f"at most {models.models - truth_models} with {truth_models} models for the truth"
        raise fail("sizes", expected, f"{max(sizes)}", "ask for fewer, or train more models")
    generator = np.random.default_rng(seed)
    recalls, found = np.empty((draws, len(sizes), 2)), np.empty((draws, len(scores)))
    for draw in range(draws):
        order = generator.permutation(models.models)
        others = models.of_models(np.sort(order[:truth_models]))
        inside = others.members.sum(axis=0)
        truth = np.where(np.minimum(inside, truth_models - inside) >= 2, effect_sizes(others).effect_size, -np.inf)
        found[draw] = [recall_at(score, truth, top, keep) for score in scores.values()]
        for place, size in enumerate(sizes):
            chosen = models.of_models(np.sort(order[truth_models : truth_models + size]))
            recalls[draw, place] = [recall_at(ranked, truth, top, keep) for ranked in rankings(chosen)]
    of_scores = dict(zip(scores, found.mean(axis=0).tolist(), strict=True))
    return ShadowCurve(tuple(sizes), recalls.mean(axis=0).max(axis=1), of_scores)


def rankings(models: Signals) -> np.ndarray:
    """Return LiRA's scores of the records (2, n), with pooled and with per-record variance."""
    count, mean, variance = side_moments(models)
    gap = mean[0] - mean[1]
    return np.where((count > 0).all(axis=0), [gap, _ratio(gap, np.sqrt(variance.mean(axis=0)))], -np.inf)
