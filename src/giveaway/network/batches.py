"""The training records in a fixed order, read once and handed out in batches on the model's device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from giveaway.checks import as_tensor, check_finite, fail
from giveaway.linalg.memory import check_memory

READ_AT_ONCE = 512
TARGETS = ("labels", "label", "targets", "target", "y")
WAYS = "(inputs, targets), or dicts with the targets under labels, label, targets, target or y"


@dataclass(frozen=True)
class Batch:
    """Some records: what the model is called with, and their targets."""

    arguments: tuple[torch.Tensor, ...]
    keywords: dict[str, torch.Tensor]
    targets: torch.Tensor

    @property
    def rows(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Records:
    """All records. Floats go to the model in its `dtype`."""

    arguments: tuple[torch.Tensor, ...]
    keywords: dict[str, torch.Tensor]
    targets: torch.Tensor
    device: torch.device
    dtype: torch.dtype

    @property
    def n(self) -> int:
        return len(self.targets)

    def take(self, rows: slice | torch.Tensor) -> Batch:
        """The records with these numbers, on the device."""
        return Batch(
            tuple(self._moved(value[rows]) for value in self.arguments),
            {name: self._moved(value[rows]) for name, value in self.keywords.items()},
            self._moved(self.targets[rows]),
        )

    def batches(self, rows: int) -> Iterator[tuple[slice, Batch]]:
        """Every record once, `rows` at a time."""
        for start in range(0, self.n, rows):
            part = slice(start, min(start + rows, self.n))
            yield part, self.take(part)

    def _moved(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.device, self.dtype if value.is_floating_point() else None)


def read(data: Any, device: torch.device, dtype: torch.dtype) -> Records:
    """Records from (inputs, targets) arrays, a Dataset, or a DataLoader that does not shuffle.

    `inputs` is an array, a tuple of arrays (several arguments of the model) or a dict of them (keywords).
    """
    if isinstance(data, DataLoader | Dataset) or _is_list_of_records(data):
        arguments, keywords, targets = _gathered(_loader(data))
    elif isinstance(data, tuple | list) and len(data) == 2:
        arguments, keywords = _called_with(data[0])
        targets = as_tensor("targets", data[1])
    else:
        raise fail("data", "(inputs, targets), a Dataset or a DataLoader", type(data).__name__, "pass one of these")
    n = len(targets) if targets.ndim else 0
    if n == 0:
        raise fail("data", "at least one record", "none", "pass the training set")
    for value in (*arguments, *keywords.values()):
        if value.ndim == 0 or len(value) != n:
            got = f"inputs of shape {tuple(value.shape)} for {n} targets"
            raise fail("data", "one row of inputs a target", got, "align the rows")
        check_finite("inputs", value)
    check_finite("targets", targets)
    return Records(arguments, keywords, targets, device, dtype)


def _is_list_of_records(data: Any) -> bool:
    indexable = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    return (
        indexable and not isinstance(data, torch.Tensor | tuple | list | Mapping | str) and not hasattr(data, "dtype")
    )


def _loader(data: Any) -> DataLoader[Any]:
    if not isinstance(data, DataLoader):
        return DataLoader(data, batch_size=READ_AT_ONCE, shuffle=False)
    if type(data.sampler) is not SequentialSampler:
        got = f"a loader with a {type(data.sampler).__name__}"
        raise fail("data", "every record once, in dataset order", got, "use shuffle=False and no sampler")
    if data.drop_last and len(data.dataset) % (data.batch_size or 1):  # type: ignore[arg-type]
        raise fail("data", "every record once", "drop_last=True, which leaves records out", "set drop_last=False")
    return data


def _gathered(loader: DataLoader[Any]) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor], torch.Tensor]:
    parts = [_parts(batch) for batch in _within_memory(loader)]
    if not parts:
        raise fail("data", "at least one record", "none", "pass the training set")
    again = _parts(next(iter(loader)))
    for old, new in zip(_leaves(parts[0]), _leaves(again), strict=True):
        if not torch.equal(old, new):
            remedy = "turn off random augmentation and shuffling"
            raise fail("data", "the same records in every pass", "others in a second one", remedy)
    arguments = tuple(torch.cat([part[0][k] for part in parts]) for k in range(len(parts[0][0])))
    keywords = {name: torch.cat([part[1][name] for part in parts]) for name in parts[0][1]}
    return arguments, keywords, torch.cat([part[2] for part in parts])


def _within_memory(loader: DataLoader[Any]) -> Iterator[Any]:
    for number, batch in enumerate(loader):
        if number == 0:
            size = sum(leaf.numel() * leaf.element_size() for leaf in _leaves(_parts(batch)))
            check_memory(
                "data",
                2 * size * len(loader),
                what="records that are kept",
                got=f"about {len(loader)} batches",
                remedy="pass (inputs, targets) with memory-mapped inputs",
            )
        yield batch


def _parts(batch: Any) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor], torch.Tensor]:
    if isinstance(batch, Mapping):
        name = next((key for key in TARGETS if key in batch), None)
        if name is not None:
            rest = {key: as_tensor("data", value) for key, value in batch.items() if key != name}
            return (), rest, as_tensor("targets", batch[name])
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        arguments, keywords = _called_with(batch[0])
        return arguments, keywords, as_tensor("targets", batch[1])
    got = f"a {type(batch).__name__}" + (f" of {len(batch)} parts" if hasattr(batch, "__len__") else "")
    raise fail("data", "batches " + WAYS, got, "bring the batches into that form")


def _called_with(inputs: Any) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    if isinstance(inputs, Mapping):
        return (), {name: as_tensor("inputs", value) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(as_tensor("inputs", value) for value in inputs), {}
    return (as_tensor("inputs", inputs),), {}


def _leaves(
    parts: tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    return [*parts[0], *parts[1].values(), parts[2]]
