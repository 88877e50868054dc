"""Does the count hold what it says? Realised errors and power of `defensible_count`, the old rule beside it.

grid_M    records drawn with known effect sizes, M models: members' share, sd_out/sd_in (each record on a scale of its
          own) and shape of φ (normal, Student's t with 5 degrees, exponential with its long tail up or down on either
          side). "boundary": all at exactly 1.04, where any flag is false; "mixed": 30 % at 4, the others at 1.04.
discrete  the same for outputs in steps, with effect sizes known exactly from the distribution: φ rounded to whole
          standard deviations, clipped at ±2, votes of 100 (a forest), of 5 (nearest neighbours) and of 1 (labels).
          "mixed": 30 % at 3.
shared    draws of S of the 216 measured models (DIR as in the truth files' README); false = share of the flagged whose
          effect size over all other models is at most 1.04.
bound     is "at least" a 95 % lower bound? Runs in which it is larger than the number of records above 1.04, and than
          the number of those among the flagged, which is more than it claims. Effects in two groups, or from 0 on
          without a gap; records share an effect of the model on all of them, or lie in clusters of 20 whose φ are
          correlated at .7 in every model.
finite    is LiRA biased when each model is attacked by the others (arXiv 2605.25819)? Success of records that have no
          effect at all, with each model left out of its own references and not; the spread of a record's success over
          that of coins; false-positive rates of single records where all records together have 1 %; effect sizes on
          halves of N records against those on independently drawn ones.

The old rule: pooled two-sample t against a noncentral t, Benjamini–Hochberg; without variance, no record is flagged.

    python -m benchmarks.count_coverage --truth DIR
    python -m benchmarks.count_coverage --parts grid_16 --small
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import betabinom, nct, norm

from benchmarks.measuring import read_options, write_parts
from giveaway.attacks.lira import lira, lira_within, side_moments
from giveaway.evaluation import defensible_count, effect_sizes, success_rate
from giveaway.evaluation.counts import EFFECT, benjamini_hochberg
from giveaway.records import Signals

RATE = 0.05
FAR, FAR_IN_STEPS, EXPOSED = 4.0, 3.0, 0.3
SIGNALS = {"cifar10": "cifar10_cnn_signals_10k", "bloodmnist": "bloodmnist_cnn_signals"}
SHAPES = {
    "normal": ("normal", "normal"),
    "t5": ("t5", "t5"),
    "exponential up": ("up", "up"),
    "exponential down": ("down", "down"),
    "exponential inward": ("down", "up"),  # the long tails toward each other
    "exponential outward": ("up", "down"),
}
SIZES = (8, 16, 64, 256)
PARTS = ("shared", "discrete", "finite", "bound", *(f"grid_{models}" for models in SIZES))


def old_rule(models: Signals) -> np.ndarray:
    """Return what the rule before this one flagged."""
    (n_in, n_out), mean, variance = side_moments(models)
    freedom = np.maximum(n_in + n_out - 2, 1)
    root = np.sqrt(n_in * n_out / (n_in + n_out))
    pooled = np.sqrt((n_in * variance[0] + n_out * variance[1]) / freedom)
    gap = mean[0] - mean[1]
    testable = (np.minimum(n_in, n_out) >= 2) & (pooled > 0)
    t = np.divide(gap * root, pooled, out=np.zeros_like(gap), where=testable)
    p_values = np.where(testable, nct.sf(t, freedom, EFFECT * root), 1.0)
    return benjamini_hochberg(p_values, RATE, len(p_values))[0]


@dataclass
class Errors:
    """False and true discoveries of one rule in one cell."""

    flagged: int
    false_share: float
    found_share: float | None

    @classmethod
    def of(cls, flagged: np.ndarray, exposed: np.ndarray) -> dict[str, Any]:
        false = int((flagged & ~exposed).sum())
        found = round(float(flagged[exposed].mean()), 4) if exposed.any() else None
        return vars(cls(int(flagged.sum()), round(false / max(int(flagged.sum()), 1), 4), found))


def both_rules(signals: Signals, exposed: np.ndarray) -> dict[str, Any]:
    """Judge both rules on records of which it is known whether they are above the boundary."""
    count = defensible_count(signals)
    bound = {"at_least": count.at_least, "true": int(exposed.sum()), "by_success": count.by_success}
    return {"new": {**Errors.of(count.flagged, exposed), **bound}, "old": Errors.of(old_rule(signals), exposed)}


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarize cells: the false discovery rate is the mean share of false ones over runs."""
    told: dict[str, Any] = {}
    for rule in ("new", "old"):
        mixed = [cell for cell in cells if cell["records"] == "mixed"]
        boundary = [cell[rule]["flagged"] > 0 for cell in cells if cell["records"] == "boundary"]
        shares = np.array([cell[rule]["false_share"] for cell in mixed])
        flagged = np.array([cell[rule]["flagged"] for cell in mixed])
        told[rule] = {
            "boundary_cells_with_any_flag": f"{sum(boundary)} of {len(boundary)}",
            "false_discovery_rate_mean": round(float(shares.mean()), 4),
            "pooled_false_share": round(float((shares * flagged).sum() / max(flagged.sum(), 1)), 4),
            "worst_cell_with_100_flagged": round(float(shares[flagged >= 100].max(initial=0.0)), 4),
            "cells_above_7_percent_with_100_flagged": int((shares[flagged >= 100] > 0.07).sum()),
            "found_by_models": {
                str(m): round(float(np.mean([c[rule]["found_share"] for c in mixed if c["models"] == m])), 3)
                for m in sorted({cell["models"] for cell in mixed})
            },
        }
    bounds = [cell["new"]["at_least"] <= cell["new"]["true"] for cell in cells]
    return {**told, "bound_held": f"{sum(bounds)} of {len(bounds)}"}


