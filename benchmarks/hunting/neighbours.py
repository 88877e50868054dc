"""Summaries of two data sets that differ by one record: what the difference tells of who left.

Each time a random record leaves, the model is trained again without it, and both summaries are made. Whoever holds both
looks at each kind of group (class, ward, sex) for the only group whose figures fell, and names it as the leaver's.
"""

import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from giveaway import audit, from_sklearn
from giveaway.findings.explain import SUBGROUP
from giveaway.records import ScoreTable
from giveaway.reporting.pages import summary

COUNT = 200
SIZES = (400, 1_500)
OF_THE_RUN = ("audit", "seconds", "date", "versions")
KINDS = {"class": 4, "ward": 6, "sex": 2}


def summary_of(x: np.ndarray, groups: dict[str, np.ndarray]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(max_iter=200).fit(x, groups["class"])
    table = audit(from_sklearn(model, x, groups["class"]), scores=["newton", "leverage", "loss"])
    wards = {f"{SUBGROUP}{name}": values for name, values in groups.items() if name != "class"}
    return summary(ScoreTable(table.scores, table.ids, table.meta, {**table.attributes, **wards}))


def figures(found: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """The groups of every kind, by name."""
    return {spread["kind"]: {group["name"]: group for group in spread["groups"]} for spread in found["spread_over"]}


def guess(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> str | None:
    """Name the only group with fewer rows; else the only one with other figures."""
    rows = [name for name in before if name in after and after[name]["rows"] < before[name]["rows"]]
    other = [name for name in before if after.get(name) != before[name]]
    return next((names[0] for names in (rows, other) if len(names) == 1), None)


def hunt(count: int, seed: int) -> dict[str, Any]:
    rng, found = np.random.default_rng(seed), {}
    for n in SIZES:
        told = dict.fromkeys(("all three", *KINDS, "wrongly named", "any figure differs", "rows differ"), 0)
        times = max(12, count * SIZES[0] // n)
        for _ in range(times):
            groups = {kind: rng.integers(0, size, n) for kind, size in KINDS.items()}
            x = rng.normal(size=(n, 5)) + groups["class"][:, None]
            leaver = int(rng.integers(n))
            rest = np.arange(n) != leaver
            first = summary_of(x, groups)
            second = summary_of(x[rest], {kind: values[rest] for kind, values in groups.items()})
            a, b = figures(first), figures(second)
            named = {kind: guess(a[kind], b[kind]) for kind in a}
            right = [kind for kind in named if named[kind] == str(groups[kind][leaver])]
            for kind in right:
                told[kind] += 1
            told["all three"] += len(right) == len(KINDS)
            told["wrongly named"] += sum(name is not None and kind not in right for kind, name in named.items())
            told["any figure differs"] += any(first[name] != second[name] for name in first if name not in OF_THE_RUN)
            told["rows differ"] += first["rows"] != second["rows"]
        found[f"{n} records"] = {"leavers": times, **told}
    return found
