"""Random heads of every loss: no score is NaN, and what must not change a score does not, to 1e-8 or with a mark.

A head has 2 to 14 records and 1 to 24 features, so that about a third are wide; singular ones, dead and repeated
features, repeated records, weights over twelve decades with zeros, people, very sure outputs, features and penalties
over many decades. Each is scored twice: as it is, and once more after one change drawn at random. Rows that the audit
marks (`newton_capped`, `newton_rounded`) may differ; a column may by 1e-12 of its largest value, a leverage by 1e-12.
"""

import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

import giveaway as ga
from giveaway.auditing.plan import Plan
from giveaway.auditing.scoring import score
from giveaway.checks import InputError
from giveaway.curvature.choice import Choice, Dense, compute

COUNT = 100_000
PART = 500  # heads that a process scores before it reports
EXACT, OF_LARGEST = 1e-8, 1e-12
CHANGES = ("rows permuted", "weights and penalty scaled", "copies are one person", "features turned", "naive loop")
COLUMNS = ("leverage", "influence", "newton", "loo_gap")
Arrays = dict[str, Any]


def hunt(count: int, seed: int) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    worst: dict[str, float] = dict.fromkeys(CHANGES, 0.0)
    examples: list[dict[str, Any]] = []
    parts = [(seed, start, min(start + PART, count)) for start in range(0, count, PART)]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for more, by_change, cases in pool.map(hunt_part, *zip(*parts, strict=True)):
            counts += more
            worst = {change: max(worst[change], by_change[change]) for change in CHANGES}
            examples += cases
            print(dict(counts), flush=True)
    first = ("not a number", "changed beyond 1e-8 without a mark", "changed beyond 1e-8 where a pseudo-inverse was cut")
    return {
        "heads": count,
        **{name: counts.pop(name, 0) for name in first},
        "worst change without a mark": worst,
        **dict(sorted(counts.items())),
        "examples": examples[:20],
    }


