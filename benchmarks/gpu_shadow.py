"""How long shadow ensembles of small networks take with the stacked engine on one device.

mlp : 216 networks (three hidden layers of 128) on 20,000 rows of made tabular data, 60 epochs in batches of 256.
cnn : 216 three-block convolutional networks (the cnn recipe, 25 epochs; eight side by side, compiled) on CIFAR-10's
    50,000 training images, signals stored model by model in --folder; run it again on the same folder to go on, seconds
    add up.
resnet9 : 12 augmented ResNet-9 (the recipe, 40 epochs) on 50,000 made images of CIFAR-10's shape, and after each group
    of them one by a plain loop: the same network and step in a CUDA graph, one model at a time, nothing compiled. The
    first group waits for torch.compile and is told apart. Convolutions alone, forwards and backwards, are timed too:
    what is above them could still be saved.
Each network is trained on a random half of the rows and tested on the other half. Seconds are wall-clock, from the
first to the last stored model, the device made ready before.

    python -m benchmarks.gpu_shadow --recipe mlp [--device cuda] [--models 216] [--rows 20000] [--epochs 60] [--to DIR]
    python -m benchmarks.gpu_shadow --recipe cnn --data DIR --folder DIR [--models 216] [--truth cifar10_truth.npz]
    python -m benchmarks.gpu_shadow --recipe resnet9 [--models 12] [--rows 50000] [--epochs 40] [--autotune] [--to DIR]

--data holds cifar10.npz. With --truth, the effect sizes of the ensemble are compared with those of an ensemble trained
elsewhere. --autotune lets cuDNN try its kernels out, for both loops.
"""

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
import torch
from torch import nn

from benchmarks.data import arrays, cifar10_training, standardized_images
from benchmarks.measuring import RESULTS, digits, read_options, timed, write_result
from benchmarks.networks import Convolution
from benchmarks.recipes import RECIPES, build_mlp, train_recipe
from benchmarks.stacked import Training, captured, seeded_model, train_stacked
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.evaluation import effect_sizes, spearman

CNN_EPOCHS, MLP_EPOCHS, PRECISION = 25, 60, "bfloat16"
SIDE_BY_SIDE = 8  # CNNs
TIMED_STEPS = 50
MODELS = {"mlp": 216, "cnn": 216, "resnet9": 12}
ROWS = {"mlp": 20_000, "resnet9": 50_000}
CLASSES = 10


