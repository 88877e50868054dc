"""Explain a ranking: why a row ranks high, and whether classes and subgroups share the exposure evenly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import hypergeom

from giveaway.records import ScoreTable
from giveaway.text import shown_text
from giveaway.views.bags import UNKNOWN

NOTABLE = 0.25  # of the rows: a row further down gets no reason
SUBGROUP = "subgroup_"  # attributes whose names begin like this say what a row belongs to
TOP = 0.05
LEAST = 10  # rows: smaller groups are not shown to others
CONFIDENCE = 0.95
POOLED = "others together"
SPOKE = 0.1  # of the weight of all views: one that counts less gives no reason
VARIANTS = {"mirror": "mirror image", "shift": "shifted image"}


def about(count: int, *, down: bool = False) -> int:
    """Round a count to tens, and by up to 5 %, so that a row more or less rarely changes what is shared.

    >>> [about(count) for count in (3, 14, 137, 1_234, 56_789)], about(137, down=True)
    ([10, 10, 140, 1200, 55000], 130)
    """
    unit = 10 ** max(1, len(str(count)) - 2)
    step = unit * (1 if count < 20 * unit else 2 if count < 50 * unit else 5)
    return max(10, step * (count // step if down else round(count / step)))


def why(table: ScoreTable, rows: np.ndarray, *, nearest: bool = True, values: bool = True) -> list[str]:
    """Return one phrase per row that says how it stands out; without `values` it holds no target but classes."""
    columns = [[""] * len(rows)]
    if _spoke(table, "trace"):
        columns.append(_when_learned(table, rows))
    if _spoke(table, "relatives"):
        columns.append(_unrecognized(table, rows))
    if _spoke(table, "out_of_bag"):
        columns.append(_contradictions(table, rows, values, "out_of_bag", "trees_say", "trees that never saw it say"))
    for name, words in (("leverage", "high leverage"), ("residual", "poorly fitted")):
        if name in table.scores or name in table.attributes:
            columns.append([_phrase(words, share) for share in _shares(table[name], rows)])
    if "newton_capped" in table.attributes:
        capped = table["newton_capped"][rows]
        columns.append(["alone in a feature direction (score capped)" if c else "" for c in capped])
    if "fused" in table.scores:
        columns.append(_contradictions(table, rows, values, "left_out", "others_say", "the other records predict"))
    phrases = ["; ".join(filter(None, parts)) or "nothing stands out" for parts in zip(*columns, strict=True)]
    if not nearest or "nearest" not in table.attributes:
        return phrases
    near = table["nearest"][rows].tolist()
    return [f"{phrase}; nearest: {ids}" if ids else phrase for phrase, ids in zip(phrases, near, strict=True)]


def _spoke(table: ScoreTable, view: str) -> bool:
    """Return whether the table has this view, and `fused` listens to it."""
    weights = {} if table.meta.fusion is None else table.meta.fusion.weights
    return view in table.scores and weights.get(view, 0.0) >= SPOKE * sum(weights.values()) > 0


def _when_learned(table: ScoreTable, rows: np.ndarray) -> list[str]:
    """Say which rows were hard to learn, and which came late: most of their losses did, and little is left."""
    trace, learned, loss = table["trace"], table.attributes.get("learned_by"), table.scores.get("loss")
    late = np.zeros(len(table), dtype=bool)
    if learned is not None and loss is not None:
        late = (learned > np.quantile(learned, 1 - NOTABLE)) & (np.sqrt(np.maximum(loss, 0.0)) < 0.5 * trace)
    words = ["learned last" if late[row] else "hard to learn" for row in rows]
    return [_phrase(*item) for item in zip(words, _shares(trace, rows), strict=True)]


def _unrecognized(table: ScoreTable, rows: np.ndarray) -> list[str]:
    """Say of which rows the model knows the variants less that count most."""
    fusion, recognized = table.meta.fusion, table.attributes.get("recognized", np.ones(len(table), dtype=bool))
    told = (None if fusion is None else fusion.relatives) or {}
    weights = {VARIANTS.get(name, f"variant {shown_text(name, 40)}"): told[name]["weight"] for name in told}
    counting = [name for name, weight in weights.items() if weight >= 0.5 * max(weights.values())]
    which = f"its {' and '.join(counting) or 'variant'} {'are' if len(counting) > 1 else 'is'}"
    if table.meta.by_person:
        which = "variants of their records are"
    words = [f"{which} {'known less well' if recognized[row] else 'not recognized'}" for row in rows]
    return [_phrase(*item) for item in zip(words, _shares(table["relatives"], rows), strict=True)]


def _contradictions(
    table: ScoreTable, rows: np.ndarray, values: bool, column: str, attribute: str, who: str
) -> list[str]:
    """Say what a view that never saw each row predicts for it where that is not the row's own target."""
    said, classes, targets = (table.attributes.get(name) for name in (attribute, "class", "target"))
    if said is not None and classes is not None:
        return [f"{who} {said[row]}" if said[row] not in (classes[row], UNKNOWN) else "" for row in rows]
    if said is not None and targets is not None:
        error = np.nan_to_num(np.abs(said - targets), nan=-1.0)  # nothing was said
        if values:
            return [
                f"{who} {said[row]:.3g}, not {targets[row]:.3g}" if share <= NOTABLE else ""
                for row, share in zip(rows, _shares(error, rows), strict=True)
            ]
    elif column in table.scores:
        error = table[column]
    else:
        return [""] * len(rows)
    return [_phrase(f"{who} otherwise", share) for share in _shares(error, rows)]


