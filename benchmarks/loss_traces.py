"""Loss traces (arXiv 2411.05743) by their own protocol, beside our scores: how many of the records that a score ranks
highest does LiRA flag at 0.1 % false positives?

WideResNet-28-2, SGD 0.1 with Nesterov's momentum and a cosine, batches of 256, decay 5e-4, shifts and flips, each model
on a random half. Targets keep every record's loss in training mode on the plain image, before training and after each
epoch (LT-IQR is the distance of its quartiles), and the losses that training computes anyway. The truth is the LiRA
score of the target against all references, at the image and its mirror image: flagged is what exceeds all but 0.1 %
of the scores of records that the target was not trained on. Precision among the 1 and 5 % with the highest scores, and
Spearman with the LiRA score. Printed for WRN-28-2 on CIFAR-10, 256 references: LT-IQR .920, .760, .62; mean loss .908
at 1 %; loss .208; base rate .097.

    python -m benchmarks.loss_traces --data DIR [--set cifar10 | bloodmnist] [--models 64] [--targets 4] [--epochs 100]
        [--device cuda] [--work DIR] [--limit SECONDS] [--result FILE.json]

--work (benchmarks/results/loss_traces_SET by default) keeps the scores of every target, and of the references the mean
and variance of φ with and without each record: a few megabytes, from which a later command goes on, on any machine
(exit status 75: more references are to be trained; the result is of those there are). Without --data, images are made
and small networks are trained, to try the code on; --work and --result are then needed.
"""

import math
import sys
import time
from argparse import Namespace
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import giveaway as ga
from benchmarks.data import arrays, cifar10_training
from benchmarks.measuring import RESULTS, digits, environment, read_options, write_result
from benchmarks.networks import build_wide_resnet
from benchmarks.reproduce.gls.training import Images, Run, Schedule, Trainer, made_images, phi_of
from benchmarks.reproduce.job import Arrays, keep_plan, read_piece, write_piece
from giveaway.attacks.lira import FLOOR, moments
from giveaway.attacks.shadow_store import model_membership, model_seed
from giveaway.evaluation import spearman
from giveaway.extract import Batches

RUN_AGAIN = 75
FALSE_POSITIVES, KEPT = 0.001, (0.01, 0.05)
OURS = ("loss", "newton", "trace", "fused")
FIRST_TARGET = 10_000
TOGETHER = 4  # models trained side by side
FEWEST = 8  # references


@dataclass(frozen=True)
class Cosine(Schedule):
    """From the full rate to nothing along a cosine."""

    epochs: int = 100
    rate: float = 0.1

    def rates(self, steps: int) -> np.ndarray:
        return self.rate * 0.5 * (1 + np.cos(math.pi * np.arange(steps) / steps))


def images_of(options: Namespace) -> Images:
    """Read all records; none is held out, as each model leaves half of them out."""
    if options.data is None:
        return made_images()
    if options.set == "cifar10":
        x, y = cifar10_training(options.data)
    else:
        x, y = arrays(options.data / "bloodmnist_28_train.npz", "images", "labels")
    y = y.reshape(-1).astype(np.int64)
    return Images(x, y, x[:1], y[:1])


