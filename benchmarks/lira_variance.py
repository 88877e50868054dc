"""LiRA on few models: a variance for every record, or one for all records?

Of each set, draws of S models are attacked, each model with the others as its references (`lira_within`), by either
variance. Means over draws of the AUC over all records and models, and of the true-positive rates at .1, 1 and 10 %
false positives, with the standard error of the difference of the AUC.

    python -m benchmarks.lira_variance --truth DIR [--draws 10] [--out FILE.json]
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import RandomForestClassifier

from benchmarks.measuring import digits, read_options, write_result
from giveaway.attacks import Retraining, train_shadows
from giveaway.attacks.lira import lira_within
from giveaway.evaluation import summarize
from giveaway.extract.user_files import signals_from
from giveaway.records import Signals

SIZES = (8, 16, 32, 64, 128)
RATES = (0.001, 0.01, 0.1)
VARIANCES = ("per_record", "global_residual")
FEWEST = 3  # models with and without a record


def stored(name: str, models: int) -> Callable[[Path], Signals]:
    return lambda truth: signals_from(truth / name).of_models(np.arange(models)).of_records(slice(0, 10_000))


def forest(load: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Callable[[Path], Signals]:
    def train(_: Path) -> Signals:
        with tempfile.TemporaryDirectory() as folder:
            training = Retraining(RandomForestClassifier(100, n_jobs=2), *load(return_X_y=True))
            found = train_shadows(training, models=2 * SIZES[-1], folder=folder)
            return Signals(np.array(found.values), np.array(found.members), found.kind, labels=found.labels)

    return train


SETS = {
    "CIFAR-10, CNN": stored("cifar10_cnn_signals_10k.npz", 200),
    "CIFAR-10, ResNet-9": stored("cifar10_resnet9_signals.npz", 80),
    "BloodMNIST, CNN": stored("bloodmnist_cnn_signals.npz", 200),
    "digits, forest": forest(load_digits),
    "breast cancer, forest": forest(load_breast_cancer),
}


def compare(signals: Signals, models: int, draws: int) -> dict:
    rng, found = np.random.default_rng(models), np.empty((draws, len(VARIANCES), 1 + len(RATES)))
    for draw in range(draws):
        some = signals.of_models(np.sort(rng.permutation(signals.models)[:models]))
        inside = some.members.sum(axis=0)
        some = some.of_records(np.flatnonzero(np.minimum(inside, models - inside) >= FEWEST))
        for column, variance in enumerate(VARIANCES):
            told = summarize(lira_within(some, variance=variance), rates=RATES, resamples=0)
            found[draw, column] = told.auc.value, *(told.true_positive_rate[rate].value for rate in RATES)
    names = ("auc", *(f"tpr at {rate:g}" for rate in RATES))
    means = {
        variance: dict(zip(names, digits(found[:, column].mean(0)), strict=True))
        for column, variance in enumerate(VARIANCES)
    }
    apart = found[:, 1, 0] - found[:, 0, 0]
    return means | {"auc higher with one variance": digits([apart.mean(), apart.std(ddof=1) / draws**0.5])}


def main() -> None:
    options = read_options(__doc__, "lira_variance.json", needs=("truth",), truth=Path, draws=10)
    result = {}
    for name, read in SETS.items():
        signals = read(options.truth)
        sizes = [size for size in SIZES if size <= 0.8 * signals.models]
        result[name] = {str(size): compare(signals, size, options.draws) for size in sizes}
    write_result(options.out, {"draws": options.draws, "sets": result}, "scikit-learn")


if __name__ == "__main__":
    main()
