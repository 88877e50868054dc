"""Pretrain the small GPT, and fine-tune many of it side by side on halves of the documents, fully or by LoRA.

pretrained.npz : the parameters in float16, the very numbers that every fine-tune starts from, and `architecture`.
KIND_FIRST_LAST.npz (KIND is full or lora) : of models FIRST to LAST − 1,
    `phi_E` (models, documents) : mean log-likelihood of a document's tokens after epoch E, for each of STAGES;
    `before` (documents,) the same of the pretrained model; `members` in packed bits; `options` (JSON);
    of the targets among them (the first models): `targets`, their numbers; `losses_after` (targets, epochs, documents),
    mean token losses of a pass after each epoch; `losses_seen`, those that training itself computed, NaN where a
    document was not trained on.
KIND_epoch_E_target_K.npz : state of target K, in float16 (full) or the adapters alone, in float32 (lora).

The learning rate climbs for WARM_UP steps and then stays, so that the model after E epochs is what a run of E epochs
gives. The loss is the mean over the tokens of a batch.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.data import arrays
from benchmarks.language_models.gpt import Architecture, State, first_adapters, first_parameters, stacked, token_losses
from benchmarks.language_models.texts import Documents
from benchmarks.stacked import EpochBatches, Training, captured
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.storage.files import write_atomically

SEED = 11
STAGES = (1, 3, 10)
WARM_UP = 50
EVALUATED = 1024  # documents times models of a pass without gradients
CHECKS = 20  # how often pretraining looks at the held-out text


@dataclass(frozen=True)
class Tuning:
    """How a model is fine-tuned; `adapted` names the projections that get adapters (none: all parameters train)."""

    learning_rate: float
    batch_size: int = 32
    adapted: tuple[str, ...] = ()
    precision: str = "bfloat16"
    compiled: bool = False


def token_mask(lengths: torch.Tensor, longest: int) -> torch.Tensor:
    """Return which of the tokens after the first are there, (…, longest − 1)."""
    return torch.arange(1, longest, device=lengths.device) < lengths[..., None]


class Trainer:
    """Steps of several models that share the device; what changes from step to step is on the device too."""

    def __init__(
        self, shape: Architecture, trained: State, frozen: State, training: Training, warm_up: int, steps: int = 0,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        self.shape, self.trained, self.held, self.dropout = shape, trained, {**frozen, **trained}, dropout
        for tensor in trained.values():
            tensor.requires_grad_(True)
        device = next(iter(trained.values())).device
        self.training, self._warm_up, self._steps = training, warm_up, steps
        self.step = torch.zeros((), dtype=torch.long, device=device)
        read_as = torch.float32 if device.type == "cuda" else torch.float64  # what the optimizers' kernels read
        self._rate = torch.zeros((), dtype=read_as, device=device)
        self.optimizer = training.optimizer_of(list(trained.values()), self._rate)
        compiled = training.compiled and device.type == "cuda"
        self._losses = torch.compile(token_losses, dynamic=False) if compiled else token_losses

    def advance(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Take a step on tokens (models, documents, length); return losses (models, documents, length − 1) before it.

        The rate climbs, then stays; where the number of `steps` is known, it falls to 0 by a cosine.
        """
        climbed = ((self.step + 1) / self._warm_up).clamp(max=1.0)
        if self._steps:
            climbed = climbed * 0.5 * (1 + torch.cos(math.pi * self.step / self._steps))
        self._rate.copy_(self.training.learning_rate * climbed)
        with self.training.autocast(tokens.device):
            losses = self._losses(self.shape, self.held, tokens, self.dropout)
        weight = mask / mask.sum((1, 2), keepdim=True)
        self.optimizer.zero_grad()
        (losses * weight).sum().backward()
        self.optimizer.step()
        self.step.add_(1)
        return losses.detach()

    def repeated(self, step: Callable[[], None], *changed: torch.Tensor) -> Callable[[], None]:
        """Return `step` as one captured graph on a GPU, as it is elsewhere; `changed` is what it changes besides."""
        if not self.step.is_cuda:
            return step

        def made() -> list[torch.Tensor]:
            return [v for state in self.optimizer.state.values() for v in state.values() if torch.is_tensor(v)]

        return captured(step, [*self.trained.values(), self.step, *changed], made)

    def log_likelihoods(self, documents: Documents, first: int | None = None) -> torch.Tensor:
        """Return the mean log-likelihood (models, n) of a document's tokens by all or the first models, on the CPU."""
        asked = {name: value[:first] for name, value in self.trained.items()}
        return mean_log_likelihoods(self.shape, self.held | asked, documents, len(next(iter(asked.values()))))

    def state_of(self, model: int, dtype: torch.dtype) -> dict[str, np.ndarray]:
        return {name: value[model].detach().to(dtype).cpu().numpy() for name, value in self.trained.items()}


