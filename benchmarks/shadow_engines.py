"""What shadow models cost besides their training: `python -m benchmarks.shadow_engines [--parts slice dask]`.

slice : `giveaway validate --only` on a slice of the models, a process as a machine of a cluster would run it. The time
    outside training is that of the whole command, from its start to its end, less what its models took; and that of
    the same command again, which has nothing left to train, is what start-up and reading take.
dask : all models on a Dask cluster of one worker and of two, each a process with one thread; how many times faster two
    are. The clusters are started before the clock is.

Models are MLPs of scikit-learn on 5,000 made records of 64 features. Ratios are within one run. --small takes sizes
that only show that it runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.neural_network import MLPClassifier

import giveaway as ga
from benchmarks.measuring import ROOT, digits, read_options, timed, write_parts
from giveaway.attacks.shadow_store import seconds_in

MODELS, SLICE, RECORDS, EPOCHS, SLICE_EPOCHS = 32, 16, 5_000, 150, 900
SMALL = {"MODELS": 8, "SLICE": 4, "RECORDS": 300, "EPOCHS": 3, "SLICE_EPOCHS": 3}


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    records = int(os.environ.get("RECORDS", RECORDS))
    y = rng.integers(10, size=records)
    return (rng.normal(size=(10, 64))[y] + 2.0 * rng.normal(size=(records, 64))).astype(np.float32), y


def train(rows: np.ndarray, seed: int) -> np.ndarray:
    X, y = data()
    epochs = int(os.environ.get("EPOCHS", EPOCHS))
    model = MLPClassifier((128,), max_iter=epochs, tol=0.0, n_iter_no_change=epochs + 1, random_state=seed)
    with warnings.catch_warnings(action="ignore"):  # that it has not converged
        return model.fit(X[rows], y[rows]).predict_proba(X)


def of_slice(sizes: dict[str, int]) -> dict[str, Any]:
    X, y = data()
    with tempfile.TemporaryDirectory() as folder:
        audit = Path(folder) / "audit"
        ga.audit(ga.from_sklearn(MLPClassifier((8,), max_iter=5).fit(X, y), X, y), scores=["loss"]).save(audit)
        only = f"{sizes['SLICE']}:{2 * sizes['SLICE']}"
        options = ["--train", "benchmarks.shadow_engines:train", "--models", str(sizes["MODELS"]), "--only", only]
        command = [sys.executable, "-m", "giveaway", "validate", str(audit), *options]
        environment = os.environ | {"EPOCHS": str(sizes["SLICE_EPOCHS"])}
        run = partial(subprocess.run, command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        _, whole = timed(run)
        _, again = timed(run)
        (place,) = (audit / "signals" / "slices").iterdir()
        trained = sum(seconds_in(place).values())
    outside = whole - trained
    found = {"command": whole, "training": trained, "outside training": outside, "share": outside / whole}
    found["the same command with nothing left to train"] = again
    return {"models": sizes["SLICE"], "seconds each": digits(trained / sizes["SLICE"]), **digits(found)}


def on_dask(sizes: dict[str, int]) -> dict[str, Any]:
    import distributed

    _, y = data()
    took = {}
    for workers in (1, 2):
        options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
        with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
            client.run(train, np.arange(200), 0)  # imports
            with tempfile.TemporaryDirectory() as folder:
                training = ga.attacks.Retraining(train, y=y, workers=-1, backend="dask")

                def run(training=training, folder=folder) -> Any:
                    return ga.attacks.train_shadows(training, models=sizes["MODELS"], folder=Path(folder) / "signals")

                _, took[workers] = timed(run)
    return {
        "models": sizes["MODELS"],
        "seconds by workers": digits(took),
        "two workers to one": digits(took[1] / took[2]),
    }


PARTS = {"slice": of_slice, "dask": on_dask}


def main() -> None:
    options = read_options(__doc__, "shadow_engines.json", parts=tuple(PARTS), small=False)
    sizes = {name: SMALL[name] if options.small else globals()[name] for name in SMALL}
    os.environ |= {"OMP_NUM_THREADS": "1", **{n: str(v) for n, v in sizes.items()}}
    write_parts(options.out, options.parts, lambda name: PARTS[name](sizes), "scikit-learn", "joblib", "distributed")


if __name__ == "__main__":
    main()
