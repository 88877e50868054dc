"""Make the attack truth on which the fused score was chosen: small data sets of our own, none of the shared ones.

Each set gets 200 shadow models and 4 target models (16 for ridge), each trained on a random half by the stacked engine.
Stored are φ of all models, membership, and of each target what an audit gets: the head's inputs, its outputs, and which
records it saw.

    python benchmarks/fused_own_truth.py --data DIR --out DIR [--device cuda] [--sets digits_mlp housing_mlp ...]

--data holds california_housing.npz, adult.data.gz, sst2_train.tsv.gz and cifar10_test.npz (x_test, y_test).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

from giveaway.attacks.recipes import build_cnn, build_mlp, signals_of, solve_logistic, solve_ridge
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.attacks.stacked import Training, train_stacked
from giveaway.views.text import text_features

MODELS, TARGETS = 200, 4
FIRST_TARGET = 10_000  # seeds and halves that no shadow model has
ADULT_NUMBERS = (0, 2, 4, 10, 11, 12)


@dataclass(frozen=True)
class Data:
    """What models are trained on, targets, and how many outputs there are (1 for values)."""

    inputs: np.ndarray
    targets: np.ndarray
    outputs: int


class WithFeatures(nn.Module):
    """A model that gives its outputs and, beside them, what its last layer saw."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.body, self.head = model[:-1], model[-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.body(x)
        return torch.cat([self.head(seen), seen], dim=1)


def digits(folder: Path) -> Data:
    data = load_digits()
    return Data((data.data / 16.0).astype(np.float32), data.target, 10)


def digit_images(folder: Path) -> Data:
    data = load_digits()
    return Data((data.images[:, None] / 16.0).astype(np.float32), data.target, 10)


def cancer(folder: Path) -> Data:
    data = load_breast_cancer()
    return Data(_standardized(data.data), data.target, 2)


def housing(folder: Path) -> Data:
    with np.load(folder / "california_housing.npz") as held:
        y = held["y"]
        return Data(_standardized(held["X"]), ((y - y.mean()) / y.std()).astype(np.float32), 1)


def housing_classes(folder: Path) -> Data:
    with np.load(folder / "california_housing.npz") as held:
        return Data(_standardized(held["X"]), np.digitize(held["y"], np.quantile(held["y"], [0.25, 0.5, 0.75])), 4)


def adult(folder: Path, records: int = 12_000) -> Data:
    """Numbers standardized, categories one-hot."""
    columns, y = adult_columns(folder, records)
    parts = []
    for place in range(columns.shape[1]):
        column = columns[:, place]
        if place in ADULT_NUMBERS:
            parts.append(_standardized(column.astype(np.float64)[:, None]))
        else:
            parts.append((column[:, None] == np.unique(column)).astype(np.float32))
    return Data(np.hstack(parts), y, 2)


def adult_columns(folder: Path, records: int = 12_000) -> tuple[np.ndarray, np.ndarray]:
    """The first records as strings, and whether they earn more than 50,000."""
    with gzip.open(folder / "adult.data.gz", "rt") as file:
        rows = [row for row in csv.reader(file, skipinitialspace=True) if row][:records]
    table = np.array(rows)
    return table[:, :-1], (table[:, -1] == ">50K").astype(np.int64)


def sentences(folder: Path, records: int = 12_000) -> tuple[list[str], np.ndarray]:
    """Sentences of SST-2, one in five, so that few are parts of each other."""
    with gzip.open(folder / "sst2_train.tsv.gz", "rt") as file:
        lines = [line.rstrip("\n").split("\t") for line in file][1::5][:records]
    return [line[0] for line in lines], np.array([int(line[1]) for line in lines])


def sst2(folder: Path) -> Data:
    texts, y = sentences(folder)
    x = torch.cat(list(text_features(texts, dimensions=2048)()))
    return Data((x * 2048**0.5).numpy(), y, 2)


def cifar_test(folder: Path) -> Data:
    with np.load(folder / "cifar10_test.npz") as held:
        x = held["x_test"].transpose(0, 3, 1, 2).astype(np.float32) / 255
        y = held["y_test"].astype(np.int64).reshape(-1)
    x = (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)
    return Data(np.ascontiguousarray(x), y, 10)


def _standardized(x: np.ndarray) -> np.ndarray:
    return ((x - x.mean(0)) / np.maximum(x.std(0), 1e-12)).astype(np.float32)


