"""Audits whose columns are files: the numbers of an audit in memory, the exact top, a sample, and flat memory."""

import json
import os

import numpy as np
import pytest

import giveaway as ga
from giveaway.auditing import columns as module
from giveaway.auditing.columns import ColumnsFolder, audit_in_columns
from giveaway.auditing.store import purge
from giveaway.records import ScoreTable
from tests.conftest import made_head, refused

NAMES = ["newton", "loss", "leverage", "influence"]
OF_THEORY = ["newton", "predicted_success"]


@pytest.mark.parametrize("kind", ["squared", "classes"])
def test_columns_are_those_of_an_audit_in_memory(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(module, "RANKED_AT_ONCE", 7)
    head = made_head(kind, n=60, l2=0.5)
    table = ga.audit(head, scores=NAMES)
    top, sample = audit_in_columns(head, tmp_path / "large", NAMES, top=10, sample=25)
    for name in NAMES:
        column = np.load(tmp_path / "large" / f"{name}.npy", mmap_mode="r")
        np.testing.assert_allclose(column, table[name], rtol=1e-12)
        np.testing.assert_array_equal(top[name], column[top.ids])
        np.testing.assert_array_equal(sample[name], column[sample.ids])
    np.testing.assert_array_equal(top.ids, table.order("newton")[:10])
    assert len(np.unique(sample.ids)) == 25
    assert (top.meta.records, top.meta.rows) == (60, 10)
    assert sample.meta.no_view == "No fused score: these 25 rows are drawn at random from 60 records."
    stored = ScoreTable.load(tmp_path / "large", "top")
    np.testing.assert_array_equal(stored.ids, top.ids)
    stated = json.loads((tmp_path / "large" / "columns.json").read_text())
    assert (stated["records"], stated["ranked_by"]) == (60, "newton")
    assert {oct(file.stat().st_mode & 0o777) for file in (tmp_path / "large").iterdir()} == {"0o600"}
    assert purge(tmp_path / "large")[1] == []
    assert not (tmp_path / "large").exists()


def test_another_audit_in_the_same_folder_leaves_no_column_of_the_first(tmp_path):
    audit_in_columns(made_head("classes", n=60, l2=0.5), tmp_path / "large", NAMES)
    audit_in_columns(made_head("classes", n=50, l2=0.5), tmp_path / "large", ["loss"])
    assert sorted(file.name for file in (tmp_path / "large").glob("*.npy")) == ["loss.npy"]
    assert purge(tmp_path / "large")[1] == []


def test_ties_stay_in_row_order(monkeypatch):
    monkeypatch.setattr(module, "RANKED_AT_ONCE", 4)
    column = np.array([1.0, 3, 3, 0, 3, 2, 5, 3, 2, 5])
    np.testing.assert_array_equal(module._top(column, 6), [6, 9, 1, 2, 4, 7])
    refused("scores: expected finite scores, got NaN or infinity", module._top, np.array([1.0, np.nan]), 2)


def test_what_is_refused_and_what_a_report_takes(tmp_path):
    head = made_head("classes", n=60, l2=0.5)
    refused(
        "scores: expected scores of the head, of records, got predicted_", audit_in_columns, head, tmp_path, OF_THEORY
    )
    sketch = {"curvature": ga.Sketch(probes=32)}
    refused("curvature: expected an exact one, got a sketch", audit_in_columns, head, tmp_path, ["newton"], **sketch)
    _, sample = audit_in_columns(head, tmp_path / "large", NAMES, sample=40)
    ga.report(sample, tmp_path / "report")
    assert "drawn at random from 60 records" in (tmp_path / "report" / "report.html").read_text()


def test_an_audit_that_is_stopped_leaves_nothing(tmp_path, monkeypatch):
    def stopped(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_top", stopped)
    with pytest.raises(KeyboardInterrupt):
        audit_in_columns(made_head("classes", n=60, l2=0.5), tmp_path / "large", NAMES)
    assert not os.path.exists(tmp_path / "large")
    assert not ColumnsFolder(tmp_path / "large").marked
