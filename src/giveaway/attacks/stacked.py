"""Many small models trained at once: their parameters stacked, one forward and backward pass for all of them.

Each model has its own half of the records, its own first parameters and its own order of records, all from its own
seed; what a model without dropout becomes does not depend on its neighbours beyond rounding, as long as all are trained
on equally many records (the largest sets the number of steps). The gradient of the summed
losses with respect to stacked parameters is each model's own gradient, and the optimizers of torch work number by
number, so that they serve stacked parameters as they are. On a GPU a whole step is one captured graph.

Convolutions with stacked weights are slow. Such models can be trained side by side instead: unstacked, each on a stream
of its own, all in one graph.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, stack_module_state
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from giveaway.attacks.cuda_graph import captured, side_by_side
from giveaway.attacks.epochs import EpochBatches
from giveaway.attacks.training import Training
from giveaway.checks import as_tensor, check_finite, fail

EVALUATED_AT_ONCE = {False: 2**24, True: 2**28}  # numbers of the largest tensor of a pass; on a GPU?

State = dict[str, torch.Tensor]
OnTrained = Callable[[int, State], Any]


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
) -> Iterator[tuple[int, np.ndarray]]:
    """Train one model a row of `membership` (M, N) and yield (row number, its outputs on all inputs).

    `make_model()` builds a model with torch's global random numbers, which are set from the model's seed for that call
    and put back. `inputs` may have more rows than `membership` has columns: those are predicted, never trained on.
    Models are trained in groups of `models_at_once` neighbouring rows; with `numbers`, only groups that hold one of
    them are trained (and come out whole), so that on a CPU a resumed run gives the bits of an uninterrupted one.
    Batch norm is trained as usual, each model with its own running averages; dropout draws from the seed of the group's
    first model. With `stack=False` the models of a group run side by side on a GPU, one after the other on a CPU.
    `on_trained(row number, state)` is given each model's trained state, on the CPU, as `load_state_dict` takes it, just
    before its outputs are yielded.
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
        own_seeds = [seeds[number] for number in group]
        models = [seeded_model(make_model, seed).to(x.device) for seed in own_seeds]
        ensembles: list[_Ensemble] = [_Alone(model) for model in models]
        if stack and len(models) > 1:
            ensembles = [_Stacked(models)]
        own = [np.flatnonzero(members[number]) for number in group]
        parts = np.array_split(np.arange(len(group)), len(ensembles))
        with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
            torch.manual_seed(own_seeds[0])
            trainers = []
            for ensemble, part in zip(ensembles, parts, strict=True):
                batches = EpochBatches([own[k] for k in part], steps, [own_seeds[k] for k in part], x.device)
                trainers.append(_Trainer(ensemble, x, y, batches, training))
            _train(trainers, training.epochs)
        for ensemble, part in zip(ensembles, parts, strict=True):
            outputs = _outputs(ensemble, x)
            for row, place in enumerate(part):
                if on_trained is not None:
                    on_trained(group[place], ensemble.state_of(row))
                yield group[place], outputs[row].numpy()


