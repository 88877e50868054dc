"""CIFAR-10 as the GLS experiments take it: all 50,000 images may be trained on, the 10,000 others are held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.reproduce.data import cifar10

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MADE = (250, 50, 8)  # records to train on, held-out records, pixels a side of the made images


@dataclass(frozen=True)
class Images:
    """uint8 (n, side, side, 3) and class numbers: the records to draw training sets from, and those held out."""

    records: np.ndarray
    labels: np.ndarray
    held_out: np.ndarray
    held_out_labels: np.ndarray


def read(folder: Path) -> Images:
    """The whole of CIFAR-10."""
    x, y, held_x, held_y = cifar10(folder)
    return Images(x, y.reshape(-1).astype(np.int64), held_x, held_y.reshape(-1).astype(np.int64))


def made(seed: int = 0) -> Images:
    """Noise around a pattern for each of ten classes, to try the code on."""
    records, held_out, side = MADE
    rng = np.random.default_rng(seed)
    patterns = rng.integers(40, 216, (10, side, side, 3))
    labels = rng.integers(0, 10, records + held_out)
    images = np.clip(patterns[labels] + rng.normal(0, 60, (len(labels), side, side, 3)), 0, 255).astype(np.uint8)
    return Images(images[:records], labels[:records], images[records:], labels[records:])
