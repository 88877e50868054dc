"""Read a Head from what the user has: a torch model, a scikit-learn estimator, or arrays in files or batches."""

from giveaway.extract.arrays import from_batches, from_file
from giveaway.extract.early_layers import early_features
from giveaway.extract.sklearn_head import from_sklearn
from giveaway.extract.torch_head import from_torch

__all__ = ["early_features", "from_batches", "from_file", "from_sklearn", "from_torch"]
