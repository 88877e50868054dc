"""The one reader of loaders and datasets, with a proof that row i is record i.

The proof: every record is read once more by itself, as dataset[i], and must be what the loader gave in row i, or under
its id. That a loader's sampler is in order is no proof: its collate_fn, its class or the dataset's __getitems__ may
sort, repeat or drop records. Where records cannot be told apart (iterables, batches whose inputs have no row a record),
two passes must give the same rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sized
from hashlib import sha256
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from giveaway.checks import InputError, as_tensor, check_names, check_whole, fail
from giveaway.extract.batches import USUAL, Batches, RecordBatch, row_hashes, split_batch
from giveaway.records.rows import check_same_kind

ORDERED = "every record once, in dataset order"
READ_AGAIN = "pass a dataset that can be read again"
SAME_CONTENTS = "the same inputs and targets in every pass"
PACK = 64  # records that a worker sends at a time
STEADY = "turn off random augmentation and shuffling, and pad to a fixed length"


class RecordReader:
    """Passes over the records of a DataLoader or Dataset. Samplers that shuffle, replace or drop records and iterables
    without ids are refused. `check_records` proves whose rows `first_pass` gave; later passes must give the same.

    in_order : refuse loaders whose order is not the dataset's even if the batches carry ids.
    ids_given : the user names the records, so the batches must not.
    """

    proof: str | None = None  # how it is known that row i is record i

    def __init__(self, data: Any, batches: Batches = USUAL, *, in_order: bool = False, ids_given: bool = False) -> None:
        self.loader, self._keys, self.ids_given = as_loader(data, batches.size), batches, ids_given
        sampler, dataset = self.loader.batch_sampler, self.loader.dataset
        if type(sampler) is BatchSampler and sampler.drop_last and isinstance(sampler.sampler, Sized):
            count = len(sampler.sampler)
            if lost := count % sampler.batch_size:
                got = f"drop_last=True, which leaves out {lost} of {count}"
                raise fail("data", ORDERED, got, "set drop_last=False")
        self.unknown_order = why_order_is_unknown(self.loader)  # why a position does not name a record
        if in_order and self.unknown_order:
            raise fail("data", ORDERED, self.unknown_order, "use shuffle=False and no sampler")
        # the rows that a full pass must give, where that is known beforehand
        self.total = len(dataset) if sampler is not None and isinstance(dataset, Sized) else None

    def batches(self) -> Iterator[RecordBatch]:
        return (split_batch(batch, self._keys) for batch in self.loader)

    def first_pass(self) -> Iterator[RecordBatch]:
        """Yield every batch and remember its rows; refuse rows that carry neither a position nor an id."""
        self.fingerprints = RowFingerprints()
        for batch in self.batches():
            if self.unknown_order and batch.ids is None:
                remedy = "use shuffle=False and no sampler, or put ids in the batches (Batches(ids=))"
                raise fail("data", ORDERED, f"{self.unknown_order}, and batches without ids", remedy)
            if batch.ids is not None and self.ids_given:
                raise fail("ids", "ids in the batches or ids=, not both", "both", "drop ids=")
            self.fingerprints.add(batch)
            if self.total is not None and self.fingerprints.rows > self.total:
                break
            yield batch
        if (rows := self.fingerprints.rows) == 0:
            raise fail("data", "at least 2 records", "0", "pass the training set")
        if self.total not in (None, rows):
            given = f"more than {self.total}" if rows > self.total else f"{rows}"
            got = f"{given} rows for {self.total} records"
            raise fail("data", ORDERED, got, "use a sampler and collate_fn that give each record once")

    def check_records(self) -> None:
        """Refuse if a row of the first pass is not the record of its position or id; `proof` then says how it is known.
        Batches padded to their longest record are compared apart from the padding."""
        first, loader = self.fingerprints, self.loader
        if self.total is None or isinstance(loader.dataset, IterableDataset) or not first.by_rows:
            self.proof = "two equal passes"
            first.check_repeated_by(RowFingerprints(self.batches()))
            return
        workers: Any = {"num_workers": loader.num_workers, "worker_init_fn": loader.worker_init_fn}
        workers["multiprocessing_context"] = loader.multiprocessing_context
        packs: DataLoader[Any] = DataLoader(_Alone(loader), batch_size=PACK, collate_fn=list, **workers)
        alone = RowFingerprints(split_batch(batch, self._keys) for pack in packs for batch in pack)
        self.proof = "every record read by itself"
        if len(first.shapes | alone.shapes) == 1 or not len(first.changed_in(alone)):
            first.check_repeated_by(alone)
        else:
            self.proof += ", apart from padding"
            self._check_padded(alone.ids)

    def _check_padded(self, names: np.ndarray | None) -> None:
        """Compare the rows of one more pass with the records by themselves, which may be shorter."""
        alone, again = _Alone(self.loader), RowFingerprints()
        place_of = {} if names is None else {name: place for place, name in enumerate(names.tolist())}
        for batch in self.batches():
            for row in range(batch.rows):
                place = again.rows + row if batch.ids is None else place_of.get(batch.ids.tolist()[row], -1)
                if place < 0 or not batch.holds(row, split_batch(alone[place], self._keys)):
                    raise _other_record(again.rows + row, "another record")
            again.add(batch)
        self.fingerprints.check_repeated_by(again)

    def later_pass(self) -> Iterator[RecordBatch]:
        """Yield every batch again; refuse one whose rows are not those of the first pass, in the same order."""
        rows, start = self.fingerprints.rows, 0
        for batch in self.batches():
            known, later = self.fingerprints.hashes[start : start + batch.rows], row_hashes(batch)
            start += batch.rows
            if start > rows:
                break
            if (changed := (known != later).any(axis=1)).any():
                row = start - batch.rows + int(changed.argmax())
                raise fail("data", SAME_CONTENTS, f"others in a later pass, the first in row {row}", STEADY)
            yield batch
        if start != rows:
            raise fail("data", f"{rows} records in every pass", f"{start} rows of a later one", READ_AGAIN)


class RowFingerprints:
    """Hashes of the inputs and target of each row of one pass, with the ids, in the order the rows came."""

    def __init__(self, batches: Iterable[RecordBatch] = ()) -> None:
        self._hashes: list[np.ndarray] = [np.empty((0, 2), "<u8")]
        self._ids: list[np.ndarray] = []
        self.rows, self.by_rows = 0, True
        self.shapes: set[tuple[Any, ...]] = set()  # of one row's tensors and arrays: several where batches are padded
        for batch in batches:
            self.add(batch)

    def add(self, batch: RecordBatch) -> None:
        self._hashes.append(row_hashes(batch))
        self.shapes.add(tuple(leaf.shape[1:] for leaf in batch.leaves() if isinstance(leaf, torch.Tensor | np.ndarray)))
        self._ids += [] if batch.ids is None else [batch.ids]
        self.rows += batch.rows
        self.by_rows &= batch.by_rows

    @property
    def ids(self) -> np.ndarray | None:
        if not self._ids:
            return None
        return check_names("ids in the batches", np.concatenate(self._ids), self.rows, unique=True)

    @property
    def hashes(self) -> np.ndarray:
        if len(self._hashes) > 1:
            self._hashes = [np.concatenate(self._hashes)]
        return self._hashes[0]

    def changed_in(self, second: "RowFingerprints") -> np.ndarray:
        """Return the numbers of the rows whose contents a second pass gave otherwise; refuse one of other records."""
        if second.rows != self.rows:
            got = f"{second.rows} rows in a second pass after {self.rows} in the first"
            raise fail("data", "the same records in every pass", got, READ_AGAIN)
        after, names, names_after = second.hashes, self.ids, second.ids
        if names is not None and names_after is not None:
            after = after[places_of(names, names_after)]
        return np.flatnonzero((self.hashes != after).any(axis=1))

    def check_repeated_by(self, second: "RowFingerprints") -> None:
        changed = self.changed_in(second)
        if len(changed) and np.isin(self.hashes[changed, 0], second.hashes[:, 0]).all():
            raise _other_record(changed[0], "the contents of another record")
        if len(changed):
            got = f"{len(changed)} of {self.rows} that differ between two passes, the first in row {changed[0]}"
            raise fail("data", SAME_CONTENTS, got, STEADY)

    def digest(self) -> str:
        """Return the SHA-256 of all rows; rows with ids count in the order of their ids."""
        if (names := self.ids) is None:
            return sha256(self.hashes.tobytes()).hexdigest()
        order = np.argsort(names)
        return sha256(self.hashes[order].tobytes() + str(names.dtype).encode() + names[order].tobytes()).hexdigest()


def places_of(wanted: np.ndarray, ids: np.ndarray) -> np.ndarray:
    order = np.argsort(ids, kind="stable")
    places = order[np.searchsorted(ids, wanted, sorter=order).clip(max=len(ids) - 1)]
    if not np.array_equal(ids[places], wanted):
        raise fail("data", "the same ids in every pass", "others in another pass", "fix each record's id")
    return places


class _Alone(Dataset[Any]):
    """The records of a loader's dataset, each collated by itself."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._dataset, self._collate = loader.dataset, loader.collate_fn

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]

    def __getitem__(self, row: int) -> Any:
        return self._collate([self._dataset[row]])


