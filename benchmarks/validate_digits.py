"""How well the scores of an audit find what LiRA finds on small models, and what the attack costs beside the audit.

Digits: 200 shadow networks (two hidden layers of 64, 60 epochs) by the stacked engine, 16 targets by a plain loop that
takes the same batches, each target audited. California Housing: 200 shadow and 16 target ridge regressions by closed
form, where the folder GIVEAWAY_SHARED (or ../shared) holds data/california_housing.npz. Printed and saved: the mean
over targets of each score's agreement with LiRA's effect size, wall-clock seconds of both sides, and the factor of the
stacked engine over one model at a time.

    python -m benchmarks.validate_digits [--models 200] [--targets 16] [--out FILE.json]
"""

import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge
from torch.utils.data import TensorDataset

import giveaway as ga
from benchmarks import data as sets
from benchmarks.fused_truth import figures
from benchmarks.measuring import read_options, timed, write_result
from benchmarks.recipes import RECIPES, train_recipe
from benchmarks.stacked import EpochBatches, Training, seeded_model
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.records import Signals

FIRST_TARGET = 10_000  # seeds and halves that no shadow model has


def digits(models: int, targets: int, folder: Path) -> dict:
    data = load_digits()
    x, y = (data.data / 16.0).astype(np.float32), data.target
    recipe = RECIPES["mlp"]
    make = partial(recipe.build, x.shape[1:], 10)
    signals, stacked = timed(lambda: train_recipe("mlp", x, y, models=models, folder=folder, kind="phi"))
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    members = balanced_membership(targets, len(x), seed=0, first=FIRST_TARGET)
    alone, audits, tables = 0.0, 0.0, []
    for number, own in enumerate(members):
        rows, seed = np.flatnonzero(own), model_seed(FIRST_TARGET + number, seed=0)
        train = partial(one_model, make, inputs, labels, rows, recipe.training, seed)
        model, seconds = timed(train)
        alone += seconds
        data = TensorDataset(inputs[rows], labels[rows])
        table, seconds = timed(lambda model=model, data=data: ga.audit(ga.from_torch(model, data, l2=0.01)))
        audits += seconds
        tables.append((table, rows))
    return {
        **agreement(tables, signals),
        "seconds": {
            "shadow_models_stacked": round(stacked, 1),
            "one_audit": round(audits / targets, 3),
            "one_model_alone": round(alone / targets, 2),
            "factor_of_the_stacked_engine": round(alone / targets * models / stacked, 2),
        },
    }


def one_model(make, x, y, rows: np.ndarray, training: Training, seed: int) -> torch.nn.Module:
    """A plain training loop over the batches that the stacked engine would take."""
    model = seeded_model(make, seed)
    steps = -(-len(rows) // training.batch_size)
    batches = EpochBatches([rows], steps, [seed])
    optimizer = training.optimizer_of(list(model.parameters()), training.learning_rate)
    weights = batches.weights[0].to(x.dtype)
    for _ in range(training.epochs):
        for which, weight in zip(batches.epoch()[0], weights, strict=True):
            optimizer.zero_grad()
            (training.losses(model(x[which]), y[which]) * weight).sum().backward()
            optimizer.step()
    return model


def housing(data: Path, models: int, targets: int, folder: Path) -> dict:
    x, y = (sets.standardized(values) for values in sets.housing(data))
    signals, shadows = timed(lambda: train_recipe("ridge", x, y, models=models, folder=folder))
    tables, audits = [], 0.0
    for own in balanced_membership(targets, len(x), seed=0, first=FIRST_TARGET):
        rows = np.flatnonzero(own)
        model = Ridge(alpha=1.0).fit(x[rows], y[rows])
        table, seconds = timed(lambda model=model, own=rows: ga.audit(ga.from_sklearn(model, x[own], y[own])))
        tables.append((table, rows))
        audits += seconds
    seconds = {"shadow_models": round(shadows, 1), "one_audit": round(audits / targets, 3)}
    return {**agreement(tables, signals), "seconds": seconds}


def agreement(tables: list, signals: Signals) -> dict:
    """Mean over targets of recall and rank correlation, and their standard error."""
    effect = ga.evaluation.effect_sizes(signals).effect_size
    found: dict[str, list] = {name: [] for name in tables[0][0].columns}
    for table, rows in tables:
        for name in found:
            found[name].append(figures(table[name], effect[rows]))
    mean = {name: np.mean(values, axis=0).round(3).tolist() for name, values in found.items()}
    spread = {name: np.std(values, axis=0, ddof=1) / np.sqrt(len(values)) for name, values in found.items()}
    worth = ga.evaluation.shadow_curve(
        signals, sizes=[s for s in (2, 4, 8, 16, 32, 64) if s <= signals.models // 2], truth_models=signals.models // 2
    )
    return {
        "columns": ["top 1% in 5%", "top 5% in 5%", "spearman"],
        "mean_over_targets": mean,
        "standard_error": {name: values.round(3).tolist() for name, values in spread.items()},
        "lira_with_shadow_models": dict(zip(map(str, worth.sizes), worth.recall.round(3).tolist(), strict=True)),
    }


def main() -> None:
    options = read_options(__doc__, "validate_digits.json", models=200, targets=16)
    data = Path(os.environ.get("GIVEAWAY_SHARED", Path(__file__).parents[2] / "shared")) / "data"
    report = {"models": options.models, "targets": options.targets}
    with tempfile.TemporaryDirectory() as folder:
        report["digits"] = digits(options.models, options.targets, Path(folder) / "digits")
        if (data / "california_housing.npz").is_file():
            report["california_housing"] = housing(data, options.models, options.targets, Path(folder) / "housing")
        else:
            print(f"no California Housing in {data}: set GIVEAWAY_SHARED to the folder that holds data/")
    write_result(options.out, report, "scikit-learn")


if __name__ == "__main__":
    main()
