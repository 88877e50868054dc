"""Few shadow models and a score of the audit (evaluation/posterior.py) against LiRA alone, by draws of the models.

The rule was fixed on other sets (views_blood_truth.py, fused_own_truth.py) before this was first run. Each draw takes
S models, and others for the truth, the effect size. For each score: recall of the true top 5 % in the top 5 % (mean
and standard error over draws), the mean difference from LiRA alone with the same models (the better of pooled and
per-record variance) with its standard error, what that recall is worth in models of LiRA alone beside what the
posterior says it is worth (median), and how many of the truth's effect sizes lie in the 90 % intervals, widened by
the truth's own sampling error: of all records, and of those of the highest 5 %. "nothing" is a score of random
numbers. `simulated` has known effect sizes.

    python -m benchmarks.few_models --truth DIR --data DIR [--sets cifar10_cnn ...] [--draws 20] [--device cuda]

--data holds bloodmnist_28_train.npz and, for `fused` of CIFAR-10, cifar10.npz.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import arrays
from benchmarks.fused_truth import audited
from benchmarks.measuring import read_options, write_parts
from giveaway.attacks.lira import side_moments
from giveaway.evaluation import effect_sizes, posterior, recall_at
from giveaway.evaluation.success import ShadowCurve, _ratio
from giveaway.extract.user_files import signals_from
from giveaway.records import Signals

SIZES = (2, 4, 8, 16, 32, 64, 96)  # of LiRA alone
FEW = (4, 8, 16, 32, 64)
TRUTH = {"cifar10_cnn": 100, "cifar10_resnet9": 40, "bloodmnist_cnn": 100, "simulated": 0}
Columns = dict[str, np.ndarray]


def cifar10_cnn(options: argparse.Namespace) -> tuple[Signals, Columns]:
    signals = signals_from(options.truth / "cifar10_cnn_signals_10k.npz").of_models(np.arange(200))
    told, columns = of_traced(options.truth / "cifar10_cnn_traced_200.npz", signals)
    options.cifar10 = options.data / "cifar10.npz"
    if not options.cifar10.exists():
        return told, columns
    audit, _, _ = audited(options, "cifar10_cnn", 200)  # of the same records in the same order, the known ones first
    return told, columns | {"fused": audit["fused"][: told.records]}


def cifar10_resnet9(options: argparse.Namespace) -> tuple[Signals, Columns]:
    signals = signals_from(options.truth / "cifar10_resnet9_signals.npz").of_models(np.arange(2, 80))
    signals = signals.of_records(slice(0, 10_000))  # as many as there are of the CNN
    return of_traced(options.truth / "cifar10_resnet9_traced_0.npz", signals)


def of_traced(path: Path, signals: Signals) -> tuple[Signals, Columns]:
    """The records that there are signals of; the column `trace` is the mean √loss that training saw."""
    index, seen = arrays(path, "index", "losses_seen")
    known = index < signals.records
    return signals.of_records(index[known]), {"trace": np.sqrt(seen[:, known].astype(float)).mean(0)}


def bloodmnist_cnn(options: argparse.Namespace) -> tuple[Signals, Columns]:
    options.bloodmnist = options.data / "bloodmnist_28_train.npz"
    columns, _, _ = audited(options, "bloodmnist_cnn", 200)
    (index,) = arrays(options.truth / "bloodmnist_cnn_target_200.npz", "index")
    signals = signals_from(options.truth / "bloodmnist_cnn_signals.npz").of_models(np.arange(200))
    return signals.of_records(index), {"fused": columns["fused"]}


SETS: dict[str, Callable[[argparse.Namespace], tuple[Signals, Columns]]] = {
    "cifar10_cnn": cifar10_cnn,
    "cifar10_resnet9": cifar10_resnet9,
    "bloodmnist_cnn": bloodmnist_cnn,
}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    if name == "simulated":
        return {f"{models} models": simulated(models, options.draws) for models in (4, 8, 16, 32, 64)}
    signals, columns = SETS[name](options)
    columns["nothing"] = np.random.default_rng(0).normal(size=signals.records)
    sizes = [size for size in SIZES if size <= signals.models - TRUTH[name]]
    alone = np.empty((options.draws, len(sizes), 2))
    found: dict[tuple[str, int], list[list[float]]] = {(c, s): [] for c in columns for s in sizes if s in FEW}
    for draw, place, chosen, others in drawn(signals, sizes, TRUTH[name], options.draws):
        truth = effect_sizes(others).effect_size
        alone[draw, place] = [recall_at(order, truth, 0.05, 0.05) for order in rankings(chosen)]
        for column in columns if chosen.models in FEW else ():
            made = posterior(chosen, columns[column])
            recall = recall_at(made.effect_size, truth, 0.05, 0.05)
            found[column, chosen.models].append([recall, made.worth, *coverage(made, others)])
    better = alone[:, range(len(sizes)), alone.mean(0).argmax(1)]
    curve = ShadowCurve(tuple(sizes), better.mean(0))
    lines = {}
    for (column, size), rows in found.items():
        recall, worth, *covered = np.array(rows).T
        lines[f"{column}, {size} models"] = {
            "recall": mean_and_error(recall),
            "above LiRA alone": mean_and_error(recall - better[:, sizes.index(size)]),
            "worth, measured": models_or_more(curve.worth(recall.mean()), sizes[-1]),
            "worth, said": models_or_more(float(np.median(worth)), 256),
            "in the intervals, all and top 5 %": np.mean(covered, axis=1).round(3).tolist(),
        }
    recalls = {size: mean_and_error(better[:, place]) for place, size in enumerate(sizes)}
    counts = {"records": signals.records, "models": signals.models, "truth_models": TRUTH[name], "draws": options.draws}
    return {**counts, "LiRA alone": recalls, "with a score": lines}


def rankings(models: Signals) -> np.ndarray:
    """Return LiRA's order of the records (2, n), with pooled and with per-record variance, as `shadow_curve` ranks."""
    count, mean, variance = side_moments(models)
    gap = mean[0] - mean[1]
    return np.where((count > 0).all(axis=0), [gap, _ratio(gap, np.sqrt(variance.mean(axis=0)))], -np.inf)


