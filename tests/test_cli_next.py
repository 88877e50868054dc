"""canaries, weights, compare and gate as a user meets them: what they print, their exit codes, what lies on disk."""

import csv
import datetime
import functools
import json
import re
import stat
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from giveaway import audit
from giveaway.auditing.store import AuditFolder, purge
from giveaway.checks import InputError
from giveaway.cli.audit_folder import tell
from giveaway.cli.follow_up_commands import canaries, compare, gate, weights
from giveaway.findings.canaries import choose
from giveaway.findings.changes import changes
from giveaway.findings.extras import FILE as LOOK
from giveaway.findings.extras import make_extras
from giveaway.findings.gate import read_rules
from giveaway.findings.mitigation import NOTE
from giveaway.findings.mitigation import weights as weights_of
from giveaway.records import ScoreTable
from tests.conftest import made_head, save_page

SECRET = "patient"
N = 60
RULE = 'schema = 1\n[[rule]]\nname = "few exposed"\nmeasure = "measured_count"\nat_most = 5\n'


@click.group()
def cli() -> None:
    pass


for command in (canaries, weights, compare, gate):
    cli.add_command(command)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def told(*arguments: object) -> str:
    """What a command that goes well prints; no id is in it."""
    result = run(*arguments)
    assert result.exit_code == 0, result.exception
    assert SECRET not in result.output
    return result.stdout


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def names(n: int = N) -> np.ndarray:
    return np.array([f"={SECRET}-{i:03d}" for i in range(n)])  # a spreadsheet would run it


@functools.cache
def made(seed: int, people: bool) -> tuple[ScoreTable, bytes]:
    """The table of a small head, and what its report keeps beside it."""
    groups = np.array([f"{SECRET}{i // 3}" for i in range(N)]) if people else None
    head = made_head("classes", n=N, seed=seed, ids=names(), groups=groups)
    table = audit(head)
    return table, make_extras(head, table).to_bytes()


def audited(folder: Path, *, seed: int = 0, people: bool = False) -> Path:
    """An audit folder of a small head."""
    table, extras = made(seed, people)
    table.save(folder, "people" if people else "scores")
    save_page(folder, LOOK, extras)
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return audited(tmp_path / "audit")


def rows_of(path: Path) -> list[dict[str, str]]:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return list(csv.DictReader(path.open(encoding="utf-8")))


def test_canaries_are_named_by_row_on_the_screen_and_by_id_in_the_file(folder, tmp_path):
    table = ScoreTable.load(folder)
    chosen = choose(make_extras(made_head("classes", n=N, ids=names()), table).candidates, 4)
    out = told("canaries", folder, "-k", 4, "--out", tmp_path / "chosen.csv")
    assert re.findall(r"^ +(\d+) +(\d+)$", out, re.MULTILINE) == [(str(r), str(table.rank()[r])) for r in chosen]
    assert f"4 canaries of {N} records, ranked by newton" in out
    assert "chosen by the ranking alone, not by what was measured" in out
    rows = rows_of(tmp_path / "chosen.csv")
    assert [row["id"] for row in rows] == [f"'={SECRET}-{row:03d}" for row in chosen]
    assert [int(row["rank"]) for row in rows] == table.rank()[chosen].tolist()
    found = json.loads(told("canaries", folder, "-k", 4, "--json"))
    assert [row["row"] for row in found["canaries"]] == chosen.tolist()
    assert found["file"] is None


def test_canaries_that_cannot_be_had(folder):
    assert f"k: expected at most {N}, the number of candidates, got 61" in refused("canaries", folder, "-k", 61)
    (folder / LOOK).unlink()
    assert "expected an audit with candidates for canaries, got none (the audit folder was" in refused(
        "canaries", folder
    )
    assert run("canaries", folder, "-k", 0).exit_code == 2


def test_weights_go_to_a_private_file(folder, tmp_path):
    table = ScoreTable.load(folder)
    expected = weights_of(table, cap=0.8)
    out = told("weights", folder, "--cap", 0.8, "--out", tmp_path / "weights.csv")
    assert f"{int((expected < 1).sum())} of {N} records get a weight below 1" in out
    assert NOTE[1:] in out
    rows = rows_of(tmp_path / "weights.csv")
    assert list(rows[0]) == ["id", "weight"]
    assert [float(row["weight"]) for row in rows] == expected.tolist()
    assert rows[3]["id"] == f"'={SECRET}-003"
    found = json.loads(told("weights", folder, "--out", tmp_path / "weights.csv", "--json"))
    assert (found["note"], found["rows"], found["cap"]) == (NOTE, N, 0.9)
    assert found["below_1"] == int((weights_of(table) < 1).sum())
    assert run("weights", folder).exit_code == 2  # nowhere to write


def test_weights_of_people_are_for_all_of_their_records(tmp_path):
    people = audited(tmp_path / "audit", people=True)
    out = told("weights", people, "--out", tmp_path / "weights.csv")
    assert f"of {N // 3} people get a weight below 1" in out
    assert "All records of a person get that person's weight." in out
    assert "Rows are lines of people.csv" in told("canaries", people, "-k", 2)


