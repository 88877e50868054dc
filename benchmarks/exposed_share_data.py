"""The data sets of exposed_share_grid.py: packed into a folder that is small enough to carry, and read from it."""

import csv
import gzip
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from benchmarks import data as sets
from benchmarks.fused_own_truth import adult, housing_classes, sentences
from giveaway.views.text import text_features

RECORDS, PICTURES, COLUMNS = 8_000, 5_000, 1_024  # rows of tables and texts, images, and columns of texts
SEED = 11


def pack(source: Path, target: Path) -> None:
    """Write NAME.npz (x, y) of every data set: tables and texts in half precision, images as bytes (n, h, w, c)."""
    target.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)

    def texts(strings: list[str]) -> np.ndarray:
        return torch.cat(list(text_features(strings, dimensions=COLUMNS)())).numpy() * COLUMNS**0.5

    def write(name: str, x: np.ndarray, y: np.ndarray) -> None:
        kept = rng.permutation(len(y))[: PICTURES if x.ndim == 4 else RECORDS]
        x = x if x.dtype == np.uint8 else x.astype(np.float16)
        np.savez_compressed(target / f"{name}.npz", x=x[kept], y=y[kept].astype(np.int64))

    digits = load_digits()
    write("digits", digits.data / 16.0, digits.target)
    write("digit_images", (digits.images[..., None] * 15).astype(np.uint8), digits.target)
    write("adult", *adult(source)[:2])
    write("housing", *housing_classes(source)[:2])
    strings, y = sentences(source)
    write("sst2", texts(strings), y)
    with gzip.open(source / "ag_news_test.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    write("news", texts([f"{row[1]} {row[2]}" for row in rows]), np.array([int(row[0]) - 1 for row in rows]))
    images, y = sets.arrays(source / "bloodmnist_28_train.npz", "images", "labels")
    write("blood", images, y.reshape(-1))
    images, y = sets.arrays(source / "cifar10.npz", "x_test", "y_test")
    write("cifar", images, y.reshape(-1))


def load(folder: Path, name: str, records: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = (each[:records] for each in sets.arrays(folder / f"{name}.npz", "x", "y"))
    return (sets.standardized_images(x) if x.dtype == np.uint8 else x.astype(np.float32)), y