class References:
    """The moments of φ over reference models with and without each record, which is all that LiRA asks of them: arrays
    (2, n, queries), and counts (2, n, 1). They are kept in one file, which grows with the models."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrays: Arrays = {}
        self.notes: list[dict[str, Any]] = []
        if path.exists():
            columns, told = read_piece(path)
            self.arrays = {name: column.astype(np.float64) for name, column in columns.items()}
            self.notes = told["notes"]

    def __len__(self) -> int:
        return len(self.notes)

    def add(self, phi: np.ndarray, members: np.ndarray, notes: list[dict[str, Any]]) -> None:
        """Add models: φ (models, n, queries) and the records (models, n) they were trained on."""
        sides = [moments(phi.astype(np.float64), mask) for mask in (members, ~members)]
        more = dict(zip(("count", "mean", "variance"), map(np.stack, zip(*sides, strict=True)), strict=True))
        self.arrays = _joined(self.arrays, more) if self.notes else more
        self.notes = [*self.notes, *notes]
        kept = {name: column.astype(np.float32) for name, column in self.arrays.items()}
        write_piece(self.path, kept, {"notes": self.notes})

    def lira(self, phi: np.ndarray) -> np.ndarray:
        """Return the score of every record of a model that is none of these: the mean over queries of the logarithm of
        the likelihood ratio, by a mean and a variance for each record."""
        deviation = np.sqrt(self.arrays["variance"]) + FLOOR
        away = (phi.astype(np.float64) - self.arrays["mean"]) / deviation
        likelihood = -0.5 * away**2 - np.log(deviation)
        return (likelihood[0] - likelihood[1]).mean(1)


def _joined(one: Arrays, other: Arrays) -> Arrays:
    """Return the moments of both sets of models together."""
    count = one["count"] + other["count"]
    total = np.maximum(count, 1)
    mean = (one["count"] * one["mean"] + other["count"] * other["mean"]) / total
    squares = sum(side["count"] * (side["variance"] + (side["mean"] - mean) ** 2) for side in (one, other))
    return {"count": count, "mean": mean, "variance": squares / total}


class Models:
    """Trains models side by side and keeps what is told of them in --work."""

    def __init__(self, options: Namespace) -> None:
        self.options, self.images = options, images_of(options)
        made, classes = options.data is None, int(self.images.labels.max()) + 1
        self.schedule = Cosine(epochs=2, batch=25) if made else Cosine(epochs=options.epochs)
        plan = {"set": options.set, "records": len(self.images.labels), "depth": options.depth, "width": options.width}
        keep_plan(options.work / "plan.json", {**plan, **asdict(self.schedule)})
        torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
        make = partial(build_wide_resnet, classes, 10 if made else options.depth, 1 if made else options.width)
        self.trainer = Trainer(make, self.images, self.schedule, torch.device(options.device), TOGETHER)
        self.references = References(options.work / "references.npz")
        self.deadline = time.monotonic() + options.limit

    def members(self, number: int) -> np.ndarray:
        return model_membership(number, len(self.images.labels), seed=0)

    def train_all(self) -> None:
        """Train what is missing until the time is up: all targets, then references."""
        missing = [k for k in range(self.options.targets) if not self.target_file(k).exists()]
        for first in range(0, len(missing), TOGETHER):
            self.train_targets(missing[first : first + TOGETHER])
        while len(self.references) < self.options.models and time.monotonic() < self.deadline:
            begun = len(self.references)
            self.train_references(range(begun, min(begun + TOGETHER, self.options.models)))

    def target_file(self, number: int) -> Path:
        return self.options.work / f"target-{number:03d}.npz"

    def train_references(self, numbers: range) -> None:
        began = time.perf_counter()
        members = np.stack([self.members(number) for number in numbers])
        runs = [Run(own, model_seed(number, seed=0)) for number, own in zip(numbers, members, strict=True)]
        phi = np.stack([self._phi(model) for model in self.trainer.train(*runs)])
        seconds = (time.perf_counter() - began) / len(numbers)
        notes = [self._note(own, said, seconds) for own, said in zip(members, phi, strict=True)]
        self.references.add(phi, members, notes)
        print(f"references {numbers.start} to {numbers.stop - 1}:", notes[-1], flush=True)

    def train_targets(self, numbers: list[int]) -> None:
        """Train targets, keeping every record's loss on the way, and score their records."""
        began = time.perf_counter()
        members = [self.members(FIRST_TARGET + number) for number in numbers]
        traces = [ga.LossTrace(int(own.sum()), ids=np.flatnonzero(own)) for own in members]
        losses: list[list[np.ndarray]] = [[] for _ in numbers]
        runs = []
        for number, own, trace, kept in zip(numbers, members, traces, losses, strict=True):
            rows = torch.from_numpy(np.flatnonzero(own)).to(self.trainer.device)
            tell = partial(self._keep_losses, rows, kept)
            runs.append(Run(own, model_seed(FIRST_TARGET + number, seed=0), trace, tell))
        models = self.trainer.train(*runs)
        seconds = (time.perf_counter() - began) / len(numbers)
        for number, model, own, trace, kept in zip(numbers, models, members, traces, losses, strict=True):
            table = ga.audit(self._head(model, own), trace=trace, scores=OURS)
            low, high = np.quantile(np.stack(kept).astype(np.float32), [0.25, 0.75], axis=0)
            columns = {"LT-IQR": high - low, "mean loss after epochs": np.mean(kept, axis=0, dtype=np.float32)}
            columns |= {f"{name} (ours)" if name != "loss" else name: np.asarray(table[name]) for name in OURS}
            phi = self._phi(model)
            note = self._note(own, phi, seconds)
            single = {name: column.astype(np.float32) for name, column in columns.items()}
            write_piece(self.target_file(number), {"phi": phi, **single}, note)
            print(f"target {number}:", note, flush=True)

    @torch.no_grad()
    def _keep_losses(self, own: torch.Tensor, kept: list[np.ndarray], model: nn.Module) -> None:
        """Keep the loss of each member's plain image with batch norm in training mode, as the protocol has it; the
        running averages stay as training left them."""
        trainer, held = self.trainer, [value.clone() for value in model.buffers()]
        found = []
        for rows in own.split(self.schedule.batch):
            with trainer.autocast():
                outputs = model(trainer.x[rows].permute(0, 3, 1, 2))
            found.append(cross_entropy(outputs.float(), trainer.y[rows], reduction="none"))
        for value, before in zip(model.buffers(), held, strict=True):
            value.copy_(before)
        kept.append(torch.cat(found).cpu().numpy().astype(np.float16))

    def _phi(self, model: nn.Module) -> np.ndarray:
        """Return φ of every record at the image and at its mirror image, (n, 2)."""
        sides = [phi_of(self.trainer.logits(model, mirrored=side), self.trainer.y) for side in (False, True)]
        return torch.stack(sides, 1).cpu().numpy().astype(np.float16)

    def _note(self, members: np.ndarray, phi: np.ndarray, seconds: float) -> dict[str, Any]:
        right = phi[:, 0] > 0
        told = {"accuracy_trained": digits(right[members].mean()), "accuracy_left_out": digits(right[~members].mean())}
        return {**told, "seconds": round(seconds, 1), "device": environment(self.options.device)["device"]}

    def _head(self, model: nn.Module, members: np.ndarray) -> ga.Head:
        trainer = self.trainer
        x, y = trainer.x.permute(0, 3, 1, 2).cpu(), trainer.y.cpu()
        own, rest = (
            TensorDataset(x[rows].contiguous(), y[rows]) for rows in map(torch.from_numpy, (members, ~members))
        )
        l2 = len(own) * self.schedule.weight_decay
        told: dict[str, Any] = {"batches": Batches(1000), "held_out": rest, "ids": np.flatnonzero(members)}
        return ga.from_torch(model, own, l2=l2, **told).to(self.options.device)


