"""RMIA, the robust membership-inference attack (Zarifzadeh, Liu & Shokri 2024): how many points of a population does
the model favour less than the record, by a factor γ and against what reference models expect?

score(x) = mean over z of 1[ratio(x) > γ ratio(z)], ratio(x) = p(x|θ) / p(x), with p the probability of the true label:

p(x)  `online` the plain mean over all references, trained on x or not, `offline` ½((1 + a) p_out(x) + (1 − a)) with
      p_out the mean over the references that were not trained on x
p(z)  the mean over all references that were not trained on z, in both modes and without the correction by a
z     `points` the population of the Signals, which no model was trained on, `non_members` the records that the target
      was not trained on, x itself left out; `auto` is `points` where the Signals have them
p     signal `softmax`, or `taylor_softmax` e(f_y − m) / (e(f_y − m) + Σ_{c≠y} e(f_c)) with e the Taylor series of exp,
      f the logits divided by the temperature in both
vote  over several queries, x and z compared query by query: `mean` of the queries' scores, or `majority`, where a z
      counts if more than half of the queries say so

Choosing z among the non-members uses the targets' own membership, which an attacker would have to know.
A degree of the series that is even keeps it positive; the paper's code asks for 4 and its loop stops at degree 3. The
series does not ignore a shift of all logits, as softmax does. Probabilities are taken to be at least the smallest
normal float64.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial

import numpy as np

from giveaway.attacks.thresholds import AttackScores, check_out_references, check_same_records, mean_over_out
from giveaway.checks import check_choice, check_number, check_whole, fail
from giveaway.records import Signals

MODES = ("online", "offline")
POPULATIONS = ("auto", "points", "non_members")
SIGNALS = ("softmax", "taylor_softmax")
VOTES = ("mean", "majority")
SMALLEST = np.finfo(np.float64).tiny
PAIRS_AT_ONCE = 8_000_000

Probability = Callable[[Signals, slice], np.ndarray]


def rmia(
    targets: Signals,
    references: Signals,
    *,
    mode: str = "online",
    gamma: float = 2.0,
    a: float = 0.3,
    temperature: float | None = None,
    signal: str = "softmax",
    taylor_degree: int = 4,
    taylor_margin: float = 0.6,
    vote: str = "mean",
    population: str = "auto",
) -> AttackScores:
    """Attack every record of every target model, by reference models that are none of the targets.

    temperature=None is 2 for logits and 1 for other signals, which allow no other. Scores are shares of the population,
    found by a sorted search; only a majority of several queries compares every record with every z.

    >>> phi = np.log([[4.0, 0.25, 0.25], [0.25, 1.0, 0.25]])
    >>> target = Signals(phi[:1], members=[[True, False, False]], kind="phi")
    >>> rmia(target, Signals(phi[1:], members=[[False] * 3], kind="phi")).scores
    array([[1., 0., 1.]])
    """
    check_choice("mode", mode, MODES)
    check_choice("vote", vote, VOTES)
    check_choice("population", population, POPULATIONS)
    gamma = check_number("gamma", gamma, minimum=1.0, remedy="2 is usual")
    a = check_number("a", a, minimum=0.0, remedy="choose it between 0 and 1")
    if a > 1:
        raise fail("a", "a number of at most 1", repr(a), "choose it between 0 and 1")
    check_same_records(targets, references)
    if temperature is None:
        temperature = 2.0 if targets.kind == "logits" else 1.0
    probability = _probability_of(targets, signal, temperature, taylor_degree, taylor_margin)
    if population == "auto":
        has_points = targets.population is not None or references.population is not None
        population = "points" if has_points else "non_members"

    if mode == "offline":
        check_out_references(references)
    elif population == "non_members":
        check_out_references(references, needed=targets.members.sum(0) < targets.models)
    over_all, over_out = _reference_means(references, probability)
    expected = over_all if mode == "online" else 0.5 * ((1 + a) * over_out + (1 - a))
    if population == "points":
        target_points, reference_points = _points(targets, references)
        expected_of_points = _reference_means(reference_points, probability)[1]

    def confidences(model: Signals) -> np.ndarray:
        return np.concatenate([probability(model, part)[0] for part in model.blocks()])

    scores = np.empty(targets.members.shape)
    for model in range(targets.models):
        only = slice(model, model + 1)
        p = confidences(targets.of_models(only))
        if population == "points":
            ratios = confidences(target_points.of_models(only)) / expected_of_points
            itself = np.zeros(targets.records, dtype=bool)
        else:
            itself = ~targets.members[model]
            ratios = p[itself] / over_out[itself]
            if len(ratios) < 2:
                got = f"{len(ratios)} for target {model}"
                raise fail("population", "at least 2 non-members of every target", got, "pass points as population")
        bounds = p / expected / gamma
        counts = _count_below(ratios, bounds, vote)
        if population == "non_members":
            # a record is not compared with itself, where p(x) as x and as z differ
            share = (ratios < bounds[itself]).mean(axis=1)
            counts[itself] -= share if vote == "mean" else share > 0.5
        scores[model] = counts / (len(ratios) - itself)
    options = {"mode": mode, "gamma": gamma, "temperature": temperature, "signal": signal, "population": population}
    if mode == "offline":
        options["a"] = a
    if signal == "taylor_softmax":
        options |= {"taylor_degree": taylor_degree, "taylor_margin": taylor_margin}
    return AttackScores("rmia", scores, targets.members, options | {"vote": vote})


def _probability_of(targets: Signals, signal: str, temperature: float, degree: int, margin: float) -> Probability:
    check_choice("signal", signal, SIGNALS)
    if not (np.isfinite(temperature) and temperature > 0):
        raise fail("temperature", "a finite number above 0", repr(temperature), "2 is usual")
    if signal == "softmax":
        return lambda signals, part: np.maximum(signals.confidence(part, temperature=temperature), SMALLEST)
    if targets.kind != "logits":
        got = f"'taylor_softmax' with {targets.kind}"
        raise fail("signal", "'softmax' unless signals are logits", got, "store logits")
    check_whole("taylor_degree", degree, remedy="4 is usual")
    check_number("taylor_margin", margin, minimum=0, remedy="0.6 is usual")
    coefficients = [1 / factorial(k) for k in range(degree + 1)]

    def taylor_softmax(signals: Signals, part: slice) -> np.ndarray:
        assert signals.labels is not None
        logits = np.asarray(signals.values[:, part], dtype=np.float64) / temperature
        label = np.broadcast_to(signals.labels[part][None, :, None, None], (*logits.shape[:3], 1))
        np.put_along_axis(logits, label, np.take_along_axis(logits, label, axis=-1) - margin, axis=-1)
        series = np.polynomial.polynomial.polyval(logits, coefficients)
        if not (series > 0).all():
            got = f"degree {degree} and a logit where it is not"
            raise fail("taylor_degree", "a series that stays positive", got, "every even degree does")
        return np.maximum(np.take_along_axis(series, label, axis=-1)[..., 0] / series.sum(-1), SMALLEST)

    return taylor_softmax


def _reference_means(references: Signals, probability: Probability) -> tuple[np.ndarray, np.ndarray]:
    """Average (N, Q) over all references, and over those that were not trained on the record."""
    over_all = np.empty((references.records, references.queries))
    over_out = np.empty_like(over_all)
    for part in references.blocks():
        p = probability(references, part)
        over_all[part] = p.mean(axis=0)
        over_out[part] = mean_over_out(p, references.members[:, part])
    return over_all, over_out


def _points(targets: Signals, references: Signals) -> tuple[Signals, Signals]:
    """Return the population's points as records that no model was trained on."""
    points = []
    for argument, signals in (("targets", targets), ("references", references)):
        if signals.population is None:
            raise fail(argument, "signals with a population", "none", "pass population= to Signals or 'non_members'")
        nowhere = np.zeros(signals.population.shape[:2], dtype=bool)
        points.append(Signals(signals.population, nowhere, signals.kind, signals.population_labels))
    ours, theirs = points
    if ours.records != theirs.records or not np.array_equal(ours.labels, theirs.labels):  # type: ignore[arg-type]
        expected = f"the {ours.records} labelled points of the targets' population"
        raise fail("references", expected, f"{theirs.records} others", "align the points")
    return ours, theirs


def _count_below(ratios: np.ndarray, bounds: np.ndarray, vote: str) -> np.ndarray:
    """Count for every row of bounds (N, Q) the ratios (Z, Q) below it, by the mean or the majority of the queries."""
    queries = bounds.shape[1]
    if vote == "mean" or queries == 1:
        counts = [np.searchsorted(np.sort(ratios[:, q]), bounds[:, q]) for q in range(queries)]
        return np.mean(counts, axis=0)
    wins = np.empty(len(bounds))
    size = max(1, PAIRS_AT_ONCE // len(ratios))
    for start in range(0, len(bounds), size):
        part = slice(start, start + size)
        votes = np.zeros((len(bounds[part]), len(ratios)), dtype=np.min_scalar_type(queries))
        for q in range(queries):
            votes += ratios[:, q] < bounds[part, q, None]
        wins[part] = (votes > queries // 2).sum(1)
    return wins
