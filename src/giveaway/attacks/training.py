"""How a network is trained: the recipe, the batches of every epoch, and images that are changed at each use."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from giveaway.checks import check_choice, check_number, fail
from giveaway.linalg.precision import mixed

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
CROP_BORDER = 4  # pixels
CLIMB = 0.25  # share of the steps in which "one_cycle" climbs

Loss = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Training:
    """How a network is trained: epochs, batches, optimizer, schedule, loss, precision.

    An epoch is split into ⌈members / batch_size⌉ batches of sizes that differ by at most one (no small last batch); of
    models trained together the one with the most members counts. The loss is the mean over a batch. "cosine" goes from
    learning_rate to 0 over all steps; "one_cycle" climbs to it over the first quarter of them and falls to 0, both in
    straight lines. "bfloat16" multiplies in that precision (torch's autocast) and keeps parameters and sums in float32.
    `augment` changes images anew each time they are used: "crop" moves them by up to four pixels, their border
    mirrored, and "flip" mirrors every other one. `compiled` lets torch.compile fuse the passes of models on a GPU that
    are not stacked.
    """

    epochs: int
    batch_size: int
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    schedule: str = "constant"
    loss: Loss = "cross_entropy"
    precision: str = "float32"
    augment: tuple[str, ...] = ()
    compiled: bool = False

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, ("constant", "cosine", "one_cycle"))
        for name in self.augment:
            check_choice("augment", name, ("crop", "flip"))
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        if isinstance(self.loss, str):
            check_choice("loss", self.loss, ("cross_entropy", "squared"))
        check_number("epochs", self.epochs, minimum=1, remedy="train for at least one epoch")
        check_number("batch_size", self.batch_size, minimum=1, remedy="a batch holds at least one record")
        for name in ("learning_rate", "weight_decay", "momentum"):
            check_number(name, getattr(self, name), minimum=0, remedy="give a number such as 0.001")
        if self.momentum and self.optimizer != "sgd":
            raise fail("momentum", "0 unless the optimizer is sgd", f"{self.momentum}", "drop it")

    def optimizer_of(self, parameters: Sequence[torch.Tensor], rate: float | torch.Tensor) -> torch.optim.Optimizer:
        """Make the optimizer for the parameters of one model or of many; a `rate` in a tensor is read at every step."""
        options: dict[str, Any] = {"lr": rate, "weight_decay": self.weight_decay, "fused": True}
        if self.optimizer == "sgd":
            options["momentum"] = self.momentum
        else:
            options["capturable"] = parameters[0].is_cuda
        return OPTIMIZERS[self.optimizer](list(parameters), **options)

    def rates(self, steps: int) -> list[float]:
        """Return the learning rate of every step."""
        if self.schedule == "constant":
            return [self.learning_rate] * steps
        if self.schedule == "one_cycle":
            passed = np.arange(1, steps + 1) / (steps + 1)
            return (self.learning_rate * np.interp(passed, (0.0, CLIMB, 1.0), (0.0, 1.0, 0.0))).tolist()
        return [self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * step / steps)) for step in range(steps)]

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return a context in which products have the precision asked for."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16", cache_enabled=False)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of every record, for outputs (records, outputs)."""
        if callable(self.loss):
            return self.loss(outputs, targets)
        if self.loss == "squared":
            return (outputs - targets.reshape(outputs.shape)).square().flatten(1).sum(1)
        return nn.functional.cross_entropy(outputs, targets, reduction="none")


class EpochBatches:
    """The batches of several models: record numbers and weights, (models, width) at each step.

    Every model takes the same number of steps. Rows that fill a batch up to the width have weight 0 (batch norm sees
    them, and they are records of the model's own), the others 1 / size of the batch. An epoch's order is that of a hash
    of (seed, epoch, place), in whole numbers: no device rounds it and no model depends on its neighbours.
    """

    def __init__(
        self, members: Sequence[np.ndarray], steps: int, seeds: Sequence[int], device: torch.device | str = "cpu"
    ) -> None:
        sizes = torch.tensor([len(own) for own in members])
        longest = int(sizes.max())
        self.steps, self.width = steps, math.ceil(longest / steps)
        padded = torch.zeros(len(members), longest, dtype=torch.long)
        for row, own in zip(padded, members, strict=True):
            row[: len(own)] = torch.from_numpy(own)
        # (models, steps, width): batches of a shuffled row differ by at most one record
        short, longer = (sizes // steps)[:, None], (sizes % steps)[:, None]
        step, column = torch.arange(steps), torch.arange(self.width)
        size = (short + (step < longer))[..., None]
        first = (step * short + torch.minimum(step, longer))[..., None]
        self._places = (first + torch.where(column < size, column, 0)).to(device)
        self.weights = ((column < size).double() / size).to(device)
        self._members = padded.to(device)
        self._absent = (torch.arange(longest) >= sizes[:, None]).to(device)
        self.seeds = torch.tensor(seeds, dtype=torch.long, device=device)[:, None]
        self._epoch = 0

    def epoch(self) -> torch.Tensor:
        """Return the record numbers (models, steps, width) of the next epoch."""
        of_epoch = mixed(mixed(self.seeds) + self._epoch)
        self._epoch += 1
        largest = torch.iinfo(torch.long).max
        keys = mixed(of_epoch + torch.arange(self._members.shape[1], device=of_epoch.device)) & largest
        shuffled = self._members.gather(1, keys.masked_fill_(self._absent, largest).argsort(1))
        return shuffled.gather(1, self._places.flatten(1)).view(self._places.shape)


class TrainingInputs:
    """The inputs of all records. Images are moved and mirrored anew at each use, by a hash of (seed, step, place)."""

    def __init__(self, rows: torch.Tensor, augment: Sequence[str]) -> None:
        self.rows, self._augment = rows, augment
        if augment:
            if rows.ndim != 4:
                raise fail(
                    "augment", "images (records, channels, height, width)", f"shape {tuple(rows.shape)}", "drop it"
                )
            self._border = CROP_BORDER if "crop" in augment else 0
            height, width = rows.shape[2:]
            if min(height, width) <= self._border:
                least, remedy = CROP_BORDER + 1, 'drop "crop" from augment'
                raise fail("inputs", f"images of {least} × {least} or more to crop", f"{height} × {width}", remedy)
            self._bordered = (
                nn.functional.pad(rows, [self._border] * 4, mode="reflect").permute(0, 2, 3, 1).contiguous()
            )

    def __call__(self, which: torch.Tensor, seeds: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """Return the inputs (models, width, …) of record numbers (models, width), for seeds (models, 1)."""
        if not self._augment:
            return self.rows[which]
        bits = mixed(mixed(mixed(~seeds) + step) + torch.arange(which.shape[1], device=which.device))
        y, x = (torch.arange(size, device=which.device).expand(*which.shape, -1) for size in self.rows.shape[2:])
        if "flip" in self._augment:
            x = torch.where(((bits >> 32) & 1).bool()[..., None], x.flip(-1), x)
        down, right = (((bits >> shift) & 0xFFFF) % (2 * self._border + 1) for shift in (0, 16))
        y, x = y + down[..., None], x + right[..., None]
        return self._bordered[which[..., None, None], y[..., :, None], x[..., None, :]].movedim(-1, -3)
