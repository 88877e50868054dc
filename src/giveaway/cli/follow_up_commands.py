"""What to do after an audit: the commands `canaries`, `weights`, `compare` and `gate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giveaway.text import say

if TYPE_CHECKING:
    from giveaway.findings.gate import Rules, Verdict
    from giveaway.records import ScoreTable

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result for machines.")
ROWS_OF_PEOPLE = "Rows are lines of {}, the first after its heading being 0; who they are stands there alone."
AS_CANARIES = (
    "Exposed, and no copies of one another: train with and without them to see what an attacker can tell. Chosen by a "
    "ranking; nothing was measured."
)


@click.command()
@click.argument("folder")
@click.option("-k", "count", type=click.IntRange(min=1), default=10, show_default=True, help="How many.")
@click.option("--out", help="FILE.csv, or a folder, for their ids (restricted: it names records).")
@AS_JSON
def canaries(folder: str, count: int, out: str | None, as_json: bool) -> None:
    """Pick the best canaries of an audit FOLDER.

    Canaries are exposed records that are no copies of one another.
    """
    from giveaway.checks import fail
    from giveaway.cli.audit_folder import main_table
    from giveaway.findings.canaries import choose
    from giveaway.findings.extras import ReportExtras
    from giveaway.records import ScoreTable

    table, look = main_table(folder), ReportExtras.load(folder)
    if look.candidates is None:
        reason = look.missing.get("canaries", "none in the folder")
        raise fail("folder", "an audit with candidates for canaries", f"none ({reason})", "run giveaway audit again")
    rows, by = choose(look.candidates, count), table.ranking()
    ranks = table.rank()[rows]
    written = None
    if out is not None:
        attributes = {"row": rows, "rank": ranks}
        chosen = ScoreTable({by: table[by][rows]}, table.ids[rows], attributes=attributes)
        written = _write_restricted(chosen, out, "canaries.csv")
    if as_json:
        found = [{"row": int(row), "rank": int(rank)} for row, rank in zip(rows, ranks, strict=True)]
        _print_json({"unit": _unit(table), "ranked_by": by, "canaries": found, "statement": AS_CANARIES}, written)
        return
    say(f"{len(rows)} canaries of {len(table)} {_plural(table)}, ranked by {by}\n")
    say("   row   rank")
    for row, rank in zip(rows, ranks, strict=True):
        say(f"{row:6d}  {rank:5d}")
    say("")
    _print_end(table, AS_CANARIES, written)


@click.command()
@click.argument("folder")
@click.option("--cap", type=float, default=0.9, show_default=True, help="Quantile of newton to bring rows down to.")
@click.option("--out", required=True, help="FILE.csv, or a folder, for a weight each id (restricted).")
@AS_JSON
def weights(folder: str, cap: float, out: str, as_json: bool) -> None:
    """Write training weights for the records of an audit FOLDER.

    They hold down the most exposed records: a heuristic.
    """
    from giveaway.cli.audit_folder import main_table
    from giveaway.findings.mitigation import NOTE
    from giveaway.findings.mitigation import weights as weights_of
    from giveaway.records import ScoreTable

    table = main_table(folder)
    found = weights_of(table, cap=cap)
    written = _write_restricted(ScoreTable({"weight": found}, table.ids), out, "weights.csv")
    below = int((found < 1).sum())
    if as_json:
        told = {"rows": len(table), "below_1": below, "smallest": float(found.min()), "sum": float(found.sum())}
        _print_json({"unit": _unit(table), "cap": cap, **told, "note": NOTE}, written)
        return
    say(f"{below} of {len(table)} {_plural(table)} get a weight below 1, the smallest {found.min():.3g}; all others 1.")
    if _unit(table) == "person":
        say("All records of a person get that person's weight.")
    _print_end(table, NOTE[0].upper() + NOTE[1:] + ".", written)


@click.command()
@click.argument("before")
@click.argument("after")
@click.option(
    "--retrains", multiple=True, metavar="DIR", help="Audit of a retrain of the BEFORE recipe; three or more of them."
)
@click.option("--out", help="FILE.csv, or a folder, for every row's change (restricted: it names records).")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Rows to print.")
@AS_JSON
def compare(before: str, after: str, retrains: tuple[str, ...], out: str | None, top: int, as_json: bool) -> None:
    """Show who ranks higher in AFTER than in BEFORE.

    Both are audit folders: before and after a retrain, a private run, a data fix.
    """
    from giveaway.checks import fail
    from giveaway.cli.audit_folder import main_table
    from giveaway.findings.changes import changes

    if len({Path(folder).resolve() for folder in retrains}) < len(retrains):
        raise fail("retrains", "a folder of its own for every retrain", "one twice", "name each once")
    later = main_table(after)
    found = changes(main_table(before), later, retrains=[main_table(folder) for folder in retrains])
    written = None if out is None else _write_restricted(found.to_table(), out, "changes.csv")
    if as_json:
        _print_json(found.to_json(top), written)
        return
    say(found.to_markdown(top))
    _print_end(later, "", written)


@click.command()
@click.argument("folder")
@click.argument("rule_file", metavar="RULE.toml")
@AS_JSON
def gate(folder: str, rule_file: str, as_json: bool) -> None:
    """Judge an audit FOLDER by the rules of RULE.toml.

    The exit code is 3 where a rule is neither met nor waived.
    """
    from giveaway.findings.gate import read_rules

    verdict = judged(read_rules(rule_file), folder)
    assert verdict is not None
    say(json.dumps(verdict.to_json(), ensure_ascii=False) if as_json else verdict.to_text())
    leave(verdict)


def rules_of(rule_file: str | None) -> Rules | None:
    """The rules of --gate, read before the work, so that a mistake in them costs nothing."""
    from giveaway.findings.gate import read_rules

    return None if rule_file is None else read_rules(rule_file)


def check_audited(rules: Rules, arguments: dict[str, Any]) -> None:
    """Give an audit the columns that its rules look at; refuse, before it runs, rules that it cannot answer."""
    from giveaway.checks import fail

    if rules.needs_validation:
        got = "a measured count, which an audit alone does not have"
        raise fail("gate", "rules on an audit", got, "run giveaway validate FOLDER --gate with them")
    missing = [column for column in rules.columns if column not in arguments["scores"]]
    if missing and "default" not in arguments["scores"]:
        raise fail("gate", f"the column {missing[0]} among the scores", "none", f"add {missing[0]} to --scores")
    arguments["scores"] = [*arguments["scores"], *missing]


def judged(rules: Rules | None, folder: str | Path) -> Verdict | None:
    """The verdict on a folder, kept there as gate.json; None without rules."""
    import datetime

    from giveaway.findings.gate import judge

    if rules is None:
        return None
    verdict = judge(rules, folder, datetime.date.today())
    verdict.save(folder)
    return verdict


def leave(verdict: Verdict | None) -> None:
    """Stop with the verdict's exit code, where it has one."""
    if verdict is not None and verdict.exit_code:
        sys.exit(verdict.exit_code)  # not click's Exit, whose code is lost outside of standalone mode


