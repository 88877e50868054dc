"""A callback that records the loss of every text while a trainer of Hugging Face trains a language model.

Callbacks do not see losses, and trainers shuffle texts, pack them, and drop columns that the model does not take. So
losses are read where the model's forward ends, and a text is known by its tokens.
"""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import TrainerCallback

from giveaway.checks import fail
from giveaway.extract.text_gradients import NUMBERS_AT_ONCE
from giveaway.extract.token_rows import IGNORED, TokenRows, is_encoder_decoder
from giveaway.records import LossTrace
from giveaway.storage.arrays import read_arrays
from giveaway.storage.files import write_atomically

ROWS = 64  # of the dataset whose tokens are read together


class RecordTextLosses(TrainerCallback):
    """Write a LossTrace while `Trainer.train` runs, one row an epoch: of transformers' Trainer, or TRL's SFTTrainer.

    dataset, tokenizer, max_length : the texts as `from_causal_lm` gets them. Training must see the same tokens, so
        tokenize first, and give the same rows of input_ids to the trainer, to this, and to `from_causal_lm`.
    path, ids : of `ga.LossTrace`.

    Samplers, padding, packing of whole texts and accumulated gradients change nothing; texts with the same tokens share
    their losses. Every process writes a file of its own, and `ga.LossTrace(path)` reads them as one. Checkpoints hold
    what was recorded, so that `train(resume_from_checkpoint=...)` goes on in the same file, also within an epoch.
    """

    def __init__(
        self, path: str | Path, dataset: Any, *, tokenizer: Any = None, max_length: int | None = None, ids: Any = None
    ) -> None:
        self.path, self.ids, self._given = path, ids, (dataset, tokenizer, ROWS, max_length)
        self.trace: LossTrace | None = None
        self._open = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **rest: Any) -> None:
        if is_encoder_decoder(model):
            remedy = "record by trace.add in a loop of yours"
            raise fail("model", "a causal language model", type(model).__name__, remedy)
        self._close()  # of a training that was interrupted in this process
        self._texts = KnownTexts(TokenRows(*self._given, model))
        options: Any = {"process": (args.process_index, args.world_size), "losses_per_epoch": sys.maxsize}
        held = None
        if state.global_step:
            held = read_arrays("resume_from_checkpoint", _checkpoint(args, state), "a training with this callback")
            options["resume"] = int(held["epochs"])
        self.trace = LossTrace(self._texts.documents, self.path, ids=self.ids, **options)
        self._open.callback(self.trace.close)
        if held is not None:
            self.trace.go_on(held)
            if float(state.epoch).is_integer():  # a checkpoint of an epoch's last step comes before its end
                self.trace.end_epoch()
        self._open.enter_context(model.register_forward_hook(self._record, with_kwargs=True))

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.trace is not None:
            held = self.trace.unfinished()
            write_atomically(_checkpoint(args, state), lambda stream: np.savez(stream, allow_pickle=False, **held))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.trace is None:
            return
        if not self.trace.unfinished()["added"]:
            self._close()
            remedy = "train without label_smoothing_factor and compute_loss_func, and collate labels"
            raise fail("trainer", "labels in what the model is called with", "none in a whole epoch", remedy)
        self.trace.end_epoch()

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._close()

    def _close(self) -> None:
        self._open.close()
        self.trace = None

    @torch.no_grad()
    def _record(self, model: nn.Module, args: Any, inputs: dict[str, Any], outputs: Any) -> None:
        """Add the mean losses of a batch's texts; calls in evaluation, and without labels, are not of the training."""
        labels = inputs.get("labels")
        if not model.training or labels is None or self.trace is None:
            return
        tokens, mask, places = inputs["input_ids"], inputs.get("attention_mask"), inputs.get("position_ids")
        there = torch.ones_like(tokens, dtype=torch.bool) if mask is None or mask.ndim != 2 else mask != 0
        number = torch.zeros_like(tokens) if places is None else ((places == 0) & there).cumsum(1)
        digests, stretch = _stretches(tokens, torch.where(there, number, -1))
        counted = (labels[:, 1:] != IGNORED) & (stretch[:, 1:] == stretch[:, :-1]) & there[:, 1:]
        losses, of = _token_losses(outputs, labels[:, 1:], counted), stretch[:, 1:][counted]
        zeros = torch.zeros(len(digests), device=losses.device)
        total, count = zeros.index_add(0, of, losses), zeros.index_add(0, of, torch.ones_like(losses))
        some = count > 0
        rows, which = self._texts.rows_of(digests[some.to(digests.device)].cpu().numpy())
        self.trace.add(torch.from_numpy(rows), (total[some] / count[some])[torch.from_numpy(which).to(total.device)])


