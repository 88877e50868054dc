"""Repeated records are counted, exactly and nearly, never invented."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway import Head, audit
from giveaway.auditing.run import NEAR, count_duplicates


def head_of(features: np.ndarray, targets: np.ndarray | None = None, **options) -> Head:
    n = len(features)
    targets = np.arange(n) % 3 if targets is None else targets
    outputs = np.random.default_rng(9).normal(size=(n, 3))
    return Head(features, outputs, targets, "cross_entropy", **options)


def brute_force(features: np.ndarray, targets: np.ndarray) -> tuple[int, int]:
    """Records with an exact copy of the same class, and records with another one near, from all pairs."""
    features = features.astype(np.float64)
    same = (features[:, None] == features[None]).all(2) & (targets[:, None] == targets[None])
    np.fill_diagonal(same, False)
    deviation = features.std(0)
    features = (features - features.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    distance = np.linalg.norm(features[:, None] - features[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    spread = np.sqrt(((features - features.mean(0)) ** 2).sum(1).mean())
    exact = same.any(1)
    near = (distance <= NEAR * spread).any(1)
    return int(exact.sum()), int((near & ~exact).sum())


def planted(offset: float, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Records of which 20 have a copy, one of them two, 10 a near copy, 5 a copy of another class, 4 one too far."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(264, 8))
    near = base[30:40] + 1e-4 * rng.normal(size=(10, 8))
    too_far = base[60:64] + 2 * NEAR
    features = np.concatenate([base, base[:20], base[:1], near, base[50:55], too_far]) + offset
    targets = np.arange(264) % 3
    targets = np.concatenate(
        [targets, targets[:20], targets[:1], targets[30:40], (targets[50:55] + 1) % 3, targets[60:64]]
    )
    order = rng.permutation(len(features))
    return features[order].astype(dtype), targets[order]


@pytest.mark.parametrize(
    ("offset", "dtype"), [(0.0, np.float32), (0.0, np.float64), (1e5, np.float64), (1e10, np.float64)]
)
def test_planted_copies_are_counted(offset, dtype):
    features, targets = planted(offset, dtype)
    counts = count_duplicates(head_of(features, targets))
    assert (counts["exact"], counts["near"]) == (41, 30)
    assert (counts["exact"], counts["near"]) == brute_force(features, targets)
    assert "a lower bound" in counts["near_means"]


@given(n=st.integers(3, 40), d=st.integers(1, 6), values=st.integers(2, 30), seed=st.integers(0, 999))
def test_never_more_than_there_are(n, d, values, seed):
    rng = np.random.default_rng(seed)
    features = rng.integers(0, values, (n, d)) * 10.0 ** rng.integers(-3, 4, d)
    targets = np.arange(n) % 3
    exact, near = brute_force(features, targets)
    counts = count_duplicates(head_of(features, targets))
    assert counts["exact"] == exact
    assert counts["near"] <= near


def test_copies_among_many_ties_are_all_found():
    """Of one column with few values, all records of a class are copies; a search among neighbours would miss most."""
    few = np.random.default_rng(0).integers(0, 2, (1_000, 1)).astype(np.float64)
    assert count_duplicates(head_of(few))["exact"] == 1_000


@pytest.mark.parametrize(
    "columns",
    [
        np.float32(1e6) + np.arange(300, dtype=np.float32)[:, None] / 16,
        np.append(np.arange(299.0), 1e10)[:, None],
        1.7e9 + 1e-6 * np.arange(300)[:, None],
    ],
    ids=["float32 far from 0", "one far away", "times in microseconds"],
)
def test_records_that_only_round_alike_are_no_copies(columns):
    assert len(np.unique(columns)) == 300
    assert count_duplicates(head_of(columns, np.full((300, 3), 1 / 3)))["exact"] == 0


def test_units_of_the_columns_invent_no_copies():
    """A column in tens of thousands beside columns near 1 once made nearly every record a near copy."""
    features, targets = planted(0.0, np.float64)
    found = count_duplicates(head_of(features * [1e4, 1.0, 1e-3, 1.0, 50.0, 1.0, 1.0, 1.0], targets))
    assert (found["exact"], found["near"]) == (41, 30)


@pytest.mark.parametrize("soft", [False, True])
def test_all_records_the_same(soft):
    targets = np.full((12, 3), 1 / 3) if soft else np.arange(12) % 3
    counts = count_duplicates(head_of(np.ones((12, 4)), targets))
    assert counts["exact"] == 12


def test_the_audit_says_so_unless_people_are_given():
    features, targets = planted(0.0, np.float64)
    assert audit(head_of(features, targets), scores=["loss"]).meta.repeats.exact == 41
    by_person = head_of(features, targets, groups=np.arange(len(features)) // 2)
    assert audit(by_person, scores=["loss"]).meta.repeats is None
    assert audit(replace(by_person, groups=None), scores=["loss"]).meta.repeats.exact == 41
