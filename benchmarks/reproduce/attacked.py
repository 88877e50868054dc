"""The truth: what LiRA, RMIA and Shokri's attack find of every record, over all references.

A record's success rate is the share of references for which the attack is right. LiRA says "member" above a likelihood
ratio of 1 and Shokri's attack above even odds; RMIA above the one threshold with the best balanced accuracy over all
references and records. RMIA's γ is 1: it asks whether the record is favoured more than others at all. At 2, which its
authors mostly use, models that generalize well favour hardly any record enough, and nothing is left to order.

Many records share a rate: the truth is the rate with ties in the order of the attack's effect size, mean score of the
members minus that of the non-members over their pooled deviation; of LiRA, that of φ. What ties in both stays tied.

Values instead of classes: LiRA looks at the logarithm of the squared error. RMIA and Shokri's attack, which are made
for probabilities, are given exp(−e²/2s²) with s² the mean squared error on records left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks.reproduce.setting import Job, check_plan, environment, keep_plan, write_arrays, write_json
from giveaway.attacks import AttackScores, lira_within, rmia, shokri
from giveaway.attacks.lira import moments
from giveaway.evaluation import effect_sizes, success_rate
from giveaway.records import Signals

ATTACKS = ("lira", "rmia", "shokri")
GAMMA = 1.0
LEAST_OF_A_HALF = 12  # references, of which each record is in half: LiRA needs three others on either side
SMALLEST_ERROR = 1e-12


@dataclass(frozen=True)
class Truth:
    """Of one attack: success rate and effect size of every record, the threshold, and the balanced accuracy."""

    success: np.ndarray
    effect: np.ndarray
    threshold: float
    accuracy: float

    @property
    def ordered(self) -> np.ndarray:
        """Places by success, ties by effect size; one place for all that tie in both."""
        both = np.stack([self.success, self.effect], axis=1)
        return np.unique(both, axis=0, return_inverse=True)[1].reshape(-1).astype(np.float64)


@dataclass(frozen=True)
class Attacked:
    """All that is asked of the references: each attack's truth, LiRA's from either half of them, how they fit, and the
    seconds that they and the attacks took."""

    truth: dict[str, Truth]
    halves: list[Truth]
    fit: dict[str, Any]
    seconds: dict[str, float]


def attacked(
    job: Job, plan: Mapping[str, Any], train: Callable[[], Signals], fit: Callable[[Signals], dict[str, Any]]
) -> Attacked:
    """Kept in WORK/truth-MODELS, which is small and enough: with it, references are neither trained nor read again. It
    is of one `plan`, which says all that they depend on."""
    folder = job.work / f"truth-{job.models}"
    marker = folder / "plan.json"
    plan = {**plan, "seed": job.seed, "device": environment(job.device)["device"]}
    check_plan(marker, plan)
    references = cache(train)
    looked_at = cache(lambda: statistics(references()))

    def kept(file: str, attack: str, phase: str, own: np.ndarray | None = None) -> Truth:
        path = folder / f"{file}.npz"
        if not path.exists():
            references()
            with job.phase(phase):
                signals = looked_at() if attack == "lira" else references()
                found = _truth(attack, signals if own is None else signals.of_models(own))
            keep_plan(marker, plan)
            write_arrays(path, {key: np.asarray(value) for key, value in vars(found).items()})
            job.stop_in_time()
        with np.load(path) as held:
            return Truth(held["success"], held["effect"], float(held["threshold"]), float(held["accuracy"]))

    files = {name: f"{name}-{GAMMA:g}" if name == "rmia" else name for name in ATTACKS}  # not one of another γ
    truth = {name: kept(file, name, "attacks") for name, file in files.items()}
    parts = halves_of(job.models)
    halves = [kept(f"half-{number}", "lira", "halves", own) for number, own in enumerate(parts)]
    noted = folder / "references.json"
    if not noted.exists():
        seconds = {phase: job.seconds()[phase] for phase in ("references", "attacks")}
        write_json(noted, {"fit": fit(references()), "seconds": seconds})
    return Attacked(truth, halves, **json.loads(noted.read_text()))


def halves_of(models: int) -> list[np.ndarray]:
    """Every other pair of references, and the rest: how far one truth is from another like it. None at all where a half
    is too small to be attacked."""
    pairs = np.arange(models) // 2
    found = [np.flatnonzero(pairs % 2 == half) for half in (0, 1)]
    return found if min(map(len, found)) >= LEAST_OF_A_HALF else []


def _truth(name: str, references: Signals) -> Truth:
    if name == "lira":
        attack, effect = lira_within(references), effect_sizes(references).effect_size
    else:
        signals = references if references.kind == "logits" else as_probabilities(references)
        attack = rmia(signals, signals, gamma=GAMMA) if name == "rmia" else shokri(signals, signals)
        effect = effect_of(attack)
    threshold = best_threshold(attack) if name == "rmia" else 0.0
    right = success_rate(attack, threshold=threshold)
    return Truth(right, effect, threshold, balanced_accuracy(attack, threshold))


def statistics(references: Signals) -> Signals:
    """What LiRA looks at, found once for all that asks for it."""
    values = np.concatenate([references.statistic(part) for part in references.blocks()], axis=1)
    return Signals(values, references.members, "phi")


def as_probabilities(errors: Signals) -> Signals:
    """The likelihood of each value, and what is left of 1, as two classes of which the first is right."""
    assert errors.population is not None
    left_out = errors.values[..., 0][~errors.members].mean(dtype=np.float64)

    def two(values: np.ndarray) -> np.ndarray:
        p = np.exp(-np.maximum(values.astype(np.float64), SMALLEST_ERROR) / (2 * left_out))
        return np.stack([p, 1 - p], axis=-1)

    labels = np.zeros(errors.records, np.int64)
    others = np.zeros(errors.population.shape[1], np.int64)
    return Signals(two(errors.values), errors.members, "probabilities", labels, two(errors.population), others)


def effect_of(attack: AttackScores) -> np.ndarray:
    """(mean of the members' scores − mean of the others') / pooled deviation, record by record."""
    scores = attack.scores[:, :, None]
    inside, outside = moments(scores, attack.members), moments(scores, ~attack.members)
    pooled = np.sqrt((inside.variance + outside.variance) / 2)
    gap = inside.mean - outside.mean
    return np.divide(gap, pooled, out=np.zeros_like(gap), where=pooled > 0)[:, 0]


def best_threshold(attack: AttackScores) -> float:
    """Above which "member" has the best balanced accuracy over all models and records."""
    scores, members = attack.scores.ravel(), attack.members.ravel()
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    hits = np.cumsum(members[order]) / members.sum()
    false = np.cumsum(~members[order]) / (~members).sum()
    last = np.append(ranked[1:] < ranked[:-1], True)  # of a tie
    gain = np.where(last, hits - false, -np.inf)
    place = int(gain.argmax())
    return float((ranked[place] + ranked[place + 1]) / 2) if place + 1 < len(ranked) else float(ranked[-1]) - 1.0


def balanced_accuracy(attack: AttackScores, threshold: float) -> float:
    """Mean of the true-positive and true-negative rates."""
    says = attack.scores > threshold
    return float((says[attack.members].mean() + (~says[~attack.members]).mean()) / 2)
