"""Verdicts on what the papers claim, and how numbers are written: rules and templates are evaluated on our results.

A claim has a `text`, a `rule` in words and `measured`, which are templates, and `holds`, an expression that is true,
false, UNDECIDED (the interval covers both) or none (not measured); `let` names parts of them. A claim on `settings` is
evaluated for each setting as `found`, one on `depths` for each depth as `depth`; all others for the results as a whole,
and `needs` names the setting they depend on. What mathematics says anyway is `identity = true`: checked, not judged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import jinja2

FEW_TARGETS = 4  # fewer have no spread to speak of, and decide nothing
ERRORS = 2  # standard errors on either side of an estimate
UNDECIDED = "undecided"


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
        "capital": lambda text: (text[:1].upper() if text[:1].isascii() else text[:1]) + text[1:],  # not of σ
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
        "grows": grows,
        "say": say,
        "beyond": beyond,
        "worst": worst,
        "share_beyond": share_beyond,
        "higher_correlation": higher_correlation,
        "UNDECIDED": UNDECIDED,
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
    """How many points more one score finds than another, target by target: mean, standard error, verdict and words."""
    more = [100 * (a - b) for a, b in zip(one, other, strict=True)]
    if len(more) < 2:
        return {"mean": mean(more), "error": math.inf, "verdict": UNDECIDED, "text": ""}
    error = stdev(more) / math.sqrt(len(more))
    verdict = beyond(mean(more), ERRORS * error, len(more))
    text = f"; {signed(mean(more), 1)} ± {error:.1f} (standard error) over the same {len(one)} targets"
    return {"mean": mean(more), "error": error, "verdict": verdict, "text": text}


def beyond(excess: float, margin: float, targets: int = FEW_TARGETS) -> bool | str:
    """Judge whether an estimate exceeds its bar: undecided if the interval covers both, or there are too few targets.
    Equality without any margin is not more."""
    if targets < FEW_TARGETS or not abs(excess) >= margin:
        return UNDECIDED
    return excess > 0


def worst(*verdicts: bool | str | None) -> bool | str | None:
    """Judge that all of them hold: one that fails decides, then one that is undecided, then one not measured."""
    return next((kind for kind in (False, UNDECIDED, None) if any(verdict is kind for verdict in verdicts)), True)


def share_beyond(count: float, of: int, bar: float) -> bool | str:
    """Judge whether a share of independent cases exceeds a bar, by Wilson's interval of two standard errors."""
    share, square = count / of, ERRORS**2 / of
    middle = (share + square / 2) / (1 + square)
    margin = math.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
    return beyond(middle - bar, margin)


def higher_correlation(one: float, other: float, records: int) -> bool | str:
    """Judge whether a correlation over these records is higher than another, by Fisher's transform as if the two were
    independent, which is cautious where both are with one truth."""
    return beyond(math.atanh(one) - math.atanh(other), ERRORS * math.sqrt(2 * 1.06 / (records - 3)))


def grows(ratios: Sequence[float]) -> bool:
    """Whether ratios are above 1 and larger each time."""
    return ratios[0] > 1 and all(b > a for a, b in pairwise(ratios))


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


NOT_RUN, NO_DATA = "not run yet", "data not available"
HOLDS, FAILS, UNMEASURED = "holds", "does not hold here", "not measured yet"
EXACT, INEXACT = "checked: true", "checked: not true"

Verdict = bool | str | None  # true, false, UNDECIDED, not measured
Results = dict[str, dict[str, Any]]  # by setting
Names = Mapping[str, Any]  # what a rule or template may speak of


@dataclass(frozen=True)
class Claim:
    """A sentence, its verdict, the rule of the verdict in words, and the numbers behind it."""

    text: str
    verdict: str
    rule: str
    measured: str


def judge(names: Names) -> list[Claim]:
    """Judge all claims of a paper. `names` holds its TOML, the results by setting (None where missing) and `depths`."""
    return [_Rule(claim, names).judge() for claim in names["claims"]]


