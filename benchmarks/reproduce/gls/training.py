"""CIFAR-10 and ResNet-18 as the GLS experiments use them, and its training: the whole step is one CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from benchmarks.networks import Top
from benchmarks.stacked import captured
from giveaway.records import LossTrace

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MADE = (250, 50, 8)  # records to train on, held-out records, pixels a side of the made images
DEPTHS = ("last layer", "2 last layers", "4 last layers", "full model")
DEEP = {"2 last layers": 1, "4 last layers": 3}  # convolutions below the last linear layer


@dataclass(frozen=True)
class Images:
    """uint8 (n, side, side, 3) and class numbers: the records to draw training sets from, and those held out."""

    records: np.ndarray
    labels: np.ndarray
    held_out: np.ndarray
    held_out_labels: np.ndarray


def made_images(seed: int = 0) -> Images:
    """Make noise around a pattern for each of ten classes, to try the code on."""
    records, held_out, side = MADE
    rng = np.random.default_rng(seed)
    patterns = rng.integers(40, 216, (10, side, side, 3))
    labels = rng.integers(0, 10, records + held_out)
    images = np.clip(patterns[labels] + rng.normal(0, 60, (len(labels), side, side, 3)), 0, 255).astype(np.uint8)
    return Images(images[:records], labels[:records], images[records:], labels[records:])


def layers_of(top: Top, depth: str) -> list[str]:
    """Return the names within `top` of the last k layers: the linear one, then convolutions with their norms.

    The 1×1 convolution of a shortcut runs beside the others and is not counted.
    """
    last = len(top.group) - 1
    names = [[f"group.{k}.conv{c}", f"group.{k}.norm{c}"] for k in range(last, -1, -1) for c in (2, 1)]
    return ["head", *(name for pair in names[: DEEP[depth]] for name in pair)]


FOLDS = 5  # models of a group: each leaves out another fifth of the records
SUBSETS = 2  # a stream of random numbers that meets no other
EVALUATED_AT_ONCE = 2_000


@dataclass(frozen=True)
class Schedule:
    """How one model is trained."""

    epochs: int = 9
    batch: int = 256
    rate: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    shift: int = 4  # pixels, at most, in either direction; every other image is flipped too
    warm_up: float = 0.25  # share of the steps in which the rate rises

    def rates(self, steps: int) -> np.ndarray:
        """Return one cycle: up from a twentieth, and down to nothing, in straight lines."""
        at = (np.arange(steps) + 1) / steps
        return self.rate * np.interp(at, [0.0, self.warm_up, 1.0], [0.05, 1.0, 0.0])


def members_of(number: int, records: int, seed: int) -> np.ndarray:
    """Return the random 80 % of records on which model `number` is trained, (records,) of bool.

    Of every five models each record is in exactly four. A group's partition comes from `seed` and its own number: more
    models leave the earlier ones as they are.
    """
    group, fold = divmod(number, FOLDS)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(SUBSETS, group)))
    inside = np.ones(records, dtype=bool)
    inside[np.array_split(rng.permutation(records), FOLDS)[fold]] = False
    return inside


class Trainer:
    """Trains models of one architecture; the graph of a step is recorded once and serves all of them."""

    def __init__(self, make: Callable[[], nn.Module], images: Images, schedule: Schedule, device: torch.device) -> None:
        self.schedule, self.device, self._make = schedule, device, make
        self._on_gpu = device.type == "cuda"
        self._mean, self._deviation = _channels(images.records)
        self.x, self.held_out = self._laid_out(images.records), self._laid_out(images.held_out)
        self.y = torch.from_numpy(images.labels).to(device)
        self.held_out_y = torch.from_numpy(images.held_out_labels).to(device)
        # channels last: a gather of shifted pixels gives what convolutions want
        self._padded = nn.functional.pad(self.x, (0, 0, *[schedule.shift] * 4))
        self.model = make().to(device)
        if self._on_gpu:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._rate = torch.zeros((), device=device)
        self._optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=self._rate,
            momentum=schedule.momentum,
            nesterov=True,
            weight_decay=schedule.weight_decay,
            fused=True,
        )
        self._rows = torch.zeros(schedule.batch, dtype=torch.long, device=device)
        self._moved = torch.zeros(3, schedule.batch, dtype=torch.long, device=device)  # down, right, flipped or not
        self._losses = torch.zeros(len(self.y), device=device)
        self._step: Callable[[], None] | None = None

    def train(
        self, members: np.ndarray, seed: int, trace: LossTrace | None = None, on_epoch: Callable[[], None] | None = None
    ) -> nn.Module:
        """Return the trained model, in evaluation mode; the next call overwrites it. `trace` records the members, and
        `on_epoch` is called before the first epoch and after each."""
        own = torch.from_numpy(np.flatnonzero(members)).to(self.device)
        generator = torch.Generator(self.device).manual_seed(seed)
        self._begin(seed)
        batch, epochs = self.schedule.batch, self.schedule.epochs
        steps = len(own) // batch
        if steps < 1:
            raise ValueError(f"a batch of {batch} is larger than the {len(own)} records of a model")
        rates = iter(self.schedule.rates(epochs * steps).tolist())
        for epoch in range(epochs):
            if on_epoch is not None and epoch == 0:
                on_epoch()
            order = own[torch.randperm(len(own), generator=generator, device=self.device)]
            shape = (3, len(own))
            places = 2 * self.schedule.shift + 1
            moved = torch.randint(0, 2 * places, shape, generator=generator, device=self.device)
            moved[:2] %= places
            moved[2] %= 2
            for start in range(0, steps * batch, batch):
                self._rows.copy_(order[start : start + batch])
                self._moved.copy_(moved[:, start : start + batch])
                self._rate.fill_(next(rates))
                assert self._step is not None
                self._step()
            if trace is not None:
                trained = order[: steps * batch]
                trace.add(torch.searchsorted(own, trained), self._losses[trained])
                trace.end_epoch()
            if on_epoch is not None:
                on_epoch()
        return self.model.eval()

    @torch.no_grad()
    def logits(self, held_out: bool = False) -> torch.Tensor:
        """Return the logits of all records, or of the held-out ones, without shifts."""
        x = self.held_out if held_out else self.x
        return torch.cat([self.model(part.permute(0, 3, 1, 2)) for part in x.split(EVALUATED_AT_ONCE)])

    def pictures(self, rows: np.ndarray) -> torch.Tensor:
        """Return some records as the model takes them, on the device."""
        return self.x[torch.from_numpy(rows).to(self.device)].permute(0, 3, 1, 2).contiguous()

    def _begin(self, seed: int) -> None:
        """Draw the first parameters from the seed, and forget the momentum."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            fresh = self._make()
        if self._step is None:
            self.model.train()
            state = [*self.model.parameters(), *self.model.buffers()]
            self._step = captured(self._once, state, self._momenta) if self._on_gpu else self._once
        with torch.no_grad():
            for own, new in zip(self.model.state_dict().values(), fresh.state_dict().values(), strict=True):
                own.copy_(new)
            for momentum in self._momenta():
                momentum.zero_()
        self.model.train()

    def _momenta(self) -> list[torch.Tensor]:
        return [value for state in self._optimizer.state.values() for value in state.values() if value is not None]

    def _once(self) -> None:
        """Take one step, from tensors that are filled before it."""
        pixels = torch.arange(self.x.shape[1], device=self.device)
        down, right, flipped = self._moved.unsqueeze(2)
        across = right + torch.where(flipped == 1, len(pixels) - 1 - pixels, pixels)
        x = self._padded[self._rows[:, None, None], (down + pixels)[:, :, None], across[:, None, :]]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._on_gpu, cache_enabled=False):
            outputs = self.model(x.permute(0, 3, 1, 2))
        self._optimizer.zero_grad(set_to_none=True)
        losses = nn.functional.cross_entropy(outputs.float(), self.y[self._rows], reduction="none")
        self._losses.index_copy_(0, self._rows, losses.detach())
        losses.mean().backward()
        self._optimizer.step()

    def _laid_out(self, images: np.ndarray) -> torch.Tensor:
        x = torch.from_numpy(images).to(self.device).float().div_(255)
        return (x - self._mean.to(x)) / self._deviation.to(x)


def phi_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return log p_y − log(1 − p_y) of the true label."""
    own = labels.unsqueeze(1)
    others = logits.double().scatter(1, own, -math.inf)
    return logits.double().gather(1, own).squeeze(1) - others.logsumexp(1)


def _channels(images: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and deviation of each colour, of pixels in [0, 1]."""
    counts = np.stack([np.bincount(images[..., channel].reshape(-1), minlength=256) for channel in range(3)])
    value = np.arange(256) / 255
    share = counts / counts.sum(1, keepdims=True)
    mean = share @ value
    return torch.from_numpy(mean), torch.from_numpy(np.sqrt(share @ value**2 - mean**2))
