"""The images of the LOOD paper's experiments: CIFAR-10's cars and planes, and class-balanced draws of all ten classes.

Pixels are scaled by constants, (value/255 − 1/2)/(1/4), never by statistics of the records, so that leaving a record
out leaves the others as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.reproduce.job import Job
from benchmarks.reproduce.per_sample.data import cifar10_training

PLANE, CAR = 0, 1
CENTRE, SCALE = 127.5, 63.75  # of pixel values
PIXELS = 32 * 32 * 3
CUT = "cars_planes.npz"


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
    images, labels = _two_classes(job.data)
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


def write_cars_and_planes(folder: Path, to: Path) -> Path:
    """Write both classes alone (27 MB), to carry elsewhere."""
    images, labels = _two_classes(folder)
    to.mkdir(parents=True, exist_ok=True)
    path = to / CUT
    np.savez_compressed(path, images=images, labels=labels.astype(np.uint8))
    return path


def _two_classes(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    if (folder / CUT).exists():
        with np.load(folder / CUT) as held:
            return held["images"], held["labels"]
    images, labels = cifar10_training(folder)
    rows = np.flatnonzero(np.isin(labels, (PLANE, CAR)))
    return images[rows], labels[rows]
