"""A Lightning callback that records the loss of every record while Trainer.fit runs."""

import os
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback

from giveaway.checks import fail
from giveaway.records import LossTrace

WHOLE_EPOCHS = 2**62  # losses: an epoch ends where Lightning's does, whatever the sampler


class RecordLosses(Callback):
    """Write a LossTrace while `Trainer.fit` runs, one row an epoch of Lightning's.

    path, records, targets, ids : of `ga.LossTrace`; `records` is the number of all records, on however many devices.
    rows : what finds the row numbers in a batch; by default where `ga.indexed` puts them.

    `training_step` returns `{"loss": each.mean(), "losses": each}`, with one loss a record. Every process of several
    devices writes a file of its own, and `ga.LossTrace(path)` reads them as one. Checkpoints hold the number of epochs,
    so that `fit(..., ckpt_path=...)` goes on in the same file; save them by
    `ModelCheckpoint(save_on_train_epoch_end=True)`. Accumulated gradients change nothing.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        records: int,
        *,
        targets: Any = None,
        ids: Any = None,
        rows: Callable[[Any], Any] | None = None,
    ) -> None:
        self.path, self.records, self.identity = path, records, {"targets": targets, "ids": ids}
        self.rows = rows or rows_of_batch
        self.trace: LossTrace | None = None
        self._resume: int | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.trace = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.trace is not None:
            return
        if self._resume not in (None, trainer.current_epoch):  # which is right only now, not yet in on_train_start
            expected = f"a checkpoint with {trainer.current_epoch} recorded epochs"
            remedy = "take one saved by ModelCheckpoint(save_on_train_epoch_end=True), or begin again"
            raise fail("ckpt_path", expected, str(self._resume), remedy)
        process = (trainer.global_rank, trainer.world_size)
        options: Any = {"losses_per_epoch": WHOLE_EPOCHS, "resume": self._resume, "process": process}
        self.trace = LossTrace(self.records, self.path, **self.identity, **options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if outputs is None or self.trace is None:  # a step that was skipped
            return
        if not isinstance(outputs, dict) or "losses" not in outputs:
            expected = 'a dictionary with "losses", one a record'
            raise fail("training_step", expected, "the loss alone", 'return {"loss": each.mean(), "losses": each}')
        self.trace.add(self.rows(batch), outputs["losses"])

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.trace is not None:
            self.trace.end_epoch()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self.trace is not None:
            self.trace.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")  # which Lightning leaves out then: a notebook goes on in this process

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": (self._resume or 0) if self.trace is None else self.trace.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resume = state_dict["epochs"]


def rows_of_batch(batch: Any) -> Any:
    """Return the row numbers that `ga.indexed` put into a batch."""
    if isinstance(batch, dict) and "row" in batch:
        return batch["row"]
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return batch[-1]
    raise fail("batch", "row numbers in it", type(batch).__name__, "load ga.indexed(data), or give rows=")
