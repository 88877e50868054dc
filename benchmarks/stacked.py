"""Train many small networks at once: one forward and backward pass for all, or side by side.

Each model has its own half of the records, its own first parameters and its own order of records, all from its own
seed; what a model without dropout becomes does not depend on its neighbours beyond rounding, as long as all are trained
on equally many records (the largest sets the number of steps). The gradient of the summed losses with respect to
stacked parameters is each model's own gradient, and the optimizers of torch work number by number, so that they serve
stacked parameters as they are. On a GPU a whole step is one captured CUDA graph, so that the host does not hold it up;
later models train in the memory of earlier ones, with the same graph, as long as their batches are of the same shape.
Convolutions with stacked weights are slow: such models can be trained side by side instead, unstacked, each on a stream
of its own, all in one graph.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, stack_module_state

from giveaway.checks import as_tensor, check_choice, check_finite, fail
from giveaway.linalg.precision import mixed

WARM_UPS = 3  # steps before a graph is captured
EVALUATED_BATCHES = 4  # a pass without gradients takes this many batches: training already held as much

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
CLIMB = 0.25  # share of the steps in which "one_cycle" climbs

Loss = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
InputsOf = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
State = dict[str, torch.Tensor]
OnTrained = Callable[[int, State], Any]
OnEpoch = Callable[[int, int, torch.Tensor, Callable[[], torch.Tensor]], Any]


@dataclass(frozen=True)
class Training:
    """How a network is trained.

    An epoch is split into ⌈members / batch_size⌉ batches of sizes that differ by at most one (no small last batch); of
    models trained together the one with the most members counts. The loss is the mean over a batch. "cosine" goes from
    learning_rate to 0 over all steps; "one_cycle" climbs to it over the first quarter of them and falls to 0, both in
    straight lines. "bfloat16" multiplies in that precision (torch's autocast) and keeps parameters and sums in float32.
    `augment(inputs)` returns a function that gives the inputs (models, width, …) of record numbers (models, width), for
    seeds (models, 1) and a step, changed as it likes. `compiled` lets torch.compile fuse the steps of models on a GPU
    that are not stacked.
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
    augment: Callable[[torch.Tensor], InputsOf] | None = None
    compiled: bool = False

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        check_choice("schedule", self.schedule, ("constant", "cosine", "one_cycle"))
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        if isinstance(self.loss, str):
            check_choice("loss", self.loss, ("cross_entropy", "squared"))

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
    """The batches of several models: record numbers and weights, (models, width) at each step, in the order of a hash
    of (seed, epoch, place). Rows that fill a batch up to the width are of the model's own records and have weight 0."""

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
    stack: bool = True,
    device: str | torch.device = "cpu",
    on_trained: OnTrained | None = None,
    on_epoch: OnEpoch | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
    """Train one model for each row of `membership` (M, N) and yield (row number, its outputs on all inputs).

    `make_model()` builds a model with torch's global random numbers, which are set from the model's seed for that call
    and put back; models may differ in parameters and buffers alone. `inputs` may have more rows than `membership` has
    columns: those are predicted, never trained on. Models are trained in groups of `models_at_once` neighbouring rows;
    with `numbers`, only groups that hold one of them are trained (and come out whole), so that on a CPU a resumed run
    gives the bits of an uninterrupted one. Dropout draws from the seed of the group's first model. With `stack=False`
    the models of a group run side by side on a GPU, one after the other on a CPU. `on_trained(row number, state)` is
    given each model's trained state, on the CPU. `on_epoch(row number, epoch, losses, evaluate)` is given after every
    epoch the losses as training computed them, one a row of `inputs`, NaN for rows that the model did not use;
    `evaluate()` gives the outputs on all inputs.
    """
    x, y = as_tensor("inputs", inputs).to(device), as_tensor("targets", targets).to(device)
    check_finite("inputs", x)
    members = np.asarray(membership, dtype=bool)
    assert len(x) == len(y) >= members.shape[1]
    assert len(seeds) == len(members)
    wanted = set(range(len(members)) if numbers is None else numbers)
    sizes = members.sum(axis=1)
    steps = min(math.ceil(sizes.max() / training.batch_size), int(sizes.min()))  # no batch is empty
    engine: _Engine | None = None
    for first in range(0, len(members), models_at_once):
        group = range(first, min(first + models_at_once, len(members)))
        if wanted.isdisjoint(group):
            continue
        parts = [group] if stack else [range(number, number + 1) for number in group]
        models = [[seeded_model(make_model, seeds[number]).to(x.device) for number in rows] for rows in parts]
        batches = [
            EpochBatches([np.flatnonzero(row) for row in members[rows]], steps, [seeds[n] for n in rows], x.device)
            for rows in parts
        ]
        with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
            if engine is None or not engine.fits(batches):
                engine = None  # gives its memory back before another takes as much
                engine = _Engine([_Trainer(*own, x, y, training) for own in zip(models, batches, strict=True)])
            torch.manual_seed(seeds[first])  # after a graph's warm-ups, which draw too
            for epoch in engine.epochs(models, batches, training.epochs):
                if on_epoch is not None:
                    for rows, trainer in zip(parts, engine.trainers, strict=True):
                        _tell(on_epoch, rows, epoch, trainer)
        for rows, trainer in zip(parts, engine.trainers, strict=True):
            outputs = trainer.outputs()
            for place, number in enumerate(rows):
                if on_trained is not None:
                    state = trainer.ensemble.state_of(place)  # copied in torch's usual layout, alone in its memory
                    copied = {name: v.detach().to("cpu", copy=True).contiguous() for name, v in state.items()}
                    on_trained(number, copied)
                yield number, outputs[place].numpy()


def _tell(on_epoch: OnEpoch, rows: Sequence[int], epoch: int, trainer: "_Trainer") -> None:
    all_outputs = cache(trainer.outputs)  # one pass serves all models of a stack

    def outputs(place: int) -> torch.Tensor:
        return all_outputs()[place]

    for place, losses in enumerate(trainer.losses_seen()):
        on_epoch(rows[place], epoch, losses, partial(outputs, place))


def seeded_model(make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Call `make_model()` with torch's global random numbers set from `seed`, and put them back after it."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return make_model()


class _Stacked:
    """Models of one architecture with stacked parameters: (models, records, …) in, (models, records, outputs) out."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = len(models)
        self.module = copy.deepcopy(models[0])
        stacked, self._buffers = stack_module_state(list(models))
        learned = {name for name, value in models[0].named_parameters() if value.requires_grad}
        self._parameters = {name: value.detach().requires_grad_(name in learned) for name, value in stacked.items()}
        self.parameters = [self._parameters[name] for name in self._parameters if name in learned]
        self.tensors = [*self._parameters.values(), *self._buffers.values()]

    def state_of(self, place: int) -> State:
        held = {**self._parameters, **self._buffers}
        return {name: held[name][place] for name in self.module.state_dict()}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        def one(parameters: State, buffers: State, x: torch.Tensor) -> torch.Tensor:
            return functional_call(self.module, (parameters, buffers), (x,))

        return torch.vmap(one, randomness="different")(self._parameters, self._buffers, x)


class _Single:
    """One model as it is, with the interface of `_Stacked`; images with their channels last, as GPUs prefer."""

    def __init__(self, model: nn.Module) -> None:
        self.models = 1
        self._on_gpu = next(model.parameters()).is_cuda
        self.module = model
        if self._on_gpu:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parameters = [value for value in model.parameters() if value.requires_grad]
        self.tensors = [value.detach()[None] for value in (*model.parameters(), *model.buffers())]

    def state_of(self, place: int) -> State:
        return self.module.state_dict()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        alone = x[0]
        if self._on_gpu and alone.ndim == 4:
            alone = alone.contiguous(memory_format=torch.channels_last)
        return self.module(alone)[None]


class _Trainer:
    """Trains one ensemble a step at a time without a word from the host: all that changes is on the device."""

    def __init__(
        self, models: Sequence[nn.Module], batches: EpochBatches, x: torch.Tensor, y: torch.Tensor, training: Training
    ) -> None:
        ensemble = _Stacked(models) if len(models) > 1 else _Single(models[0])
        ensemble.module.train(True)
        self.ensemble, self._x, self._y, self.batches, self._training = ensemble, x, y, batches, training
        self._records = (lambda which, seeds, step: x[which]) if training.augment is None else training.augment(x)
        read_as = torch.float32 if x.is_cuda else torch.float64  # what the optimizers' kernels read
        self._rates = torch.tensor(training.rates(training.epochs * batches.steps), dtype=read_as, device=x.device)
        self._rate = self._rates[0].clone()
        self.optimizer = training.optimizer_of(ensemble.parameters, self._rate)
        self._losses = torch.vmap(training.losses)
        self._chosen, self._scored = self._choose, self._score
        if training.compiled and x.is_cuda and ensemble.models == 1:
            self.compile()
        self._weights = torch.zeros_like(batches.weights, dtype=ensemble.parameters[0].dtype)
        self._seeds = torch.zeros_like(batches.seeds)
        self.order = torch.zeros_like(batches.weights, dtype=torch.long)
        self.step = torch.zeros(1, dtype=torch.long, device=x.device)
        self.seen = torch.empty(ensemble.models, len(x) + 1, device=x.device)  # of no record last

    def compile(self, backend: str = "inductor") -> None:
        """Have batches drawn and losses computed by compiled code. It sets nothing of its own: a learning rate that was
        set in place there stayed as it was (torch 2.13)."""
        compiled = partial(torch.compile, backend=backend, dynamic=False)
        self._chosen, self._scored = compiled(self._choose), compiled(self._score)

    @torch.no_grad()
    def start(self, models: Sequence[nn.Module], batches: EpochBatches) -> None:
        """Begin with these models and batches, copied into the memory that the step, captured or not, reads."""
        self.batches = batches
        for place, model in enumerate(models):
            for tensor, first in zip(self.ensemble.tensors, (*model.parameters(), *model.buffers()), strict=True):
                tensor[place].copy_(first)
        self._weights.copy_(batches.weights)
        self._seeds.copy_(batches.seeds)
        self.order.copy_(batches.epoch())
        for state in self.optimizer.state.values():
            for tensor in filter(torch.is_tensor, state.values()):
                tensor.zero_()
        self.step.zero_()
        self.seen.fill_(torch.nan)

    def advance(self) -> None:
        rate, inputs, labels, weight, place = self._chosen()
        self._rate.copy_(rate)
        per_record, loss = self._scored(inputs, labels, weight)
        self.seen.scatter_(1, place, per_record.detach().to(self.seen.dtype))
        self.optimizer.zero_grad()
        loss.backward()  # lays gradients out as the parameters, which fused optimizers rely on
        self.optimizer.step()
        self.step.add_(1)

    @torch.no_grad()
    def _choose(self) -> tuple[torch.Tensor, ...]:
        """Return the learning rate of the step, its inputs, labels and weights, and where losses seen are noted."""
        rate = self._rates[self.step % len(self._rates)][0]
        now = self.step % self.batches.steps
        which, weight = (per_step.index_select(1, now)[:, 0] for per_step in (self.order, self._weights))
        place = which.masked_fill(weight == 0, self.seen.shape[1] - 1)
        return rate, self._records(which, self._seeds, self.step), self._y[which], weight, place

    def _score(
        self, inputs: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of every record, and the loss to make small."""
        with self._training.autocast(inputs.device):
            per_record = self._losses(self.ensemble(inputs), labels)
        if per_record.shape != weight.shape:
            got = f"shape {tuple(per_record.shape[1:])} for {weight.shape[1]} records"
            raise fail("loss", "one number a record", got, "return the losses, not their mean")
        return per_record, (per_record * weight).sum()

    def losses_seen(self) -> torch.Tensor:
        """Return the losses (models, rows) of the last epoch, on the CPU: NaN for rows that a model does not use."""
        return self.seen[:, :-1].to("cpu", copy=True)

    @torch.no_grad()
    def outputs(self) -> torch.Tensor:
        """Return the outputs (models, rows, …) for all inputs, on the CPU."""
        self.ensemble.module.train(False)
        blocks = self._x.split(EVALUATED_BATCHES * self.batches.width)
        each = [self.ensemble(x.expand(self.ensemble.models, *x.shape)) for x in blocks]
        self.ensemble.module.train(True)
        return torch.cat([part.cpu() for part in each], dim=1)  # in the end: the device never waits for the host


class _Engine:
    """Trains groups of models, one group after another: all trainers take a step at once, on a GPU in one graph."""

    def __init__(self, trainers: Sequence[_Trainer]) -> None:
        self.trainers = trainers
        self._step = side_by_side([trainer.advance for trainer in trainers], trainers[0].step.device)
        if trainers[0].step.is_cuda:
            tensors = [tensor for trainer in trainers for tensor in trainer.ensemble.tensors]
            self._step = captured(self._step, tensors, tuple)  # all else is set when training starts

    def fits(self, batches: Sequence[EpochBatches]) -> bool:
        return [trainer.order.shape for trainer in self.trainers] == [each.weights.shape for each in batches]

    def epochs(
        self, models: Sequence[Sequence[nn.Module]], batches: Sequence[EpochBatches], epochs: int
    ) -> Iterator[int]:
        """Train these models, and yield the number of each epoch when it has ended."""
        for trainer, part, each in zip(self.trainers, models, batches, strict=True):
            trainer.start(part, each)
        for epoch in range(epochs):
            for trainer in self.trainers if epoch else ():
                trainer.order.copy_(trainer.batches.epoch())
            for _ in range(batches[0].steps):
                self._step()
            yield epoch


def side_by_side(steps: Sequence[Callable[[], None]], device: torch.device) -> Callable[[], None]:
    """Return what takes all the steps: on a GPU each on a stream of its own, elsewhere one after the other."""
    streams = [torch.cuda.Stream() for _ in steps] if device.type == "cuda" else []

    def one_after_the_other() -> None:
        for step in steps:
            step()

    def at_once() -> None:
        here = torch.cuda.current_stream()
        for step, stream in zip(steps, streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                step()
        for stream in streams:
            here.wait_stream(stream)

    return at_once if streams else one_after_the_other


def captured(
    step: Callable[[], None], state: Sequence[torch.Tensor], made: Callable[[], Sequence[torch.Tensor]]
) -> Callable[[], None]:
    """Record `step` once as a CUDA graph; calling the result replays it on the same memory.

    Libraries choose their kernels in the first steps, which therefore run for real: afterwards the tensors of `state`
    are as they were, and those that the steps themselves made (`made()`, an optimizer's) are zero.
    """
    before = [tensor.detach().clone() for tensor in state]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    with torch.no_grad():
        for tensor, earlier in zip(state, before, strict=True):
            tensor.copy_(earlier)
        for tensor in made():
            tensor.zero_()
    return graph.replay
