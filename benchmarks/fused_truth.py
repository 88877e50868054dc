"""How much of what LiRA finds the fused score finds, on sets whose attack truth was measured elsewhere.

The rule of the score (docs/views.md) was fixed on other sets (fused_own_truth.py) before this was first run. For every
target: recall of the true top 1 % (by effect size) in the kept top 5 %, of the top 5 % in the top 5 %, Spearman's
correlation; each view alone, other ways to join them, and what the recall is worth in shadow models. Seconds are those
of one audit with both views.

    python -m benchmarks.fused_truth --truth DIR --cifar10 cifar10.npz --bloodmnist bloodmnist_28_train.npz
        [--sets bloodmnist_cnn cifar10_cnn] [--first 200] [--targets 2] [--device cuda] [--out FILE.json]
"""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import giveaway as ga
from benchmarks.data import arrays
from benchmarks.measuring import cpu_timed, read_options, timed, write_parts
from giveaway.evaluation.success import shadow_curve
from giveaway.extract import from_file
from giveaway.extract.user_files import signals_from
from giveaway.scores.fusion import normal_scores

IMAGES = {"cifar10_cnn": ("cifar10", "x_train"), "bloodmnist_cnn": ("bloodmnist", "images")}
SIGNALS = {"cifar10_cnn": "cifar10_cnn_signals_10k.npz", "bloodmnist_cnn": "bloodmnist_cnn_signals.npz"}
SCORES = ("loss", "gls_trace", "influence", "newton", "left_out", "fused")


def audited(options: argparse.Namespace, name: str, target: int) -> tuple[dict[str, np.ndarray], np.ndarray, dict]:
    """The columns of one target, others made of them, the truth of its records, and what the audit cost."""
    path = options.truth / f"{name}_target_{target}.npz"
    head, _ = from_file(path, l2=0.01)
    (index,) = arrays(path, "index")
    (effect,) = arrays(options.truth / f"{name}_truth.npz", "effect_size")
    argument, key = IMAGES[name]
    (images,) = arrays(getattr(options, argument), key)
    head = replace(head.to(options.device), inputs=np.ascontiguousarray(images[index].transpose(0, 3, 1, 2)))
    audit = partial(ga.audit, head, scores=list(SCORES))
    (table, cpu), seconds = timed(lambda: cpu_timed(audit))
    cost = {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}
    columns = {score: table[score] for score in SCORES}
    return columns | joined(columns), effect[index], {**cost, "records": len(table), "view": table.meta.view.to_json()}


def joined(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Other ways to join a head's score and the left-out view."""
    made = {}
    for head in ("loss", "gls_trace", "newton"):
        made[f"{head} + left_out, equal weights"] = normal_scores(columns[head]) + normal_scores(columns["left_out"])
    places = {name: np.argsort(np.argsort(columns[name], kind="stable")) for name in ("newton", "left_out")}
    n = len(columns["newton"])
    made["newton + left_out, −log(1 − rank)"] = -sum(np.log1p(-(place + 0.5) / n) for place in places.values())
    made["newton + left_out, z of log"] = _z(columns["newton"]) + _z(columns["left_out"])
    made["gls_trace + newton, equal weights"] = normal_scores(columns["gls_trace"]) + normal_scores(columns["newton"])
    return made


def _z(values: np.ndarray) -> np.ndarray:
    logs = np.log(np.maximum(values, 1e-300))
    return (logs - logs.mean()) / logs.std()


def measure(options: argparse.Namespace, name: str) -> dict[str, Any]:
    targets = range(options.first, options.first + options.targets)
    found = [audited(options, name, target) for target in targets]
    measured = over_targets([(columns, truth) for columns, truth, _ in found])
    signals = signals_from(options.truth / SIGNALS[name]).of_models(np.arange(200))
    curves = {share: shadow_curve(signals, top=share[0], keep=share[1]) for share in ((0.01, 0.05), (0.05, 0.05))}
    rows = {}
    for score, (first, second, spearman) in measured.items():
        worth = {
            f"top {s[0]:.0%}": round(curve.worth(r[0]), 1)
            for (s, curve), r in zip(curves.items(), (first, second), strict=True)
        }
        rows[score] = {
            "top 1% in 5%": first,
            "top 5% in 5%": second,
            "spearman": spearman,
            "worth in shadow models": worth,
        }
    each = [
        {"target": target, **cost, "fused": [round(v, 4) for v in figures(columns["fused"], truth)]}
        for target, (columns, truth, cost) in zip(targets, found, strict=True)
    ]
    return {"scores": rows, "resampled": "targets and records" if len(found) > 1 else "records", "targets": each}


def figures(score: np.ndarray, truth: np.ndarray) -> list[float]:
    recalls = [ga.evaluation.recall_at(score, truth, top, 0.05) for top in (0.01, 0.05)]
    return [*recalls, ga.evaluation.spearman(score, truth)]


def over_targets(
    targets: list[tuple[dict[str, np.ndarray], np.ndarray]], draws: int = 100
) -> dict[str, list[list[float]]]:
    """Return each score's figures averaged over targets, with 95 % percentiles of a bootstrap of targets and, inside
    each of those drawn, of records: too narrow for fewer than about ten that differ by more than records explain."""
    rng, count = np.random.default_rng(0), len(targets)
    drawn: dict[str, list[np.ndarray]] = {score: [] for score in targets[0][0]}
    for _ in range(draws):
        chosen = rng.integers(0, count, count) if count > 1 else [0]
        rows = [(t, rng.integers(0, len(targets[t][1]), len(targets[t][1]))) for t in chosen]
        for score, found in drawn.items():
            found.append(np.mean([figures(targets[t][0][score][own], targets[t][1][own]) for t, own in rows], axis=0))
    told = {}
    for score, found in drawn.items():
        values = np.mean([figures(columns[score], truth) for columns, truth in targets], axis=0)
        told[score] = np.stack([values, *np.percentile(found, [2.5, 97.5], axis=0)], axis=1).round(4).tolist()
    return told


def main() -> None:
    files = {"truth": Path, "cifar10": Path, "bloodmnist": Path}
    options = read_options(
        __doc__, "fused_truth.json", needs=("truth",), **files, sets=IMAGES, first=200, targets=2, device="cpu"
    )
    write_parts(options.out, options.sets, lambda name: measure(options, name), device=options.device)


if __name__ == "__main__":
    main()
