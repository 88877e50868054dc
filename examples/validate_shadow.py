"""Check an audit against an attack: 16 shadow models on digits, LiRA, and a count that can be defended.

python examples/validate_shadow.py [--out DIR]
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import giveaway as ga

MODELS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="audit-validated", help="folder for the audit and the shadow models' signals")
    out = parser.parse_args().out
    X, y = load_digits(return_X_y=True)
    X, y = X[::2] / 16, y[::2]

    def fit(rows: np.ndarray, seed: int) -> MLPClassifier:
        return MLPClassifier((32,), max_iter=500, learning_rate_init=0.01, random_state=seed).fit(X[rows], y[rows])

    # LiRA speaks of a recipe: the audited model follows the same one, on a random half as the shadow models do
    rows = np.sort(np.random.default_rng(0).permutation(len(y))[: len(y) // 2])
    table = ga.audit(ga.from_sklearn(fit(rows, 0), X[rows], y[rows]))
    found = ga.validate(ga.attacks.Retraining(fit, X, y), table, rows=rows, models=MODELS, folder=f"{out}/signals")
    print(found.conclusion())
    print(found.about_target())
    print(f"LiRA's AUC is {found.attack.auc.value:.2f}. {found.cost()}")
    ga.report(table, out, validation=found)
    print(f"Wrote scores.csv, report.html and summary.html to {out}; giveaway purge {out}/signals removes the signals.")


if __name__ == "__main__":
    main()
