"""Train the models on which a prediction of LiRA's rates is fitted and judged: about 95 kinds of models, 8 data sets.

Of every kind 64 models (128 where they are stacked) are trained, each on a random half of at most 8,000 records, and
LiRA attacks each of them with the others. One small file a kind, DATA_RECIPE.npz, holds what an audit has of the first
models, and what LiRA measured:

labels : (N,). members (T, N), phi (T, N) : of the first T = 6 models, which records each saw and φ of all records.
mean_in, mean_out, deviation_in, deviation_out, success : (N,), over all models, of φ with and without each record, and
    the share of models about which LiRA is right (threshold 0).
measured : (2, 4), LiRA's true-positive rate at 0.1 % and 1 % false positives over all models' records together, its
    balanced success, and the share of records with an effect size above 1.04; with per-record and with one variance.
by_model : (models, 3), the first three of each model alone, per-record variance.
roots : (2, N) the mean over epochs of √(loss seen) of models 0 and 1, NaN for records they did not see.
losses_seen : (2, epochs, N) float16 of at most 6 epochs, evenly spaced; epochs_seen names them.
earlier : (2, 2, N) φ of models 0 and 1 after half and three quarters of the epochs.
mirrored : (2, N) φ of mirror images, where records are images.
told : JSON, the recipe, accuracies, seconds and, of DP-SGD, noise and ε.

    python -m benchmarks.exposed_share_grid --pack --data DIR --to CARRIED
    python -m benchmarks.exposed_share_grid --data CARRIED --to DIR [--device cuda] [--limit 540] [--tiny]
        [--kinds digits ...] [--recipes mlp ...] [--records 8000] [--models 0]

The first reads the data sets (benchmarks/data.py names the files, cifar10.npz among them) and writes the 27 MB that the
second needs. A kind whose file is there is not trained again; none is begun after --limit seconds.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.dp_sgd import DPTraining, epsilon_of, noise_for, train_dp
from benchmarks.exposed_share_data import RECORDS, load, pack
from benchmarks.measuring import read_options
from benchmarks.recipes import Augment, build_cnn, build_mlp, build_resnet9, signals_of
from benchmarks.stacked import Training, train_stacked
from giveaway.attacks.lira import FLOOR, lira_within
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.attacks.thresholds import AttackScores
from giveaway.evaluation.success import effect_sizes
from giveaway.records import Signals
from giveaway.scores.predicted import phi_of

TARGETS, TRACED, EPOCHS_KEPT = 6, 2, 6
RATES = (0.001, 0.01)
EFFECT = 1.04
STACKED, SIDE_BY_SIDE = 128, 16  # models at once
DELTA, BATCHES = 1e-4, 10  # of DP-SGD: δ, and expected batches an epoch
SEED = 11


@dataclass(frozen=True)
class Kind:
    """How models are made. `epsilon` asks for DP-SGD; `strangers` trains on other records than those that are judged;
    `share` takes the first so many of the records."""

    build: Callable[[tuple[int, ...], int], nn.Module]
    training: Training
    epsilon: float | None = None
    strangers: bool = False
    share: float = 1.0

    @property
    def stacked(self) -> bool:
        return self.build.func is mlp  # type: ignore[attr-defined]

    @property
    def models(self) -> int:
        return 128 if self.stacked and self.epsilon is None else 64


def mlp(shape: tuple[int, ...], outputs: int, hidden: tuple[int, ...] = (64, 64), dropout: float = 0.0) -> nn.Module:
    made = build_mlp(shape, outputs, hidden)
    return _dropped(made, dropout) if dropout else made


def cnn(shape: tuple[int, ...], outputs: int, channels: tuple[int, ...], dropout: float = 0.0) -> nn.Module:
    made = build_cnn(shape, outputs, channels)
    return nn.Sequential(*made[:-1], nn.Dropout(dropout), made[-1]) if dropout else made  # type: ignore[index]


def _dropped(model: nn.Module, rate: float) -> nn.Module:
    layers = [[layer, nn.Dropout(rate)] if isinstance(layer, nn.ReLU) else [layer] for layer in model.children()]
    return nn.Sequential(*(layer for pair in layers for layer in pair))


def smoothed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


_TABLE = Training(60, 100, "adam", 1e-3)
_MLP = Kind(partial(mlp), _TABLE)
_IMAGE = Training(25, 125, "adamw", 1e-3, weight_decay=0.01)
_CNN = Kind(partial(cnn, channels=(32, 64, 128)), _IMAGE)
_RESNET = Kind(
    partial(build_resnet9, channels=(32, 64, 128, 192)),
    Training(25, 125, "sgd", 0.1, 5e-4, 0.9, "one_cycle"),
)
TABLES = {
    "mlp": _MLP,
    "strangers": replace(_MLP, strangers=True),
    "long": replace(_MLP, training=replace(_TABLE, epochs=200)),
    "dropout": replace(_MLP, build=partial(mlp, hidden=(128, 128), dropout=0.5)),
    "short": replace(_MLP, training=replace(_TABLE, epochs=6)),
    "wide": replace(_MLP, build=partial(mlp, hidden=(256, 256))),
    "decay": replace(_MLP, training=replace(_TABLE, optimizer="adamw", weight_decay=2.0)),
    "smooth": replace(_MLP, training=replace(_TABLE, loss=smoothed)),
    "deep": replace(_MLP, build=partial(mlp, hidden=(64, 64, 64, 64))),
    "few": replace(_MLP, share=0.25),
    "linear": replace(_MLP, build=partial(mlp, hidden=())),
}
PRIVATE = {f"dp{epsilon}": replace(_MLP, epsilon=float(epsilon)) for epsilon in (1, 4, 16)}
IMAGES = {
    "cnn": _CNN,
    "resnet": _RESNET,
    "strangers": replace(_CNN, strangers=True),
    "cnn_augmented": replace(_CNN, training=replace(_IMAGE, epochs=40, augment=Augment())),
    "resnet_augmented": replace(_RESNET, training=replace(_RESNET.training, epochs=40, augment=Augment())),
    "cnn_short": replace(_CNN, training=replace(_IMAGE, epochs=4)),
    "cnn_dropout": replace(_CNN, build=partial(cnn, channels=(32, 64, 128), dropout=0.5)),
    "cnn_smooth": replace(_CNN, training=replace(_IMAGE, loss=smoothed)),
    "cnn_decay": replace(_CNN, training=replace(_IMAGE, weight_decay=2.0)),
    "mlp": Kind(partial(mlp, hidden=(256, 128)), Training(40, 125, "adam", 1e-3)),
    "cnn_wide": replace(_CNN, build=partial(cnn, channels=(64, 128, 256))),
    "resnet_short": replace(_RESNET, training=replace(_RESNET.training, epochs=8)),
}
_DIGITS_CNN = Kind(partial(cnn, channels=(32, 64)), Training(20, 64, "adam", 1e-3))
GRID: dict[str, dict[str, Kind]] = {
    "blood": IMAGES,
    "cifar": IMAGES,
    "digits": TABLES | PRIVATE,
    "adult": TABLES | PRIVATE,
    "housing": TABLES | PRIVATE,
    "news": TABLES | PRIVATE,
    "sst2": TABLES,
    "digit_images": {
        "cnn": _DIGITS_CNN,
        "cnn_short": replace(_DIGITS_CNN, training=replace(_DIGITS_CNN.training, epochs=4)),
        "cnn_dropout": replace(_DIGITS_CNN, build=partial(cnn, channels=(32, 64), dropout=0.5)),
    },
}


def make(kind: Kind, x: np.ndarray, y: np.ndarray, models: int, device: str) -> dict[str, np.ndarray]:
    """Train the models of one kind, attack them, and return what its file holds."""
    began = time.perf_counter()
    n, classes = len(y), int(y.max()) + 1
    judged = n // 2 if kind.strangers else n
    members = balanced_membership(models, judged, seed=SEED)
    trained = members
    if kind.strangers:  # all models are trained on halves of the records that nobody asks about
        trained = np.hstack([np.zeros_like(members), balanced_membership(models, n - judged, seed=SEED + 1)])
    seeds = [model_seed(number, seed=SEED) for number in range(models)]
    flat_mirror = x.ndim == 4
    inputs, targets = (np.concatenate([x, x[..., ::-1]]), np.tile(y, 2)) if flat_mirror else (x, y)
    phi, accuracy = np.empty((models, judged), np.float32), np.empty((models, 2))
    kept: dict[str, np.ndarray] = {"mirrored": np.full((TRACED, judged), np.nan, np.float16)} if flat_mirror else {}
    watched = _Watched(y[:judged], kind.training.epochs)
    make_model = partial(kind.build, x.shape[1:], classes)
    told: dict[str, Any] = {"epsilon": kind.epsilon, "models": models, "records": judged, "strangers": kind.strangers}
    if kind.epsilon is None:
        made: Iterator[tuple[int, np.ndarray]] = train_stacked(
            make_model,
            inputs,
            targets,
            trained,
            kind.training,
            seeds=seeds,
            models_at_once=STACKED if kind.stacked else SIDE_BY_SIDE,
            stack=kind.stacked,
            device=device,
            on_epoch=watched.epoch,
        )
        told |= {"training": repr(kind.training), "model": str(make_model())}
    else:
        steps, rate = kind.training.epochs * BATCHES, 1 / BATCHES
        plan = DPTraining(steps, rate, noise_for(kind.epsilon, rate, steps, DELTA))
        told |= {"training": repr(plan), "epsilon spent": epsilon_of(plan.noise, rate, steps, DELTA), "delta": DELTA}
        made = train_dp(
            make_model, inputs, targets, trained, plan, seeds=seeds, device=device, on_losses=watched.losses
        )
    for row, outputs in made:
        phi[row] = signals_of(outputs[:judged], y[:judged], "phi")
        right = outputs[:n].argmax(1) == y
        accuracy[row] = right[: trained.shape[1]][trained[row]].mean(), right[:judged][~members[row]].mean()
        if flat_mirror and row < TRACED:
            kept["mirrored"][row] = signals_of(outputs[n : n + judged], y[:judged], "phi")
    if not np.isfinite(phi).all():
        raise FloatingPointError(f"φ of model {int((~np.isfinite(phi)).any(1).argmax())} is not finite")
    told |= {"accuracy trained on": float(accuracy[:, 0].mean()), "accuracy held out": float(accuracy[:, 1].mean())}
    found = attacked(Signals(phi.astype(np.float64), members, kind="phi"))
    told |= {"seconds": time.perf_counter() - began}
    return {
        "labels": y[:judged],
        "members": members[:TARGETS],
        "phi": phi[:TARGETS].astype(np.float16),
        **found,
        **kept,
        **watched.arrays(),
        "told": np.array(json.dumps(told)),
    }


def attacked(signals: Signals) -> dict[str, np.ndarray]:
    """Attack each model with the others as references; return moments and rates."""
    effect = effect_sizes(signals)
    share = float((effect.effect_size > EFFECT).mean())
    own = lira_within(signals)
    attacks = (own, one_variance(signals))
    single = [
        rates_of(AttackScores("lira", own.scores[row : row + 1], own.members[row : row + 1], own.options))
        for row in range(signals.models)
    ]
    return {
        "mean_in": effect.mean_in.astype(np.float32),
        "mean_out": effect.mean_out.astype(np.float32),
        "deviation_in": effect.deviation_in.astype(np.float32),
        "deviation_out": effect.deviation_out.astype(np.float32),
        "success": ((own.scores > 0) == own.members).mean(0).astype(np.float32),
        "measured": np.array([[*rates_of(attack), share] for attack in attacks]),
        "by_model": np.array(single),
    }


def one_variance(signals: Signals) -> AttackScores:
    """LiRA with one variance for all records on either side: each model by means of the others, and by variances around
    the means of all, of which a model is a small part."""
    phi, members = signals.statistic(slice(None))[:, :, 0], signals.members
    logs = []
    for own in (members, ~members):
        count = own.sum(0)
        away = phi - (phi * own).sum(0) / count
        variance = (away[own] ** 2).mean() + FLOOR
        away = np.where(own, away * count / (count - 1), away)  # from the mean of the others
        logs.append(-0.5 * away**2 / variance - 0.5 * np.log(variance))
    return AttackScores("lira", logs[0] - logs[1], members, {"variance": "one"})


def rates_of(attack: AttackScores) -> list[float]:
    """Return the true-positive rates at RATES, by thresholds between non-members' scores, and the balanced success."""
    inside, outside = attack.scores[attack.members], np.sort(attack.scores[~attack.members])
    thresholds = [np.quantile(outside, 1 - rate) for rate in RATES]
    balanced = ((inside > 0).mean() + (outside <= 0).mean()) / 2
    return [float((inside > threshold).mean()) for threshold in thresholds] + [float(balanced)]