def draw(shape: str, size: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw numbers of mean 0 and variance 1."""
    if shape == "normal":
        return rng.standard_normal(size)
    if shape == "t5":
        return rng.standard_t(5, size) / np.sqrt(5 / 3)
    away = rng.standard_exponential(size) - 1
    return away if shape == "up" else -away


def grid(number: int, records: int, small: bool) -> dict[str, Any]:
    """Run the grid of laws with so many models."""
    rng = np.random.default_rng(number)
    ratios = (4.0,) if small else (1 / 3, 1.0, 4.0)
    cells = []
    for share, ratio, shape, kind in product((0.2, 0.5, 0.8), ratios, SHAPES, ("boundary", "mixed")):
        exposed = (np.arange(records) < EXPOSED * records) & (kind == "mixed")
        members = rng.random((number, records)) < share
        inside, outside = (draw(side, members.shape, rng) for side in SHAPES[shape])
        gap = np.where(exposed, FAR, EFFECT) * np.sqrt((1 + ratio**2) / 2)
        phi = np.where(members, inside + gap, ratio * outside) * np.exp(0.5 * rng.standard_normal(records))
        where = {"models": number, "share": share, "ratio": round(ratio, 3), "shape": shape, "records": kind}
        cells.append({**where, **both_rules(Signals(phi, members, "phi"), exposed)})
    return {"summary": summary(cells), "by_shape": by(cells, "shape"), "by_ratio": by(cells, "ratio"), **lines(cells)}


def lines(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a line for each cell, and what its columns are."""
    told = []
    for cell in cells:
        where = [str(value) for name, value in cell.items() if name not in ("new", "old")]
        rules = [", ".join(str(value) for value in cell[rule].values()) for rule in ("new", "old")]
        told.append("; ".join([" ".join(where), *rules]))
    where = [name for name in cells[0] if name not in ("new", "old")]
    names = [" ".join(where)] + [", ".join(cells[0][rule]) for rule in ("new", "old")]
    return {"columns": "; ".join(names), "cells": told}


def by(cells: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Return the share of false ones among all the flagged of the mixed cells, new and old rule."""
    told = {}
    for value in dict.fromkeys(cell[key] for cell in cells):
        some = [cell for cell in cells if cell[key] == value and cell["records"] == "mixed"]
        told[str(value)] = {rule: _pooled([cell[rule] for cell in some]) for rule in ("new", "old")}
    return told


def _pooled(cells: list[dict[str, Any]]) -> float:
    false = sum(cell["flagged"] * cell["false_share"] for cell in cells)
    return round(false / max(sum(cell["flagged"] for cell in cells), 1), 4)


def steps(kind: str) -> tuple[np.ndarray, Callable[[float, float], np.ndarray], tuple[float, ...]]:
    """Return the values of φ, their probabilities by centre and spread, and the spreads to choose from."""
    if kind == "rounded":
        values = np.arange(-14.0, 15.0)
        edges = np.concatenate([[-np.inf], values[:-1] + 0.5, [np.inf]])
        return values, lambda centre, spread: np.diff(norm.cdf(edges, centre, spread)), (0.5, 1.0)
    if kind == "clipped":
        values = np.linspace(-2, 2, 401)
        edges = np.concatenate([[-np.inf], values[:-1] + 0.005, [np.inf]])
        return values, lambda centre, spread: np.diff(norm.cdf(edges, centre, spread)), (0.4, 1.2)
    votes = int(kind.split()[-1])
    count = np.arange(votes + 1)

    def chances(centre: float, spread: float) -> np.ndarray:
        p = 1 / (1 + np.exp(-centre))
        return betabinom.pmf(count, votes, p * spread, (1 - p) * spread)

    return np.log((count + 0.5) / (votes - count + 0.5)), chances, (6.0, 60.0)


def solved(values: np.ndarray, chances: Callable[[float, float], np.ndarray], law: tuple[float, ...], effect: float):
    """Return the chances with and without the record at this effect size, by bisection over the centre; None if none
    is as large."""
    centre_out, spread_in, spread_out = law
    outside = chances(centre_out, spread_out)

    def size(inside: np.ndarray) -> float:
        mean_in, mean_out = inside @ values, outside @ values
        variance = inside @ (values - mean_in) ** 2 + outside @ (values - mean_out) ** 2
        return (mean_in - mean_out) / np.sqrt(variance / 2)

    low, high = centre_out, centre_out + 12.0
    if size(chances(high, spread_in)) < effect:
        return None
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if size(chances(middle, spread_in)) < effect else (low, middle)
    return chances(low, spread_in), outside


def discrete(records: int, small: bool) -> dict[str, Any]:
    """Run the grid of laws in steps."""
    rng = np.random.default_rng(1)
    cells = []
    for kind in ("rounded", "clipped", "votes of 100", "votes of 5", "votes of 1"):
        values, chances, spreads = steps(kind)
        centres = (-1.5, -0.5, 0.0, 1.0)
        laws = {
            effect: [
                pair
                for law in product(centres if effect == EFFECT else (-2.5, -1.5), spreads, spreads)
                if (pair := solved(values, chances, law, effect)) is not None
            ]
            for effect in (EFFECT, FAR_IN_STEPS)
        }
        for number, share, mix in product((16,) if small else SIZES, (0.2, 0.5, 0.8), (False, True)):
            exposed = (np.arange(records) < EXPOSED * records) & mix
            members = rng.random((number, records)) < share
            phi = np.empty(members.shape)
            for effect, rows in ((EFFECT, np.flatnonzero(~exposed)), (FAR_IN_STEPS, np.flatnonzero(exposed))):
                for law, some in zip(laws[effect], np.array_split(rows, len(laws[effect])), strict=True):
                    sides = [values[rng.choice(len(values), (number, len(some)), p=p / p.sum())] for p in law]
                    phi[:, some] = np.where(members[:, some], *sides)
            where = {"models": number, "share": share, "shape": kind, "records": "mixed" if mix else "boundary"}
            cells.append({**where, **both_rules(Signals(phi, members, "phi"), exposed)})
    return {"summary": summary(cells), "by_shape": by(cells, "shape"), "by_models": by(cells, "models"), **lines(cells)}


def shared(truth: Path | None, small: bool) -> dict[str, Any]:
    """Flag on draws of the measured models, and hold it against all of the others."""
    if truth is None:
        raise SystemExit("--truth: expected the folder that holds the signals, got none")
    told: dict[str, Any] = {}
    for name, file in SIGNALS.items():
        stored = np.load(truth / f"{file}.npz")
        records = stored["phi"].shape[1]
        members = np.unpackbits(stored["members"], axis=1)[:, :records].astype(bool)
        signals = Signals(stored["phi"], members, "phi")
        told[name] = {}
        for size in (16,) if small else (8, 16, 32, 64, 128):
            rows = []
            for seed in range(1 if small else 3):
                order = np.random.default_rng(seed).permutation(signals.models)
                some = signals.of_models(order[:size])
                exposed = effect_sizes(signals.of_models(order[size:])).effect_size > EFFECT
                count, before = defensible_count(some), old_rule(some)
                rows.append(
                    [count.flagged.mean(), before.mean(), exposed.mean(), count.at_least / records, count.power]
                )
                rows[-1] += [(~exposed)[flags].sum() / max(flags.sum(), 1) for flags in (count.flagged, before)]
            names = ("flagged", "flagged_old", "above_over_the_others", "at_least", "power", "false", "false_old")
            told[name][str(size)] = dict(zip(names, np.mean(rows, axis=0).round(4).tolist(), strict=True))
    return told


def bound(records: int, small: bool) -> dict[str, Any]:
    """Count how often the lower bound is too large."""
    told = {}
    for number, effects, dependence in product((16, 64), ("two groups", "without a gap"), ("models", "clusters")):
        larger, runs = np.zeros(2), 5 if small else 30
        false, sizes = [], []
        for seed in range(runs):
            rng = np.random.default_rng(seed)
            effect = np.where(np.arange(records) < 0.2 * records, 2.5, EFFECT)
            if effects == "without a gap":
                effect = np.abs(1.2 * rng.standard_normal(records))
            members = records // 2 > np.argsort(rng.random((records, number)), axis=0).T
            noise = rng.standard_normal((number, records))
            group = np.zeros(records, dtype=int) if dependence == "models" else np.arange(records) // 20
            common = rng.standard_normal((number, group.max() + 1))[:, group]
            weight = 0.3 if dependence == "models" else 0.7
            noise = np.sqrt(1 - weight) * noise + np.sqrt(weight) * common
            phi = np.where(members, noise + effect * np.sqrt(2.5), 2 * noise)
            count = defensible_count(Signals(phi, members, "phi"))
            exposed = effect > EFFECT
            found = count.flagged & exposed
            larger += count.at_least > exposed.sum(), count.at_least > found.sum()
            false.append((count.flagged & ~exposed).sum() / max(count.flagged.sum(), 1))
            sizes.append([count.at_least, count.flagged.sum(), exposed.sum()])
        told[f"{number} models, {effects}, dependence: {dependence}"] = {
            "runs": runs,
            "larger_than_the_number_above": int(larger[0]),
            "larger_than_those_among_the_flagged": int(larger[1]),
            "false_discovery_rate": round(float(np.mean(false)), 4),
            "at_least_flagged_above": np.mean(sizes, axis=0).round(1).tolist(),
        }
    return told


def finite(records: int, small: bool) -> dict[str, Any]:
    """Measure what attacking models with each other does to single records."""
    rng = np.random.default_rng(2)
    told: dict[str, Any] = {"records_without_effect": {}, "halves": {}}
    for number in (8, 16, 32, 64, 128):
        members = np.argsort(rng.random((number, records)), axis=0) < number // 2  # every record in half of the models
        signals = Signals(rng.standard_normal(members.shape), members, "phi")
        row = {}
        for name, leave_out in (("left out of its references", True), ("kept among them", False)):
            success = success_rate(lira_within(signals) if leave_out else lira(signals, signals, centre="mean"))
            spread = success.var() / (success.mean() * (1 - success.mean()) / number)
            row[name] = {"success": round(float(success.mean()), 4), "variance_over_coins": round(float(spread), 2)}
        told["records_without_effect"][str(number)] = row
    ratio = np.exp(0.4 * rng.standard_normal(records))
    members = rng.random((200, records)) < 0.5
    noise = rng.standard_normal(members.shape)
    phi = np.where(members, noise + np.abs(rng.standard_normal(records)), ratio * noise)
    attack = lira_within(Signals(phi, members, "phi"))
    cut = np.quantile(attack.scores[~members], 0.99)
    rates = ((attack.scores > cut) & ~members).sum(axis=0) / (~members).sum(axis=0)
    told["false_positives_of_single_records_where_all_have_1_percent"] = {
        f"quantile {q}": round(float(np.quantile(rates, q)), 4) for q in (0.1, 0.5, 0.9, 0.99)
    }
    for size in (20, 100, 1000):
        told["halves"][f"{size} records"] = _halves(size, 400 if small else 4000, rng)
    return told


def _halves(records: int, models: int, rng: np.random.Generator) -> dict[str, float]:
    """Compare effect sizes on halves with those on independently drawn members; each record raises its own φ by 1 and
    that of its four neighbours by 0.3, and all records together lower each other's by 0.5."""
    pull = np.eye(records) - 0.5 / records
    for step in (1, 2):
        pull += 0.3 * (np.eye(records, k=step) + np.eye(records, k=-step))
    found = []
    for exact in (True, False):
        drawn = rng.random((models, records))
        members = np.argsort(np.argsort(drawn, axis=1), axis=1) < records // 2 if exact else drawn < 0.5
        phi = members @ pull.T + 0.5 * rng.standard_normal(members.shape)
        found.append(effect_sizes(Signals(phi, members, "phi")).effect_size.mean())
    return {"halves": round(float(found[0]), 4), "independent": round(float(found[1]), 4)}


def main() -> None:
    """Run the parts and write each as it is done."""
    options = read_options(
        __doc__ or "", "count_coverage.json", parts=PARTS, truth=Path, records=3000, runs_records=1000, small=False
    )
    work: dict[str, Callable[[], dict[str, Any]]] = {
        **{f"grid_{models}": partial(grid, models, options.records, options.small) for models in SIZES},
        "discrete": partial(discrete, options.records, options.small),
        "shared": partial(shared, options.truth, options.small),
        "bound": partial(bound, options.runs_records, options.small),
        "finite": partial(finite, options.records, options.small),
    }
    write_parts(options.out, options.parts, lambda part: work[part](), "scipy")


if __name__ == "__main__":
    main()
