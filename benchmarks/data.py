"""Data sets of the benchmarks, read from the folder that holds them."""

import csv
import gzip
from pathlib import Path

import numpy as np

ADULT_NUMBERS = (0, 2, 4, 10, 11, 12)  # columns; the others are categories


def arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Return these arrays of an .npz file, or all of them."""
    with np.load(path) as held:
        return [held[name] for name in names or held.files]


def cifar10(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x_train, y_train, x_test, y_test; images uint8 (n, 32, 32, 3)."""
    x, y, x_test, y_test = arrays(folder / "cifar10.npz", "x_train", "y_train", "x_test", "y_test")
    return x, y.reshape(-1).astype(np.int64), x_test, y_test.reshape(-1).astype(np.int64)


def cifar10_training(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return only what may be trained on."""
    x, y = arrays(folder / "cifar10.npz", "x_train", "y_train")
    return x, y.reshape(-1).astype(np.int64)


def housing(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the eight columns and the values of California Housing."""
    x, y = arrays(folder / "california_housing.npz", "X", "y")
    return x, y


def adult(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns as strings, and whether each person earns more than 50,000."""
    with gzip.open(folder / "adult.data.gz", "rt", encoding="utf-8") as file:
        table = np.array([row for row in csv.reader(file, skipinitialspace=True) if row])
    return table[:, :-1], (table[:, -1] == ">50K").astype(np.int64)


def adult_matrices(columns: np.ndarray) -> list[np.ndarray]:
    """Return a matrix for each column: one of numbers, or a one-hot column for each category ("?" is one)."""
    return [
        column.astype(np.float64)[:, None] if place in ADULT_NUMBERS else (column[:, None] == np.unique(column)) * 1.0
        for place, column in enumerate(columns.T)
    ]


def sst2(file: Path) -> tuple[list[str], np.ndarray]:
    """Return the sentences and labels of a file."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines][1:]
    return [row[0] for row in rows], np.array([int(row[1]) for row in rows], np.int64)


def standardized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / np.maximum(x.std(0), 1e-12)


def standardized_images(images: np.ndarray) -> np.ndarray:
    """Return uint8 images (n, h, w, c) as float32 (n, c, h, w), each channel standardized."""
    x = images.transpose(0, 3, 1, 2).astype(np.float32) / 255
    return np.ascontiguousarray((x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True))
