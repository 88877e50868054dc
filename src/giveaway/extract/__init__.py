"""Read a Head from what the user has: a torch model, a scikit-learn estimator, or arrays in files or batches."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from giveaway.extract.arrays import from_batches, from_file
from giveaway.extract.torch_head import from_torch
from giveaway.extract.torch_model import early_features

if TYPE_CHECKING:
    from giveaway.extract.sklearn_head import from_sklearn

__all__ = ["early_features", "from_batches", "from_file", "from_sklearn", "from_torch"]


def __getattr__(name: str) -> Any:
    if name != "from_sklearn":
        raise AttributeError(f"module 'giveaway.extract' has no attribute {name!r}")
    # networks read their records here, and need not wait for scikit-learn
    return importlib.import_module("giveaway.extract.sklearn_head").from_sklearn
