"""Check an audit against an attack: do its scores find the records that LiRA finds?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from giveaway.attacks.lira import lira_within
from giveaway.checks import fail
from giveaway.evaluation.agreement import SHARES, AgreementTable, agreement
from giveaway.evaluation.attack_success import effect_sizes, success_rate
from giveaway.evaluation.defensible_count import DefensibleCount, defensible_count
from giveaway.evaluation.roc import AttackSummary, Interval, summarize
from giveaway.evaluation.worth import shadow_curve
from giveaway.records import ScoreTable, Signals

LEAST_MODELS = 8
LEAST_RECORDS = 100  # the top 1 % must hold a record


@dataclass(frozen=True)
class Validation:
    """What the attack measured on the audited records, and how well each score finds it."""

    table: AgreementTable
    worth: dict[str, float]  # in shadow models, by the recall of the narrowest top
    attack: AttackSummary
    count: DefensibleCount
    success: np.ndarray
    effect_size: np.ndarray
    models: int
    ranked_by: str
    audit_seconds: float | None
    attack_seconds: float

    def conclusion(self) -> str:
        """One sentence for people."""
        row = next(row for row in self.table.rows if row.score == self.ranked_by)
        (top, keep), recall = next(iter(row.recall.items()))
        return (
            f"The {keep:.0%} of records that {self.ranked_by} ranks highest hold {recall.value:.0%} "
            f"({recall.low:.0%} to {recall.high:.0%}) of the {top:.0%} that LiRA with {self.models} models finds most "
            f"exposed, which is worth {_models(self.worth[self.ranked_by])} shadow models; {self.count}."
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the records' own values."""
        return {
            "models": self.models,
            "records": self.table.records,
            "ranked_by": self.ranked_by,
            "conclusion": self.conclusion(),
            "agreement": {
                row.score: {
                    **{f"top {top:g} in {keep:g}": _interval(cell) for (top, keep), cell in row.recall.items()},
                    "spearman": _interval(row.spearman),
                    "worth_in_shadow_models": None if np.isinf(self.worth[row.score]) else self.worth[row.score],
                }
                for row in self.table.rows
            },
            "lira": {
                "auc": _interval(self.attack.auc),
                "balanced_accuracy": _interval(self.attack.balanced_accuracy),
                "tpr_at_fpr": {f"{rate:g}": _interval(cell) for rate, cell in self.attack.true_positive_rate.items()},
                "nonmembers": self.attack.nonmembers,
            },
            "at_least_exposed": {
                "records": self.count.at_least,
                "effect_size_above": self.count.effect,
                "false_discovery_rate": self.count.false_discovery,
                "power_at_twice_that": self.count.power,
            },
            "seconds": {"audit": self.audit_seconds, "attack": round(self.attack_seconds, 3)},
        }

    def to_markdown(self) -> str:
        """The conclusion, the table and the attack's own figures."""
        lines = [self.conclusion(), "", self.table.to_markdown(), "| score | worth in shadow models |", "|---|---|"]
        lines += [f"| {name} | {_models(value)} |" for name, value in self.worth.items()]
        rates = ", ".join(f"{cell.value:.3f} at {rate:g}" for rate, cell in self.attack.true_positive_rate.items())
        lines += ["", f"LiRA: AUC {self.attack.auc.value:.3f}; true-positive rate {rates} false positives "]
        lines[-1] += f"({self.attack.nonmembers} non-members)."
        return "\n".join(lines) + "\n"


def validate(table: ScoreTable, models: Signals, *, rows: np.ndarray | None = None, seed: int = 0) -> Validation:
    """Compare every score of `table` with LiRA's effect size over `models`.

    `rows` says which record of the signals each row of the table is; by default they are the same records in the same
    order. Each model is attacked with its own signals left out of the statistics.
    """
    began = time.perf_counter()
    own = _aligned(table, models, rows)
    if own.models < LEAST_MODELS:
        raise fail("signals", f"at least {LEAST_MODELS} models", f"{own.models}", "train more shadow models")
    if own.records < LEAST_RECORDS:
        raise fail("table", f"at least {LEAST_RECORDS} records", f"{own.records}", "validate a larger audit")
    effect = effect_sizes(own).effect_size
    scored = lira_within(own)
    truth_models = own.models // 2
    sizes = [2**k for k in range(1, 20) if 2**k <= own.models - truth_models]
    top, keep = SHARES[0]
    curve = shadow_curve(own, sizes=sizes, top=top, keep=keep, truth_models=truth_models, seed=seed)
    compared = agreement({name: table[name] for name in table.columns}, effect, seed=seed)
    return Validation(
        table=compared,
        worth={row.score: curve.worth(row.recall[top, keep].value) for row in compared.rows},
        attack=summarize(scored, resamples=50, seed=seed),
        count=defensible_count(own),
        success=success_rate(scored),
        effect_size=effect,
        models=own.models,
        ranked_by=table.ranking(),
        audit_seconds=table.meta.get("seconds"),
        attack_seconds=time.perf_counter() - began,
    )


def _aligned(table: ScoreTable, models: Signals, rows: np.ndarray | None) -> Signals:
    if rows is None:
        if len(table) != models.records:
            expected = f"signals on the table's {len(table)} records"
            raise fail("signals", expected, f"{models.records} records", "pass rows=, a signal's record for each row")
        return models
    places = np.asarray(rows)
    valid = places.shape == (len(table),) and places.dtype.kind in "iu"
    if not valid or places.min() < 0 or places.max() >= models.records or len(np.unique(places)) < len(places):
        expected = f"{len(table)} different row numbers of the signals, 0 to {models.records - 1}"
        raise fail("rows", expected, f"{places.dtype} of shape {places.shape}", "give a record of the signals a row")
    return models.of_records(places)


def _models(worth: float) -> str:
    """A worth in shadow models in words; outside of what the curve shows it has only a bound."""
    return "more than the curve's" if np.isinf(worth) else f"about {worth:.1f}" if worth >= 2 else "fewer than 2"


def _interval(cell: Interval) -> list[float]:
    return [round(value, 6) for value in (cell.value, cell.low, cell.high)]
