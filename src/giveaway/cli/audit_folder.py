"""`giveaway audit`: a head in; its table, its report and its shareable summary in a folder; what to say of it."""

import datetime
import json
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import click
import numpy as np

from giveaway.auditing.cost import LONG, TimedCost, forecast
from giveaway.auditing.depths import DepthAudit, with_depths
from giveaway.auditing.plan import plan
from giveaway.auditing.run import Execution, audit
from giveaway.auditing.store import AuditFolder, check_folder, fingerprint, provenance, pseudonyms, read_key
from giveaway.checks import fail
from giveaway.cli.source import Options, audit_arguments, audited_head, device_named, source_from, to_toml
from giveaway.extract.torch_model import model_digest
from giveaway.extract.user_files import subgroups_from
from giveaway.findings.gate import FILE as VERDICT
from giveaway.findings.gate import Rules, Verdict, judge, read_rules
from giveaway.linalg.processes import ALONE, Processes, processes_from_environment
from giveaway.records import Head, ScoreTable
from giveaway.records.reasons import why
from giveaway.records.texts import Texts
from giveaway.reporting.answers import headline
from giveaway.reporting.folder import described, write_audit
from giveaway.reporting.validation import StoredValidation
from giveaway.reporting.words import access_of, check_access, notes
from giveaway.storage.files import as_json
from giveaway.storage.folder import FolderCheckpoint
from giveaway.text import parts_of, say, shown_text

# of the metadata, for --json
STATED = ("optimum", "curvature", "repeats", "depths", "view", "no_view", "fusion", "seconds")
RANKING_ONLY = (
    "Ranking only: no attack was measured, so no number of exposed records is stated; a low rank is not evidence of "
    "safety."
)
ROWS_OF_PEOPLE = "Rows are lines of {}, the first after its heading being 0; who they are stands there alone."


def run_audit(options: Options, as_json: bool, dry_run: bool, *, resume: bool, overwrite: bool) -> None:
    """Audit what the options name, or say what that would cost."""
    if resume and overwrite:
        raise fail("overwrite", "--overwrite or --resume", "both", "drop one of them")
    top, out = options.pop("top", 10), options.pop("out", "giveaway-audit")
    rules = read_rules(options.pop("gate")) if "gate" in options else None  # before the work: a mistake costs nothing
    with processes_from_environment(device_named(options.get("device")) or "cpu") as processes:
        tell_first = partial(say, err=True) if processes.first else lambda words: None
        source, deeper = source_from(options, tell_first, processes, dry_run=dry_run)
        if isinstance(source, TimedCost):
            say(json.dumps(vars(source)) if as_json else source.line())
            return
        head = audited_head(source, options)
        arguments = audit_arguments(options)
        if rules is not None:
            missing = rules.missing_columns(arguments["scores"])
            if missing and isinstance(head, Texts):
                remedy = "use measured_count, and giveaway validate FOLDER --gate"
                raise fail("gate", "rules on what texts have", ", ".join(missing), remedy)
            arguments["scores"] += missing
        if isinstance(head, Head) and ("device" in options or processes.device.type == "cuda"):
            head = head.to(processes.device)
        linear = isinstance(head, Head) and head.linear
        if dry_run and not linear:
            raise fail("dry_run", "a linear head", "a black box, which has no curvature to estimate", "leave it out")
        if linear:
            resolved = plan(head, **arguments, processes=processes) if dry_run else None
            cost = forecast(head, arguments["curvature"], processes, resolved)
            if deeper is not None:
                sizes = ", ".join(f"{name} ({one.size:,} parameters)" for name, one in deeper.deep.networks.items())
                ahead = f"depths: {sizes}: {deeper.solves:,} solves or more each; not in this estimate"
                cost = replace(cost, notes=(*cost.notes, ahead))
            if dry_run and processes.first:
                say(json.dumps(cost.to_json()) if as_json else "\n".join(cost.lines()))
            elif processes.first and (cost.seconds or 0.0) >= LONG:
                say(cost.lines()[0], err=True)
        if dry_run:
            return
        place = AuditFolder(out)
        tables = audit_into(
            place, head, options, arguments, deeper=deeper, processes=processes, resume=resume, overwrite=overwrite
        )
        if processes.first:
            tell_of_audit(place, tables, rules, top=top, as_json=as_json)


def tell_of_audit(
    place: AuditFolder, tables: dict[str, ScoreTable], rules: Rules | None = None, *, top: int, as_json: bool
) -> None:
    """Say what came of an audit, judged by the rules, and where it lies."""
    table, folder = next(iter(tables.values())), place.path
    by, meta = table.ranking(), table.meta.to_json()
    rows = table.order(by)[:top]
    shown = [by, *(name for name in ("class",) if name in table.attributes)]
    noun = table.meta.record
    ranking_only = RANKING_ONLY.replace("record", noun)
    told = {
        "folder": str(folder),
        "unit": table.meta.unit,
        "rows": len(table),
        "ranked_by": by,
        "top": [{"row": int(row), **{name: table[name][row].item() for name in shown}} for row in rows],
        "statement": ranking_only,
        **{name: meta.get(name) for name in STATED},
    }
    statement = headline(table, StoredValidation.load(folder), access_of(table))
    lines = [
        *_top_lines(table, rows),
        *([ROWS_OF_PEOPLE.format("people.csv")] if table.meta.by_person else []),
        *(f"note: {note}" for note in notes(table)),
        "",
        ranking_only if statement.startswith("Ranking only") else statement,
        f"To share, naming no {noun}: {folder / 'summary.html'}",
        f"Restricted, naming {noun}s: everything else in the folder, the report among it",
        f"Open {folder / 'report.html'}",
    ]
    tell(place, tables["scores"], rules, json.dumps if as_json else None, told, lines)


