"""Say whether classes and subgroups share the exposure evenly, to those who may see the records and to others."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import hypergeom

from giveaway.records import ScoreTable

SUBGROUP = "subgroup_"  # attributes whose names begin like this say what a row belongs to
TOP = 0.05
LEAST = 10  # rows: smaller groups are not shown to others
CONFIDENCE = 0.95
POOLED = "others together"


def about(count: int, *, down: bool = False) -> int:
    """Round a count to tens, and by up to 5 %, so that a row more or less rarely changes what is shared.

    >>> [about(count) for count in (3, 14, 137, 1_234, 56_789)], about(137, down=True)
    ([10, 10, 140, 1200, 55000], 130)
    """
    unit = 10 ** max(1, len(str(count)) - 2)
    step = unit * (1 if count < 20 * unit else 2 if count < 50 * unit else 5)
    return max(10, step * (count // step if down else round(count / step)))


@dataclass(frozen=True)
class Group:
    """The rows of one class or subgroup, `exposed` of which are among the most exposed. `ratio` is its share of those
    over its share of all rows; by chance alone it lies between `low` and `high` in 95 % of tables."""

    name: str
    rows: int
    exposed: int
    ratio: float
    low: float
    high: float
    stands_out: bool  # at least as many exposed rows occur by chance in at most 2.5 % of tables

    @property
    def small(self) -> bool:
        """Whether fewer than ten of its rows are exposed, or are not."""
        return min(self.exposed, self.rows - self.exposed) < LEAST


@dataclass(frozen=True)
class Breakdown:
    """The groups of one kind, the most over-represented first; `top` is the number of the most exposed rows."""

    kind: str
    groups: tuple[Group, ...]
    rows: int
    top: int

    def shareable(self) -> "Breakdown":
        """Put the groups of fewer than ten rows together, so that nobody can be found in a small one."""
        return self._together(lambda group: group.rows < LEAST, lambda group: group.rows)

    def _together(self, small: Callable[[Group], bool], joins: Callable[[Group], Any]) -> "Breakdown":
        """Put groups that are small together, with as many others as it takes, in the order of `joins`."""
        if not (together := [group for group in self.groups if small(group)]):
            return self
        rest = sorted((group for group in self.groups if not small(group)), key=joins)
        while True:
            rows, exposed = sum(group.rows for group in together), sum(group.exposed for group in together)
            pooled = group_of(POOLED, rows, exposed, self.rows, self.top)
            if not rest or not small(pooled):
                return replace(self, groups=_ordered([*rest, pooled]))
            together.append(rest.pop(0))

    def to_json(self) -> dict[str, Any] | None:
        """Return the shareable form, rounded; None if fewer than ten rows are the most exposed. Groups with counts
        under ten on either side join the smallest that do not stand out. Where nothing else would be left, those counts
        are withheld, and as many others as it takes so that none of them follows from the total."""
        if self.top < LEAST:
            return None
        groups = self._together(lambda group: group.small, lambda group: (group.stands_out, group.rows)).groups
        if len(groups) == 1 < len(self.groups):
            groups = self.shareable().groups
        hidden = {group.name for group in groups if group.small}
        for group in sorted(groups, key=lambda group: group.exposed):
            if not hidden or (len(hidden) > 1 and sum(g.exposed for g in groups if g.name in hidden) >= LEAST):
                break
            hidden.add(group.name)
        shown: list[dict[str, Any]] = []
        all_rows, top = about(self.rows), about(self.top)
        for group in sorted(groups, key=lambda group: (-about(group.rows), group.name)):
            shown.append({"name": group.name, "rows": about(group.rows), "among_the_most_exposed": None})
            if group.name not in hidden:
                exposed = min(about(group.exposed), top)
                coarse = group_of(group.name, min(about(group.rows), all_rows), exposed, all_rows, top)
                shown[-1] |= {"among_the_most_exposed": exposed, "times_an_even_share": round(coarse.ratio, 2)}
                shown[-1] |= {"by_chance_from": round(coarse.low, 2), "by_chance_to": round(coarse.high, 2)}
                shown[-1]["stands_out"] = group.stands_out
        return {"kind": self.kind, "most_exposed": top, "groups": shown}


def breakdowns(table: ScoreTable) -> list[Breakdown]:
    """Return the breakdown by class, and by every subgroup that the table knows."""
    named = (name for name in table.attributes if name == "class" or name.startswith(SUBGROUP))
    return [breakdown(table, name) for name in sorted(named, key=lambda name: name != "class")]


def breakdown(table: ScoreTable, attribute: str, *, top: float = TOP) -> Breakdown:
    """Count how the most exposed `top` of the rows are spread over the values of `attribute`."""
    count = max(1, round(top * len(table)))
    names, value_of = np.unique(table[attribute], return_inverse=True)
    both = (value_of, value_of[table.order()[:count]])
    rows, exposed = (np.bincount(values, minlength=len(names)).tolist() for values in both)
    groups = (group_of(*each, len(table), count) for each in zip(map(str, names), rows, exposed, strict=True))
    return Breakdown(attribute.removeprefix(SUBGROUP), _ordered(groups), len(table), count)


def _ordered(groups: Iterable[Group]) -> tuple[Group, ...]:
    return tuple(sorted(groups, key=lambda group: (-group.ratio, group.name)))


def group_of(name: str, rows: int, exposed: int, all_rows: int, top: int) -> Group:
    chance, tail, even = (all_rows, rows, top), (1 - CONFIDENCE) / 2, rows * top / all_rows
    low, high = (float(end) / even for end in hypergeom.ppf([tail, 1 - tail], *chance))
    return Group(name, rows, exposed, exposed / even, low, high, bool(hypergeom.sf(exposed - 1, *chance) <= tail))