def made_rows(rows: int, features: int = 20, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Features of a mixture, and classes that depend on them through a random network, with noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    scores = np.tanh(x @ rng.normal(size=(features, 32)) / 3) @ rng.normal(size=(32, classes))
    return x, (scores + rng.gumbel(size=scores.shape)).argmax(1)


def time_mlps(options: argparse.Namespace) -> dict[str, Any]:
    x, y, epochs = *made_rows(options.rows), options.epochs or MLP_EPOCHS
    members = balanced_membership(options.models, options.rows, seed=0)
    seeds = [model_seed(number, seed=0) for number in range(options.models)]
    make = partial(build_mlp, x.shape[1:], 4, hidden=(128, 128, 128))
    warm_up(make, x[:600], y[:600], Training(1, 256, "adam", 1e-3), options.device)
    train = partial(
        train_stacked, make, x, y, members, Training(epochs, 256, "adam", 1e-3), seeds=seeds,
        models_at_once=options.models, device=options.device,
    )  # fmt: skip
    predicted, seconds = timed(lambda: np.stack([outputs.argmax(1) for _, outputs in train()]), options.device)
    told = {"rows": options.rows, "epochs": epochs, "models_at_once": options.models}
    return {**told, "seconds": round(seconds, 2), **accuracies(predicted == y, members)}


def warm_up(
    make: Callable[[], nn.Module], x: np.ndarray, y: np.ndarray, training: Training, device: str, *, stack: bool = True
) -> None:
    """Train two models for an epoch: the device is made ready before the clock runs."""
    members = balanced_membership(2, len(x), seed=1)
    list(train_stacked(make, x, y, members, replace(training, epochs=1), seeds=[0, 1], stack=stack, device=device))


def accuracies(right: np.ndarray, members: np.ndarray) -> dict[str, float]:
    shares = {"accuracy_trained": right[members].mean(), "accuracy_held_out": right[~members].mean()}
    return {name: round(float(share), 4) for name, share in shares.items()}


def time_cnns(options: argparse.Namespace) -> dict[str, Any]:
    images, labels = cifar10_training(options.data)
    x, recipe = standardized_images(images), RECIPES["cnn"]
    assert recipe.training is not None
    assert recipe.build is not None
    training = replace(recipe.training, precision=PRECISION, epochs=CNN_EPOCHS, compiled=True)
    recipe = replace(recipe, training=training, models_at_once=SIDE_BY_SIDE)
    make = partial(recipe.build, x.shape[1:], 10)
    warm_up(make, x[:2000], labels[:2000], training, options.device, stack=recipe.stack)
    clock = options.folder.with_name(options.folder.name + "-seconds.json")
    spent = json.loads(clock.read_text()) if clock.exists() else []
    began, first_group, stored = time.perf_counter(), None, 0

    def stop_in_time(done: int, total: int) -> None:
        nonlocal first_group, stored
        stored = done
        if done == SIDE_BY_SIDE:
            first_group = round(time.perf_counter() - began, 2)
        if time.perf_counter() - began > options.limit and done < total:
            raise TimeoutError

    signals, asked = None, {"models": options.models, "folder": options.folder, "device": options.device}
    with contextlib.suppress(TimeoutError):
        signals = train_recipe(recipe, x, labels, kind="logits", on_model=stop_in_time, **asked)
    spent.append(round(time.perf_counter() - began, 2))
    clock.write_text(json.dumps(spent))
    told = {
        "epochs": CNN_EPOCHS, "precision": PRECISION, "models_at_once": recipe.models_at_once, "commands": spent,
        "seconds of the first group": first_group,
    }  # fmt: skip
    if signals is None:
        return {**told, "seconds": None, "stored": stored}
    right = np.stack([logits.argmax(-1).reshape(-1) == labels for logits in signals.values])
    told |= {"seconds": round(sum(spent), 2), **accuracies(right, signals.members)}
    if options.truth:
        effect, (truth,) = effect_sizes(signals).effect_size, arrays(options.truth, "effect_size")
        told["effect_size_spearman_with_truth"] = round(spearman(effect, truth), 4)
    return told


def time_resnets(options: argparse.Namespace) -> dict[str, Any]:
    recipe, device = RECIPES["resnet9"], torch.device(options.device)
    assert recipe.training is not None
    assert recipe.build is not None
    torch.backends.cudnn.benchmark = options.autotune
    training = replace(recipe.training, epochs=options.epochs or recipe.training.epochs)
    x, y = made_images(options.rows)
    members = balanced_membership(options.models, options.rows, seed=0)
    seeds = [model_seed(number, seed=0) for number in range(options.models)]
    make, at_once = partial(recipe.build, x.shape[1:], CLASSES), recipe.models_at_once
    x_there, y_there = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
    plain = partial(plain_loop, make, x_there, y_there)
    plain(members[0], replace(training, epochs=1), 0)  # makes the device ready
    trained = train_stacked(
        make, x, y, members, training, seeds=seeds, models_at_once=at_once, stack=recipe.stack, device=device
    )
    spent: dict[str, list[float]] = {"engine": [], "plain": []}
    right: dict[str, list[np.ndarray]] = {"engine": [], "plain": []}
    for first in range(0, options.models, at_once):
        group = range(first, min(first + at_once, options.models))
        outputs, seconds = timed(lambda group=group: [next(trained)[1] for _ in group], device)
        spent["engine"].append(seconds / len(group))
        right["engine"] += [found.argmax(1) == y for found in outputs]
        found, seconds = timed(lambda first=first: plain(members[first], training, seeds[first]), device)
        spent["plain"].append(seconds)
        right["plain"].append(found.argmax(1) == y)
    own = {"engine": members, "plain": members[::at_once]}
    shares = {name: accuracies(np.stack(right[name]), own[name]) for name in own}
    model = seeded_model(make, 0).to(device, memory_format=torch.channels_last)
    alone = convolutions_alone(model, x_there[: training.batch_size], training)
    steps = training.epochs * -(-int(members[0].sum()) // training.batch_size)
    settled = {"engine": spent["engine"][1:] or spent["engine"], "plain": spent["plain"]}
    each = {name: float(np.median(seconds)) for name, seconds in settled.items()}
    return {
        "rows": options.rows, "epochs": training.epochs, "batch_size": training.batch_size,
        "precision": training.precision, "models_at_once": at_once, "autotune": options.autotune,
        "engine seconds a model": digits(each["engine"]),
        "plain seconds a model": digits(each["plain"]),
        "plain / engine": digits(each["plain"] / each["engine"]),
        "seconds a model, convolutions alone": digits(alone * steps),
        "engine seconds a model, by group": digits(spent["engine"]),
        "plain seconds a model, each": digits(spent["plain"]),
        **shares,
    }  # fmt: skip


def made_images(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise of CIFAR-10's shape with a faint pattern of each class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, rows)
    patterns = rng.normal(size=(CLASSES, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3).astype(np.float32)
    return rng.standard_normal((rows, 3, 32, 32), dtype=np.float32) + 0.1 * patterns[labels], labels


def plain_loop(
    make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor, member: np.ndarray, training: Training, seed: int
) -> np.ndarray:
    """Train one model the usual way, its step in a CUDA graph on a GPU; return its outputs for all images."""
    device, random = x.device, torch.Generator(x.device).manual_seed(seed)
    rows = torch.from_numpy(np.flatnonzero(member)).to(device)
    steps = -(-len(rows) // training.batch_size)
    size = len(rows) // steps
    model = seeded_model(make, seed).to(device, memory_format=torch.channels_last)
    images = torch.zeros(size, *x.shape[1:], device=device).to(memory_format=torch.channels_last)
    labels = torch.zeros(size, dtype=torch.long, device=device)
    rate = torch.zeros((), dtype=torch.float32 if x.is_cuda else torch.float64, device=device)
    optimizer = training.optimizer_of(list(model.parameters()), rate)

    def step() -> None:
        optimizer.zero_grad()
        with training.autocast(device):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    def momenta() -> list[torch.Tensor]:
        return [v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v)]

    run = captured(step, [*model.parameters(), *model.buffers()], momenta) if x.is_cuda else step
    rates = iter(training.rates(training.epochs * steps))
    for _ in range(training.epochs):
        order = rows[torch.randperm(len(rows), generator=random, device=device)]
        for batch in order[: steps * size].split(size):
            rate.fill_(next(rates))
            images.copy_(augmented(x[batch], random))
            labels.copy_(y[batch])
            run()
    model.eval()
    with torch.no_grad():
        return torch.cat([model(block).cpu() for block in x.split(4 * training.batch_size)]).numpy()


def convolutions_alone(model: nn.Module, images: torch.Tensor, training: Training) -> float:
    """Return the seconds that the convolutions of one step take, forwards and backwards, one model at a time."""
    calls = convolution_calls(model, images, training)

    def step() -> None:
        with training.autocast(images.device):
            for layer, x, slope in calls:
                sought = (layer.weight, x) if x.requires_grad else layer.weight
                torch.autograd.grad(layer(x), sought, slope)

    run = captured(step, [], list) if images.is_cuda else step
    run()
    return timed(lambda: [run() for _ in range(TIMED_STEPS)], images.device)[1] / TIMED_STEPS


def convolution_calls(model: nn.Module, images: torch.Tensor, training: Training) -> list[tuple[Any, ...]]:
    """Return each convolution, its input in a pass over the images, and a gradient of its output; the first input needs
    no gradient."""
    calls: list[tuple[Any, ...]] = []

    def keep(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        x = inputs[0].detach().clone().requires_grad_(bool(calls))
        calls.append((layer, x, torch.randn_like(output)))

    hooks = [layer.register_forward_hook(keep) for layer in model.modules() if isinstance(layer, Convolution)]
    with training.autocast(images.device), torch.no_grad():
        model(images.contiguous(memory_format=torch.channels_last))
    for hook in hooks:
        hook.remove()
    return calls


def augmented(images: torch.Tensor, random: torch.Generator, border: int = 4) -> torch.Tensor:
    """Move each image by up to `border` pixels, its border mirrored, and mirror every other one."""
    count, _, height, width = images.shape
    draw = partial(torch.randint, size=(count, 1), device=images.device, generator=random)
    y = torch.arange(height, device=images.device) + draw(2 * border + 1)
    x = torch.arange(width, device=images.device) + draw(2 * border + 1)
    x = torch.where(draw(2) == 1, x.flip(1), x)
    bordered = nn.functional.pad(images, [border] * 4, mode="reflect")
    place = torch.arange(count, device=images.device)[:, None, None]
    return bordered.permute(0, 2, 3, 1)[place, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)


MEASURES = {"mlp": time_mlps, "cnn": time_cnns, "resnet9": time_resnets}


def main() -> None:
    options = read_options(
        __doc__,
        recipe=MEASURES,
        device="cuda",
        models=int,
        rows=int,
        epochs=int,
        data=Path,
        folder=Path,
        truth=Path,
        limit=540.0,  # seconds of a command, to be resumed
        autotune=False,
        to=RESULTS,
    )
    for name in options.recipe:
        sizes = {"models": options.models or MODELS[name], "rows": options.rows or ROWS.get(name)}
        found = MEASURES[name](argparse.Namespace(**{**vars(options), **sizes}))
        write_result(
            options.to / f"gpu_shadow_{name}.json", {"models": sizes["models"], **found}, device=options.device
        )


if __name__ == "__main__":
    main()
