"""The records in memory: all that a network is called with, or the one input that a head keeps of each record."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import InputError, as_tensor, check_finite, check_memory, fail
from giveaway.extract.batches import USUAL, Batches, RecordBatch, mapped, model_inputs
from giveaway.extract.reader import READ_AGAIN, RecordReader, RowBuffers, is_dataset, places_of
from giveaway.extract.torch_model import same_random_states
from giveaway.records.head import Head

BATCH_SIZE = 512
INPUT_BYTES = 2 * 2**30  # a head keeps inputs up to this size

Inputs = tuple[torch.Tensor, ...] | dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class ModelRecords(RecordBatch):
    """All records in a fixed order, of which batches go to `device`, floats as `dtype`."""

    device: torch.device
    dtype: torch.dtype

    def take(self, rows: slice | torch.Tensor) -> RecordBatch:
        def moved(value: torch.Tensor) -> torch.Tensor:
            return value[rows].to(self.device, self.dtype if value.is_floating_point() else None)

        return RecordBatch(*mapped((self.arguments, self.keywords, self.targets), moved))

    def batches(self, rows: int) -> Iterator[tuple[slice, RecordBatch]]:
        for start in range(0, self.rows, rows):
            part = slice(start, min(start + rows, self.rows))
            yield part, self.take(part)


def read_records(data: Any, device: torch.device, dtype: torch.dtype) -> ModelRecords:
    """Return the records of a Dataset or DataLoader in dataset order, or of (inputs, targets) as a model takes them."""
    if isinstance(data, tuple | list) and len(data) == 2:
        inputs, targets = data[0], as_tensor("targets", data[1])
    elif not isinstance(data, tuple | list) and is_dataset(data):
        inputs, targets, _ = _read_twice(RecordReader(data, Batches(BATCH_SIZE), in_order=True))
    else:
        raise fail("data", "(inputs, targets), a Dataset or a DataLoader", type(data).__name__, "pass one of these")
    arguments, keywords = model_inputs(inputs)
    arguments = tuple(as_tensor("inputs", value) for value in arguments)
    keywords = {name: as_tensor("inputs", value) for name, value in keywords.items()}
    n = len(targets) if targets.ndim else 0
    if n == 0:
        raise fail("data", "at least one record", "none", "pass the training set")
    for value in (*arguments, *keywords.values()):
        if value.ndim == 0 or len(value) != n:
            got = f"inputs of shape {tuple(value.shape)} for {n} targets"
            raise fail("data", "one row of inputs a target", got, "align the rows")
        check_finite("inputs", value)
    check_finite("targets", targets)
    return ModelRecords(arguments, keywords, targets, device=device, dtype=dtype)


def inputs_of_head(data: Any, head: Head, *, batches: Batches = USUAL) -> Inputs:
    """Return what the model is called with for all records of `head`, in its order, read from `data` again."""
    inputs, targets, ids = _read_twice(RecordReader(data, batches))
    if len(targets) != head.n:
        raise fail("data", f"{head.n} records in every pass", f"{len(targets)} in another", READ_AGAIN)
    order = slice(None) if ids is None else torch.from_numpy(places_of(head.ids, ids))
    return mapped(inputs, lambda tensor: tensor[order])


def _read_twice(reader: RecordReader) -> tuple[Inputs, torch.Tensor, np.ndarray | None]:
    """Return inputs, targets and ids of all records, read a second time to see that they are the same."""
    buffers, keys = RowBuffers(reader.total), list[Any]()
    with same_random_states(reader.loader):
        for batch in reader.first_pass():
            given: list[tuple[Any, Any]] = [*enumerate(batch.arguments), *batch.keywords.items()]
            tensors = {key: as_tensor("inputs", value).cpu() for key, value in given}
            if not tensors:
                raise fail("data", "inputs beside the targets", "targets alone", "yield what the model takes too")
            if not keys:
                keys, n = list(tensors), reader.total or batch.rows
                size = sum(tensor.nbytes for tensor in tensors.values()) * n // max(1, batch.rows)
                remedy = "score fewer records, the head alone, or pass (inputs, targets) with memory-mapped inputs"
                check_memory("data", 2 * size, what="records that are kept", got=f"{n} of them", remedy=remedy)
            if [*tensors] != keys or any(t.ndim == 0 or len(t) != batch.rows for t in tensors.values()):
                shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors.values())
                got = f"inputs of shape {shapes} for {batch.rows} records"
                raise fail("data", "the same inputs in every batch, each with a row a record", got, "collate them so")
            for key, tensor in tensors.items():
                buffers.add(f"inputs {key}", tensor)
            buffers.add("targets", batch.targets)
        reader.check_records()
    *joined, targets = buffers.joined().values()
    inputs = dict(zip(keys, joined, strict=True)) if isinstance(keys[0], str) else tuple(joined)
    return inputs, targets, reader.fingerprints.ids


class InputCollector:
    """Collects the one input that the model is given of each record, on the CPU: images, tables or strings. Nothing is
    kept where there are others, or more than `INPUT_BYTES` of them."""

    def __init__(self, wanted: bool, total: int | None) -> None:
        self._total, self._bytes = total or 0, 0
        self._kept = RowBuffers(total) if wanted else None

    def add(self, batch: RecordBatch) -> None:
        kept, self._kept = self._kept, None
        if kept is None or (block := _one_input(batch)) is None:
            return
        text = isinstance(block, list)
        self._bytes += sum(map(len, block)) if text else block.nbytes
        expected = 0 if text else block.nbytes // max(1, batch.rows) * self._total
        if max(self._bytes, expected) <= INPUT_BYTES:
            with suppress(InputError):  # of another shape or type than the rows before
                kept.add("inputs", block)
                self._kept = kept

    def joined(self) -> Any:
        """Return all rows, a tensor or a list of strings; None where they were not kept."""
        return None if self._kept is None else self._kept.joined().get("inputs")


def _one_input(batch: RecordBatch) -> Any:
    """Return the model's one input of a batch, if it is a string, or an image or table row of finite numbers, a record:
    integers may be the ids of tokens, which are no quantities."""
    value = batch.inputs[0] if len(batch.inputs) == 1 else None
    if isinstance(value, list | tuple) and all(isinstance(line, str) for line in value):
        return list(value) if len(value) == batch.rows else None
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = as_tensor("inputs", value)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.ndim < 2:
        return None
    quantities = value.is_floating_point() or value.dtype == torch.uint8
    if not quantities or len(value) != batch.rows or not bool(value.isfinite().all()):
        return None
    return value.detach().cpu().clone()  # the model may write into its own
