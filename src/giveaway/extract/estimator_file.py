"""A scikit-learn estimator from a file: skops, or what pickles where the user trusts it."""

import os
from pathlib import Path
from typing import Any

from giveaway.checks import fail
from giveaway.extract.user_files import TRUST, needs_pickle
from giveaway.storage.arrays import reading

PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib")
# Plain holders of numbers, unknown to skops: inside every MLP trained with adam or sgd, and inside encoders.
TRUSTED_TYPES = [f"sklearn.neural_network._stochastic_optimizers.{name}Optimizer" for name in ("Adam", "SGD")]
TRUSTED_TYPES += ["numpy.dtype"]


def load_estimator(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Any:
    """Return the scikit-learn estimator in `path`: skops, or with `allow_pickle` pickle, joblib and any type."""
    suffix = Path(path).suffix
    if suffix not in (".skops", *PICKLE_SUFFIXES):
        expected = "a .skops file, or " + ", ".join(PICKLE_SUFFIXES)
        raise fail("estimator", expected, Path(path).name, "save it with skops.io.dump")
    with reading("estimator", path, f"{suffix} file") as file:
        if suffix == ".skops":
            try:
                import skops.io
            except ImportError as error:
                raise fail("estimator", "skops, to read .skops files", "none", "pip install skops") from error
            unknown = sorted(set(skops.io.get_untrusted_types(file=file)) - set(TRUSTED_TYPES))
            if unknown and not allow_pickle:
                got = f"{len(unknown)} unknown to it ({', '.join(unknown[:3])}{', …' * (len(unknown) > 3)})"
                raise fail("estimator", "types that skops trusts", got, f"save the estimator without them, or {TRUST}")
            return skops.io.load(file, trusted=[*TRUSTED_TYPES, *unknown])
        if not allow_pickle:
            raise needs_pickle("estimator", "a .skops file", file, "save it with skops.io.dump")
        import joblib

        return joblib.load(file)
