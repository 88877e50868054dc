"""The command `giveaway theory`: numbers in, tables and figures out."""

import json
import math
from itertools import product
from typing import Any

import click

from giveaway.cli.options import AS_JSON
from giveaway.text import say

ESTIMATE = "An estimate from the theory's model, not a measurement and not a guarantee."
LOWER_BOUND = "A lower bound on what this training leaks, from the counts given; not a guarantee of any upper bound."


def _numbers(_: click.Context, option: click.Parameter, text: str | None) -> list[float] | None:
    from giveaway.checks import fail

    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError as error:
        raise fail(option.opts[0][2:], "numbers such as 0.1,0.5", repr(text), "separate them by commas") from error


LEVERAGE = click.option("--leverage", callback=_numbers, help="Population leverages h̄ = xᵀΣ⁻¹x, such as 1,5.")
ERROR = click.option("--error", callback=_numbers, help="Errors ε = y − xᵀθ under the true model, such as 0.5,1.")
FREEDOM = click.option("--freedom", type=float, help="n − p, records minus features.")
VARIANCE = click.option("--variance", type=float, help="Noise variance of the targets; default 1.")
OUTPUTS = click.option("--outputs", type=int, default=1, show_default=True, help="Number of outputs.")


@click.group()
def theory() -> None:
    """Compute trade-off curves, gaps and privacy figures."""


@theory.command()
@click.option("--h", "fixed", callback=_numbers, help="Leverages of the fixed design (instead of --leverage).")
@LEVERAGE
@ERROR
@FREEDOM
@VARIANCE
@OUTPUTS
@click.option("--test", help="threshold (sees the loss) or signed (sees the residual, default).")
@click.option(
    "--fpr", callback=_numbers, default="0.001,0.01,0.05,0.1", show_default=True, help="False-positive rates."
)
@click.option("--delta", type=float, help="Add the ε that the curve has at this δ.")
@click.option("--figure", help="Draw the curves into FILE.png, .svg or .pdf.")
@AS_JSON
def tradeoff(fixed: Any, outputs: int, fpr: Any, delta: Any, figure: Any, as_json: bool, **random: Any) -> None:
    """Predict what the best attack on a record achieves."""
    from giveaway.checks import fail
    from giveaway.figures import tradeoff_curves
    from giveaway.theory import estimated_epsilon, fixed_design

    if fixed is None:
        test = random.pop("test") or "signed"
        curves = {label: design.tradeoff(test) for label, design in _designs(outputs=outputs, **random).items()}
    else:
        for name, value in random.items():
            if value is not None:
                raise fail(name, "--leverage rather than --h", "both", f"drop --{name}: h is the fixed design's")
        curves = {f"h={h}": fixed_design.tradeoff(h, m=outputs) for h in fixed}
    rows = []
    for label, curve in curves.items():
        row = {"record": label} | {f"TPR at {rate:g}": float(curve.tpr(rate)) for rate in fpr}
        row["AUC"] = float(curve.auc())
        rows.append(row if delta is None else row | {f"ε at δ={delta:g}": float(estimated_epsilon(curve, delta))})
    _print(rows, ESTIMATE, as_json, figure, lambda: tradeoff_curves(curves))


@theory.command()
@LEVERAGE
@ERROR
@FREEDOM
@VARIANCE
@OUTPUTS
@click.option("--figure", help="Draw the gap over error and leverage into FILE.png, .svg or .pdf.")
@AS_JSON
def gap(outputs: int, figure: str | None, as_json: bool, **record: Any) -> None:
    """Predict how much training on a record lowers its loss on average."""
    from giveaway.figures import gap_map
    from giveaway.theory import expected_gap, gap_expansion

    rows = [
        {"record": label, "exact": float(expected_gap(design)), "expansion": float(gap_expansion(design))}
        for label, design in _designs(outputs=outputs, **record).items()
    ]
    about: dict[str, Any] = {"variance": record["variance"] or 1.0, "outputs": outputs}
    _print(rows, ESTIMATE, as_json, figure, lambda: gap_map(record["freedom"], **about))


@theory.command()
@click.option("--true-positives", type=int, required=True, help="Members that a measured attack accused.")
@click.option("--members", type=int, required=True, help="Members that it was tried on.")
@click.option("--false-positives", type=int, required=True, help="Non-members that it accused.")
@click.option("--nonmembers", type=int, required=True, help="Non-members that it was tried on.")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ at which ε is given.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Confidence of the lower bound.")
@AS_JSON
def privacy(delta: float, confidence: float, as_json: bool, **counts: int) -> None:
    """Turn the counts of a measured attack into a lower bound on ε."""
    from giveaway.theory import epsilon_lower_bound

    epsilon = float(epsilon_lower_bound(**counts, delta=delta, confidence=confidence).value)
    _print([{f"ε at δ={delta:g}, at least": epsilon, "confidence": confidence}], LOWER_BOUND, as_json)


def _designs(leverage: Any, error: Any, freedom: Any, variance: float | None, outputs: int) -> dict[str, Any]:
    """Return the random design of every record that the options describe."""
    from giveaway.checks import fail
    from giveaway.theory import random_design

    for name, value in (("leverage", leverage), ("error", error), ("freedom", freedom)):
        if value is None:
            remedy = "give --leverage, --error and --freedom; tradeoff takes --h"
            raise fail(name, f"--{name} of a record", "none", remedy)
    others: dict[str, Any] = {"variance": 1.0 if variance is None else variance, "outputs": outputs}
    return {f"h̄={h} ε={e}": random_design(h, e, freedom, **others) for h, e in product(leverage, error)}


def _print(
    rows: list[dict[str, Any]], statement: str, as_json: bool, figure: str | None = None, draw: Any = None
) -> None:
    """Print a table with aligned columns, or rows as objects, infinite numbers being null; save the figure."""
    from giveaway.reporting.picture import save_figure

    if figure is not None:
        save_figure(draw(), figure)
    if as_json:
        objects = [{k: None if v in (math.inf, -math.inf) else v for k, v in row.items()} for row in rows]
        say(json.dumps({"rows": objects, "statement": statement}, ensure_ascii=False))
        return
    lines = [list(rows[0])]
    lines += [[f"{cell:.5g}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        say("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    say(f"\n{statement}")
    if figure is not None:
        say(f"Wrote {figure}")
