"""Read a Head from what the user has: a torch model, a scikit-learn estimator, or arrays in files or batches."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from giveaway.extract.arrays import from_batches, from_file
    from giveaway.extract.early_layers import early_features
    from giveaway.extract.sklearn_head import from_sklearn
    from giveaway.extract.torch_head import from_torch

__all__ = ["early_features", "from_batches", "from_file", "from_sklearn", "from_torch"]

_HOMES = {  # networks read their records here, and need not wait for scikit-learn
    "early_features": "early_layers",
    "from_batches": "arrays",
    "from_file": "arrays",
    "from_sklearn": "sklearn_head",
    "from_torch": "torch_head",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'giveaway.extract' has no attribute {name!r}")
    return getattr(importlib.import_module(f"giveaway.extract.{_HOMES[name]}"), name)
