"""What to do after an audit: the commands `canaries`, `weights`, `compare`, `gate` and `export`."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from giveaway.cli.options import AS_JSON
from giveaway.text import say

AS_CANARIES = (
    "Ranked high, and no copies of one another: train with and without them to see what an attacker can tell. They are "
    "chosen by the ranking alone, not by what was measured."
)


@click.command()
@click.argument("folder")
@click.option("-k", "count", type=click.IntRange(min=1), default=10, show_default=True, help="How many to pick.")
@click.option("--out", help="FILE.csv, or a folder, for their ids (restricted: it names records).")
@AS_JSON
def canaries(folder: str, count: int, out: str | None, as_json: bool) -> None:
    """Pick the best canaries of an audit FOLDER.

    Canaries are highly ranked records that are no copies of one another.
    """
    from giveaway.checks import fail
    from giveaway.findings.canaries import choose
    from giveaway.findings.extras import ReportExtras
    from giveaway.records import ScoreTable
    from giveaway.reporting.folder import main_table

    table, extras = main_table(folder), ReportExtras.load(folder)
    if extras.candidates is None:
        reason = extras.missing.get("canaries", "none in the folder")
        raise fail("folder", "an audit with candidates for canaries", f"none ({reason})", "run giveaway audit again")
    rows, by = choose(extras.candidates, count), table.ranking()
    ranks = table.rank()[rows]
    listed = [{"row": int(row), "rank": int(rank)} for row, rank in zip(rows, ranks, strict=True)]
    told = {"unit": table.meta.unit, "ranked_by": by, "canaries": listed, "statement": AS_CANARIES}
    lines = [f"{len(rows)} canaries of {len(table)} {table.meta.rows_are}, ranked by {by}", "", "   row   rank"]
    lines += [*(f"{one['row']:6d}  {one['rank']:5d}" for one in listed), "", AS_CANARIES]
    chosen = ScoreTable({by: table[by][rows]}, table.ids[rows], attributes={"row": rows, "rank": ranks})
    _finish(table, chosen, out, "canaries.csv", told if as_json else None, lines)


@click.command()
@click.argument("folder")
@click.option("--cap", type=float, default=0.9, show_default=True, help="Quantile of newton above which weights fall.")
@click.option("--out", required=True, help="FILE.csv, or a folder, for the weight of each id (restricted).")
@AS_JSON
def weights(folder: str, cap: float, out: str, as_json: bool) -> None:
    """Write training weights for the records of an audit FOLDER.

    Records that rank high get weights below 1: a heuristic.
    """
    from giveaway.findings.mitigation import NOTE
    from giveaway.findings.mitigation import weights as weights_of
    from giveaway.records import ScoreTable
    from giveaway.reporting.folder import main_table

    table = main_table(folder)
    weight = weights_of(table, cap=cap)
    below, least, rows = int((weight < 1).sum()), float(weight.min()), len(table)
    told = {"unit": table.meta.unit, "cap": cap, "rows": rows, "below_1": below, "smallest": least}
    told |= {"sum": float(weight.sum()), "note": NOTE}
    lines = [f"{below} of {rows} {table.meta.rows_are} get a weight below 1, the smallest {least:.3g}; all others 1."]
    if table.meta.by_person:
        lines.append("All records of a person get that person's weight.")
    lines.append(f"{NOTE[0].upper()}{NOTE[1:]}.")
    _finish(table, ScoreTable({"weight": weight}, table.ids), out, "weights.csv", told if as_json else None, lines)


@click.command()
@click.argument("before")
@click.argument("after")
@click.option(
    "--retrains", multiple=True, metavar="DIR", help="Audit of a retrain of the BEFORE recipe; three or more."
)
@click.option("--out", help="FILE.csv, or a folder, for every row's change (restricted: it names records).")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Rows to print.")
@AS_JSON
def compare(before: str, after: str, retrains: tuple[str, ...], out: str | None, top: int, as_json: bool) -> None:
    """Show who ranks higher in AFTER than in BEFORE.

    Both are audit folders: before and after a retrain, a private run, a data fix.
    """
    from giveaway.checks import fail
    from giveaway.findings.changes import changes
    from giveaway.reporting.folder import main_table

    if len({Path(folder).resolve() for folder in retrains}) < len(retrains):
        raise fail("retrains", "a folder of its own for every retrain", "one twice", "name each once")
    later = main_table(after)
    change = changes(main_table(before), later, retrains=[main_table(folder) for folder in retrains])
    told, lines = change.to_json(top) if as_json else None, [change.to_markdown(top)]
    _finish(later, change.table, out, "changes.csv", told, lines)


@click.command()
@click.argument("folder")
@click.argument("rule_file", metavar="RULE.toml")
@AS_JSON
def gate(folder: str, rule_file: str, as_json: bool) -> None:
    """Judge an audit FOLDER by the rules of RULE.toml.

    The exit code is 3 where a rule is neither met nor waived.
    """
    from giveaway.auditing.store import AuditFolder
    from giveaway.cli.audit_folder import judged
    from giveaway.findings.gate import read_rules

    rules = read_rules(rule_file)
    with AuditFolder(folder).locked() as place:
        verdict = judged(rules, place)
    say(json.dumps(verdict.to_json(), ensure_ascii=False) if as_json else verdict.to_text())
    sys.exit(verdict.exit_code)


@click.command()
@click.argument("folder")
@click.option("--to", required=True, type=click.Choice(["model-card", "mlflow", "json"]), help="Where it goes.")
@click.option("--by", help="Who answers for the audit, for the record.")
@click.option("--gate", "rule_file", metavar="RULE.toml", help="Judge the audit by these rules, and tell the outcome.")
@click.option("--out", help="File for the section or the record; printed by default.")
def export(folder: str, to: str, by: str | None, rule_file: str | None, out: str | None) -> None:
    """Tell what may be shared of an audit FOLDER where it goes next.

    model-card is a section in Markdown, json a record for a data-release committee, mlflow metrics and pages in the
    active run, which MLFLOW_RUN_ID names, or in a new one.
    """
    from giveaway.checks import fail
    from giveaway.findings.gate import read_rules
    from giveaway.reporting.export import json_record, model_card, record, to_mlflow
    from giveaway.storage.files import write_text

    rules = None if rule_file is None else read_rules(rule_file)
    if to == "mlflow":
        if out is not None:
            raise fail("out", "no file for mlflow", out, "leave it out, or export a model-card or json")
        number, numbers = to_mlflow(folder, by=by, rules=rules)
        say(f"Logged {len(numbers)} metrics and the pages to share to the run {number}")
        return
    told = record(folder, by=by, rules=rules)
    text = model_card(told) if to == "model-card" else json_record(told)
    if out is None:
        say(text.removesuffix("\n"))
        return
    if Path(out).resolve().parent == Path(folder).resolve():
        raise fail("out", "a file outside of the audit folder", out, "what is shared lies elsewhere")
    write_text(out, text)
    say(f"Wrote {out}")


def _finish(
    table: Any, restricted: Any, out: str | None, name: str, told: dict[str, Any] | None, lines: list[str]
) -> None:
    """Write the restricted ScoreTable to `out`, a file or a folder for `name`; print what is `told`, or the lines."""
    from giveaway.auditing.store import AuditFolder
    from giveaway.checks import fail
    from giveaway.cli.audit_folder import ROWS_OF_PEOPLE
    from giveaway.storage.files import private_folder

    path = None if out is None else Path(out)
    if path is not None:
        if path.is_dir() or path.suffix == "":
            path = private_folder(path) / name
        if not AuditFolder(path.parent).marked:
            restricted.to_csv(path)
        else:
            if path.exists() and path.name != name:
                raise fail("out", "a file that the audit folder does not hold yet", str(path), f"name it {name}")
            with AuditFolder(path.parent).locked() as place:
                place.stage(path.name, restricted.write_csv)
                place.commit()
    if told is not None:
        say(json.dumps({**told, "file": None if path is None else str(path)}, ensure_ascii=False))
        return
    lines += [ROWS_OF_PEOPLE.format("people.csv")] if table.meta.by_person else []
    lines += [] if path is None else [f"Wrote {path} (restricted: it names {table.meta.rows_are})"]
    say("\n".join(lines))
