"""The rules of a gate: a TOML file, read and checked before any work is done for it.

A rule names one of three measures that mean the same for every model: the measured count of `giveaway validate`, the
predicted success of an audit, or a change against retrains of one recipe beyond their noise. A waiver, with its owner
and the last day it holds, lets a rule be missed.
"""

from __future__ import annotations

import datetime
import hashlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giveaway.checks import fail, nearest

SCHEMA = 1
LEAST_BASELINES = 3
LONGEST = 200  # characters of a name, an owner or a reason
NO_COMMON_UNIT = (
    "values of different models have no common unit: the largest newton is .03 on CIFAR-10 and 80 on BloodMNIST, of "
    "which CIFAR-10 gives more away; gate a measured count, predicted success or a change"
)


LEAST_POWER = 0.5  # of a measured count unless a rule says otherwise: few models would meet any limit


@dataclass(frozen=True)
class Rule:
    """What one rule measures and allows; what its measure does not use is None."""

    name: str
    measure: str
    at_most: int | None = None
    at_most_share: float | None = None
    least_power: float = LEAST_POWER
    above: float | None = None
    of: str | None = None
    baseline: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Waiver:
    """Who answers for a rule not being met, why, and the last day of it."""

    rule: str
    owner: str
    expires: datetime.date
    reason: str


