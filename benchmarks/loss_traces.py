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
        [--device cuda] [--work DIR] [--limit SECONDS] [--out FILE.json]

Every finished model is kept in --work, and the next command goes on from there (exit status 75: run again). Without
--data, images are made and small networks are trained, to try the code on.
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
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import giveaway as ga
from benchmarks.data import arrays, cifar10_training
from benchmarks.measuring import digits, environment, read_options, write_result
from benchmarks.networks import build_wide_resnet
from benchmarks.reproduce.gls.training import Images, Schedule, Trainer, made_images, phi_of
from benchmarks.reproduce.job import Piece, keep_plan, read_piece, write_piece
from giveaway.attacks import lira
from giveaway.attacks.shadow_store import model_membership, model_seed
from giveaway.attacks.thresholds import AttackScores
from giveaway.evaluation import spearman
from giveaway.extract import Batches
from giveaway.records import Signals

RUN_AGAIN = 75
FALSE_POSITIVES, KEPT = 0.001, (0.01, 0.05)
OURS = ("loss", "newton", "trace", "fused")
FIRST_TARGET = 10_000


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


class Models:
    """Trains models one after the other and keeps what is told of them in --work."""

    def __init__(self, options: Namespace) -> None:
        self.options, self.images = options, images_of(options)
        made, classes = options.data is None, int(self.images.labels.max()) + 1
        self.schedule = Cosine(epochs=2, batch=25) if made else Cosine(epochs=options.epochs)
        plan = {"set": options.set, "records": len(self.images.labels), "depth": options.depth, "width": options.width}
        keep_plan(options.work / "plan.json", {**plan, **asdict(self.schedule)})
        torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
        make = partial(build_wide_resnet, classes, 10 if made else options.depth, 1 if made else options.width)
        self.trainer = Trainer(make, self.images, self.schedule, torch.device(options.device))
        self.deadline = time.monotonic() + options.limit

    def members(self, number: int) -> np.ndarray:
        return model_membership(number, len(self.images.labels), seed=0)

    def piece(self, name: str, make: Any) -> Piece:
        path = self.options.work / f"{name}.npz"
        if not path.exists():
            if time.monotonic() > self.deadline:
                print(f"time is up, finished models are kept in {self.options.work}: run again to go on")
                sys.exit(RUN_AGAIN)
            began = time.perf_counter()
            columns, told = make()
            write_piece(path, columns, {**told, "seconds": round(time.perf_counter() - began, 1)})
            print(name, round(time.perf_counter() - began, 1), "s", flush=True)
        return read_piece(path)

    def reference(self, number: int) -> Piece:
        members = self.members(number)
        self.trainer.train(members, model_seed(number, seed=0))
        return {"phi": self._phi()}, self._accuracy(members)

    def target(self, number: int) -> Piece:
        members = self.members(FIRST_TARGET + number)
        own = torch.from_numpy(np.flatnonzero(members)).to(self.trainer.device)
        trace = ga.LossTrace(len(own), ids=np.flatnonzero(members))
        losses: list[np.ndarray] = []
        self.trainer.train(
            members, model_seed(FIRST_TARGET + number, seed=0), trace, lambda: losses.append(self._losses(own))
        )
        table = ga.audit(self._head(members), trace=trace, scores=OURS)
        columns = {"phi": self._phi(), "losses": np.stack(losses), **{name: np.asarray(table[name]) for name in OURS}}
        return columns, self._accuracy(members)

    @torch.no_grad()
    def _losses(self, own: torch.Tensor) -> np.ndarray:
        """Return the loss of each member's plain image with batch norm in training mode, as the protocol has it; the
        running averages stay as training left them."""
        trainer, held = self.trainer, [value.clone() for value in self.trainer.model.buffers()]
        found = [
            cross_entropy(trainer.model(trainer.x[rows].permute(0, 3, 1, 2)), trainer.y[rows], reduction="none")
            for rows in own.split(self.schedule.batch)
        ]
        for value, before in zip(trainer.model.buffers(), held, strict=True):
            value.copy_(before)
        return torch.cat(found).float().cpu().numpy().astype(np.float16)

    @torch.no_grad()
    def _phi(self) -> np.ndarray:
        """Return φ of every record at the image and at its mirror image, (n, 2)."""
        trainer = self.trainer
        sides = []
        for flip in (False, True):
            parts = (part.flip(2) if flip else part for part in trainer.x.split(2_000))
            logits = torch.cat([trainer.model(part.permute(0, 3, 1, 2)) for part in parts])
            sides.append(phi_of(logits, trainer.y).cpu().numpy())
        return np.stack(sides, 1).astype(np.float16)

    def _accuracy(self, members: np.ndarray) -> dict[str, Any]:
        right = (self.trainer.logits().argmax(1) == self.trainer.y).cpu().numpy()
        told = {"accuracy_trained": digits(right[members].mean()), "accuracy_left_out": digits(right[~members].mean())}
        return {**told, "environment": environment(self.options.device)}

    def _head(self, members: np.ndarray) -> ga.Head:
        trainer = self.trainer
        x, y = trainer.x.permute(0, 3, 1, 2).cpu(), trainer.y.cpu()
        own, rest = (
            TensorDataset(x[rows].contiguous(), y[rows]) for rows in map(torch.from_numpy, (members, ~members))
        )
        l2 = len(own) * self.schedule.weight_decay
        told: dict[str, Any] = {"batches": Batches(1000), "held_out": rest, "ids": np.flatnonzero(members)}
        return ga.from_torch(trainer.model, own, l2=l2, **told).to(self.options.device)


