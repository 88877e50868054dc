"""How numbers are written on docs/results.md: the filters and functions that its templates and rules may use."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import jinja2

FEW_TARGETS = 4  # fewer have no spread to speak of


def section_template(name: str) -> jinja2.Template:
    return _environment().get_template(name)


def say(template: str, names: Mapping[str, Any]) -> str:
    """Fill in a template; a name that is not there is an error, never an empty cell."""
    return _template(template).render(**names)


def value_of(expression: str, names: Mapping[str, Any]) -> Any:
    """Evaluate an expression in the language of the templates."""
    return _expression(expression)(**names)


@cache
def _template(source: str) -> jinja2.Template:
    return _environment().from_string(source)


@cache
def _expression(source: str) -> Any:
    return _environment().compile_expression(source, undefined_to_none=False)


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "fixed": fixed,
        "digits": digits,
        "whole": lambda value: f"{value:,.0f}",
        "percent": lambda share, places=0: f"{100 * share:.{places}f} %",
        "scientific": lambda value: f"{value:.0e}",
        "signed": signed,
        "spread": spread,
        "plus": plus,
        "both": lambda value: (
            f"Pearson {fixed(value['pearson'], 2)} (p = {digits(value['p'], 1)}), "
            f"Spearman {fixed(value['spearman'], 2)}"
        ),
        "pair": lambda value: f"{fixed(value['pearson'], 2)} · {fixed(value['spearman'], 2)}",
        "between": lambda values: f"{min(values):.4f} to {max(values):.4f} in {len(values)} records",
        "duration": duration,
        "targets": lambda count: f"{count} targets" if count > 1 else "one target",
        "capital": lambda text: text[:1].upper() + text[1:],
        "average": mean,
        "argmax": lambda values: max(range(len(values)), key=values.__getitem__),
        "at": lambda mapping, keys: [mapping[key] for key in keys],
        "starting": lambda mapping, prefix: [value for key, value in mapping.items() if key.startswith(prefix)],
    }
    made.globals |= {
        "zip": zip,
        "gain": gain,
        "column": lambda cells, key: [cell[key] for cell in cells.values()],
        "total": lambda rows, key: sum(cell[key] for row in rows.values() for cell in row.values()),
        "largest": lambda rows: max(cell["largest"] for row in rows.values() for cell in row.values()),
        "differences": lambda one, other: [a - b for a, b in zip(one, other, strict=True)],
        "widens": widens,
    }
    return made


def fixed(value: float, places: int) -> str:
    return _minus(f"{round(value, places) + 0.0:.{places}f}")


def signed(value: float, places: int) -> str:
    return _minus(f"{value:+.{places}f}")


def digits(value: float, count: int | None = None) -> str:
    """Write so many significant digits, or as few as say the number."""
    return _minus(f"{value:g}" if count is None else f"{value:.{count}g}")


def spread(cell: Sequence[float | None], places: int, scale: float = 1.0) -> str:
    """Write mean ± deviation; a single target has no deviation."""
    middle, deviation = cell
    assert middle is not None
    shown = fixed(scale * middle, places)
    return shown if deviation is None else f"{shown} ± {scale * deviation:.{places}f}"


def plus(value: Mapping[str, float], places: int = 2) -> str:
    """Write a mean with half the width of the middle 95 %, which a few targets do not have."""
    shown = fixed(value["mean"], places)
    return shown if value["of"] < FEW_TARGETS else f"{shown} ± {value['half_width']:.{places}f}"


def duration(seconds: float | None) -> str:
    """Write a time in the unit that a reader would choose."""
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def gain(one: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """How many points more one score finds than another, target by target: mean, standard error, and both in words."""
    more = [100 * (a - b) for a, b in zip(one, other, strict=True)]
    if len(more) < 2:
        return {"mean": mean(more), "error": math.inf, "text": ""}
    error = stdev(more) / math.sqrt(len(more))
    text = f"; {signed(mean(more), 1)} ± {error:.1f} (standard error) over the same {len(one)} targets"
    return {"mean": mean(more), "error": error, "text": text}


def widens(ratios: Sequence[float]) -> bool:
    """Whether ratios go away from 1 by a larger factor each time, all in one direction."""
    one_way = all(ratio > 1 for ratio in ratios) or all(ratio < 1 for ratio in ratios)
    return one_way and all(max(b, 1 / b) > max(a, 1 / a) for a, b in pairwise(ratios))


def unwrap(text: str) -> str:
    """Join the lines of each paragraph and list item, as templates wrap them; tables, code and headings stay."""
    lines: list[str] = []
    code = False
    for line in text.splitlines():
        alone = line.startswith(("|", "#", "!", "- ", "```")) or not line
        code ^= line.startswith("```")
        if alone or code or not lines or not lines[-1] or lines[-1].startswith(("|", "#", "!", "```")):
            lines.append(line)
        else:
            lines[-1] += f" {line}"
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"


def _minus(number: str) -> str:
    return number.replace("-", "−", 1) if number.startswith("-") else number