@torch.no_grad()
def mean_log_likelihoods(shape: Architecture, held: State, documents: Documents, models: int) -> torch.Tensor:
    """Measure without autocast, as the differences between models are small: tf32 keeps ten bits, bfloat16 seven."""
    block, found = max(EVALUATED // models, 1), []
    for tokens, lengths in zip(documents.tokens.split(block), documents.lengths.split(block), strict=True):
        losses = token_losses(shape, held, tokens.expand(models, *tokens.shape))
        mask = token_mask(lengths, tokens.shape[1])
        found.append(-(losses * mask).sum(2) / mask.sum(1))
    return torch.cat(found, dim=1).cpu()


def pretrain(
    texts: Path, to: Path, shape: Architecture, training: Training, dropout: float, device: torch.device | str
) -> None:
    """Train a GPT on random pieces of the running text; keep it as it was when held-out text was likeliest."""
    stream, *others = arrays(texts, "pretraining", "held_out_wikitext", "held_out_sst2")
    text = torch.from_numpy(stream.astype(np.int64)).to(device)
    length = shape.positions + 1
    held_out = {
        name: blocks_of(other, length).to(device) for name, other in zip(("WikiText-2", "SST-2"), others, strict=True)
    }
    steps = training.epochs * math.ceil(len(text) / (training.batch_size * length))
    trainer = Trainer(
        shape, stacked([first_parameters(shape, SEED)], device), {}, training, 4 * WARM_UP, steps, dropout
    )
    generator = torch.Generator().manual_seed(SEED)
    starts = torch.randint(len(text) - length, (steps, training.batch_size), generator=generator).to(device)
    reach = torch.arange(length, device=device)
    everything = torch.ones((1, training.batch_size, length - 1), dtype=torch.bool, device=device)

    def step() -> None:
        first = starts.index_select(0, trainer.step[None] % steps)[0]
        trainer.advance(text[first[:, None] + reach][None], everything)

    run, began = trainer.repeated(step), time.perf_counter()
    best, state = math.inf, {}
    for check in range(1, CHECKS + 1):
        for _ in range(steps * (check - 1) // CHECKS, steps * check // CHECKS):
            run()
        likely = {name: trainer.log_likelihoods(blocks) for name, blocks in held_out.items()}
        perplexity = {name: math.exp(-float(found.mean())) for name, found in likely.items()}
        joint = -float(torch.cat(list(likely.values()), dim=1).mean())
        if joint < best:
            best, state, kept = joint, trainer.state_of(0, torch.float16), perplexity
        told = ", ".join(f"{name} {value:.1f}" for name, value in perplexity.items())
        print(f"epoch {training.epochs * check / CHECKS:.1f}: held-out perplexity {told}, "
              f"{time.perf_counter() - began:.1f} s", flush=True)  # fmt: skip
    described = {"architecture": asdict(shape), "perplexity": kept, "training": asdict(training), "dropout": dropout}
    to.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(to, partial(np.savez, described=json.dumps(described), **state))
    parameters = sum(value.size for value in state.values())
    print(f"kept: {parameters:,} parameters, held-out perplexity a token {kept}", flush=True)


def blocks_of(stream: np.ndarray, length: int) -> Documents:
    tokens = torch.from_numpy(stream[: len(stream) // length * length].astype(np.int64)).view(-1, length)
    return Documents(tokens, torch.full((len(tokens),), length), 0)


def read_pretrained(file: Path) -> tuple[Architecture, State]:
    with np.load(file) as held:
        described = json.loads(str(held["described"]))
        state = {name: torch.from_numpy(held[name]) for name in held.files if name != "described"}
    return Architecture(**described["architecture"]), state


def fine_tune(
    shape: Architecture, base: State, documents: Documents, numbers: range, tuning: Tuning, members: np.ndarray
) -> Iterator[tuple[int, Trainer, torch.Tensor]]:
    """Train the models `numbers`, side by side; after each epoch yield its number, the trainer and the losses seen.

    The losses (models, documents), on the device, are NaN where a document was not trained on. `members` (models,
    documents) has a row for each of the numbers.
    """
    device = documents.tokens.device
    seeds = [model_seed(number, seed=SEED) for number in numbers]
    if tuning.adapted:
        frozen = stacked([base], device)
        trained = stacked([first_adapters(shape, tuning.adapted, seed) for seed in seeds], device)
    else:
        frozen, trained = {}, stacked([base] * len(numbers), device)
    training = Training(
        max(STAGES), tuning.batch_size, "adam", tuning.learning_rate, precision=tuning.precision,
        compiled=tuning.compiled,
    )  # fmt: skip
    trainer = Trainer(shape, trained, frozen, training, WARM_UP)
    own = [np.flatnonzero(row) for row in members]
    batches = EpochBatches(own, math.ceil(max(map(len, own)) / tuning.batch_size), seeds, device)
    order, filled = batches.epoch(), batches.weights > 0
    longest = documents.tokens.shape[1]
    seen = torch.full((len(numbers), len(documents.tokens) + 1), torch.nan, device=device)  # of no document last

    def step() -> None:
        now = trainer.step[None] % batches.steps
        which, there = (per_step.index_select(1, now)[:, 0] for per_step in (order, filled))
        mask = token_mask(documents.lengths[which], longest)
        losses = trainer.advance(documents.tokens[which], mask & there[..., None])
        place = which.masked_fill(~there, seen.shape[1] - 1)
        seen.scatter_(1, place, (losses * mask).sum(2) / mask.sum(2))

    run = trainer.repeated(step, seen)
    for epoch in range(1, max(STAGES) + 1):
        if epoch > 1:
            order.copy_(batches.epoch())
        for _ in range(batches.steps):
            run()
        yield epoch, trainer, seen[:, :-1]


def write_slice(
    base_file: Path, documents: Documents, to: Path, tuning: Tuning, *, only: range, targets: int, at_once: int
) -> None:
    """Train models `only` in groups and write what the module's text says; a slice that is there stays."""
    kind = "lora" if tuning.adapted else "full"
    file = to / f"{kind}_{only.start}_{only.stop}.npz"
    if file.exists():
        print(f"{file.name} is there")
        return
    to.mkdir(parents=True, exist_ok=True)
    shape, base = read_pretrained(base_file)
    members = balanced_membership(len(only), len(documents.tokens), seed=SEED, first=only.start)
    before = mean_log_likelihoods(shape, stacked([base], documents.tokens.device), documents, 1)[0]
    print(f"{kind}: perplexity of the documents before {perplexity(before):.1f}", flush=True)
    phi: dict[int, list[torch.Tensor]] = {stage: [] for stage in STAGES}
    after: dict[int, list[torch.Tensor]] = {number: [] for number in only if number < targets}
    during: dict[int, list[torch.Tensor]] = {number: [] for number in after}
    dtype = torch.float32 if tuning.adapted else torch.float16
    began = time.perf_counter()
    for first in range(only.start, only.stop, at_once):
        group = range(first, min(first + at_once, only.stop))
        own = members[first - only.start :][: len(group)]
        traced = [number for number in group if number in after]
        for epoch, trainer, seen in fine_tune(shape, base, documents, group, tuning, own):
            if epoch not in STAGES and not traced:
                continue
            likely = trainer.log_likelihoods(documents, None if epoch in STAGES else len(traced))
            if epoch in STAGES:
                phi[epoch].append(likely)
                tell(kind, group, epoch, likely.numpy(), own, time.perf_counter() - began)
            for place, number in enumerate(traced):
                after[number].append(-likely[place])
                during[number].append(seen[place].cpu())
                if epoch in STAGES:
                    path = to / f"{kind}_epoch_{epoch}_target_{number}.npz"
                    write_atomically(path, partial(np.savez, **trainer.state_of(place, dtype)))
    told = {**asdict(tuning), "truncated": documents.truncated, "longest": documents.tokens.shape[1]}
    held: dict[str, Any] = {f"phi_{stage}": torch.cat(values).numpy() for stage, values in phi.items()}
    held |= {"members": np.packbits(members, axis=1), "before": before.numpy()}
    held |= {"targets": np.array(sorted(after), int), "options": json.dumps(told)}
    for name, traces in (("losses_after", after), ("losses_seen", during)):
        held[name] = np.array([torch.stack(each).numpy() for each in traces.values()])
    write_atomically(file, partial(np.savez, **held))
    print(f"{file.name}: {len(only)} models in {time.perf_counter() - began:.1f} s", flush=True)


def tell(kind: str, group: Sequence[int], epoch: int, likely: np.ndarray, own: np.ndarray, seconds: float) -> None:
    inside, outside = perplexity(likely[own]), perplexity(likely[~own])
    print(f"{kind} {group[0]} to {group[-1]}, epoch {epoch}: perplexity {inside:.1f} with, {outside:.1f} without, "
          f"{seconds:.1f} s", flush=True)  # fmt: skip


def perplexity(log_likelihoods: Any) -> float:
    """Return exp of the mean loss, each document counted once."""
    return math.exp(-float(log_likelihoods.mean()))
