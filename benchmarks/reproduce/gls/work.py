"""Training ResNets and scoring targets, piece by piece, with all that is finished kept in WORK."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.data import cifar10
from benchmarks.measuring import environment, read_json, wait_for, write_json
from benchmarks.networks import ResNet
from benchmarks.reproduce.gls import training
from benchmarks.reproduce.gls.leverage import DAMPING, Solving, Target
from benchmarks.reproduce.gls.training import CLASSES, DEPTHS, Run, Schedule, Trainer, members_of
from benchmarks.reproduce.job import Job, Piece, keep_plan, read_piece, write_piece
from giveaway.attacks.shadow_store import model_seed

TINY = 1e-30
SIGNED = ("fused", "pictured")  # kept as they are; all other columns are positive, and kept as logarithms


class Store:
    """The folder of one setting, for one plan (seed, schedule, records)."""

    def __init__(self, work: Path, plan: Mapping[str, Any]) -> None:
        self.keep, self.weights = work / "keep", work / "weights"
        for folder in (self.keep, self.weights):
            folder.mkdir(parents=True, exist_ok=True)
        keep_plan(self.keep / "plan.json", plan)

    def has_model(self, number: int) -> bool:
        return self._model(number).exists()

    def save_model(self, number: int, phi: np.ndarray, told: Mapping[str, Any]) -> None:
        """Keep a model; its older pieces of work are of other weights, and are removed."""
        for old in self.keep.glob(f"target-{number:03d}-*"):
            old.unlink()
        write_piece(self._model(number), {"phi": phi.astype(np.float16)}, told)

    def phi(self, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Return φ of all records, and the notes on the training."""
        columns, told = read_piece(self._model(number))
        return columns["phi"], told

    def save_weights(self, number: int, model: nn.Module) -> str:
        """Keep the weights and return their digest, which is noted with the model."""
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        torch.save(state, self._weights(number))
        return _digest(state)

    def load_weights(self, number: int, model: nn.Module) -> bool:
        """Load the weights if they are there and those of the kept model: another machine may have trained it again."""
        if not (self._weights(number).exists() and self.has_model(number)):
            return False
        state = torch.load(self._weights(number), weights_only=True)
        same = _digest(state) == self.phi(number)[1].get("weights")
        if same:
            model.load_state_dict(state)
        return same

    def has_piece(self, number: int, piece: str) -> bool:
        return self._piece(number, piece).exists()

    def save_piece(self, number: int, piece: str, columns: Mapping[str, np.ndarray], told: Mapping[str, Any]) -> None:
        packed = {
            name: (column if name in SIGNED else np.log10(np.maximum(column, TINY))).astype(np.float16)
            for name, column in columns.items()
        }
        write_piece(self._piece(number, piece), packed, told)

    def give_up(self, number: int, piece: str, why: str) -> None:
        """Note why a piece cannot be computed, so that it is not tried again."""
        write_json(self._piece(number, piece).with_suffix(".json"), {"ended": why})

    def reasons(self, targets: Iterable[int], piece: str) -> list[str]:
        """Return why it cannot be computed for some of these targets, each reason once."""
        notes = (read_json(self._piece(number, piece).with_suffix(".json")) for number in targets)
        return sorted({note["ended"] for note in notes if note})

    def settled(self, number: int, piece: str) -> bool:
        """Return whether nothing is left to do for it."""
        return self.has_piece(number, piece) or bool(self.reasons([number], piece))

    def piece(self, number: int, piece: str) -> Piece:
        """Return its columns (positive ones as logarithms to the base of 10) in float64, and what it cost."""
        columns, told = read_piece(self._piece(number, piece))
        return {name: column.astype(np.float64) for name, column in columns.items()}, told

    def _model(self, number: int) -> Path:
        return self.keep / f"model-{number:03d}.npz"

    def _weights(self, number: int) -> Path:
        return self.weights / f"target-{number:03d}.pt"

    def _piece(self, number: int, piece: str) -> Path:
        return self.keep / f"target-{number:03d}-{piece.replace(' ', '-')}.npz"