def _other_record(row: int, got: str) -> InputError:
    remedy = "let collate_fn, loader and dataset keep the order, or put each record's id in its batch (Batches(ids=))"
    return fail("data", "the record of its own position or id in every row", f"{got} in row {row}", remedy)


class RowBuffers:
    """Blocks of rows by the name of their array, joined: tensors, in place where their number is known, or lists."""

    def __init__(self, total: int | None) -> None:
        self._total, self._filled, self._blocks = total, dict[Any, int](), dict[Any, list[Any]]()

    def add(self, name: Any, block: Any) -> None:
        blocks = self._blocks.setdefault(name, [])
        if blocks:
            check_same_kind(name, block, blocks[0])
        if self._total is None or isinstance(block, list):
            blocks.append(block)
            return
        if not blocks:
            blocks.append(block.new_empty(self._total, *block.shape[1:]))
        start = self._filled.get(name, 0)
        blocks[0][start : start + len(block)] = block
        self._filled[name] = start + len(block)

    def joined(self) -> dict[Any, Any]:
        def join(blocks: list[Any]) -> Any:
            return list(chain(*blocks)) if isinstance(blocks[0], list) else torch.cat(blocks)

        return {name: join(blocks) if blocks[1:] else blocks[0] for name, blocks in self._blocks.items()}


