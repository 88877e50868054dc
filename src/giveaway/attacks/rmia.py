"""RMIA (Zarifzadeh, Liu & Shokri 2024): how many points of a population does the model favour less than the record, by
a factor γ and against what reference models expect? (docs/derivations.md)"""

import numpy as np

from giveaway.attacks.thresholds import SMALLEST, AttackScores, check_out_references, check_same_records, mean_over_out
from giveaway.checks import check_choice, check_number, check_positive, fail
from giveaway.records import Signals


def rmia(
    targets: Signals,
    references: Signals,
    *,
    mode: str = "online",
    gamma: float = 2.0,
    a: float = 0.3,
    temperature: float | None = None,
) -> AttackScores:
    """Attack every record of every target model, by reference models that are none of the targets.

    temperature=None is 2 for logits and 1 for other signals, which allow no other. The points z are the population of
    the Signals, which no model was trained on, or, where there is none, the records that the target was not trained on.
    Scores are shares of the points, the mean over several queries.

    >>> phi = np.log([[4.0, 0.25, 0.25], [0.25, 1.0, 0.25]])
    >>> target = Signals(phi[:1], members=[[True, False, False]], kind="phi")
    >>> rmia(target, Signals(phi[1:], members=[[False] * 3], kind="phi")).scores
    array([[1., 0., 1.]])
    """
    check_choice("mode", mode, ("online", "offline"))
    gamma = check_number("gamma", gamma, minimum=1.0, remedy="2 is usual")
    a = check_number("a", a, minimum=0.0, remedy="choose it between 0 and 1")
    if a > 1:
        raise fail("a", "a number of at most 1", repr(a), "choose it between 0 and 1")
    check_same_records(targets, references)
    if temperature is None:
        temperature = 2.0 if targets.kind == "logits" else 1.0
    check_positive("temperature", temperature, remedy="2 is usual")
    points = None
    if targets.population is not None or references.population is not None:
        points = _points(targets, references)
        expected_of_points = _reference_means(points[1], temperature)[1]
    if mode == "offline":
        check_out_references(references)
    elif points is None:
        check_out_references(references, needed=targets.members.sum(0) < targets.models)
    over_all, over_out = _reference_means(references, temperature)
    expected = over_all if mode == "online" else 0.5 * ((1 + a) * over_out + (1 - a))
    scores = np.empty(targets.members.shape)
    for model in range(targets.models):
        p = _confidences(targets, model, temperature)
        bounds = p / expected / gamma
        if points is not None:
            scores[model] = _count_below(_confidences(points[0], model, temperature) / expected_of_points, bounds)
            scores[model] /= points[0].records
            continue
        itself = ~targets.members[model]
        ratios = p[itself] / over_out[itself]
        if len(ratios) < 2:
            got = f"{len(ratios)} for target {model}"
            raise fail("population", "at least 2 non-members of every target", got, "pass points as population")
        counts = _count_below(ratios, bounds)
        counts[itself] -= (ratios < bounds[itself]).mean(axis=1)  # with itself, where p(x) as x and as z differ
        scores[model] = counts / (len(ratios) - itself)
    options = {"mode": mode, "gamma": gamma, "temperature": temperature} | ({"a": a} if mode == "offline" else {})
    options["population"] = "non_members" if points is None else "points"
    return AttackScores("rmia", scores, targets.members, options)


def _confidences(signals: Signals, model: int, temperature: float) -> np.ndarray:
    """Return the probability of the true label (N, Q) under one model."""
    one = signals.of_models(slice(model, model + 1))
    p = np.concatenate([one.confidence(part, temperature=temperature)[0] for part in one.blocks()])
    return np.maximum(p, SMALLEST)


def _reference_means(references: Signals, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Average (N, Q) over all references, and over those that were not trained on the record."""
    over_all = np.empty((references.records, references.queries))
    over_out = np.empty_like(over_all)
    for part in references.blocks():
        p = np.maximum(references.confidence(part, temperature=temperature), SMALLEST)
        over_all[part] = p.mean(axis=0)
        over_out[part] = mean_over_out(p, references.members[:, part])
    return over_all, over_out


def _points(targets: Signals, references: Signals) -> tuple[Signals, Signals]:
    """Return the population's points as records that no model was trained on."""
    points = []
    for argument, signals in (("targets", targets), ("references", references)):
        if signals.population is None:
            raise fail(argument, "signals with a population", "none", "pass population= to both Signals, or to none")
        nowhere = np.zeros(signals.population.shape[:2], dtype=bool)
        points.append(Signals(signals.population, nowhere, signals.kind, signals.population_labels))
    ours, theirs = points
    if ours.records != theirs.records or not np.array_equal(ours.labels, theirs.labels):  # type: ignore[arg-type]
        expected = f"the {ours.records} labelled points of the targets' population"
        raise fail("references", expected, f"{theirs.records} others", "align the points")
    return ours, theirs


def _count_below(ratios: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Count for every row of bounds (N, Q) the ratios (Z, Q) below it, the mean over queries."""
    counts = [np.searchsorted(np.sort(below), bound) for below, bound in zip(ratios.T, bounds.T, strict=True)]
    return np.mean(counts, axis=0)
