"""The one reader of loaders and datasets, with a proof that row i is record i.

The proof: the loader's order is the dataset's (or the batches carry ids), no record is left out, and two passes give
the same inputs and targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from giveaway.checks import InputError, check_names, fail
from giveaway.extract.batches import BatchKeys, RecordBatch, as_loader, split_batch

ORDERED = "every record once, in dataset order"
READ_AGAIN = "pass a dataset that can be read again"
SAME_CONTENTS = "the same inputs and targets in every pass"
STEADY = "turn off random augmentation and shuffling, and pad to a fixed length"


class RecordReader:
    """Passes over the records of a DataLoader or Dataset, with a proof that row i is record i.

    Samplers that shuffle, replace or drop records and iterables without ids are refused. Every row of `first_pass` is
    fingerprinted; later passes must give the same rows.

    Parameters
    ----------
    in_order : refuse loaders whose order is not the dataset's even if the batches carry ids.
    ids_given : the user names the records, so the batches must not.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        keys: BatchKeys | None = None,
        *,
        in_order: bool = False,
        ids_given: bool = False,
    ) -> None:
        self.loader, self._keys, self._ids_given = as_loader(data, batch_size), keys or BatchKeys(), ids_given
        check_nothing_dropped(self.loader)
        self.unknown_order, self.total = why_order_is_unknown(self.loader), expected_rows(self.loader)
        if in_order and self.unknown_order:
            raise fail("data", ORDERED, self.unknown_order, "use shuffle=False and no sampler")
        self.fingerprints = RowFingerprints(self.total)

    def first_pass(self) -> Iterator[RecordBatch]:
        """Yield every batch and remember its rows; refuse rows that carry neither a position nor an id."""
        self.fingerprints = RowFingerprints(self.total)
        for batch in self._batches():
            if self.unknown_order and batch.ids is None:
                remedy = "use shuffle=False and no sampler, or put ids in the batches (id_key=)"
                raise fail("data", ORDERED, f"{self.unknown_order}, and batches without ids", remedy)
            if batch.ids is not None and self._ids_given:
                raise fail("ids", "ids in the batches or ids=, not both", "both", "drop ids=")
            self.fingerprints.add(batch)
            yield batch
        self.fingerprints.check_complete()

    def second_pass(self) -> Iterator[RecordBatch]:
        """Yield every batch again, in any order if it has ids; refuse at the end if a record differs."""
        again = RowFingerprints(self.total)
        for batch in self._batches():
            again.add(batch)
            yield batch
        self.fingerprints.check_repeated_by(again)

    def check_second_pass(self) -> None:
        """Read everything again and refuse if a record differs from the first pass."""
        for _ in self.second_pass():
            pass

    def later_pass(self) -> Iterator[RecordBatch]:
        """Yield every batch again; refuse one whose rows are not those of the first pass, in the same order."""
        start = 0
        for batch in self._batches():
            self.fingerprints.check_continued_by(batch, start)
            start += batch.rows
            yield batch

    def _batches(self) -> Iterator[RecordBatch]:
        return (split_batch(batch, self._keys) for batch in self.loader)


def why_order_is_unknown(loader: DataLoader[Any]) -> str | None:
    """Say why a position in `loader` does not name a record; return None where it does."""
    if isinstance(loader.dataset, IterableDataset):
        return "an IterableDataset, whose records have no position"
    if loader.num_workers > 0 and not loader.in_order:
        return "in_order=False with several workers"
    batches = loader.batch_sampler
    if batches is None or type(batches) is BatchSampler:
        sampler = loader.sampler if batches is None else batches.sampler
        # Exact type: a subclass may walk in any order it likes.
        if type(sampler) is SequentialSampler or _counts_up(sampler, loader):
            return None
        return f"a sampler {type(sampler).__name__}"
    if isinstance(batches, list | tuple) and _counts_up([i for batch in batches for i in batch], loader):
        return None
    return f"a batch sampler {type(batches).__name__}"


def check_nothing_dropped(loader: DataLoader[Any]) -> None:
    """Refuse drop_last=True where it leaves records out."""
    batches = loader.batch_sampler
    if type(batches) is BatchSampler and batches.drop_last and isinstance(batches.sampler, Sized):
        total = len(batches.sampler)
        lost = total % batches.batch_size
        if lost:
            raise fail("data", ORDERED, f"drop_last=True, which leaves out {lost} of {total}", "set drop_last=False")


def expected_rows(loader: DataLoader[Any]) -> int | None:
    """Return the rows that a full pass must give, where the dataset has a length and the loader makes the batches."""
    sized = loader.batch_size is not None or loader.batch_sampler is not None
    return len(loader.dataset) if sized and hasattr(loader.dataset, "__len__") else None


class RowFingerprints:
    """Hashes of the inputs and target of each row of one pass, with the ids, in the order the rows came."""

    def __init__(self, expected: int | None) -> None:
        self._expected = expected
        self._hashes: list[np.ndarray] = []
        self._ids: list[np.ndarray] = []
        self.rows = 0

    def add(self, batch: RecordBatch) -> None:
        """Append the rows of `batch`; refuse more rows than expected."""
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
        """The ids that the batches carried, each of them once; None if they carried none."""
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
            got = f"others in a later pass, the first in row {start + changed[0]}"
            raise fail("data", SAME_CONTENTS, got, STEADY)

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


def _counts_up(sampler: Any, loader: DataLoader[Any]) -> bool:
    if not isinstance(sampler, range | list | tuple) or not hasattr(loader.dataset, "__len__"):
        return False
    return list(sampler) == list(range(len(loader.dataset)))