class _Watched:
    """What the training of the first models tells on its way."""

    def __init__(self, labels: np.ndarray, epochs: int) -> None:
        self._labels, self._records = labels, len(labels)
        records = len(labels)
        self._kept = np.unique(np.linspace(0, epochs - 1, EPOCHS_KEPT).round().astype(int))
        self._early = sorted({max(0, epochs // 2 - 1), max(0, 3 * epochs // 4 - 1)})
        self._sum = np.zeros((TRACED, records))
        self._count = np.zeros((TRACED, records))
        self._losses = np.full((TRACED, len(self._kept), records), np.nan, np.float16)
        self._earlier = np.full((TRACED, len(self._early), records), np.nan, np.float16)
        self._told = [0] * TRACED

    def losses(self, row: int, seen: np.ndarray) -> None:
        if row >= TRACED:
            return
        epoch, losses = self._told[row], seen[: self._records].astype(np.float64)
        self._told[row] += 1
        known = np.isfinite(losses)
        self._sum[row] += np.sqrt(np.where(known, np.maximum(losses, 0.0), 0.0))
        self._count[row] += known
        if epoch in self._kept:
            self._losses[row, np.searchsorted(self._kept, epoch)] = losses

    def epoch(self, row: int, epoch: int, seen: torch.Tensor, evaluate: Callable[[], torch.Tensor]) -> None:
        if row >= TRACED:
            return
        self.losses(row, seen.numpy())
        if epoch in self._early:
            outputs = evaluate()[: self._records].double().numpy()
            self._earlier[row, self._early.index(epoch)] = phi_of(outputs, self._labels)

    def arrays(self) -> dict[str, np.ndarray]:
        roots = np.divide(self._sum, self._count, out=np.full_like(self._sum, np.nan), where=self._count > 0)
        return {
            "roots": roots.astype(np.float32),
            "losses_seen": self._losses,
            "epochs_seen": self._kept,
            "earlier": self._earlier,
        }


def tiny(kind: Kind) -> Kind:
    """The same kind, small enough for a test: two epochs, narrow layers."""
    training = replace(kind.training, epochs=2, batch_size=20)
    narrow = {"hidden": (5,)} if kind.stacked else {"channels": (3, 4, 5, 6)[: len(kind.build.keywords["channels"])]}  # type: ignore[attr-defined]
    if kind.stacked and kind.build.keywords.get("hidden") == ():  # type: ignore[attr-defined]
        narrow = {}
    return replace(kind, build=partial(kind.build, **narrow), training=training, share=1.0)


def in_turn(chosen: list[str], recipes: list[str]) -> list[tuple[str, str]]:
    """Every data set's first recipe, then every one's second, so that a run cut short has some of all."""
    longest = max(len(kinds) for kinds in GRID.values())
    names = {name: list(GRID[name]) for name in chosen}
    every = [(name, names[name][k]) for k in range(longest) for name in chosen if k < len(names[name])]
    return [(name, recipe) for name, recipe in every if recipe in recipes]


def main() -> None:
    recipes = sorted({recipe for kinds in GRID.values() for recipe in kinds})
    needs = {"data": Path, "to": Path}
    options = read_options(
        __doc__,
        needs=tuple(needs),
        **needs,
        pack=False,
        device="cpu",
        limit=540.0,
        tiny=False,
        kinds=list(GRID),
        recipes=recipes,
        records=RECORDS,
        models=0,
    )
    if options.pack:
        pack(options.data, options.to)
        return
    began = time.perf_counter()
    options.to.mkdir(parents=True, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    left, failed = 0, []
    for name, recipe in in_turn(options.kinds, options.recipes):
        path, kind = options.to / f"{name}_{recipe}.npz", GRID[name][recipe]
        if path.exists():
            continue
        if time.perf_counter() - began > options.limit:
            left += 1
            continue
        kind = tiny(kind) if options.tiny else kind
        count = options.models or (8 if options.tiny else kind.models)
        x, y = load(options.data, name, 80 if options.tiny else options.records)
        some = round(kind.share * len(y)) // 2 * 2  # halves of one size, as stacked models need
        try:
            made = make(kind, x[:some], y[:some], count, options.device)
        except Exception:  # one kind that fails does not cost the others their time on a GPU
            failed.append(path.stem)
            print(f"{path.stem} failed:\n{traceback.format_exc()}", flush=True)
            continue
        beside = path.with_suffix(".part.npz")
        np.savez_compressed(beside, **made)
        beside.replace(path)
        told = json.loads(str(made["told"]))
        line = " ".join(f"{value:.4f}" for value in made["measured"][0])
        print(
            f"{path.stem}: {told['seconds']:.1f} s, {told['accuracy trained on']:.3f} trained on, "
            f"{told['accuracy held out']:.3f} held out, LiRA {line}",
            flush=True,
        )
    print(f"{left} kinds left, {len(failed)} failed {failed}, {time.perf_counter() - began:.0f} s", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
