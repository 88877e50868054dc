"""All that a model is given of its records, as whole tensors in the order of the head that was read from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, fail
from giveaway.extract.batches import Batch, BatchKeys, batches
from giveaway.extract.rows import Rows
from giveaway.extract.torch_arguments import as_loader
from giveaway.linalg.memory import check_memory
from giveaway.records.head import Head

Inputs = tuple[torch.Tensor, ...] | dict[str, torch.Tensor]


def record_tensors(data: Any, head: Head, *, batch_size: int = 256) -> Inputs:
    """The model's arguments, or its keywords, for all records of `head`, which came from `from_torch(model, data)`.

    Batches with ids are put into the order of the head's.
    """
    rows: dict[int | str, Rows] = {}
    names: list[np.ndarray] = []
    keywords, seen = False, 0
    for batch in batches(as_loader(data, batch_size), BatchKeys()):
        given: dict[int | str, Any] = dict(enumerate(batch.arguments))
        given.update(batch.keywords)
        tensors = {key: as_tensor("inputs", value) for key, value in given.items()}
        if not rows:
            keywords = bool(batch.keywords)
            _check_memory(tensors, len(batch.targets), head.n)
            rows = {key: Rows("inputs", None) for key in tensors}
        _check_rows(batch, tensors, set(rows))
        for key, tensor in tensors.items():
            rows[key].add(tensor.cpu())
        names += [] if batch.ids is None else [batch.ids]
        seen += len(batch.targets)
    if seen != head.n:
        got = f"{seen} in another"
        raise fail("data", f"{head.n} records in every pass", got, "pass a dataset that can be read again")
    found = {key: block.joined() for key, block in rows.items()}
    if names:
        order = torch.from_numpy(_places(np.concatenate(names), head.ids))
        found = {key: tensor[order] for key, tensor in found.items()}
    return {str(key): tensor for key, tensor in found.items()} if keywords else tuple(found.values())


def _check_rows(batch: Batch, tensors: dict[int | str, torch.Tensor], known: set[int | str]) -> None:
    n = len(batch.targets)
    if set(tensors) != known or any(tensor.ndim == 0 or len(tensor) != n for tensor in tensors.values()):
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors.values())
        got = f"inputs of shape {shapes} for {n} records"
        raise fail("data", "the same inputs in every batch, each with a row a record", got, "collate them so")


def _check_memory(tensors: dict[int | str, torch.Tensor], rows: int, n: int) -> None:
    size = sum(tensor.nbytes for tensor in tensors.values()) * n // max(1, rows)
    remedy = "score fewer records, or the head alone"
    check_memory("data", 2 * size, what="records that are kept", got=f"{n} of them", remedy=remedy)


def _places(names: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where each of the `wanted` stands among `names`."""
    order = np.argsort(names, kind="stable")
    places = order[np.searchsorted(names, wanted, sorter=order).clip(max=len(names) - 1)]
    if not np.array_equal(names[places], wanted):
        raise fail("data", "the same ids in every pass", "others in another", "fix each record's id")
    return places
