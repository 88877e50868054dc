"""What if the most exposed rows were taken out of training: who would be exposed then?

Rows that stand near one another cover for one another. Take one layer away and the next may lie as open as the first
did, so taking records out is no remedy before this has been looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from giveaway.auditing.run import audit
from giveaway.checks import check_number, fail
from giveaway.curvature.optimum import refit
from giveaway.evaluation.ranking import spearman
from giveaway.records import Head, ScoreTable

MOST_RISEN = 20


@dataclass(frozen=True, eq=False)
class Removal:
    """Newton of the rows left, with and without the most exposed ones in training; all numbers are rows.

    `entered` answers who is exposed now that was not: with k rows removed, those among the k highest newtons of the
    rows left after the removal that were not among the k highest of the same rows before it, the highest first. A row
    that only moved up because others are gone is not among them. `risen` are up to 20 rows left whose newton rises
    most, the most first.
    """

    share: float
    removed: np.ndarray  # the most exposed first
    spearman: float | None  # of newton before and after, over the rows left; None with fewer than 3
    entered: np.ndarray
    risen: np.ndarray
    before: np.ndarray  # newton of `risen`
    after: np.ndarray


def removals(head: Head, table: ScoreTable, *, shares: Sequence[float]) -> tuple[Removal, ...]:
    """Take each of `shares` of the rows of `table`, the most exposed ones, out of `head` and score the others again.

    The head is brought to the optimum of its objective with and without them, so that nothing but the removal moves
    it, and newton is computed at both. One Newton step from the one to the other would not do: on a softmax head that
    fits its records, where the most exposed hold most of the curvature, it overshot a hundredfold. Features below the
    head stay as they are, so this is predicted, not measured.
    """
    row_of = row_of_record(head, table)
    if not head.linear:
        raise fail("head", "a linear head", "a black box", "pass the features of a linear head to Head")
    counts = [_count(share, len(table)) for share in shares]
    unit = table.meta.get("unit", "record")
    whole = refit(replace(head, inputs=None))
    before = _newton(whole, unit)
    found = []
    for share, count in zip(shares, counts, strict=True):
        removed = table.order()[:count]
        gone = np.isin(np.arange(len(table)), removed)
        after = _newton(without(whole, gone[row_of]), unit)
        left = np.flatnonzero(~gone)
        risen = _risen(before, after, left)
        found.append(
            Removal(
                share=share,
                removed=removed,
                spearman=spearman(before[left], after[left]) if len(left) >= 3 else None,
                entered=_entered(before, after, left, count),
                risen=risen,
                before=before[risen],
                after=after[risen],
            )
        )
    return tuple(found)


def without(head: Head, gone: np.ndarray) -> Head:
    """`head` at its optimum without the records `gone` (n,), which keep their rows, with weight 0."""
    members = torch.from_numpy(np.flatnonzero(gone)).to(head.device)
    whole = torch.ones(head.n, dtype=torch.float64, device=head.device)
    weight = (whole if head.sample_weight is None else head.sample_weight).index_fill(0, members, 0.0)
    if not bool((weight > 0).any()):
        got = "records of weight 0 only"
        raise fail("share", "records that count among those left", got, "take out a smaller share")
    return refit(replace(head, sample_weight=weight))  # rows stay, so that a memory map is not copied


def row_of_record(head: Head, table: ScoreTable) -> np.ndarray:
    """The row of an audit's `table` that each record of `head` is in: its own, or that of its person."""
    if table.meta.get("unit", "record") == "record":
        rows, count = np.arange(head.n), head.n
    else:
        if head.groups is None:
            raise fail("head", "groups, as the table is by person", "none", "pass groups= to Head, as for the audit")
        people, rows = np.unique(head.groups, return_inverse=True)
        count = len(people)
    if count != len(table):
        raise fail("table", f"{count} rows, as the head has", f"{len(table)}", "pass the whole table of this head")
    return rows


def _count(share: float, rows: int) -> int:
    remedy = "give the share of the rows to take out, such as 0.01"
    if not 0.0 < check_number("share", share, minimum=0.0, remedy=remedy) < 1.0:
        raise fail("share", "a share between 0 and 1", f"{share:g}", remedy)
    count = max(1, round(share * rows))
    if rows - count < 2:
        got = f"{count} of {rows} taken out"
        raise fail("share", "a share that leaves at least 2 rows", got, "take out a smaller share")
    return count


def _newton(head: Head, unit: str) -> np.ndarray:
    return audit(head, scores=["newton"], by=unit, l2_sensitivity=False)["newton"]


def _entered(before: np.ndarray, after: np.ndarray, left: np.ndarray, count: int) -> np.ndarray:
    earlier, now = (left[np.argsort(-values[left], kind="stable")[:count]] for values in (before, after))
    return now[~np.isin(now, earlier)]


def _risen(before: np.ndarray, after: np.ndarray, left: np.ndarray) -> np.ndarray:
    rise = after[left] - before[left]
    rises = np.flatnonzero(rise > 0)
    return left[rises[np.argsort(-rise[rises], kind="stable")[:MOST_RISEN]]]
