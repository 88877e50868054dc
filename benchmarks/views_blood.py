"""The views of a record and their fusion against what others rank by, on augmented networks of our own (BloodMNIST).

views_blood_truth.py makes the truth. Each target is one of the models; the other 79 tell how exposed its records are.
Two measures, mean and standard error over targets:
- recall of the true top 1 % and top 5 % (by effect size) in the kept top 5 %, and Spearman's correlation with it;
- the published measure of LT-IQR: the share of a score's top 1 % that LiRA flags as members, where the threshold lets
  0.1 % of the target's own non-members pass.
The scores: the plain loss; the losses that training saw, as their mean, as the mean of their roots (`trace`) and as
their interquartile range; LT-IQR as published, of the losses after every epoch; each view alone; fused; and fused
without each of its views. It prints where fused is below another score.

    python -m benchmarks.views_blood --truth DIR --data DIR [--recipe resnet9 cnn] [--targets 6] [--device cuda]
        [--out FILE.json]

--data holds bloodmnist_28_train.npz.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_softmax

import giveaway as ga
from benchmarks.data import arrays
from benchmarks.fused_truth import figures
from benchmarks.measuring import read_options, write_parts
from benchmarks.views_blood_truth import CHANGED, SHIFTS
from giveaway.attacks.lira import lira
from giveaway.records import Head, Signals
from giveaway.scores.fusion import fused
from giveaway.views.all_views import AllViews
from giveaway.views.others import view_of

FIGURES = ("top 1 % in 5 %", "top 5 % in 5 %", "Spearman", "LiRA flags of top 1 %")
VIEWS = ("newton", "left_out", "relatives", "trace")
FALSE_POSITIVES = 0.001
Columns = dict[str, np.ndarray]


def signals_of(path: Path) -> Signals:
    phi, packed = arrays(path, "phi", "members")
    members = np.unpackbits(packed, axis=1)[:, : phi.shape[1]].astype(bool)
    return Signals(phi.astype(np.float32), members, kind="phi")


def truth_of(signals: Signals, target: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the effect size of the target's records by all other models, and which of them LiRA flags."""
    others = signals.of_models(np.delete(np.arange(signals.models), target))
    own = signals.members[target]
    scores = lira(signals.of_models(slice(target, target + 1)), others).scores[0]
    flagged = scores > threshold_of(scores[~own])
    return ga.evaluation.effect_sizes(others).effect_size[own], flagged[own]


def threshold_of(outside: np.ndarray) -> float:
    """Return the score that at most 0.1 % of these are above."""
    return float(np.sort(outside)[::-1][int(FALSE_POSITIVES * len(outside))])


def measures(score: np.ndarray, effect: np.ndarray, flagged: np.ndarray) -> list[float]:
    first = np.argsort(-score, kind="stable")[: round(0.01 * len(score))]
    return [*figures(score, effect), float(flagged[first].mean())]


def by_hand(held: Columns, labels: np.ndarray) -> Columns:
    """Return what others rank by, from the losses alone."""
    seen, after = (held[name].astype(np.float64) for name in ("losses_seen", "losses_after"))
    return {
        "loss": losses(held["outputs"], labels),
        "mean loss seen": seen.mean(0),
        "mean √loss seen": np.sqrt(seen).mean(0),
        "LT-IQR as published": np.subtract(*np.quantile(after, (0.75, 0.25), axis=0)),
        "LT-IQR of losses seen": np.subtract(*np.quantile(seen, (0.75, 0.25), axis=0)),
        "loss of the mirror image": losses(held["mirror"], labels),
    }


