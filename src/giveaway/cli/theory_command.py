"""The command `giveaway theory` and its three subcommands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from giveaway.text import say

if TYPE_CHECKING:
    from giveaway.cli.theory_answers import Answer

Command = Callable[..., None]


@click.group()
def theory() -> None:
    """Compute trade-off curves, gaps and privacy figures."""


def _record(command: Command) -> Command:
    """The options that describe records of the random design; several values make several records."""
    for option in (
        click.option("--leverage", help="Population leverages h̄ = xᵀΣ⁻¹x, such as 1,5."),
        click.option("--error", help="Errors ε = y − xᵀθ under the true model, such as 0.5,1."),
        click.option("--freedom", type=float, help="n − p, records minus features."),
        click.option("--variance", type=float, help="Noise variance of the targets; default 1."),
        click.option("--outputs", type=int, help="Outputs; default 1."),
        click.option("--json", "as_json", is_flag=True, help="Print the result for machines."),
    ):
        command = option(command)
    return command


def _curve(command: Command) -> Command:
    """The options that choose the curve."""
    for option in (
        click.option("--h", help="Leverages of the fixed design, such as 0.1,0.5 (instead of --leverage)."),
        click.option("--test", help="threshold, optimal (sees the loss) or signed (the residual); default signed."),
        click.option("--integrate", is_flag=True, help="Average over the other records instead of taking their mean."),
    ):
        command = option(command)
    return command


@theory.command()
@_record
@_curve
@click.option("--fpr", default="0.001,0.01,0.05,0.1", show_default=True, help="False-positive rates.")
@click.option("--figure", help="Draw the curves into FILE.png, .svg or .pdf.")
def tradeoff(figure: str | None, as_json: bool, **flags: Any) -> None:
    """What the best attack on a record achieves."""
    from giveaway.cli.theory_answers import tradeoff_answer

    _print(tradeoff_answer(_given(flags), figure), as_json, figure)


@theory.command()
@_record
@click.option(
    "--draws", type=click.IntRange(2, 10_000_000), default=10_000, show_default=True, help="Of the simulation."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Of the simulation.")
@click.option("--figure", help="Draw the gap over error and leverage into FILE.png, .svg or .pdf.")
def gap(figure: str | None, as_json: bool, **flags: Any) -> None:
    """How much lower a record's loss is, on average, for having been trained on."""
    from giveaway.cli.theory_answers import gap_answer

    _print(gap_answer(_given(flags), figure), as_json, figure)


@theory.command()
@_record
@_curve
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ at which ε is given.")
@click.option("--true-positives", type=int, help="Of a measured attack: members it accused.")
@click.option("--members", type=int, help="Of a measured attack: members tried.")
@click.option("--false-positives", type=int, help="Of a measured attack: non-members it accused.")
@click.option("--nonmembers", type=int, help="Of a measured attack: non-members tried.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of the lower bound.")
def privacy(as_json: bool, **flags: Any) -> None:
    """The (ε, δ) and μ that a curve implies, or that a measured attack shows."""
    from giveaway.cli.theory_answers import privacy_answer

    _print(privacy_answer(_given(flags)), as_json, None)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None and value is not False}


def _print(answer: Answer, as_json: bool, figure: str | None) -> None:
    if as_json:
        say(json.dumps(answer.to_json(), ensure_ascii=False))
        return
    say(answer.to_text())
    if figure is not None:
        say(f"Wrote {figure}")
