"""Judge an audit folder by the rules of a TOML file. Each rule is met, waived or not met, and no record is named.

A rule uses one of three measures that mean the same for every model: the count that `giveaway validate` measured, the
share of records above a predicted success, or the predicted share of exposed records in words. A waiver lets a rule be
missed; it names its owner and the last day on which it holds.
"""

import datetime
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giveaway.checks import fail, nearest
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
    "although CIFAR-10 gives more away; gate a measured count or predicted success"
)

# a measured value, the largest one allowed, what both mean in words, and further numbers for gate.json
Measurement = tuple[float, float, str, dict[str, Any]]


@dataclass(frozen=True)
class Rule:
    """What one rule measures, and what it allows by the keys of the file."""

    name: str
    measure: str
    limits: Mapping[str, Any]


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
        column = "predicted_success"
        if column in scores or all(rule.measure != column for rule in self.rules):
            return []
        if "default" not in scores:
            raise fail("gate", f"the column {column} among the scores", "none", f"add {column} to --scores")
        return [column]


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
    def state(self) -> str:
        if self.value <= self.allowed:
            return "met"
        return "waived" if self.waiver is not None and self.today <= self.waiver.expires else "not met"

    def to_text(self) -> str:
        line, waiver = f"{self.state}: {self.rule.name}: {self.words}", self.waiver
        if self.state == "met" or waiver is None:
            return line
        if self.state == "waived":
            return f"{line}; waived by {waiver.owner} until {waiver.expires}: {waiver.reason}"
        return f"{line}; the waiver of {waiver.owner} expired on {waiver.expires}"

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"name": self.rule.name, "measure": self.rule.measure, "value": self.value}
        told |= {"allowed": self.allowed, "met": self.state == "met", "waived_by": None, "waiver": None}
        if (waiver := self.waiver) is not None:
            told["waived_by"] = waiver.owner if self.state == "waived" else None
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
    def state(self) -> str:
        states = {outcome.state for outcome in self.outcomes}
        return next(state for state in ("not met", "waived", "met") if state in states)

    @property
    def exit_code(self) -> int:
        """0 if every rule is met or waived, otherwise 3."""
        return 3 if self.state == "not met" else 0

    def to_text(self) -> str:
        """One line per rule, then the totals."""
        states = [outcome.state for outcome in self.outcomes]
        missed = ", ".join(outcome.rule.name for outcome in self.outcomes if outcome.state == "not met")
        total = f"{states.count('met')} of {len(states)} rules met"
        total += f", {states.count('waived')} waived" if "waived" in states else ""
        total += f"; not met: {missed}" if missed else ""
        lines = [outcome.to_text() for outcome in self.outcomes]
        return "\n".join([*lines, f"{total}. Meeting a rule is not evidence of safety."])

    def to_json(self) -> dict[str, Any]:
        """The contents of gate.json."""
        told = {"schema": "giveaway.gate/1", "met": self.state == "met", "exit_code": self.exit_code}
        told |= {"date": self.today.isoformat(), "rules_sha256": self.rules_digest}
        return told | {"rules": [outcome.to_json() for outcome in self.outcomes]}


def judge(rules: Rules, folder: str | Path, today: datetime.date, table: ScoreTable | None = None) -> Verdict:
    """Measure the audit in `folder`, with its `table` if it is at hand, by every rule; missing data are an error."""
    table = ScoreTable.load(folder, "scores") if table is None else table
    waivers = {waiver.rule: waiver for waiver in rules.waivers}
    outcomes = []
    for rule in rules.rules:
        measured = MEASURES[rule.measure][0](f"rule {rule.name!r}", rule, table, Path(folder))
        outcomes.append(Outcome(rule, *measured, waivers.get(rule.name), today))
    return Verdict(tuple(outcomes), today, rules.digest)


def _measured_count(place: str, rule: Rule, table: ScoreTable, folder: Path) -> Measurement:
    remedy = "run giveaway validate on the folder again"
    if not (file := TableFolder(folder).verified("validation.json")).is_file():
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
    if (count_allowed := rule.limits.get("at_most")) is not None:
        value, allowed, limit = float(most), float(count_allowed), f"{count_allowed}"
    else:
        value, allowed = most / records, rule.limits["at_most_share"]
        limit = f"{allowed:.3%} of them"
    if power < rule.limits["least_power"] and value <= allowed:
        got = f"{power:.2f} with {models} models"
        remedy = "train more shadow models and validate again, or lower least_power in the rule"
        raise fail(place, f"a count with a power of at least {rule.limits['least_power']:g}", got, remedy)
    words = (
        f"at least {most} of {records} records ({most / records:.3%}) measured as exposed"
        f"{', by the success of the attack' if by_success > count else ''}, allowed {limit} ({models} models, "
        f"confidence {sure:.0%}, power {power:.2f}: more may be exposed)"
    )
    return value, allowed, words, {"models": models, "confidence": sure, "power": power}