@dataclass(frozen=True)
class Rules:
    """A rule file; `digest` is its SHA-256."""

    rules: tuple[Rule, ...]
    waivers: tuple[Waiver, ...]
    digest: str

    @property
    def needs_validation(self) -> bool:
        """Whether a rule asks for what `giveaway validate` measures."""
        return any(rule.measure == "measured_count" for rule in self.rules)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rules look at; predicted_success is in an audit only when asked for by name."""
        named = {"measured_count": None, "predicted_success": "predicted_success"}
        found = (named.get(rule.measure, rule.of) for rule in self.rules)
        return tuple(dict.fromkeys(name for name in found if name is not None))


@dataclass(frozen=True)
class _Key:
    """What a key of the file must hold."""

    expected: str
    valid: Callable[[Any], bool]
    required: bool = True


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _line(value: Any) -> bool:
    return isinstance(value, str) and len(value.strip()) > 0 and len(value) <= LONGEST and value.isprintable()


def _folders(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) and part for part in value)


TEXT = _Key(f"one line of text, up to {LONGEST} characters", _line)
SHARE = _Key("a share from 0 to 1", lambda value: _number(value) and 0 <= value <= 1)
ABOVE = _Key("a success from 0.5 up to, but not, 1", lambda value: _number(value) and 0.5 <= value < 1)
COUNT = _Key("a whole number, 0 or more", lambda value: type(value) is int and value >= 0, required=False)
OF = _Key('"loo_gap" or "predicted_success"', lambda value: value in ("loo_gap", "predicted_success"))
MAYBE_SHARE = _Key(SHARE.expected, SHARE.valid, required=False)
OF_RULES: Mapping[str, Mapping[str, _Key]] = {
    "measured_count": {"at_most": COUNT, "at_most_share": MAYBE_SHARE, "least_power": MAYBE_SHARE},
    "predicted_success": {"above": ABOVE, "at_most_share": SHARE},
    "change": {"of": OF, "baseline": _Key("a list of audit folders", _folders)},
}
OF_WAIVERS = {
    "rule": TEXT,
    "owner": TEXT,
    "expires": _Key("a date such as 2027-03-01, without quotes", lambda value: type(value) is datetime.date),
    "reason": TEXT,
}


def read_rules(path: str | Path) -> Rules:
    """The rules of a TOML file; whatever cannot be judged later is refused here, in one line."""
    file = Path(path)
    try:
        content = file.read_bytes()
        given = tomllib.loads(content.decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise fail("gate", "a readable TOML file of rules", f"{path} ({error})", "correct it") from error
    if type(given.get("schema")) is not int or given["schema"] != SCHEMA:
        raise fail("gate", f"schema = {SCHEMA}", repr(given.get("schema")), "name the version of the rules' format")
    for key in given:
        if key not in ("schema", "rule", "waiver"):
            raise fail("gate", "schema, [[rule]] and [[waiver]]", f"{key!r}", nearest(key, ("rule", "waiver")))
    rules = tuple(_rule(number, table, file.parent) for number, table in _tables(given, "rule"))
    if not rules:
        raise fail("gate", "at least one [[rule]]", "none", "say what is measured and what is allowed")
    waivers = tuple(_waiver(number, table) for number, table in _tables(given, "waiver"))
    names = [rule.name for rule in rules]
    _once("rule", "a name of its own for every rule", names)
    _once("waiver", "one waiver a rule", [waiver.rule for waiver in waivers])
    for waiver in waivers:
        if waiver.rule not in names:
            raise fail("waiver", "the name of a rule in this file", repr(waiver.rule), nearest(waiver.rule, names))
    return Rules(rules, waivers, hashlib.sha256(content).hexdigest())


def _tables(given: dict[str, Any], key: str) -> list[tuple[int, dict[str, Any]]]:
    tables = given.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise fail("gate", f"[[{key}]] in double brackets", f"another {key!r}", f"write [[{key}]] above each {key}")
    return list(enumerate(tables, start=1))


def _rule(number: int, table: dict[str, Any], beside: Path) -> Rule:
    place = f"rule {number}"
    _check(place, {key: table[key] for key in ("name",) if key in table}, {"name": TEXT})
    place = f"rule {table['name']!r}"
    measure = table.get("measure")
    if not isinstance(measure, str) or measure not in OF_RULES:
        got = "none" if measure is None else repr(measure)
        raise fail(place, f"measure to be {', '.join(OF_RULES)}", got, NO_COMMON_UNIT)
    given = {key: value for key, value in table.items() if key not in ("name", "measure")}
    if measure == "change" and isinstance(given.get("of"), str) and not OF.valid(given["of"]):
        raise fail(place, f"of = {OF.expected}", repr(given["of"]), NO_COMMON_UNIT)
    _check(place, given, OF_RULES[measure])
    if measure == "measured_count" and len({"at_most", "at_most_share"} & given.keys()) != 1:
        both = "both" if "at_most" in given else "neither"
        raise fail(place, "either at_most or at_most_share", both, "give one limit")
    if measure == "change":
        given["baseline"] = _baseline(place, [beside / folder for folder in given["baseline"]])
    return Rule(table["name"], measure, **given)


def _waiver(number: int, table: dict[str, Any]) -> Waiver:
    _check(f"waiver {number}", table, OF_WAIVERS)
    return Waiver(**table)


def _check(place: str, given: Mapping[str, Any], keys: Mapping[str, _Key]) -> None:
    for key, value in given.items():
        if key not in keys:
            raise fail(place, f"only {', '.join(keys)} beside name and measure", repr(key), nearest(key, keys))
        if not keys[key].valid(value):
            raise fail(place, f"{keys[key].expected} for {key}", repr(value), "correct it")
    for key, wanted in keys.items():
        if wanted.required and key not in given:
            raise fail(place, f"{key}, {wanted.expected}", "none", "add it")


def _baseline(place: str, folders: list[Path]) -> tuple[Path, ...]:
    different = tuple({folder.resolve(): None for folder in folders})
    if len(different) < LEAST_BASELINES:
        expected = f"a baseline of at least {LEAST_BASELINES} different audits"
        remedy = "train the recipe with other seeds and audit each: one or two models do not show its noise"
        raise fail(place, expected, f"{len(different)}", remedy)
    for folder in different:
        if not (folder / "scores.npz").is_file():
            raise fail(place, "audit folders in baseline", str(folder), "name the folders given to --out")
    return different


def _once(argument: str, expected: str, names: list[str]) -> None:
    for number, name in enumerate(names):
        if name in names[:number]:
            raise fail(argument, expected, f"{name!r} twice", "keep one of them")
