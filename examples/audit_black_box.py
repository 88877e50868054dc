"""Audit a model without a linear head: gradient boosting on breast cancer, from its probabilities alone.

python examples/audit_black_box.py [--out DIR]
"""

import argparse

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import GradientBoostingClassifier

import giveaway as ga


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="audit-black-box", help="folder for the audit")
    out = parser.parse_args().out
    X, y = load_breast_cancer(return_X_y=True)
    model = GradientBoostingClassifier(random_state=0).fit(X, y)

    table = ga.audit(ga.from_sklearn(model, X, y))
    print("columns:", ", ".join(table.columns))

    # the same without scikit-learn: whatever speaks in probabilities is outputs, targets and inputs
    log_probabilities = np.log(np.clip(model.predict_proba(X), 1e-12, 1))
    box = ga.Head(None, log_probabilities, y, "cross_entropy", inputs=X)
    same = np.array_equal(ga.audit(box).order()[:20], table.order()[:20])
    print("the same 20 most exposed from arrays:", same)

    view = table.meta.view
    print(f"the other records leave {view.left_out_error:.1%} of the squared error of a constant;", end=" ")
    print(f"training took away {view.memorized:.0%} of that")
    for row in table.order()[:5]:
        says = table["others_say"][row]
        print(f"  row {row:3d}: class {table['class'][row]}, the other records predict {says}")
    ga.report(table, out)
    print(f"Wrote scores.csv, report.html and summary.html to {out}: share the last alone, as the others name records.")


if __name__ == "__main__":
    main()