def _shares(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rank of each row among all rows, as a share of them."""
    return (np.searchsorted(np.sort(-values), -values[rows], side="left") + 1) / len(values)


def _phrase(words: str, share: float) -> str:
    for limit, name in ((0.01, "top 1 %"), (0.05, "top 5 %"), (NOTABLE, "top 25 %")):
        if share <= limit:
            return f"{words} ({name})"
    return ""


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

    def shareable(self) -> Breakdown:
        """Put the groups of fewer than ten rows together, so that nobody can be found in a small one."""
        return self._together(lambda group: group.rows < LEAST, lambda group: group.rows)

    def _together(self, small: Callable[[Group], bool], joins: Callable[[Group], Any]) -> Breakdown:
        """Put groups that are small together, with as many others as it takes, in the order of `joins`."""
        together = [group for group in self.groups if small(group)]
        rest = sorted((group for group in self.groups if not small(group)), key=joins)
        if not together:
            return self
        while True:
            rows, exposed = sum(group.rows for group in together), sum(group.exposed for group in together)
            pooled = group_of(POOLED, rows, exposed, self.rows, self.top)
            if not rest or not small(pooled):
                groups = sorted([*rest, pooled], key=lambda group: (-group.ratio, group.name))
                return replace(self, groups=tuple(groups))
            together.append(rest.pop(0))

    def to_json(self) -> dict[str, Any] | None:
        """Return the shareable form; None if fewer than ten rows are the most exposed.

        Groups with counts below ten on either side are put together with others, the smallest that do not stand out.
        Where nothing else would be left, those counts are withheld instead, and as many others as it takes so that none
        of them follows from the total. What is told is rounded, and so is what is made of it.
        """
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
                rows, exposed = min(about(group.rows), all_rows), min(about(group.exposed), top)
                coarse = group_of(group.name, rows, exposed, all_rows, top)
                chance = {"by_chance_from": round(coarse.low, 2), "by_chance_to": round(coarse.high, 2)}
                ratio = {"times_an_even_share": round(coarse.ratio, 2), **chance}
                shown[-1] |= {"among_the_most_exposed": exposed, **ratio}
        return {"kind": self.kind, "most_exposed": top, "groups": shown}


def breakdowns(table: ScoreTable) -> list[Breakdown]:
    """Return the breakdown by class, and by every subgroup that the table knows."""
    kinds = {"class": "class"} if "class" in table.attributes else {}
    kinds |= {name: name.removeprefix(SUBGROUP) for name in table.attributes if name.startswith(SUBGROUP)}
    return [breakdown(table, name, kind) for name, kind in kinds.items()]


def breakdown(table: ScoreTable, attribute: str, kind: str, *, top: float = TOP) -> Breakdown:
    """Count how the most exposed `top` of the rows are spread over the values of `attribute`."""
    count = max(1, round(top * len(table)))
    names, value_of = np.unique(table[attribute], return_inverse=True)
    rows = np.bincount(value_of, minlength=len(names))
    exposed = np.bincount(value_of[table.order()[:count]], minlength=len(names))
    counts = zip(map(str, names), rows.tolist(), exposed.tolist(), strict=True)
    return _broken_down(kind, counts, len(table), count)


def _broken_down(kind: str, counts: Iterable[tuple[str, int, int]], rows: int, top: int) -> Breakdown:
    groups = [group_of(*count, rows, top) for count in counts]
    return Breakdown(kind, tuple(sorted(groups, key=lambda group: (-group.ratio, group.name))), rows, top)


def group_of(name: str, rows: int, exposed: int, all_rows: int, top: int) -> Group:
    chance = (all_rows, rows, top)
    tail = (1 - CONFIDENCE) / 2
    even = rows * top / all_rows
    low, high = (float(end) / even for end in hypergeom.ppf([tail, 1 - tail], *chance))
    return Group(name, rows, exposed, exposed / even, low, high, bool(hypergeom.sf(exposed - 1, *chance) <= tail))
