"""CIFAR-10 and ResNet-18 as the GLS experiments use them, and its training: the whole step is one CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from benchmarks.networks import Top
from benchmarks.stacked import captured, side_by_side
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


@dataclass(frozen=True)
class Run:
    """One model to train: on which records, from which seed, and who is told. `trace` records the losses of its
    records, and `on_epoch` is given the model before the first epoch and after each."""

    members: np.ndarray
    seed: int
    trace: LossTrace | None = None
    on_epoch: Callable[[nn.Module], None] | None = None


class _Lane:
    """A model and all that its step reads and writes; models in several lanes are trained side by side."""

    def __init__(self, trainer: Trainer) -> None:
        schedule, device = trainer.schedule, trainer.device
        self.trainer, self.model = trainer, trainer.make().to(device)
        if trainer.on_gpu:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._fused = torch.compile(self.model, dynamic=False) if trainer.on_gpu else self.model
        rate = {"lr": trainer.rate, "momentum": schedule.momentum, "weight_decay": schedule.weight_decay}
        self._optimizer = torch.optim.SGD(self.model.parameters(), **rate, nesterov=True, fused=True)
        self.rows = torch.zeros(schedule.batch, dtype=torch.long, device=device)
        self.moved = torch.zeros(3, schedule.batch, dtype=torch.long, device=device)  # down, right, flipped or not
        self.losses = torch.zeros(len(trainer.y), device=device)

    def begin(self, seed: int) -> None:
        """Draw the first parameters from the seed, and forget the momentum."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            fresh = self.trainer.make()
        with torch.no_grad():
            for own, new in zip(self.model.state_dict().values(), fresh.state_dict().values(), strict=True):
                own.copy_(new)
            for momentum in self.momenta():
                momentum.zero_()
        self.model.train()

    def momenta(self) -> list[torch.Tensor]:
        return [value for state in self._optimizer.state.values() for value in state.values() if value is not None]

    def step(self) -> None:
        """Take one step, from tensors that are filled before it."""
        trainer = self.trainer
        pixels = torch.arange(trainer.x.shape[1], device=trainer.device)
        down, right, flipped = self.moved.unsqueeze(2)
        across = right + torch.where(flipped == 1, len(pixels) - 1 - pixels, pixels)
        x = trainer.padded[self.rows[:, None, None], (down + pixels)[:, :, None], across[:, None, :]]
        with trainer.autocast():
            outputs = self._fused(x.permute(0, 3, 1, 2))
        self._optimizer.zero_grad(set_to_none=True)
        losses = nn.functional.cross_entropy(outputs.float(), trainer.y[self.rows], reduction="none")
        self.losses.index_copy_(0, self.rows, losses.detach())
        losses.mean().backward()
        self._optimizer.step()


class Trainer:
    """Trains models of one architecture, up to `together` side by side: on a GPU each is compiled and has a stream of
    its own, and the graph of a step of all is recorded once and serves every model that follows."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        images: Images,
        schedule: Schedule,
        device: torch.device,
        together: int = 1,
    ) -> None:
        self.schedule, self.device, self.make, self.together = schedule, device, make, together
        self.on_gpu = device.type == "cuda"
        self._mean, self._deviation = _channels(images.records)
        self.x, self.held_out = self._laid_out(images.records), self._laid_out(images.held_out)
        self.y = torch.from_numpy(images.labels).to(device)
        self.held_out_y = torch.from_numpy(images.held_out_labels).to(device)
        # channels last: a gather of shifted pixels gives what convolutions want
        self.padded = nn.functional.pad(self.x, (0, 0, *[schedule.shift] * 4))
        self.rate = torch.zeros((), device=device)
        self._lanes = [_Lane(self) for _ in range(together)]
        self._steps: dict[int, Callable[[], None]] = {}  # by the number of models

    def autocast(self) -> torch.autocast:
        """Return a context in which products have the precision of training."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu, cache_enabled=False)

    def train(self, *runs: Run) -> list[nn.Module]:
        """Return the trained models, in evaluation mode; the next call overwrites them."""
        lanes = self._lanes[: len(runs)]
        own = [torch.from_numpy(np.flatnonzero(run.members)).to(self.device) for run in runs]
        generators = [torch.Generator(self.device).manual_seed(run.seed) for run in runs]
        batch, epochs = self.schedule.batch, self.schedule.epochs
        sizes = {len(rows) for rows in own}
        if len(lanes) < len(runs) or len({size // batch for size in sizes}) != 1 or min(sizes) < batch:
            expected = f"up to {self.together} models of as many batches of {batch}"
            raise ValueError(f"{expected} expected, got {len(runs)} of {sorted(sizes)} records")
        steps = min(sizes) // batch
        for lane, run in zip(lanes, runs, strict=True):
            lane.begin(run.seed)
        step = self._step_of(lanes)
        rates = iter(self.schedule.rates(epochs * steps).tolist())
        self._tell(lanes, runs)
        for _ in range(epochs):
            orders, moves = zip(
                *(self._drawn(rows, generator) for rows, generator in zip(own, generators, strict=True)), strict=True
            )
            for start in range(0, steps * batch, batch):
                for lane, order, moved in zip(lanes, orders, moves, strict=True):
                    lane.rows.copy_(order[start : start + batch])
                    lane.moved.copy_(moved[:, start : start + batch])
                self.rate.fill_(next(rates))
                step()
            for lane, run, rows, order in zip(lanes, runs, own, orders, strict=True):
                if run.trace is not None:
                    trained = order[: steps * batch]
                    run.trace.add(torch.searchsorted(rows, trained), lane.losses[trained])
                    run.trace.end_epoch()
            self._tell(lanes, runs)
        return [lane.model.eval() for lane in lanes]

    @torch.no_grad()
    def logits(self, model: nn.Module, held_out: bool = False, mirrored: bool = False) -> torch.Tensor:
        """Return a model's logits of all records, or of the held-out ones, without shifts."""
        x = self.held_out if held_out else self.x
        parts = (part.flip(2) if mirrored else part for part in x.split(EVALUATED_AT_ONCE))
        return torch.cat([model(part.permute(0, 3, 1, 2)) for part in parts])

    def pictures(self, rows: np.ndarray) -> torch.Tensor:
        """Return some records as the model takes them, on the device."""
        return self.x[torch.from_numpy(rows).to(self.device)].permute(0, 3, 1, 2).contiguous()

    def _drawn(self, own: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the order of an epoch's records, and how far each image is moved."""
        order = own[torch.randperm(len(own), generator=generator, device=self.device)]
        places = 2 * self.schedule.shift + 1
        moved = torch.randint(0, 2 * places, (3, len(own)), generator=generator, device=self.device)
        moved[:2] %= places
        moved[2] %= 2
        return order, moved

    @staticmethod
    def _tell(lanes: Sequence[_Lane], runs: Sequence[Run]) -> None:
        for lane, run in zip(lanes, runs, strict=True):
            if run.on_epoch is not None:
                run.on_epoch(lane.model)

    def _step_of(self, lanes: Sequence[_Lane]) -> Callable[[], None]:
        """Return what takes one step with each of these models; on a GPU a graph, recorded when first asked for."""

        def momenta() -> list[torch.Tensor]:
            return [tensor for lane in lanes for tensor in lane.momenta()]

        if len(lanes) not in self._steps:
            step = side_by_side([lane.step for lane in lanes], self.device)
            state = [tensor for lane in lanes for tensor in (*lane.model.parameters(), *lane.model.buffers())]
            self._steps[len(lanes)] = captured(step, state, momenta) if self.on_gpu else step
        return self._steps[len(lanes)]

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