def is_dataset(data: Any) -> bool:
    """Whether `data` is a DataLoader, a Dataset, or something else that gives records by their numbers."""
    if isinstance(data, DataLoader | Dataset):
        return True
    indexable = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return indexable and not isinstance(data, Mapping | str | torch.Tensor | np.ndarray)


def as_loader(data: Any, batch_size: int) -> DataLoader[Any]:
    """Return a DataLoader as it is, and a Dataset or (inputs, targets) as a loader in dataset order."""
    if isinstance(data, DataLoader):
        return data
    if isinstance(data, tuple | list) and [isinstance(part, torch.Tensor | np.ndarray) for part in data] == [True] * 2:
        inputs, targets = map(as_tensor, ("inputs", "targets"), data)
        if not inputs.ndim or not targets.ndim or len(inputs) != len(targets):
            got = f"shapes {tuple(inputs.shape)} and {tuple(targets.shape)}"
            raise fail("data", "(inputs, targets), a row a record in both", got, "align the rows")
        data = torch_data.TensorDataset(inputs, targets)
    if not is_dataset(data):
        raise fail("data", "a DataLoader or a Dataset", type(data).__name__, "wrap arrays in a TensorDataset")
    check_whole("batches.size", batch_size, remedy="256 suits most models")
    return DataLoader(data, batch_size=batch_size, shuffle=False, collate_fn=_collated)


def _collated(records: list[Any]) -> Any:
    """Collate as torch does, with a dict's lists of numbers as tensors: Hugging Face datasets hold lists."""
    if not isinstance(records[0], Mapping):
        return torch_data.default_collate(records)

    def row(value: Any) -> Any:
        return torch.tensor(value) if isinstance(value, list) and not any(isinstance(v, str) for v in value) else value

    try:
        return torch_data.default_collate([{key: row(value) for key, value in record.items()} for record in records])
    except (TypeError, ValueError, RuntimeError) as error:
        got, remedy = "others, such as texts of several lengths", "pad to a fixed length, or pass a DataLoader"
        raise fail("data", "records of one shape, with numbers or texts", got, remedy) from error


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
