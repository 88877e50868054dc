"""Small models with their usual training, as shadow ensembles: many at once, stored and resumed."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax
from torch import nn

from benchmarks.networks import Convolution, Pooling
from benchmarks.stacked import InputsOf, Training, seeded_model, train_stacked
from giveaway.attacks.shadow import OnModel, TrainedModel, collect_shadows
from giveaway.attacks.shadow_store import balanced_membership, model_seed, plan_of_halves
from giveaway.checks import as_tensor, check_choice, check_finite, fail
from giveaway.linalg.precision import mixed
from giveaway.records import Signals

CROP_BORDER = 4  # pixels


@dataclass(frozen=True)
class Augment:
    """Images moved by up to four pixels (their border mirrored) and mirrored anew at each use, by a hash of seed, step
    and place."""

    crop: bool = True
    flip: bool = True

    def __call__(self, rows: torch.Tensor) -> InputsOf:
        if rows.ndim != 4:
            got = f"shape {tuple(rows.shape)}"
            raise fail("augment", "images (records, channels, height, width)", got, "drop it")
        border, sizes = CROP_BORDER if self.crop else 0, rows.shape[2:]
        if min(sizes) <= border:
            least = CROP_BORDER + 1
            got = f"{sizes[0]} × {sizes[1]}"
            raise fail("inputs", f"images of {least} × {least} or more to crop", got, "drop crop from augment")
        bordered = nn.functional.pad(rows, [border] * 4, mode="reflect").permute(0, 2, 3, 1).contiguous()

        def changed(which: torch.Tensor, seeds: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            bits = mixed(mixed(mixed(~seeds) + step) + torch.arange(which.shape[1], device=which.device))
            y, x = (torch.arange(size, device=which.device).expand(*which.shape, -1) for size in sizes)
            if self.flip:
                x = torch.where(((bits >> 32) & 1).bool()[..., None], x.flip(-1), x)
            down, right = (((bits >> shift) & 0xFFFF) % (2 * border + 1) for shift in (0, 16))
            y, x = y + down[..., None], x + right[..., None]
            return bordered[which[..., None, None], y[..., :, None], x[..., None, :]].movedim(-1, -3)

        return changed


@dataclass(frozen=True)
class Recipe:
    """How to make one model: `build(input shape, outputs)` and how it is trained, or `solve` in one go.

    `solve(inputs, targets, outputs, l2)` returns the weight (d + 1, outputs) with the bias in its last row; l2 is the
    λ of ½λ‖θ‖² beside the summed loss. `models_at_once` is how many are trained together unless told, with their
    parameters stacked or, with `stack=False`, side by side.
    """

    loss: str
    build: Callable[[tuple[int, ...], int], nn.Module] | None = None
    training: Training | None = None
    models_at_once: int = 1
    stack: bool = True
    solve: Callable[[np.ndarray, np.ndarray, int, float], np.ndarray] | None = None
    l2: float = 0.0


def train_recipe(
    recipe: str | Recipe,
    inputs: Any,
    targets: Any,
    *,
    models: int,
    folder: str | os.PathLike[str],
    kind: str | None = None,
    records: int | None = None,
    seed: int = 0,
    models_at_once: int | None = None,
    device: str | torch.device = "cpu",
    on_model: OnModel | None = None,
) -> Signals:
    """Train shadow models of a recipe (a name of RECIPES, or your own) and store signals as `train_shadows` does.

    `inputs` are (N, …), `targets` (N,) classes, or values for squared loss. The first `records` rows (all unless given)
    are trained on by half of the models each; the others are the population. `kind` is "logits" for classes and
    "squared_error" for values unless given; "phi" and "probabilities" are for classes too.
    """
    made = RECIPES[check_choice("recipe", recipe, RECIPES)] if isinstance(recipe, str) else recipe
    x, y, outputs = _checked_data(inputs, targets, made)
    classes = made.loss == "cross_entropy"
    chosen = kind or ("logits" if classes else "squared_error")
    count = len(x) if records is None else records
    fingerprint: dict[str, Any] = {"inputs": x, "targets": y, "training": None, "l2": made.l2, "loss": made.loss}
    make = None if made.build is None else partial(made.build, x.shape[1:], outputs)
    if make is None or made.training is None:
        fingerprint["solver"] = getattr(made.solve, "__qualname__", "")
    else:
        fingerprint |= {"training": asdict(made.training), "architecture": str(seeded_model(make, seed=0))}
    labels, others = (y[:count] if classes else None), (y[count:] if classes and len(x) > count else None)
    plan = plan_of_halves(count, models, chosen, fingerprint, seed, labels, len(x) - count, others)

    def predictions(missing: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        if make is not None and made.training is not None:
            members = balanced_membership(models, count, seed=seed)
            at_once = made.models_at_once if models_at_once is None else models_at_once
            options: dict[str, Any] = {"models_at_once": at_once, "stack": made.stack, "device": device}
            seeds = [model_seed(number, seed=seed) for number in range(models)]
            yield from train_stacked(make, x, y, members, made.training, seeds=seeds, numbers=missing, **options)
            return
        assert made.solve is not None
        flat = x.reshape(len(x), -1)
        for number in missing:
            rows = plan.job(number).indices
            theta = made.solve(flat[rows], y[rows], outputs, made.l2)
            yield number, flat @ theta[:-1] + theta[-1]

    def train_missing(missing: Sequence[int]) -> Iterator[TrainedModel]:
        began = time.perf_counter()
        for number, predicted in predictions(missing):
            if number in missing:  # groups come out whole
                yield TrainedModel(number, signals_of(predicted, y, chosen), time.perf_counter() - began)
                began = time.perf_counter()

    return collect_shadows(train_missing, plan, folder=folder, on_model=on_model)


def signals_of(outputs: np.ndarray, targets: np.ndarray, kind: str) -> np.ndarray:
    """Turn a model's outputs (rows, classes or values) into signals of one `kind`, in the outputs' precision."""
    if kind == "logits":
        return outputs
    if kind == "squared_error":
        difference = outputs.reshape(len(targets), -1) - targets.reshape(len(targets), -1)
        return (difference * difference).sum(axis=1)
    if kind == "probabilities":
        return softmax(outputs, axis=1)
    wide = outputs.astype(np.float64)
    own = np.arange(len(wide)), targets
    chosen = wide[own]
    wide[own] = -np.inf
    return (chosen - logsumexp(wide, axis=1)).astype(outputs.dtype)


def solve_ridge(inputs: np.ndarray, targets: np.ndarray, outputs: int, l2: float) -> np.ndarray:
    """Minimize Σ‖y − xᵀw − b‖² + ½ l2 ‖w‖², the bias not penalized."""
    x, y = inputs.astype(np.float64), targets.reshape(len(targets), outputs).astype(np.float64)
    centre, level = x.mean(axis=0), y.mean(axis=0)
    gram = (x - centre).T @ (x - centre) + 0.5 * l2 * np.eye(x.shape[1])
    weight = np.linalg.lstsq(gram, (x - centre).T @ (y - level), rcond=None)[0]
    return np.vstack([weight, level - centre @ weight])


def solve_logistic(inputs: np.ndarray, targets: np.ndarray, outputs: int, l2: float) -> np.ndarray:
    """Minimize the summed cross-entropy + ½ l2 ‖θ‖², the bias penalized so that an absent class has one."""
    x = np.column_stack([inputs.astype(np.float64), np.ones(len(inputs))])
    right = np.eye(outputs)[targets]

    def mean_loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = flat.reshape(x.shape[1], outputs)
        logs = log_softmax(x @ theta, axis=1)
        value = -(right * logs).sum() + 0.5 * l2 * (theta * theta).sum()
        gradient = x.T @ (np.exp(logs) - right) + l2 * theta
        return value / len(x), gradient.ravel() / len(x)

    options = {"gtol": 1e-8, "ftol": 0.0, "maxiter": 10_000, "maxfun": 20_000}
    start = np.zeros(x.shape[1] * outputs)
    return minimize(mean_loss, start, jac=True, method="L-BFGS-B", options=options).x.reshape(x.shape[1], outputs)


def _checked_data(inputs: Any, targets: Any, recipe: Recipe) -> tuple[np.ndarray, np.ndarray, int]:
    x, y = as_tensor("inputs", inputs).cpu().numpy(), as_tensor("targets", targets).cpu().numpy()
    if len(x) != len(y) or x.ndim < 2:
        raise fail("inputs", f"{len(y)} rows, one a target", f"shape {x.shape}", "align inputs and targets")
    check_finite("inputs", torch.from_numpy(x))
    if recipe.build is not None:
        parameter = next(seeded_model(partial(recipe.build, x.shape[1:], 1), seed=0).parameters())
        x = torch.from_numpy(x).to(parameter.dtype).numpy()  # networks are made in single precision, data often not
    if recipe.loss == "squared":
        check_finite("targets", torch.from_numpy(y))
        return x, y.astype(x.dtype), int(np.prod(y.shape[1:], dtype=int))
    if y.ndim != 1 or y.dtype.kind not in "iu" or y.min() < 0:
        raise fail("targets", "class indices from 0", f"{y.dtype} of shape {y.shape}", "number the classes")
    return x, y.astype(np.int64), int(y.max()) + 1


def build_mlp(shape: tuple[int, ...], outputs: int, hidden: Sequence[int] = (64, 64)) -> nn.Module:
    """Build fully connected layers with ReLU between them."""
    widths = [int(np.prod(shape)), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def build_cnn(shape: tuple[int, ...], outputs: int, channels: Sequence[int] = (64, 128, 256)) -> nn.Module:
    """Build blocks of 3 × 3 convolution, batch norm, 2 × 2 pooling and ReLU; a layer of 128 units; a linear head.

    The largest of four commutes with ReLU: pooling first gives the same function for fewer passes.
    """
    shrunk = _halved(shape, len(channels))
    layers: list[nn.Module] = []
    for before, after in zip([shape[0], *channels[:-1]], channels, strict=True):
        layers += [Convolution(before, after), nn.BatchNorm2d(after), Pooling(), nn.ReLU()]
    flat = channels[-1] * shrunk[0] * shrunk[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, outputs))


def _halved(shape: tuple[int, ...], times: int) -> list[int]:
    """Return the height and width of images after so many poolings."""
    shrunk = [size // 2**times for size in shape[1:]]
    if 0 in shrunk:
        smallest = 2**times
        raise fail("inputs", f"images of {smallest} × {smallest} or more", f"shape {shape}", "use the mlp recipe")
    return shrunk


class _Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class _LargestScaledDown(nn.Module):
    """The largest of each channel, by a reduction that compilers know: gradients of adaptive pooling are slow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax((2, 3)) / 8


