"""A real table: house values in California, ridge regression and a network, predicted attack power for both.

python examples/california_housing.py --data FOLDER [--out DIR]

FOLDER holds california_housing.npz with X (20640, 8) and y in 100,000 dollars (StatLib, Pace and Barry 1997; scikit-
learn's fetch_california_housing returns the same arrays). Default: the folder data of GIVEAWAY_SHARED.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import scale

import giveaway as ga

FILE = "california_housing.npz"
TRAINED_ON = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("GIVEAWAY_SHARED", ".")) / "data")
    parser.add_argument("--out", default="audit-housing", help="folder for the audit of the network")
    given = parser.parse_args()
    if not (given.data / FILE).is_file():
        parser.error(f"--data: expected a folder with {FILE}, got {given.data}; name the folder that has it")
    with np.load(given.data / FILE, allow_pickle=False) as file:
        X, y = scale(file["X"]), file["y"]
    rows = np.random.default_rng(0).permutation(len(y))
    rows, unseen = rows[:TRAINED_ON], rows[TRAINED_ON:]

    models = {
        "ridge": Ridge(alpha=1.0),
        "network": MLPRegressor(hidden_layer_sizes=(64, 64), alpha=1e-3, max_iter=500, random_state=0),
    }
    for name, model in models.items():
        model.fit(X[rows], y[rows])
        head = ga.from_sklearn(model, X[rows], y[rows])
        table = ga.audit(head, scores=["fused", "left_out", "newton", "leverage", "predicted_success"])
        predicted = np.sort(table["predicted_success"])[::-1]
        error = np.median(np.abs(model.predict(X[unseen]) - y[unseen]))
        print(f"{name}: median error {error:.2f} on {len(unseen)} unseen blocks; predicted attack success")
        print(
            f"  {predicted.mean():.3f} on average, {predicted[: TRAINED_ON // 100].mean():.3f} for the highest 1 %;",
            end=" ",
        )
        print(f"leverage of the most exposed {table['leverage'][table.order()[0]]:.2f}")
    ga.report(table, given.out)
    print(f"Wrote scores.csv, report.html and summary.html of the network to {given.out}: share the last alone.")


if __name__ == "__main__":
    main()