def drawn(signals: Signals, sizes: list[int], truth: int, draws: int) -> Iterator[tuple[int, int, Signals, Signals]]:
    """Yield the draw, the place of the size, the models drawn and those of the truth, as `shadow_curve` draws them."""
    generator = np.random.default_rng(0)
    for draw in range(draws):
        order = generator.permutation(signals.models)
        others = signals.of_models(np.sort(order[:truth]))
        for place, size in enumerate(sizes):
            yield draw, place, signals.of_models(np.sort(order[truth : truth + size])), others


def coverage(made: Any, others: Signals) -> list[float]:
    """Return the share of effect sizes by the other models in the intervals, of all records and of the highest 5 %."""
    told = effect_sizes(others)
    count = np.stack([others.members.sum(0), (~others.members).sum(0)])
    squares = np.stack([told.deviation_in, told.deviation_out]) ** 2 * count / (count - 1)
    pooled = np.maximum(squares.mean(0), 1e-30)
    effect = (told.mean_in - told.mean_out) / np.sqrt(pooled)
    of_gap = (squares / count).sum(0) / pooled
    of_deviation = effect**2 / 8 * ((squares / pooled) ** 2 / (count - 1)).sum(0)
    reach = np.sqrt(((made.high - made.low) / 2) ** 2 + 1.645**2 * (of_gap + of_deviation))
    inside = np.abs(effect - made.effect_size) <= reach
    highest = made.effect_size >= np.quantile(made.effect_size, 0.95)
    return [float(inside.mean()), float(inside[highest].mean())]


def simulated(models: int, draws: int) -> dict[str, list[float]]:
    """Coverage of known effect sizes, normal and skewed, with a score that tells nothing or much of them."""
    found = {}
    for skewed in (False, True):
        for informed in (0.0, 0.8):
            inside = []
            for seed in range(draws):
                generator = np.random.default_rng(seed)
                score, own = generator.normal(size=(2, 5000))
                x = informed * score + np.sqrt(1 - informed**2) * own
                effect = np.exp(0.5 + 0.6 * x) - 0.5 if skewed else 1.5 + x
                level = generator.normal(3 - x, 1)
                deviation = np.exp(0.15 * level) * np.sqrt(10 / generator.chisquare(10, (2, 5000)))
                gap = effect * np.sqrt((deviation**2).mean(0))
                members = generator.random((models, 5000)) < 0.5
                noise = np.where(members, *deviation) * generator.normal(size=members.shape)
                phi = level + np.where(members, gap, -gap) / 2 + noise
                made = posterior(Signals(phi, members, "phi"), score)
                inside.append(np.mean((made.low <= effect) & (effect <= made.high)))
            told = "a score that tells much" if informed else "a score that tells nothing"
            found[f"{'skewed' if skewed else 'normal'} effects, {told}"] = mean_and_error(np.array(inside))
    return found


def models_or_more(worth: float, most: int) -> float | str:
    return round(worth, 1) if worth <= most else f"more than {most}"


def mean_and_error(values: np.ndarray) -> list[float]:
    return [round(float(values.mean()), 4), round(float(values.std(ddof=1) / len(values) ** 0.5), 4)]


def main() -> None:
    needs = {"truth": Path, "data": Path}
    options = read_options(__doc__, "few_models.json", needs=tuple(needs), **needs, sets=TRUTH, draws=20, device="cpu")
    write_parts(options.out, options.sets, lambda name: measure(name, options))


if __name__ == "__main__":
    main()