class KnownTexts:
    """The row numbers of texts by digests of their tokens."""

    def __init__(self, rows: TokenRows) -> None:
        digests, owners = [], []
        for batch in rows.batches():
            digest, stretch = _stretches(batch.keywords["input_ids"], batch.documents)
            owner = torch.full_like(digest, -1).scatter(0, stretch.flatten(), batch.documents.flatten())
            digests.append(digest[owner >= 0])
            owners.append(owner[owner >= 0])
        every, self.documents = torch.cat(digests).numpy(), rows.documents
        self._rows = torch.cat(owners).numpy()[np.argsort(every, kind="stable")]
        self._digests, self._counts = np.unique(every, return_counts=True)

    def rows_of(self, digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of all texts that have these digests, and for each row which of the digests it has."""
        place = np.searchsorted(self._digests, digests).clip(max=len(self._digests) - 1)
        if unknown := int((self._digests[place] != digests).sum()):
            got = f"{unknown} of {len(digests)} in a batch with other tokens"
            remedy = "tokenize once, and give the same rows to both, with max_length= where training cuts them; pack "
            remedy += "whole texts (packing_strategy='bfd'), and collate attention_mask or position_ids"
            raise fail("dataset", "the texts that training sees, token by token", got, remedy)
        times = self._counts[place]
        which = np.repeat(np.arange(len(place)), times)
        first = (self._counts.cumsum() - self._counts)[place]
        return self._rows[np.arange(len(which)) - np.repeat(times.cumsum() - times, times) + first[which]], which


def _stretches(tokens: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a digest of each stretch of tokens (b, L) in a row that have one number, and every token's stretch."""
    begins = torch.ones_like(tokens, dtype=torch.bool)
    begins[:, 1:] = number[:, 1:] != number[:, :-1]
    stretch = begins.flatten().cumsum(0).reshape(tokens.shape) - 1
    at = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    mixed = (at - torch.where(begins, at, 0).cummax(1).values + 1) * -7046029254386353131  # integers that overflow
    mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
    digests = torch.zeros(int(stretch[-1, -1]) + 1, dtype=torch.int64, device=tokens.device)
    return digests.index_add(0, stretch.flatten(), ((mixed ^ (mixed >> 27)) * (tokens + 1)).flatten()), stretch


def _token_losses(outputs: Any, labels: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Return the losses of the tokens that count: from logits, or from what TRL computes without keeping them."""
    said = outputs if isinstance(outputs, Mapping) else {}
    if said.get("log_probs") is not None:
        return -said["log_probs"][counted].float()
    if said.get("logits") is None:
        got = f"a {type(outputs).__name__} without"
        raise fail("model", "logits or log_probs beside the loss", got, "train without kernels that leave them out")
    logits, targets = said["logits"][:, :-1][counted], labels[counted]
    step = max(1, NUMBERS_AT_ONCE // logits.shape[1])
    parts = zip(logits.split(step), targets.to(logits.device).split(step), strict=True)
    return torch.cat([nn.functional.cross_entropy(part.float(), wanted, reduction="none") for part, wanted in parts])


def _checkpoint(args: Any, state: Any) -> Path:
    """Return the file of a checkpoint that holds what this process recorded."""
    name = f"losses.{args.process_index}-of-{args.world_size}.npz"
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / name
