"""The command line. Heavy imports wait inside the commands, so that --help answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giveaway import __version__
from giveaway.cli_next import ROWS_OF_PEOPLE, canaries, check_audited, compare, gate, judged, leave, rules_of, weights
from giveaway.cli_theory import theory
from giveaway.screen import say

if TYPE_CHECKING:
    from giveaway.findings.gate import Verdict
    from giveaway.findings.gate_rules import Rules
    from giveaway.records import Head, ScoreTable

RANKING_ONLY = (
    "Ranking only: no attack was measured, so no number exposed is stated; a low rank is not evidence of safety."
)
GATE = "Judge the audit by these rules; exit code 3 where one is not met."
SIGNALS = "giveaway-signals"
SEED = click.IntRange(0, 2**63 - 1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="giveaway")
def cli() -> None:
    """Find the training records whose presence your model gives away."""


for command in (theory, canaries, weights, compare, gate):
    cli.add_command(command)


@cli.command()
@click.option("--out", default="giveaway-demo", show_default=True, help="Folder for the audit.")
@click.option("--json", "as_json", is_flag=True, help="Print the result for machines.")
def demo(out: str, as_json: bool) -> None:
    """Train a small network on scikit-learn's digits and audit it."""
    from giveaway.demo import WEIGHT_DECAY, digits_dataset, train_digits_network
    from giveaway.extract import from_torch

    dataset = digits_dataset()
    say(f"Training a small network on {len(dataset)} digits ...", err=True)
    model = train_digits_network(dataset)
    head = from_torch(model, dataset, l2=WEIGHT_DECAY * len(dataset))
    _audit_and_tell(out, head, {"demo": "digits", "show_records": True}, {}, top=10, as_json=as_json)


@cli.command()
@click.option(
    "--features",
    help="FILE.npz or .safetensors: features, targets, and weight with bias, or outputs (these alone: a black box).",
)
@click.option("--model", help="module:function of yours that makes the torch model (your code runs).")
@click.option("--weights", help="File of weights for --model: safetensors or a plain state dict.")
@click.option("--estimator", help="scikit-learn estimator: FILE.skops, or a pickle with --allow-pickle.")
@click.option("--data", help="module:function of yours for the Dataset, DataLoader or (X, y) (your code runs).")
@click.option("--layer", help="Name of the linear layer to audit; default the last one that runs.")
@click.option("--reduction", help="For a layer that sees tokens: mean, first or last.")
@click.option("--loss", help="squared, cross_entropy or binary_cross_entropy; default auto, from the targets.")
@click.option("--l2", type=float, help="L2 penalty in summed-loss units (weight decay of a mean loss times n).")
@click.option("--penalize-intercept/--free-intercept", default=None, help="Whether l2 acts on the bias.")
@click.option("--groups", help="File with one person's name a record (.npy, or a line each): scores by person.")
@click.option("--ids", help="File with a different name for each record (.npy, or a line each); default their numbers.")
@click.option("--by", type=click.Choice(["auto", "person", "record"]), help="Rank people or records.")
@click.option(
    "--inputs",
    help="The records themselves, for the score fused: FILE.npz with the key inputs, or FILE.npy; uint8 images, a "
    "matrix of numbers, strings, or a table of strings. Default what the model was given, where it could be kept.",
)
@click.option("--kernel", help="Adds lood_kl and lood_mean, of a Gaussian process with this kernel: nngp, rbf, …")
@click.option("--noise", type=float, help="Adds them too: variance of the targets around the process's functions.")
@click.option("--title", help="What was audited, for the heading of both pages.")
@click.option("--access", type=click.Choice(["labels", "probabilities", "weights"]), help="What the attacker has.")
@click.option("--subgroups", help="FILE.csv with a heading, or .npz: is some subgroup among the exposed more often?")
@click.option("--pseudonymize", metavar="KEYFILE", help="Write keyed pseudonyms for ids; the key is made if missing.")
@click.option("--map", type=click.Choice(["auto", "pca", "tsne", "none"]), help="Map of features in the report.")
@click.option("--what-if/--no-what-if", default=None, help="Score the rest again without the most exposed.")
@click.option("--scores", help="Comma-separated names of columns; default all but predicted_* and lood_*.")
@click.option("--also", help="Comma-separated names of columns besides those, such as predicted_success.")
@click.option("--converged/--not-converged", default=None, help="Is the head at its optimum?")
@click.option("--refit", is_flag=True, default=None, help="Bring the head to its optimum first.")
@click.option("--l2-sensitivity/--no-l2-sensitivity", default=None, help="How much the ranking depends on l2.")
@click.option("--device", help="Where the model runs, such as cuda; default where its weights are.")
@click.option("--batch-size", type=int, help="Records at a time through the model.")
@click.option("--allow-pickle", is_flag=True, default=None, help="Trust pickled files: they can run any code.")
@click.option("--config", help="TOML file with any of these options; flags go before it.")
@click.option("--show-records", is_flag=True, default=None, help="Show the exposed records and name their nearest.")
@click.option("--gate", metavar="RULE.toml", help=GATE)
@click.option("--top", type=int, help="Rows to print (default 10).")
@click.option("--out", help="Folder for the audit (default giveaway-audit).")
@click.option("--json", "as_json", is_flag=True, help="Print the result for machines.")
def audit(config: str | None, as_json: bool, **flags: Any) -> None:
    """Rank a trained model's records by how exposed they are to membership inference."""
    from giveaway.checks import check_number, fail
    from giveaway.config import read_config
    from giveaway.extract.inputs_file import records_from
    from giveaway.source import head_from

    options: dict[str, Any] = read_config(config, _kinds(flags)) if config else {}
    options |= {name: value for name, value in flags.items() if value is not None}
    for name in {"top", "batch_size"} & options.keys():
        check_number(name, options[name], minimum=1, remedy="give a count")
    check_number("l2", options.get("l2", 0.0), minimum=0.0, remedy="give the penalty in summed-loss units")
    top, out = options.pop("top", 10), options.pop("out", "giveaway-audit")
    rules = rules_of(options.pop("gate", None))
    head = head_from(options, lambda words: say(words, err=True))
    wanted = ("by", "converged", "refit", "l2_sensitivity", "kernel", "noise")
    arguments: dict[str, Any] = {name: options[name] for name in wanted if name in options}
    if "inputs" in options:
        arguments["inputs"] = records_from(options["inputs"])
    elif head.inputs is None and {"kernel", "noise"} & options.keys():
        raise fail("inputs", "--inputs beside --kernel and --noise", "none", "name the file of the records")
    for name in {"scores", "also"} & options.keys():
        arguments[name] = [column.strip() for column in options[name].split(",")]
    if rules is not None:
        check_audited(rules, arguments)
    _audit_and_tell(out, head, options, arguments, top=top, as_json=as_json, rules=rules)