@dataclass(frozen=True)
class Set:
    """A data set and how its models are made: by `build` and `training`, or by `solve`."""

    load: Callable[[Path], Data]
    build: Callable[[tuple[int, ...], int], nn.Module] | None = None
    training: Training | None = None
    solve: Callable[[np.ndarray, np.ndarray, int, float], np.ndarray] | None = None
    targets: int = TARGETS
    at_once: int = 64


_MLP = partial(build_mlp, hidden=(128, 128))
_SMALL_CNN = partial(build_cnn, channels=(32, 64))
_ADAM = Training(60, 64, "adam", 1e-3)
SETS = {
    "digits_mlp": Set(digits, build_mlp, _ADAM),
    "digits_cnn": Set(digit_images, _SMALL_CNN, Training(20, 64, "adam", 1e-3), at_once=4),
    "cancer_mlp": Set(cancer, build_mlp, _ADAM),
    "housing_mlp": Set(housing, build_mlp, Training(100, 256, "adam", 1e-3, loss="squared")),
    "housing_classes_mlp": Set(housing_classes, build_mlp, Training(100, 256, "adam", 1e-3)),
    "housing_ridge": Set(housing, solve=solve_ridge, targets=16),
    "adult_mlp": Set(adult, _MLP, Training(40, 256, "adam", 1e-3)),
    "adult_logistic": Set(adult, solve=solve_logistic),
    "sst2_mlp": Set(sst2, build_mlp, Training(15, 128, "adam", 1e-3)),
    "cifar_test_cnn": Set(cifar_test, build_cnn, Training(25, 256, "adamw", 1e-3, weight_decay=0.01), at_once=4),
    "cifar_test_short": Set(cifar_test, build_cnn, Training(7, 256, "adamw", 1e-3, weight_decay=0.01), at_once=4),
}


def make(name: str, data_folder: Path, device: str) -> dict[str, np.ndarray]:
    chosen = SETS[name]
    data = chosen.load(data_folder)
    n, kind = len(data.inputs), "squared_error" if data.outputs == 1 else "phi"
    members = np.concatenate(
        [
            balanced_membership(MODELS, n, seed=0),
            balanced_membership(chosen.targets + chosen.targets % 2, n, seed=0, first=FIRST_TARGET)[: chosen.targets],
        ]
    )
    numbers = [*range(MODELS), *range(FIRST_TARGET, FIRST_TARGET + chosen.targets)]
    phi = np.empty((MODELS, n), dtype=np.float32)
    held: dict[str, np.ndarray] = {}
    for row, outputs in _train(chosen, data, members, [model_seed(number, seed=0) for number in numbers], device):
        f = outputs[:, : data.outputs]
        if row < MODELS:
            phi[row] = signals_of(f, data.targets, kind)
            continue
        rows = np.flatnonzero(members[row])
        place = row - MODELS
        held[f"index_{place}"] = rows.astype(np.int32)
        held[f"outputs_{place}"] = f[rows].astype(np.float32)
        held[f"features_{place}"] = outputs[rows, data.outputs :].astype(np.float16)
    packed = np.packbits(members[:MODELS], axis=1)
    return {"phi": phi.astype(np.float16), "members": packed, "targets": data.targets, "kind": np.array(kind), **held}


def _train(chosen: Set, data: Data, members: np.ndarray, seeds: list[int], device: str):
    x, y = data.inputs, data.targets
    if chosen.solve is not None:
        for row, own in enumerate(members):
            theta = chosen.solve(x[own], y[own], data.outputs, 2.0 if data.outputs == 1 else 1.0)
            yield row, np.hstack([x @ theta[:-1] + theta[-1], x]) if row >= MODELS else x @ theta[:-1] + theta[-1]
        return
    training, m = chosen.training, data.outputs
    if training.loss == "squared":
        training = replace(training, loss=lambda f, t: (f[:, 0] - t).square())
    else:
        training = replace(training, loss=lambda f, t: nn.functional.cross_entropy(f[:, :m], t, reduction="none"))
    yield from train_stacked(
        lambda: WithFeatures(chosen.build(x.shape[1:], m)),
        x,
        y,
        members,
        training,
        seeds=seeds,
        models_at_once=chosen.at_once,
        stack=chosen.at_once > 4,
        device=device,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.sets:
        began = time.perf_counter()
        made = make(name, options.data, options.device)
        np.savez_compressed(options.out / f"{name}.npz", **made)
        print(f"{name}: {time.perf_counter() - began:.1f} s, {len(made['targets'])} records", flush=True)


if __name__ == "__main__":
    main()
