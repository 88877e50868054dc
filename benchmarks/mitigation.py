"""What `giveaway mitigate` finds: remedies, their accuracy, and attacks by shadow models and by the losses alone.

    python -m benchmarks.mitigation --data DIR [--work DIR] [--sets adult_forest ...]

--data holds adult.data.gz and bloodmnist_28_train.npz; --work keeps finished models. `digits_*` have scikit-learn's
digits with 5 % of the labels drawn anew, `adult_*` 4,000 records of Adult, `blood_*` 1,500 images. The attack of
`*_losses` has the model's own losses alone; DP-SGD is tried there only, as shadow models of it take hours.
"""

import argparse
import json
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import giveaway as ga
from benchmarks.data import adult, arrays
from benchmarks.measuring import read_options, write_parts
from giveaway.attacks import Retraining
from giveaway.findings.mitigation import mitigate
from giveaway.records import ScoreTable

NUMBERS = (0, 4, 10, 11, 12)  # columns of Adult
RECORDS, IMAGES, EPOCHS, DELTA = 4_000, 1_500, 20, 1e-4


def digits_logistic(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    y = np.where(rng.random(len(y)) < 0.05, rng.integers(0, 10, len(y)), y)
    return make_pipeline(StandardScaler(), LogisticRegression(C=10, max_iter=2_000)), x / 16, y


def adult_logistic(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    return _of_adult(options, LogisticRegression(C=100, max_iter=3_000))


def adult_forest(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    return _of_adult(options, RandomForestClassifier(100, random_state=0))


def _of_adult(options: argparse.Namespace, model: Any) -> tuple[Pipeline, Any, Any]:
    columns, y = adult(options.data)
    rows = np.random.default_rng(0).permutation(len(y))[:RECORDS]
    held = {f"column {place}": column[rows] for place, column in enumerate(columns.T) if place != 2}  # not the weight
    frame = pandas.DataFrame(held).astype({f"column {place}": float for place in NUMBERS})
    numbers, names = make_column_selector(dtype_include="number"), make_column_selector(dtype_exclude="number")
    coded = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    return make_pipeline(make_column_transformer((StandardScaler(), numbers), (coded, names)), model), frame, y[rows]


@cache
def blood(folder: Path) -> TensorDataset:
    x, y = arrays(folder / "bloodmnist_28_train.npz", "images", "labels")
    rows = np.random.default_rng(0).permutation(len(x))[:IMAGES]
    images = torch.from_numpy(x[rows]).permute(0, 3, 1, 2).float() / 255
    return TensorDataset(images, torch.from_numpy(y[rows].ravel().astype(np.int64)))


class BloodTraining:
    """A small convolutional network, trained plainly or by Opacus."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self,
        rows: np.ndarray,
        seed: int,
        l2: float = 0.0,
        epochs: int = EPOCHS,
        sample_weight: np.ndarray | None = None,
        epsilon: float | None = None,
    ) -> nn.Module:
        x, y = (tensor[rows] for tensor in blood(self.folder).tensors)
        weight = torch.ones(len(y)) if sample_weight is None else torch.tensor(sample_weight).float()
        torch.manual_seed(seed)
        layers = [nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1)]
        model = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 8))
        network, optimizer = model, torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=l2)
        loader = DataLoader(TensorDataset(x, y, weight), batch_size=128, shuffle=True)
        if epsilon is not None:
            from opacus import PrivacyEngine

            warnings.simplefilter("ignore")
            bounds = {"target_epsilon": epsilon, "target_delta": DELTA, "epochs": epochs, "max_grad_norm": 1.0}
            given = {"module": model, "optimizer": optimizer, "data_loader": loader}
            network, optimizer, loader = PrivacyEngine().make_private_with_epsilon(**given, **bounds)
        for _ in range(epochs):
            for inputs, targets, weights in loader:
                optimizer.zero_grad()
                each = nn.functional.cross_entropy(network(inputs), targets, reduction="none")
                (each * weights).mean().backward()
                optimizer.step()
        return model


def blood_cnn(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    return BloodTraining(options.data), blood(options.data), blood(options.data).tensors[1].numpy()


def audited(model: Any, x: Any, y: Any) -> tuple[ScoreTable, Retraining]:
    if isinstance(model, BloodTraining):
        fitted = model(np.arange(len(y)), 0)
        return ga.audit(ga.from_torch(fitted, x)), Retraining(model, x, y, code="benchmarks/mitigation.py")
    return ga.audit(ga.from_sklearn(model.fit(x, y), x, y)), Retraining(model, x, y)


SETS: dict[str, tuple[Any, dict[str, Any]]] = {  # what is trained, and options of `mitigate`
    "digits_logistic": (digits_logistic, {}),
    "digits_losses": (digits_logistic, {"models": 0}),
    "adult_logistic": (adult_logistic, {}),
    "adult_forest": (adult_forest, {}),
    "blood_cnn": (blood_cnn, {"models": 4, "tried": {"epsilon": ()}}),
    "blood_losses": (blood_cnn, {"models": 0, "tried": {"epsilon": (8.0,)}}),
}


def main() -> None:
    options = read_options(__doc__, "mitigation.json", needs=["data"], data=Path, work=Path, sets=SETS)
    work = options.work or Path(tempfile.mkdtemp())

    def measured(name: str) -> dict[str, Any]:
        make, settings = SETS[name]
        table, training = audited(*make(options))
        found = mitigate(training, table, folder=work / name.partition("_")[0], **settings)
        return json.loads(json.dumps(found.to_json()), parse_float=lambda text: round(float(text), 4))

    write_parts(options.out, options.sets, measured, "scikit-learn", "opacus")


if __name__ == "__main__":
    main()
