"""How a network is trained: epochs, batches, optimizer, schedule, loss, precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from giveaway.checks import check_choice, check_number, fail

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
SCHEDULES = ("constant", "cosine")
LOSSES = ("cross_entropy", "squared")
PRECISIONS = ("float32", "bfloat16")

Loss = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    An epoch is split into ⌈members / batch_size⌉ batches of sizes that differ by at most one (no small last batch); of
    models trained together the one with the most members counts.
    The loss is the mean over a batch. "cosine" goes from learning_rate to 0 over all steps. "bfloat16" multiplies in
    that precision (torch's autocast) and keeps parameters and sums in float32.
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

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("precision", self.precision, PRECISIONS)
        if isinstance(self.loss, str):
            check_choice("loss", self.loss, LOSSES)
        check_number("epochs", self.epochs, minimum=1, remedy="train for at least one epoch")
        check_number("batch_size", self.batch_size, minimum=1, remedy="a batch holds at least one record")
        for name in ("learning_rate", "weight_decay", "momentum"):
            check_number(name, getattr(self, name), minimum=0, remedy="give a number such as 0.001")
        if self.momentum and self.optimizer != "sgd":
            raise fail("momentum", "0 unless the optimizer is sgd", f"{self.momentum}", "drop it")

    def optimizer_of(
        self, parameters: Sequence[torch.Tensor], rate: torch.Tensor | None = None
    ) -> torch.optim.Optimizer:
        """The optimizer, for the parameters of one model or of many; `rate` is read anew at every step."""
        given = self.learning_rate if rate is None else rate
        options: dict[str, Any] = {"lr": given, "weight_decay": self.weight_decay, "fused": True}
        if self.optimizer == "sgd":
            options["momentum"] = self.momentum
        else:
            options["capturable"] = parameters[0].is_cuda
        return OPTIMIZERS[self.optimizer](list(parameters), **options)

    def rates(self, steps: int) -> list[float]:
        """The learning rate of every step."""
        if self.schedule == "constant":
            return [self.learning_rate] * steps
        return [self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * step / steps)) for step in range(steps)]

    def autocast(self, device: torch.device) -> torch.autocast:
        """The precision of products, as a context."""
        enabled = self.precision == "bfloat16"
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled, cache_enabled=False)

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss of every record, for outputs (records, outputs)."""
        if callable(self.loss):
            return self.loss(outputs, targets)
        if self.loss == "squared":
            return (outputs - targets.reshape(outputs.shape)).square().flatten(1).sum(1)
        return nn.functional.cross_entropy(outputs, targets, reduction="none")
