"""Many small models trained at once: their parameters stacked, one forward and backward pass for all of them.

Each model has its own half of the records, its own first parameters and its own order of records, all from its own
seed; what a model becomes does not depend on its neighbours beyond rounding. The gradient of the summed losses with
respect to stacked parameters is each model's own gradient, and the optimizers of torch work number by number, so that
they serve stacked parameters as they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from giveaway.checks import as_tensor, check_choice, check_finite, check_number, fail

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
SCHEDULES = ("constant", "cosine")
LOSSES = ("cross_entropy", "squared")
EVALUATED_AT_ONCE = 2**22  # numbers of input a pass, over all models

Loss = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    An epoch is split into ⌈members / batch_size⌉ batches of sizes that differ by at most one (no small last batch).
    The loss is the mean over a batch. "cosine" goes from learning_rate to 0 over all steps.
    """

    epochs: int
    batch_size: int
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    schedule: str = "constant"
    loss: Loss = "cross_entropy"

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        if isinstance(self.loss, str):
            check_choice("loss", self.loss, LOSSES)
        check_number("epochs", self.epochs, minimum=1, remedy="train for at least one epoch")
        check_number("batch_size", self.batch_size, minimum=1, remedy="a batch holds at least one record")
        for name in ("learning_rate", "weight_decay", "momentum"):
            check_number(name, getattr(self, name), minimum=0, remedy="give a number such as 0.001")
        if self.momentum and self.optimizer != "sgd":
            raise fail("momentum", "0 unless the optimizer is sgd", f"{self.momentum}", "drop it")

    def optimizer_of(self, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        """The optimizer, for the parameters of one model or of many."""
        options: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer == "sgd":
            options["momentum"] = self.momentum
        return OPTIMIZERS[self.optimizer](parameters, **options)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        decay = 0.5 * (1.0 + math.cos(math.pi * step / steps)) if self.schedule == "cosine" else 1.0
        return self.learning_rate * decay

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of every record, for outputs (records, outputs)."""
        if callable(self.loss):
            return self.loss(outputs, targets)
        if self.loss == "squared":
            return (outputs - targets.reshape(outputs.shape)).square().flatten(1).sum(1)
        return nn.functional.cross_entropy(outputs, targets, reduction="none")


def train_stacked(
    make_model: Callable[[], nn.Module],
    inputs: Any,
    targets: Any,
    membership: np.ndarray,
    training: Training,
    *,
    seeds: Sequence[int],
    numbers: Sequence[int] | None = None,
    models_at_once: int = 64,
    device: str | torch.device = "cpu",
) -> Iterator[tuple[int, np.ndarray]]:
    """Train one model a row of `membership` (M, N) and yield (row number, its outputs on all inputs).

    `make_model()` builds a model with torch's global random numbers, which are set from the model's seed for that call
    and put back. `inputs` may have more rows than `membership` has columns: those are predicted, never trained on.
    Models are trained in groups of `models_at_once` neighbouring rows; with `numbers`, only groups that hold one of
    them are trained (and come out whole), so that a resumed run gives the bits of an uninterrupted one.
    Batch norm is trained as usual, each model with its own running averages; dropout is refused.
    """
    x, y = as_tensor("inputs", inputs).to(device), as_tensor("targets", targets).to(device)
    check_finite("inputs", x)
    members = np.asarray(membership, dtype=bool)
    _check_rows(x, y, members, seeds)
    if models_at_once < 1:
        raise fail("models_at_once", "at least 1", str(models_at_once), "give the number of models of a group")
    wanted = set(range(len(members)) if numbers is None else numbers)
    sizes = members.sum(axis=1)
    steps = min(math.ceil(sizes.max() / training.batch_size), int(sizes.min()))  # no batch is empty
    for first in range(0, len(members), models_at_once):
        group = range(first, min(first + models_at_once, len(members)))
        if wanted.isdisjoint(group):
            continue
        ensemble = _Ensemble(make_model, [seeds[number] for number in group], x.device)
        batches = EpochBatches([np.flatnonzero(members[number]) for number in group], steps, [seeds[k] for k in group])
        ensemble.fit(x, y, batches, training)
        outputs = ensemble.outputs(x)
        for row, number in enumerate(group):
            yield number, outputs[row].numpy()


class EpochBatches:
    """The batches of several models, all from their own seeds: record numbers and weights, (models, width) a step.

    Every model takes the same number of steps. Rows that fill a batch up to the width have weight 0 (batch norm sees
    them, and they are records of the model's own), the others 1 / size of the batch.
    """

    def __init__(self, members: Sequence[np.ndarray], steps: int, seeds: Sequence[int]) -> None:
        self.steps = steps
        self._members = [torch.from_numpy(own) for own in members]
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        width = math.ceil(max(len(own) for own in members) / steps)
        places = [torch.tensor_split(torch.arange(len(own)), steps) for own in members]
        self._places = torch.stack([torch.stack([_filled(part, width) for part in own]) for own in places])
        sizes = torch.tensor([[len(part) for part in own] for own in places])
        self.weights = (torch.arange(width) < sizes[..., None]).double() / sizes[..., None]

    def epoch(self) -> torch.Tensor:
        """(models, steps, width) record numbers of the next epoch."""
        orders = []
        for own, generator, places in zip(self._members, self._generators, self._places, strict=True):
            orders.append(own[torch.randperm(len(own), generator=generator)][places])
        return torch.stack(orders)


class _Ensemble:
    """Stacked parameters and buffers of models of one architecture."""

    def __init__(self, make_model: Callable[[], nn.Module], seeds: Sequence[int], device: torch.device) -> None:
        models = [seeded_model(make_model, seed).to(device) for seed in seeds]
        if any(isinstance(part, nn.modules.dropout._DropoutNd) for part in models[0].modules()):
            raise fail("make_model", "a model without dropout", "one with it", "train such models one at a time")
        self._skeleton = copy.deepcopy(models[0])
        parameters, self._buffers = stack_module_state(models)
        self.parameters = {name: value.detach().requires_grad_() for name, value in parameters.items()}

    def _forward(self, parameters: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(self._skeleton, (parameters, buffers), (x,))

    def fit(self, x: torch.Tensor, y: torch.Tensor, batches: EpochBatches, training: Training) -> None:
        self._skeleton.train()
        parameters = list(self.parameters.values())
        optimizer = training.optimizer_of(parameters)
        forward, losses = torch.vmap(self._forward), torch.vmap(training.losses)
        weights = batches.weights.to(x.device, parameters[0].dtype)
        total = training.epochs * batches.steps
        for epoch in range(training.epochs):
            order = batches.epoch().to(x.device)
            for step in range(batches.steps):
                for group in optimizer.param_groups:
                    group["lr"] = training.rate(epoch * batches.steps + step, total)
                which = order[:, step]
                per_record = losses(forward(self.parameters, self._buffers, x[which]), y[which])
                gradients = torch.autograd.grad((per_record * weights[:, step]).sum(), parameters)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                optimizer.step()

    @torch.no_grad()
    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """(models, rows, …) on the CPU."""
        self._skeleton.eval()
        forward = torch.vmap(self._forward, in_dims=(0, 0, None))
        models = len(next(iter(self.parameters.values())))
        block = max(1, EVALUATED_AT_ONCE // max(1, models * x[0].numel()))
        parts = [forward(self.parameters, self._buffers, part).cpu() for part in x.split(block)]
        return torch.cat(parts, dim=1)


def seeded_model(make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """`make_model()` with torch's global random numbers set from `seed`, and put back after it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_model()


def _filled(part: torch.Tensor, width: int) -> torch.Tensor:
    return torch.cat([part, part[:1].expand(width - len(part))])


def _check_rows(x: torch.Tensor, y: torch.Tensor, members: np.ndarray, seeds: Sequence[int]) -> None:
    if members.ndim != 2 or not members.any(axis=1).all():
        got = f"shape {members.shape}" + (", a model without records" if members.ndim == 2 else "")
        raise fail("membership", "(models, records), some records in each", got, "use balanced_membership")
    if len(x) != len(y) or len(x) < members.shape[1]:
        expected = f"at least {members.shape[1]} rows, as many as targets"
        raise fail("inputs", expected, f"{len(x)} with {len(y)} targets", "align them with the membership")
    if len(seeds) != len(members):
        raise fail("seeds", f"one a model, {len(members)} in all", str(len(seeds)), "use model_seed")
