"""Proof that row i of a Head is record i: the loader's order, its completeness, and two equal passes."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from giveaway.checks import InputError, check_names, fail
from giveaway.extract.batches import Batch

ORDERED = "every record once, in dataset order"
STEADY = "turn off random augmentation and shuffling, and pad to a fixed length"
REMEDY = "use shuffle=False and no sampler, or put ids in the batches (id_key=)"


def why_order_is_unknown(loader: DataLoader[Any]) -> str | None:
    """What keeps positions in `loader` from naming records, or None where they do."""
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


def order_error(reason: str) -> InputError:
    """The refusal of a loader whose rows carry neither a position nor an id."""
    return fail("data", ORDERED, f"{reason}, and batches without ids", REMEDY)


def check_nothing_dropped(loader: DataLoader[Any]) -> None:
    """Refuse drop_last=True where it leaves records out."""
    batches = loader.batch_sampler
    if type(batches) is BatchSampler and batches.drop_last and isinstance(batches.sampler, Sized):
        total = len(batches.sampler)
        lost = total % batches.batch_size
        if lost:
            raise fail("data", ORDERED, f"drop_last=True, which leaves out {lost} of {total}", "set drop_last=False")


def expected_rows(loader: DataLoader[Any]) -> int | None:
    """Rows a full pass must give, where that can be known: a sized dataset that the loader batches itself."""
    sized = loader.batch_size is not None or loader.batch_sampler is not None
    return len(loader.dataset) if sized and hasattr(loader.dataset, "__len__") else None


class RowTrail:
    """A fingerprint of the inputs and target of each row of one pass, with its id, in the order the rows came."""

    def __init__(self, expected: int | None) -> None:
        self._expected = expected
        self._fingerprints: list[np.ndarray] = []
        self._ids: list[np.ndarray] = []
        self.rows = 0

    def add(self, batch: Batch) -> None:
        """Append the rows of `batch`; more than expected are refused."""
        self._fingerprints.append(fingerprints(batch))
        if batch.ids is not None:
            self._ids.append(batch.ids)
        self.rows += len(batch.targets)
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
        """The ids the batches carried; None if they carried none. Each must have come once."""
        if not self._ids:
            return None
        return check_names("ids in the batches", np.concatenate(self._ids), self.rows, unique=True)

    def check_repeated_by(self, second: RowTrail) -> None:
        """Refuse unless `second` saw the same records with the same contents."""
        if second.rows != self.rows:
            got = f"{second.rows} rows in a second pass after {self.rows} in the first"
            raise fail("data", "the same records in every pass", got, "pass a dataset that can be read again")
        mine, theirs = np.concatenate(self._fingerprints), np.concatenate(second._fingerprints)
        order = np.arange(self.rows)
        if (names := self.ids) is not None and (others := second.ids) is not None:
            order, other_order = np.argsort(names), np.argsort(others)
            if not np.array_equal(names[order], others[other_order]):
                raise fail("data", "the same ids in every pass", "others in a second pass", "fix each record's id")
            mine, theirs = mine[order], theirs[other_order]
        changed = order[(mine != theirs).any(axis=1)]
        if len(changed):
            raise fail(
                "data",
                "the same inputs and targets in every pass",
                f"{len(changed)} of {self.rows} that differ between two passes, the first in row {changed.min()}",
                STEADY,
            )

    def check_continued_by(self, batch: Batch, at: int) -> None:
        """Refuse a batch of a later pass whose rows, from number `at` on, are not those of this one."""
        if len(self._fingerprints) > 1:
            self._fingerprints = [np.concatenate(self._fingerprints)]
        known, found = self._fingerprints[0][at : at + len(batch.targets)], fingerprints(batch)
        if len(known) < len(found):
            got = f"more than {self.rows} rows in another"
            raise fail("data", f"{self.rows} records in every pass", got, "pass a dataset that can be read again")
        changed = np.flatnonzero((known != found).any(axis=1))
        if len(changed):
            got = f"others in a later pass, the first in row {at + changed[0]}"
            raise fail("data", "the same inputs and targets in every pass", got, STEADY)

    def digest(self) -> str:
        """SHA-256 of all rows, of those with ids in whatever order they came."""
        rows, names = np.concatenate(self._fingerprints), self.ids
        if names is None:
            return sha256(rows.tobytes()).hexdigest()
        order = np.argsort(names)
        return sha256(rows[order].tobytes() + str(names.dtype).encode() + names[order].tobytes()).hexdigest()

    def _count_error(self, rows: str) -> InputError:
        got = f"{rows} rows for {self._expected} records"
        return fail("data", ORDERED, got, "use a sampler and collate_fn that give each record once")


def fingerprints(batch: Batch) -> np.ndarray:
    """(rows, 2) words of 64 bits: a hash of each row's inputs and target."""
    rows = len(batch.targets)
    hashes = [blake2b(digest_size=16) for _ in range(rows)]
    for leaf in batch.leaves():
        for row_hash, piece in zip(hashes, _row_bytes(leaf, rows), strict=True):
            row_hash.update(piece)
    return np.frombuffer(b"".join(h.digest() for h in hashes), dtype="<u8").reshape(rows, 2)


def _row_bytes(leaf: Any, rows: int) -> Iterator[Any]:
    """The part of `leaf` that belongs to each row; what belongs to no single row counts for all of them."""
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
    raise fail(
        "data",
        "inputs made of tensors, arrays, numbers or strings",
        f"a {type(leaf).__name__}, which cannot be compared between two passes",
        "collate it to tensors, or build Head from arrays",
    )


def _counts_up(sampler: Any, loader: DataLoader[Any]) -> bool:
    if not isinstance(sampler, range | list | tuple) or not hasattr(loader.dataset, "__len__"):
        return False
    return list(sampler) == list(range(len(loader.dataset)))