def tell(
    place: AuditFolder, table: ScoreTable, rules: Rules | None, dumps: Any, told: Options, lines: list[str]
) -> None:
    """Judge the table by the rules; say `told` as JSON or the lines, and the verdict; leave with its exit code."""
    verdict = None if rules is None else judged(rules, place, table)
    if dumps is not None:
        say(dumps(told if verdict is None else {**told, "gate": verdict.to_json()}))
    else:
        say("\n".join(lines if verdict is None else [*lines, "", verdict.to_text()]))
    if verdict is not None and verdict.exit_code:
        sys.exit(verdict.exit_code)  # not click's Exit, whose code is lost outside of standalone mode


def judged(rules: Rules, place: AuditFolder, table: ScoreTable | None = None) -> Verdict:
    """Return the verdict on a folder, which is stored there as gate.json."""
    verdict = judge(rules, place.path, datetime.date.today(), table)
    place.save_pages({VERDICT: as_json(verdict.to_json())})
    return verdict


def _top_lines(table: ScoreTable, rows: np.ndarray) -> list[str]:
    by = table.ranking()
    wanted = (by, "newton" if by == "fused" else "leverage", "class", "records", "tokens", "residual")
    shown = [name for name in dict.fromkeys(wanted) if name in table.scores or name in table.attributes]
    numbered = np.array_equal(table.ids, np.arange(len(table)))  # other ids, and values, stay in the files
    columns = [table[name][rows].tolist() for name in shown]
    cells = [[f"{value:.3g}" if isinstance(value, float) else shown_text(value, 20) for value in c] for c in columns]
    widths = [max(9, len(name), *map(len, column)) for name, column in zip(shown, cells, strict=True)]
    lines = [f"The {len(rows)} of {len(table)} {table.meta.rows_are} ranked highest, by {by}", ""]
    lines += ["rank    row  " + "  ".join(n.rjust(w) for n, w in zip(shown, widths, strict=True)) + "  why"]
    reasons = why(table, rows, nearest=numbered, values=False)
    for place, (row, reason, *texts) in enumerate(zip(rows, reasons, *cells, strict=True), start=1):
        texts = [text.rjust(width) for text, width in zip(texts, widths, strict=True)]
        lines += [f"{place:4d}  {row:5d}  " + "  ".join(texts) + f"  {reason}"]
    return [*lines, ""]


def audit_into(
    place: AuditFolder,
    head: Head | Texts,
    config: Options,
    arguments: Options,
    *,
    deeper: DepthAudit | None = None,
    processes: Processes = ALONE,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, ScoreTable]:
    """Audit `head` with the `arguments` of ga.audit; `config` are the user's options, kept beside the result.

    `deeper` adds columns of the records through the network that the head is the last layer of. Of several processes
    the first writes the folder, and holds it until the command ends. `resume` goes on with what a killed run left
    there.
    """
    if processes.first:
        click.get_current_context().with_resource(place.locked(new=True))
    check_access(config.get("access", "probabilities"), head.loss)
    trace = arguments.get("trace")
    if "pseudonymize" in config:
        key = read_key(config["pseudonymize"], place.path)
        groups = None if head.groups is None else pseudonyms(head.groups, key)
        names = pseudonyms(head.ids, key)
        if trace is not None:
            arguments = arguments | {"trace": trace.renamed(head.ids, names)}
        head = head.renamed(names, groups) if isinstance(head, Texts) else replace(head, ids=names, groups=groups)
    subgroups = subgroups_from(config["subgroups"], head.n) if "subgroups" in config else {}
    given = None if deeper is None else deeper.deep.inputs
    digest = processes.agreed(fingerprint(head, given, trace) if processes.first else "")
    origin = provenance(digest, config, None if deeper is None else model_digest(deeper.deep.model))
    if processes.first:
        check_folder(place, origin, overwrite=overwrite)
    else:
        processes.barrier()  # the first one makes its checkpoint before the others
    same = ("inputs_sha256", "weights_sha256", "config", "versions")
    begun = {name: value for name, value in origin.to_json().items() if name in same} | {"processes": processes.size}
    checkpoint = FolderCheckpoint(place.path, begun, resume=resume, rank=processes.rank)
    try:
        if processes.first:
            processes.barrier()
        run = partial(audit, progress=processes.first, execution=Execution(processes, checkpoint))
        tables = {"scores": run(head, **arguments)}
        if head.groups is not None:
            alone = head.by_record() if isinstance(head, Texts) else replace(head, groups=None)
            tables = {"people": tables["scores"], "scores": run(alone, **arguments)}
        processes.leave()  # all at once: what is left to do is the first one's, and may take long
        if not processes.first:
            return tables
        if deeper is not None:
            with parts_of(enabled=True, work="depths", unit="solve") as on_part:
                deep = deeper.run(checkpoint, on_part)
            tables["scores"] = with_depths(tables["scores"], deep)
            if "people" in tables:  # a person's columns would not be the sum of its records': people have the report
                meta = replace(tables["people"].meta, depths=deep.meta.depths)
                tables["people"] = replace(tables["people"], meta=meta)
        show = bool(config.get("show_records"))
        told: Options = {"access": config.get("access"), "title": config.get("title"), "show_records": show}
        tables = {name: described(table, head, origin, subgroups, **told) for name, table in tables.items()}
        write_audit(place, tables, head, pages={"config.toml": to_toml(config)}, show_records=show)
        checkpoint.finish()
    except BaseException:
        checkpoint.finish(failed=True)
        raise
    return tables