def flagged(scores: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return which records exceed all but 0.1 % of the scores of those that the target was not trained on."""
    outside = np.sort(scores[~members])[::-1]
    return scores > outside[int(FALSE_POSITIVES * len(outside))]


def precision(score: np.ndarray, flags: np.ndarray, lira_score: np.ndarray) -> list[float]:
    """Return the shares flagged among the highest 1 and 5 %, and Spearman with the LiRA score."""
    order = np.argsort(-score, kind="stable")
    return [*(float(flags[order[: round(share * len(order))]].mean()) for share in KEPT), spearman(score, lira_score)]


def measure(models: Models) -> dict[str, Any]:
    """Hold every score of every target against what LiRA flags."""
    options, references = models.options, models.references
    told: dict[str, Any] = {"set": options.set, "models": len(references), "targets": options.targets}
    told |= {"training": asdict(models.schedule), "network": f"WRN-{options.depth}-{options.width}"}
    found: dict[str, list[list[float]]] = {}
    rates, notes = [], [*references.notes]
    for number in range(options.targets):
        columns, note = read_piece(models.target_file(number))
        members = models.members(FIRST_TARGET + number)
        scores = references.lira(columns.pop("phi"))
        flags, scores = flagged(scores, members)[members], scores[members]
        for name, column in columns.items():
            found.setdefault(name, []).append(precision(column, flags, scores))
        rates.append(float(flags.mean()))
        notes.append(note)
    told |= {"base rate, each": digits(rates), "seconds": round(sum(note["seconds"] for note in notes))}
    told |= {
        name: digits(np.mean([note[name] for note in notes])) for name in ("accuracy_trained", "accuracy_left_out")
    }
    figures = ("precision at 1 %", "precision at 5 %", "Spearman")
    told["scores, each target"] = {
        name: dict(zip(figures, digits(np.transpose(each)), strict=True)) for name, each in found.items()
    }
    return {**told, "trained_on": sorted({note["device"] for note in notes})}


def main() -> None:
    defaults: dict[str, Any] = {"data": Path, "set": "cifar10", "models": 64, "targets": 4, "epochs": 100, "depth": 28}
    options = read_options(__doc__, **defaults, width=2, device="cpu", work=Path, result=Path, limit=1e9)
    if options.data is None and None in (options.work, options.result):
        sys.exit("--work and --result: places for a trial on made images expected, got none: name both, or give --data")
    options.work = options.work or RESULTS / f"loss_traces_{options.set}"
    options.result = options.result or options.work.with_suffix(".json")
    options.work.mkdir(parents=True, exist_ok=True)
    models = Models(options)
    models.train_all()
    if len(models.references) >= min(FEWEST, options.models):
        write_result(options.result, measure(models), device=options.device)
    if len(models.references) < options.models:
        print(f"{len(models.references)} of {options.models} references are there: run again to go on")
        sys.exit(RUN_AGAIN)


if __name__ == "__main__":
    main()
