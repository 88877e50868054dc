"""`ga.report` writes the folder that the command line writes."""

import json

import numpy as np
import pytest

import giveaway as ga
from giveaway import audit
from giveaway.auditing.store import AuditFolder, purge
from giveaway.records import ScoreTable
from giveaway.reporting.folder import main_table, rebuild
from tests.conftest import made_head, refused

FILES = {"audit.json", "scores.csv", "scores.npz", "scores-digests.npz", "look.npz"}
FILES |= {"report.html", "summary.html", "summary.json"}


@pytest.fixture(scope="module")
def head():
    return made_head("classes", l2=0.5, inputs=[f"note {i}" for i in range(60)])


def test_one_call_writes_what_the_page_speaks_of(tmp_path, head):
    folder, wards = tmp_path / "audit", np.array(["north", "south"])[np.arange(60) % 2]
    ga.report(audit(head), folder, head=head, title="Ward round", subgroups={"ward": wards}, show_records=True)
    assert {file.name for file in folder.iterdir()} == FILES
    page, summary = ((folder / name).read_text() for name in ("report.html", "summary.html"))
    assert "share summary.html instead" in page
    assert all("Ward round" in text for text in (page, summary))
    assert all(words in page for words in ("By ward", "north", "note 7"))
    assert "note 7" not in summary
    assert json.loads((folder / "summary.json").read_text())["title"] == "Ward round"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with AuditFolder(folder).locked() as place:
        rebuild(place)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert main_table(folder).meta.title == "Ward round"
    assert purge(folder) == (len(FILES), [])


def test_a_page_alone_names_no_summary_that_is_not_there(tmp_path, head):
    ga.report(audit(head), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "summary.html" not in text
    assert "only a whole audit folder has a page to share" in text
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_people_have_the_subgroup_of_their_records(tmp_path):
    people = made_head("classes", groups=np.arange(60) // 3)
    wards = np.array(["north", "south"])[np.arange(60) // 30]
    ga.report(audit(people), tmp_path / "audit", head=people, subgroups={"ward": wards})
    assert main_table(tmp_path / "audit")["subgroup_ward"].tolist() == ["north"] * 10 + ["south"] * 10


def test_another_audit_is_written_over_only_on_request(tmp_path, head):
    table, folder = audit(head), tmp_path / "audit"
    other = ScoreTable({"newton": np.arange(60.0)}, np.arange(60))
    table.save(folder)
    ga.report(table, folder)
    ga.report(table, folder)
    words = r"out: expected an audit of the same inputs and options, got .*; choose another folder, or write over it"
    refused(words, ga.report, other, folder)
    assert "fused" in main_table(folder).columns
    ga.report(other, folder, overwrite=True)
    assert main_table(folder).columns == ("newton",)
