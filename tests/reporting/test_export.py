"""What leaves for model cards, committees and MLflow: what may be shared, with measured and predicted kept apart."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from markdown import markdown

from giveaway import audit, report
from giveaway.auditing.store import provenance
from giveaway.findings.gate import read_rules
from giveaway.records import ScoreTable
from giveaway.reporting import export
from giveaway.reporting.export import json_record, metrics, model_card, record, to_mlflow
from giveaway.text import shown_text
from tests.conftest import made_head, refused
from tests.every_command import PATH
from tests.test_hostile import HALVES, HOSTILE, N, Shape
from tests.test_words_never_said import counted, keys_of, never_said

PREDICTED = 'schema = 1\n[[rule]]\nname = "few"\nmeasure = "predicted_success"\nabove = 0.5\nat_most_share = {}\n'

MARKDOWN = ["see https://example.org, www.example.org, a@b.org", "- an item", "7. an item", "    code", "---", "==="]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An audit of which nothing was measured."""
    head = made_head("classes", n=N, ids=np.array([f"patient-{i:03d}" for i in range(N)]))
    origin = replace(provenance("a" * 64, {}), weights_sha256="b" * 64)
    made = audit(head, scores=["default", "predicted_success"])
    path = tmp_path_factory.mktemp("export") / "audit"
    meta = replace(made.meta, provenance=origin, predicted_by="both views")
    report(replace(made, meta=meta), path, head=head, title="the ward's model")
    return path


def test_a_ranking_stays_a_ranking(folder):
    told = record(folder, by="Ada")
    assert told["schema"] == "giveaway.record/1"
    assert told["by"] == "Ada"
    assert told["measured"]["attack"] is None
    assert told["risk_appetite"] is None
    assert told["audit"]["unit"] == "record"
    assert told["predicted"]["mean_success"] == round(float(ScoreTable.load(folder)["predicted_success"].mean()), 2)
    card = model_card(told)
    for text in (card, json_record(told)):
        assert "no number of exposed records is stated" in text
        assert "A low rank is not evidence of safety" in text
        assert "patient-" not in text
        assert counted(text) + never_said(text) == []
    headings = ["Measured", "Predicted, not measured", "Assumed"]
    assert [line[4:] for line in card.splitlines() if line.startswith("### ")][:3] == headings
    assert "Audit of about 100 records (the ward's model) on" in card
    assert set(metrics(told)) == {"giveaway.rows", "giveaway.records", "giveaway.predicted.mean_success"}
    told["predicted"]["success_by"] = "theory of the head"  # far too low for networks
    assert set(metrics(told)) == {"giveaway.rows", "giveaway.records"}


def test_digests_that_confirm_a_guess_stay_in_the_folder(folder, tmp_path):
    told = json_record(record(folder))
    assert "a" * 64 not in told
    assert "b" * 64 not in told
    table = ScoreTable.load(folder)
    report(replace(table, meta=replace(table.meta, access="weights")), tmp_path / "open")
    public = json_record(record(tmp_path / "open"))
    assert "a" * 64 not in public
    assert json.loads(public)["provenance"]["weights_sha256"] == "b" * 64  # whoever has the weights can hash them


@pytest.mark.parametrize(("share", "state"), [(1.0, "met"), (0.0, "not met")])
def test_rules_are_told_as_the_gate_judges_them(folder, tmp_path, share, state):
    (tmp_path / "RULE.toml").write_text(PREDICTED.format(share))
    told = record(folder, rules=read_rules(tmp_path / "RULE.toml"))
    judged = told["risk_appetite"]
    assert judged["state"] == judged["rules"][0]["state"] == state
    assert judged["rules"][0]["allowed"] == {"above": 0.5, "at_most_share": share}
    assert f"- {state}: few\n" in model_card(told)
    assert metrics(told)[f"giveaway.rules.{state.replace(' ', '_')}"] == 1


def test_a_measured_audit_states_a_lower_bound(world):
    told = json.loads((world.folder / "record.json").read_text(encoding="utf-8"))
    stated = json.loads((world.folder / "records" / "validation.json").read_text(encoding="utf-8"))
    attack, exposed = told["measured"]["attack"], stated["at_least_exposed"]["records"]
    assert exposed >= 10
    assert exposed - 10 < attack["at_least_exposed"]["records"] <= exposed
    assert attack["at_least_exposed"]["records"] % 10 == 0
    assert attack["lira"]["auc"] == [round(value, 2) for value in stated["lira"]["auc"]]
    assert not {"flagged", "judged", "by_success", "nonmembers"} & keys_of(attack)  # exact, or rounded up from none
    numbers = metrics(told)
    assert numbers["giveaway.measured.lira.auc"] == attack["lira"]["auc"][0]
    assert numbers["giveaway.measured.lira.auc.low"] == attack["lira"]["auc"][1]
    assert numbers["giveaway.rules.waived"] == 1
    assert told["risk_appetite"]["rules"][0]["waiver"]["owner"] == "Ada"
    assert told["risk_appetite"]["rules"][0]["allowed"] == {"at_most": 0, "least_power": 0.0}
    card = (world.folder / "card.md").read_text(encoding="utf-8")
    assert "A low rank is not evidence of safety" in card
    assert "- not met: few exposed\n" in card
    people = json.loads((world.folder / "people.json").read_text(encoding="utf-8"))
    assert people["audit"]["unit"] == "person"
    assert "about 50 people" in (world.folder / "people.md").read_text(encoding="utf-8")


