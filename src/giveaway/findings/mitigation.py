"""Two ways to treat the most exposed rows, and what they would do: take them out of training, or weight them down.

Rows near one another cover for one another. When one layer is taken away, the next may be as exposed as the first one
was, so removing records is no remedy before its effect has been estimated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from giveaway.auditing.run import audit
from giveaway.checks import check_number, fail
from giveaway.curvature.choice import Auto
from giveaway.curvature.optimum import refit
from giveaway.evaluation.ranking import spearman
from giveaway.records import Head, ScoreTable

MOST_RISEN = 20
NOTE = "heuristic: weights that depend on the data void a stated (ε, δ)"


@dataclass(frozen=True, eq=False)
class RemovalEffect:
    """The newton score of the remaining rows, with and without the most exposed ones in training: rows that have
    `entered` the most exposed not for the others' absence alone, and up to 20 that have `risen` most."""

    share: float
    removed: np.ndarray  # the most exposed first
    spearman: float | None  # of newton before and after, over the remaining rows; None for fewer than 3
    entered: np.ndarray
    risen: np.ndarray
    before: np.ndarray  # newton of `risen`
    after: np.ndarray


def removals(head: Head, table: ScoreTable, *, shares: Sequence[float]) -> tuple[RemovalEffect, ...]:
    """Take each of `shares` of the rows of `table`, the most exposed ones, out of `head` and score the others again, at
    the optimum with and without them. Features below the head stay as they are: predicted, not measured."""
    row_of = row_of_record(head, table)
    if not head.linear:
        raise fail("head", "a linear head", "a black box", "pass the features of a linear head to Head")
    counts = [max(1, round(share * len(table))) for share in shares]
    if len(table) - max(counts) < 2:
        got = f"{max(counts)} of {len(table)} taken out"
        raise fail("share", "a share that leaves at least 2 rows", got, "take out a smaller share")

    def newton_of(scored: Head) -> np.ndarray:
        scored = scored if table.meta.by_person else replace(scored, groups=None)
        return audit(scored, scores="newton", curvature=Auto(l2_sensitivity=False))["newton"]

    whole = refit(replace(head, inputs=None))
    before = newton_of(whole)
    effects = []
    for share, count in zip(shares, counts, strict=True):
        removed = table.order()[:count]
        gone = np.isin(np.arange(len(table)), removed)
        after = newton_of(without(whole, gone[row_of]))
        left = np.flatnonzero(~gone)
        correlation = spearman(before[left], after[left]) if len(left) >= 3 else None
        earlier, now = (left[np.argsort(-values[left], kind="stable")[:count]] for values in (before, after))
        by_rise = left[np.argsort(before[left] - after[left], kind="stable")[:MOST_RISEN]]
        risen = by_rise[after[by_rise] > before[by_rise]]
        entered = now[~np.isin(now, earlier)]
        effects.append(RemovalEffect(share, removed, correlation, entered, risen, before[risen], after[risen]))
    return tuple(effects)


def without(head: Head, gone: np.ndarray) -> Head:
    """Return `head` at its optimum without the records `gone` (n,), which keep their rows with weight 0."""
    members = torch.from_numpy(np.flatnonzero(gone)).to(head.device)
    whole = torch.ones(head.n, dtype=torch.float64, device=head.device)
    weight = (whole if head.sample_weight is None else head.sample_weight).index_fill(0, members, 0.0)
    if not bool((weight > 0).any()):
        got = "records of weight 0 only"
        raise fail("share", "records that count among those left", got, "take out a smaller share")
    return refit(replace(head, sample_weight=weight))  # rows stay, so that a memory map is not copied


def row_of_record(head: Head, table: ScoreTable) -> np.ndarray:
    """Return, for each record of `head`, its row in the audit's `table`: its own, or that of its person."""
    if table.meta.unit == "record":
        rows, count = np.arange(head.n), head.n
    else:
        if head.groups is None:
            raise fail("head", "groups, as the table is by person", "none", "pass groups= to Head, as for the audit")
        people, rows = np.unique(head.groups, return_inverse=True)
        count = len(people)
    if count != len(table):
        raise fail("table", f"{count} rows, as the head has", f"{len(table)}", "pass the whole table of this head")
    return rows


def weights(table: ScoreTable, *, cap: float = 0.9) -> np.ndarray:
    """Return one weight per row in (0, 1] that brings its newton down to the `cap` quantile of all rows
    (docs/derivations.md): exact for squared loss and one row at a time, else an estimate, so audit the retrained model.
    Weights multiply those of the audited training and are not normalised."""
    for name in ("newton", "influence"):
        if name not in table.scores:
            remedy = "audit a linear head with it; a black box has no curvature to tell how a record pulls"
            raise fail("table", f"the column {name}", ", ".join(table.columns), remedy)
    remedy = "give a quantile, such as 0.9"
    if not 0.0 < check_number("cap", cap, minimum=0.0, remedy=remedy) <= 1.0:
        raise fail("cap", "a quantile above 0 and up to 1", f"{cap:g}", remedy)
    newton, influence = table["newton"], table["influence"]
    limit = float(np.quantile(newton, cap))
    above = newton > limit
    if limit <= 0.0 and above.any():
        got = f"a quantile of {limit:g}, which no weight above 0 reaches"
        raise fail("cap", "a quantile of newton above 0", got, "give a higher cap")
    result = np.ones(len(newton))
    ratio = limit / newton[above]
    remainder = np.clip(influence[above] / newton[above], 0.0, 1.0)  # 1 − h
    cross = ratio * remainder * (1.0 - remainder)
    root = 2.0 * ratio * remainder**2 / (1.0 - 2.0 * cross + np.sqrt(1.0 - 4.0 * cross))
    result[above] = np.clip(root, np.finfo(np.float64).tiny, 1.0)
    return result
