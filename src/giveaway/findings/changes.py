"""Compare audits: which rows rank higher in a later one, and which changes are more than the noise of retraining."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, ndtri, polygamma
from scipy.stats import norm, rankdata
from scipy.stats import t as student

from giveaway.checks import fail
from giveaway.evaluation.counts import benjamini_hochberg
from giveaway.evaluation.ranking import recall_at, spearman
from giveaway.records import ScoreTable

TOPS = (0.01, 0.05)
LEAST_RETRAINS = 3
FALSE_DISCOVERY = 0.05
MOST_FREEDOM = 1e4  # degrees of freedom; beyond them a t distribution is a normal one
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
    """The ranks, in two audits, of the rows that both hold. `table` names them, so that it is restricted: the row in
    each, its percentile (the share of rows that rank lower), the rise, and, beside `retrains` models of the earlier
    recipe, whether it is beyond what they explain."""

    table: ScoreTable
    sizes: tuple[int, int]
    unit: str
    ranked_by: str
    spearman: float
    in_common: dict[float, float | None]  # share of the top rows in common, by the size of the top; None: no row
    retrains: int

    @property
    def beyond(self) -> np.ndarray | None:
        """Whether each row rose beyond the noise of retrains; None where there are none."""
        return self.table.attributes.get("beyond_noise")

    def rose_most(self, k: int) -> np.ndarray:
        """Return the positions of the k largest rises, those beyond noise first where that is known."""
        rise, first = self.table["rise"], np.zeros(len(self.table), dtype=bool) if self.beyond is None else self.beyond
        order = np.lexsort((-rise, ~first))
        return order[rise[order] > 0][:k]

    def statement(self) -> str:
        if self.beyond is None:
            return f"{STATEMENT} {ONE_PAIR}"
        return (
            f"{STATEMENT} {int(self.beyond.sum())} rows rose beyond the noise of {self.retrains} retrains of the "
            f"earlier recipe (prediction bound of each row, nominal false discovery rate {FALSE_DISCOVERY:.0%}, as far "
            "as the noise of rows differs in size and not in kind); smaller rises are not detected."
        )

    def to_json(self, top: int = 10) -> dict[str, Any]:
        """Return counts and row numbers; no ids."""
        (before, after), both = self.sizes, len(self.table)
        noise, rose = None, self.rose_most(top)
        names = ("row_before", "row_after", "percentile_before", "percentile_after")
        told = {name: self.table[name][rose].round(6).tolist() for name in names} | {"beyond_noise": [None] * len(rose)}
        if self.beyond is not None:
            noise = {"retrains": self.retrains, "false_discovery_rate": FALSE_DISCOVERY}
            noise["rows_beyond"], told["beyond_noise"] = int(self.beyond.sum()), self.beyond[rose].tolist()
        rows = {"before": before, "after": after, "in_both": both}
        return {
            "schema": "giveaway.changes/1",
            "unit": self.unit,
            "ranked_by": self.ranked_by,
            "rows": {**rows, "only_before": before - both, "only_after": after - both},
            "spearman": round(self.spearman, 6),
            "top_in_common": {f"{share:g}": value for share, value in self.in_common.items()},
            "noise": noise,
            "rose_most": [dict(zip(told, row, strict=True)) for row in zip(*told.values(), strict=True)],
            "statement": self.statement(),
        }

    def to_markdown(self, top: int = 10) -> str:
        """Return a text for people, which names row numbers only."""
        found = self.to_json(top)
        rows, unit = found["rows"], "people" if self.unit == "person" else "records"
        common = [f"{value:.0%} of the top {share:.0%}" for share, value in self.in_common.items() if value is not None]
        lines = [
            f"{rows['in_both']} {unit} in both audits ({rows['only_before']} only before, {rows['only_after']} only "
            f"after), ranked by {self.ranked_by}.",
            f"Rank correlation {self.spearman:.2f}" + "".join(f"; {words} in common" for words in common) + ".",
        ]
        if found["rose_most"]:
            lines += ["", "| row before | row after | percentile before | after | beyond noise |", "|---" * 5 + "|"]
        words = {None: "not known", True: "yes", False: "no"}
        lines += [
            f"| {row['row_before']} | {row['row_after']} | {100 * row['percentile_before']:.1f} "
            f"| {100 * row['percentile_after']:.1f} | {words[row['beyond_noise']]} |"
            for row in found["rose_most"]
        ]
        return "\n".join([*lines, "", self.statement()]) + "\n"


def changes(before: ScoreTable, after: ScoreTable, *, retrains: Sequence[ScoreTable] = ()) -> Changes:
    """Compare two audits of the same records, whose models may differ in anything. `retrains` are audits of at least
    three other models of the earlier recipe: a row then rose beyond noise if its later percentile is above what those
    in them predict (docs/derivations.md)."""
    by, unit = before.ranking(), before.meta.unit
    if 0 < len(retrains) < LEAST_RETRAINS:
        remedy = "train the earlier recipe with other seeds and audit each"
        raise fail("retrains", f"none, or at least {LEAST_RETRAINS}", f"{len(retrains)}", remedy)
    for name, other in (("after", after), *(("retrains", table) for table in retrains)):
        if other.meta.unit != unit or other.ranking() != by:
            got = f"{other.meta.unit}s ranked by {other.ranking()}"
            raise fail(name, f"{unit}s ranked by {by} as in the earlier audit", got, "audit both alike")
        numbered = all(np.array_equal(table.ids, np.arange(len(table))) for table in (other, before))
        if len(other) != len(before) and numbered:
            got = f"row numbers for ids, {len(before)} and {len(other)} of them"
            expected = "ids that name the same record in both audits"
            raise fail(name, expected, got, "give the records ids and audit again")
    ids, rows_before, rows_after = np.intersect1d(before.ids, after.ids, assume_unique=True, return_indices=True)
    if len(ids) < 2:
        got = f"{len(ids)} ids in common"
        raise fail("after", "an audit of the same records", got, "compare audits of one data set")
    order = np.argsort(rows_after)
    ids, rows_before, rows_after = ids[order], rows_before[order], rows_after[order]
    old, new = before[by][rows_before], after[by][rows_after]
    was, now = percentiles(before)[rows_before], percentiles(after)[rows_after]
    scores = {"percentile_before": was, "percentile_after": now, "rise": now - was}
    attributes = {"row_before": rows_before, "row_after": rows_after}
    attributes |= {"beyond_noise": _beyond(ids, now, retrains)} if retrains else {}
    return Changes(
        table=ScoreTable(scores, ids, attributes=attributes),
        sizes=(len(before), len(after)),
        unit=unit,
        ranked_by=by,
        spearman=spearman(old, new),
        in_common={share: recall_at(new, old, share, share) if round(len(ids) * share) else None for share in TOPS},
        retrains=len(retrains),
    )


def percentiles(table: ScoreTable) -> np.ndarray:
    """Return the share of rows that rank lower than each row, counting half of itself and of its ties."""
    return (rankdata(table[table.ranking()]) - 0.5) / len(table)


def _beyond(ids: np.ndarray, places: np.ndarray, retrains: Sequence[ScoreTable]) -> np.ndarray:
    """Mark the rows that rank higher than the retrains predict."""
    scores = np.full((len(retrains), len(ids)), np.nan)
    for number, table in enumerate(retrains):
        _, ours, theirs = np.intersect1d(ids, table.ids, assume_unique=True, return_indices=True)
        scores[number, ours] = ndtri(percentiles(table)[theirs])
    if not (known := ~np.isnan(scores).any(axis=0)).any():
        return known
    sample, k = scores[:, known], len(retrains)
    mean = sample.mean(axis=0)
    one_place = 1 / (len(retrains[0]) * norm.pdf(mean))  # a row's place is known no better than this
    variance, freedom = _moderated(sample.var(axis=0, ddof=1) + one_place**2 / 12, k - 1)
    t = (ndtri(places[known]) - mean) / np.sqrt(variance * (1 + 1 / k))
    known[known] = benjamini_hochberg(student.sf(t, freedom), FALSE_DISCOVERY, len(t))[0]
    return known


def _moderated(variance: np.ndarray, freedom: int) -> tuple[np.ndarray, float]:
    """Shrink the variance of every row toward the common one (Smyth 2004); return it with its degrees of freedom."""
    logs = np.log(variance) - digamma(freedom / 2) + np.log(freedom / 2)
    excess = logs.var(ddof=1) - polygamma(1, freedom / 2) if len(logs) > 1 else 0.0
    if excess <= polygamma(1, MOST_FREEDOM / 2):
        return np.full_like(variance, np.exp(logs.mean())), MOST_FREEDOM
    prior = 2 * brentq(lambda half: polygamma(1, half) - excess, 1e-3, MOST_FREEDOM / 2)
    middle = np.exp(logs.mean() + digamma(prior / 2) - np.log(prior / 2))
    return (prior * middle + freedom * variance) / (prior + freedom), prior + freedom
