"""Judge an audit folder by the rules of a TOML file. Each rule is met, waived or not met, and no record is named.

A rule uses one of four measures that mean the same for every model: the count that `giveaway validate` measured, the
share of records above a predicted success, the predicted share of exposed records in words, or a change beyond the
noise of retrains of one recipe. A waiver lets a rule be missed; it names its owner and the last day on which it holds.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giveaway.checks import fail, nearest
from giveaway.findings.changes import LEAST_RETRAINS, Measurement, check_column, measure_change, share_above
from giveaway.records import ScoreTable
from giveaway.records.meta import SHARE_WORDS
from giveaway.records.score_table import TableFolder
from giveaway.storage.files import read_json, read_toml

FILE = "gate.json"
SCHEMA = 1
LONGEST = 200  # characters of a name, an owner or a reason
LEAST_POWER = 0.5  # of a measured count unless a rule says otherwise: with few models any limit would be met
NO_COMMON_UNIT = (
    "values of different models have no common unit: the largest newton is .03 on CIFAR-10 and 80 on BloodMNIST, "
    "although CIFAR-10 gives more away; gate a measured count, predicted success or a change"
)


@dataclass(frozen=True)
class Rule:
    """What one rule measures and allows; a measure does not use all of the fields."""

    name: str
    measure: str
    at_most: int | None = None
    at_most_share: float = 0.0
    at_most_word: str = ""
    least_power: float = LEAST_POWER
    above: float = 0.0
    of: str = ""
    baseline: tuple[Path, ...] = ()

    @property
    def limits(self) -> dict[str, Any]:
        """What the rule file allows, but for the folders of a baseline."""
        unused = ("baseline", "at_most" if self.at_most is None else "at_most_share")
        return {key: getattr(self, key) for key in RULE_KEYS[self.measure] if key not in unused}


@dataclass(frozen=True)
class Waiver:
    """Who answers for a missed rule, why, and the last day on which that is accepted."""

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

    def missing_columns(self, scores: Sequence[str]) -> list[str]:
        """Return the columns that the rules need besides `scores` of an audit to come; refuse what it cannot answer."""
        if any(rule.measure == "measured_count" for rule in self.rules):
            got = "a measured count, which an audit alone does not have"
            raise fail("gate", "rules on an audit", got, "run giveaway validate FOLDER --gate with them")
        needed = ("predicted_success" if rule.measure == "predicted_success" else rule.of for rule in self.rules)
        missing = [column for column in dict.fromkeys(needed) if column and column not in scores]
        if missing and "default" not in scores:
            raise fail("gate", f"the column {missing[0]} among the scores", "none", f"add {missing[0]} to --scores")
        return missing


@dataclass(frozen=True)
class Outcome:
    """The result of one rule. `words` say what was measured and what was allowed."""

    rule: Rule
    value: float
    allowed: float
    words: str
    details: dict[str, Any]
    waiver: Waiver | None
    today: datetime.date

    @property
    def met(self) -> bool:
        return self.value <= self.allowed

    @property
    def waived(self) -> bool:
        return not self.met and self.waiver is not None and self.today <= self.waiver.expires

    @property
    def state(self) -> str:
        return "met" if self.met else "waived" if self.waived else "not met"

    def to_text(self) -> str:
        line = f"{self.state}: {self.rule.name}: {self.words}"
        if self.met or self.waiver is None:
            return line
        if self.waived:
            return f"{line}; waived by {self.waiver.owner} until {self.waiver.expires}: {self.waiver.reason}"
        return f"{line}; the waiver of {self.waiver.owner} expired on {self.waiver.expires}"

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"name": self.rule.name, "measure": self.rule.measure}
        told |= {"value": self.value, "allowed": self.allowed, "met": self.met, "waived_by": None, "waiver": None}
        if (waiver := self.waiver) is not None:
            told["waived_by"] = waiver.owner if self.waived else None
            told["waiver"] = {"owner": waiver.owner, "expires": waiver.expires.isoformat(), "reason": waiver.reason}
            told["waiver"]["expired"] = self.today > waiver.expires
        return {**told, "words": self.words, **self.details}


@dataclass(frozen=True)
class Verdict:
    """The outcomes of all rules, in the order of the file."""

    outcomes: tuple[Outcome, ...]
    today: datetime.date
    rules_digest: str

    @property
    def met(self) -> bool:
        return all(outcome.met for outcome in self.outcomes)

    @property
    def state(self) -> str:
        return "met" if self.met else "not met" if self.exit_code else "waived"

    @property
    def exit_code(self) -> int:
        """0 if every rule is met or waived, otherwise 3."""
        return 0 if all(outcome.met or outcome.waived for outcome in self.outcomes) else 3

    def to_text(self) -> str:
        """One line per rule, then the totals."""
        missed = [outcome.rule.name for outcome in self.outcomes if not (outcome.met or outcome.waived)]
        waived = sum(outcome.waived for outcome in self.outcomes)
        total = f"{sum(outcome.met for outcome in self.outcomes)} of {len(self.outcomes)} rules met"
        total += f", {waived} waived" if waived else ""
        total += f"; not met: {', '.join(missed)}" if missed else ""
        lines = [outcome.to_text() for outcome in self.outcomes]
        return "\n".join([*lines, f"{total}. Meeting a rule is not evidence of safety."])

    def to_json(self) -> dict[str, Any]:
        """The contents of gate.json."""
        return {
            "schema": "giveaway.gate/1",
            "met": self.met,
            "exit_code": self.exit_code,
            "date": self.today.isoformat(),
            "rules_sha256": self.rules_digest,
            "rules": [outcome.to_json() for outcome in self.outcomes],
        }


def judge(rules: Rules, folder: str | Path, today: datetime.date, table: ScoreTable | None = None) -> Verdict:
    """Measure the audit in `folder` by every rule. A rule whose data are missing raises an error and is never met.

    `table` are the scores of its records, where they are at hand.
    """
    table = ScoreTable.load(folder, "scores") if table is None else table
    waivers = {waiver.rule: waiver for waiver in rules.waivers}
    outcomes = []
    for rule in rules.rules:
        measured = MEASURES[rule.measure](f"rule {rule.name!r}", rule, table, Path(folder))
        outcomes.append(Outcome(rule, *measured, waivers.get(rule.name), today))
    return Verdict(tuple(outcomes), today, rules.digest)


def _measured_count(place: str, rule: Rule, table: ScoreTable, folder: Path) -> Measurement:
    remedy = "run giveaway validate on the folder again"
    file = TableFolder(folder).verified("validation.json")
    if not file.is_file():
        raise fail(place, "an audit that was validated", "none", "run giveaway validate on the folder first")
    stated = read_json(place, file, remedy)
    try:
        records, models, exposed = int(stated["records"]), int(stated["models"]), stated["at_least_exposed"]
        count, by_success = int(exposed["records"]), int(exposed["by_success"])
        power = float(exposed["power_at_twice_that"]) * int(exposed["judged"]) / records
        sure = float(exposed["confidence"])
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise fail(place, "a readable validation.json", "one that is not", remedy) from error
    if records != len(table):
        got = f"one of {records} records beside an audit of {len(table)}"
        raise fail(place, "a validation of this audit", got, remedy)
    most = max(count, by_success)  # a count must not pass where the attack's own success says more
    value, allowed, limit = most / records, rule.at_most_share, f"{rule.at_most_share:.3%} of them"
    if rule.at_most is not None:
        value, allowed, limit = float(most), float(rule.at_most), f"{rule.at_most}"
    if power < rule.least_power and value <= allowed:
        got = f"{power:.2f} with {models} models"
        remedy = "train more shadow models and validate again, or set least_power"
        raise fail(place, f"a count with a power of at least {rule.least_power:g}", got, remedy)
    words = (
        f"at least {most} of {records} records ({most / records:.3%}) measured as exposed"
        f"{', by the success of the attack' if by_success > count else ''}, allowed {limit} ({models} models, "
        f"confidence {sure:.0%}, power {power:.2f}: more may be exposed)"
    )
    return value, allowed, words, {"models": models, "confidence": sure, "power": power}


def _predicted_success(place: str, rule: Rule, table: ScoreTable, folder: Path) -> Measurement:
    check_column(place, table, "predicted_success")
    value = share_above(table["predicted_success"], rule.above)
    words = (
        f"{value:.3%} of {len(table)} records with a predicted success above {rule.above:g}, allowed "
        f"{rule.at_most_share:.3%} (predicted, not measured)"
    )
    return value, rule.at_most_share, words, {"above": rule.above, "predicted_by": table.meta.predicted_by}


def _predicted_share(place: str, rule: Rule, table: ScoreTable, folder: Path) -> Measurement:
    predicted, order = table.meta.predicted_share, SHARE_WORDS
    if predicted is None:
        remedy = "audit classes with at least 500 records held out, or gate a measured count"
        raise fail(place, "an audit that predicts how many records are exposed", "none", remedy)
    value = max(order.index(word) for word in predicted.words)
    words = (
        f"{' or '.join(predicted.words)} records predicted to be exposed, allowed {rule.at_most_word} (predicted from "
        f"{predicted.held_out} records held out, not measured)"
    )
    return float(value), float(order.index(rule.at_most_word)), words, {"words": list(predicted.words)}


MEASURES: Mapping[str, Callable[[str, Rule, ScoreTable, Path], Measurement]] = {
    "measured_count": _measured_count,
    "predicted_success": _predicted_success,
    "predicted_share": _predicted_share,
    "change": lambda place, rule, table, folder: measure_change(place, table, folder, rule.of, rule.baseline),
}


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= len(value) <= LONGEST and value.isprintable()


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


TEXT = (f"one line of text, up to {LONGEST} characters", _is_line)
SHARE = ("a share from 0 to 1", _is_share)
KEYS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {  # what each key must hold
    **dict.fromkeys(("name", "rule", "owner", "reason"), TEXT),
    **dict.fromkeys(("at_most_share", "least_power"), SHARE),
    "at_most": ("a whole number, 0 or more", lambda value: type(value) is int and value >= 0),
    "at_most_word": (" or ".join(f'"{word}"' for word in SHARE_WORDS[:-1]), lambda value: value in SHARE_WORDS[:-1]),
    "above": ("a success of at least 0.5 and below 1", lambda value: _is_share(value) and 0.5 <= value < 1),
    "of": ('"loo_gap" or "predicted_success"', lambda value: value in ("loo_gap", "predicted_success")),
    "baseline": ("a list of audit folders", lambda value: type(value) is list and all(map(_is_line, value))),
    "expires": ("a date such as 2027-03-01, without quotes", lambda value: type(value) is datetime.date),
}
RULE_KEYS = {
    "measured_count": ("at_most", "at_most_share", "least_power"),
    "predicted_success": ("above", "at_most_share"),
    "predicted_share": ("at_most_word",),
    "change": ("of", "baseline"),
}


def read_rules(path: str | Path) -> Rules:
    """Read the rules of a TOML file and refuse, with one line, whatever could not be judged later."""
    file = Path(path)
    given = read_toml("gate", file, "a readable TOML file of rules")
    if type(given.get("schema")) is not int or given["schema"] != SCHEMA:
        raise fail("gate", f"schema = {SCHEMA}", repr(given.get("schema")), "name the version of the file format")
    for key in given:
        if key not in ("schema", "rule", "waiver"):
            raise fail("gate", "schema, [[rule]] and [[waiver]]", f"{key!r}", nearest(key, ("rule", "waiver")))
    rules = tuple(_rule(number, table, file.parent) for number, table in _tables(given, "rule"))
    if not rules:
        raise fail("gate", "at least one [[rule]]", "none", "say what is measured and what is allowed")
    waivers = []
    for number, table in _tables(given, "waiver"):
        _check_keys(f"waiver {number}", table, ("rule", "owner", "expires", "reason"))
        waivers.append(Waiver(**table))
    names, waived = [rule.name for rule in rules], [waiver.rule for waiver in waivers]
    for argument, expected, given_names in (
        ("rule", "a different name for every rule", names),
        ("waiver", "one waiver per rule", waived),
    ):
        if twice := [name for name in given_names if given_names.count(name) > 1]:
            raise fail(argument, expected, f"{twice[0]!r} twice", "keep one of them")
    for name in waived:
        if name not in names:
            raise fail("waiver", "the name of a rule in this file", repr(name), nearest(name, names))
    return Rules(rules, tuple(waivers), hashlib.sha256(file.read_bytes()).hexdigest())


def _tables(given: dict[str, Any], key: str) -> list[tuple[int, dict[str, Any]]]:
    tables = given.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise fail("gate", f"[[{key}]] in double brackets", f"another {key!r}", f"write [[{key}]] above each {key}")
    return list(enumerate(tables, start=1))


def _rule(number: int, table: dict[str, Any], parent: Path) -> Rule:
    _check_keys(f"rule {number}", {key: table[key] for key in table if key == "name"}, ("name",))
    place = f"rule {table['name']!r}"
    measure = table.get("measure")
    if not isinstance(measure, str) or measure not in RULE_KEYS:
        got = "none" if measure is None else repr(measure)
        raise fail(place, f"measure to be {', '.join(RULE_KEYS)}", got, NO_COMMON_UNIT)
    given = {key: value for key, value in table.items() if key not in ("name", "measure")}
    expected, valid = KEYS["of"]
    if measure == "change" and isinstance(given.get("of"), str) and not valid(given["of"]):
        raise fail(place, f"of = {expected}", repr(given["of"]), NO_COMMON_UNIT)
    _check_keys(place, given, RULE_KEYS[measure], required=measure != "measured_count")
    if measure == "measured_count" and len({"at_most", "at_most_share"} & given.keys()) != 1:
        got = "both" if "at_most" in given else "neither"
        raise fail(place, "either at_most or at_most_share", got, "give one limit")
    if measure == "change":
        given["baseline"] = tuple({(parent / folder).resolve(): None for folder in given["baseline"]})
        if len(given["baseline"]) < LEAST_RETRAINS:
            expected = f"a baseline of at least {LEAST_RETRAINS} different audits"
            remedy = "train the recipe with other seeds and audit each: one or two models do not show its noise"
            raise fail(place, expected, f"{len(given['baseline'])}", remedy)
        for folder in given["baseline"]:
            if not (folder / "scores.npz").is_file():
                raise fail(place, "audit folders in baseline", str(folder), "name the folders given to --out")
    return Rule(table["name"], measure, **given)


def _check_keys(place: str, given: Mapping[str, Any], keys: Sequence[str], *, required: bool = True) -> None:
    for key, value in given.items():
        if key not in keys:
            raise fail(place, f"only {', '.join(keys)} beside name and measure", repr(key), nearest(key, keys))
        expected, valid = KEYS[key]
        if not valid(value):
            raise fail(place, f"{expected} for {key}", repr(value), "correct it")
    for key in keys:
        if required and key not in given:
            raise fail(place, f"{key}, {KEYS[key][0]}", "none", "add it")
