"""The truth: what LiRA, RMIA and Shokri's attack find of every record, over all references (README.md says how)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks.measuring import environment, read_json, write_json
from benchmarks.reproduce.job import Job, check_plan, keep_plan, read_piece, write_piece
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
    """What one attack finds: success rate and effect size of every record, the threshold, the balanced accuracy."""

    success: np.ndarray
    effect: np.ndarray
    threshold: float
    accuracy: float

    @property
    def ordered(self) -> np.ndarray:
        """Return places by success, ties by effect size; all that tie in both share a place."""
        both = np.stack([self.success, self.effect], axis=1)
        return np.unique(both, axis=0, return_inverse=True)[1].reshape(-1).astype(np.float64)


@dataclass(frozen=True)
class Attacked:
    """All that the references tell: each attack's truth, LiRA's from either half of them, how they fit, and the seconds
    that they and the attacks took."""

    truth: dict[str, Truth]
    halves: list[Truth]
    fit: dict[str, Any]
    seconds: dict[str, float]


def attack_references(
    job: Job, plan: Mapping[str, Any], train: Callable[[], Signals], fit: Callable[[Signals], dict[str, Any]]
) -> Attacked:
    """Attack the references, and keep the truth in WORK/truth-MODELS, which is small and enough: with it, references
    are neither trained nor read again. It belongs to one `plan`, which names all that they depend on."""
    folder = job.work / f"truth-{job.models}"
    marker = folder / "plan.json"
    plan = {**plan, "seed": job.seed, "device": environment(job.device)["device"]}
    check_plan(marker, plan)
    references = cache(train)
    observed = cache(lambda: statistics(references()))

    def truth_of(file: str, attack: str, phase: str, models: np.ndarray | None = None) -> Truth:
        path = folder / f"{file}.npz"
        if not path.exists():
            references()
            with job.phase(phase):
                signals = observed() if attack == "lira" else references()
                found = attack_truth(attack, signals if models is None else signals.of_models(models))
            keep_plan(marker, plan)
            told = {"threshold": found.threshold, "accuracy": found.accuracy}
            write_piece(path, {"success": found.success, "effect": found.effect}, told)
            job.stop_in_time()
        columns, told = read_piece(path)
        return Truth(**columns, **told)

    files = {name: f"{name}-{GAMMA:g}" if name == "rmia" else name for name in ATTACKS}  # not one of another γ
    truth = {name: truth_of(file, name, "attacks") for name, file in files.items()}
    halves = [truth_of(f"half-{number}", "lira", "halves", own) for number, own in enumerate(halves_of(job.models))]
    noted = folder / "references.json"
    if not noted.exists():
        seconds = {phase: job.seconds()[phase] for phase in ("references", "attacks")}
        write_json(noted, {"fit": fit(references()), "seconds": seconds})
    return Attacked(truth, halves, **read_json(noted))


def halves_of(models: int) -> list[np.ndarray]:
    """Split the references into every other pair and the rest, to see how far one truth is from another like it. No
    halves are returned where one is too small to be attacked."""
    pairs = np.arange(models) // 2
    found = [np.flatnonzero(pairs % 2 == half) for half in (0, 1)]
    return found if min(map(len, found)) >= LEAST_OF_A_HALF else []


def attack_truth(name: str, references: Signals) -> Truth:
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
    """Return the statistic that LiRA reads, computed once for all uses."""
    values = np.concatenate([references.statistic(part) for part in references.blocks()], axis=1)
    return Signals(values, references.members, "phi")


def as_probabilities(errors: Signals) -> Signals:
    """Return the likelihood of each value, and the rest to 1, as two classes of which the first is right."""
    assert errors.population is not None
    left_out = errors.values[..., 0][~errors.members].mean(dtype=np.float64)

    def two(values: np.ndarray) -> np.ndarray:
        p = np.exp(-np.maximum(values.astype(np.float64), SMALLEST_ERROR) / (2 * left_out))
        return np.stack([p, 1 - p], axis=-1)

    labels = np.zeros(errors.records, np.int64)
    others = np.zeros(errors.population.shape[1], np.int64)
    return Signals(two(errors.values), errors.members, "probabilities", labels, two(errors.population), others)


def effect_of(attack: AttackScores) -> np.ndarray:
    """Return (mean of the members' scores − mean of the others') / pooled deviation, record by record."""
    scores = attack.scores[:, :, None]
    (_, inside, varied_in), (_, outside, varied_out) = (moments(scores, of) for of in (attack.members, ~attack.members))
    pooled = np.sqrt((varied_in + varied_out) / 2)
    gap = inside - outside
    return np.divide(gap, pooled, out=np.zeros_like(gap), where=pooled > 0)[:, 0]


def best_threshold(attack: AttackScores) -> float:
    """Return the threshold above which "member" has the best balanced accuracy over all models and records."""
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
    """Return the mean of the true-positive and true-negative rates."""
    says = attack.scores > threshold
    return float((says[attack.members].mean() + (~says[~attack.members]).mean()) / 2)
