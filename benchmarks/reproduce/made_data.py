"""Data of the shape of the papers' sets, to try the settings out without them."""

from __future__ import annotations

import numpy as np


def made_table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Eight columns, and a value with a few outliers."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 8))
    return x, np.tanh(x @ rng.normal(size=8)) + 0.1 * rng.standard_t(3, rows)


def made_images(rows: int, side: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noise around a colour for each class, uint8 (rows, side, side, 3); the colours are the same for every seed."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    means = np.random.default_rng(7).integers(40, 216, (classes, 3))
    noise = rng.normal(scale=40, size=(rows, side, side, 3))
    return np.clip(means[labels][:, None, None] + noise, 0, 255).astype(np.uint8), labels


def made_sentences(records: int = 600, others: int = 100) -> tuple[list[str], np.ndarray, int]:
    """Words of which some belong to one class; labels, and how many are records."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, records + others)
    words = [f"word{number}" for number in range(400)]
    sentences = [
        " ".join(words[number] for number in rng.integers(0, 200, rng.integers(2, 20)) + 100 * label)
        for label in labels
    ]
    return sentences, labels, records