def _digest(state: Mapping[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, value in state.items():
        found.update(name.encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()


PICTURED = "frog"  # the class of Figure 2
FUSED, CHECKED, DRAWN = "fused", "checked", "drawn"
UNSOLVED = 0.1  # residual from which a solve says too little of a record
COMPONENTS = 50  # of the features that t-SNE is given
TOGETHER = 2  # models trained side by side: more gain nothing


@dataclass(frozen=True)
class Size:
    """What a run is made of. Pieces of work, each with the number of targets that it is done for, in this order:
    `at_once` when a target is trained, `after_all` once all models are, `at_last` while the targets' weights are there:
    what is not needed for a result, but makes it better."""

    widths: tuple[int, ...]
    schedule: Schedule
    solving: Solving
    at_once: dict[str, int]
    after_all: dict[str, int]
    at_last: tuple[tuple[str, int], ...]

    def needed(self, place: int) -> list[str]:
        """Return the pieces of the target at this place without which a result is not complete."""
        return [piece for pieces in (self.at_once, self.after_all) for piece in pieces if place < pieces[piece]]


class Work:
    """Training and scoring, with the trainer made when it is first needed. `targets` are their numbers."""

    def __init__(self, job: Job, size: Size, targets: range) -> None:
        self.job, self.size, self.targets = job, size, targets
        self.images = training.made_images() if job.small else training.Images(*cifar10(job.data))
        plan = {"seed": job.seed, "records": len(self.images.labels), "widths": size.widths, **asdict(size.schedule)}
        self.kept = Store(job.work, {**plan, "solving": asdict(size.solving), "damping": DAMPING})
        self._trainer: Trainer | None = None

    def measures_only(self, models: Iterable[int]) -> bool:
        """Return whether this machine is to train nothing; then all of these models must be there."""
        if self.job.device.type != "cpu" or self.job.small:
            return False
        each = [self.kept.has_model(number) for number in models]
        if not all(each):
            missing = len(each) - sum(each)
            raise SystemExit(f"{missing} of {len(each)} models are missing: train them with --device cuda")
        return True

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            torch.backends.cudnn.allow_tf32 = True
            make = partial(ResNet, 10, self.size.widths)
            self._trainer = Trainer(make, self.images, self.size.schedule, self.job.device, TOGETHER)
        return self._trainer

    def train(self, *numbers: int) -> None:
        """Train models side by side, and keep what each says of every record."""
        self.job.stop_in_time()
        trainer, records, seed = self.trainer, len(self.images.labels), self.job.seed
        runs = [Run(members_of(number, records, seed), model_seed(number, seed=seed)) for number in numbers]
        began = time.perf_counter()
        torch.backends.cudnn.benchmark = True
        with self.job.phase("training"):
            models = trainer.train(*runs)
            said = [(trainer.logits(model), trainer.logits(model, held_out=True)) for model in models]
            rights = [(logits.argmax(1) == trainer.y).cpu().numpy() for logits, _ in said]
        torch.backends.cudnn.benchmark = False  # what follows has batches of many sizes
        seconds = round((time.perf_counter() - began) / len(numbers), 2)
        for number, run, model, (logits, held_out), right in zip(numbers, runs, models, said, rights, strict=True):
            told = {
                "seconds": seconds,
                "accuracy_trained": round(float(right[run.members].mean()), 4),
                "accuracy_left_out": round(float(right[~run.members].mean()), 4),
                "accuracy_held_out": round(float((held_out.argmax(1) == trainer.held_out_y).float().mean()), 4),
                "environment": environment(self.job.device),
            }
            if number in self.targets:
                told["weights"] = self.kept.save_weights(number, model)
            self.kept.save_model(number, training.phi_of(logits, trainer.y).cpu().numpy(), told)
            print(f"model {number}:", {k: told[k] for k in told if k not in ("environment", "weights")}, flush=True)

    def target(self, number: int, pieces: Mapping[str, int]) -> None:
        """Do the pieces of one target that are not kept yet. A target whose weights are gone is trained first, and then
        all its pieces are done anew."""
        place = self.targets.index(number)
        missing = self._missing(number, [piece for piece in pieces if place < pieces[piece]])
        if self.kept.has_model(number) and not missing:
            return
        model = ResNet(10, self.size.widths)
        if not (self.kept.has_model(number) and self.kept.load_weights(number, model)):
            again = self.kept.has_model(number)
            self.train(number)
            self.kept.load_weights(number, model)
            missing = self.size.needed(place) if again else missing
        self._work_off(number, model, missing)

    def at_last(self) -> None:
        """Do what may be left out, in order, until the time is up: no target is trained again for it."""
        for piece, count in self.size.at_last:
            for number in self.targets[:count]:
                model = ResNet(10, self.size.widths)
                if self._missing(number, [piece]) and self.kept.load_weights(number, model):
                    self._work_off(number, model, [piece])

    def _missing(self, number: int, pieces: list[str]) -> list[str]:
        return [piece for piece in pieces if not self.kept.settled(number, piece)]

    def _work_off(self, number: int, model: ResNet, missing: list[str]) -> None:
        members = np.flatnonzero(members_of(number, len(self.images.labels), self.job.seed))
        x, y = self.trainer.pictures(members), self.trainer.y[torch.from_numpy(members).to(self.job.device)]
        target = Target(model.to(self.job.device), x, y, self.size.solving, self._on_step)
        for piece in missing:
            self.job.stop_in_time()
            why = ""
            try:
                with self.job.phase(f"leverage, {piece}"):
                    columns, told = self._done(target, piece)
                if told.get("worst_residual", 0.0) > UNSOLVED:
                    residual, steps = told["worst_residual"], told["most_steps_taken"]
                    why = f"not solved: a residual of {residual:.2g} after {steps} steps"
            except torch.OutOfMemoryError:
                why = "out of memory"
            if why:
                self.kept.give_up(number, piece, why)
            else:
                self.kept.save_piece(number, piece, columns, told)
            print(f"target {number}, {piece}:", f"{why}, left out" if why else told, flush=True)

    def _on_step(self, step: int) -> None:
        """Say where a solve is, which can take minutes, and end it when the time is up."""
        if self.job.device.type == "cuda":
            wait_for(self.job.device)
            print(f"step {step} at {time.strftime('%H:%M:%S')}", flush=True)
        self.job.stop_in_time()

    def _done(self, target: Target, piece: str) -> Piece:
        if piece in DEPTHS:
            return target.score(piece)
        if piece == FUSED:
            return target.fused()
        if piece == CHECKED:
            return target.check(DEPTHS[1], range(self.size.solving.checked))
        own = target.features()[target.y == CLASSES.index(PICTURED)].double()
        centred = own - own.mean(0)
        _, _, directions = torch.linalg.svd(centred, full_matrices=False)
        return {"pictured": (centred @ directions[:COMPONENTS].T).cpu().numpy()}, {"class": PICTURED}
