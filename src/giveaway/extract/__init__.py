"""Read a Head from what the user has: a torch model, a scikit-learn estimator, or arrays in files."""

# ruff: noqa: F401 (the names are for others)
import importlib
from typing import TYPE_CHECKING, Any

from giveaway.extract.batches import Batches
from giveaway.extract.torch_head import Cached, InMemory, from_torch
from giveaway.extract.traces import trace_of_checkpoints
from giveaway.extract.user_files import from_file

if TYPE_CHECKING:
    from giveaway.extract.sklearn_fits import fit_traced, trace_of_stages
    from giveaway.extract.sklearn_head import from_sklearn

# networks read their records here, and need not wait for scikit-learn
_LATER = {"fit_traced": "sklearn_fits", "from_sklearn": "sklearn_head", "trace_of_stages": "sklearn_fits"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'giveaway.extract' has no attribute {name!r}")
    return getattr(importlib.import_module(f"giveaway.extract.{_LATER[name]}"), name)
