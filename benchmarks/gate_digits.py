"""How often a gate on `change` flips over retrains of an unchanged recipe, and how often it catches a doubled exposure.

The demo's network on its half of digits, a share of the labels wrong: 20 retrains that differ in the seed alone, then
20 with twice as many wrong labels (the earlier ones among them), for several draws of wrong labels. The rule was chosen
on the other half and on breast cancer (findings/changes.py): rows with a loo_gap above what a fifth of the baseline's
rows exceed, against the 95 % prediction bound of 3 or 5 retrains; beside it the same with a predicted success above
0.7. Every retrain outside of a baseline is judged by it, for all baselines of 3 and a thousand of 5. They share models,
so the interval is that of one random baseline a retrain. One baseline a draw is also judged from audit folders by the
gate itself.

    OMP_NUM_THREADS=1 python -m benchmarks.gate_digits [--retrains 20] [--draws 3] [--out FILE.json]
"""

import datetime
import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binomtest
from torch.utils.data import TensorDataset

import giveaway as ga
from benchmarks.measuring import read_options, timed, write_result
from giveaway.cli.demo import WEIGHT_DECAY, digits_dataset, train_digits_network
from giveaway.extract import from_torch
from giveaway.findings.changes import level_of, prediction_bound, share_above
from giveaway.findings.gate import judge, read_rules
from giveaway.records import ScoreTable

RATES = (0.05, 0.1, 0.2)  # of wrong labels, each twice the one before
BASELINES = (3, 5)
MOST_BASELINES = 1_500
COLUMNS = ("loo_gap", "predicted_success")
FIRST_SEED = 20_000


def wrong_labels(dataset: TensorDataset, rate: float, draw: int) -> TensorDataset:
    """The data with a share of its labels moved to another class; a larger share holds the smaller one."""
    images, labels = dataset.tensors
    generator = np.random.default_rng(draw)
    order, moves = generator.permutation(len(labels)), generator.integers(1, 10, len(labels))
    rows = order[: round(rate * len(labels))]
    wrong = labels.numpy().copy()
    wrong[rows] = (wrong[rows] + moves[rows]) % 10
    return TensorDataset(images, torch.from_numpy(wrong))


def audits(rate: float, draw: int, retrains: int) -> list[ScoreTable]:
    """Audits of so many networks that differ in the seed alone."""
    dataset = wrong_labels(digits_dataset(), rate, draw)
    first = FIRST_SEED + 1_000 * draw + 100 * RATES.index(rate)
    tables = []
    for seed in range(first, first + retrains):
        head = from_torch(train_digits_network(dataset, seed=seed), dataset, l2=WEIGHT_DECAY * len(dataset))
        tables.append(ga.audit(head, scores=COLUMNS))
    return tables


def judged(before: np.ndarray, after: np.ndarray, column: str, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Whether each retrain of either kind (columns) misses the rule under each baseline (rows); NaN inside of it."""
    chosen = list(itertools.combinations(range(len(before)), k))
    if len(chosen) > MOST_BASELINES:
        some = np.random.default_rng(seed).choice(len(chosen), 1_000, replace=False)
        chosen = [chosen[number] for number in some]
    unchanged, doubled = np.full((len(chosen), len(before)), np.nan), np.empty((len(chosen), len(after)))
    for number, baseline in enumerate(map(list, chosen)):
        level = level_of(column, list(before[baseline]))
        shares = np.array([share_above(values, level) for values in before])
        bound = prediction_bound(shares[baseline], before.shape[1])
        unchanged[number] = np.where(np.isin(np.arange(len(before)), baseline), np.nan, shares > bound)
        doubled[number] = [share_above(values, level) > bound for values in after]
    return unchanged, doubled


def rates_of(missed: list[np.ndarray], seed: int) -> dict:
    """The share of rules missed, by draw and over all; and with one random baseline a retrain, with its interval."""
    generator = np.random.default_rng(seed)
    once = [generator.choice(column[~np.isnan(column)]) for one in missed for column in one.T]
    count, trials = int(sum(once)), len(once)
    interval = binomtest(count, trials).proportion_ci(0.95)
    return {
        "not_met": round(float(np.mean([np.nanmean(one) for one in missed])), 4),
        "by_draw": [round(float(np.nanmean(one)), 4) for one in missed],
        "one_baseline_a_retrain": {"not_met": count, "of": trials, "interval_95": np.round(interval, 4).tolist()},
    }


def by_the_gate(before: list[ScoreTable], after: list[ScoreTable], column: str) -> tuple[list[int], list[int]]:
    """Exit codes of the gate itself, from folders, with the first three retrains as its baseline."""
    with tempfile.TemporaryDirectory() as folder:
        for name, tables in (("before", before), ("after", after)):
            for number, table in enumerate(tables):
                table.save(Path(folder) / f"{name}{number}")
        rule = {"name": "no worse", "measure": "change", "of": column}
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in rule.items()]
        (Path(folder) / "rule.toml").write_text(
            "schema = 1\n[[rule]]\n" + "".join(lines) + 'baseline = ["before0", "before1", "before2"]\n'
        )
        rules, today = read_rules(Path(folder) / "rule.toml"), datetime.date(2026, 1, 1)
        found = []
        for name, numbers in (("before", range(3, len(before))), ("after", range(len(after)))):
            found.append([judge(rules, Path(folder) / f"{name}{number}", today).exit_code for number in numbers])
        return found[0], found[1]


def compared(tables: dict, rate: float, twice: float, draws: int) -> dict:
    """The figures of one doubling, for both columns and both sizes of baseline."""
    report: dict = {}
    for column in COLUMNS:
        values = {key: np.stack([table[column] for table in own]) for key, own in tables.items()}
        for k in BASELINES:
            both = [judged(values[rate, draw], values[twice, draw], column, k, draw) for draw in range(draws)]
            report[f"{column}, {k} retrains"] = {
                "unchanged": rates_of([one for one, _ in both], 0),
                "doubled": rates_of([two for _, two in both], 1),
            }
            if k == 3:
                for draw, (unchanged, doubled) in enumerate(both):
                    said = by_the_gate(tables[rate, draw], tables[twice, draw], column)
                    assert said == ([3 * int(m) for m in unchanged[0, 3:]], [3 * int(m) for m in doubled[0]])
    return report


def main() -> None:
    options = read_options(__doc__, "gate_digits.json", retrains=20, draws=3)

    def measure() -> dict:
        each = itertools.product(RATES, range(options.draws))
        tables = {(rate, draw): audits(rate, draw, options.retrains) for rate, draw in each}
        return {
            f"wrong labels {rate:.0%} to {twice:.0%}": compared(tables, rate, twice, options.draws)
            for rate, twice in itertools.pairwise(RATES)
        }

    found, seconds = timed(measure)
    told = {"records": len(digits_dataset()), "retrains": options.retrains, "draws": options.draws}
    write_result(options.out, {**told, **found, "seconds": round(seconds)}, "scikit-learn")


if __name__ == "__main__":
    main()
