"""Passes of a model over its data: what its layer saw is held in memory, written to a cache, or streamed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from giveaway.checks import fail
from giveaway.extract.batches import Batch, BatchKeys, batches
from giveaway.extract.feature_cache import FeatureCache
from giveaway.extract.kept_inputs import KeptInputs
from giveaway.extract.model_digest import model_digest
from giveaway.extract.row_identity import RowTrail, expected_rows, order_error, why_order_is_unknown
from giveaway.extract.rows import Rows
from giveaway.extract.streamed import streamed
from giveaway.extract.watched_layer import WatchedLayer

Found = tuple[Any, Any, torch.Tensor]


class TorchPasses:
    """Features, outputs and targets of all records in one of three ways; `ids` and `inputs` come with them.

    `named` says that the user names the records, so that batches must not. Run it in `untouched`.
    """

    def __init__(
        self, loader: DataLoader[Any], keys: BatchKeys, watched: WatchedLayer, keep_inputs: bool | None, named: bool
    ) -> None:
        self.unknown_order, self._total = why_order_is_unknown(loader), expected_rows(loader)
        self._loader, self._keys, self._watched, self._named = loader, keys, watched, named
        self._kept = KeptInputs(keep_inputs, self._total)
        self.ids: np.ndarray | None = None
        self.inputs: Any = None

    def held(self) -> Found:
        """All in memory; the model runs once."""
        trail, targets = RowTrail(self._total), Rows("targets", self._total)
        features, outputs = (Rows(name, self._total) for name in ("features", "outputs"))
        for batch in self._records(trail):
            x, f = self._watched.rows_of(batch)
            features.add(x)
            outputs.add(f)
            targets.add(batch.targets)
        self._check_again(trail)
        self.inputs = self._kept.joined()
        return features.joined(), outputs.joined(), targets.joined()

    def cached(self, store: FeatureCache) -> Found:
        """Features and outputs mapped from the cache; the model runs only where there is none yet."""
        trail, facts = RowTrail(self._total), {"model_sha256": model_digest(self._watched.model)}
        if (found := store.facts()) is None:
            with store.writing() as writers:
                for batch in self._records(trail):
                    x, f = self._watched.rows_of(batch)
                    for name, block in (("features", x), ("outputs", f), ("targets", batch.targets)):
                        writers[name].add(block)
                self._check_again(trail)
            weight, bias = self._watched.parameters()
            facts |= self._facts(trail) | {"layer": self._watched.name}
            store.complete(facts, {"ids": self.ids, "weight": weight, "bias": bias})
        else:
            for _ in self._records(trail):
                pass
            self.ids = trail.ids
            store.check(facts | self._facts(trail))
            self._watched.found(found["layer"])
        features, outputs, targets, ids = store.arrays()
        self.inputs = _in_order(self._kept.joined(), self.ids, ids)
        self.ids = ids
        return features, outputs, targets

    def streamed(self) -> Found:
        """Nothing but the targets is kept: the model runs over the first batch here, and again in each later pass."""
        trail, targets, like = RowTrail(self._total), Rows("targets", self._total), None
        weights = model_digest(self._watched.model)
        for batch in self._records(trail):
            like = self._watched.rows_of(batch) if like is None else like
            targets.add(batch.targets)
        assert like is not None
        for batch in itertools.islice(batches(self._loader, self._keys), 1):
            trail.check_continued_by(batch, 0)  # draws at random and shuffles: refused here, not in a long audit
        self.ids, self.inputs = trail.ids, self._kept.joined()
        stream = streamed(self._watched, self._loader, self._keys, trail, like, weights)
        return *stream.rows(), targets.joined()

    def _records(self, trail: RowTrail) -> Iterator[Batch]:
        """The batches of one whole pass, each left on the trail and its inputs kept before a model may change them."""
        for batch in batches(self._loader, self._keys):
            if self.unknown_order and batch.ids is None:
                raise order_error(self.unknown_order)
            if batch.ids is not None and self._named:
                raise fail("ids", "ids in the batches or ids=, not both", "both", "drop ids=")
            trail.add(batch)
            self._kept.add(batch)
            yield batch
        trail.check_complete()

    def _check_again(self, first: RowTrail) -> None:
        """Rows are records only if a second pass over the data agrees with the first."""
        self.ids, second = first.ids, RowTrail(self._total)
        for batch in batches(self._loader, self._keys):
            second.add(batch)
        first.check_repeated_by(second)

    def _facts(self, trail: RowTrail) -> dict[str, Any]:
        return {"rows": trail.rows, "rows_sha256": trail.digest(), "options": self._watched.options()}


def _in_order(inputs: Any, ids: np.ndarray | None, wanted: np.ndarray | None) -> Any:
    """Inputs of the records `ids`, in the order of `wanted`."""
    if inputs is None or ids is None or wanted is None or np.array_equal(ids, wanted):
        return inputs
    order = np.empty(len(ids), dtype=np.int64)
    order[np.argsort(wanted)] = np.argsort(ids)
    return [inputs[row] for row in order] if isinstance(inputs, list) else inputs[torch.from_numpy(order)]