def test_a_file_in_an_audit_folder_is_purged_with_it(folder, tmp_path):
    assert "changes.csv" in told("compare", folder, audited(tmp_path / "later", seed=1), "--out", folder)
    told("weights", folder, "--out", folder / "weights.csv")
    told("weights", folder, "--out", folder / "weights.csv")  # again
    message = refused("weights", folder, "--out", folder / "scores.csv")
    assert message.startswith("out: expected a file that the audit folder does not hold yet")
    assert "newton" in ScoreTable.load(folder).columns
    told("canaries", folder, "--out", tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert len(rows_of(tmp_path / "new" / "canaries.csv")) == 10
    assert "expected a place that can be written" in refused("canaries", folder, "--out", tmp_path / "gone" / "x.csv")
    purge(folder)
    assert not folder.exists()


def test_compare_tells_rows_and_writes_ids(folder, tmp_path):
    later = audited(tmp_path / "later", seed=1)
    expected = changes(ScoreTable.load(folder), ScoreTable.load(later))
    out = told("compare", folder, later, "--top", 3, "--out", tmp_path / "changes.csv")
    first = expected.rose_most(1)[0]
    assert f"| {expected.table['row_before'][first]} | {expected.table['row_after'][first]} |" in out
    assert out.count("| not known |") == 3
    assert "ranks, not amounts" in out
    assert "cannot tell noise from change" in out
    rows = rows_of(tmp_path / "changes.csv")
    assert [float(row["rise"]) for row in rows] == expected.table["rise"].tolist()
    assert rows[5]["id"].startswith(f"'={SECRET}")


def test_compare_with_retrains(folder, tmp_path):
    retrains = [audited(tmp_path / f"retrain{seed}", seed=seed) for seed in (2, 3, 4)]
    flags = [part for retrain in retrains for part in ("--retrains", retrain)]
    found = json.loads(told("compare", folder, audited(tmp_path / "later", seed=1), *flags, "--json"))
    assert found["noise"]["retrains"] == 3
    assert found["schema"] == "giveaway.changes/1"
    assert "a folder of its own for every retrain, got one twice" in refused(
        "compare", folder, folder, *flags, *flags[:2]
    )
    assert "expected none, or at least 3, got 2" in refused("compare", folder, folder, *flags[:4])
    assert "expected an audit folder with scores.npz" in refused("compare", folder, tmp_path / "gone")


def rules(tmp_path: Path, text: str = RULE) -> Path:
    path = tmp_path / "rule.toml"
    path.write_text(text, encoding="utf-8")
    return path


def measured(folder: Path, count: int) -> None:
    exposed = {"records": count, "confidence": 0.95, "by_success": 0, "judged": N, "power_at_twice_that": 0.9}
    stated = {"records": N, "models": 64, "at_least_exposed": exposed}
    save_page(folder, "validation.json", json.dumps(stated))


def test_the_gate_says_which_rule_is_not_met_and_stops_with_3(folder, tmp_path):
    measured(folder, 5)
    assert "met: few exposed: at least 5 of 60 records" in told("gate", folder, rules(tmp_path))
    measured(folder, 6)
    result = run("gate", folder, rules(tmp_path))
    assert result.exit_code == 3
    assert "not met: few exposed: at least 6 of 60 records (10.000%) measured as exposed, allowed 5" in result.stdout
    assert SECRET not in result.output
    result = run("gate", folder, rules(tmp_path), "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout) == json.loads((folder / "gate.json").read_text(encoding="utf-8"))
    assert json.loads(result.stdout)["date"] == datetime.date.today().isoformat()
    waiver = '[[waiver]]\nrule = "few exposed"\nowner = "Ada"\nexpires = 9999-01-01\nreason = "fix on its way"\n'
    assert "waived by Ada until 9999-01-01: fix on its way" in told("gate", folder, rules(tmp_path, RULE + waiver))


def test_rules_that_cannot_be_judged_leave_no_verdict(folder, tmp_path):
    assert "expected an audit that was validated, got none" in refused("gate", folder, rules(tmp_path))
    raw = RULE.replace("measured_count", "newton")
    assert "values of different models have no common unit" in refused("gate", folder, rules(tmp_path, raw))
    assert not (folder / "gate.json").exists()


def test_a_commands_own_gate(folder, tmp_path, capsys):
    found = read_rules(rules(tmp_path))
    measured(folder, 6)
    table = ScoreTable.load(folder)
    tell(AuditFolder(folder), table, None, None, {}, ["no gate"])
    assert capsys.readouterr().out == "no gate\n"
    with AuditFolder(folder).locked() as place:
        with pytest.raises(SystemExit) as stop:
            tell(place, table, found, json.dumps, {"rows": N}, [])
        assert stop.value.code == 3
        said = json.loads(capsys.readouterr().out)
        assert said == {"rows": N, "gate": json.loads((folder / "gate.json").read_text())}
        assert said["gate"]["met"] is False
    measured(folder, 5)
    (folder / "scores.npz").write_bytes(b"")  # it is the table in memory that is judged
    with AuditFolder(folder).locked() as place:
        tell(place, table, found, None, {}, [])
    assert json.loads((folder / "gate.json").read_text())["met"] is True


def test_an_audit_that_cannot_answer_its_gate_does_not_start(tmp_path):
    with pytest.raises(InputError, match=r"got a measured count, which .*; run giveaway validate FOLDER --gate"):
        read_rules(rules(tmp_path)).missing_columns([])
    rule = '[[rule]]\nname = "p"\nmeasure = "predicted_success"\nabove = 0.7\nat_most_share = 0.1\n'
    predicted = read_rules(rules(tmp_path, "schema = 1\n" + rule))
    with pytest.raises(InputError, match=r"expected the column predicted_success among the scores, got none; add pred"):
        predicted.missing_columns(["newton"])
    assert predicted.missing_columns(["newton", "predicted_success"]) == []
    assert predicted.missing_columns(["default", "lood_kl"]) == ["predicted_success"]


@pytest.mark.parametrize("command", [canaries, weights, compare, gate])
def test_no_help_promises_too_much(command):
    text = run(command.name, "--help").stdout
    assert not re.search(r"\bpass(ed)?\b|\bsafe\b|compliant|anonymous", text, re.IGNORECASE)