def build_resnet9(shape: tuple[int, ...], outputs: int, channels: Sequence[int] = (64, 128, 256, 384)) -> nn.Module:
    """Build a residual network of nine layers: four convolutions, two residual pairs, and a linear head.

    Pooling comes before batch norm, which then has a quarter of the numbers to normalize. Features are scaled down
    before the head: large rates stay stable.
    """

    def block(before: int, after: int, *between: nn.Module) -> list[nn.Module]:
        return [Convolution(before, after), *between, nn.BatchNorm2d(after), nn.ReLU()]

    _halved(shape, 3)
    first, second, third, last = channels
    return nn.Sequential(
        *block(shape[0], first),
        *block(first, second, Pooling()),
        _Residual(*block(second, second), *block(second, second)),
        *block(second, third, Pooling()),
        *block(third, last, Pooling()),
        _Residual(*block(last, last), *block(last, last)),
        _LargestScaledDown(),
        nn.Linear(last, outputs),
    )


RECIPES: dict[str, Recipe] = {
    "ridge": Recipe("squared", solve=solve_ridge, l2=2.0),
    "logistic": Recipe("cross_entropy", solve=solve_logistic, l2=1.0),
    "mlp": Recipe("cross_entropy", build_mlp, Training(60, 64, "adam", 1e-3), models_at_once=64),
    "cnn": Recipe(
        "cross_entropy",
        build_cnn,
        Training(25, 256, "adamw", 1e-3, weight_decay=0.01),
        models_at_once=4,
        stack=False,
    ),
    "resnet9": Recipe(
        "cross_entropy",
        build_resnet9,
        Training(40, 500, "sgd", 0.4, 5e-4, 0.9, "one_cycle", precision="bfloat16", augment=Augment(), compiled=True),
        models_at_once=4,
        stack=False,
    ),
}