class _Rule:
    def __init__(self, claim: dict[str, Any], names: Names) -> None:
        self.claim, self.names = claim, names

    def judge(self) -> Claim:
        if "settings" in self.claim:
            holds, measured = self._of_settings()
        elif self.claim.get("needs_depth", "") not in ("", *self.names.get("depths", ())):
            holds, measured = None, NOT_RUN
        elif "depths" in self.claim:
            holds, measured = self._of_depths()
        elif "needs" in self.claim and self.names[self.claim["needs"]] is None:
            holds, measured = None, NOT_RUN
        else:
            names = self._let(self.claim, self.names)
            holds, measured = value_of(self.claim["holds"], names), say(self.claim["measured"], names)
        said = {True: HOLDS, False: FAILS, UNDECIDED: UNDECIDED, None: UNMEASURED}
        if self.claim.get("identity"):
            said |= {True: EXACT, False: INEXACT}
        text, rule = (say(self.claim[name], self.names) for name in ("text", "rule"))
        return Claim(text, said[holds], rule, measured)

    def _of_settings(self) -> tuple[Verdict, str]:
        """Say in how many settings it is true, and each with its numbers."""
        wanted = self.claim["settings"]
        rules = dict.fromkeys(self.names[wanted] if isinstance(wanted, str) else wanted, self.claim)
        rules |= self.claim.get("also", {})
        seen: list[tuple[Verdict, str]] = []
        beside = ""
        counted = len(rules)
        for name, rule in rules.items():
            if (found := self.names["results"].get(name)) is None:
                continue
            here = {**self.names, "found": found, "short": self.names["settings"][name]}
            if "measurable" in rule and not value_of(rule["measurable"], here):
                continue
            here = self._let(rule, here)
            if "not_counted" in rule and value_of(rule["not_counted"], here):
                beside += f"; {say(rule['beside'], here)}"
                counted -= 1
                continue
            holds = value_of(rule["holds"], here)
            text = f"{here['short']}: {say(rule['measured'], here)}"
            seen.append((holds, text + {True: "", False: " (not so)", UNDECIDED: " (undecided)"}[holds]))
        holding, failing = (sum(holds is kind for holds, _ in seen) for kind in (True, False))
        unseen = [None] * (counted - len(seen))
        if self.claim.get("quantity") == "most":
            open_yet = None if unseen else UNDECIDED
            verdict: Verdict = True if 2 * holding > counted else False if 2 * failing >= counted else open_yet
        else:
            verdict = worst(*(holds for holds, _ in seen), *unseen)
        if not seen:
            return verdict, NOT_RUN + beside
        missing = f", {counted - len(seen)} not run yet" if len(seen) < counted else ""
        told = "; ".join(text for _, text in seen)
        return verdict, f"true in {holding} of {len(seen)}{missing}: {told}{beside}"

    def _of_depths(self) -> tuple[Verdict, str]:
        """Judge by the depths that count; all that were measured are told."""
        seen, judged = [], []
        for number, depth in enumerate(self.names["depths"].values()):
            if self.claim["depths"] == "deeper" and number == 0:
                continue
            here = self._let(self.claim, {**self.names, "depth": depth})
            seen.append({**depth, "text": say(self.claim.get("each", ""), here)})
            if value_of(self.claim["counts"], here):
                judged.append(value_of(self.claim["holds"], here))
        holds = worst(*judged) if judged else None
        if not judged and "each" not in self.claim:
            return holds, NOT_RUN
        if not seen and self.claim["depths"] != "deeper":
            return holds, NOT_RUN
        return holds, say(self.claim["measured"], {**self.names, "seen": seen})

    def _let(self, rule: Mapping[str, Any], names: Names) -> Names:
        for name, expression in rule.get("let", {}).items():
            names = {**names, name: value_of(expression, names)}
        return names
