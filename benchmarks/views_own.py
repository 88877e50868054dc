"""The views of a record and their fusion on the networks of fused_own_truth.py: tables, texts, small images.

For every set, mean and standard error over targets: every view alone, fused of all, and fused without each (without
trace, relatives and held_out it has the head and the kernel alone), as recall of the true top 1 % (by effect size) in
the kept top 5 %, of the top 5 % in the top 5 %, and Spearman's correlation. It prints where fused is below its views.

    python -m benchmarks.views_own --truth DIR --data DIR [--sets adult_mlp ...] [--device cuda] [--out FILE.json]
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import giveaway as ga
from benchmarks.fused_own import records_of, truth_of
from benchmarks.fused_own_truth import SETS
from benchmarks.fused_truth import figures
from benchmarks.measuring import read_options, write_parts
from benchmarks.views_blood import audited, losing, losses, mean_and_error
from giveaway.records import Head

NETWORKS = [name for name, one in SETS.items() if one.training is not None and name != "cifar_test_short"]
FIGURES = ("top 1 % in 5 %", "top 5 % in 5 %", "Spearman")


def head_of(held: dict[str, np.ndarray], inputs: Any, target: int) -> tuple[Head, ga.LossTrace]:
    """Return all that a user has of a target: head, records, variants of images, records held out, and the trace."""
    rows, outputs, y = held[f"index_{target}"], held[f"outputs_{target}"].astype(np.float64), held["targets"]
    rest, own = np.setdiff1d(np.arange(len(y)), rows), inputs[rows]
    y = y if outputs.shape[1] > 1 else y.astype(np.float64)
    mirrored = held.get(f"mirrored_{target}")
    head = Head(
        held[f"features_{target}"].astype(np.float64),
        outputs,
        y[rows],
        "squared" if outputs.shape[1] == 1 else "cross_entropy",
        l2=0.01,
        inputs=own.tolist() if own.dtype == object else own,
        relatives=None if mirrored is None else {"mirror": mirrored[rows].astype(np.float64)},
        held_out=(held[f"held_out_{target}"].astype(np.float64), y[rest]),
    )
    return head, ga.LossTrace.from_losses(held[f"losses_seen_{target}"], targets=y[rows])


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    with np.load(options.truth / f"{name}.npz") as file:
        held = {key: file[key] for key in file.files}
    inputs, effect = records_of(name, options.data), ga.evaluation.effect_sizes(truth_of(held)).effect_size
    found, told = [], []
    for target in range(SETS[name].targets):
        head, trace = head_of(held, inputs, target)
        columns, fusion = audited(head.to(options.device), trace)
        if head.m > 1:
            columns["loss"] = losses(held[f"outputs_{target}"], head.targets.numpy())
        columns["LT-IQR of losses seen"] = np.subtract(
            *np.nanquantile(trace.losses.astype(float), (0.75, 0.25), axis=0)
        )
        found.append({score: figures(column, effect[held[f"index_{target}"]]) for score, column in columns.items()})
        told.append(fusion)
    return {
        "targets": len(found),
        "records": len(held["targets"]),
        "figures": FIGURES,
        "scores, mean and standard error": {
            score: mean_and_error(np.array([each[score] for each in found])) for score in found[0]
        },
        "where fused is below": losing(found, "fused"),
        "where fused without trace is below": losing(found, "fused without trace"),
        "fusion": told[0],
    }


def main() -> None:
    needs = {"truth": Path, "data": Path}
    options = read_options(__doc__, "views_own.json", needs=tuple(needs), **needs, sets=NETWORKS, device="cpu")
    write_parts(options.out, options.sets, lambda name: measure(name, options), device=options.device)


if __name__ == "__main__":
    main()
