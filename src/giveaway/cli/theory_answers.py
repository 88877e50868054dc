"""`giveaway theory`: numbers in, tables and figures out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.checks import check_choice, fail
from giveaway.figures import gap_map
from giveaway.reporting.figures import tradeoff_curves
from giveaway.reporting.picture import save_figure
from giveaway.theory import (
    RandomDesign,
    TradeOff,
    epsilon_lower_bound,
    estimated_epsilon,
    estimated_mu,
    expected_gap,
    fixed_design,
    gap_expansion,
    mu_lower_bound,
    random_design,
    simulated_gap,
)
from giveaway.theory.random_design import TESTS

ESTIMATE = "An estimate from the theory's model, not a measurement and not a guarantee."
LOWER_BOUND = "A lower bound on what this training leaks, from the counts given; not a guarantee of any upper bound."


@dataclass(frozen=True)
class Answer:
    """Rows of named cells, and what must be said with them."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    statement: str

    def to_text(self) -> str:
        """A table with aligned columns."""
        lines = [[_cell(cell) for cell in row] for row in [self.columns, *self.rows]]
        widths = [max(len(line[k]) for line in lines) for k in range(len(self.columns))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([*table, "", self.statement])

    def to_json(self) -> dict[str, Any]:
        """Rows as objects; an infinite number as null."""
        return {
            "rows": [dict(zip(self.columns, map(_finite, row), strict=True)) for row in self.rows],
            "statement": self.statement,
        }


def tradeoff_answer(options: dict[str, Any], figure: str | None) -> Answer:
    """True-positive rates at false-positive rates, and the AUC, of every record described."""
    _check_figure(figure)
    rates = numbers("fpr", options["fpr"])
    curves = _curves(options)
    rows = [
        (label, *(float(rate) for rate in np.atleast_1d(curve.tpr(np.array(rates)))), float(curve.auc()))
        for label, curve in curves.items()
    ]
    if figure is not None:
        save_figure(tradeoff_curves(curves), figure)
    return Answer(("record", *(f"TPR at {rate:g}" for rate in rates), "AUC"), rows, ESTIMATE)


def gap_answer(options: dict[str, Any], figure: str | None) -> Answer:
    """Expected gaps three ways."""
    _check_figure(figure)
    designs = _designs(options)
    rng = np.random.default_rng(options["seed"])
    rows = []
    for label, design in designs.items():
        simulated = simulated_gap(design, rng, draws=options["draws"])
        exact, series = float(expected_gap(design)), float(gap_expansion(design))
        rows.append((label, exact, series, float(simulated.mean), float(simulated.standard_error)))
    if figure is not None:
        about = {"variance": options.get("variance", 1.0), "outputs": options.get("outputs", 1)}
        save_figure(gap_map(options["freedom"], **about), figure)
    return Answer(("record", "exact", "expansion", "simulated", "standard error"), rows, ESTIMATE)


def privacy_answer(options: dict[str, Any]) -> Answer:
    """ε at a δ, and μ: estimates from curves, or lower bounds from the counts of a measured attack."""
    delta = options["delta"]
    counts = ("true_positives", "members", "false_positives", "nonmembers")
    given = [name for name in counts if name in options]
    if given:
        if len(given) < len(counts):
            missing = next(name for name in counts if name not in options)
            raise fail(missing, "all four counts of a measured attack", "some of them", f"add --{_flag(missing)}")
        if "h" in options or "leverage" in options:
            raise fail("h", "counts or a record, not both", "both", "drop one of them")
        numbers_ = [options[name] for name in counts]
        epsilon = epsilon_lower_bound(*numbers_, delta=delta, confidence=options["confidence"])
        mu = mu_lower_bound(*numbers_, confidence=options["confidence"])
        row = (float(epsilon.value), float(mu.value), options["confidence"])
        return Answer((f"ε at δ={delta:g}, at least", "μ, at least", "confidence"), [row], LOWER_BOUND)
    rows = []
    for label, curve in _curves(options).items():
        mu_of = estimated_mu(curve)
        rows.append((label, float(estimated_epsilon(curve, delta)), float(mu_of.low), float(mu_of.high)))
    return Answer(("record", f"ε at δ={delta:g}", "μ, least", "μ, greatest"), rows, ESTIMATE)


def numbers(argument: str, text: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise fail(argument, "numbers such as 0.1,0.5", repr(text), "separate them by commas") from error


def _typed(argument: str, text: str) -> list[tuple[str, float]]:
    """Numbers with what the user typed for them: rounded labels would fall together."""
    return list(zip((part.strip() for part in text.split(",")), numbers(argument, text), strict=True))


def _check_figure(path: str | None) -> None:
    if path is not None and Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise fail("figure", "a file name ending in .png, .svg or .pdf", path, "change its ending")


def _curves(options: dict[str, Any]) -> dict[str, TradeOff]:
    if "h" in options:
        for name in ("leverage", "error", "freedom", "variance", "test", "integrate"):
            if name in options:
                raise fail(name, "--leverage rather than --h", "both", f"drop --{_flag(name)}: h is the fixed design's")
        outputs = options.get("outputs", 1)
        return {f"h={text}": fixed_design.tradeoff(h, m=outputs) for text, h in _typed("h", options["h"])}
    test = check_choice("test", options.get("test", "signed"), TESTS)
    return {label: design.tradeoff(test) for label, design in _designs(options).items()}


def _designs(options: dict[str, Any]) -> dict[str, RandomDesign]:
    for name in ("leverage", "error", "freedom"):
        if name not in options:
            remedy = "describe the record by --leverage, --error and --freedom"
            raise fail(name, f"--{name} of a record", "none", remedy + (", or by --h" if name == "leverage" else ""))
    pairs = product(_typed("leverage", options["leverage"]), _typed("error", options["error"]))
    return {
        f"h̄={typed} ε={also}": random_design(
            leverage,
            error,
            options["freedom"],
            variance=options.get("variance", 1.0),
            outputs=options.get("outputs", 1),
            integrate=options.get("integrate", False),
        )
        for (typed, leverage), (also, error) in pairs
    }


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value
