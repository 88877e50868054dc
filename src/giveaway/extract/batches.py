"""Batches of the usual forms: model inputs, targets and ids, and blocks of rows joined again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from giveaway.checks import as_tensor, check_names, check_whole, fail, nearest

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
ID_KEYS = ("ids", "id")


@dataclass(frozen=True)
class BatchKeys:
    """Where a batch holds inputs, targets and ids: positions in a tuple or keys in a dict; None is the usual place."""

    inputs: str | int | None = None
    targets: str | int | None = None
    ids: str | int | None = None


@dataclass(frozen=True)
class RecordBatch:
    """Some records: what the model is called with, their targets, and their ids if the batch carries them."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    targets: torch.Tensor
    ids: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """The number of records."""
        return len(self.targets)

    @property
    def inputs(self) -> list[Any]:
        """Arguments and keywords in one list."""
        return [*self.arguments, *self.keywords.values()]

    def inputs_on(self, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments and keywords with every tensor on `device`."""
        return _moved(self.arguments, device), _moved(self.keywords, device)

    def leaves(self) -> Iterator[Any]:
        """Yield tensors, arrays, lists of plain values and single values of inputs and targets, without nesting."""
        return _leaves((self.arguments, self.keywords, self.targets))


def is_dataset(data: Any) -> bool:
    """Whether `data` is a DataLoader, a Dataset, or something else that gives records by their numbers."""
    if isinstance(data, DataLoader | Dataset):
        return True
    indexable = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return indexable and not isinstance(data, Mapping | str | torch.Tensor | np.ndarray)


def as_loader(data: Any, batch_size: int) -> DataLoader[Any]:
    """Return a DataLoader as it is, and a Dataset as a loader in dataset order."""
    if isinstance(data, DataLoader):
        return data
    if not is_dataset(data):
        raise fail("data", "a DataLoader or a Dataset", type(data).__name__, "wrap arrays in a TensorDataset")
    check_whole("batch_size", batch_size, remedy="256 suits most models")
    return DataLoader(data, batch_size=batch_size, shuffle=False)


def split_batch(batch: Any, keys: BatchKeys) -> RecordBatch:
    """Split a tuple, list or dict into inputs, targets and ids, as `keys` says."""
    if isinstance(batch, Mapping):
        inputs, targets, ids = _split_mapping(dict(batch), keys)
    elif isinstance(batch, tuple | list):
        inputs, targets, ids = _split_sequence(list(batch), keys)
    else:
        raise fail("data", "batches (inputs, targets) or dicts", type(batch).__name__, "return the targets as well")
    y = as_tensor("targets", targets).cpu()
    if y.ndim == 0:
        raise fail("data", "batches with one target a record", "a single target", "give the DataLoader a batch_size")
    names = None if ids is None else check_names("ids in the batch", ids, len(y), unique=False)
    return RecordBatch(*model_inputs(inputs), y, names)


def model_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the model's arguments and keywords: a dict is keywords, a tuple is several arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list) and not (inputs and _is_plain_list(inputs)):
        return tuple(inputs), {}
    return (inputs,), {}


def _split_mapping(parts: dict[Any, Any], keys: BatchKeys) -> tuple[Any, Any, Any]:
    present = list(parts)
    target_key, id_key = keys.targets, keys.ids
    if target_key is None:
        known = [key for key in TARGET_KEYS if key in parts]
        if len(known) != 1:
            got = "keys " + ", ".join(map(str, known or present))
            expected = "a batch with one of the keys " + ", ".join(TARGET_KEYS)
            raise fail("data", expected, got, "name the targets with target_key=")
        target_key = known[0]
    if id_key is None:
        # A two-dimensional "ids" is a model input (token ids), not one name a record.
        id_key = next((key for key in ID_KEYS if key in parts and _is_list_of_names(parts[key])), None)
    for argument, key in (("target_key", target_key), ("id_key", id_key), ("input_key", keys.inputs)):
        if key is not None and key not in parts:
            raise fail(argument, "a key of the batch", repr(key), nearest(str(key), map(str, present)))
    targets = parts.pop(target_key)
    ids = None if id_key is None else parts.pop(id_key)
    return parts if keys.inputs is None else parts[keys.inputs], targets, ids


def _split_sequence(parts: list[Any], keys: BatchKeys) -> tuple[Any, Any, Any]:
    size = len(parts)
    for argument, key in (("target_key", keys.targets), ("id_key", keys.ids), ("input_key", keys.inputs)):
        if key is not None and not (isinstance(key, int) and -size <= key < size):
            expected = f"a position in the batch, 0 to {size - 1}"
            raise fail(argument, expected, repr(key), "batches here are tuples: give a position")
    if keys.targets is None and keys.inputs is None and size != 2 + (keys.ids is not None):
        expected = "batches (inputs, targets), or (inputs, targets, ids) with id_key=2"
        remedy = "say which is which with target_key= and id_key="
        raise fail("data", expected, f"a batch of {size} parts", remedy)
    target_at = int(1 if keys.targets is None else keys.targets) % size
    id_at = None if keys.ids is None else int(keys.ids) % size
    if keys.inputs is not None:
        inputs = parts[int(keys.inputs)]
    else:
        rest = [part for at, part in enumerate(parts) if at not in (target_at, id_at)]
        inputs = rest[0] if len(rest) == 1 else tuple(rest)
    return inputs, parts[target_at], None if id_at is None else parts[id_at]


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved(part, device) for key, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [_moved(part, device) for part in value]
        return parts if isinstance(value, list) else type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key)
            yield from _leaves(part)
    elif isinstance(value, tuple | list) and not _is_plain_list(value):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _is_plain_list(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(part, str | bytes | int | float) for part in value)


def _is_list_of_names(value: Any) -> bool:
    return value.ndim == 1 if isinstance(value, torch.Tensor | np.ndarray) else _is_plain_list(value)


class RowBuffer:
    """Blocks of rows joined into one tensor, written in place where the number of rows is known beforehand."""

    def __init__(self, name: str, total: int | None) -> None:
        self._name, self._total, self._filled = name, total, 0
        self._blocks: list[torch.Tensor] = []

    def add(self, block: torch.Tensor) -> None:
        """Append the rows of `block`, which must be of the same kind as those before."""
        if self._blocks:
            check_same_kind(self._name, block, self._blocks[0])
        if self._total is None:
            self._blocks.append(block)
            return
        if not self._blocks:
            self._blocks.append(block.new_empty(self._total, *block.shape[1:]))
        self._blocks[0][self._filled : self._filled + len(block)] = block
        self._filled += len(block)

    def joined(self) -> torch.Tensor:
        """Return all rows in the order they came."""
        return self._blocks[0] if len(self._blocks) == 1 else torch.cat(self._blocks)


def check_same_kind(name: str, block: torch.Tensor, first: torch.Tensor) -> None:
    """Refuse a block whose rows have another shape or type than those of the first."""
    if (kind := row_kind(block)) != (known := row_kind(first)):
        raise fail(name, f"rows of {known} in every batch", f"rows of {kind}", "make all records alike")


def row_kind(block: torch.Tensor) -> str:
    """Describe one row of `block` in words."""
    return f"shape {tuple(block.shape[1:])} and type {str(block.dtype).removeprefix('torch.')}"
