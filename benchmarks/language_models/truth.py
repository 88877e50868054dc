"""The truth for language models, from the slices that train.py wrote: how exposed each document is.

A setting is a way of training and a number of epochs. For each of two choices of φ:
mean : the mean log-likelihood ℓ of a document's tokens;  logit : ℓ − log(1 − e^ℓ), the logit of the geometric mean
of their probabilities. Told are
- the effect size of LiRA, its quantiles over documents; the truth that scores are compared with;
- halves agree: effect sizes by half of the models against those by the other half: recall of the top 1 % in the top
  5 %, mean over draws. A setting below AGREE has no truth;
- what LiRA achieves with all other models as references (AUC, true-positive rates at 1 % and 0.1 %, all documents of
  all models pooled);
- LiRA with few models against the truth of the models that are left: recalls of the top 1 % and 5 % in the top 5 %,
  Spearman's correlation (the better of pooled and per-record variance), and its true-positive rates on the models
  that are left (pooled variance). Few models are pairs of complementary halves: each document is in half of them.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import arrays
from benchmarks.few_models import rankings
from benchmarks.language_models.train import STAGES, perplexity
from benchmarks.measuring import digits, environment, write_json
from giveaway.attacks.lira import lira, lira_within
from giveaway.evaluation import effect_sizes, recall_at, spearman, summarize
from giveaway.records import Signals

AGREE = 0.80
FEW = (4, 8, 16)
DRAWS = 10
RATES = (0.01, 0.001)
ATTACKED = 16  # models that few references attack in a draw
PHI = {"mean": lambda likely: likely, "logit": lambda likely: likely - np.log(-np.expm1(likely))}


def settings(folder: Path) -> dict[str, tuple[str, int]]:
    """Return kind and epochs of each setting that there are slices of."""
    kinds = sorted({path.name.split("_")[0] for path in _slices(folder, "*")})
    return {f"{kind}, {stage} epochs": (kind, stage) for kind in kinds for stage in STAGES}


def signals_of(folder: Path, kind: str, stage: int, phi: str = "mean") -> Signals:
    """Return φ of all models (models, documents), slices in order."""
    values, members, following = [], [], 0
    for path in _slices(folder, kind):
        likely, packed = arrays(path, f"phi_{stage}", "members")
        first = int(path.stem.split("_")[1])
        if first != following:
            raise SystemExit(f"{path.name}: models {following} to {first - 1} are missing; run their slice")
        following = first + len(likely)
        values.append(PHI[phi](likely.astype(np.float64)))
        members.append(np.unpackbits(packed, axis=1)[:, : likely.shape[1]].astype(bool))
    return Signals(np.concatenate(values), np.concatenate(members), kind="phi")


def _slices(folder: Path, kind: str) -> list[Path]:
    found = [path for path in folder.glob(f"{kind}_*.npz") if re.fullmatch(r"[a-z]+_\d+_\d+", path.stem)]
    return sorted(found, key=lambda path: (path.name.split("_")[0], int(path.stem.split("_")[1])))


def measure(folder: Path, kind: str, stage: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: of_phi(signals_of(folder, kind, stage, name)) for name in PHI}
    signals = signals_of(folder, kind, stage)
    likely, members = signals.values[:, :, 0], signals.members
    perplexities = {"with": perplexity(likely[members]), "without": perplexity(likely[~members])}
    told = {"models": signals.models, "documents": signals.records, "perplexity": digits(perplexities)}
    agreed = {name: found[name]["halves agree"][0] >= AGREE for name in PHI}
    return {**told, "has a truth": agreed, **found}


def of_phi(signals: Signals) -> dict[str, Any]:
    effect = effect_sizes(signals).effect_size
    agreed = [of_halves(signals, first, second) for first, second in pairs_drawn(signals.models, signals.models // 2)]
    quantiles = {f"{share:.0%}": round(float(np.quantile(effect, share)), 3) for share in (0.05, 0.5, 0.95, 0.99)}
    attack = summarize(lira_within(signals), rates=RATES, resamples=0)
    few = {f"{size} models": with_few(signals, size) for size in FEW if size <= signals.models - 2 * FEW[0]}
    return {
        "effect size": quantiles,
        "halves agree": mean_and_spread(agreed),
        "LiRA": {"AUC": round(attack.auc.value, 4), **rates_of(attack)},
        "LiRA with": few,
    }


def pairs_drawn(models: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each draw, `size` models (an even number of them, rounded down) and the others, never half a pair."""
    generator = np.random.default_rng(0)
    for _ in range(DRAWS):
        first = np.sort(generator.permutation(models // 2)[: size // 2])
        drawn = np.isin(np.arange(models) // 2, first)
        yield np.flatnonzero(drawn), np.flatnonzero(~drawn)


def of_halves(signals: Signals, first: np.ndarray, second: np.ndarray) -> float:
    one, other = (effect_sizes(signals.of_models(half)).effect_size for half in (first, second))
    return (recall_at(one, other, 0.01, 0.05) + recall_at(other, one, 0.01, 0.05)) / 2


def with_few(signals: Signals, size: int) -> dict[str, Any]:
    figures, rates = [], []
    for few, rest in pairs_drawn(signals.models, size):
        chosen, others = signals.of_models(few), signals.of_models(rest)
        truth = effect_sizes(others).effect_size
        both = [
            [recall_at(order, truth, 0.01, 0.05), recall_at(order, truth, 0.05, 0.05), spearman(order, truth)]
            for order in rankings(chosen)
        ]
        figures.append(both)
        attacked = others.of_models(np.arange(min(ATTACKED, others.models)))
        attack = lira(attacked, chosen, variance="global_residual", centre="mean")
        rates.append(list(rates_of(summarize(attack, rates=RATES, resamples=0)).values()))
    table = np.array(figures)
    better = table[:, table.mean(0)[:, 0].argmax()]
    names = ("top 1 % in 5 %", "top 5 % in 5 %", "Spearman")
    told = {name: mean_and_spread(column) for name, column in zip(names, better.T, strict=True)}
    return told | {f"TPR at {r:.1%}": mean_and_spread(c) for r, c in zip(RATES, np.array(rates).T, strict=True)}


def rates_of(attack: Any) -> dict[str, float]:
    return {f"TPR at {rate:.1%}": round(attack.true_positive_rate[rate].value, 5) for rate in RATES}


def mean_and_spread(values: Any) -> list[float]:
    """Return the mean over draws and their standard deviation; draws share models, so it is no standard error."""
    return [round(float(np.mean(values)), 4), round(float(np.std(values)), 4)]


def write_truth(folder: Path, out: Path) -> None:
    """Measure every setting, print a row a setting and choice of φ, and write all figures to the file `out`."""
    few = [f"LiRA {size}: 1 % in 5 %" for size in FEW]
    print(" | ".join(["setting, φ", "models", "median effect", "halves agree", "AUC", "TPR 1 %", "TPR 0.1 %", *few]))
    results: dict[str, Any] = {"environment": environment()}
    for name, (kind, stage) in settings(folder).items():
        results[name] = measure(folder, kind, stage)
        write_json(out, results)
        for phi in PHI:
            found = results[name][phi]
            told = [found["effect size"]["50%"], found["halves agree"][0], *found["LiRA"].values()]
            told += [figures["top 1 % in 5 %"][0] for figures in found["LiRA with"].values()]
            print(" | ".join([f"{name}, {phi}", str(results[name]["models"]), *map(str, told)]), flush=True)