def _write_restricted(table: ScoreTable, out: str, name: str) -> Path:
    """The table as a file for its owner only: `out`, or `name` where that is a folder; an audit folder lists it."""
    from giveaway.auditing.store import save_page
    from giveaway.checks import fail
    from giveaway.records.score_table import MARKER
    from giveaway.storage.files import private_folder

    path = Path(out)
    if path.is_dir() or path.suffix == "":
        path = private_folder(path) / name
    if (path.parent / MARKER).is_file():
        if path.exists() and path.name != name:
            raise fail("out", "a file that the audit folder does not hold yet", str(path), f"name it {name}")
        save_page(path.parent, path.name, "")  # listed before it is written, so that purge finds it
    table.to_csv(path)
    return path


def _print_json(told: dict[str, Any], written: Path | None) -> None:
    say(json.dumps({**told, "file": None if written is None else str(written)}, ensure_ascii=False))


def _print_end(table: ScoreTable, words: str, written: Path | None) -> None:
    if _unit(table) == "person":
        say(ROWS_OF_PEOPLE.format("people.csv"))
    if words:
        say(words)
    if written is not None:
        say(f"Wrote {written} (restricted: it names {_plural(table)})")


def _unit(table: ScoreTable) -> str:
    return str(table.meta.unit)


def _plural(table: ScoreTable) -> str:
    return "people" if _unit(table) == "person" else "records"
