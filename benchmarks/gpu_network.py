"""Scores through a whole network on one GPU, beside measured truth: python benchmarks/gpu_network.py OUT.json.

The three-block CNN whose exposure was measured (--shared DIR holds truth/) is trained on the 25,000 CIFAR-10 images of
one target model (--weights FILE keeps it, and is read where it is there). Stages, each written as it ends:

influence : influence and gls_trace of all records through all parameters, from --probes solves.
gls : gls_trace, influence and newton of --records records, each by right sides of its own, at depth head, last:2,
    last:4 and all; Spearman with the measured effect size, and of the sketch with the exact influence.
sketches : the first stage at the other depths: Spearman over all records.

    python benchmarks/gpu_network.py OUT.json --data DIR [--shared DIR] [--stages influence gls sketches]
    python benchmarks/gpu_network.py OUT.json --small   (made images, a small network, on a CPU)

--data holds cifar10.npz. A stage that would outlast --limit seconds ends without a result; stages of an
earlier run stay in OUT.json. Damping is in units of the summed loss. --tf32 rounds the passes through convolutions
(convolutions), which leaves the products with the Jacobian that comes out in float32, or everything (all).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import environment, read_json, timed, write_json
from torch import nn

from giveaway.attacks.recipes import build_cnn
from giveaway.evaluation.ranking import recall_at, spearman
from giveaway.network import InverseCurvature, Network, NetworkScores, score_records, sketch_records

DEPTHS = ("head", "last:2", "last:4", "all")
STAGES = ("influence", "gls", "sketches")
SMALL: dict[str, Any] = {"device": "cpu", "epochs": 3, "probes": 8, "records": 6, "most_steps": 10, "memory": 0.2}


class OutOfTime(Exception):
    """The limit is reached."""


def read_truth(shared: Path, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The target's records, their labels and their measured effect sizes."""
    with np.load(shared / "truth" / f"cifar10_cnn_target_{target}.npz") as model:
        index, labels = model["index"], model["targets"].astype(np.int64)
    with np.load(shared / "truth" / "cifar10_cnn_truth.npz") as truth:
        assert (truth["labels"][index] == labels).all()
        return index, labels, truth["effect_size"][index]


def read_images(folder: Path, index: np.ndarray) -> np.ndarray:
    """Return uint8 images of these records, (n, 32, 32, 3)."""
    with np.load(folder / "cifar10.npz") as held:
        return held["x_train"][index]


def standardized(images: np.ndarray) -> torch.Tensor:
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return ((x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)).contiguous()


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int, seed: int) -> None:
    """As the targets were: AdamW 1e-3 in batches of 256, no augmentation."""
    generator = torch.Generator().manual_seed(seed)
    step = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator).to(x.device).split(256):
            step.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            step.step()
    model.eval()


