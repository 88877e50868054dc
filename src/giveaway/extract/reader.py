"""The one reader of loaders and datasets, with a proof that row i is record i.

The proof: the loader's order is the dataset's (or the batches carry ids), no record is left out, and two passes give
the same inputs and targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from giveaway.checks import InputError, as_tensor, check_names, check_whole, fail, nearest
from giveaway.records.rows import check_same_kind

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
ID_KEYS = ("ids", "id")
ORDERED = "every record once, in dataset order"
READ_AGAIN = "pass a dataset that can be read again"
SAME_CONTENTS = "the same inputs and targets in every pass"
STEADY = "turn off random augmentation and shuffling, and pad to a fixed length"


@dataclass(frozen=True)
class BatchKeys:
    """Where a batch holds inputs, targets and ids: positions in a tuple or keys in a dict; None is the usual place."""

    inputs: str | int | None = None
    targets: str | int | None = None
    ids: str | int | None = None


USUAL = BatchKeys()


@dataclass(frozen=True)
class RecordBatch:
    """Some records: what the model is called with, their targets, and their ids if the batch carries them."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    targets: torch.Tensor
    ids: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return len(self.targets)

    @property
    def inputs(self) -> list[Any]:
        return [*self.arguments, *self.keywords.values()]

    def inputs_on(self, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _moved(self.arguments, device), _moved(self.keywords, device)

    def leaves(self) -> Iterator[Any]:
        """Yield tensors, arrays, lists of plain values and single values of inputs and targets, without nesting."""
        return _leaves((self.arguments, self.keywords, self.targets))


class RecordReader:
    """Passes over the records of a DataLoader or Dataset, with a proof that row i is record i.

    Samplers that shuffle, replace or drop records and iterables without ids are refused. Every row of `first_pass` is
    fingerprinted; later passes must give the same rows.

    in_order : refuse loaders whose order is not the dataset's even if the batches carry ids.
    ids_given : the user names the records, so the batches must not.
    """

    unknown_order: str | None = None  # why a position does not name a record
    total: int | None = None  # the rows that a full pass must give, where that is known beforehand
    ids_given = False

    def __init__(
        self, data: Any, batch_size: int, keys: BatchKeys = USUAL, *, in_order: bool = False, ids_given: bool = False
    ) -> None:
        self.loader, self._keys, self.ids_given = as_loader(data, batch_size), keys, ids_given
        batches, dataset = self.loader.batch_sampler, self.loader.dataset
        if type(batches) is BatchSampler and batches.drop_last and isinstance(batches.sampler, Sized):
            count = len(batches.sampler)
            if lost := count % batches.batch_size:
                got = f"drop_last=True, which leaves out {lost} of {count}"
                raise fail("data", ORDERED, got, "set drop_last=False")
        self.unknown_order = why_order_is_unknown(self.loader)
        if in_order and self.unknown_order:
            raise fail("data", ORDERED, self.unknown_order, "use shuffle=False and no sampler")
        makes_batches = self.loader.batch_size is not None or batches is not None
        self.total = len(dataset) if makes_batches and isinstance(dataset, Sized) else None

    def first_pass(self) -> Iterator[RecordBatch]:
        """Yield every batch and remember its rows; refuse rows that carry neither a position nor an id."""
        self.fingerprints = RowFingerprints(self.total)
        for batch in self.batches():
            if self.unknown_order and batch.ids is None:
                remedy = "use shuffle=False and no sampler, or put ids in the batches (id_key=)"
                raise fail("data", ORDERED, f"{self.unknown_order}, and batches without ids", remedy)
            if batch.ids is not None and self.ids_given:
                raise fail("ids", "ids in the batches or ids=, not both", "both", "drop ids=")
            self.fingerprints.add(batch)
            yield batch
        self.fingerprints.check_complete()

    def second_pass(self) -> Iterator[RecordBatch]:
        """Yield every batch again, in any order if it has ids; refuse at the end if a record differs."""
        again = RowFingerprints(self.total)
        for batch in self.batches():
            again.add(batch)
            yield batch
        self.fingerprints.check_repeated_by(again)

    def check_second_pass(self) -> None:
        for _ in self.second_pass():
            pass

    def later_pass(self) -> Iterator[RecordBatch]:
        """Yield every batch again; refuse one whose rows are not those of the first pass, in the same order."""
        start = 0
        for batch in self.batches():
            self.fingerprints.check_continued_by(batch, start)
            start += batch.rows
            yield batch

    def batches(self) -> Iterator[RecordBatch]:
        return (split_batch(batch, self._keys) for batch in self.loader)


class RowFingerprints:
    """Hashes of the inputs and target of each row of one pass, with the ids, in the order the rows came."""

    def __init__(self, expected: int | None) -> None:
        self._expected = expected
        self._hashes: list[np.ndarray] = []
        self._ids: list[np.ndarray] = []
        self.rows = 0

    def add(self, batch: RecordBatch) -> None:
        self._hashes.append(row_hashes(batch))
        if batch.ids is not None:
            self._ids.append(batch.ids)
        self.rows += batch.rows
        if self._expected is not None and self.rows > self._expected:
            raise self._count_error(f"more than {self._expected}")

    def check_complete(self) -> None:
        """Refuse a pass that gave fewer than one row a record, or none."""
        if self.rows == 0:
            raise fail("data", "at least 2 records", "0", "pass the training set")
        if self._expected is not None and self.rows < self._expected:
            raise self._count_error(str(self.rows))

    @property
    def ids(self) -> np.ndarray | None:
        if not self._ids:
            return None
        return check_names("ids in the batches", np.concatenate(self._ids), self.rows, unique=True)

    def check_repeated_by(self, second: RowFingerprints) -> None:
        """Refuse a second pass whose records or contents differ."""
        if second.rows != self.rows:
            got = f"{second.rows} rows in a second pass after {self.rows} in the first"
            raise fail("data", "the same records in every pass", got, READ_AGAIN)
        before, after = np.concatenate(self._hashes), np.concatenate(second._hashes)
        order = np.arange(self.rows)
        if (names := self.ids) is not None and (names_after := second.ids) is not None:
            order, order_after = np.argsort(names), np.argsort(names_after)
            if not np.array_equal(names[order], names_after[order_after]):
                raise fail("data", "the same ids in every pass", "others in a second pass", "fix each record's id")
            before, after = before[order], after[order_after]
        changed = order[(before != after).any(axis=1)]
        if len(changed):
            got = f"{len(changed)} of {self.rows} that differ between two passes, the first in row {changed.min()}"
            raise fail("data", SAME_CONTENTS, got, STEADY)

    def check_continued_by(self, batch: RecordBatch, start: int) -> None:
        """Refuse a batch of a later pass whose rows, from number `start` on, are not those of this pass."""
        if len(self._hashes) > 1:
            self._hashes = [np.concatenate(self._hashes)]
        known, later = self._hashes[0][start : start + batch.rows], row_hashes(batch)
        if len(known) < len(later):
            got = f"more than {self.rows} rows in another"
            raise fail("data", f"{self.rows} records in every pass", got, READ_AGAIN)
        changed = np.flatnonzero((known != later).any(axis=1))
        if len(changed):
            raise fail("data", SAME_CONTENTS, f"others in a later pass, the first in row {start + changed[0]}", STEADY)

    def all_in(self, other: RowFingerprints) -> bool:
        """Whether every row is, by inputs and target, a row of another pass."""
        mine, theirs = np.concatenate(self._hashes), np.concatenate(other._hashes)
        return bool(np.isin(mine[:, 0], theirs[:, 0]).all())

    def digest(self) -> str:
        """Return the SHA-256 of all rows; rows with ids count in the order of their ids."""
        rows, names = np.concatenate(self._hashes), self.ids
        if names is None:
            return sha256(rows.tobytes()).hexdigest()
        order = np.argsort(names)
        return sha256(rows[order].tobytes() + str(names.dtype).encode() + names[order].tobytes()).hexdigest()

    def _count_error(self, rows: str) -> InputError:
        got = f"{rows} rows for {self._expected} records"
        return fail("data", ORDERED, got, "use a sampler and collate_fn that give each record once")


class RowBuffer:
    """Blocks of rows joined into one tensor, written in place where the number of rows is known beforehand."""

    def __init__(self, name: str, total: int | None) -> None:
        self._name, self._total, self._filled = name, total, 0
        self._blocks: list[torch.Tensor] = []

    def add(self, block: torch.Tensor) -> None:
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
        return self._blocks[0] if len(self._blocks) == 1 else torch.cat(self._blocks)


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


def why_order_is_unknown(loader: DataLoader[Any]) -> str | None:
    """Say why a position in `loader` does not name a record; return None where it does."""
    if isinstance(loader.dataset, IterableDataset):
        return "an IterableDataset, whose records have no position"
    if loader.num_workers > 0 and not loader.in_order:
        return "in_order=False with several workers"
    batches: Any = loader.batch_sampler
    kind, order = f"a batch sampler {type(batches).__name__}", batches
    if batches is None or type(batches) is BatchSampler:
        order = loader.sampler if batches is None else batches.sampler
        kind = f"a sampler {type(order).__name__}"
        if type(order) is SequentialSampler:  # not a subclass, which may walk in any order it likes
            return None
    elif isinstance(batches, list | tuple):
        order = [number for batch in batches for number in batch]
    if not isinstance(order, range | list | tuple) or not isinstance(loader.dataset, Sized):
        return kind
    return None if list(order) == list(range(len(loader.dataset))) else kind


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
        lists = (key for key in ID_KEYS if getattr(parts.get(key), "ndim", 0) == 1 or _is_plain_list(parts.get(key)))
        id_key = next(lists, None)
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
        raise fail("data", expected, f"a batch of {size} parts", "say which is which with target_key= and id_key=")
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


def row_hashes(batch: RecordBatch) -> np.ndarray:
    """Hash the inputs and target of each row into two words of 64 bits, (rows, 2)."""
    rows = batch.rows
    hashes = [blake2b(digest_size=16) for _ in range(rows)]
    for leaf in batch.leaves():
        for row_hash, piece in zip(hashes, _row_bytes(leaf, rows), strict=True):
            row_hash.update(piece)
    return np.frombuffer(b"".join(h.digest() for h in hashes), dtype="<u8").reshape(rows, 2)


def _row_bytes(leaf: Any, rows: int) -> Iterator[Any]:
    """Yield the bytes of `leaf` that belong to each row; what belongs to no single row counts for all of them."""
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
        leaf = torch.from_numpy(np.ascontiguousarray(leaf))
    if isinstance(leaf, torch.Tensor):
        dense = leaf.detach().to_dense() if leaf.layout != torch.strided else leaf.detach()
        shared = dense.ndim == 0 or len(dense) != rows
        table = dense.cpu().reshape(1 if shared else rows, -1).contiguous()
        octets = table.view(torch.uint8).numpy() if table.numel() else np.empty((len(table), 0), np.uint8)
        if shared:
            return iter([blake2b(octets.data, digest_size=16).digest()] * rows)
        return (row.data for row in octets)
    if isinstance(leaf, list | tuple) and len(leaf) == rows:
        return (repr(value).encode() for value in leaf)
    if leaf is None or isinstance(leaf, str | bytes | int | float | list | tuple):
        return iter([repr(leaf).encode()] * rows)
    got = f"a {type(leaf).__name__}, which cannot be compared between two passes"
    remedy = "collate it to tensors, or build Head from arrays"
    raise fail("data", "inputs made of tensors, arrays, numbers or strings", got, remedy)