def _predicted_success(place: str, rule: Rule, table: ScoreTable, folder: Path) -> Measurement:
    meta, column, above, allowed = table.meta, "predicted_success", rule.limits["above"], rule.limits["at_most_share"]
    if column not in table.scores:
        got, remedy = "none", f"audit again with it: giveaway audit --scores default,{column}"
        if meta.no_prediction or (meta.of_model and meta.optimum is None):
            held_back = "a model held back by noise or early stopping" if meta.no_prediction else "a black box"
            got, remedy = f"{held_back}, for which there is none", "use measured_count, and giveaway validate"
        raise fail(place, f"an audit with the column {column}", got, remedy)
    if meta.predicted_by != "both views" and not (meta.view is not None and meta.view.head_is_exact):
        expected = "predicted success from both views, or from a head whose features are known not to be learned"
        remedy = "audit with inputs and classes: the head's theory alone is far too low for networks and hides exposure"
        raise fail(place, expected, f"{meta.predicted_by}", remedy)
    value = float((table[column] > above).mean())
    measured = f"{value:.3%} of {len(table)} records with a predicted success above {above:g}"
    words = f"{measured}, allowed {allowed:.3%} (predicted, not measured)"
    return value, allowed, words, {"above": above, "predicted_by": meta.predicted_by}


def _predicted_share(place: str, rule: Rule, table: ScoreTable, folder: Path) -> Measurement:
    if (predicted := table.meta.predicted_share) is None:
        remedy = "audit classes with at least 500 records held out, or gate a measured count"
        raise fail(place, "an audit that predicts how many records are exposed", "none", remedy)
    allowed, worst = rule.limits["at_most_word"], max(predicted.words, key=SHARE_WORDS.index)
    source = f"predicted from {predicted.held_out} records held out, not measured"
    words = f"{' or '.join(predicted.words)} records predicted to be exposed, allowed {allowed} ({source})"
    value, limit = map(float, map(SHARE_WORDS.index, (worst, allowed)))
    return value, limit, words, {"words": list(predicted.words)}


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value.strip()) <= len(value) <= LONGEST and value.isprintable()


MEASURES: Mapping[str, tuple[Callable[[str, Rule, ScoreTable, Path], Measurement], Sequence[str]]] = {
    "measured_count": (_measured_count, ("at_most", "at_most_share", "least_power")),
    "predicted_success": (_predicted_success, ("above", "at_most_share")),
    "predicted_share": (_predicted_share, ("at_most_word",)),
}  # how each is measured, and the keys of its rules
TEXT = (f"one line of text, up to {LONGEST} characters", _is_line)
SHARE = ("a share from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1)
KEYS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {  # what each key must hold
    **dict.fromkeys(("name", "rule", "owner", "reason"), TEXT),
    **dict.fromkeys(("at_most_share", "least_power"), SHARE),
    "at_most": ("a whole number, 0 or more", lambda value: type(value) is int and value >= 0),
    "at_most_word": (" or ".join(f'"{word}"' for word in SHARE_WORDS[:-1]), lambda value: value in SHARE_WORDS[:-1]),
    "above": ("a success of at least 0.5 and below 1", lambda value: type(value) is float and 0.5 <= value < 1),
    "expires": ("a date such as 2027-03-01, without quotes", lambda value: type(value) is datetime.date),
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
    if not (rules := tuple(_rule(number, table) for number, table in _tables(given, "rule"))):
        raise fail("gate", "at least one [[rule]]", "none", "say what is measured and what is allowed")
    waivers = []
    for number, table in _tables(given, "waiver"):
        _check_keys(f"waiver {number}", table, ("rule", "owner", "expires", "reason"))
        waivers.append(Waiver(**table))
    names, waived = [rule.name for rule in rules], [waiver.rule for waiver in waivers]
    twice = {"a different name for every rule": names, "one waiver per rule": waived}
    for argument, (expected, told) in zip(("rule", "waiver"), twice.items(), strict=True):
        if repeated := [name for name in told if told.count(name) > 1]:
            raise fail(argument, expected, f"{repeated[0]!r} twice", "keep one of them")
    for name in waived:
        if name not in names:
            raise fail("waiver", "the name of a rule in this file", repr(name), nearest(name, names))
    return Rules(rules, tuple(waivers), hashlib.sha256(file.read_bytes()).hexdigest())


def _tables(given: dict[str, Any], key: str) -> list[tuple[int, dict[str, Any]]]:
    tables = given.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise fail("gate", f"[[{key}]] in double brackets", f"another {key!r}", f"write [[{key}]] above each {key}")
    return list(enumerate(tables, start=1))


def _rule(number: int, table: dict[str, Any]) -> Rule:
    _check_keys(f"rule {number}", {key: table[key] for key in table if key == "name"}, ("name",))
    place = f"rule {table['name']!r}"
    measure = table.get("measure")
    if not isinstance(measure, str) or measure not in MEASURES:
        got = "none" if measure is None else repr(measure)
        raise fail(place, f"measure to be {', '.join(MEASURES)}", got, NO_COMMON_UNIT)
    given = {key: value for key, value in table.items() if key not in ("name", "measure")}
    _check_keys(place, given, MEASURES[measure][1], required=measure != "measured_count")
    if measure == "measured_count":
        if len({"at_most", "at_most_share"} & given.keys()) != 1:
            got = "both" if "at_most" in given else "neither"
            raise fail(place, "either at_most or at_most_share", got, "give one limit")
        given.setdefault("least_power", LEAST_POWER)
    return Rule(table["name"], measure, given)


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
