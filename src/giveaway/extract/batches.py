"""A batch of records as loaders give it: what the model is called with, targets and ids, row hashes, and variants."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_names, errors_about, fail, listed, nearest

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
ID_KEYS = ("ids", "id")
CHANNELS, LEAST_SIDE = (1, 3), 8  # of images
SHIFT = 0.06  # of a side, and at least a pixel

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Batches:
    """How many records of a Dataset are read at a time, and where a batch holds inputs, targets and ids: positions in a
    tuple or keys in a dict. None is the usual place: (inputs, targets), or in a dict targets under labels, label,
    targets, target or y, ids under ids or id, and all the rest as inputs."""

    size: int = 256
    inputs: str | int | None = None
    targets: str | int | None = None
    ids: str | int | None = None


USUAL = Batches()


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
        def copied(leaf: Any) -> Any:
            return leaf.to(device, copy=True) if isinstance(leaf, torch.Tensor) else leaf

        return mapped((self.arguments, self.keywords), copied)

    def leaves(self) -> Iterator[Any]:
        """Yield tensors, arrays, lists of plain values and single values of inputs and targets, without nesting."""
        return _leaves((self.arguments, self.keywords, self.targets))

    @property
    def by_rows(self) -> bool:
        """Whether every tensor and array of the inputs has a row a record."""
        return all(_has_rows(leaf, self.rows) for leaf in self.leaves() if isinstance(leaf, torch.Tensor | np.ndarray))

    def of_rows(self, rows: list[int]) -> "RecordBatch":
        """Return the batch of some of its rows; what belongs to no single row stays as it is."""

        def chosen(leaf: Any) -> Any:
            if not _has_rows(leaf, self.rows):
                return leaf
            return leaf[rows] if isinstance(leaf, torch.Tensor | np.ndarray) else [leaf[row] for row in rows]

        return RecordBatch(*mapped((self.arguments, self.keywords, self.targets), chosen))

    def holds(self, row: int, alone: "RecordBatch") -> bool:
        """Whether a row is the record that is `alone` in another batch, apart from padding at one of its ends."""
        pairs = zip(self.leaves(), alone.leaves(), strict=True)
        return all(_same_but_for_padding(leaf[row], one[0]) for leaf, one in pairs if _has_rows(leaf, self.rows))


def split_batch(batch: Any, keys: Batches) -> RecordBatch:
    """Split a tuple, list or dict into inputs, targets and ids, as `keys` says."""
    if not isinstance(batch, Mapping | tuple | list):
        raise fail("data", "batches (inputs, targets) or dicts", type(batch).__name__, "return the targets as well")
    named = isinstance(batch, Mapping)
    parts: dict[Any, Any] = dict(batch) if named else dict(enumerate(batch))
    places = {name: getattr(keys, name) for name in ("targets", "ids", "inputs")}
    for name, key in places.items():
        if not named and isinstance(key, int) and key < 0:
            places[name] = key + len(parts)
        if key is not None and places[name] not in parts:
            expected = "a key of the batch" if named else f"a position in the batch, 0 to {len(parts) - 1}"
            remedy = nearest(str(key), map(str, parts)) if named else "batches here are tuples: give a position"
            raise fail(f"batches.{name}", expected, repr(key), remedy)
    if named and places["targets"] is None:
        known = [key for key in TARGET_KEYS if key in parts]
        if len(known) != 1:
            expected, got = "a batch with one of the keys " + ", ".join(TARGET_KEYS), map(str, known or parts)
            raise fail("data", expected, f"keys {listed([*got])}", "name the targets: batches=Batches(targets=...)")
        places["targets"] = known[0]
    if named and places["ids"] is None:
        # A two-dimensional "ids" is a model input (token ids), not one name a record.
        lists = (key for key in ID_KEYS if getattr(parts.get(key), "ndim", 0) == 1 or _is_plain_list(parts.get(key)))
        places["ids"] = next(lists, None)
    if not named and keys.targets is None:
        if keys.inputs is None and len(parts) != 2 + (keys.ids is not None):
            expected = "batches (inputs, targets), or (inputs, targets, ids) with Batches(ids=2)"
            remedy = "say which is which: Batches(targets=, ids=)"
            raise fail("data", expected, f"a batch of {len(parts)} parts", remedy)
        places["targets"] = 1
    y = as_tensor("targets", parts.get(places["targets"])).cpu()
    if y.ndim == 0:
        raise fail("data", "batches with one target a record", "a single target", "give the DataLoader a batch_size")
    ids = parts.get(places["ids"])
    if places["inputs"] is not None:
        inputs = parts[places["inputs"]]
    else:
        rest = {key: part for key, part in parts.items() if key not in (places["targets"], places["ids"])}
        inputs = rest if named else next(iter(rest.values())) if len(rest) == 1 else tuple(rest.values())
    names = None if ids is None else check_names("ids in the batch", ids, len(y), unique=False)
    return RecordBatch(*model_inputs(inputs), y, names)


def model_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the model's arguments and keywords: a dict is keywords, a tuple is several arguments."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list) and not (inputs and _is_plain_list(inputs)):
        return tuple(inputs), {}
    return (inputs,), {}


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested dicts, tuples and lists with each of their leaves changed."""
    if isinstance(value, Mapping):
        return {key: mapped(part, change) for key, part in value.items()}
    if isinstance(value, tuple | list) and not (value and _is_plain_list(value)):
        parts = [mapped(part, change) for part in value]
        return parts if isinstance(value, list) else type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return change(value)


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