@cli.command()
@click.argument("folder")
@click.option("--signals", default=SIGNALS, show_default=True, help="Shadow models' signals: a folder or .npz.")
@click.option("--recipe", help="Train the shadow models here: ridge, logistic, mlp, cnn, resnet20 or resnet18.")
@click.option("--data", help="With --recipe: module:function of yours that returns (X, y) (your code runs).")
@click.option("--models", type=int, help="With --recipe: how many shadow models; an even number.")
@click.option("--device", help="With --recipe: where they train, such as cuda.")
@click.option(
    "--target-model", type=int, multiple=True, help="The audited model's number among the signals: leave it out."
)
@click.option("--rows", help="FILE.npy: the signals' record for each row of the audit; default the same records.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of training, draws and intervals.")
@click.option(
    "--gate", "rule_file", metavar="RULE.toml", help="Judge the audit by these rules; exit code 3 where one is not met."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result for machines.")
def validate(folder: str, rows: str | None, rule_file: str | None, as_json: bool, **flags: Any) -> None:
    """Check an audit FOLDER against LiRA: how well do its scores find what the attack finds?"""
    from giveaway.attacks.shadow_store import stored_seconds
    from giveaway.audit_command import rebuild
    from giveaway.auditing.store import list_signals, save_page
    from giveaway.auditing.validate import compare
    from giveaway.extract.signals_file import row_numbers
    from giveaway.records import ScoreTable
    from giveaway.reporting.validation import validation_pages
    from giveaway.source import signals_named

    rules = rules_of(rule_file)
    table = ScoreTable.load(folder, "scores")
    places = None if rows is None else row_numbers(rows)
    named = {name: value for name, value in flags.items() if value not in (None, ())}
    signals = signals_named(named, lambda words: say(words, err=True))
    where = f", in {SIGNALS}" if named["signals"] == SIGNALS else ""  # a path of the user's is not repeated
    say(f"Signals: {signals.models} models on {signals.records} records{where}", err=True)
    found = compare(
        table,
        signals,
        rows=places,
        target=() if "recipe" in named else named.get("target_model"),
        training_seconds=stored_seconds(named["signals"], signals.models),
        seed=flags["seed"],
    )
    list_signals(folder, named["signals"])
    pages = validation_pages(table, found, recipe=named.get("recipe"))
    for name, page in pages.items():
        save_page(folder, name, page)
    rebuilt = [page.name for page in rebuild(folder)] if "optimum" in table.meta else []
    verdict = judged(rules, folder)
    if as_json:
        say(json.dumps({**found.to_json(), **_gate(verdict)}, indent=2))
    else:
        say(str(pages["validation.md"]))
        say(f"Wrote {', '.join([*pages, *rebuilt])} to {folder}")
    if verdict is not None and not as_json:
        say(f"\n{verdict.to_text()}")
    leave(verdict)


@cli.command()
@click.argument("inputs")
@click.option(
    "--kernel", default="nngp", show_default=True, help="rbf, laplace, linear, nngp, ntk, conv_nngp, conv_ntk."
)
@click.option(
    "--noise", type=float, default=0.05, show_default=True, help="Variance of the targets around the function."
)
@click.option("--length", type=float, help="Of rbf and laplace; default the median distance.")
@click.option("--depth", type=int, help="Hidden layers of a network kernel; default 3.")
@click.option("--activation", help="relu, leaky_relu, erf, gelu, elu, tanh or identity.")
@click.option("--weight-variance", type=float, help="Of a network or linear kernel.")
@click.option("--bias-variance", type=float, help="Of a network or linear kernel.")
@click.option("--filter-size", type=int, help="Of a convolutional kernel; default 3.")
@click.option("--stride", type=int, help="Of a convolutional kernel; default 1.")
@click.option("--padding", help="Of a convolutional kernel: same or valid.")
@click.option("--readout", help="Of a convolutional kernel: flatten or pool.")
@click.option("--sphere", is_flag=True, help="Centre each record and put it on a sphere first.")
@click.option("--groups", help="File with one person's name a record (.npy, or a line each): rows are people.")
@click.option("--records", help="Rows to look at more closely, such as 3,17; default the ten most exposed.")
@click.option("--queries", help="FILE.npz with the key queries: the distances there.")
@click.option("--optimize", help="kl or mean: search the queries with the largest distance.")
@click.option("--starts", type=int, default=8, show_default=True, help="With --optimize: from how many points.")
@click.option("--method", default="lbfgs", show_default=True, help="With --optimize: lbfgs or adam.")
@click.option("--steps", type=int, default=200, show_default=True, help="With --optimize: at most so many.")
@click.option("--low", type=float, help="With --optimize: smallest number of a query, such as 0 for pixels.")
@click.option("--high", type=float, help="With --optimize: largest number of a query, such as 1 for pixels.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Of the search.")
@click.option("--device", help="Where to compute, such as cuda.")
@click.option("--top", type=int, default=10, show_default=True, help="Rows to print.")
@click.option("--out", default="giveaway-lood", show_default=True, help="Folder for the result.")
@click.option("--json", "as_json", is_flag=True, help="Print the result for machines.")
def lood(inputs: str, out: str, top: int, as_json: bool, **flags: Any) -> None:
    """How far a Gaussian process moves when a record is left out, for every record of INPUTS.npz (inputs, targets)."""
    from giveaway.checks import check_number
    from giveaway.lood_command import run_lood

    check_number("top", top, minimum=1, remedy="give a count")
    table, folder, pages = run_lood(inputs, out, {name: value for name, value in flags.items() if value is not None})
    if as_json:
        by = table.ranking()
        rows = [{"row": int(row), by: float(table[by][row])} for row in table.order()[:top]]
        told = {"ranked_by": by, "top": rows, "statement": RANKING_ONLY, "files": pages}
        say(json.dumps({"folder": str(folder), **{k: v for k, v in table.meta.items() if k != "provenance"}, **told}))
        return
    unit = "people" if table.meta["unit"] == "person" else "records"
    say(f"The {min(top, len(table))} most exposed of {len(table)} {unit}, by lood_kl under {table.meta['kernel']}\n")
    say("rank    row    lood_kl  lood_mean")
    for place, row in enumerate(table.order()[:top], start=1):
        say(f"{place:4d}  {row:5d}  {table['lood_kl'][row]:9.4g}  {table['lood_mean'][row]:9.4g}")
    if unit == "people":
        say(f"\n{ROWS_OF_PEOPLE.format('scores.csv')}")
    say(f"\n{RANKING_ONLY}")
    say(f"Wrote {', '.join(pages)} to {folder} (restricted: they name records)")


@cli.command()
@click.argument("folder")
def report(folder: str) -> None:
    """Rebuild the report and the summary of an audit FOLDER."""
    from giveaway.audit_command import rebuild

    for page in rebuild(folder):
        say(f"Wrote {page}")


@cli.command()
@click.argument("folders", nargs=-1, required=True)
@click.option("--out", default="giveaway-index.html", show_default=True, help="File for the page.")
def index(folders: tuple[str, ...], out: str) -> None:
    """Put the summaries of many audit FOLDERS on one page."""
    from giveaway.files import write_text
    from giveaway.reporting.index import index_page

    write_text(out, index_page(folders))
    say(f"Wrote {out}")


@cli.command()
@click.argument("folder")
def purge(folder: str) -> None:
    """Remove every file that an audit, or the training of shadow models, wrote into FOLDER."""
    from giveaway.attacks.shadow_store import is_shadow_folder
    from giveaway.auditing.store import listed_signals
    from giveaway.auditing.store import purge as remove

    elsewhere = listed_signals(folder)
    say(f"Removed {remove(folder)} files")
    for place in elsewhere:
        how = f"; giveaway purge {place} removes them" if is_shadow_folder(place) else ""
        say(f"Kept: the signals it was validated with, in {place}{how}")


def main() -> None:
    """Run, with every expected failure as one line on stderr: exit 2 for bad input, 130 for Ctrl-C."""
    try:
        cli.main(prog_name="giveaway", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # unknown to click 8.1
            say(error.format_message(), err=True)
            sys.exit(2)
        _stop(f"{error.format_message()} (giveaway --help lists commands and options)", 2)
    except (KeyboardInterrupt, click.Abort):
        _stop("interrupted; nothing was half-written", 130)
    except ValueError as error:
        if type(error).__name__ != "InputError":
            raise
        _stop(str(error), 2)


def _stop(message: str, code: int) -> None:
    say("giveaway: " + " ".join(message.split()), err=True)
    sys.exit(code)


def _kinds(flags: dict[str, Any]) -> dict[str, type]:
    """What a config file may hold for each of the command's options."""
    kinds = {"boolean": bool, "integer": int, "float": float}
    parameters = {parameter.name: parameter for parameter in audit.params}
    return {name: kinds.get(parameters[name].type.name, str) for name in flags}


def _audit_and_tell(
    out: str,
    head: Head,
    config: dict[str, Any],
    arguments: dict[str, Any],
    *,
    top: int,
    as_json: bool,
    rules: Rules | None = None,
) -> None:
    from giveaway.audit_command import audit_into, statement
    from giveaway.reporting.words import notes

    table, folder = audit_into(out, head, config, arguments)
    verdict = judged(rules, folder)
    if as_json:
        say(json.dumps({**_summary(table, folder, top), **_gate(verdict)}))
        return leave(verdict)
    _print_top(table, top)
    if table.meta["unit"] == "person":
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


def _gate(verdict: Verdict | None) -> dict[str, Any]:
    return {} if verdict is None else {"gate": verdict.to_json()}


def _print_top(table: ScoreTable, top: int) -> None:
    import numpy as np

    from giveaway.auditing.why import why

    by = table.ranking()
    rows = table.order(by)[:top]
    unit = "people" if table.meta["unit"] == "person" else "records"
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
    by = table.ranking()
    rows = table.order(by)[:top]
    return {
        "folder": str(folder),
        "unit": table.meta["unit"],
        "rows": len(table),
        "ranked_by": by,
        "top": [{"row": int(row), by: float(table[by][row])} for row in rows],
        "statement": RANKING_ONLY,
        "optimum": table.meta["optimum"],
        "curvature": table.meta["curvature"],
        "l2_sensitivity": table.meta["l2_sensitivity"],
        "repeats": table.meta["repeats"],
        "view": table.meta["view"],
        "no_view": table.meta["no_view"],
        "seconds": table.meta["seconds"],
    }
