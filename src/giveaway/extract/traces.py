"""Loss traces of trainings that recorded none, from the checkpoints that were saved on the way."""

import copy
import glob
import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from giveaway.checks import errors_about, fail
from giveaway.extract.batches import USUAL, Batches, RecordBatch
from giveaway.extract.reader import RecordReader, RowBuffers
from giveaway.extract.torch_model import accepted, device_of, load_weights, logits_of, untouched, unwrapped
from giveaway.records.examples import check_targets, infer_loss
from giveaway.records.loss_trace import LossTrace
from giveaway.storage.files import file_digest
from giveaway.text import progress_of

LEAST = 2  # one checkpoint tells what the finished model tells


def trace_of_checkpoints(
    model: nn.Module,
    checkpoints: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    data: Any,
    *,
    loss: str = "auto",
    out: str | os.PathLike[str] | None = None,
    batches: Batches = USUAL,
    allow_pickle: bool = False,
    progress: bool = False,
) -> LossTrace:
    """Return the losses of the records in `data` at every checkpoint, in evaluation mode: one pass a checkpoint.

    The data are read in order, as `from_torch` reads them, and must be the same in every pass. The model is left
    exactly as it was. Such a trace says less than one that training recorded: see docs/traces.md.

    checkpoints : files of weights in the order of training, or a pattern such as "run/*.safetensors", whose files are
        taken in the order of the numbers in their names.
    data, batches : as in `from_torch`.
    loss : "squared", "cross_entropy" or "binary_cross_entropy", or "auto", which infers it from the targets.
    out : a file for the trace. A run that was killed goes on with it at the checkpoint where it stopped, if
        checkpoints, data and loss are the same.
    allow_pickle : trust checkpoints that need pickle, which can run any code.
    """
    module, files = unwrapped(model), _in_order(checkpoints)
    where = device_of(module)
    reader = RecordReader(data, batches, in_order=True)
    made_of = {"checkpoints": len(files), "checkpoints_sha256": _digest(files)}
    with ExitStack() as after:
        after.callback(module.load_state_dict, copy.deepcopy(module.state_dict()))
        targets = RowBuffers(reader.total)
        for batch in reader.first_pass():
            targets.add("targets", batch.targets)
        reader.check_records()
        y, rows = targets.joined()["targets"], reader.fingerprints.rows
        made_of |= {"data_sha256": reader.fingerprints.digest(), "loss": loss}
        resume = LossTrace(out).epochs if out is not None and Path(out).exists() else None
        trace = LossTrace(rows, out, targets=y, ids=reader.fingerprints.ids, resume=resume, made_of=made_of)
        left, named = files[trace.epochs :], ""
        with progress_of(rows * len(left), enabled=progress, work="trace") as on_rows:
            for file in left:
                with errors_about(f"checkpoints: {file.name}: "):
                    load_weights(module, file, allow_pickle=allow_pickle)
                start = 0
                with untouched(module, reader.loader):
                    for batch in reader.later_pass():
                        outputs = _outputs(module, batch, where)
                        if not named:
                            named = infer_loss(y, outputs) if loss == "auto" else loss
                            y = check_targets(y, outputs[:1].expand(rows, -1), named)
                        wanted = y[start : start + batch.rows].to(where)
                        trace.add(range(start, start + batch.rows), _losses(named, outputs.double(), wanted))
                        start += batch.rows
                        on_rows(batch.rows)
        trace.close()
    return trace


def _outputs(model: nn.Module, batch: RecordBatch, device: torch.device) -> torch.Tensor:
    arguments, keywords = batch.inputs_on(device)
    outputs = logits_of(model(*arguments, **accepted(model, keywords)))
    if not isinstance(outputs, torch.Tensor) or outputs.ndim == 0 or len(outputs) != batch.rows:
        shape = f"shape {tuple(outputs.shape)}" if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        got = f"{shape} for {batch.rows} records"
        raise fail("model", "one row of outputs a record", got, "return the logits or values alone")
    if outputs.ndim > 2:
        got, remedy = f"shape {tuple(outputs.shape)}", "record a trace in training: ga.LossTrace takes any losses"
        raise fail("loss", "outputs (records, classes or values)", got, remedy)
    return outputs.unsqueeze(1) if outputs.ndim == 1 else outputs


def _losses(name: str, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if name == "squared":
        return (f - y).square().sum(1)
    if name == "cross_entropy" and f.shape[1] > 1:
        return functional.cross_entropy(f, y, reduction="none")
    return functional.binary_cross_entropy_with_logits(f, y.double().reshape(len(y), -1), reduction="none").sum(1)


def _in_order(checkpoints: Any) -> list[Path]:
    if isinstance(checkpoints, str | os.PathLike):
        checkpoints = glob.glob(os.path.expanduser(checkpoints), recursive=True)
        numbers = re.compile(r"(\d+)").split
        checkpoints.sort(key=lambda name: [int(part) if part.isdigit() else part for part in numbers(name)])
    if len(checkpoints) < LEAST:
        got, remedy = f"{len(checkpoints)} files", "name them by a pattern in quotes, such as 'run/*.safetensors'"
        raise fail("checkpoints", f"at least {LEAST} checkpoints", got, remedy)
    return [Path(name) for name in checkpoints]


def _digest(files: Sequence[Path]) -> str:
    known: dict[str, Path] = {}
    for file in files:
        if (digest := file_digest(file.resolve())) is None:
            raise fail("checkpoints", "files that can be read", str(file), "check the path")
        if digest in known:
            got = f"{file.name} with the weights of {known[digest].name}"
            raise fail("checkpoints", "different checkpoints", got, "leave one of them out")
        known[digest] = file
    return hashlib.sha256(" ".join(known).encode()).hexdigest()
