"""What the views of tree models find of LiRA's truth: trees that never saw the record, and stages of boosted trees.

Truth of our own: for every set and kind of model 64 shadow models on random halves and 4 targets on other halves. A
forest has 100 trees, and its φ comes from (100 p + ½)/101, finite where all trees agree; XGBoost has 100 rounds with
its defaults, and its φ comes from its margins; values have their squared error. `letters` is made, not measured: 26
overlapping classes in 16 columns. Per score: mean over targets, and its standard error, of the recall of the true top
1 % (by effect size) in the kept top 5 %, of the top 5 % in the top 5 %, and Spearman's correlation.

    python -m benchmarks.views_trees --data DIR --truth DIR [--sets adult_forest ...] [--out FILE.json]

What was made lies in --truth and is used again.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.datasets import load_digits, make_classification
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer

import giveaway as ga
from benchmarks import data as sets
from benchmarks.fused_own_truth import FIRST_TARGET, RECORDS, Data, sentences
from benchmarks.fused_truth import figures
from benchmarks.measuring import read_options, write_parts
from benchmarks.recipes import signals_of
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.extract.sklearn_fits import STAGES, trace_of_stages
from giveaway.extract.sklearn_unseen import out_of_bag
from giveaway.records import Signals
from giveaway.scores.fusion import fused, left_out, normal_scores
from giveaway.views.all_views import AllViews
from giveaway.views.others import OthersView

MODELS, TARGETS, TREES, ROUNDS = 64, 4, 100, 100
LEAST = 1e-12  # a probability, in a loss


def digits(folder: Path) -> Data:
    data = load_digits()
    return data.data, data.target, 10


def letters(folder: Path) -> Data:
    shape = {"n_features": 16, "n_informative": 12, "n_redundant": 4, "n_classes": 26, "n_clusters_per_class": 1}
    x, y = make_classification(6_000, **shape, class_sep=1.5, flip_y=0.02, random_state=0)
    return x, y, 26


def adult(folder: Path) -> Data:
    """Numbers as they are, categories by their places in the alphabet."""
    columns, y = sets.adult(folder)
    columns = columns[:RECORDS]
    numbers = [
        column.astype(np.float64) if place in sets.ADULT_NUMBERS else np.unique(column, return_inverse=True)[1]
        for place, column in enumerate(columns.T)
    ]
    return np.column_stack(numbers), y[:RECORDS], 2


def housing(folder: Path) -> Data:
    x, y = sets.housing(folder)
    rows = np.random.default_rng(0).permutation(len(x))[:RECORDS]  # neighbours follow each other in the file
    return x[rows], y[rows], 1


def housing_classes(folder: Path) -> Data:
    x, y, _ = housing(folder)
    return x, np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75])), 4


def sst2(folder: Path) -> Data:
    texts, y = sentences(folder)
    texts, y = texts[:6_000], y[:6_000]
    counts = TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(texts)
    return TruncatedSVD(100, random_state=0).fit_transform(counts), y, 2


LOADED: dict[str, Callable[[Path], Data]] = {
    "digits": digits,
    "letters": letters,
    "sst2": sst2,
    "adult": adult,
    "housing_classes": housing_classes,
    "housing": housing,
}
SETS = [f"{name}_{kind}" for kind in ("forest", "xgboost") for name in LOADED]


def fitted(kind: str, x: np.ndarray, y: np.ndarray, m: int, seed: int) -> Any:
    if kind == "forest":
        return (RandomForestRegressor if m == 1 else RandomForestClassifier)(TREES, random_state=seed).fit(x, y)
    from xgboost import XGBClassifier, XGBRegressor

    return (XGBRegressor if m == 1 else XGBClassifier)(n_estimators=ROUNDS, random_state=seed, n_jobs=1).fit(x, y)


def said(model: Any, x: np.ndarray, m: int) -> np.ndarray:
    """Values, probabilities of a forest, or the margins of boosted trees, (n, m)."""
    if m == 1:
        return model.predict(x).reshape(-1, 1).astype(np.float64)
    if hasattr(model, "estimators_samples_"):
        return model.predict_proba(x)
    margins = model.predict(x, output_margin=True).astype(np.float64)
    return np.column_stack([np.zeros(len(margins)), margins]) if margins.ndim == 1 else margins


def smoothed(p: np.ndarray, trees: Any = TREES) -> np.ndarray:
    """Logarithms of probabilities, each half a tree away from 0 and 1."""
    return np.log((p * trees + 0.5) / (trees + 1))


def phi_of(kind: str, outputs: np.ndarray, y: np.ndarray, m: int) -> np.ndarray:
    if m == 1:
        return (outputs[:, 0] - y) ** 2
    if kind == "xgboost":
        return signals_of(outputs, y, "phi")
    own = outputs[np.arange(len(y)), y]
    return smoothed(own) - smoothed(1 - own)


def make(name: str, folder: Path) -> dict[str, np.ndarray]:
    """Train the shadow models and the targets; keep φ of the first, and all that the scores need of the others."""
    which, kind = name.rsplit("_", 1)
    x, y, m = LOADED[which](folder)
    n = len(x)
    members = balanced_membership(MODELS, n, seed=0)
    phi = np.empty((MODELS, n), dtype=np.float32)
    for row, own in enumerate(members):
        model = fitted(kind, x[own], y[own], m, model_seed(row, seed=0) % 2**31)
        phi[row] = phi_of(kind, said(model, x, m), y, m)
    made = {"x": x, "y": y, "phi": phi, "members": np.packbits(members, axis=1)}
    for target, own in enumerate(balanced_membership(TARGETS, n, seed=0, first=FIRST_TARGET)):
        rows = np.flatnonzero(own)
        model = fitted(kind, x[rows], y[rows], m, model_seed(FIRST_TARGET + target, seed=0) % 2**31)
        outputs = said(model, x[rows], m)
        made |= {f"index_{target}": rows, f"outputs_{target}": outputs}
        if kind == "forest":
            made[f"out_of_bag_{target}"] = out_of_bag(model, x[rows], outputs if m > 1 else outputs[:, 0])
        else:
            made[f"staged_{target}"] = trace_of_stages(model, x[rows], y[rows], stages=10_000).losses  # every one
    return made


def losses(outputs: np.ndarray, y: np.ndarray, m: int) -> np.ndarray:
    """Squared error of values, or cross-entropy of logarithms of probabilities or margins."""
    if m == 1:
        return (outputs.reshape(-1) - y) ** 2
    return logsumexp(outputs, axis=1) - outputs[np.arange(len(y)), y]


def records_of(name: str, folder: Path, x: np.ndarray) -> Any:
    """The records as a user has them: strings, a table with its words, or numbers."""
    if name.startswith("adult"):
        return sets.adult(folder)[0][:RECORDS]
    if name.startswith("sst2"):
        return np.array(sentences(folder)[0][: len(x)], dtype=object)
    return x


def scores_of_target(name: str, held: dict[str, np.ndarray], inputs: Any, target: int) -> dict[str, np.ndarray]:
    """Every column that is compared, high = more exposed."""
    rows, outputs = held[f"index_{target}"], held[f"outputs_{target}"]
    y, m, forest = held["y"][rows], outputs.shape[1], name.endswith("forest")
    logits = np.log(np.clip(outputs, LEAST, None)) if forest and m > 1 else outputs
    own, bag = inputs[rows], held.get(f"out_of_bag_{target}")
    said_without = None if bag is None else np.log(np.clip(bag, LEAST, None)) if m > 1 else bag
    head = ga.Head(
        None,
        logits,
        y if m > 1 else y.astype(np.float64),
        "cross_entropy" if m > 1 else "squared",
        inputs=own.tolist() if own.dtype == object else own,
        out_of_bag=said_without,
    )
    staged, trace = held.get(f"staged_{target}"), None
    if staged is not None:
        asked = np.unique(np.geomspace(1, len(staged), STAGES).round().astype(int)) - 1  # as trace_of_stages does
        trace, staged = ga.LossTrace.from_losses(staged[asked]), staged.astype(np.float64)
    seen = AllViews(head, OthersView(head), trace, losses(logits, y, m)).seen
    columns = {"loss": seen.loss, "left_out": left_out(seen), "fused": fused(seen)}
    columns["fused, head and kernel alone"] = fused(replace(seen, bag=None, roots=None))
    if not forest:
        low, high = np.quantile(staged, [0.25, 0.75], axis=0)
        columns |= {"trace": seen.roots, "lt_iqr": high - low}
        columns |= {"mean √loss of all stages": np.sqrt(staged).mean(0), "mean loss of all stages": staged.mean(0)}
        return columns | joined(columns, "trace")
    columns["out_of_bag"] = seen.bag
    columns["out_of_bag − loss"] = columns["out_of_bag"] - losses(logits, y, m)
    if m > 1:
        own = np.arange(len(y)), y
        columns["probability, in − out"] = outputs[own] - bag[own]
        left = 0.37 * TREES
        without = smoothed(bag[own], left) - smoothed(1 - bag[own], left)
        columns["φ, in − out"] = phi_of("forest", outputs, y, m) - without
    return columns | joined(columns, "out_of_bag")


def joined(columns: dict[str, np.ndarray], first: str) -> dict[str, np.ndarray]:
    """The view of the model's own kind with others, by normal scores."""
    z = {score: normal_scores(values) for score, values in columns.items()}
    made = {
        f"{first} + {sign}left_out": z[first] + w * z["left_out"] for sign, w in (("¼ ", 0.25), ("½ ", 0.5), ("", 1))
    }
    return made | {f"{first} + loss": z[first] + z["loss"]}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    file = options.truth / f"{name}.npz"
    if not file.exists():
        options.truth.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, **make(name, options.data))
    held = dict(zip(np.load(file).files, sets.arrays(file), strict=True))
    n, m = held["phi"].shape[1], held["outputs_0"].shape[1]
    members = np.unpackbits(held["members"], axis=1)[:, :n].astype(bool)
    signals = Signals(held["phi"], members, kind="squared_error" if m == 1 else "phi")
    effect = ga.evaluation.effect_sizes(signals).effect_size
    inputs = records_of(name, options.data, held["x"])
    found: dict[str, list[list[float]]] = {}
    for target in range(TARGETS):
        truth = effect[held[f"index_{target}"]]
        for score, values in scores_of_target(name, held, inputs, target).items():
            found.setdefault(score, []).append(figures(values, truth))
    halves = [ga.evaluation.effect_sizes(signals.of_models(np.arange(MODELS) // 2 % 2 == side)) for side in (0, 1)]
    agreed = figures(*(half.effect_size for half in halves))
    return {
        "records": n,
        "models": MODELS,
        "targets": TARGETS,
        "largest, median effect size": [round(float(v), 3) for v in (effect.max(), np.median(effect))],
        "one half of the models by the other": [round(v, 4) for v in agreed],
        "mean, standard error": {
            score: np.stack([np.mean(v, axis=0), np.std(v, axis=0, ddof=1) / TARGETS**0.5]).round(4).tolist()
            for score, v in found.items()
        },
    }


def main() -> None:
    needs = {"truth": Path, "data": Path}
    options = read_options(__doc__, "views_trees.json", needs=tuple(needs), **needs, sets=SETS)
    write_parts(options.out, options.sets, partial(measure, options=options), "scikit-learn", "xgboost")


if __name__ == "__main__":
    main()
