"""Judge an audit folder by the rules of a gate: each rule met, waived or not met, and never a word on records."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from giveaway.auditing.gate_rules import Rule, Rules, Waiver
from giveaway.auditing.store import save_page
from giveaway.checks import fail
from giveaway.records import ScoreTable

FILE = "gate.json"
LEVEL = 0.95  # of the bound above which a change is more than the baseline's noise
EXPOSED = 0.7  # predicted success from which `change` counts a row: that of the measured count, too
TOP = 0.2  # of the baseline's rows, whose loo_gap a row must exceed to be counted by `change`
SIMILAR = 0.05  # by which the baseline's number of rows may differ


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


Found = tuple[float, float, str, dict[str, Any]]


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
    if rule.least_power is not None and power < rule.least_power and value <= allowed:
        got = f"{power:.2f} with {models} models"
        raise fail(place, f"a power of at least {rule.least_power:g}", got, "train more shadow models, then validate")
    words = (
        f"at least {count} of {records} records ({count / records:.3%}) measured as exposed, allowed {limit} "
        f"({models} models, false discovery rate {rate:.0%}, power {power:.2f}: more may be)"
    )
    return value, allowed, words, {"models": models, "false_discovery_rate": rate, "power": power}


def _predicted_success(rule: Rule, table: ScoreTable, folder: Path) -> Found:
    assert rule.above is not None
    assert rule.at_most_share is not None
    _check_column(f"rule {rule.name!r}", table, "predicted_success")
    value = share_above(table["predicted_success"], rule.above)
    words = (
        f"{value:.3%} of {len(table)} records with a predicted success above {rule.above:g}, allowed "
        f"{rule.at_most_share:.3%} (predicted, not measured)"
    )
    return value, rule.at_most_share, words, {"above": rule.above, "predicted_by": table.meta["predicted_by"]}


def _change(rule: Rule, table: ScoreTable, folder: Path) -> Found:
    """The share of exposed rows against the bound that the baseline's retrains set.

    Of predicted_success: rows above 0.7. Of loo_gap: rows above what a fifth of the baseline's rows exceed, people
    where they were audited. Chosen on the odd half of digits and on breast cancer, the labels of 5, 10 and 20 % of the
    records wrong, ten retrains each: the gap's share rose beyond the bound of three retrains in 99 % of the doublings
    and in 1 % of unchanged retrains, predicted success above 0.7 in 92 % (in the worst draw 47 %) and 1 %. Counted
    further up, the gap misses a doubling from 10 %, since a network then learns each wrong label less; the means of
    either, and the share that the view calls memorized, hardly move. benchmarks/gate_digits.py tries it on other data.
    """
    assert rule.of is not None
    place = f"rule {rule.name!r}"
    table = _audited(folder, rule.of, table)
    _check_column(place, table, rule.of)
    tables = [_audited(path, rule.of) for path in rule.baseline]
    for number, other in enumerate(tables, start=1):
        _check_column(f"{place}, baseline {number}", other, rule.of)
        _check_baseline(f"{place}, baseline {number}", other, table, tables[: number - 1])
    above = level_of(rule.of, [other[rule.of] for other in tables])
    value = share_above(table[rule.of], above)
    shares = np.array([share_above(other[rule.of], above) for other in tables])
    mean, bound = float(shares.mean()), prediction_bound(shares, len(table))
    unit = "people" if table.meta.get("unit") == "person" else "records"
    words = (
        f"{value:.3%} of {len(table)} {unit} with {rule.of} above {above:.3g}, {mean:.3%} on average in "
        f"{len(tables)} retrains, allowed {bound:.3%} (their {LEVEL:.0%} prediction bound; estimated, not measured)"
    )
    details = {"of": rule.of, "above": above, "baseline_mean": mean, "baselines": len(tables), "level": LEVEL}
    return value, bound, words, details


def level_of(column: str, baseline: Sequence[np.ndarray]) -> float:
    """Above which value a row counts as exposed for a change."""
    return EXPOSED if column == "predicted_success" else float(np.quantile(np.concatenate(baseline), 1 - TOP))


def share_above(values: np.ndarray, level: float) -> float:
    """Share of the rows above a level."""
    return float((values > level).mean())


def _check_baseline(place: str, other: ScoreTable, table: ScoreTable, earlier: list[ScoreTable]) -> None:
    """Refuse a baseline that is not comparable, and one model in two places: noise would look smaller than it is."""
    different = _difference(table, other)
    if different:
        raise fail(place, "an audit comparable to this one", different, "audit this model and the baseline alike")
    for number, same in enumerate([table, *earlier]):
        if all(np.array_equal(other[name], same[name]) for name in other.columns):
            got = "the scores of " + (f"baseline {number}" if number else "this audit")
            raise fail(place, "a model of its own", got, "retrain with another seed and audit that")


MEASURES: dict[str, Callable[[Rule, ScoreTable, Path], Found]] = {
    "measured_count": _measured_count,
    "predicted_success": _predicted_success,
    "change": _change,
}


def prediction_bound(shares: np.ndarray, rows: int) -> float:
    """What the share of one more retrain stays below with probability LEVEL, from the shares of k of them.

    mean + t·s·√(1 + 1/k), t with k − 1 degrees of freedom; but never closer to the mean than the share of so many rows
    is known by itself, z·√(p(1 − p)/rows), since few retrains can agree by chance to the row.
    """
    k, mean = len(shares), float(shares.mean())
    noise = student.ppf(LEVEL, k - 1) * shares.std(ddof=1) * np.sqrt(1 + 1 / k)
    least = norm.ppf(LEVEL) * np.sqrt(mean * (1 - mean) / rows)
    return float(min(1.0, mean + max(noise, least)))


def _audited(folder: Path, column: str, records: ScoreTable | None = None) -> ScoreTable:
    """The people of an audit where it has them and the column, else its records."""
    if column != "predicted_success" and (folder / "people.npz").is_file():
        return ScoreTable.load(folder, "people")
    return ScoreTable.load(folder, "scores") if records is None else records


def _check_column(place: str, table: ScoreTable, column: str) -> None:
    """Refuse an audit without the column, and a prediction that a gate cannot use."""
    if column not in table.scores:
        remedy = f"audit again with it: giveaway audit --also {column}"
        raise fail(place, f"an audit with the column {column}", "none", remedy)
    exact = bool((table.meta.get("view") or {}).get("head_is_exact"))
    if column == "predicted_success" and table.meta.get("predicted_by") != "both views" and not exact:
        expected = "predicted success from both views, or from a head whose features are known not to be learned"
        remedy = "audit with inputs and classes: the head's theory alone is far too low for networks and hides exposure"
        raise fail(place, expected, f"{table.meta.get('predicted_by')}", remedy)


def _difference(table: ScoreTable, other: ScoreTable) -> str:
    """What makes two audits not comparable, or nothing."""
    if abs(len(other) - len(table)) > SIMILAR * len(table):
        return f"{len(other)} rows beside {len(table)}"
    ours, theirs = _described(table), _described(other)
    for name in ours:
        if ours[name] != theirs[name] and not (name == "giveaway" and None in (ours[name], theirs[name])):
            return f"{name} {theirs[name]} beside {ours[name]}"
    l2, their_l2 = float(table.meta.get("l2", 0.0)), float(other.meta.get("l2", 0.0))
    # a summed loss: the same weight decay is a larger l2 on more rows
    if not (math.isclose(l2, their_l2) or math.isclose(l2 / len(table), their_l2 / len(other))):
        return f"l2 {their_l2:g} beside {l2:g}"
    return ""


def _described(table: ScoreTable) -> dict[str, Any]:
    meta = table.meta
    options, view = meta.get("options") or {}, meta.get("view") or {}
    return {
        **{name: meta.get(name) for name in ("unit", "loss", "outputs", "predicted_by")},
        **{name: options.get(name) for name in ("converged", "refit")},
        "scores": sorted(table.columns),
        "view": view.get("view"),
        "giveaway": meta.get("provenance", {}).get("versions", {}).get("giveaway"),
    }
