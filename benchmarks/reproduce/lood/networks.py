"""The images and networks of the LOOD paper: trained with all records and without each of some, round by round."""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.data import cifar10_training
from benchmarks.networks import build_network
from benchmarks.reproduce.job import Arrays, Job, Piece, keep_plan
from benchmarks.stacked import Training, seeded_model, train_stacked
from giveaway.attacks.shadow_store import model_seed
from giveaway.linalg.precision import tf32_products

PLANE, CAR = 0, 1
CENTRE, SCALE = 127.5, 63.75  # of pixel values
PIXELS = 32 * 32 * 3


@dataclass(frozen=True, eq=False)
class Pictures:
    """Inputs (N, 3072) float32 and targets (N,) of ±1, in random order: the first `records` are trained on."""

    inputs: np.ndarray
    targets: np.ndarray
    records: int
    source: str

    def trained(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of the records that are trained on, in float64."""
        x, y = (torch.from_numpy(side[: self.records]) for side in (self.inputs, self.targets))
        return x.to(device, torch.float64), y.to(device, torch.float64)


def cars_and_planes(job: Job, records: int, held_out: int) -> Pictures:
    """Draw as many of each class; a small run without data makes its own."""
    if job.data is None:
        return made_pictures(records, held_out)
    images, labels = cifar10_training(job.data)
    rng = np.random.default_rng(0)
    half = (records // 2, held_out // 2)
    drawn = [rng.permutation(np.flatnonzero(labels == kind))[: sum(half)] for kind in (CAR, PLANE)]
    trained, others = (np.concatenate([d[part] for d in drawn]) for part in (slice(half[0]), slice(half[0], None)))
    rows = np.concatenate([rng.permutation(trained), rng.permutation(others)])
    targets = np.where(labels[rows] == CAR, 1.0, -1.0).astype(np.float32)
    return Pictures(scaled(images[rows]), targets, 2 * half[0], "CIFAR-10, cars and planes")


def made_pictures(records: int, held_out: int) -> Pictures:
    """Make noise around two means."""
    rng = np.random.default_rng(0)
    count = records + held_out
    targets = np.where(np.arange(count) % 2, 1.0, -1.0).astype(np.float32)
    means = 0.1 * rng.normal(size=PIXELS)
    inputs = rng.normal(size=(count, PIXELS)) + targets[:, None] * means
    return Pictures(inputs.astype(np.float32), targets, records, "made")


def ten_classes(job: Job, records: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw records/10 of each class in random order: pixels from 0 to 1, (records, 3072), and classes."""
    if job.data is None:
        rng = np.random.default_rng(seed)
        labels = np.arange(records) % 10
        return (rng.random((10, PIXELS))[labels] + rng.random((records, PIXELS))) / 2, labels
    images, labels = cifar10_training(job.data)
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(np.flatnonzero(labels == c), records // 10, replace=False) for c in range(10)]
    rows = rng.permutation(np.concatenate(drawn))
    return images[rows].reshape(len(rows), -1) / 255.0, labels[rows]


def scaled(images: np.ndarray) -> np.ndarray:
    """Return pixel values of any shape (n, …) as inputs (n, 3072)."""
    return ((images.reshape(len(images), -1) - CENTRE) / SCALE).astype(np.float32)


STEEPNESS = 8.0  # learning rate × (inputs + depth·width): the largest curvature grows like that sum


@dataclass(frozen=True)
class Size:
    """How much is trained. `compared` of the chosen records are retrained under another activation too."""

    records: int = 1_000
    held_out: int = 1_000
    chosen: int = 70
    compared: int = 20
    rounds: int = 50
    depth: int = 10
    width: int = 1_024
    epochs: int = 60
    batch: int = 250
    farthest: int = 50  # pixel values along a direction
    step: int = 5

    @property
    def offsets(self) -> np.ndarray:
        """Where networks are asked, in pixel values from the record; the middle one is the record."""
        return np.arange(-self.farthest, self.farthest + 1, self.step)

    @property
    def training(self) -> Training:
        rate = STEEPNESS / (PIXELS + self.depth * self.width)
        return Training(self.epochs, self.batch, "sgd", rate, momentum=0.9, schedule="cosine", loss="squared")


SMALL = Size(60, 20, chosen=5, compared=3, rounds=3, depth=2, width=16, epochs=4, batch=20, step=25)


def size_of(job: Job) -> Size:
    """Return how much is trained; --models says how many rounds at most."""
    size = SMALL if job.small else Size()
    return replace(size, rounds=min(size.rounds, job.models))


def chosen_records(records: int, count: int, seed: int) -> np.ndarray:
    """Draw different record numbers; fewer of them are the first of more."""
    return np.random.default_rng([seed, 1]).permutation(records)[:count]


def directions(count: int, pixels: int, seed: int) -> np.ndarray:
    """Draw directions (count, pixels) uniform in the L∞ unit ball, in pixel values."""
    return np.random.default_rng([seed, 2]).uniform(-1.0, 1.0, (count, pixels))


def perturbed(inputs: np.ndarray, toward: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return S + x·R, (records, offsets, pixels), not put back into the box of pixels (the paper does not say)."""
    moved = inputs[:, None] + offsets[:, None] * toward[:, None] / SCALE
    return moved.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Answers:
    """Outputs of the networks with and without each chosen record, (rounds, chosen, offsets), asked at its own queries.

    `loss` and `accuracy` (rounds, 1 + chosen): mean squared error on what was trained, share of right held-out records.
    """

    with_record: np.ndarray
    without: np.ndarray
    loss: np.ndarray
    accuracy: np.ndarray

    @property
    def change(self) -> np.ndarray:
        """Return the mean prediction with − without, (chosen, offsets)."""
        return self.with_record.mean(0, dtype=np.float64) - self.without.mean(0, dtype=np.float64)


def retrain(
    job: Job, pictures: Pictures, chosen: np.ndarray, queries: np.ndarray, activation: str, size: Size
) -> Answers:
    """Train the rounds that are not in --work yet, keep each as it ends, and return them all."""
    plan = {**asdict(size), "rounds": None, "seed": job.seed, "source": pictures.source}
    keep_plan(job.work / activation / "plan.json", plan)

    def train(number: int) -> Piece:
        print(f"{activation}: round {number + 1} of {size.rounds}", flush=True)
        with tf32_products(True):
            return _round(job, pictures, chosen, queries, activation, size, model_seed(number, seed=job.seed)), {}

    kept = [
        job.piece(f"{activation}/round_{number:03d}.npz", f"retraining_{activation}", partial(train, number))[0]
        for number in range(size.rounds)
    ]
    return Answers(*(np.stack([one[name] for one in kept]) for name in ("with_record", "without", "loss", "accuracy")))


def _round(
    job: Job, pictures: Pictures, chosen: np.ndarray, queries: np.ndarray, activation: str, size: Size, seed: int
) -> Arrays:
    n, asked = pictures.records, queries.shape[0] * queries.shape[1]
    inputs = np.concatenate([pictures.inputs, queries.reshape(asked, -1)])
    targets = np.concatenate([pictures.targets, np.zeros(asked, np.float32)])
    members = np.ones((1 + len(chosen), n), dtype=bool)
    members[1 + np.arange(len(chosen)), chosen] = False
    trained = train_stacked(
        # drawing the weights once and copying them saves most of the time it takes
        partial(copy.deepcopy, first_network(size, activation, inputs.shape[1], seed).to(job.device)),
        inputs,
        targets,
        members,
        size.training,
        seeds=[seed] * len(members),
        models_at_once=len(members),
        device=job.device,
    )
    outputs = np.stack([found[:, 0] for _, found in trained])
    answers = outputs[:, len(pictures.targets) :].reshape(len(members), *queries.shape[:2])
    error = np.square(outputs[:, :n] - targets[:n], dtype=np.float64)
    right = outputs[:, n : len(pictures.targets)] * pictures.targets[n:] > 0
    own = np.arange(len(chosen))
    return {
        "with_record": answers[0],
        "without": answers[1 + own, own],
        "loss": (error * members).sum(1) / members.sum(1),
        "accuracy": right.mean(1),
    }


def first_network(size: Size, activation: str, inputs: int, seed: int) -> nn.Module:
    """Return the network of a round before training."""
    return seeded_model(partial(build_network, size.depth, size.width, activation, inputs), seed)


def described(size: Size, pictures: Pictures, activation: str) -> dict[str, Any]:
    """Describe what was trained, for the results."""
    return {
        "data": pictures.source,
        "records": pictures.records,
        "network": f"{size.depth} hidden layers of {size.width:,}, {activation}, no biases, one output, targets ±1",
        "training": {**asdict(size.training), "steps": size.epochs * -(-pictures.records // size.batch)},
    }
