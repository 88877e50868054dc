"""Records are not people: copies of a record hide it, and leave its person as exposed as before.

python examples/people.py [--out DIR]
"""

import argparse

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import giveaway as ga
from giveaway.records import ScoreTable

COPIES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="audit-people", help="folder for the audit")
    out = parser.parse_args().out
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)

    def audited(X: np.ndarray, y: np.ndarray, groups: np.ndarray | None) -> ScoreTable:
        model = LogisticRegression(tol=1e-8, max_iter=10_000).fit(X, y)
        return ga.audit(ga.from_sklearn(model, X, y, groups=groups))

    once = audited(X, y, None)
    star = int(once.order("newton")[0])
    print(f"every record once: row {star} has rank 1 of {len(once)} by newton ({once['newton'][star]:.3g})")

    # the same patient came six times
    patients = np.concatenate([np.arange(len(y)), np.full(COPIES, star)])
    X_more, y_more = X[patients], y[patients]
    rows = audited(X_more, y_more, None)
    print(f"with {COPIES} copies, by record: its best rank is {rows.rank('newton')[patients == star].min()}", end=" ")
    print(f"of {len(rows)} ({rows['newton'][star]:.3g})")

    people = audited(X_more, y_more, np.array([f"patient {p}" for p in patients]))
    place = int(np.flatnonzero(people.ids == f"patient {star}")[0])
    print(f"by person: rank {people.rank('newton')[place]} of {len(people)} ({people['newton'][place]:.3g}),", end=" ")
    print(f"{people['records'][place]} records left out together")
    ga.report(people, out)
    print(f"Wrote scores.csv, report.html and summary.html, by person, to {out}: share the last alone.")


if __name__ == "__main__":
    main()
