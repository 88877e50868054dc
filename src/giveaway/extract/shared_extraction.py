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
from giveaway.extract.feature_cache import FeatureCache, is_feature_cache, remove_feature_cache
from giveaway.extract.reader import ORDERED, why_order_is_unknown
from giveaway.extract.torch_head import from_torch
from giveaway.linalg.team import Team
from giveaway.records import Head
from giveaway.records.lazy_rows import FileRows
from giveaway.storage.files import private_folder

PART = "part-"


def from_torch_shared(
    model: nn.Module, data: Any, team: Team, *, cache: str | Path | None, batch_size: int, **options: Any
) -> Head:
    """`from_torch` by all processes of `team`, through parts of a feature cache that lies where each of them sees it.

    The records themselves are not kept.
    """
    if cache is None:
        expected = "a folder that all processes see, beside a model"
        raise fail("cache", expected, "none", "add --cache DIR: each process writes its share of the features there")
    loader = as_loader(data, batch_size)
    if (reason := why_order_is_unknown(loader)) is not None:
        raise fail("data", ORDERED, reason, "use shuffle=False and no sampler where several processes share the work")
    private_folder(cache)
    rows = team.share(range(len(loader.dataset)))  # type: ignore[arg-type]
    part = DataLoader(
        Subset(loader.dataset, rows),
        batch_size=loader.batch_size or batch_size,
        shuffle=False,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
    )
    own = from_torch(model, part, cache=_folder(cache, team.rank, team.size), **{**options, "keep_inputs": False})
    team.barrier()
    parts = [FeatureCache(_folder(cache, rank, team.size)).arrays() for rank in range(team.size)]
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


def is_shared_cache(folder: str | Path) -> bool:
    """Whether `from_torch_shared` wrote this folder."""
    return bool(_parts(folder))


def remove_shared_cache(folder: str | Path) -> int:
    """Remove every part, and the folder if nothing else is in it; the number of files."""
    removed = sum(remove_feature_cache(part) for part in _parts(folder))
    if not any(Path(folder).iterdir()):
        Path(folder).rmdir()
    return removed


def _folder(cache: str | Path, rank: int, size: int) -> Path:
    return Path(cache) / f"{PART}{rank}-of-{size}"


def _parts(folder: str | Path) -> list[Path]:
    path = Path(folder)
    return [part for part in sorted(path.glob(f"{PART}*")) if is_feature_cache(part)] if path.is_dir() else []