def losses(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -log_softmax(outputs.astype(np.float64), axis=1)[np.arange(len(labels)), labels]


def head_of(held: Columns, images: np.ndarray, labels: np.ndarray) -> Head:
    """Return all that a user has: the head, the images, variants of them, and records held out."""
    index, rest = held["index"], held["held_index"]
    relatives = {"mirror": held["mirror"].astype(np.float64)}
    if "shift" in held:
        diagonal = [place for place, (down, right) in enumerate(SHIFTS) if down == right]  # as from_torch asks
        relatives["shift"] = held["shift"][diagonal].mean(0, dtype=np.float64)
    return Head(
        held["features"].astype(np.float64),
        held["outputs"].astype(np.float64),
        labels[index],
        "cross_entropy",
        l2=0.01,
        inputs=np.ascontiguousarray(images[index].transpose(0, 3, 1, 2)),
        relatives=relatives,
        held_out=(held["all_outputs"][rest].astype(np.float64), labels[rest]),
    )


def audited(head: Head, trace: ga.LossTrace) -> tuple[Columns, dict[str, Any]]:
    """Return every view alone, all of them fused, fused without each, and what each counted."""
    names = [name for name in (*VIEWS, "fused") if name != "relatives" or head.relatives is not None]
    table = ga.audit(head, trace=trace, scores=names)
    found = {name: table[name] for name in names}
    others, _ = view_of(head, required=True)
    seen = AllViews(head, others, trace, found["newton"]).seen
    assert np.allclose(fused(seen), found["fused"], atol=1e-6)  # what follows takes views away from the same fusion
    poorer = {
        "trace": {"roots": None},
        "relatives": {"variants": None},
        "left_out": {"error_without": None, "leverage": None},
        "held_out": {"held_out_error": None},
        "trace and held_out": {"roots": None, "held_out_error": None},
        "trace and relatives": {"roots": None, "variants": None},
        "trace, relatives and held_out": {"roots": None, "variants": None, "held_out_error": None},
    }
    for name, without in poorer.items():
        found[f"fused without {name}"] = fused(replace(seen, **without))
    found["fused without newton"] = found["fused"] - seen.weights["head"] * seen.scores["head"]
    return found, table.meta.fusion.to_json()


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    images, labels = arrays(options.data / "bloodmnist_28_train.npz", "images", "labels")
    labels = labels.astype(np.int64).reshape(-1)
    signals = signals_of(options.truth / f"blood_{name}_signals.npz")
    found, told, right, rates = [], [], [], []
    for target in range(options.targets):
        with np.load(options.truth / f"blood_{name}_target_{target}.npz") as file:
            held = {key: file[key] for key in file.files}
        index = held["index"]
        trace = ga.LossTrace.from_losses(held["losses_seen"], targets=labels[index])
        columns, view = audited(head_of(held, images, labels).to(options.device), trace)
        effect, flagged = truth_of(signals, target)
        columns = by_hand(held, labels[index]) | columns | {"the effect size itself": effect}
        found.append({score: measures(column, effect, flagged) for score, column in columns.items()})
        told.append(view)
        rates.append(float(flagged.mean()))
        correct = held["all_outputs"].argmax(1) == labels
        right.append([correct[index].mean(), correct[held["held_index"]].mean()])
    joined = {score for score in found[0] if score.startswith("fused") and score != "fused without trace"}
    single = [{score: value for score, value in each.items() if score not in joined} for each in found]
    return {
        "models": signals.models,
        "targets": options.targets,
        "records": len(index),
        "accuracy, trained and held out": np.mean(right, axis=0).round(4).tolist(),
        "LiRA's true-positive rate at 0.1 % false positives": mean_and_error(np.array(rates)[:, None])[0],
        "figures": FIGURES,
        "scores, mean and standard error": {
            score: mean_and_error(np.array([each[score] for each in found])) for score in found[0]
        },
        "where fused is below": losing(found, "fused"),
        "where fused without trace is below": losing(single, "fused without trace"),
        "what each view counts, target by target": [view["weights"] for view in told],
    }


def losing(found: list[dict[str, list[float]]], ours: str) -> list[str]:
    """Say where another score has the higher mean, with the mean difference and its standard error over targets."""
    lines = []
    for score in [name for name in found[0] if name != "the effect size itself"]:
        apart = np.array([np.subtract(each[score], each[ours]) for each in found])
        for figure, (mean, error) in zip(FIGURES, mean_and_error(apart), strict=False):
            if mean > 0:
                lines.append(f"{figure}: {score} by {mean:.4f} ± {error:.4f}")
    return lines


def mean_and_error(each: np.ndarray) -> list[list[float]]:
    """Return mean and standard error of every column of (targets, figures)."""
    error = each.std(axis=0, ddof=1) / len(each) ** 0.5
    return np.stack([each.mean(axis=0), error], axis=1).round(4).tolist()


def main() -> None:
    needs = {"truth": Path, "data": Path}
    options = read_options(
        __doc__, "views_blood.json", needs=tuple(needs), **needs, recipe=CHANGED, targets=6, device="cpu"
    )
    if options.targets < 2:
        raise SystemExit("--targets: expected 2 or more, for a standard error")
    write_parts(options.out, options.recipe, lambda name: measure(name, options), device=options.device)


if __name__ == "__main__":
    main()
