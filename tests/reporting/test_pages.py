"""The page to share: the same headline, and nothing that leads to one record or to a few."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from giveaway import Head, audit
from giveaway.records import ScoreTable
from giveaway.records.meta import Provenance
from giveaway.reporting.answers import headline
from giveaway.reporting.pages import index_page, summary, summary_pages
from tests.conftest import made_arrays, made_head, refused
from tests.reporting.test_answers import QUESTIONS, measured
from tests.reporting.test_report import NEVER_SAID, Page

MARK = "MARKER"


def marked() -> ScoreTable:
    """A table with a marker in every place that is about a record."""
    ids = np.array([f"{MARK}-{i}" for i in range(60)])
    head = made_head("classes", l2=0.5, ids=ids)
    table = audit(replace(head, inputs=[f"{MARK} text {i % 7}" for i in range(60)]))
    assert MARK in " ".join(table["nearest"].tolist())
    attributes = {**table.attributes, "subgroup_town": np.array([f"{MARK} town"] * 4 + ["city"] * 56)}
    origin = {"config": {"features": f"/home/{MARK}/f.npz"}, "inputs_sha256": "0" * 64, "versions": {"giveaway": "1"}}
    return ScoreTable(table.scores, ids, {**table.meta.to_json(), "provenance": origin}, attributes)


def test_no_record_and_no_small_group_is_in_it():
    pages = summary_pages(marked())
    assert set(pages) == {"summary.json", "summary.html"}
    for name, page in pages.items():
        assert MARK not in page, name
    found = json.loads(pages["summary.json"])
    assert found["schema"] == "giveaway.summary/1"
    assert "nearest" not in pages["summary.json"]
    assert found["spread_over"] == []  # three of sixty are the top 5 %: too few to tell of


def test_small_groups_are_put_together():
    table = ScoreTable(
        {"newton": np.arange(400.0)}, np.arange(400), {}, {"subgroup_town": np.array([MARK] * 4 + ["city"] * 396)}
    )
    (spread,) = summary(table)["spread_over"]
    assert [(group["name"] == "others together", group["rows"]) for group in spread["groups"]] == [(True, 400)]
    assert MARK not in summary_pages(table)["summary.html"]


def test_withheld_is_called_withheld_and_few_rows_have_no_number():
    table = ScoreTable({"newton": np.arange(400.0)}, np.arange(400), {}, {"subgroup_town": np.repeat(["a", "b"], 200)})
    text = summary_pages(table)["summary.html"]
    assert ">withheld</td>" in text
    assert ">fewer than 10</td>" not in text
    few = ScoreTable({"newton": np.arange(4.0)}, np.arange(4), {"unit": "person"})
    page = summary_pages(few)["summary.html"]
    assert "<title>giveaway: summary of an audit of fewer than 10 people</title>" in page
    assert "about 10" not in page
    assert summary(few)["rows"] is summary(few)["records"] is None


def test_it_says_what_the_report_says():
    table = marked()
    origin = Provenance(date="2026-11-16")
    table = replace(table, meta=replace(table.meta, access="labels", provenance=origin))
    found = summary(table)
    assert found["statement"] == headline(table, None, "labels", shared=True)
    assert found["date"] == "2026-11-16"
    assert found["access"] == "labels"
    assert found["measured"] is False
    assert "validation" not in found
    text = Page(summary_pages(table)["summary.html"]).text
    for words in ("has the model's predicted label for it.", found["found_on_benchmarks"], *found["notes"], *QUESTIONS):
        assert words in text
    assert re.search(NEVER_SAID, text, flags=re.IGNORECASE) is None


def test_after_a_validation_the_count_is_there():
    found = measured()
    agreement = {
        "newton": {"top 0.01 in 0.05": [0.5, 0.4, 0.6], "spearman": [0.7, 0.6, 0.8], "worth_in_shadow_models": None}
    }
    found.stated.update(agreement=agreement, worth_tried_up_to=32)
    table = audit(made_head("classes"))
    told = summary(table, measured=found)
    assert told["validation"]["at_least_exposed"]["records"] == 30
    assert told["statement"].startswith("At least 30 of about 60 records are exposed")
    text = Page(summary_pages(table, measured=found)["summary.html"]).text
    assert "0.50 (0.40 to 0.60)" in text
    assert "of the top 1 %, found in 5 %" in text
    assert "more than 32 (the most that could be tried)" in text


@pytest.mark.parametrize("kind", ["squared", "multi_label", "soft_labels", "one_logit"])
def test_every_kind_of_head_has_a_summary(kind):
    head = Head(**made_arrays(kind), groups=np.arange(60) // 2)
    pages = summary_pages(audit(head))
    assert "trained on about 60 records of about 30 people" in Page(pages["summary.html"]).text
    json.loads(pages["summary.json"])


def test_many_audits_on_one_page(tmp_path):
    for name, table in (("first", marked()), ("<b>second<b>", audit(made_head("squared")))):
        (tmp_path / name).mkdir()
        for file, page in summary_pages(table).items():
            (tmp_path / name / file).write_text(page)
    (tmp_path / "first" / "gate.json").write_text('{"met": false}')
    text = index_page([tmp_path / "first", tmp_path / "<b>second<b>"])
    assert MARK not in text
    page = Page(text)
    assert "<b>second<b>" in page.text
    assert page.text.count("Ranking only:") == 2
    assert page.text.count("not measured") == 2
    assert "not met" in page.text
    assert "script" not in page.tags


def test_what_is_no_summary(tmp_path):
    refused("folders: expected at least one audit folder, got none", index_page, [])
    refused(r"expected audit folders with summary.json, got .*; run giveaway report", index_page, [tmp_path])
    (tmp_path / "summary.json").write_text('{"schema": "giveaway.summary/9"}')
    refused(r"expected summaries of the schema giveaway.summary/1, got .*, another", index_page, [tmp_path])
    (tmp_path / "summary.json").write_text("[")
    refused("expected a readable summary.json", index_page, [tmp_path])