def hunt_part(seed: int, start: int, stop: int) -> tuple[Counter[str], dict[str, float], list[dict[str, Any]]]:
    """Score heads `start` to `stop`; return the counts, the worst change of each kind, and what went wrong."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    worst, examples = dict.fromkeys(CHANGES, 0.0), []
    for number in range(start, stop):
        rng = np.random.default_rng([seed, number])
        arrays, change = random_head(rng), str(rng.choice(CHANGES))
        before = counts["not a number"]
        try:
            found, cut = one_head(arrays, change, rng, counts)
        except InputError as error:
            counts["refused in one line" if "\n" not in str(error) else "refused in more lines"] += 1
            continue
        if found > EXACT and cut:
            counts["changed beyond 1e-8 where a pseudo-inverse was cut"] += 1
        else:
            worst[change] = max(worst[change], found)
            counts["changed beyond 1e-8 without a mark"] += found > EXACT
            if found > EXACT or counts["not a number"] > before:
                examples.append({"number": number, "change": change, "by": found})
    return counts, worst, examples


def random_head(rng: np.random.Generator) -> Arrays:
    """The arrays of one head."""
    loss, m = [("squared", 1), ("squared", 3), ("cross_entropy", 1), ("cross_entropy", int(rng.integers(2, 6)))][
        rng.integers(4)
    ]
    if rng.random() < 0.2:
        loss, m = "binary_cross_entropy", int(rng.integers(1, 4))
    n, d = int(rng.integers(2, 15)), int(rng.integers(1, 25))
    x = rng.normal(size=(n, d))
    if rng.random() < 0.15:
        x = rng.normal(size=(n, min(n, d, 3))) @ rng.normal(size=(min(n, d, 3), d))
    if rng.random() < 0.2 and d > 1:
        x[:, rng.integers(d)] = x[:, 0] if rng.random() < 0.5 else 0.0
    if rng.random() < 0.2:
        x[rng.integers(n)] = x[0]
    if rng.random() < 0.2:
        x[rng.integers(n)] *= 10.0 ** rng.uniform(0, 6)
    x *= 10.0 ** (rng.uniform(-60, 60) if rng.random() < 0.1 else rng.uniform(-2, 2))
    f = rng.normal(size=(n, m)) * rng.choice([1.0, 5.0, 30.0, 800.0], p=[0.6, 0.2, 0.1, 0.1])
    if loss == "squared":
        f *= 10.0 ** (rng.uniform(-60, 60) if rng.random() < 0.1 else 0.0)
        y = f + rng.normal(size=f.shape) * np.abs(f).max()
    elif loss == "binary_cross_entropy" or m == 1:
        y = (rng.random((n, m)) < 0.5).astype(float)
    else:
        y = rng.integers(m, size=n) if rng.random() < 0.7 else rng.dirichlet(np.ones(m), n)
    weight = None
    if rng.random() < 0.4:
        weight = 10.0 ** rng.uniform(-6, 6, n) if rng.random() < 0.5 else rng.random(n) * (rng.random(n) < 0.8) + 1e-3
    return {
        "features": x,
        "outputs": f,
        "targets": y,
        "loss": loss,
        "l2": 0.0
        if rng.random() < 0.2
        else 10.0 ** (rng.uniform(-40, 40) if rng.random() < 0.1 else rng.uniform(-12, 3)),
        "intercept": bool(rng.random() < 0.7),
        "penalize_intercept": bool(rng.random() < 0.5),
        "sample_weight": weight,
        "groups": rng.integers(max(2, n // 2), size=n) if rng.random() < 0.25 else None,
    }


def scored(arrays: Arrays) -> tuple[dict[str, np.ndarray], np.ndarray, bool]:
    """The columns of a head, which of its rows are marked, and whether the metadata tell of a pseudo-inverse."""
    head = ga.Head(**arrays)
    curvature = compute(head, Choice(Dense(), "asked for"))
    columns, attributes, *_ = score(head, Plan(COLUMNS, "record" if head.groups is None else "person"), curvature)
    marked = attributes["newton_capped"] | attributes.get("newton_rounded", False)
    return columns, marked, "eigenvectors" in curvature.report["inverse"]


def one_head(arrays: Arrays, change: str, rng: np.random.Generator, counts: Counter[str]) -> tuple[float, bool]:
    """Score the head and the changed one; return the largest relative difference in a row that neither marks, and
    whether a pseudo-inverse was taken."""
    n, weight = len(arrays["features"]), arrays["sample_weight"]
    weight = np.ones(n) if weight is None else weight
    order, factor, changed = slice(None), dict.fromkeys(COLUMNS, 1.0), dict(arrays)
    if change in ("copies are one person", "naive loop"):
        arrays = arrays | {"groups": None}
    if change == "rows permuted":
        rows = rng.permutation(n)
        names = ("features", "outputs", "targets", "sample_weight", "groups")
        changed |= {name: arrays[name][rows] for name in names if arrays[name] is not None}
        order = rows if arrays["groups"] is None else order
    elif change == "weights and penalty scaled":
        by = 10.0 ** rng.uniform(-8, 8)
        changed |= {"sample_weight": weight * by, "l2": arrays["l2"] * by}
    elif change == "features turned":
        changed["features"] = arrays["features"] @ np.linalg.qr(rng.normal(size=(arrays["features"].shape[1],) * 2))[0]
    elif change == "copies are one person":
        arrays = arrays | {"sample_weight": 2 * weight}
        changed |= {name: np.concatenate([arrays[name]] * 2) for name in ("features", "outputs", "targets")}
        changed |= {"sample_weight": np.concatenate([weight] * 2), "groups": np.tile(np.arange(n), 2)}
        factor |= {"influence": 2.0, "newton": 2.0, "loo_gap": 2.0}
    columns, marked, cut = scored(arrays)
    if change == "naive loop":
        others, trusted = naive(arrays)
        also = np.full(n, not trusted)
        factor = dict.fromkeys(others, 1.0)
        counts["naive loop not to be trusted"] += not trusted
    else:
        others, also, also_cut = scored(changed)
        cut = cut or also_cut
        counts["not a number"] += int((~np.isfinite(list(others.values()))).sum())
    counts["not a number"] += int((~np.isfinite(list(columns.values()))).sum())
    counts[change] += 1
    counts["rows"] += len(marked)
    counts["rows marked"] += int(marked.sum())
    counts["pseudo-inverse"] += cut
    sound, worst = ~(marked[order] | also), 0.0
    for name, by in factor.items():
        one, other = by * columns[name][order][sound], others[name][sound]
        largest = OF_LARGEST / EXACT * (1.0 if name == "leverage" else np.abs(one).max(initial=0.0))
        size = np.maximum(np.maximum(np.abs(one), np.abs(other)), largest)
        worst = max(worst, float(np.max(np.abs(one - other) / np.where(size > 0, size, 1.0), initial=0.0)))
    return worst, bool(cut)


def naive(arrays: Arrays) -> tuple[dict[str, np.ndarray], bool]:
    """Leverage, influence and newton, a record after another, from the P × P curvature in NumPy's longest floats; and
    whether it is so regular that they are right."""
    long = np.longdouble
    x, f = arrays["features"].astype(long), arrays["outputs"].astype(long)
    x = np.column_stack([x, np.ones(len(x), dtype=long)]) if arrays["intercept"] else x
    y, (n, m) = np.asarray(arrays["targets"]), f.shape
    y = np.eye(m, dtype=long)[y] if y.ndim == 1 else y.astype(long)
    weight = np.ones(n) if arrays["sample_weight"] is None else arrays["sample_weight"]
    basis = np.eye(m, dtype=long)
    if arrays["loss"] == "squared":
        g, W = 2 * (f - y), [2 * basis] * n
    elif arrays["loss"] == "cross_entropy" and m > 1:
        p = np.exp(f - f.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        g, W = p - y, [np.diag(q) - np.outer(q, q) for q in p]
        basis = np.linalg.qr(np.vstack([np.eye(m - 1), -np.ones(m - 1)]))[0].astype(long)
    else:
        p = 1 / (1 + np.exp(-f))
        g, W = p - y, [np.diag(q * (1 - q)) for q in p]
    r = basis.shape[1]
    penalty = np.full(x.shape[1], arrays["l2"], dtype=long)
    if arrays["intercept"] and not arrays["penalize_intercept"]:
        penalty[-1] = 0
    reduced = [weight[i] * basis.T @ W[i] @ basis for i in range(n)]
    H = np.diag(np.repeat(penalty, r)) + sum(np.kron(np.outer(x[i], x[i]), reduced[i]) for i in range(n))
    told = {name: np.zeros(n) for name in ("leverage", "influence", "newton")}
    size = np.sqrt(np.diag(H))
    sure = arrays["loss"] != "squared" and np.abs(f).max() > 15  # 1 - p would be a difference
    if sure or not (size > 0).all() or np.linalg.cond((H / size / size[:, None]).astype(float)) > 1e6:
        return told, False
    for i in range(n):
        rows = np.kron(x[i], np.eye(r, dtype=long))
        B, own = rows @ solve(H, rows.T), basis.T @ g[i]
        told["leverage"][i] = np.trace(reduced[i] @ B) / r
        told["influence"][i] = weight[i] * own @ B @ own
        told["newton"][i] = weight[i] * own @ solve(np.eye(r, dtype=long) - B @ reduced[i], B @ own[:, None])[:, 0]
    return told, True


def solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Gauss's elimination with pivots on the largest entry of a column."""
    both = np.column_stack([matrix, right])
    for k in range(len(matrix)):
        pivot = k + int(np.abs(both[k:, k]).argmax())
        both[[k, pivot]] = both[[pivot, k]]
        both[k] /= both[k, k]
        others = np.arange(len(matrix)) != k
        both[others] -= np.outer(both[others, k], both[k])
    return both[:, len(matrix) :]