def _has_rows(leaf: Any, rows: int) -> bool:
    """Whether a leaf holds something of each row, and not of all of them together."""
    several = isinstance(leaf, torch.Tensor | np.ndarray | list | tuple) and getattr(leaf, "ndim", 1) > 0
    return several and len(leaf) == rows


def _same_but_for_padding(row: Any, alone: Any) -> bool:
    """Whether `row` is `alone`, or holds it at its beginning or end and one value everywhere else."""
    if not isinstance(row, torch.Tensor | np.ndarray):
        return bool(row == alone)
    a, b = np.asarray(row), np.asarray(alone)
    if a.ndim != b.ndim or any(long < short for long, short in zip(a.shape, b.shape, strict=True)):
        return False
    for window in ([slice(k) for k in b.shape], [slice(n - k, n) for n, k in zip(a.shape, b.shape, strict=True)]):
        outside = np.ones(a.shape, dtype=bool)
        outside[tuple(window)] = False
        padding = a[outside]
        if np.array_equal(a[tuple(window)], b) and (padding == padding[:1]).all():
            return True
    return False


def _is_plain_list(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(part, str | bytes | int | float) for part in value)


def row_hashes(batch: RecordBatch) -> np.ndarray:
    hashes = [blake2b(digest_size=16) for _ in range(batch.rows)]
    for leaf in batch.leaves():
        for row_hash, piece in zip(hashes, _row_bytes(leaf, batch.rows), strict=True):
            row_hash.update(piece)
    return np.frombuffer(b"".join(h.digest() for h in hashes), dtype="<u8").reshape(-1, 2)


def _row_bytes(leaf: Any, rows: int) -> Iterator[Any]:
    """Yield the bytes of `leaf` that belong to each row; what belongs to no single row counts for all of them."""
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
        leaf = torch.from_numpy(np.ascontiguousarray(leaf))
    if isinstance(leaf, torch.Tensor):
        dense = leaf.detach().to_dense()
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


def shifted(images: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """Return images (n, c, h, w) moved by whole steps of 6 % of their sides; the border is mirrored.

    >>> shifted(torch.arange(9.0).reshape(1, 1, 1, 9), 0, 1)[0, 0, 0].tolist()
    [1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    for axis, way in ((2, down), (3, right)):
        last = images.shape[axis] - 1
        source = torch.arange(last + 1, device=images.device) - way * max(1, round(SHIFT * (last + 1)))
        images = images.index_select(axis, (last - (last - source.abs()).abs()).clamp_min(0))
    return images


OF_IMAGES: dict[str, tuple[Change, ...]] = {
    "mirror": (lambda images: images.flip(-1),),
    "shift": (partial(shifted, down=1, right=1), partial(shifted, down=-1, right=-1)),
}


class Variants:
    """Variants of the records that a model is asked about beside them; the first batch decides on them. `given` is None
    (of images the mirror image, and the image moved by whole pixels, so that nothing is blurred), True (as None, but
    other inputs are refused), False, or a dict from names to functions of what the model is called with."""

    def __init__(self, given: Any) -> None:
        self._changes: dict[str, tuple[Change, ...]] | None = None if given is None or given is True else {}
        self._required = given is True
        if isinstance(given, Mapping):
            for name, change in given.items():
                if not isinstance(name, str) or not name.isidentifier() or not callable(change):
                    expected, got = "functions by the variant's name, a plain word", f"{type(change).__name__} {name!r}"
                    raise fail("relatives", expected, got, "pass {'dropped': function of a batch of inputs}")
            self._changes = {name: (change,) for name, change in given.items()}
        elif given is not None and not isinstance(given, bool):
            got = f"a {type(given).__name__}"
            raise fail("relatives", "None, True, False or a dict of functions", got, "leave it out, or pass a dict")

    def choose(self, batch: RecordBatch) -> dict[str, tuple[Change, ...]]:
        """Return the variants by name, which are chosen by the first batch."""
        if self._changes is None:
            value: Any = batch.inputs[0] if len(batch.inputs) == 1 else None
            images = isinstance(value, torch.Tensor) and value.ndim == 4 and value.layout == torch.strided
            images = images and (value.is_floating_point() or value.dtype == torch.uint8)
            images = images and value.shape[1] in CHANNELS and min(value.shape[2:]) >= LEAST_SIDE
            if self._required and not images:
                expected = "images (n, c, h, w) of 1 or 3 channels, 8 pixels or more a side, as the model's one input"
                raise fail("relatives", expected, "other inputs", "pass a dict from names to functions of a batch")
            self._changes = OF_IMAGES if images else {}
        return self._changes

    def outputs(
        self, batch: RecordBatch, run: Callable[[RecordBatch], torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run the model on the variants of a batch; yield the mean of the outputs (logarithms, up to constants)."""
        inputs = batch.keywords or (batch.arguments[0] if len(batch.arguments) == 1 else batch.arguments)
        for name, changes in self.choose(batch).items():
            with errors_about(f"relatives[{name!r}]: "):
                said = [run(RecordBatch(*model_inputs(change(inputs)), batch.targets)) for change in changes]
            yield name, torch.stack(said).mean(0, dtype=torch.float64).to(said[0].dtype)
