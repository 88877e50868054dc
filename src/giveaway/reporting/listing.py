"""The table of the most exposed rows: what a cell shows, and the number it is sorted by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from giveaway.auditing.depth_options import suffix
from giveaway.findings.explain import SUBGROUP, why
from giveaway.findings.extras import ReportExtras
from giveaway.findings.measured import Measured
from giveaway.records import ScoreTable
from giveaway.reporting.depth_words import layers_of
from giveaway.text import shown_text

FIRST = ("loss", "leverage", "predicted_success")  # scores beside the one that ranks, before the reasons
AFTER = ("newton", "left_out", "residual")
SAID = ("class", "target", "others_say", "records")
MOST_LETTERS = 200


@dataclass(frozen=True)
class Column:
    """A heading, the key the page's script knows it by, what it means, and whether its cells are numbers."""

    name: str
    key: str
    meaning: str
    number: bool


@dataclass(frozen=True)
class Cell:
    """What is shown and, of a number, what sorts it."""

    text: str
    value: str = ""


@dataclass(frozen=True)
class Listing:
    """Rows in the order of their exposure; `contents` has a text or a picture's address for each, or is empty."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: tuple[int, ...]
    nearest: tuple[str, ...]
    contents: tuple[tuple[str, bytes], ...]


MEANINGS = {
    "rank": "1 is the most exposed",
    "id": "name of the row",
    "percentile": "share of all rows that rank lower, in percent",
    "class": "its target",
    "target": "its target",
    "others_say": "what the other records predict for it",
    "records": "how many records the person has",
    "residual": "how far its prediction is from its target",
    "fused": "both views by rank: what the model did with it, and what the other records would say",
    "newton": "estimated rise of its loss had it been left out",
    "influence": "the same to first order: too small where leverage is high",
    "left_out": "how wrong the other records are about it",
    "leverage": "how far its own target pulls its own prediction, 0 to 1",
    "loss": "its loss in the audited model",
    "predicted_success": "balanced success that an attack on it is predicted to have: not measured",
    "measured_success": "share of shadow models whose membership LiRA told right: measured, of the recipe",
    "found_exposed": "counted as exposed by the per-record test",
    "why": "what stands out about it",
}


OF_PEOPLE = {"leverage": "how far the targets of a person's records pull their predictions, 0 to their number"}


def listing(table: ScoreTable, look: ReportExtras, measured: Measured | None, *, top: int) -> Listing:
    """The `top` most exposed rows with the columns that a reader can use."""
    by = table.ranking()
    rows = table.order(by)[:top]
    ranks = np.arange(1, len(rows) + 1)
    values: dict[str, Any] = {"rank": ranks, "id": table.ids[rows]}
    subgroups = [name for name in table.attributes if name.startswith(SUBGROUP)]
    deeper = _deeper(table)
    flags = ["newton_capped", *(f"newton_capped{suffix(depth)}" for depth in table.meta.get("depths") or {})]
    own = [name for name in table.attributes if name not in (*SAID, *AFTER, *subgroups, *flags, "nearest")]
    for name in [*(n for n in SAID if n in table.attributes), *subgroups, *own]:
        values[name] = table[name][rows]
    values[by] = table[by][rows]
    values["percentile"] = 100.0 * (len(table) - ranks) / len(table)
    values |= {name: table[name][rows] for name in FIRST if name in table.scores and name != by}
    if measured is not None and len(measured.success) == len(table) and table.meta.get("unit") != "person":
        values["measured_success"] = measured.success[rows]
        values["found_exposed"] = np.where(measured.flagged[rows], "yes", "not shown")
    values["why"] = np.array(why(table, rows, nearest=False), dtype=object)
    known = {**table.attributes, **table.scores}
    values |= {name: known[name][rows] for name in (*AFTER, *deeper) if name in known and name != by}
    near = table["nearest"][rows].tolist() if "nearest" in table.attributes else []
    meanings = MEANINGS | deeper | (OF_PEOPLE if table.meta.get("unit") == "person" else {})
    columns = [
        Column(
            shown_text(name.removeprefix(SUBGROUP), 80),
            name if name in MEANINGS or name == by else "",
            meanings.get(name, "a column of the table"),
            _number(column),
        )
        for name, column in values.items()
    ]
    cells = [[_cell(value) for value in column.tolist()] for column in values.values()]
    return Listing(
        tuple(columns),
        tuple(zip(*cells, strict=True)),
        tuple(int(row) for row in rows),
        tuple(shown_text(names, 200) for names in near) if any(near) else (),
        _contents(look, rows),
    )


def _deeper(table: ScoreTable) -> dict[str, str]:
    """One column of each depth, newton where there is one, and what it means."""
    found = {}
    for depth in table.meta.get("depths") or {}:
        name = next((name for name in ("newton", "influence") if name + suffix(depth) in table.scores), None)
        if name is not None:
            found[name + suffix(depth)] = f"{MEANINGS[name]}; through {layers_of(depth)} of the network"
    return found


def _contents(look: ReportExtras, rows: np.ndarray) -> tuple[tuple[str, bytes], ...]:
    if look.contents is None:
        return ()
    held = {int(row): place for place, row in enumerate(look.contents.rows)}
    places = [held.get(int(row)) for row in rows]
    return tuple(("", b"") if p is None else (look.contents.texts[p], look.contents.pictures[p]) for p in places)


def _number(column: np.ndarray) -> bool:
    return column.dtype.kind in "fiu"


def _cell(value: Any) -> Cell:
    if isinstance(value, float):
        return Cell(f"{value:.4g}", repr(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Cell(str(value), str(value))
    return Cell(shown_text(value, MOST_LETTERS))
