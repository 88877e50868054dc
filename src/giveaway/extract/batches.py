"""Batches of the usual forms, taken apart into model inputs, targets and ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_names, fail, nearest

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
ID_KEYS = ("ids", "id")


@dataclass(frozen=True)
class BatchKeys:
    """Where a batch keeps its parts: positions in a tuple, keys in a dict; None means the usual place."""

    inputs: str | int | None = None
    targets: str | int | None = None
    ids: str | int | None = None


@dataclass(frozen=True)
class Batch:
    """One batch: what the model is called with, the targets, and the ids if the batch carries them."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    targets: torch.Tensor
    ids: np.ndarray | None

    def inputs_on(self, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword inputs, with every tensor on `device`."""
        return _moved(self.arguments, device), _moved(self.keywords, device)

    def leaves(self) -> Iterator[Any]:
        """Tensors, arrays, lists of plain values and single values in the inputs and targets, nesting undone."""
        return _leaves((self.arguments, self.keywords, self.targets))


def batches(loader: Iterable[Any], keys: BatchKeys) -> Iterator[Batch]:
    """One pass over `loader`."""
    return (take_apart(batch, keys) for batch in loader)


def take_apart(batch: Any, keys: BatchKeys) -> Batch:
    """Split a tuple, list or dict batch as `keys` says."""
    if isinstance(batch, Mapping):
        arguments, keywords, targets, ids = _split_mapping(dict(batch), keys)
    elif isinstance(batch, tuple | list):
        arguments, keywords, targets, ids = _split_sequence(list(batch), keys)
    else:
        raise fail("data", "batches (inputs, targets) or dicts", type(batch).__name__, "return the targets as well")
    y = as_tensor("targets", targets).cpu()
    if y.ndim == 0:
        raise fail("data", "batches with one target a record", "a single target", "give the DataLoader a batch_size")
    names = None if ids is None else check_names("ids in the batch", ids, len(y), unique=False)
    return Batch(arguments, keywords, y, names)


def _split_mapping(parts: dict[str, Any], keys: BatchKeys) -> tuple[tuple[Any, ...], dict[str, Any], Any, Any]:
    present = list(parts)
    target_key = keys.targets
    if target_key is None:
        found = [key for key in TARGET_KEYS if key in parts]
        if len(found) != 1:
            got = "keys " + ", ".join(map(str, found or present))
            expected = "a batch with one of the keys " + ", ".join(TARGET_KEYS)
            raise fail("data", expected, got, "name the targets with target_key=")
        target_key = found[0]
    id_key = keys.ids
    if id_key is None:
        # A two-dimensional "ids" is a model input (token ids), not one name a record.
        id_key = next((key for key in ID_KEYS if key in parts and _is_list_of_names(parts[key])), None)
    for argument, key in (("target_key", target_key), ("id_key", id_key), ("input_key", keys.inputs)):
        if key is not None and key not in parts:
            raise fail(argument, "a key of the batch", repr(key), nearest(str(key), map(str, present)))
    targets = parts.pop(target_key)  # type: ignore[arg-type]
    ids = None if id_key is None else parts.pop(id_key)  # type: ignore[arg-type]
    if keys.inputs is None:
        return (), parts, targets, ids
    arguments, keywords = _call_with(parts[keys.inputs])  # type: ignore[index]
    return arguments, keywords, targets, ids


def _split_sequence(parts: list[Any], keys: BatchKeys) -> tuple[tuple[Any, ...], dict[str, Any], Any, Any]:
    size = len(parts)
    for argument, key in (("target_key", keys.targets), ("id_key", keys.ids), ("input_key", keys.inputs)):
        if key is not None and not (isinstance(key, int) and -size <= key < size):
            expected = f"a position in the batch, 0 to {size - 1}"
            raise fail(argument, expected, repr(key), "batches here are tuples: give the position of the part")
    if keys.targets is None and keys.inputs is None and size != 2 + (keys.ids is not None):
        raise fail(
            "data",
            "batches (inputs, targets), or (inputs, targets, ids) with id_key=2",
            f"a batch of {size} parts",
            "say which is which with target_key= and id_key=",
        )
    target_at = int(1 if keys.targets is None else keys.targets) % size
    id_at = None if keys.ids is None else int(keys.ids) % size
    if keys.inputs is not None:
        rest = [parts[int(keys.inputs)]]
    else:
        rest = [part for at, part in enumerate(parts) if at not in (target_at, id_at)]
    arguments, keywords = _call_with(rest[0]) if len(rest) == 1 else (tuple(rest), {})
    return arguments, keywords, parts[target_at], None if id_at is None else parts[id_at]


def _call_with(value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(value, Mapping):
        return (), dict(value)
    if isinstance(value, tuple | list) and not _is_plain_list(value):
        return tuple(value), {}
    return (value,), {}


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
