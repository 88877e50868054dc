"""The command `giveaway theory`: numbers in, tables and figures out."""

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import click

from giveaway.cli.options import AS_JSON
from giveaway.text import say

Command = Callable[..., None]

ESTIMATE = "An estimate from the theory's model, not a measurement and not a guarantee."
LOWER_BOUND = "A lower bound on what this training leaks, from the counts given; not a guarantee of any upper bound."
COUNTS = ("true_positives", "members", "false_positives", "nonmembers")  # of a measured attack
RECORD = (  # options that describe records of the random design; several values make several records
    click.option("--leverage", help="Population leverages h̄ = xᵀΣ⁻¹x, such as 1,5."),
    click.option("--error", help="Errors ε = y − xᵀθ under the true model, such as 0.5,1."),
    click.option("--freedom", type=float, help="n − p, records minus features."),
    click.option("--variance", type=float, help="Noise variance of the targets; default 1."),
    click.option("--outputs", type=int, help="Number of outputs; default 1."),
    AS_JSON,
)
CURVE = (
    click.option("--h", help="Leverages of the fixed design, such as 0.1,0.5 (instead of --leverage)."),
    click.option("--test", help="threshold (sees the loss) or signed (sees the residual, default)."),
)


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in options:
            command = option(command)
        return command

    return add


@click.group()
def theory() -> None:
    """Compute trade-off curves, gaps and privacy figures."""


@theory.command()
@_options(*RECORD)
@_options(*CURVE)
@click.option("--fpr", default="0.001,0.01,0.05,0.1", show_default=True, help="False-positive rates.")
@click.option("--figure", help="Draw the curves into FILE.png, .svg or .pdf.")
def tradeoff(figure: str | None, as_json: bool, **flags: Any) -> None:
    """Predict what the best attack on a record achieves."""
    import numpy as np

    from giveaway.figures import tradeoff_curves

    options = _given(flags, figure)
    rates = [rate for rate, _ in _numbers("fpr", options["fpr"])]
    curves = _curves(options)
    rows = [
        (label, *(float(rate) for rate in np.atleast_1d(curve.tpr(np.array(rates)))), float(curve.auc()))
        for label, curve in curves.items()
    ]
    columns = ("record", *(f"TPR at {rate:g}" for rate in rates), "AUC")
    _print(columns, rows, ESTIMATE, as_json, figure, lambda: tradeoff_curves(curves))


@theory.command()
@_options(*RECORD)
@click.option("--figure", help="Draw the gap over error and leverage into FILE.png, .svg or .pdf.")
def gap(figure: str | None, as_json: bool, **flags: Any) -> None:
    """Predict how much training on a record lowers its loss on average."""
    from giveaway.figures import gap_map
    from giveaway.theory import expected_gap, gap_expansion

    options = _given(flags, figure)
    designs = _designs(options)
    rows = [(label, float(expected_gap(design)), float(gap_expansion(design))) for label, design in designs.items()]
    columns = ("record", "exact", "expansion")
    about = {"variance": options.get("variance", 1.0), "outputs": options.get("outputs", 1)}
    _print(columns, rows, ESTIMATE, as_json, figure, lambda: gap_map(options["freedom"], **about))


