"""Make the attack truth on which the fused score was chosen: small data sets of our own, none of the shared ones.

Each set gets 200 shadow models and 4 target models (16 for ridge), each trained on a random half by the stacked engine.
Stored are φ of all models, membership, and of each target what an audit gets: the head's inputs, its outputs, and which
records it saw.

    python -m benchmarks.fused_own_truth --data DIR --to DIR [--device cuda] [--sets digits_mlp housing_mlp ...]

--data holds california_housing.npz, adult.data.gz, sst2_train.tsv.gz and cifar10_test.npz (x_test, y_test).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

from benchmarks import data as sets
from benchmarks.data import standardized
from benchmarks.measuring import read_options, timed
from benchmarks.recipes import build_cnn, build_mlp, signals_of, solve_logistic, solve_ridge
from benchmarks.stacked import OnEpoch, Training, train_stacked
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.views.text import text_features

MODELS, TARGETS = 200, 4
FIRST_TARGET = 10_000  # seeds and halves that no shadow model has
RECORDS = 12_000  # of Adult and SST-2
Data = tuple[np.ndarray, np.ndarray, int]  # inputs, targets, and the number of outputs (1 for values)


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
    return data.data / 16.0, data.target, 10


def digit_images(folder: Path) -> Data:
    data = load_digits()
    return data.images[:, None] / 16.0, data.target, 10


def cancer(folder: Path) -> Data:
    data = load_breast_cancer()
    return standardized(data.data), data.target, 2


def housing(folder: Path) -> Data:
    x, y = sets.housing(folder)
    return standardized(x), standardized(y).astype(np.float32), 1


def housing_classes(folder: Path) -> Data:
    x, y = sets.housing(folder)
    return standardized(x), np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75])), 4


def adult(folder: Path) -> Data:
    """Numbers standardized, categories one-hot."""
    columns, y = sets.adult(folder)
    parts = sets.adult_matrices(columns[:RECORDS])
    for place in sets.ADULT_NUMBERS:
        parts[place] = standardized(parts[place])
    return np.hstack(parts), y[:RECORDS], 2


def sentences(folder: Path) -> tuple[list[str], np.ndarray]:
    """Sentences of SST-2, one in five, so that few are parts of each other."""
    texts, y = sets.sst2(folder / "sst2_train.tsv.gz")
    return texts[::5][:RECORDS], y[::5][:RECORDS]


def sst2(folder: Path) -> Data:
    texts, y = sentences(folder)
    x = torch.cat(list(text_features(texts, dimensions=2048)()))
    return (x * 2048**0.5).numpy(), y, 2


def cifar_test(folder: Path) -> Data:
    x, y = sets.arrays(folder / "cifar10_test.npz", "x_test", "y_test")
    return sets.standardized_images(x), y.astype(np.int64).reshape(-1), 10


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


def make(name: str, folder: Path, device: str) -> dict[str, np.ndarray]:
    chosen = SETS[name]
    x, y, m = chosen.load(folder)
    x, n, kind = x.astype(np.float32), len(x), "squared_error" if m == 1 else "phi"
    if x.ndim == 4:  # mirrored images follow, which no model is trained on
        x, y = np.concatenate([x, x[..., ::-1]]), np.concatenate([y, y])
    even = chosen.targets + chosen.targets % 2
    targets = balanced_membership(even, n, seed=0, first=FIRST_TARGET)[: chosen.targets]
    members = np.concatenate([balanced_membership(MODELS, n, seed=0), targets])
    numbers = [*range(MODELS), *range(FIRST_TARGET, FIRST_TARGET + chosen.targets)]
    seeds = [model_seed(number, seed=0) for number in numbers]
    phi = np.empty((MODELS, n), dtype=np.float32)
    held: dict[str, np.ndarray] = {}
    losses: dict[int, list[np.ndarray]] = {}

    def record(row: int, epoch: int, seen: torch.Tensor, evaluate: Callable[[], torch.Tensor]) -> None:
        if row >= MODELS:
            losses.setdefault(row, []).append(seen[:n][members[row]].numpy().astype(np.float16))

    for row, outputs in _train(chosen, x, y, m, members, seeds, device, record):
        if row < MODELS:
            phi[row] = signals_of(outputs[:n, :m], y[:n], kind)
            continue
        rows = np.flatnonzero(members[row])
        if row in losses:
            held[f"losses_seen_{row - MODELS}"] = np.stack(losses.pop(row))
        if len(x) > n:
            held[f"mirrored_{row - MODELS}"] = outputs[n:, :m].astype(np.float16)
        held[f"held_out_{row - MODELS}"] = outputs[:n][~members[row]][:, :m].astype(np.float16)
        held[f"index_{row - MODELS}"] = rows.astype(np.int32)
        held[f"outputs_{row - MODELS}"] = outputs[rows, :m].astype(np.float32)
        held[f"features_{row - MODELS}"] = outputs[rows, m:].astype(np.float16)
    packed = np.packbits(members[:MODELS], axis=1)
    return {"phi": phi.astype(np.float16), "members": packed, "targets": y[:n], "kind": np.array(kind), **held}


def _train(
    chosen: Set,
    x: np.ndarray,
    y: np.ndarray,
    m: int,
    members: np.ndarray,
    seeds: list[int],
    device: str,
    record: OnEpoch,
):
    """Each model's number with its outputs, and beside them what its last layer saw."""
    if chosen.solve is not None:
        for row, own in enumerate(members):
            theta = chosen.solve(x[own], y[own], m, 2.0 if m == 1 else 1.0)
            yield row, np.hstack([x @ theta[:-1] + theta[-1], x])
        return
    training = chosen.training
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
        on_epoch=record,
    )


def main() -> None:
    options = read_options(__doc__, needs=("data", "to"), data=Path, to=Path, device="cpu", sets=SETS)
    options.to.mkdir(parents=True, exist_ok=True)
    for name in options.sets:
        made, seconds = timed(lambda name=name: make(name, options.data, options.device))
        np.savez_compressed(options.to / f"{name}.npz", **made)
        print(f"{name}: {seconds:.1f} s, {len(made['targets'])} records", flush=True)


if __name__ == "__main__":
    main()
