"""A model's features and outputs that are kept nowhere: the model runs again in each pass over its data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from giveaway.checks import fail
from giveaway.extract.batches import BatchKeys, batches
from giveaway.extract.model_digest import model_digest
from giveaway.extract.row_identity import RowTrail
from giveaway.extract.rows import check_alike
from giveaway.extract.untouched import untouched
from giveaway.extract.watched_layer import WatchedLayer
from giveaway.records.streamed_rows import Stream

Pair = tuple[torch.Tensor, torch.Tensor]


def streamed(
    watched: WatchedLayer, loader: DataLoader[Any], keys: BatchKeys, trail: RowTrail, like: Pair, weights: str
) -> Stream:
    """What `watched` sees, as a stream; each pass gives the rows of `trail`, by a model of the digest `weights`."""
    like = (like[0][:0].clone(), like[1][:0].clone())

    def begin() -> Iterator[Pair]:
        model = watched.model
        if model_digest(model) != weights:
            got = "weights that changed after from_torch"
            raise fail("model", "the same model in every pass", got, "call from_torch again, or cache= the features")
        passing, at = None, 0
        while True:
            # Batch by batch: between two of them the model is the user's, as it was.
            with untouched(model, loader, watched.device):
                passing = batches(loader, keys) if passing is None else passing
                batch = next(passing, None)
                if batch is None:
                    return
                trail.check_continued_by(batch, at)
                pair = watched.rows_of(batch)
            for name, block, first in zip(("features", "outputs"), pair, like, strict=True):
                check_alike(name, block, first)
            at += len(batch.targets)
            yield pair

    name = hashlib.sha256(f"{weights} {trail.digest()} {watched.options()}".encode()).hexdigest()
    return Stream(begin, trail.rows, like, name=name, of_layer=True)
