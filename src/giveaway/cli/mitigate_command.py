"""The command `mitigate`: what would give less away, and at what cost."""

import json
from dataclasses import replace
from typing import Any

import click

from giveaway.cli.options import AS_JSON, DATA, ESTIMATOR, SEED, TRAIN, WORKERS
from giveaway.text import parts_of, say


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
    from giveaway.reporting.trade_off import mitigation_pages

    place = click.get_current_context().with_resource(AuditFolder(folder).locked())
    table = ScoreTable.load(folder, "scores")
    named = {name: value for name, value in flags.items() if value is not None}
    training, _ = training_named(named, table, lambda words: say(words, err=True))
    values = dict(map(_values, tried))
    trials = Trials(training, table, place.path / REMEDIES, tried=values, models=models, seed=seed)
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
