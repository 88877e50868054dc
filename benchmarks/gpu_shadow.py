"""How long shadow ensembles of small networks take with the stacked engine on one device.

mlp : 216 networks (three hidden layers of 128) on 20,000 rows of made tabular data, 60 epochs in batches of 256.
cnn : 216 three-block convolutional networks (the cnn recipe, 25 epochs) on CIFAR-10's 50,000 training images, signals
    stored model by model in --folder; run it again on the same folder to go on, seconds add up.
Each network is trained on a random half of the rows and tested on the other half. Seconds are wall-clock, from the
first to the last stored model, the device made ready before.

    python benchmarks/gpu_shadow.py mlp [--device cuda] [--models 216] [--rows 20000] [--epochs 60] [--out FILE.json]
    python benchmarks/gpu_shadow.py cnn --data cifar10.npz --folder DIR [--models 216] [--truth cifar10_truth.npz]

cifar10.npz holds x_train (50000, 32, 32, 3) uint8 and y_train. With --truth, the effect sizes of the ensemble are
compared with those of an ensemble trained elsewhere.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measuring import RESULTS, environment, write_json

from giveaway.attacks.recipes import RECIPES, build_mlp, train_recipe
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.attacks.stacked import Training, train_stacked
from giveaway.evaluation import effect_sizes, spearman


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
    warm = Training(1, 256, "adam", 1e-3)
    for _ in train_stacked(make, x[:600], y[:600], members[:2, :600], warm, seeds=seeds[:2], device=options.device):
        pass
    began = time.perf_counter()
    training = Training(options.epochs, 256, "adam", 1e-3)
    at_once = options.models_at_once or options.models
    stacked = train_stacked(make, x, y, members, training, seeds=seeds, models_at_once=at_once, device=options.device)
    predicted = np.stack([outputs.argmax(1) for _, outputs in stacked])
    seconds = time.perf_counter() - began
    right = predicted == y
    return {
        "rows": options.rows,
        "epochs": options.epochs,
        "models_at_once": at_once,
        "seconds": round(seconds, 2),
        "accuracy_trained": round(float(right[members].mean()), 4),
        "accuracy_held_out": round(float(right[~members].mean()), 4),
    }


def time_cnns(options: argparse.Namespace) -> dict[str, Any]:
    with np.load(options.data) as held:
        images, labels = held["x_train"], held["y_train"].astype(np.int64)
    x = images.transpose(0, 3, 1, 2).astype(np.float32) / 255
    x = np.ascontiguousarray((x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True))
    recipe = RECIPES["cnn"]
    assert recipe.training is not None
    recipe = replace(recipe, training=replace(recipe.training, precision=options.precision, epochs=options.cnn_epochs))
    at_once = options.models_at_once or recipe.models_at_once
    members = balanced_membership(2, len(x), seed=1)[:1]
    warm = replace(recipe.training, epochs=1)
    assert recipe.build is not None
    make = partial(recipe.build, x.shape[1:], 10)
    for _ in train_stacked(make, x[:2000], labels[:2000], members[:, :2000], warm, seeds=[0], device=options.device):
        pass
    clock = options.folder.with_name(options.folder.name + "-seconds.json")
    spent = json.loads(clock.read_text()) if clock.exists() else []
    began = time.perf_counter()

    def stop_in_time(done: int, total: int) -> None:
        if time.perf_counter() - began > options.limit and done < total:
            raise TimeoutError

    try:
        signals = train_recipe(
            recipe,
            x,
            labels,
            models=options.models,
            folder=options.folder,
            kind="logits",
            models_at_once=at_once,
            device=options.device,
            on_model=stop_in_time,
        )
    except TimeoutError:
        signals = None
    spent.append(round(time.perf_counter() - began, 2))
    clock.write_text(json.dumps(spent))
    found = {"epochs": options.cnn_epochs, "precision": options.precision, "models_at_once": at_once, "commands": spent}
    if signals is None:
        return {**found, "seconds": None}
    right = np.stack([logits.argmax(-1).reshape(-1) == labels for logits in signals.values])
    found |= {
        "seconds": round(sum(spent), 2),
        "accuracy_trained": round(float(right[signals.members].mean()), 4),
        "accuracy_held_out": round(float(right[~signals.members].mean()), 4),
    }
    effect = effect_sizes(signals).effect_size
    if options.truth:
        with np.load(options.truth) as truth:
            found["effect_size_spearman_with_truth"] = round(spearman(effect, truth["effect_size"]), 4)
    np.savez_compressed(options.out.with_suffix(".npz"), effect_size=effect.astype(np.float32))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["mlp", "cnn"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", type=int, default=216)
    parser.add_argument("--models-at-once", type=int)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--cnn-epochs", type=int, default=25)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--limit", type=float, default=540, help="stop after these seconds, to be resumed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.out = options.out or RESULTS / f"gpu_shadow_{options.which}.json"
    found = time_mlps(options) if options.which == "mlp" else time_cnns(options)
    report = {"environment": environment(options.device), "models": options.models, **found}
    write_json(options.out, report, show=True)


if __name__ == "__main__":
    main()
