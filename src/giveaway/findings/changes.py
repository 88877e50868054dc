"""Two audits side by side: which rows rank higher in the later one, and which of those rises are more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, ndtri, polygamma
from scipy.stats import norm, rankdata
from scipy.stats import t as student

from giveaway.checks import fail
from giveaway.evaluation.defensible_count import benjamini_hochberg
from giveaway.evaluation.ranking import recall_at, spearman
from giveaway.records import ScoreTable

TOPS = (0.01, 0.05)
LEAST_RETRAINS = 3
FALSE_DISCOVERY = 0.05
MOST_FREEDOM = 1e4  # degrees of freedom, from which a t is a normal
STATEMENT = (
    "These are ranks, not amounts: a row also rises because others fall, and neither audit says how exposed it is. Two "
    "models of one recipe share only about a third of their top 1 % on CIFAR-10."
)
ONE_PAIR = (
    "One pair of models cannot tell noise from change: audit three or more retrains of the earlier recipe and name "
    "them with --retrains to see which rises are more than that."
)


@dataclass(frozen=True, eq=False)
class Changes:
    """What two audits say of the rows that both hold, matched by id.

    Percentiles are shares of each audit's own rows that rank lower, from 0 to 1. `beyond` marks the rises that
    `retrains` models of the earlier recipe do not explain; None without them.
    """

    ids: np.ndarray
    rows_before: np.ndarray
    rows_after: np.ndarray
    before: np.ndarray
    after: np.ndarray
    sizes: tuple[int, int]
    unit: str
    ranked_by: str
    spearman: float
    in_common: dict[float, float | None]  # of the top, by its share of the rows; None where that is no row
    predicted: tuple[float, float] | None
    beyond: np.ndarray | None
    retrains: int

    @property
    def rise(self) -> np.ndarray:
        """Percentile after minus percentile before."""
        return self.after - self.before

    def rose_most(self, k: int) -> np.ndarray:
        """Places of the k largest rises among the matched rows, those beyond noise first where that is known."""
        first = np.zeros(len(self.ids), dtype=bool) if self.beyond is None else self.beyond
        order = np.lexsort((-self.rise, ~first))
        return order[self.rise[order] > 0][:k]

    def statement(self) -> str:
        """What the ranks mean, and what they do not."""
        if self.beyond is None:
            return f"{STATEMENT} {ONE_PAIR}"
        found = (
            f"{int(self.beyond.sum())} rows rose beyond the noise of {self.retrains} retrains of the earlier recipe "
            f"(prediction bound of each row, nominal false discovery rate {FALSE_DISCOVERY:.0%}, as far as rows differ "
            "in noise by degrees and not by kind); smaller rises are not seen."
        )
        return f"{STATEMENT} {found}"

    def to_json(self, top: int = 10) -> dict[str, Any]:
        """Counts and row numbers, no ids."""
        places = self.rose_most(top)
        return {
            "schema": "giveaway.changes/1",
            "unit": self.unit,
            "ranked_by": self.ranked_by,
            "rows": {
                "before": self.sizes[0],
                "after": self.sizes[1],
                "in_both": len(self.ids),
                "only_before": self.sizes[0] - len(self.ids),
                "only_after": self.sizes[1] - len(self.ids),
            },
            "spearman": round(self.spearman, 6),
            "top_in_common": {f"{share:g}": value for share, value in self.in_common.items()},
            "mean_predicted_success": None
            if self.predicted is None
            else {"before": round(self.predicted[0], 6), "after": round(self.predicted[1], 6)},
            "noise": None
            if self.beyond is None
            else {
                "retrains": self.retrains,
                "false_discovery_rate": FALSE_DISCOVERY,
                "rows_beyond": int(self.beyond.sum()),
            },
            "rose_most": [
                {
                    "row_before": int(self.rows_before[place]),
                    "row_after": int(self.rows_after[place]),
                    "percentile_before": round(float(self.before[place]), 6),
                    "percentile_after": round(float(self.after[place]), 6),
                    "beyond_noise": None if self.beyond is None else bool(self.beyond[place]),
                }
                for place in places
            ],
            "statement": self.statement(),
        }

    def to_markdown(self, top: int = 10) -> str:
        """For people, by row number."""
        told = self.to_json(top)
        rows, unit = told["rows"], "people" if self.unit == "person" else "records"
        common = [f"{value:.0%} of the top {share:.0%}" for share, value in self.in_common.items() if value is not None]
        lines = [
            f"{rows['in_both']} {unit} in both audits ({rows['only_before']} only before, {rows['only_after']} only "
            f"after), ranked by {self.ranked_by}.",
            f"Rank correlation {self.spearman:.2f}" + "".join(f"; {words} in common" for words in common) + ".",
        ]
        if self.predicted is not None:
            lines.append(
                f"Mean predicted success: {self.predicted[0]:.3f} before, {self.predicted[1]:.3f} after (an estimate, "
                "not measured)."
            )
        if told["rose_most"]:
            lines += [
                "",
                "| row before | row after | percentile before | after | beyond noise |",
                "|---|---|---|---|---|",
            ]
        words = {None: "not known", True: "yes", False: "no"}
        lines += [
            f"| {row['row_before']} | {row['row_after']} | {100 * row['percentile_before']:.1f} "
            f"| {100 * row['percentile_after']:.1f} | {words[row['beyond_noise']]} |"
            for row in told["rose_most"]
        ]
        return "\n".join([*lines, "", self.statement()]) + "\n"

    def to_table(self) -> ScoreTable:
        """Every matched row with its id, for a restricted file."""
        attributes = {"row_before": self.rows_before, "row_after": self.rows_after}
        if self.beyond is not None:
            attributes["beyond_noise"] = self.beyond
        columns = {"percentile_before": self.before, "percentile_after": self.after, "rise": self.rise}
        return ScoreTable(columns, self.ids, attributes=attributes)


def changes(before: ScoreTable, after: ScoreTable, *, retrains: Sequence[ScoreTable] = ()) -> Changes:
    """Compare two audits of the same records, whose models may differ in anything.

    `retrains` are audits of at least three other models of the earlier recipe. A row then rose beyond noise where its
    place after lies above the prediction bound of its places over them, mean + t·s·√(1 + 1/k) of the normal scores of
    its percentiles with s² drawn toward the other rows', Benjamini–Hochberg over all rows; a row that some retrain
    lacks is not judged. On digits networks with wrong labels, three retrains found 80 % of newly mislabelled records by
    newton and 90 % by fused; an unchanged retrain had some row flagged in 5 % of the cases.
    """
    by, unit = before.ranking(), before.meta.get("unit", "record")
    if 0 < len(retrains) < LEAST_RETRAINS:
        remedy = "train the earlier recipe with other seeds and audit each"
        raise fail("retrains", f"none, or at least {LEAST_RETRAINS}", f"{len(retrains)}", remedy)
    for name, other in (("after", after), *(("retrains", table) for table in retrains)):
        if other.meta.get("unit", "record") != unit or other.ranking() != by:
            got = f"{other.meta.get('unit', 'record')}s ranked by {other.ranking()}"
            raise fail(name, f"{unit}s ranked by {by} as in the earlier audit", got, "audit both alike")
        if len(other) != len(before) and _numbered(other) and _numbered(before):
            got = f"row numbers for ids, {len(before)} and {len(other)} of them"
            raise fail(
                name, "ids that name the same record in both audits", got, "give the records ids and audit again"
            )
    ids, rows_before, rows_after = np.intersect1d(before.ids, after.ids, assume_unique=True, return_indices=True)
    if len(ids) < 2:
        raise fail(
            "after", "an audit of the same records", f"{len(ids)} ids in common", "compare audits of one data set"
        )
    order = np.argsort(rows_after)
    ids, rows_before, rows_after = ids[order], rows_before[order], rows_after[order]
    old, new = before[by][rows_before], after[by][rows_after]
    places_after = percentiles(after)[rows_after]
    return Changes(
        ids=ids,
        rows_before=rows_before,
        rows_after=rows_after,
        before=percentiles(before)[rows_before],
        after=places_after,
        sizes=(len(before), len(after)),
        unit=unit,
        ranked_by=by,
        spearman=spearman(old, new),
        in_common={share: recall_at(new, old, share, share) if round(len(ids) * share) else None for share in TOPS},
        predicted=_predicted(before, after),
        beyond=_beyond(ids, places_after, retrains) if retrains else None,
        retrains=len(retrains),
    )


def percentiles(table: ScoreTable) -> np.ndarray:
    """Each row's share of rows that rank lower, half of itself and of its ties included."""
    return (rankdata(table[table.ranking()]) - 0.5) / len(table)