def test_rules_that_judged_an_audit_must_be_named(world):
    refused("gate: expected the rules that this audit was judged by, got none", record, world.folder / "records")
    (screen,) = [run for run in world.runs["records"] if run.arguments[:2] == ("export", "later")]
    assert screen.out.startswith("## Which training records")
    assert PATH not in screen.out


def card_of(folder, text: str) -> str:
    """A card with this text wherever others may write one."""
    told = record(folder, by=text)
    group = {"name": text, "rows": 20, "among_the_most_exposed": None}
    waiver = {"owner": text, "expires": "9999-01-01", "reason": text, "expired": False}
    rule = {"name": text, "state": "waived", "waiver": waiver}
    told["audit"]["title"] = text
    told["predicted"]["spread_over"] = [{"kind": text, "most_exposed": 20, "groups": [group]}]
    told["risk_appetite"] = {"state": "waived", "date": "2026-01-01", "note": "", "rules": [rule]}
    return model_card(told)


@pytest.mark.parametrize("text", [*HOSTILE, *HALVES, *MARKDOWN])
def test_every_text_stays_text_in_the_card(folder, text):
    hostile = card_of(folder, text)
    bare, plain = (
        re.sub(r"\\.|&#\d+;", "", card) for card in (hostile, card_of(folder, "name"))
    )  # less what is escaped
    assert {*Shape(markdown(hostile, extensions=["tables"])).tags} == {
        *Shape(markdown(plain, extensions=["tables"])).tags
    }
    starts = [[line[:2] for line in card.splitlines()] for card in (hostile, plain)]
    assert starts[0] == starts[1]
    for mark in "`*_[]<>#|~$&@!":
        assert bare.count(mark) == plain.count(mark), mark
    assert "://" not in bare
    assert "www." not in bare
    hostile.encode("utf-8")
    read = re.sub(r"\\([\\`*_{}\[\]#!])", r"\1", unescape(hostile))
    assert shown_text(text, 80).removesuffix("…") in read


def test_what_cannot_be_exported_is_refused_in_a_line(folder, giveaway, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    refused("to: expected mlflow installed for 'mlflow', got none; pip install mlflow", to_mlflow, folder)
    for more, words in (
        (("--to", "mlflow", "--out", "x"), "out: expected no file for mlflow"),
        (("--to", "json", "--out", folder / "record.json"), "out: expected a file outside of the audit folder"),
    ):
        code, out, err = giveaway("export", folder, *more)
        assert (code, out) == (2, "")
        assert words in err


LOGGED = """
import sys, mlflow
from giveaway.reporting.export import to_mlflow
with mlflow.start_run() as run:
    logged, numbers = to_mlflow(sys.argv[1])
    assert logged == run.info.run_id
found = mlflow.MlflowClient().get_run(logged)
assert found.data.metrics == numbers
assert found.data.tags["giveaway.statement"].startswith("Ranking only")
names = {item.path for item in mlflow.MlflowClient().list_artifacts(logged, "giveaway")}
assert names == {f"giveaway/{name}" for name in ("summary.html", "summary.json", "record.json", "model_card.md")}
again, _ = to_mlflow(sys.argv[1])
assert again != logged and mlflow.active_run() is None

import os
from giveaway.cli import main
sys.argv = ["giveaway", "export", sys.argv[1], "--to", "mlflow"]
os.environ["MLFLOW_RUN_ID"] = again
try:
    main()
except SystemExit as end:
    assert not end.code
print(again)
os.environ["MLFLOW_RUN_ID"] = "0" * 32
main()
"""


@pytest.mark.slow
def test_mlflow_is_really_logged_to(folder, tmp_path):
    installed = tmp_path / "installed"
    # --no-compile: few of its files are imported
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(installed)]
    if subprocess.run([*pip, "mlflow-skinny"], capture_output=True).returncode:
        pytest.skip("no package index here")
    settings = {
        "PYTHONPATH": os.pathsep.join(
            [str(export.__file__).removesuffix("/giveaway/reporting/export.py"), str(installed)]
        ),
        "MLFLOW_TRACKING_URI": (tmp_path / "runs").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    done = subprocess.run(
        [sys.executable, "-c", LOGGED, str(folder)],
        env=os.environ | settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr  # of the last command
    *_, said, earlier = done.stdout.splitlines()
    assert said == f"Logged 3 metrics and the pages to share to the run {earlier}"
    assert "expected a run that MLflow can write" in done.stderr
    assert "patient-" not in "".join(path.read_text() for path in (tmp_path / "runs").rglob("*") if path.is_file())
