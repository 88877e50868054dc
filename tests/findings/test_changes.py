"""Two audits side by side, against counts by hand and against noise that is known."""

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, spearmanr

from giveaway.findings.changes import FALSE_DISCOVERY, _moderated, changes, percentiles
from giveaway.records import ScoreTable
from tests.conftest import refused


def table(scores, ids=None, *, name="newton", **meta) -> ScoreTable:
    values = np.asarray(scores, dtype=float)
    return ScoreTable({name: values}, np.arange(len(values)) if ids is None else ids, meta=meta)


def drawn(rng, true, spread=0.1) -> ScoreTable:
    """A model's scores: the truth with its own noise."""
    return table(true + spread * rng.normal(size=len(true)))


def test_rows_are_matched_by_id_whatever_their_order():
    before = table([1.0, 2.0, 3.0, 4.0], ["a", "b", "c", "gone"])
    after = table([9.0, 3.0, 2.0, 1.0], ["new", "a", "c", "b"])
    found = changes(before, after)
    assert found.table.ids.tolist() == ["a", "c", "b"]
    assert found.table["row_before"].tolist() == [0, 2, 1]
    assert found.table["row_after"].tolist() == [1, 2, 3]
    assert found.table["percentile_before"].tolist() == [0.125, 0.625, 0.375]
    assert found.table["percentile_after"].tolist() == [0.625, 0.375, 0.125]
    assert found.table["rise"].tolist() == [0.5, -0.25, -0.25]
    assert found.to_json()["rows"] == {"before": 4, "after": 4, "in_both": 3, "only_before": 1, "only_after": 1}
    assert found.spearman == pytest.approx(spearmanr([1, 3, 2], [3, 2, 1]).statistic)
    assert found.rose_most(5).tolist() == [0]  # who did not rise is not named


def test_the_top_in_common_counted_by_hand():
    rng = np.random.default_rng(0)
    a, b = rng.permutation(400), rng.permutation(400)
    found = changes(table(a), table(b))
    for share, count in ((0.01, 4), (0.05, 20)):
        shared = set(np.argsort(-a)[:count]) & set(np.argsort(-b)[:count])
        assert found.in_common[share] == pytest.approx(len(shared) / count)
    assert changes(table(a[:20]), table(b[:20])).in_common[0.01] is None  # 1 % of 20 is no row


@given(st.lists(st.integers(0, 5), min_size=2, max_size=30))
def test_percentiles_are_the_rows_below_and_half_of_the_ties(values):
    naive = [(sum(w < v for w in values) + sum(w == v for w in values) / 2) / len(values) for v in values]
    assert percentiles(table(values)) == pytest.approx(naive)


def test_only_a_rise_beyond_the_retrains_is_called_one():
    rng = np.random.default_rng(1)
    true = rng.normal(size=500)
    models = [drawn(rng, true) for _ in range(8)]
    moved = true.copy()
    low = np.argsort(true)[:5]
    moved[low] += 10.0
    found = changes(models[0], drawn(rng, moved), retrains=models)
    assert np.flatnonzero(found.beyond).tolist() == sorted(low.tolist())
    assert set(found.rose_most(5).tolist()) == set(low.tolist())
    assert not changes(models[0], drawn(rng, true), retrains=models).beyond.any()
    moved[low] -= 20.0  # a fall is not a rise
    assert not changes(models[0], drawn(rng, moved), retrains=models).beyond.any()


def test_variances_are_drawn_toward_what_the_rows_have_in_common():
    """Variances drawn from the prior: its parameters are found, and the estimates are nearer to the truth."""
    rng = np.random.default_rng(2)
    prior, middle, freedom = 6.0, 4.0, 3
    true = prior * middle / rng.chisquare(prior, size=20_000)
    seen = true * rng.chisquare(freedom, size=true.size) / freedom
    found, total = _moderated(seen, freedom)
    assert total == pytest.approx(prior + freedom, rel=0.1)
    assert found == pytest.approx((prior * middle + freedom * seen) / (prior + freedom), rel=0.1)
    assert np.square(found - true).mean() < 0.5 * np.square(seen - true).mean()
    shared, total = _moderated(4.0 * rng.chisquare(freedom, size=20_000) / freedom, freedom)  # rows of equal noise
    assert shared == pytest.approx(4.0, rel=0.1)
    assert total > 100


