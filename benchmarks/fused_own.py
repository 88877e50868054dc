"""The fused score against the attack truth it was chosen on (fused_own_truth.py makes it), each view alone and joined.

For every set: mean over targets of the recall of the true top 1 % (by effect size) in the kept top 5 %, of the top 5 %
in the top 5 %, Spearman's correlation, with bootstrap intervals over targets and records; the mean paired difference of
fused and the best single score of the head; and how predicted_success is calibrated.

    python -m benchmarks.fused_own --truth DIR --data DIR [--sets digits_mlp ...] [--targets 4] [--out FILE.json]
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import giveaway as ga
from benchmarks import data as sets
from benchmarks.fused_own_truth import RECORDS, SETS, sentences
from benchmarks.fused_truth import SCORES, figures, joined, over_targets
from benchmarks.measuring import read_options, write_parts
from giveaway.attacks.lira import lira_within
from giveaway.records import ScoreTable, Signals

SINGLE = ("loss", "gls_trace", "influence", "newton")


def records_of(name: str, data: Path) -> Any:
    """The records as a user has them: strings, a table with its words, images or numbers."""
    if name.startswith("adult"):
        return sets.adult(data)[0][:RECORDS]
    if name.startswith("sst2"):
        return np.array(sentences(data)[0], dtype=object)
    return SETS[name].load(data)[0].astype(np.float32)


def truth_of(held: Any) -> Signals:
    n = held["phi"].shape[1]
    members = np.unpackbits(held["members"], axis=1)[:, :n].astype(bool)
    return Signals(held["phi"].astype(np.float32), members, kind=str(held["kind"]))


def audited(held: Any, inputs: Any, target: int) -> tuple[ScoreTable, np.ndarray]:
    rows = held[f"index_{target}"]
    outputs, y = held[f"outputs_{target}"].astype(np.float64), held["targets"][rows]
    loss = "squared" if outputs.shape[1] == 1 else "cross_entropy"
    own = inputs[rows]
    head = ga.Head(
        held[f"features_{target}"].astype(np.float64),
        outputs,
        y if loss == "cross_entropy" else y.astype(np.float64),
        loss,
        l2=0.01,
        inputs=own.tolist() if own.dtype == object else own,
    )
    names = [*SCORES, "predicted_success"]
    return ga.audit(head, scores=names), rows


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    with np.load(options.truth / f"{name}.npz") as file:
        held = {key: file[key] for key in file.files}
    inputs = records_of(name, options.data)
    signals = truth_of(held)
    effect = ga.evaluation.effect_sizes(signals).effect_size
    success = ga.evaluation.success_rate(lira_within(signals))
    given, views, calibrated = [], [], []
    for target in range(min(options.targets or SETS[name].targets, SETS[name].targets)):
        table, rows = audited(held, inputs, target)
        columns = {score: table[score] for score in SCORES}
        given.append((columns | joined(columns), effect[rows]))
        views.append(table.meta.view.to_json())
        calibrated.append((table["predicted_success"], success[rows]))
    rows = over_targets(given)
    best = max(SINGLE, key=lambda score: rows[score][0][0] + rows[score][1][0])
    apart = [np.subtract(figures(c["fused"], t), figures(c[best], t)) for c, t in given]
    spread = np.std(apart, axis=0, ddof=1) / len(apart) ** 0.5 if len(apart) > 1 else np.full(3, np.nan)
    return {
        "targets": len(given),
        "records": len(given[0][1]),
        "scores": rows,
        "fused minus best single": {
            "single": best,
            "mean": np.mean(apart, axis=0).round(4).tolist(),
            "standard error": spread.round(4).tolist(),
        },
        "predicted_success": calibration(*map(np.concatenate, zip(*calibrated, strict=True))),
        "view": views[0],
    }


def calibration(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """Means by decile of the prediction, the slope of measured on predicted, and the mean absolute difference."""
    order = np.argsort(predicted, kind="stable")
    deciles = [[round(float(v[part].mean()), 3) for v in (predicted, measured)] for part in np.array_split(order, 10)]
    slope = float(np.polyfit(predicted, measured, 1)[0]) if predicted.std() > 0 else float("nan")
    return {
        "deciles of predicted, predicted and measured": deciles,
        "slope": round(slope, 3),
        "mean": [round(float(v.mean()), 3) for v in (predicted, measured)],
        "spearman": round(ga.evaluation.spearman(predicted, measured), 3),
    }


def main() -> None:
    needs = {"truth": Path, "data": Path}
    options = read_options(__doc__, "fused_own.json", needs=tuple(needs), **needs, sets=SETS, targets=int)
    write_parts(options.out, options.sets, lambda name: measure(name, options))


if __name__ == "__main__":
    main()
