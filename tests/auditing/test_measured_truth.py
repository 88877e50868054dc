"""Scores of models whose exposure was measured with shadow models reproduce the recorded agreement."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from giveaway import audit
from giveaway.evaluation import recall_at, spearman
from giveaway.extract import from_file
from giveaway.records import ScoreTable

L2 = 0.01

# target, score, recall of the true top 1 % in the kept top 5 %, of the top 5 % in the top 5 %, Spearman, largest value
RECORDED = [
    ("cifar10_cnn", 200, "loss", ".420", ".288", ".768", 0.0958242),
    ("cifar10_cnn", 200, "gls_trace", ".540", ".349", ".772", 0.421822),
    ("cifar10_cnn", 200, "influence", ".516", ".330", ".767", 0.0242958),
    ("cifar10_cnn", 200, "newton", ".516", ".330", ".767", 0.0321985),
    ("cifar10_cnn", 200, "loo_gap", ".516", ".330", ".767", 0.0379867),
    ("cifar10_cnn", 201, "gls_trace", ".532", ".340", ".780", 0.578208),
    ("cifar10_cnn", 201, "influence", ".500", ".326", ".773", 0.00983534),
    ("cifar10_cnn", 201, "newton", ".500", ".326", ".773", 0.0141016),
    ("bloodmnist_cnn", 200, "gls_trace", ".700", ".522", ".715", 2.12193),
    ("bloodmnist_cnn", 200, "influence", ".833", ".612", ".751", 79.1959),
    ("bloodmnist_cnn", 200, "newton", ".817", ".595", ".751", 80.4242),
    ("bloodmnist_cnn", 201, "gls_trace", ".850", ".545", ".722", 2.66469),
    ("bloodmnist_cnn", 201, "influence", ".917", ".652", ".751", 70.0780),
    ("bloodmnist_cnn", 201, "newton", ".917", ".639", ".751", 70.5218),
]


@cache
def scored(shared: Path, data: str, target: int) -> tuple[ScoreTable, np.ndarray]:
    """The scores of one target model, and the measured effect sizes of its own training records."""
    path = shared / "truth" / f"{data}_target_{target}.npz"
    head, notes = from_file(path, l2=L2)
    assert notes == ["ignored keys: index"]
    names = [name for _, t, name, *_ in RECORDED if t == target]
    table = audit(head, scores=list(dict.fromkeys(names)))
    with np.load(path) as model, np.load(shared / "truth" / f"{data}_truth.npz") as truth:
        return table, truth["effect_size"][model["index"]]


@pytest.mark.parametrize(("data", "target", "score", "first", "second", "correlation", "largest"), RECORDED)
def test_agreement(shared, data, target, score, first, second, correlation, largest):
    table, truth = scored(shared, data, target)
    values = table[score]

    def digits(number: float) -> str:
        return f"{number:.3f}".removeprefix("0")

    assert digits(recall_at(values, truth, top=0.01, keep=0.05)) == first
    assert digits(recall_at(values, truth, top=0.05, keep=0.05)) == second
    assert digits(spearman(values, truth)) == correlation
    assert values.max() == pytest.approx(largest, rel=1e-4)