@theory.command()
@_options(*RECORD)
@_options(*CURVE)
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ at which ε is given.")
@click.option("--true-positives", type=int, help="Members that a measured attack accused.")
@click.option("--members", type=int, help="Members that it was tried on.")
@click.option("--false-positives", type=int, help="Non-members that it accused.")
@click.option("--nonmembers", type=int, help="Non-members that it was tried on.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Confidence of the lower bound.")
def privacy(as_json: bool, **flags: Any) -> None:
    """Turn a predicted curve, or the counts of a measured attack, into (ε, δ)."""
    from giveaway.checks import fail
    from giveaway.theory import epsilon_lower_bound, estimated_epsilon

    options = _given(flags)
    delta, confidence = options["delta"], options["confidence"]
    counts = [options[name] for name in COUNTS if name in options]
    if not counts:
        rows = [(label, float(estimated_epsilon(curve, delta))) for label, curve in _curves(options).items()]
        return _print(("record", f"ε at δ={delta:g}"), rows, ESTIMATE, as_json)
    if len(counts) < len(COUNTS):
        missing = next(name for name in COUNTS if name not in options)
        remedy = f"add --{missing.replace('_', '-')}"
        raise fail(missing, "all four counts of a measured attack", "some of them", remedy)
    if "h" in options or "leverage" in options:
        raise fail("h", "counts or a record, not both", "both", "drop one of them")
    epsilon = epsilon_lower_bound(*counts, delta=delta, confidence=confidence)
    _print((f"ε at δ={delta:g}, at least", "confidence"), [(float(epsilon.value), confidence)], LOWER_BOUND, as_json)


def _given(flags: dict[str, Any], figure: str | None = None) -> dict[str, Any]:
    from giveaway.checks import fail

    if figure is not None and Path(figure).suffix not in (".png", ".svg", ".pdf"):
        raise fail("figure", "a file name ending in .png, .svg or .pdf", figure, "change its ending")
    return {name: value for name, value in flags.items() if value is not None and value is not False}


def _numbers(argument: str, text: str) -> list[tuple[float, str]]:
    """Return numbers separated by commas, with what the user typed for them: rounded labels would fall together."""
    from giveaway.checks import fail

    try:
        return [(float(part), part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise fail(argument, "numbers such as 0.1,0.5", repr(text), "separate them by commas") from error


def _curves(options: dict[str, Any]) -> dict[str, Any]:
    """Return the TradeOff of every record that the options describe."""
    from giveaway.checks import check_choice, fail
    from giveaway.theory import fixed_design
    from giveaway.theory.random_design import TESTS

    if "h" in options:
        for name in ("leverage", "error", "freedom", "variance", "test"):
            if name in options:
                raise fail(name, "--leverage rather than --h", "both", f"drop --{name}: h is the fixed design's")
        outputs = options.get("outputs", 1)
        return {f"h={text}": fixed_design.tradeoff(h, m=outputs) for h, text in _numbers("h", options["h"])}
    test = check_choice("test", options.get("test", "signed"), TESTS)
    return {label: design.tradeoff(test) for label, design in _designs(options).items()}


def _designs(options: dict[str, Any]) -> dict[str, Any]:
    from giveaway.checks import fail
    from giveaway.theory import random_design

    for name in ("leverage", "error", "freedom"):
        if name not in options:
            remedy = "describe the record by --leverage, --error and --freedom"
            raise fail(name, f"--{name} of a record", "none", remedy + (", or by --h" if name == "leverage" else ""))
    defaults = (("variance", 1.0), ("outputs", 1))
    others: dict[str, Any] = {name: options.get(name, value) for name, value in defaults}
    pairs = product(_numbers("leverage", options["leverage"]), _numbers("error", options["error"]))
    return {
        f"h̄={typed} ε={also}": random_design(leverage, error, options["freedom"], **others)
        for (leverage, typed), (error, also) in pairs
    }


def _print(
    columns: tuple[str, ...],
    rows: list[Any],
    statement: str,
    as_json: bool,
    figure: str | None = None,
    draw: Any = None,
) -> None:
    """Print a table with aligned columns, or rows as objects, infinite numbers being null; save the figure."""
    from giveaway.reporting.picture import save_figure

    if figure is not None:
        save_figure(draw(), figure)
    if as_json:
        finite = [[None if isinstance(v, float) and not math.isfinite(v) else v for v in row] for row in rows]
        objects = [dict(zip(columns, row, strict=True)) for row in finite]
        say(json.dumps({"rows": objects, "statement": statement}, ensure_ascii=False))
        return
    lines = [[f"{cell:.5g}" if isinstance(cell, float) else str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        say("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    say(f"\n{statement}")
    if figure is not None:
        say(f"Wrote {figure}")
