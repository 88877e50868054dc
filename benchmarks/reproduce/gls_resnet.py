"""The experiments of the GLS paper: ResNet-18 on CIFAR-10, shadow models on random 80 % subsets, GLS at four depths.

Models are numbered; the first `targets` of them are the targets too, and all others are a target's references. A
target's leverage of the last layer is computed as soon as it is trained, that of deeper ones once all models are. On a
CPU nothing is trained (but for --small): what is kept is measured. Set REPRODUCE_COMPILE=1 to train through
torch.compile where a C compiler is there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.reproduce import gls_images
from benchmarks.reproduce.gls_depths import DAMPING, Solving, Target
from benchmarks.reproduce.gls_kept import Kept
from benchmarks.reproduce.gls_measures import measure
from benchmarks.reproduce.gls_network import DEPTHS, WIDTHS, ResNet
from benchmarks.reproduce.gls_training import FOLDS, Schedule, Trainer, members_of, phi_of
from benchmarks.reproduce.setting import Job, OutOfTime, Setting, environment
from giveaway.attacks.membership import model_seed

PICTURED = "frog"  # the class of Figure 2
FUSED, CHECKED, DRAWN = "fused", "checked", "drawn"
UNSOLVED = 0.1  # residual from which a solve says too little of a record
COMPONENTS = 50  # of the features that t-SNE is given


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

    def needed(self, number: int) -> list[str]:
        """Pieces of one target that a result is not complete without."""
        return [piece for pieces in (self.at_once, self.after_all) for piece in pieces if number < pieces[piece]]


FULL = Size(
    WIDTHS,
    Schedule(),
    Solving(
        probes={DEPTHS[1]: 32, DEPTHS[2]: 16, DEPTHS[3]: 16},
        rank={DEPTHS[1]: 64, DEPTHS[2]: 64, DEPTHS[3]: 96},
        most_steps={DEPTHS[1]: 15, DEPTHS[2]: 12, DEPTHS[3]: 10},
    ),
    {DEPTHS[0]: 16, DRAWN: 1},
    {DEPTHS[1]: 1, DEPTHS[2]: 1, FUSED: 1, DEPTHS[3]: 1},
    ((DEPTHS[1], 4), (DEPTHS[2], 4), (FUSED, 16), (CHECKED, 1), (DEPTHS[3], 4), (DEPTHS[1], 16), (DEPTHS[2], 16)),
)
SMALL = Size(
    (3, 4, 4, 5),
    Schedule(epochs=1, batch=50, rate=0.1),
    Solving(*({depth: few for depth in DEPTHS[1:]} for few in (4, 4, 40)), tolerance=0.1, memory=10**8, checked=2),
    {DEPTHS[0]: 2, DRAWN: 1},
    {DEPTHS[1]: 2, FUSED: 2, DEPTHS[2]: 1},
    ((CHECKED, 1), (DEPTHS[3], 1)),
)
SMALL_MODELS = 4 * FOLDS  # LiRA wants several models without each record


def run(job: Job) -> None:
    """Train, score and measure whatever is not kept yet."""
    size = SMALL if job.small else FULL
    if job.small:
        job = replace(job, models=max(job.models, SMALL_MODELS))
        images = gls_images.made()
    else:
        assert job.data is not None
        images = gls_images.read(job.data)
    plan = {"seed": job.seed, "records": len(images.labels), "widths": size.widths, **asdict(size.schedule)}
    kept = Kept(job.work, {**plan, "solving": asdict(size.solving), "damping": DAMPING})
    work = _Work(job, size, images, kept)
    measure_only = job.device.type == "cpu" and not job.small
    missing = [number for number in range(job.models) if not kept.has_model(number)]
    if measure_only and missing:
        raise SystemExit(f"{len(missing)} of {job.models} models are missing: train them with --device cuda")
    if measure_only:
        _save(job, size, kept, images)
        return
    for number in range(job.targets):
        work.target(number, size.at_once)
    for number in range(job.targets, job.models):
        if not kept.has_model(number):
            work.train(number)
    for number in range(job.targets):
        work.target(number, size.after_all)
    try:
        work.at_last()
    finally:  # whatever becomes of what may be left out
        _save(job, size, kept, images)


def _save(job: Job, size: Size, kept: Kept, images: gls_images.Images) -> None:
    result, arrays = measure(kept, images.labels, job.models, job.targets, job.seed)
    result["training"] = asdict(size.schedule)
    result["solving"] = asdict(size.solving)
    job.save("gls_resnet18", result, arrays)


class _Work:
    """Training and scoring, with the trainer made when it is first needed."""

    def __init__(self, job: Job, size: Size, images: gls_images.Images, kept: Kept) -> None:
        self.job, self.size, self.images, self.kept = job, size, images, kept
        self._trainer: Trainer | None = None

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            torch.backends.cudnn.allow_tf32 = True
            make = partial(ResNet, 10, self.size.widths)
            compiled = self.job.device.type == "cuda" and _may_compile()
            self._trainer = Trainer(make, self.images, self.size.schedule, self.job.device, compiled)
        return self._trainer

    def train(self, number: int) -> None:
        """One model, kept with what is said of every record."""
        self.job.stop_in_time()
        trainer, members = self.trainer, members_of(number, len(self.images.labels), self.job.seed)
        began = time.perf_counter()
        torch.backends.cudnn.benchmark = True
        with self.job.phase("training"):
            model = trainer.train(members, model_seed(number, seed=self.job.seed))
            logits, held_out = trainer.logits(), trainer.logits(held_out=True)
            right = (logits.argmax(1) == trainer.y).cpu().numpy()
        torch.backends.cudnn.benchmark = False  # what follows has batches of many sizes
        told = {
            "seconds": round(time.perf_counter() - began, 2),
            "accuracy_trained": round(float(right[members].mean()), 4),
            "accuracy_left_out": round(float(right[~members].mean()), 4),
            "accuracy_held_out": round(float((held_out.argmax(1) == trainer.held_out_y).float().mean()), 4),
            "environment": environment(self.job.device),
        }
        if number < self.job.targets:
            told["weights"] = self.kept.save_weights(number, model)
        phi = phi_of(logits, trainer.y).cpu().numpy()
        self.kept.save_model(number, phi, told, torch.cat([logits, held_out]).cpu().numpy())
        print(
            f"model {number}:",
            {name: told[name] for name in told if name not in ("environment", "weights")},
            flush=True,
        )

    def target(self, number: int, pieces: Mapping[str, int]) -> None:
        """Those pieces of one target that are not kept yet; and its training, where its weights are not, after which
        all that is needed of it is found anew."""
        missing = self._missing(number, [piece for piece in pieces if number < pieces[piece]])
        if self.kept.has_model(number) and not missing:
            return
        model = ResNet(10, self.size.widths)
        if not (self.kept.has_model(number) and self.kept.load_weights(number, model)):
            again = self.kept.has_model(number)
            self.train(number)
            self.kept.load_weights(number, model)
            missing = self.size.needed(number) if again else missing
        self._work_off(number, model, missing)

    def at_last(self) -> None:
        """What may be left out: no target is trained again for it. A piece that took longer than there is time for
        leaves its time to the next ones."""
        waits = False
        for piece, targets in self.size.at_last:
            for number in range(min(targets, self.job.targets)):
                model = ResNet(10, self.size.widths)
                if not (self._missing(number, [piece]) and self.kept.load_weights(number, model)):
                    continue
                if self.job.has_time_for(self.kept.longest(piece)):
                    self._work_off(number, model, [piece])
                else:
                    waits = True
        if waits:
            raise OutOfTime

    def _missing(self, number: int, pieces: list[str]) -> list[str]:
        return [piece for piece in pieces if not self.kept.settled(number, piece)]

    def _work_off(self, number: int, model: ResNet, missing: list[str]) -> None:
        members = np.flatnonzero(members_of(number, len(self.images.labels), self.job.seed))
        x, y = self.trainer.pictures(members), self.trainer.y[torch.from_numpy(members).to(self.job.device)]
        target = Target(model.to(self.job.device), x, y, self.size.solving, self._on_step)
        for piece in missing:
            self.job.stop_in_time()
            try:
                with self.job.phase(f"leverage, {piece}"):
                    columns, told = self._done(target, piece)
            except torch.OutOfMemoryError:
                self.kept.give_up(number, piece, "out of memory")
                print(f"target {number}, {piece}: out of memory, left out", flush=True)
                continue
            if told.get("worst_residual", 0.0) > UNSOLVED:
                why = f"not solved: a residual of {told['worst_residual']:.2g} after {told['most_steps_taken']} steps"
                self.kept.give_up(number, piece, why)
                print(f"target {number}, {piece}: {why}, left out", flush=True)
                continue
            self.kept.save_piece(number, piece, columns, told)
            print(f"target {number}, {piece}:", told, flush=True)

    def _on_step(self, step: int) -> None:
        """A solve can take minutes: it says where it is, and ends when the time is up."""
        if self.job.device.type == "cuda":
            torch.cuda.synchronize(self.job.device)
            print(f"step {step} at {time.strftime('%H:%M:%S')}", flush=True)
        self.job.stop_in_time()

    def _done(self, target: Target, piece: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        if piece in DEPTHS:
            return target.score(piece)
        if piece == FUSED:
            return target.fused()
        if piece == CHECKED:
            return target.check(DEPTHS[1], range(self.size.solving.checked))
        own = target.features()[target.y == gls_images.CLASSES.index(PICTURED)].double()
        centred = own - own.mean(0)
        _, _, directions = torch.linalg.svd(centred, full_matrices=False)
        return {"pictured": (centred @ directions[:COMPONENTS].T).cpu().numpy()}, {"class": PICTURED}


def _may_compile() -> bool:
    return os.environ.get("REPRODUCE_COMPILE") == "1" and shutil.which("gcc") is not None


SETTINGS = {"gls_resnet18": Setting("gls_resnet18", "GLS paper: ResNet-18 on CIFAR-10", run)}
