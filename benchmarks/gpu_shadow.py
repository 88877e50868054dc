"""How long shadow ensembles of small networks take with the stacked engine on one device.

mlp : 216 networks (three hidden layers of 128) on 20,000 rows of made tabular data, 60 epochs in batches of 256.
cnn : 216 three-block convolutional networks (the cnn recipe, 25 epochs) on CIFAR-10's 50,000 training images, signals
    stored model by model in --folder; run it again on the same folder to go on, seconds add up.
Each network is trained on a random half of the rows and tested on the other half. Seconds are wall-clock, from the
first to the last stored model, the device made ready before.

    python -m benchmarks.gpu_shadow --which mlp [--device cuda] [--models 216] [--rows 20000] [--epochs 60] [--to DIR]
    python -m benchmarks.gpu_shadow --which cnn --data DIR --folder DIR [--models 216] [--truth cifar10_truth.npz]

--data holds cifar10.npz. With --truth, the effect sizes of the ensemble are
compared with those of an ensemble trained elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks.data import arrays, cifar10_training, standardized_images
from benchmarks.measuring import RESULTS, read_options, timed, write_result
from giveaway.attacks.recipes import RECIPES, build_mlp, train_recipe
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.attacks.stacked import train_stacked
from giveaway.attacks.training import Training
from giveaway.evaluation import effect_sizes, spearman

CNN_EPOCHS, PRECISION = 25, "bfloat16"


def made_rows(rows: int, features: int = 20, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Features of a mixture, and classes that depend on them through a random network, with noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    scores = np.tanh(x @ rng.normal(size=(features, 32)) / 3) @ rng.normal(size=(32, classes))
    return x, (scores + rng.gumbel(size=scores.shape)).argmax(1)


def time_mlps(options: argparse.Namespace) -> dict[str, Any]:
    x, y = made_rows(options.rows)
    members = balanced_membership(options.models, options.rows, seed=0)
    seeds = [model_seed(number, seed=0) for number in range(options.models)]
    make = partial(build_mlp, x.shape[1:], 4, hidden=(128, 128, 128))
    warm_up(make, x[:600], y[:600], Training(1, 256, "adam", 1e-3), options.device)
    train = partial(
        train_stacked, make, x, y, members, Training(options.epochs, 256, "adam", 1e-3), seeds=seeds,
        models_at_once=options.models, device=options.device,
    )  # fmt: skip
    predicted, seconds = timed(lambda: np.stack([outputs.argmax(1) for _, outputs in train()]), options.device)
    told = {"rows": options.rows, "epochs": options.epochs, "models_at_once": options.models}
    return {**told, "seconds": round(seconds, 2), **accuracies(predicted == y, members)}


def warm_up(make: Callable[[], nn.Module], x: np.ndarray, y: np.ndarray, training: Training, device: str) -> None:
    """Train two models for an epoch: the device is made ready before the clock runs."""
    members = balanced_membership(2, len(x), seed=1)
    list(train_stacked(make, x, y, members, replace(training, epochs=1), seeds=[0, 1], device=device))


def accuracies(right: np.ndarray, members: np.ndarray) -> dict[str, float]:
    shares = {"accuracy_trained": right[members].mean(), "accuracy_held_out": right[~members].mean()}
    return {name: round(float(share), 4) for name, share in shares.items()}


def time_cnns(options: argparse.Namespace) -> dict[str, Any]:
    images, labels = cifar10_training(options.data)
    x, recipe = standardized_images(images), RECIPES["cnn"]
    assert recipe.training is not None
    assert recipe.build is not None
    recipe = replace(recipe, training=replace(recipe.training, precision=PRECISION, epochs=CNN_EPOCHS))
    warm_up(partial(recipe.build, x.shape[1:], 10), x[:2000], labels[:2000], recipe.training, options.device)
    clock = options.folder.with_name(options.folder.name + "-seconds.json")
    spent = json.loads(clock.read_text()) if clock.exists() else []
    began = time.perf_counter()

    def stop_in_time(done: int, total: int) -> None:
        if time.perf_counter() - began > options.limit and done < total:
            raise TimeoutError

    signals, asked = None, {"models": options.models, "folder": options.folder, "device": options.device}
    with contextlib.suppress(TimeoutError):
        signals = train_recipe(recipe, x, labels, kind="logits", on_model=stop_in_time, **asked)
    spent.append(round(time.perf_counter() - began, 2))
    clock.write_text(json.dumps(spent))
    told = {"epochs": CNN_EPOCHS, "precision": PRECISION, "models_at_once": recipe.models_at_once, "commands": spent}
    if signals is None:
        return {**told, "seconds": None}
    right = np.stack([logits.argmax(-1).reshape(-1) == labels for logits in signals.values])
    told |= {"seconds": round(sum(spent), 2), **accuracies(right, signals.members)}
    if options.truth:
        effect, (truth,) = effect_sizes(signals).effect_size, arrays(options.truth, "effect_size")
        told["effect_size_spearman_with_truth"] = round(spearman(effect, truth), 4)
    return told


def main() -> None:
    options = read_options(
        __doc__,
        which=("mlp", "cnn"),
        device="cuda",
        models=216,
        rows=20_000,
        epochs=60,
        data=Path,
        folder=Path,
        truth=Path,
        limit=540.0,  # seconds of a command, to be resumed
        to=RESULTS,
    )
    for which in options.which:
        found = time_mlps(options) if which == "mlp" else time_cnns(options)
        path = options.to / f"gpu_shadow_{which}.json"
        write_result(path, {"models": options.models, **found}, device=options.device)


if __name__ == "__main__":
    main()
