"""The views of a record and their fusion on CIFAR-10, against attack truth that was measured elsewhere.

The rule of `fused` (docs/views.md) was fixed on other sets (views_blood_truth.py, fused_own_truth.py) before this was
first run. Two targets with the losses of their training: a CNN without augmentation, which has outputs on mirrored
images, and a ResNet-9 trained on crops and flips. For each: every view alone, fused of all, and fused without each, as
recall of the true top 1 % (by effect size) in the kept top 5 %, of the top 5 % in the top 5 %, and Spearman's
correlation.

    python -m benchmarks.views_truth --truth DIR --data DIR [--sets cnn_200 resnet9_0] [--device cuda] [--out FILE.json]

--data holds cifar10.npz.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import giveaway as ga
from benchmarks.data import arrays
from benchmarks.fused_truth import figures
from benchmarks.measuring import read_options, write_parts
from benchmarks.views_blood import audited, losses
from giveaway.records import Head

FIGURES = ("top 1 % in 5 %", "top 5 % in 5 %", "Spearman")
SETS = {  # traced target and truth; l2 is records times weight decay where training had one
    "cnn_200": ("cifar10_cnn_traced_200.npz", "cifar10_cnn_truth.npz", 0.01),
    "resnet9_0": ("cifar10_resnet9_traced_0.npz", "cifar10_resnet9_truth.npz", 12.5),
}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    traced, truth, l2 = SETS[name]
    with np.load(options.truth / traced) as file:
        held = {key: file[key] for key in file.files}
    index, labels = held["index"], held["targets"].astype(np.int64)
    (effect,), (images,) = arrays(options.truth / truth, "effect_size"), arrays(options.data / "cifar10.npz", "x_train")
    head = Head(
        held["features"].astype(np.float64),
        held["outputs"].astype(np.float64),
        labels,
        "cross_entropy",
        l2=l2,
        inputs=np.ascontiguousarray(images[index].transpose(0, 3, 1, 2)),
        relatives={"mirror": held["mirror_outputs"].astype(np.float64)} if "mirror_outputs" in held else None,
        held_out=(held["held_out_outputs"].astype(np.float64), held["held_out_targets"].astype(np.int64)),
    )
    trace = ga.LossTrace.from_losses(held["losses_seen"], targets=labels)
    columns, told = audited(head.to(options.device), trace)
    after = held["losses_after_epoch"].astype(np.float64)
    columns |= {"loss": losses(held["outputs"], labels), "mean loss seen": held["losses_seen"].astype(float).mean(0)}
    columns["LT-IQR as published"] = np.subtract(*np.quantile(after, (0.75, 0.25), axis=0))
    scores = {score: np.round(figures(column, effect[index]), 4).tolist() for score, column in columns.items()}
    return {"records": len(index), "figures": FIGURES, "scores": scores, "fusion": told}


def main() -> None:
    needs = {"truth": Path, "data": Path}
    options = read_options(__doc__, "views_truth.json", needs=tuple(needs), **needs, sets=SETS, device="cpu")
    write_parts(options.out, options.sets, lambda name: measure(name, options), device=options.device)


if __name__ == "__main__":
    main()
