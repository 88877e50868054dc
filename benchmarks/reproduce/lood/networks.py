"""The networks of the LOOD paper, trained with all records and without each of some, one round of them at a time.

Fully connected, ten hidden layers of 1,024 (the paper's Figure 5), no biases, weights N(0, 2/fan-in): infinitely wide,
they are NNGP(10, σw² = 2, σb = 0). One output, targets ±1, squared loss, SGD with momentum; the paper names SGD and no
other part of the training, nor a loss.

A round is one network trained on everyone and one without each chosen record, all from the same first weights and, as
far as the missing record allows, in the same order; its networks are trained together. The networks with everyone are
shared by all chosen records, as the paper's count of 50 × 21 trainings says.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from torch import nn

from benchmarks.reproduce.job import Arrays, Job, Piece, keep_plan
from benchmarks.reproduce.lood.data import PIXELS, SCALE, Pictures
from giveaway.attacks.shadow_store import model_seed
from giveaway.attacks.stacked import Training, seeded_model, train_stacked
from giveaway.linalg.precision import tf32_products

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}
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


def build_network(depth: int, width: int, activation: str, inputs: int) -> nn.Sequential:
    """Build a network whose weights come from torch's global random numbers."""
    layers: list[nn.Module] = []
    for before, after in pairwise([inputs, *[width] * depth, 1]):
        layer = nn.Linear(before, after, bias=False)
        nn.init.normal_(layer.weight, std=(2.0 / before) ** 0.5)
        layers += [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


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
