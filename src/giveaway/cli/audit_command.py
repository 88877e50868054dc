"""The command `audit`: a model's records in, a folder with their ranking, its report and its summary out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giveaway.cli.config import RARE, read_config
from giveaway.cli.follow_up_commands import ROWS_OF_PEOPLE, check_audited, judged, leave, rules_of
from giveaway.text import say

if TYPE_CHECKING:
    from giveaway.auditing.depths import DepthAudit
    from giveaway.curvature.choice import Auto, Dense, Sketch
    from giveaway.findings.gate import Rules, Verdict
    from giveaway.gp import Process
    from giveaway.linalg.processes import Processes
    from giveaway.records import Head, ScoreTable

STATED = ("optimum", "curvature", "l2_sensitivity", "repeats", "depths", "view", "no_view", "seconds")  # in --json
RANKING_ONLY = (
    "Ranking only: no attack was measured, so no number of exposed records is stated; a low rank is not evidence of "
    "safety."
)
GATE = "Judge the audit by these rules; exit code 3 where one is not met."
SEED = click.IntRange(0, 2**63 - 1)
OF_SKETCH = ("probes", "tolerance", "precision", "memory", "allow_unconverged", "seed", "errors")


@click.command(
    epilog="Rarer options go through --config, in a TOML file or as NAME=VALUE: "
    + ", ".join(RARE)
    + ". Each is explained in docs/reference/commands.md."
)
@click.option(
    "--features",
    help="FILE.npz or .safetensors: features, targets, and weight with bias, or outputs (these alone: a black box).",
)
@click.option("--model", help="module:function of yours that makes the torch model (your code runs).")
@click.option("--weights", help="File of weights for --model: safetensors or a plain state dict.")
@click.option("--estimator", help="scikit-learn estimator: FILE.skops, or a pickle with --allow-pickle.")
@click.option("--data", help="module:function of yours for the Dataset, DataLoader or (X, y) (your code runs).")
@click.option("--layer", help="Name of the linear layer to audit; by default the last one that runs.")
@click.option("--loss", help="squared, cross_entropy or binary_cross_entropy; by default told from the targets.")
@click.option("--l2", type=float, help="L2 penalty in summed-loss units (weight decay of a mean loss times n).")
@click.option("--groups", help="File with one person's name a record (.npy, or a line each): rank people.")
@click.option("--ids", help="File with a different name for each record (.npy, or a line each); default their numbers.")
@click.option(
    "--inputs",
    help="The records themselves, for the score fused: FILE.npz with the key inputs, or FILE.npy; uint8 images, a "
    "matrix of numbers, strings, or a table of strings. By default what the model was given, where it could be kept.",
)
@click.option("--scores", help="Comma-separated columns; default,NAME adds to the usual ones.")
@click.option(
    "--depth",
    metavar="DEPTHS",
    help="Add scores through more of --model than its last layer, such as newton_all: head, last:2, last:4, ..., all.",
)
@click.option("--damping", type=float, help="For --depth, needed: n times the weight decay of a mean loss.")
@click.option("--curvature", type=click.Choice(["auto", "dense", "sketch"]), help="Exact, or from random probes.")
@click.option("--device", help="Where to run and compute, such as cuda; by default where the weights are.")
@click.option("--cache", metavar="DIR", help="Keep the features of --model there: it runs once, memory stays flat.")
@click.option("--access", type=click.Choice(["labels", "probabilities", "weights"]), help="What the attacker has.")
@click.option("--subgroups", help="FILE.csv with a heading, or .npz: is some subgroup among the exposed more often?")
@click.option("--pseudonymize", metavar="KEYFILE", help="Write keyed pseudonyms for ids; the key is made if missing.")
@click.option("--show-records", is_flag=True, default=None, help="Show the exposed records and name their nearest.")
@click.option("--gate", metavar="RULE.toml", help=GATE)
@click.option("--config", multiple=True, metavar="FILE|NAME=VALUE", help="Options from a TOML file, or a rare one.")
@click.option("--allow-pickle", is_flag=True, default=None, help="Trust pickled files: they can run any code.")
@click.option("--resume", is_flag=True, help="Go on with the unfinished audit in --out.")
@click.option("--dry-run", is_flag=True, help="Tell what it would cost, and do nothing.")
@click.option("--out", help="Folder for the audit (default giveaway-audit).")
@click.option("--json", "as_json", is_flag=True, help="Print the result for machines.")
def audit(config: tuple[str, ...], as_json: bool, resume: bool, dry_run: bool, **flags: Any) -> None:
    """Rank a model's training records by how exposed they are.

    Exposed means that an attacker can tell from the model whether the record was trained on (membership inference).

    Started by torchrun (torchrun --nproc-per-node 8 -m giveaway audit ...), the processes share the work.
    """
    from giveaway.cli.source import device_named, source_from
    from giveaway.linalg.processes import processes_from_environment

    options = _resolved(config, flags)
    top, out = options.pop("top", 10), options.pop("out", "giveaway-audit")
    rules = rules_of(options.pop("gate", None))
    with processes_from_environment(device_named(options.get("device")) or "cpu") as processes:
        source = source_from(options, lambda words: say(words, err=True) if processes.first else None, processes)
        head = _audited_head(source.head, options)
        arguments: dict[str, Any] = {"curvature": _curvature(options), "scores": _scores(options)}
        arguments |= {"kernel": _process(options), "optimum": options.get("optimum", "assumed")}
        if rules is not None:
            check_audited(rules, arguments)
        if "device" in options or processes.device.type == "cuda":
            head = head.to(processes.device)
        if _tells_cost(head, source.deeper, arguments["curvature"], processes, only=dry_run, as_json=as_json):
            return
        audit_and_tell(
            out,
            head,
            options,
            arguments,
            top=top,
            as_json=as_json,
            rules=rules,
            deeper=source.deeper,
            processes=processes,
            resume=resume,
        )


def _resolved(config: tuple[str, ...], flags: dict[str, Any]) -> dict[str, Any]:
    """The options of --config, and the flags, which go before them."""
    from giveaway.checks import check_choice, check_number

    kinds = {"boolean": bool, "float": float}
    parameters = {parameter.name: parameter for parameter in audit.params}
    known = {name: kinds.get(parameters[name].type.name, str) for name in flags}
    options = read_config(config, known | {name: kind for name, (kind, _) in RARE.items()})
    options |= {name: value for name, value in flags.items() if value is not None}
    for name in {"top", "batch_size"} & options.keys():
        check_number(name, options[name], minimum=1, remedy="give a count")
    check_number("l2", options.get("l2", 0.0), minimum=0.0, remedy="give the penalty in summed-loss units")
    check_choice("by", options.get("by", "auto"), ("auto", "person", "record"))
    return options


def _audited_head(head: Head, options: dict[str, Any]) -> Head:
    """The head with the records of --inputs, by person or by record."""
    from giveaway.checks import fail
    from giveaway.extract.user_files import records_from

    if "inputs" in options:
        head = dataclasses.replace(head, inputs=records_from(options["inputs"]))
    elif head.inputs is None and {"kernel", "noise"} & options.keys():
        raise fail("inputs", "--inputs beside kernel and noise", "none", "name the file of the records")
    if options.get("by") == "person" and head.groups is None:
        raise fail("by", "--groups beside person", "none", "give a file with one person's name a record")
    return dataclasses.replace(head, groups=None) if options.get("by") == "record" else head


def _curvature(options: dict[str, Any]) -> Dense | Sketch | Auto:
    """The curvature that the options describe; those of a sketch are checked whichever it will be."""
    from giveaway.checks import fail
    from giveaway.curvature.choice import Auto, Dense, Sketch, check_probes

    sketch = Sketch(**{name: options[name] for name in OF_SKETCH if name in options})
    check_probes(sketch)
    compare = options.get("l2_sensitivity")
    kind = options.get("curvature", "auto")
    if kind == "dense" and sketch.errors:
        raise fail("errors", "a sketched curvature", "none: dense scores are exact", "leave errors out")
    if kind == "dense":
        return Dense(l2_sensitivity=compare)
    if kind == "sketch":
        return dataclasses.replace(sketch, l2_sensitivity=compare)
    return Auto(memory=sketch.memory, sketch=sketch, l2_sensitivity=compare)


def _process(options: dict[str, Any]) -> Process | None:
    """The Gaussian process that kernel and noise describe; None where neither is given."""
    from giveaway.gp import Process

    given = {name: options[name] for name in ("kernel", "noise") if name in options}
    return Process(**given) if given else None


def _scores(options: dict[str, Any]) -> list[str]:
    """The columns named, or the default ones; --inputs ask for fused by name, so that unusable ones are an error."""
    names = options.get("scores", "default,fused" if "inputs" in options else "default")
    return [name.strip() for name in names.split(",")]


def audit_and_tell(
    out: str,
    head: Head,
    config: dict[str, Any],
    arguments: dict[str, Any],
    *,
    top: int,
    as_json: bool,
    rules: Rules | None = None,
    deeper: DepthAudit | None = None,
    processes: Processes | None = None,
    resume: bool = False,
) -> None:
    """Audit into the folder `out`, and say what came of it."""
    from giveaway.cli.audit_folder import audit_into, statement
    from giveaway.linalg.processes import ALONE
    from giveaway.reporting.words import notes

    found = audit_into(out, head, config, arguments, deeper=deeper, processes=processes or ALONE, resume=resume)
    if found is None:
        return
    table, folder = found
    verdict = judged(rules, folder)
    if as_json:
        say(json.dumps({**_summary(table, folder, top), **gate_json(verdict)}))
        return leave(verdict)
    _print_top(table, top)
    if table.meta.by_person:
        say(ROWS_OF_PEOPLE.format("people.csv"))
    for note in notes(table):
        say(f"note: {note}")
    said = statement(folder, table)
    say(f"\n{RANKING_ONLY if said.startswith('Ranking only') else said}")
    say(f"To share, naming no record: {folder / 'summary.html'}")
    say("Restricted, naming records: everything else in the folder, the report among it")
    say(f"Open {folder / 'report.html'}")
    if verdict is not None and not as_json:
        say(f"\n{verdict.to_text()}")
    leave(verdict)


def _tells_cost(
    head: Head,
    deeper: DepthAudit | None,
    curvature: Dense | Sketch | Auto,
    processes: Processes,
    *,
    only: bool,
    as_json: bool,
) -> bool:
    """Say what the audit will cost, where that is all that is wanted or it is long; return whether it is all."""
    from giveaway.auditing.cost import LONG, forecast, quick
    from giveaway.checks import fail
    from giveaway.cli.audit_folder import work_ahead

    if not head.linear and only:
        raise fail("dry_run", "a linear head", "a black box, which has no curvature to estimate", "leave it out")
    if not only and (not head.linear or quick(head, curvature)):
        return False
    cost = forecast(head, curvature, processes)
    if deeper is not None:
        cost = dataclasses.replace(cost, notes=(*cost.notes, work_ahead(deeper)))
    if only and processes.first:
        say(json.dumps(cost.to_json()) if as_json else "\n".join(cost.lines()))
    elif processes.first and (cost.seconds or 0.0) >= LONG:
        say(cost.lines()[0], err=True)
    return only


def gate_json(verdict: Verdict | None) -> dict[str, Any]:
    return {} if verdict is None else {"gate": verdict.to_json()}


def _print_top(table: ScoreTable, top: int) -> None:
    import numpy as np

    from giveaway.findings.explain import why

    by = table.ranking()
    rows = table.order(by)[:top]
    unit = table.meta.rows_are
    say(f"The {len(rows)} most exposed of {len(table)} {unit}, by {by}\n")
    shown = [name for name in ("class", "records", "residual") if name in table.attributes]
    beside = "newton" if by == "fused" else "leverage"
    shown = [by, *([beside] if beside in table.scores and beside != by else []), *shown]
    numbered = np.array_equal(table.ids, np.arange(len(table)))  # other ids, and values, stay in the files
    reasons = why(table, rows, nearest=numbered, values=False)
    widths = [max(9, len(name)) for name in shown]
    say("rank    row  " + "  ".join(n.rjust(w) for n, w in zip(shown, widths, strict=True)) + "  why")
    for place, (row, reason) in enumerate(zip(rows, reasons, strict=True), start=1):
        cells = [table[name][row] for name in shown]
        texts = [(f"{c:.3g}" if isinstance(c, float) else str(c)).rjust(w) for c, w in zip(cells, widths, strict=True)]
        say(f"{place:4d}  {row:5d}  " + "  ".join(texts) + f"  {reason}")
    say()


def _summary(table: ScoreTable, folder: Path, top: int) -> dict[str, Any]:
    by, meta = table.ranking(), table.meta.to_json()
    rows = table.order(by)[:top]
    return {
        "folder": str(folder),
        "unit": table.meta.unit,
        "rows": len(table),
        "ranked_by": by,
        "top": [{"row": int(row), by: float(table[by][row])} for row in rows],
        "statement": RANKING_ONLY,
        **{name: meta.get(name) for name in STATED},
    }