def test_the_bound_is_a_prediction_bound():
    """Of rows with equal noise the one that rises is flagged from the z-value on that the procedure asks of it."""
    rng = np.random.default_rng(2)
    n, k, spread = 2_000, 5, 0.05
    place = norm.ppf((np.arange(n) + 0.5) / n)
    models = [drawn(rng, place, spread) for _ in range(k)]
    asked = norm.isf(FALSE_DISCOVERY / n) * spread * np.sqrt(1 + 1 / k)  # 0.22
    for rise, flagged in ((0.6 * asked, False), (1.5 * asked, True)):
        moved = place.copy()
        moved[n // 2] += rise
        found = changes(models[0], table(moved), retrains=models)
        assert np.flatnonzero(found.beyond).tolist() == ([n // 2] if flagged else [])


@pytest.mark.parametrize("k", [3, 6])
def test_unchanged_recipes_are_rarely_flagged_and_real_rises_found(k):
    rng = np.random.default_rng(3)
    true = rng.standard_t(3, size=300)
    wrong, found = [], []
    for _ in range(25):
        models = [drawn(rng, true, 0.3) for _ in range(k)]
        moved = true.copy()
        risen = rng.choice(300, 10, replace=False)
        moved[risen] += 3.0
        beyond = changes(models[0], drawn(rng, moved, 0.3), retrains=models).beyond
        found.append(beyond[risen].mean())
        wrong.append(np.delete(beyond, risen).sum() / max(1, beyond.sum()))
    assert np.mean(wrong) <= FALSE_DISCOVERY
    assert np.mean(found) >= 0.7


def test_rows_that_a_retrain_lacks_are_not_judged():
    ids = np.array(["a", "b", "c", "d"])
    same = table([1.0, 2.0, 3.0, 4.0], ids)
    after = table([9.0, 2.0, 3.0, 4.0], ids)
    assert changes(same, after, retrains=[same] * 3).beyond.tolist() == [True, False, False, False]
    assert not changes(same, after, retrains=[same, same, table([2.0, 3.0, 4.0], ids[1:])]).beyond[0]
    assert not changes(same, after, retrains=[table([1.0, 2.0], ["x", "y"])] * 3).beyond.any()


def test_what_is_told_names_rows_and_no_ids():
    rng = np.random.default_rng(4)
    ids = np.array([f"patient-{i}" for i in range(200)])
    true = rng.normal(size=200)
    tables = [table(true + rng.normal(size=200), ids) for _ in range(5)]
    for retrains in ((), tables[2:]):
        found = changes(tables[0], tables[1], retrains=retrains)
        told = json.dumps(found.to_json()) + found.to_markdown()
        assert "patient" not in told
        assert "ranks, not amounts" in told
        assert "about a third of their top 1 %" in told
        assert ("cannot tell noise from change" in told) == (not retrains)
    assert f"{int(found.beyond.sum())} rows rose beyond the noise of 3 retrains" in told
    assert len(found.to_json(3)["rose_most"]) == 3


def test_the_restricted_table_has_ids_that_start_no_formula(tmp_path):
    ids = ["=1+1", "b", "c"]
    changes(table([1.0, 2.0, 3.0], ids), table([3.0, 2.0, 1.0], ids)).table.to_csv(tmp_path / "changes.csv")
    rows = list(csv.DictReader((tmp_path / "changes.csv").open(encoding="utf-8")))
    assert [row["id"] for row in rows] == ["'=1+1", "b", "c"]
    assert [float(row["rise"]) for row in rows] == pytest.approx([2 / 3, 0, -2 / 3])
    assert "beyond_noise" not in rows[0]


def test_audits_that_cannot_be_compared():
    one, two = table([1.0, 2.0, 3.0]), [1.0, 2.0]
    for before, after, retrains, words in (
        (one, table([1, 2, 3], name="fused"), (), "^after: expected records ranked by newton .* records ranked by fu"),
        (one, table([1, 2, 3], unit="person"), (), "^after: .* got persons ranked by newton; audit both alike"),
        (one, table(two), (), "row numbers for ids, 3 and 2 of them; give the records ids and audit again"),
        (table(two, ["a", "b"]), table(two, ["c", "d"]), (), "^after: expected an audit of the same records, got 0 id"),
        (one, one, [one, one], "^retrains: expected none, or at least 3, got 2; train the earlier recipe"),
    ):
        refused(words, changes, before, after, retrains=retrains)