class Run:
    """The network, its truth, and what was found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.began = options, time.perf_counter()
        self.device = torch.device(options.device)
        if options.small and options.data is None:
            rng = np.random.default_rng(0)
            images, labels = rng.integers(0, 256, (200, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 200)
            self.truth = rng.random(200)
        else:
            index, labels, self.truth = read_truth(options.shared, options.target)
            if options.small:
                index, labels, self.truth = index[:200], labels[:200], self.truth[:200]
            images = read_images(options.data, index)
        self.x, self.y = standardized(images).to(self.device), torch.from_numpy(labels).to(self.device)
        rng = np.random.default_rng(options.seed)
        self.rows = np.sort(rng.choice(len(labels), min(options.records, len(labels)), replace=False))
        self.report: dict[str, Any] = read_json(options.out)
        told = {"environment": environment(self.device), "records": len(labels), "target": options.target}
        self.report |= told
        self.influence: np.ndarray | None = None
        self.model = self._model()

    def _model(self) -> nn.Module:
        options = self.options
        torch.manual_seed(options.seed)
        widths = {"channels": (4, 6, 8)} if options.small else {}
        model = build_cnn((3, 32, 32), 10, **widths).to(self.device)
        if options.weights is not None and options.weights.exists():
            model.load_state_dict(torch.load(options.weights, map_location=self.device, weights_only=True))
            model.eval()
        else:
            _, seconds = timed(lambda: trained(model, self.x, self.y, options.epochs, options.seed), self.device)
            self.report["training_seconds"] = round(seconds, 2)
            if options.weights is not None:
                torch.save(model.state_dict(), options.weights)
        with torch.no_grad():
            right = torch.cat([model(part).argmax(1) for part in self.x.split(1000)]) == self.y
        self.report["accuracy_trained"] = round(float(right.float().mean()), 4)
        self.write()
        return model

    def write(self) -> None:
        write_json(self.options.out, self.report)

    def stage(self, stage: str, depth: str, score: Callable[[InverseCurvature], NetworkScores]) -> NetworkScores | None:
        """One depth of a stage, its cost and settings, into the report."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        names = ("damping", "tf32", "rank")
        told = self.report.setdefault(stage, {})[depth] = {name: getattr(self.options, name) for name in names}
        taken: list[float] = []

        def on_step(step: int) -> None:
            taken.append(time.perf_counter())
            if time.perf_counter() - self.began > self.options.limit:
                raise OutOfTime

        def solve() -> NetworkScores:
            memory = int(1e9 * self.options.memory)
            network = Network(self.model, (self.x, self.y), loss="cross_entropy", parameters=depth, memory=memory)
            told["parameters"] = network.size
            inverse = InverseCurvature(
                network,
                damping=self.options.damping,
                tolerance=self.options.tolerance,
                most_steps=self.options.most_steps,
                rank=self.options.rank,
                allow_unconverged=True,
                on_step=on_step,
            )
            told["seconds_until_solves"] = round(time.perf_counter() - began, 2)
            return score(inverse)

        began = time.perf_counter()
        try:
            found, seconds = timed(solve, self.device)
        except (OutOfTime, torch.OutOfMemoryError) as error:
            told |= {"seconds": None, "ended": type(error).__name__, "steps_taken": len(taken)}
            self.write()
            return None
        told |= {"seconds": round(seconds, 2), **found.report}
        if len(taken) > 1:
            told["seconds_a_step"] = round((taken[-1] - taken[0]) / (len(taken) - 1), 4)
        if self.device.type == "cuda":
            told["peak_gb"] = round(torch.cuda.max_memory_allocated(self.device) / 1e9, 2)
        truth = self.truth[found.rows.numpy()]
        for name, column in found.columns.items():
            values = column.cpu().numpy()
            told[f"spearman_{name}"] = round(spearman(values, truth), 4)
            if len(values) >= 1_000:
                told[f"recall_top_1_percent_in_5_{name}"] = round(recall_at(values, truth, top=0.01, keep=0.05), 4)
        print(stage, depth, json.dumps(told), flush=True)
        self.write()
        return found

    def all_records(self, stage: str, depth: str) -> None:
        """By a sketch; no record is scored again, since neither score is in doubt at a high leverage."""
        names, probes, seed = ("influence", "gls_trace"), self.options.probes, self.options.seed
        found = self.stage(
            stage, depth, lambda inverse: sketch_records(inverse, probes=probes, seed=seed, scores=names, most_redone=0)
        )
        if found is not None and depth == "all":
            self.influence = found["influence"].cpu().numpy()

    def chosen_records(self, depth: str) -> None:
        """Each by its own right sides."""
        names = ("gls_trace", "influence", "newton")
        found = self.stage("gls", depth, lambda inverse: score_records(inverse, self.rows, scores=names))
        if found is not None and depth == "all" and self.influence is not None:
            sketched, exact = self.influence[self.rows], found["influence"].cpu().numpy()
            error = np.sqrt(np.mean((sketched / exact - 1) ** 2))
            self.report["sketch_against_exact"] = {
                "records": len(exact),
                "spearman": round(spearman(sketched, exact), 4),
                "relative_error": round(float(error), 4),
            }
            self.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--data", type=Path, help="folder with cifar10.npz")
    parser.add_argument("--target", type=int, default=200)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument("--depths", nargs="+", default=DEPTHS, choices=DEPTHS, help="of gls and sketches")
    parser.add_argument("--damping", type=float, default=10.0)
    parser.add_argument("--probes", type=int, default=64)
    parser.add_argument("--records", type=int, default=128)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--most-steps", type=int, default=100)
    parser.add_argument("--rank", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--memory", type=float, default=16.0, help="gigabytes of a piece of work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=220.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tf32", default="none", choices=("none", "convolutions", "all"), help="what is in TF32")
    parser.add_argument("--small", action="store_true", help="200 records and few steps on a CPU, to try the script")
    options = parser.parse_args()
    if options.out is None or (options.data is None and not options.small):
        parser.error("name OUT.json, and the images with --data")
    if options.small:
        vars(options).update(SMALL)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    run = Run(options)
    torch.backends.cudnn.allow_tf32 = options.tf32 != "none"
    torch.backends.cuda.matmul.allow_tf32 = options.tf32 == "all"
    if "influence" in options.stages:
        run.all_records("influence", "all")
    if "gls" in options.stages:
        for depth in options.depths:
            run.chosen_records(depth)
    if "sketches" in options.stages:
        for depth in options.depths:
            if depth != "all":
                run.all_records("sketches", depth)


if __name__ == "__main__":
    main()
