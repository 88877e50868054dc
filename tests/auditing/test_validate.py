"""An audit against an attack: numbers, words and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from giveaway import ScoreTable, Signals
from giveaway.auditing.validate import validate
from giveaway.evaluation import effect_sizes, recall_at


def simulated(records: int = 1000, models: int = 64, seed: int = 0) -> tuple[ScoreTable, Signals]:
    """Records of growing exposure, a score that sees it through noise, and one that is only noise."""
    rng = np.random.default_rng(seed)
    exposure = rng.gamma(1.0, size=records)
    members = np.stack([rng.permutation(np.arange(models) < models // 2) for _ in range(records)], axis=1)
    signals = Signals(rng.normal(size=members.shape) + members * exposure, members, "phi")
    scores = {"newton": exposure + 0.3 * rng.normal(size=records), "loss": rng.normal(size=records)}
    return ScoreTable(scores, ids=np.arange(records), meta={"seconds": 0.5}), signals


def test_scores_are_compared_with_the_effect_size():
    table, signals = simulated()
    found = validate(table, signals)
    truth = effect_sizes(signals).effect_size
    for row in found.table.rows:
        assert row.recall[0.01, 0.05].value == recall_at(table[row.score], truth, 0.01, 0.05)
    assert found.worth["newton"] > 8 > 2 >= found.worth["loss"]
    assert found.attack.nonmembers == (~signals.members).sum()
    assert (found.audit_seconds, found.models, found.ranked_by) == (0.5, 64, "newton")


def test_rows_name_the_signals_record_of_each_row():
    table, signals = simulated()
    order = np.random.default_rng(1).permutation(signals.records)
    shuffled = signals.of_records(np.argsort(order))  # record i of the table stands at order[i]
    direct, mapped = validate(table, signals), validate(table, shuffled, rows=order)
    assert mapped.table.to_csv() == direct.table.to_csv()
    np.testing.assert_array_equal(mapped.success, direct.success)


def test_words_and_json():
    table, signals = simulated()
    found = validate(table, signals)
    recall = found.table.rows[0].recall[0.01, 0.05]
    sentence = found.conclusion()
    assert sentence.startswith(f"The 5% of records that newton ranks highest hold {recall.value:.0%} (")
    assert f"at least {found.count.at_least} of 1000 records" in sentence
    assert "safe" not in sentence
    stored = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert stored["agreement"]["newton"]["top 0.01 in 0.05"][0] == pytest.approx(recall.value, abs=1e-6)
    assert stored["at_least_exposed"]["records"] == found.count.at_least
    assert stored["seconds"]["audit"] == 0.5
    page = found.to_markdown()
    assert page.startswith(sentence)
    assert "| loss | fewer than 2 |" in page


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.arange(5), "rows: expected 1000 different row numbers of the signals, 0 to 999"),
        (np.zeros(1000, int), "rows: expected 1000 different row numbers"),
        (np.arange(1000) + 1, "rows: expected 1000 different row numbers"),
        (np.arange(1000.0), "rows: expected 1000 different row numbers"),
    ],
)
def test_rows_that_cannot_be_used(rows, words):
    with pytest.raises(ValueError, match=words):
        validate(*simulated(), rows=rows)


def test_signals_that_cannot_be_used():
    table, signals = simulated()
    with pytest.raises(ValueError, match="signals: expected signals on the table's 1000 records, got 999 records"):
        validate(table, signals.of_records(slice(0, 999)))
    with pytest.raises(ValueError, match="signals: expected at least 8 models, got 6; train more shadow models"):
        validate(table, signals.of_models(slice(0, 6)))
    with pytest.raises(ValueError, match="table: expected at least 100 records, got 60; validate a larger audit"):
        validate(*simulated(records=60))