class _Ensemble(Protocol):
    """Models of one architecture that take (models, records, …) and give (models, records, outputs)."""

    models: int
    parameters: Sequence[torch.Tensor]
    buffers: Sequence[torch.Tensor]

    def train(self, mode: bool) -> None: ...

    def state_of(self, row: int) -> State: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class _Stacked:
    """Stacked parameters and buffers, one pass for all models."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = len(models)
        self._skeleton = copy.deepcopy(models[0])
        stacked, self._buffers = stack_module_state(list(models))
        learned = {name for name, value in models[0].named_parameters() if value.requires_grad}
        self._parameters = {name: value.detach().requires_grad_(name in learned) for name, value in stacked.items()}
        self.parameters: Sequence[torch.Tensor] = [
            self._parameters[name] for name in self._parameters if name in learned
        ]
        self.buffers: Sequence[torch.Tensor] = list(self._buffers.values())
        self._forward = torch.vmap(self._one, randomness="different")

    def _one(self, parameters: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(self._skeleton, (parameters, buffers), (x,))

    def train(self, mode: bool) -> None:
        self._skeleton.train(mode)

    def state_of(self, row: int) -> State:
        held = {**self._parameters, **self._buffers}
        return {name: _kept(held[name][row]) for name in self._skeleton.state_dict()}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self._parameters, self._buffers, x)


class _Alone:
    """One model as it is; images with their channels last where a GPU prefers that."""

    def __init__(self, model: nn.Module) -> None:
        self.models = 1
        self._on_gpu = next(model.parameters()).is_cuda
        self._model = model
        if self._on_gpu:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parameters: Sequence[torch.Tensor] = [value for value in model.parameters() if value.requires_grad]
        self.buffers: Sequence[torch.Tensor] = list(model.buffers())

    def train(self, mode: bool) -> None:
        self._model.train(mode)

    def state_of(self, row: int) -> State:
        return {name: _kept(value) for name, value in self._model.state_dict().items()}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        alone = x[0]
        if self._on_gpu and alone.ndim == 4:
            alone = alone.contiguous(memory_format=torch.channels_last)
        return self._model(alone)[None]


class _Trainer:
    """Training of one ensemble, a step at a time, without a word from the host: all that changes is on the device."""

    def __init__(
        self, ensemble: _Ensemble, x: torch.Tensor, y: torch.Tensor, batches: EpochBatches, training: Training
    ) -> None:
        ensemble.train(True)
        self._ensemble, self._x, self._y, self._batches, self._training = ensemble, x, y, batches, training
        self.steps = batches.steps
        read_as = torch.float32 if x.is_cuda else torch.float64  # what the optimizers' kernels read
        self._rates = torch.tensor(training.rates(training.epochs * batches.steps), dtype=read_as, device=x.device)
        self._rate = self._rates[0].clone()
        self._optimizer = training.optimizer_of(ensemble.parameters, self._rate)
        self._losses = torch.vmap(training.losses)
        self._weights = batches.weights.to(ensemble.parameters[0].dtype)
        self._order = batches.epoch()
        self._step = torch.zeros(1, dtype=torch.long, device=x.device)

    def shuffle(self) -> None:
        self._order.copy_(self._batches.epoch())

    def advance(self) -> None:
        self._rate.copy_(self._rates[self._step % len(self._rates)][0])
        now = self._step % self.steps
        which, weight = (per_step.index_select(1, now)[:, 0] for per_step in (self._order, self._weights))
        with self._training.autocast(self._x.device):
            per_record = self._losses(self._ensemble(self._x[which]), self._y[which])
        if per_record.shape != weight.shape:
            got = f"shape {tuple(per_record.shape[1:])} for {weight.shape[1]} records"
            raise fail("loss", "one number a record", got, "return the losses, not their mean")
        self._optimizer.zero_grad()
        (per_record * weight).sum().backward()  # lays gradients out as the parameters, which fused optimizers rely on
        self._optimizer.step()
        self._step.add_(1)

    def state(self) -> list[torch.Tensor]:
        return [*self._ensemble.parameters, *self._ensemble.buffers, self._step]

    def optimizer_state(self) -> list[torch.Tensor]:
        states = self._optimizer.state.values()
        return [value for state in states for value in state.values() if torch.is_tensor(value)]


def _train(trainers: Sequence[_Trainer], epochs: int) -> None:
    def advance() -> None:
        for trainer in trainers:
            trainer.advance()

    run = advance
    state = [tensor for trainer in trainers for tensor in trainer.state()]
    if state[0].is_cuda:
        together = side_by_side([trainer.advance for trainer in trainers])
        run = captured(together, state, lambda: [made for trainer in trainers for made in trainer.optimizer_state()])
    for epoch in range(epochs):
        if epoch:
            for trainer in trainers:
                trainer.shuffle()
        for _ in range(trainers[0].steps):
            run()


def _kept(value: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU in torch's usual layout, alone in its memory."""
    return value.detach().to("cpu", copy=True).contiguous()


@torch.no_grad()
def _outputs(ensemble: _Ensemble, x: torch.Tensor) -> torch.Tensor:
    """(models, rows, …) on the CPU."""
    ensemble.train(False)

    def pass_of(part: torch.Tensor) -> torch.Tensor:
        return ensemble(part.expand(ensemble.models, *part.shape))

    block = max(1, EVALUATED_AT_ONCE[x.is_cuda] // numbers_a_row(pass_of, x))
    return torch.cat([pass_of(part).cpu() for part in x.split(block)], dim=1)


def numbers_a_row(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> int:
    """By how many numbers the largest tensor of a pass grows with a row of x: a word becomes a vector, an image many
    channels, and nothing of the input tells."""
    made = []
    for rows in (1, 2):
        with _Sizes() as sizes:
            forward(x[:1].expand(rows, *x.shape[1:]))
        made.append(sizes.numbers)
    if len(made[0]) == len(made[1]):
        return max(1, *(two - one for one, two in zip(*made, strict=True)))
    return max(made[1])  # two rows go another way than one


class _Sizes(TorchDispatchMode):
    """The numbers of every tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = [0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.numbers.extend(leaf.numel() for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor))
        return found


def seeded_model(make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """`make_model()` with torch's global random numbers set from `seed`, and put back after it."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        return make_model()


def _check_rows(x: torch.Tensor, y: torch.Tensor, members: np.ndarray, seeds: Sequence[int]) -> None:
    if members.ndim != 2 or not members.any(axis=1).all():
        got = f"shape {members.shape}" + (", a model without records" if members.ndim == 2 else "")
        raise fail("membership", "(models, records), some records in each", got, "use balanced_membership")
    if len(x) != len(y) or len(x) < members.shape[1]:
        expected = f"at least {members.shape[1]} rows, as many as targets"
        raise fail("inputs", expected, f"{len(x)} with {len(y)} targets", "align them with the membership")
    if len(seeds) != len(members):
        raise fail("seeds", f"one a model, {len(members)} in all", str(len(seeds)), "use model_seed")
