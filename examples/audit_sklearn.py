"""Audit scikit-learn models: logistic regression in a pipeline, weak and strong penalty, on breast cancer.

python examples/audit_sklearn.py [--out DIR]
"""

import argparse

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import giveaway as ga


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="audit-sklearn", help="folder for the audit")
    out = parser.parse_args().out
    X, y = load_breast_cancer(return_X_y=True)
    X, unseen, y, unseen_y = train_test_split(X, y, test_size=0.3, random_state=0, stratify=y)

    tables = {}
    for C in (10.0, 0.01):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=10_000, tol=1e-8)).fit(X, y)
        head = ga.from_sklearn(model, X, y)  # the penalty is read from the estimator
        table = tables[C] = ga.audit(head, scores=["loss", "leverage", "newton", "predicted_success"])
        predicted = table["predicted_success"]
        print(f"C = {C:g}: accuracy {model.score(unseen, unseen_y):.3f} on unseen patients;", end=" ")
        print(f"predicted attack success {predicted.mean():.3f} on average, {np.quantile(predicted, 0.99):.3f} for the")
        print(f"  most exposed 1 %; the head is {table.meta.optimum.note}")

    print("\nThe most exposed under the weak penalty, and their predicted success under the strong one:")
    weak, strong = tables.values()
    for row in weak.order()[:5]:
        print(f"  row {row:3d}: {weak['predicted_success'][row]:.2f} -> {strong['predicted_success'][row]:.2f}")
    ga.report(weak, out)
    print(f"Wrote scores.csv, report.html and summary.html of the weak penalty to {out}: share the last alone.")


if __name__ == "__main__":
    main()
