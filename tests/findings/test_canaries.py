"""Canaries: against determinants computed outright, planted copies, and the formula of the similarity."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway import Head, audit
from giveaway.findings import canaries as module
from giveaway.findings.canaries import Candidates, canaries, candidates, choose
from giveaway.records import ScoreTable
from tests.conftest import KINDS, made_head, refused


def greedy_by_determinant(found: Candidates, k: int) -> list[int]:
    """The same choice with every determinant computed by itself."""
    kernel = found.quality[:, None] * found.quality * found.similarity.astype(np.float64)
    chosen: list[int] = []
    for _ in range(k):
        rest = [i for i in range(len(kernel)) if i not in chosen]
        volumes = [np.linalg.det(kernel[np.ix_([*chosen, i], [*chosen, i])]) for i in rest]
        chosen.append(rest[int(np.argmax(volumes))])
    return found.rows[chosen].tolist()


def slow_similarity(head: Head, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The similarity of records, pair by pair, from cosines and targets."""
    spread = values.std(0)
    z = np.column_stack([(values - values.mean(0)) / np.where(spread > 0, spread, 1.0), np.ones(len(values))])
    y = head.targets.numpy()
    if head.loss == "squared":
        t = (y - y.mean(0)) / y.std(0)
    elif head.m == 1 or head.loss == "binary_cross_entropy":
        t = np.column_stack([y, 1.0 - y])
    else:
        t = np.eye(head.m)[y] if y.ndim == 1 else y
    expected = np.empty((len(rows), len(rows)))
    for a, i in enumerate(rows):
        for b, j in enumerate(rows):
            cosine = z[i] @ z[j] / np.linalg.norm(z[i]) / np.linalg.norm(z[j])
            expected[a, b] = np.exp(cosine - 1.0) * np.exp(-0.5 * ((t[i] - t[j]) ** 2).sum())
    return expected


@given(c=st.integers(1, 9), d=st.integers(1, 6), seed=st.integers(0, 10_000), data=st.data())
def test_the_choice_is_the_greedy_one_by_determinants(c, d, seed, data):
    rng = np.random.default_rng(seed)
    k = data.draw(st.integers(1, c))
    x = rng.normal(size=(c, d))
    similarity = np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(2)).astype(np.float32)
    found = Candidates(rng.permutation(100)[:c], np.sort(rng.uniform(0.2, 1.0, c))[::-1], similarity)
    if np.linalg.eigvalsh(similarity)[0] < 1e-4:  # determinants of near copies are rounding
        return
    assert choose(found, k).tolist() == greedy_by_determinant(found, k)


@pytest.mark.parametrize("kind", KINDS)
def test_the_choice_on_heads(kind):
    head = made_head(kind)
    found = candidates(head, audit(head), most=25)
    assert choose(found, 6).tolist() == greedy_by_determinant(found, 6)


def test_copies_are_not_chosen_together():
    """Twenty kinds of outliers, each there five times; ranked so that exposure alone would take copies."""
    rng = np.random.default_rng(0)
    kinds = rng.normal(size=(20, 10))
    x = np.concatenate([6.0 * np.repeat(kinds, 5, axis=0), rng.normal(size=(100, 10))])
    x[:100] += 1e-3 * rng.normal(size=(100, 10))
    y = np.r_[np.repeat(np.arange(20) % 3, 5), rng.integers(0, 3, 100)]
    head = Head(x, np.zeros((200, 3)), y, "cross_entropy")
    table = ScoreTable({"newton": np.r_[np.arange(100)[::-1] + 100.0, rng.random(100)]}, np.arange(200))
    chosen = canaries(head, table, 20)
    outliers = chosen[chosen < 100] // 5
    assert len(np.unique(outliers)) == len(outliers) >= 10
    assert len(np.unique(table.order()[:20] // 5)) == 4


def test_exact_copies_come_last_and_by_exposure():
    x = np.array([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 3.0], [-3.0, 1.0], [-3.0, 1.0]])
    head = Head(x, np.zeros(6), np.repeat([0.0, 1.0, 2.0], 2), "squared")
    table = ScoreTable({"newton": np.arange(6.0)[::-1]}, np.arange(6))
    chosen = canaries(head, table, 6)
    assert sorted((chosen[:3] // 2).tolist()) == [0, 1, 2]
    assert chosen[3:].tolist() == [1, 3, 5]
    assert chosen[0] == 0


def test_a_copy_with_another_label_is_another_record():
    x = np.random.default_rng(0).normal(size=(40, 5))
    x[1] = x[2] = x[0]
    y = np.arange(40) % 2
    y[:3] = 0, 0, 1
    head = Head(x, np.zeros((40, 2)), y, "cross_entropy")
    found = candidates(head, ScoreTable({"newton": np.arange(40.0)[::-1]}, np.arange(40)), most=3)
    assert found.similarity[0, 1] == 1.0
    assert found.similarity[0, 2] == pytest.approx(np.exp(-1.0))
    assert choose(found, 2).tolist() == [0, 2]


@pytest.mark.parametrize("black_box", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_similarity_pair_by_pair(kind, black_box, monkeypatch):
    monkeypatch.setattr(module, "ROWS_PER_CHECK", 7)
    head = made_head(kind)
    if black_box:
        head = replace(head, features=None)
    else:
        moved = head.features.numpy() * 3.0 + 50.0
        moved[:, 1] = 0.1  # constant up to rounding: it has no say
        head = replace(head, features=moved)
    table = audit(head)
    found = candidates(head, table, most=30)
    np.testing.assert_array_equal(found.rows, table.order()[:30])
    values = head.outputs.numpy() if black_box else np.where(np.arange(4) == 1, 0.0, head.features.numpy())
    np.testing.assert_allclose(found.similarity, slow_similarity(head, found.rows, values), rtol=1e-5, atol=1e-7)
    assert found.similarity.dtype == np.float32
    assert (np.diag(found.similarity) == 1.0).all()
    assert np.linalg.eigvalsh(found.similarity.astype(float))[0] > -1e-5
    np.testing.assert_allclose(found.quality, 1.0 - np.arange(30) / 30)


def test_people_count_with_the_mean_of_their_records():
    groups = np.random.default_rng(3).integers(0, 15, 60)
    head = made_head("classes", groups=groups)
    found = candidates(head, audit(head))
    x, y = head.features.numpy(), np.eye(5)[head.targets.numpy()]
    z = (x - x.mean(0)) / x.std(0)
    people = np.unique(groups)[found.rows]
    z = np.array([np.r_[z[groups == person].mean(0), 1.0] for person in people])
    t = np.array([y[groups == person].mean(0) for person in people])
    u = z / np.linalg.norm(z, axis=1, keepdims=True)
    expected = np.exp(u @ u.T - 1.0 - 0.5 * ((t[:, None] - t[None]) ** 2).sum(2))
    np.testing.assert_allclose(found.similarity, expected, rtol=1e-5)
    assert len(canaries(head, audit(head), 5)) == 5


def test_what_is_refused():
    head = made_head("classes")
    table = audit(head)
    for scored, k, words in (
        (table, 61, "k: expected at most 60, the number of candidates, got 61; ask for fewer"),
        (table, 0, "k: expected a finite number of at least 1, got 0; ask for at least one"),
        (table.top(4), 2, "table: expected 60 rows, as the head has, got 4"),
    ):
        refused(words, canaries, head, scored, k)
