"""The command `validate` and its options."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import click

from giveaway.cli.options import AS_JSON, DATA, ESTIMATOR, GATE, SEED, TRAIN, WORKERS
from giveaway.text import say


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
    signals, trained = signals_named(named, table, lambda words: say(words, err=True))
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
