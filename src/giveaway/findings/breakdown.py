"""Are the most exposed spread evenly? Every class's and subgroup's share among them against its share of all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import hypergeom

from giveaway.records import ScoreTable

SUBGROUP = "subgroup_"  # attributes whose names begin so say what a row belongs to
TOP = 0.05
LEAST = 10  # rows: smaller groups are not shown to others
CONFIDENCE = 0.95
POOLED = "all smaller ones together"


@dataclass(frozen=True)
class Group:
    """Rows of one class or subgroup; `exposed` of them are among the most exposed of the table.

    `ratio` is its share of the most exposed over its share of all rows: 1 where they are spread evenly. By chance alone
    (the most exposed drawn at random from all rows) it would lie between `low` and `high` in 95 % of tables.
    """

    name: str
    rows: int
    exposed: int
    ratio: float
    low: float
    high: float
    stands_out: bool  # more of them than chance alone gives in 97.5 % of tables


@dataclass(frozen=True)
class Breakdown:
    """The groups of one kind, the most over-represented first; `top` rows in all are the most exposed."""

    kind: str
    groups: tuple[Group, ...]
    rows: int
    top: int

    @property
    def rare_share(self) -> float | None:
        """How over-represented the rows of rare groups are: those below half of an even share."""
        rare = [group for group in self.groups if group.rows < 0.5 * self.rows / len(self.groups)]
        rows = sum(group.rows for group in rare)
        return None if not rows else (sum(g.exposed for g in rare) / self.top) / (rows / self.rows)

    def shareable(self) -> Breakdown:
        """The same with groups of fewer than ten rows put together, so that nobody stands in a small one."""
        ordered = sorted(self.groups, key=lambda group: group.rows)
        small = [group for group in ordered if group.rows < LEAST]
        if not small:
            return self
        rest = ordered[len(small) :]
        while rest and sum(group.rows for group in small) < LEAST:
            small.append(rest.pop(0))
        together = [group for group in small if group.rows]
        pooled = _group(POOLED, sum(g.rows for g in together), sum(g.exposed for g in together), self.rows, self.top)
        return Breakdown(self.kind, _ordered([*rest, pooled]), self.rows, self.top)

    def to_json(self) -> dict[str, Any] | None:
        """Of the shareable form; None where fewer than ten rows are the most exposed.

        Counts below ten, on either side, are not told, and so many of the others besides that none of them follows from
        the total.
        """
        if self.top < LEAST:
            return None
        groups = self.shareable().groups
        hidden = {group.name for group in groups if group.exposed < LEAST or group.rows - group.exposed < LEAST}
        for group in sorted(groups, key=lambda group: group.exposed):
            if not hidden or (len(hidden) > 1 and sum(g.exposed for g in groups if g.name in hidden) >= LEAST):
                break
            hidden.add(group.name)
        told: list[dict[str, Any]] = []
        for group in sorted(groups, key=lambda group: (-group.rows, group.name)):
            counted: dict[str, Any] = {"among_the_most_exposed": None}
            if group.name not in hidden:
                ends = {"by_chance_from": round(group.low, 4), "by_chance_to": round(group.high, 4)}
                ratio = {"times_an_even_share": round(group.ratio, 4), **ends}
                counted = {"among_the_most_exposed": group.exposed, **ratio}
            told.append({"name": group.name, "rows": group.rows, **counted})
        return {"kind": self.kind, "most_exposed": self.top, "groups": told}


def breakdowns(table: ScoreTable, *, top: float = TOP) -> list[Breakdown]:
    """By class, and by every subgroup that the table knows."""
    kinds = {"class": "class"} if "class" in table.attributes else {}
    kinds |= {name: name.removeprefix(SUBGROUP) for name in table.attributes if name.startswith(SUBGROUP)}
    return [breakdown(table, name, kind, top=top) for name, kind in kinds.items()]


def breakdown(table: ScoreTable, attribute: str, kind: str, *, top: float = TOP) -> Breakdown:
    """How the most exposed `top` of the rows are spread over the values of `attribute`."""
    count = max(1, round(top * len(table)))
    names, where = np.unique(table[attribute], return_inverse=True)
    rows = np.bincount(where, minlength=len(names))
    exposed = np.bincount(where[table.order()[:count]], minlength=len(names))
    groups = [
        _group(str(name), int(n), int(k), len(table), count) for name, n, k in zip(names, rows, exposed, strict=True)
    ]
    return Breakdown(kind, _ordered(groups), len(table), count)


def _group(name: str, rows: int, exposed: int, all_rows: int, top: int) -> Group:
    chance = hypergeom(all_rows, rows, top)
    tail = (1 - CONFIDENCE) / 2
    even = rows * top / all_rows
    low, high = float(chance.ppf(tail)) / even, float(chance.ppf(1 - tail)) / even
    return Group(name, rows, exposed, exposed / even, low, high, bool(chance.sf(exposed - 1) <= tail))


def _ordered(groups: list[Group]) -> tuple[Group, ...]:
    return tuple(sorted(groups, key=lambda group: (-group.ratio, group.name)))
