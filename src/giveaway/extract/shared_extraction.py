"""Features of a model by several processes: each runs it over its own run of the records, all see what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from giveaway.checks import fail
from giveaway.extract.batches import as_loader
from giveaway.extract.feature_cache import SharedCache
from giveaway.extract.reader import ORDERED, why_order_is_unknown
from giveaway.extract.torch_head import from_torch
from giveaway.linalg.processes import Processes
from giveaway.records import Head
from giveaway.records.rows import FileRows
from giveaway.storage.files import private_folder


def from_torch_shared(
    model: nn.Module, data: Any, processes: Processes, *, cache: str | Path | None, batch_size: int, **options: Any
) -> Head:
    """`from_torch` by all `processes`, through parts of a feature cache that lies where each of them sees it.

    The records themselves are not kept.
    """
    if cache is None:
        expected = "a folder that all processes see, beside a model"
        raise fail("cache", expected, "none", "add --cache DIR: each process writes its share of the features there")
    loader = as_loader(data, batch_size)
    if (reason := why_order_is_unknown(loader)) is not None:
        raise fail("data", ORDERED, reason, "use shuffle=False and no sampler where several processes share the work")
    shared = SharedCache(private_folder(cache))
    rows = processes.share(range(len(loader.dataset)))  # type: ignore[arg-type]
    part = DataLoader(
        Subset(loader.dataset, rows),
        batch_size=loader.batch_size or batch_size,
        shuffle=False,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
    )
    own = from_torch(
        model, part, cache=shared.part(processes.rank, processes.size).path, **{**options, "keep_inputs": False}
    )
    processes.barrier()
    parts = [shared.part(rank, processes.size).arrays() for rank in range(processes.size)]
    names = [ids for *_, ids in parts if ids is not None]
    return Head(
        features=FileRows("features", [features for features, *_ in parts]),
        outputs=FileRows("outputs", [outputs for _, outputs, *_ in parts]),
        targets=torch.cat([targets for _, _, targets, _ in parts]),
        loss=own.loss,
        l2=own.l2,
        intercept=own.intercept,
        penalize_intercept=own.penalize_intercept,
        frozen=own.frozen,
        weight=own.weight,
        bias=own.bias,
        ids=np.concatenate(names) if len(names) == len(parts) else None,  # type: ignore[arg-type]
    )