def _beyond(ids: np.ndarray, places: np.ndarray, retrains: Sequence[ScoreTable]) -> np.ndarray:
    """Which of the rows stand higher than the retrains predict."""
    found = np.full((len(retrains), len(ids)), np.nan)
    for number, table in enumerate(retrains):
        _, own, theirs = np.intersect1d(ids, table.ids, assume_unique=True, return_indices=True)
        found[number, own] = ndtri(percentiles(table)[theirs])
    known = ~np.isnan(found).any(axis=0)
    if not known.any():
        return known
    sample, k = found[:, known], len(retrains)
    mean = sample.mean(axis=0)
    one_place = 1 / (len(retrains[0]) * norm.pdf(mean))  # a row's place is known to no less
    variance, freedom = _moderated(sample.var(axis=0, ddof=1) + one_place**2 / 12, k - 1)
    t = (ndtri(places[known]) - mean) / np.sqrt(variance * (1 + 1 / k))
    beyond = np.zeros(len(ids), dtype=bool)
    beyond[known] = benjamini_hochberg(student.sf(t, freedom), FALSE_DISCOVERY)
    return beyond


def _moderated(variance: np.ndarray, freedom: int) -> tuple[np.ndarray, float]:
    """Every row's variance, drawn toward what the rows have in common, and its degrees of freedom.

    The true variances are taken as scaled inverse χ² (Smyth 2004), whose two parameters come from the mean and the
    variance of log s² over the rows. Alone, two degrees of freedom tell no noise from a row that happened to stay.
    """
    logs = np.log(variance) - digamma(freedom / 2) + np.log(freedom / 2)
    excess = logs.var(ddof=1) - polygamma(1, freedom / 2) if len(logs) > 1 else 0.0
    if excess <= polygamma(1, MOST_FREEDOM / 2):
        return np.full_like(variance, np.exp(logs.mean())), MOST_FREEDOM
    prior = 2 * brentq(lambda half: polygamma(1, half) - excess, 1e-3, MOST_FREEDOM / 2)
    middle = np.exp(logs.mean() + digamma(prior / 2) - np.log(prior / 2))
    return (prior * middle + freedom * variance) / (prior + freedom), prior + freedom


def _predicted(before: ScoreTable, after: ScoreTable) -> tuple[float, float] | None:
    """Mean predicted success of either audit, where both have it from the same source."""
    if not all("predicted_success" in table.scores for table in (before, after)):
        return None
    if before.meta.get("predicted_by") != after.meta.get("predicted_by"):
        return None
    return float(before["predicted_success"].mean()), float(after["predicted_success"].mean())


def _numbered(table: ScoreTable) -> bool:
    return np.array_equal(table.ids, np.arange(len(table)))
