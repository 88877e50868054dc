"""Scores through a whole network on one GPU, beside measured truth.

The three-block CNN whose exposure was measured (--shared DIR holds truth/) is trained on the 25,000 CIFAR-10 images of
one target model. Stages, each written as it ends:

influence : influence and gls_trace of all records through all parameters, from --probes solves.
gls : gls_trace, influence and newton of --records records, each by right sides of its own, at depth head, last:2,
    last:4 and all; Spearman with the measured effect size, and of the sketch with the exact influence.
sketches : the first stage at the other depths: Spearman over all records.

    python -m benchmarks.gpu_network --data DIR [--shared DIR] [--stages influence gls sketches] [--out FILE.json]
    python -m benchmarks.gpu_network --small   (made images, a small network, few steps, on a CPU)

--data holds cifar10.npz. Stages of an earlier run stay in the file. Damping is in units of the summed loss. Passes
through convolutions are in TF32, the products with the Jacobian that comes out in float32.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.data import arrays, cifar10_training, standardized_images
from benchmarks.measuring import ROOT, environment, read_json, read_options, timed, write_json
from benchmarks.recipes import build_cnn
from giveaway.evaluation.ranking import recall_at, spearman
from giveaway.network import InverseCurvature, Network, NetworkScores, score_records, sketch_records

DEPTHS = ("head", "last:2", "last:4", "all")
STAGES = ("influence", "gls", "sketches")
SMALL: dict[str, Any] = {"device": "cpu", "epochs": 3, "probes": 8, "records": 6, "most_steps": 10, "memory": 0.2}
SEED, TARGET = 0, 200


def read_records(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images (n, 32, 32, 3), labels and effect sizes of the target's records; a small run makes some."""
    if options.small:
        rng = np.random.default_rng(0)
        return rng.integers(0, 256, (200, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 200), rng.random(200)
    folder = options.shared / "truth"
    index, labels = arrays(folder / f"cifar10_cnn_target_{TARGET}.npz", "index", "targets")
    known, effect = arrays(folder / "cifar10_cnn_truth.npz", "labels", "effect_size")
    assert (known[index] == labels).all()
    return cifar10_training(options.data)[0][index], labels.astype(np.int64), effect[index]


def trained(x: torch.Tensor, y: torch.Tensor, epochs: int, channels: dict[str, Any]) -> nn.Module:
    """As the targets were: AdamW 1e-3 in batches of 256, no augmentation."""
    torch.manual_seed(SEED)
    model = build_cnn((3, 32, 32), 10, **channels).to(x.device)
    generator = torch.Generator().manual_seed(SEED)
    step = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).to(x.device).split(256):
            step.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            step.step()
    return model.eval()


class Run:
    """The network, its truth, and what was measured so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.device = options, torch.device(options.device)
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
        images, labels, self.truth = read_records(options)
        self.x = torch.from_numpy(standardized_images(images)).to(self.device)
        self.y = torch.from_numpy(labels).to(self.device)
        count = min(options.records, len(labels))
        self.rows = np.sort(np.random.default_rng(SEED).choice(len(labels), count, replace=False))
        channels = {"channels": (4, 6, 8)} if options.small else {}
        self.model, seconds = timed(lambda: trained(self.x, self.y, options.epochs, channels), self.device)
        with torch.no_grad():
            right = torch.cat([self.model(part).argmax(1) for part in self.x.split(1000)]) == self.y
        self.report = read_json(options.out) | {
            "environment": environment(self.device),
            "records": len(labels),
            "target": TARGET,
            "training_seconds": round(seconds, 2),
            "accuracy_trained": round(float(right.float().mean()), 4),
        }

    def stage(self, stage: str, depth: str, score: Callable[[InverseCurvature], NetworkScores]) -> NetworkScores:
        """One depth of a stage, its cost and settings, into the report."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        settings = {name: getattr(self.options, name) for name in ("damping", "rank", "tolerance", "most_steps")}
        steps: list[float] = []

        def solve() -> NetworkScores:
            data, memory = (self.x, self.y), int(1e9 * self.options.memory)
            network = Network(self.model, data, loss="cross_entropy", parameters=depth, memory=memory)
            watch = {"on_step": lambda step: steps.append(time.perf_counter())}
            return score(InverseCurvature(network, **settings, **watch, allow_unconverged=True))

        found, seconds = timed(solve, self.device)
        told = {**settings, "seconds": round(seconds, 2), **found.report}
        if len(steps) > 1:
            told["seconds_a_step"] = round((steps[-1] - steps[0]) / (len(steps) - 1), 4)
        if self.device.type == "cuda":
            told["peak_gb"] = round(torch.cuda.max_memory_allocated(self.device) / 1e9, 2)
        truth = self.truth[found.rows.numpy()]
        for name, column in found.columns.items():
            values = column.cpu().numpy()
            told[f"spearman_{name}"] = round(spearman(values, truth), 4)
            if len(values) >= 1_000:
                told[f"recall_top_1_percent_in_5_{name}"] = round(recall_at(values, truth, top=0.01, keep=0.05), 4)
        print(stage, depth, json.dumps(told), flush=True)
        self.report.setdefault(stage, {})[depth] = told
        write_json(self.options.out, self.report)
        return found

    def all_records(self, stage: str, depth: str) -> np.ndarray:
        """Influence by a sketch; no record is scored again, since neither score is in doubt at a high leverage."""
        names, probes = ("influence", "gls_trace"), self.options.probes
        found = self.stage(
            stage, depth, lambda inverse: sketch_records(inverse, probes=probes, seed=SEED, scores=names, most_redone=0)
        )
        return found["influence"].cpu().numpy()

    def chosen_records(self, depth: str) -> np.ndarray:
        """Influence, each record by its own right sides."""
        names = ("gls_trace", "influence", "newton")
        found = self.stage("gls", depth, lambda inverse: score_records(inverse, self.rows, scores=names))
        return found["influence"].cpu().numpy()


def main() -> None:
    options = read_options(
        __doc__,
        "gpu_network.json",
        shared=ROOT.parent / "shared",
        data=Path,
        stages=STAGES,
        damping=10.0,
        probes=64,
        records=128,
        tolerance=1e-3,
        most_steps=100,
        rank=512,
        epochs=25,
        memory=16.0,  # gigabytes of a piece of work
        device="cuda",
        small=False,
    )
    if options.small:
        vars(options).update(SMALL)
    run = Run(options)
    if "influence" in options.stages:
        sketched = run.all_records("influence", "all")[run.rows]
    if "gls" in options.stages:
        exact = {depth: run.chosen_records(depth) for depth in DEPTHS}["all"]
        if "influence" in options.stages:
            run.report["sketch_against_exact"] = {
                "records": len(exact),
                "spearman": round(spearman(sketched, exact), 4),
                "relative_error": round(float(np.sqrt(np.mean((sketched / exact - 1) ** 2))), 4),
            }
            write_json(options.out, run.report)
    if "sketches" in options.stages:
        for depth in DEPTHS[:-1]:
            run.all_records("sketches", depth)


if __name__ == "__main__":
    main()
