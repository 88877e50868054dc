"""Judge an audit folder by the rules of a gate: each rule met, waived or not met, and never a word on records."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from giveaway.auditing.store import save_page
from giveaway.checks import fail
from giveaway.findings.gate_change import Found, change_of, check_column, share_above
from giveaway.findings.gate_rules import Rule, Rules, Waiver
from giveaway.records import ScoreTable

FILE = "gate.json"


@dataclass(frozen=True)
class Outcome:
    """What one rule found. `words` say what was measured and what was allowed."""

    rule: Rule
    value: float
    allowed: float
    words: str
    waiver: Waiver | None
    today: datetime.date
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether what was measured is allowed."""
        return self.value <= self.allowed

    @property
    def waived(self) -> bool:
        """Whether a waiver that has not run out stands in for a rule that is not met."""
        return not self.met and self.waiver is not None and self.today <= self.waiver.expires

    def to_text(self) -> str:
        """One line."""
        state = "met" if self.met else "waived" if self.waived else "not met"
        told = f"{state}: {self.rule.name}: {self.words}"
        if self.met or self.waiver is None:
            return told
        if self.waived:
            return f"{told}; waived by {self.waiver.owner} until {self.waiver.expires}: {self.waiver.reason}"
        return f"{told}; the waiver of {self.waiver.owner} ran out on {self.waiver.expires}"

    def to_json(self) -> dict[str, Any]:
        """Numbers, words and the waiver."""
        waiver = None
        if self.waiver is not None:
            waiver = {
                "owner": self.waiver.owner,
                "expires": self.waiver.expires.isoformat(),
                "reason": self.waiver.reason,
                "expired": self.today > self.waiver.expires,
            }
        return {
            "name": self.rule.name,
            "measure": self.rule.measure,
            "value": self.value,
            "allowed": self.allowed,
            "met": self.met,
            "waived_by": waiver["owner"] if self.waived and waiver else None,
            "waiver": waiver,
            "words": self.words,
            **self.details,
        }


@dataclass(frozen=True)
class Verdict:
    """Every rule's outcome, in the order of the file."""

    outcomes: tuple[Outcome, ...]
    today: datetime.date
    rules_digest: str

    @property
    def met(self) -> bool:
        """Whether every rule is met, without any waiver."""
        return all(outcome.met for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 where every rule is met or waived, 3 otherwise."""
        return 0 if all(outcome.met or outcome.waived for outcome in self.outcomes) else 3

    def to_text(self) -> str:
        """A line a rule, then what it comes to."""
        missed = [outcome.rule.name for outcome in self.outcomes if not (outcome.met or outcome.waived)]
        waived = sum(outcome.waived for outcome in self.outcomes)
        last = f"{sum(outcome.met for outcome in self.outcomes)} of {len(self.outcomes)} rules met"
        last += f", {waived} waived" if waived else ""
        last += f"; not met: {', '.join(missed)}" if missed else ""
        return "\n".join(
            [*(outcome.to_text() for outcome in self.outcomes), f"{last}. A rule met is no finding of safety."]
        )

    def to_json(self) -> dict[str, Any]:
        """As gate.json holds it."""
        return {
            "schema": "giveaway.gate/1",
            "met": self.met,
            "exit_code": self.exit_code,
            "date": self.today.isoformat(),
            "rules_sha256": self.rules_digest,
            "rules": [outcome.to_json() for outcome in self.outcomes],
        }

    def save(self, folder: str | Path) -> Path:
        """Write gate.json into the audit folder, listed there for purge."""
        return save_page(folder, FILE, json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")


def judge(rules: Rules, folder: str | Path, today: datetime.date) -> Verdict:
    """Hold the audit in `folder` against every rule; what a rule needs and is not there is an error, never met."""
    table = ScoreTable.load(folder, "scores")
    waivers = {waiver.rule: waiver for waiver in rules.waivers}
    found = []
    for rule in rules.rules:
        value, allowed, words, details = MEASURES[rule.measure](rule, table, Path(folder))
        found.append(Outcome(rule, value, allowed, words, waivers.get(rule.name), today, details))
    return Verdict(tuple(found), today, rules.digest)


def _measured_count(rule: Rule, table: ScoreTable, folder: Path) -> Found:
    place = f"rule {rule.name!r}"
    try:
        stated = json.loads((folder / "validation.json").read_text(encoding="utf-8"))
        records, models, exposed = int(stated["records"]), int(stated["models"]), stated["at_least_exposed"]
        count, rate = int(exposed["records"]), float(exposed["false_discovery_rate"])
        power = float(exposed["power_at_twice_that"])
    except FileNotFoundError as error:
        raise fail(place, "an audit that was validated", "none", "run giveaway validate on the folder first") from error
    except (ValueError, KeyError, TypeError) as error:
        raise fail(
            place, "a readable validation.json", "another", "run giveaway validate on the folder again"
        ) from error
    if records != len(table):
        got = f"one of {records} records beside an audit of {len(table)}"
        raise fail(place, "a validation of this audit", got, "run giveaway validate on the folder again")
    if rule.at_most_share is None:
        value, allowed, limit = float(count), float(rule.at_most or 0), f"{rule.at_most}"
    else:
        value, allowed, limit = count / records, rule.at_most_share, f"{rule.at_most_share:.3%} of them"
    if power < rule.least_power and value <= allowed:
        got = f"{power:.2f} with {models} models"
        remedy = "train more shadow models and validate again, or set least_power"
        raise fail(place, f"a count with a power of at least {rule.least_power:g}", got, remedy)
    words = (
        f"at least {count} of {records} records ({count / records:.3%}) measured as exposed, allowed {limit} "
        f"({models} models, false discovery rate {rate:.0%}, power {power:.2f}: more may be)"
    )
    return value, allowed, words, {"models": models, "false_discovery_rate": rate, "power": power}


def _predicted_success(rule: Rule, table: ScoreTable, folder: Path) -> Found:
    assert rule.above is not None
    assert rule.at_most_share is not None
    check_column(f"rule {rule.name!r}", table, "predicted_success")
    value = share_above(table["predicted_success"], rule.above)
    words = (
        f"{value:.3%} of {len(table)} records with a predicted success above {rule.above:g}, allowed "
        f"{rule.at_most_share:.3%} (predicted, not measured)"
    )
    return value, rule.at_most_share, words, {"above": rule.above, "predicted_by": table.meta["predicted_by"]}


MEASURES: dict[str, Callable[[Rule, ScoreTable, Path], Found]] = {
    "measured_count": _measured_count,
    "predicted_success": _predicted_success,
    "change": change_of,
}
