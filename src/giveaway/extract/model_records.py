"""The records in memory: all that a network is called with, or the one input that a head keeps of each record."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import InputError, as_tensor, check_finite, check_memory, fail
from giveaway.extract.batches import USUAL, Batches, RecordBatch, mapped, model_inputs
from giveaway.extract.reader import READ_AGAIN, RecordReader, RowBuffers, is_dataset, places_of
from giveaway.extract.torch_model import same_random_states
from giveaway.records.head import Head
from giveaway.records.rows import row_kind

BATCH_SIZE = 512
INPUT_BYTES = 2 * 2**30  # a head keeps inputs up to this size
LATER = "give them to the head with dataclasses.replace(head, inputs=...), where a memory map will do"

Inputs = tuple[torch.Tensor, ...] | dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class ModelRecords(RecordBatch):
    """All records in a fixed order, of which batches go to `device`, floats as `dtype`."""

    device: torch.device
    dtype: torch.dtype

    @property
    def n(self) -> int:
        return len(self.targets)

    def take(self, rows: slice | torch.Tensor) -> RecordBatch:
        def moved(value: torch.Tensor) -> torch.Tensor:
            return value[rows].to(self.device, self.dtype if value.is_floating_point() else None)

        return RecordBatch(*mapped((self.arguments, self.keywords, self.targets), moved))

    def batches(self, rows: int) -> Iterator[tuple[slice, RecordBatch]]:
        for start in range(0, self.n, rows):
            part = slice(start, min(start + rows, self.n))
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
    buffers, targets, keys = RowBuffers(reader.total), RowBuffers(reader.total), list[int | str]()
    with same_random_states(reader.loader):
        for batch in reader.first_pass():
            given: list[tuple[int | str, Any]] = [*enumerate(batch.arguments), *batch.keywords.items()]
            tensors = {key: as_tensor("inputs", value).cpu() for key, value in given}
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
            targets.add("targets", batch.targets)
        reader.check_records()
    joined = buffers.joined().values()
    named = isinstance(keys[0], str)
    inputs: Inputs = dict(zip(map(str, keys), joined, strict=True)) if named else tuple(joined)
    return inputs, targets.joined()["targets"], reader.fingerprints.ids


class InputCollector:
    """Collects the one input that the model is given of each record, on the CPU: with `wanted` True all that can be
    kept, with None floats, bytes and strings."""

    def __init__(self, wanted: bool | None, total: int | None) -> None:
        if wanted not in (None, True, False):
            raise fail("keep.inputs", "True, False or None", repr(wanted), "leave it out to keep what can be kept")
        self._wanted, self._total, self._rows, self._bytes = wanted, total, 0, 0
        self._kept = None if wanted is False else RowBuffers(total)

    def add(self, batch: RecordBatch) -> None:
        try:
            if self._kept is not None:
                self._kept.add("keep.inputs", self._checked(batch))
        except InputError:
            if self._wanted:
                raise
            self._kept = None
        self._rows += batch.rows

    def joined(self) -> Any:
        """Return all rows, a tensor or a list of strings; None where they were not kept."""
        return None if self._kept is None else self._kept.joined().get("keep.inputs")

    def _checked(self, batch: RecordBatch) -> Any:
        """Return the batch's one input, a tensor on the CPU or a list of strings, with one row a record."""
        values, expected = batch.inputs, "a model of one input, a tensor or strings"
        value = values[0]
        if len(values) != 1:
            raise fail("keep.inputs", expected, f"{len(values)} inputs", LATER)
        text = isinstance(value, list | tuple) and all(isinstance(line, str) for line in value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
            value = torch.from_numpy(np.ascontiguousarray(value))
        if not text and (not isinstance(value, torch.Tensor) or value.layout != torch.strided):
            raise fail("keep.inputs", expected, f"a {type(value).__name__}", LATER)
        block: Any = list(value) if text else value.detach().cpu()
        if (not text and block.ndim == 0) or len(block) != batch.rows:
            raise fail("keep.inputs", "one row of input a record", f"other rows for {batch.rows} targets", LATER)
        # Integers may be the ids of tokens, which are no quantities.
        quantities = text or (block.ndim >= 2 and (block.is_floating_point() or block.dtype == torch.uint8))
        if self._wanted is None and not quantities:
            raise fail("keep.inputs", "tables or images of floats or bytes", row_kind(block), "say inputs=True")
        self._bytes += sum(map(len, block)) if text else block.nbytes
        known = not text and self._total is not None
        size = block.nbytes // max(1, batch.rows) * self._total if known else self._bytes
        if size > INPUT_BYTES:
            got = f"{'' if known else 'at least '}{size / 2**30:.3g} GiB"
            raise fail("keep.inputs", f"at most {INPUT_BYTES / 2**30:g} GiB of inputs", got, LATER)
        if not text:
            check_finite("inputs", block, self._rows)
        return block if text or known else block.clone()
