"""What docs/limits.md says that scores must not be used for, measured on CNNs whose attack truth is known.

For each set: how many records LiRA recognises (success of at least .9), and of the half that `newton` ranks lowest; the
largest `newton`; how many records outlier tests on it flag; how `_logit` norms go with the truth; how much of the top
1 % of two models of one recipe is the same, of the records that both were trained on; and the ε that its training leaks
of each record at the least, with half of the models as trials and the others as references. Of a logistic regression on
digits: what one exact copy of a record does to its `newton`.

    python -m benchmarks.limits --truth DIR
"""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import giveaway as ga
from benchmarks.data import arrays, standardized
from benchmarks.measuring import read_options, write_parts
from giveaway.attacks.lira import lira
from giveaway.evaluation import effect_sizes, epsilon_by_record, spearman
from giveaway.extract import from_file
from giveaway.extract.user_files import signals_from

SIGNALS = {"cifar10_cnn": "cifar10_cnn_signals_10k.npz", "bloodmnist_cnn": "bloodmnist_cnn_signals.npz"}
COPIES = "copies"
TARGETS = (200, 201)
NORMS = ("gls_trace_logit", "gls_frobenius_logit", "gls_spectral_logit")
RECOGNISED, TOP, COPIED = 0.9, 0.01, 10
DELTA, CONFIDENCE = 1e-5, 0.95
NORMAL_MAD = 1.4826  # deviations of a normal law in its median absolute deviation


def outliers(values: np.ndarray) -> dict[str, float]:
    """Return the share of records that common outlier tests flag as large."""
    first, median, third = np.quantile(values, [0.25, 0.5, 0.75])
    logs = np.log(values)
    limits = {
        "3 MAD": median + 3 * NORMAL_MAD * np.median(np.abs(values - median)),
        "Tukey": third + 1.5 * (third - first),
        "3 MAD of logarithms": np.exp(np.median(logs) + 3 * NORMAL_MAD * np.median(np.abs(logs - np.median(logs)))),
    }
    return {name: float((values > limit).mean()) for name, limit in limits.items()}


def same_at_the_top(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the share of the top 1 % of two targets' (index, scores) that is the same, of the records of both."""
    common, first, second = np.intersect1d(one[0], other[0], return_indices=True)
    count = round(TOP * len(common))
    tops = [set(common[np.argsort(-scores)[:count]]) for scores in (one[1][first], other[1][second])]
    return len(tops[0] & tops[1]) / count


def copied() -> dict[str, Any]:
    """Return by how much `newton` of the records of digits that have the most falls when each has one exact copy."""
    x, y = load_digits(return_X_y=True)
    x = standardized(x)

    def newton(rows: np.ndarray) -> np.ndarray:
        model = LogisticRegression(max_iter=5_000, tol=1e-8).fit(x[rows], y[rows])
        return ga.audit(ga.from_sklearn(model, x[rows], y[rows]), scores=["newton"])["newton"]

    everyone = np.arange(len(y))
    alone = newton(everyone)
    most = np.argsort(-alone)[:COPIED]
    falls = sorted(float(alone[row] / newton(np.append(everyone, row))[row]) for row in most)
    return {"records": len(y), "of the highest": COPIED, "newton falls, times": falls}


def leaked(path: Path) -> dict[str, float]:
    """Return what is known of the ε of single records."""
    signals = signals_from(path)
    half = signals.models // 2
    trials, others = signals.of_models(np.arange(half)), signals.of_models(np.arange(half, signals.models))
    attack = lira(trials, others)
    each = epsilon_by_record(attack, delta=DELTA, confidence=CONFIDENCE).value
    together = epsilon_by_record(attack, delta=DELTA, confidence=1 - (1 - CONFIDENCE) / signals.records).value
    top = np.argsort(-effect_sizes(others).effect_size)[: round(TOP * signals.records)]
    return {
        "records": signals.records,
        "trials": half,
        "above 0": float((each > 0).mean()),
        "above 1": float((each > 1).mean()),
        "median of the top 1 %": float(np.median(each[top])),
        "above 0, all together": float((together > 0).mean()),
    }


def measure(truth: Path, name: str) -> dict[str, Any]:
    if name == COPIES:
        return copied()
    success, effect = arrays(truth / f"{name}_truth.npz", "attack_success_rate", "effect_size")
    result: dict[str, Any] = {"recognised": float((success >= RECOGNISED).mean()), "targets": {}}
    ranked = []
    for target in TARGETS:
        path = truth / f"{name}_target_{target}.npz"
        (index,) = arrays(path, "index")
        head, _ = from_file(path, l2=0.01)
        table = ga.audit(head, scores=["newton", *NORMS])
        newton = table["newton"]
        lowest = np.argsort(newton)[: len(newton) // 2]
        ranked.append((index, newton))
        result["targets"][target] = {
            "records": len(newton),
            "recognised of the lower half": float((success[index][lowest] >= RECOGNISED).mean()),
            "largest newton": float(newton.max()),
            "flagged as outliers": outliers(newton),
            "spearman with the effect size": {norm: spearman(table[norm], effect[index]) for norm in NORMS},
        }
    result["top 1 % that two targets share"] = same_at_the_top(*ranked)
    return result | {"epsilon": leaked(truth / SIGNALS[name])}


def main() -> None:
    options = read_options(__doc__, "limits.json", needs=["truth"], truth=Path, parts=[*SIGNALS, COPIES])
    write_parts(options.out, options.parts, lambda name: measure(options.truth, name), "scipy", "scikit-learn")


if __name__ == "__main__":
    main()
