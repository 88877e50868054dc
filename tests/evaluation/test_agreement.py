"""The agreement table: its numbers, its intervals, its texts."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from giveaway import Head, audit
from giveaway.evaluation import agreement, effect_sizes, recall_at, spearman
from tests.evaluation.test_attack_success import measured


def made(n: int = 2000, noise: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)
    return truth + noise * rng.normal(size=n), truth


def test_values_are_those_of_the_single_functions():
    scores, truth = made()
    table = agreement({"a": scores, "b": -scores}, truth, shares=[(0.02, 0.1)])
    for name, values, row in zip("ab", (scores, -scores), table.rows, strict=True):
        assert row.score == name
        assert row.recall[0.02, 0.1].value == recall_at(values, truth, 0.02, 0.1)
        assert row.spearman.value == pytest.approx(spearman(values, truth))
    assert table.best().score == "a"


def test_intervals_cover_the_value_of_a_large_sample():
    scores, truth = made(400_000)
    recall, rank = recall_at(scores, truth, 0.05, 0.05), spearman(scores, truth)
    covered = np.zeros(2)
    for seed in range(1, 101):
        row = agreement({"a": made(1000, seed=seed)[0]}, made(1000, seed=seed)[1], shares=[(0.05, 0.05)]).rows[0]
        interval = row.recall[0.05, 0.05]
        covered += [interval.low <= recall <= interval.high, row.spearman.low <= rank <= row.spearman.high]
    assert covered[0] >= 85
    assert covered[1] >= 89


def test_texts():
    scores, truth = made()
    table = agreement({"newton": scores}, truth)
    (row,) = csv.DictReader(io.StringIO(table.to_csv()))
    assert row["score"] == "newton"
    assert float(row["top 1% in 5%_low"]) <= float(row["top 1% in 5%"]) <= float(row["top 1% in 5%_high"])
    head, rule, body = table.to_markdown().splitlines()
    assert head == "| score | top 1% in 5% | top 5% in 5% | spearman |"
    assert rule == "|---|---|---|---|"
    assert body.startswith(f"| newton | {float(row['top 1% in 5%']):.2f} (")


def test_scores_of_an_audit_against_measured_signals(shared):
    """The recalls of the audited target, from the signals of its own records instead of the stored truth."""
    signals, _ = measured(shared, "bloodmnist")
    stored = np.load(shared / "truth" / "bloodmnist_cnn_target_200.npz")
    outputs = stored["features"].astype(float) @ stored["weight"].T.astype(float) + stored["bias"]
    head = Head(stored["features"], outputs, stored["targets"].astype(int), "cross_entropy", l2=0.01)
    effect = effect_sizes(signals.of_models(slice(0, 200))).effect_size[stored["index"]]
    table = agreement({"newton": audit(head, scores=["newton"])["newton"]}, effect)
    (row,) = table.rows
    assert [round(cell.value, 3) for cell in row.recall.values()] == [0.817, 0.595]
    assert round(row.spearman.value, 3) == 0.751


def test_what_is_refused():
    with pytest.raises(ValueError, match="scores: expected at least one score and one pair of shares, got none"):
        agreement({}, [1.0, 2.0])