def flagged(attack: AttackScores) -> np.ndarray:
    """Return which records of one target exceed all but 0.1 % of the scores of those it was not trained on."""
    scores, members = attack.scores[0], attack.members[0]
    outside = np.sort(scores[~members])[::-1]
    return scores > outside[int(FALSE_POSITIVES * len(outside))]


def precision(score: np.ndarray, flags: np.ndarray, lira_score: np.ndarray) -> list[float]:
    """Return the shares flagged among the highest 1 and 5 %, and Spearman with the LiRA score."""
    order = np.argsort(-score, kind="stable")
    return [*(float(flags[order[: round(share * len(order))]].mean()) for share in KEPT), spearman(score, lira_score)]


def measure(models: Models) -> dict[str, Any]:
    """Train what is missing, and hold every score against what LiRA flags."""
    options = models.options
    references = [models.piece(f"model-{k:03d}", partial(models.reference, k)) for k in range(options.models)]
    phi = np.stack([columns["phi"] for columns, _ in references])
    shadows = Signals(phi, np.stack([models.members(k) for k in range(options.models)]), kind="phi")
    told: dict[str, Any] = {"set": options.set, "models": options.models, "targets": options.targets}
    told |= {"training": asdict(models.schedule), "network": f"WRN-{options.depth}-{options.width}"}
    found: dict[str, list[list[float]]] = {}
    rates, notes = [], [note for _, note in references]
    for number in range(options.targets):
        columns, note = models.piece(f"target-{number:03d}", partial(models.target, number))
        members = models.members(FIRST_TARGET + number)
        attack = lira(Signals(columns["phi"][None], members[None], kind="phi"), shadows, centre="mean")
        flags, scores = flagged(attack)[members], attack.scores[0, members]
        losses = columns["losses"].astype(np.float64)
        quartiles = np.quantile(losses, [0.25, 0.75], axis=0)
        every = {"LT-IQR": quartiles[1] - quartiles[0], "mean loss after epochs": losses.mean(0)}
        every |= {f"{name} (ours)" if name != "loss" else name: columns[name] for name in OURS}
        for name, score in every.items():
            found.setdefault(name, []).append(precision(score, flags, scores))
        rates.append(float(flags.mean()))
        notes.append(note)
    told |= {"base rate": digits(np.mean(rates)), "seconds": round(sum(note["seconds"] for note in notes))}
    told |= {
        name: digits(np.mean([note[name] for note in notes])) for name in ("accuracy_trained", "accuracy_left_out")
    }
    figures = ("precision at 1 %", "precision at 5 %", "Spearman")
    told["scores, mean and standard deviation"] = {
        name: dict(zip(figures, zip(digits(np.mean(each, 0)), digits(np.std(each, 0)), strict=True), strict=True))
        for name, each in found.items()
    }
    return {**told, "trained_on": sorted({note["environment"]["device"] for note in notes})}


def main() -> None:
    defaults: dict[str, Any] = {"data": Path, "set": "cifar10", "models": 64, "targets": 4, "epochs": 100, "depth": 28}
    defaults |= {"width": 2, "device": "cpu", "work": Path("reproduce-work/loss_traces"), "limit": 1e9}
    options = read_options(__doc__, "loss_traces.json", **defaults)
    options.work.mkdir(parents=True, exist_ok=True)
    write_result(options.out, measure(Models(options)), device=options.device)


if __name__ == "__main__":
    main()
