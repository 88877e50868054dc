"""The commands `validate` and `mitigate`, which train models in the way of the audited one, and attack them."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import click

from giveaway.cli.options import AS_JSON, GATE
from giveaway.text import parts_of, say

SEED = click.IntRange(0, 2**63 - 1)
TRAIN = click.option(
    "--train",
    metavar="MODULE:FUNCTION",
    help="Train models by your own function (your code runs): it gets the rows to train on and a seed, and returns the "
    "model, or its outputs on all records.",
)
ESTIMATOR = click.option(
    "--estimator",
    help="Train clones of this scikit-learn estimator: FILE.skops, or a pickle with --allow-pickle; default: the "
    "audited one.",
)
DATA = click.option(
    "--data", help="module:function of yours that returns (X, y) (your code runs); default: the audit's."
)
WORKERS = click.option("--workers", type=int, help="How many to train at a time; -1 for one on every core.")


@click.command()
@click.argument("folder")
@TRAIN
@ESTIMATOR
@click.option("--recipe", help="Train shadow models of a usual kind: ridge, logistic or mlp.")
@DATA
@click.option("--models", type=int, help="How many shadow models to train, an even number; default 64.")
@click.option(
    "--only", metavar="A:B", help="Train models A to B - 1 of them and no more, here; other machines train the others."
)
@click.option("--collect", is_flag=True, default=None, help="Join what --only trained, which must be all, and go on.")
@WORKERS
@click.option("--device", help="Where they train, such as cuda; your function gets it if it takes device.")
@click.option(
    "--signals", help="Where the shadow models' outputs are kept: a folder or .npz; default: signals in FOLDER."
)
@click.option(
    "--target-model", type=int, multiple=True, help="Number of the audited model among the signals: left out."
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of training, draws and intervals.")
@click.option("--gate", "rule_file", metavar="RULE.toml", help=GATE)
@click.option("--allow-pickle", is_flag=True, default=None, help="Trust a pickled --estimator: it can run any code.")
@click.option("--dry-run", is_flag=True, default=None, help="Train only the first model and say what all would take.")
@AS_JSON
def validate(folder: str, rule_file: str | None, as_json: bool, **flags: Any) -> None:
    """Check an audit FOLDER against a real attack.

    Shadow models, trained as the audited one was but on halves of the records, are attacked with LiRA. The result says
    how well each score of the audit finds the records that the attack finds, and gives a lower bound on the number of
    exposed records. Models that are trained already are not trained again. Many machines that see FOLDER may train a
    slice each (--only), one of them then collects (--collect).
    """
    from giveaway.attacks.shadow_store import stored_seconds
    from giveaway.auditing.store import SIGNALS, AuditFolder, with_signals
    from giveaway.auditing.validate import held_against
    from giveaway.cli.audit_folder import tell
    from giveaway.cli.shadows import signals_named
    from giveaway.findings.extras import ReportExtras
    from giveaway.findings.gate import read_rules
    from giveaway.records import ScoreTable
    from giveaway.reporting.folder import main_table, report_pages
    from giveaway.reporting.validation import StoredValidation, validation_pages

    rules = None if rule_file is None else read_rules(rule_file)
    place = AuditFolder(folder)
    if flags["only"] is None:  # slices are trained side by side, and write nothing but their own folder
        click.get_current_context().with_resource(place.locked())
    table = ScoreTable.load(folder, "scores")
    named = {name: value for name, value in flags.items() if value not in (None, ())}
    where = named.setdefault("signals", str(place.path / SIGNALS))
    signals, trained = signals_named(named, table)
    if signals is None:
        say(json.dumps({"slice" if flags["only"] else "estimate": trained}) if as_json else str(trained))
        return
    kept = "" if flags["signals"] else ", kept in the audit folder"  # a path of the user's is not repeated
    say(f"Signals: {signals.models} models on {signals.records} records{kept}", err=True)
    validation = held_against(
        signals,
        table,
        target=named.get("target_model") if trained is None else (),
        training_seconds=stored_seconds(where, signals.models),
        seed=flags["seed"],
        own=trained is not None and not flags["collect"],
    )
    measured = StoredValidation.of(validation, recipe=named.get("recipe"), trained=trained)
    pages = validation_pages(table, validation, measured)
    if table.meta.of_model:
        pages |= report_pages(main_table(folder), ReportExtras.load(folder), measured)
    place.save_pages(pages, with_signals(place, where))
    told = {**validation.to_json(), "trained": trained}
    lines = [str(pages["validation.md"]), f"Wrote {', '.join(pages)} to {folder}"]
    tell(place, table, rules, partial(json.dumps, indent=2) if as_json else None, told, lines)


@click.command()
@click.argument("folder")
@TRAIN
@ESTIMATOR
@DATA
@click.option(
    "--try",
    "tried",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values to try of a keyword of your function, or of a parameter of the estimator, in place of the usual ones: "
    "C=0.01,0.1. drop=0.1 leaves the 10 % most exposed out.",
)
@click.option(
    "--models",
    type=int,
    default=8,
    show_default=True,
    help="How many shadow models of each remedy the attack takes; 0 for a quick look, by a weak attack.",
)
@WORKERS
@click.option("--device", help="Where they train, such as cuda; your function gets it if it takes device.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of training and of the records held out.")
@click.option("--allow-pickle", is_flag=True, default=None, help="Trust a pickled --estimator: it can run any code.")
@AS_JSON
def mitigate(folder: str, tried: tuple[str, ...], models: int, seed: int, as_json: bool, **flags: Any) -> None:
    """Try remedies on the model of an audit FOLDER.

    The model is trained again with a stronger penalty, stopped early, with smaller trees, without the most exposed
    records, with less weight on them, or with DP-SGD, as far as your function or the estimator can do it: a function
    gets l2, epochs, sample_weight or epsilon where it takes that keyword. Each model is judged by its accuracy on
    records held out, and by an attack. Models that are trained already are not trained again.
    """
    from giveaway.auditing.store import REMEDIES, AuditFolder
    from giveaway.cli.shadows import training_named
    from giveaway.findings.mitigation import Trials
    from giveaway.records import ScoreTable
    from giveaway.reporting.pages import mitigation_pages

    place = click.get_current_context().with_resource(AuditFolder(folder).locked())
    table = ScoreTable.load(folder, "scores")
    named = {name: value for name, value in flags.items() if value is not None}
    training = training_named(named, table)
    trials = Trials(training, table, place.path / REMEDIES, tried=dict(map(_values, tried)), models=models, seed=seed)
    say(f"To try: {', '.join(trial.remedy.label for trial in trials.trials)}.", err=True)
    with parts_of(enabled=True, work="remedies", unit="model") as on_model:
        found = replace(trials.run(on_model), people=(place.path / "people.npz").is_file())
    pages = mitigation_pages(found)
    place.save_pages(pages)
    if as_json:
        say(str(pages["mitigation.json"]))
        return
    width = max(8, len(found.measure))
    say(f"{'remedy':32}  {found.measure:>{width}}  attack on all  on the {found.top} most exposed")
    for outcome in found.outcomes:
        on_all, on_top = outcome.attack.on_all, outcome.attack.on_most_exposed
        told_of = f"{outcome.accuracy.value:{width}.3f}  {on_all.value:13.3f}  {on_top.value:.3f}"
        say(f"{outcome.remedy.label:32}  {told_of} ({on_top.low:.3f} to {on_top.high:.3f})")
    not_tried = (f"Not tried: {name}: {why}." for name, why in found.missing.items())
    say("\n".join(["", *found.statements(), *not_tried]))
    say(f"Open {place.path / 'mitigation.html'}; the picture is mitigation.png. They name no record.")


def _values(text: str) -> tuple[str, list[Any]]:
    from giveaway.checks import fail

    name, equals, values = text.partition("=")
    if not (equals and name.strip() and values.strip()):
        raise fail("try", "NAME=VALUES such as C=0.01,0.1", repr(text), "separate values by commas")
    return name.strip(), [_value(value.strip()) for value in values.split(",")]


def _value(text: str) -> Any:
    """Return a number, true, false or null as JSON has them, and anything else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
