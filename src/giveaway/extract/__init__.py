"""From what the user has (a torch model, a scikit-learn estimator, a file of arrays) to a Head."""

from giveaway.extract.array_batches import from_batches
from giveaway.extract.arrays import from_file
from giveaway.extract.early_layers import early_features
from giveaway.extract.sklearn_head import from_sklearn
from giveaway.extract.torch_head import from_torch

__all__ = ["early_features", "from_batches", "from_file", "from_sklearn", "from_torch"]
