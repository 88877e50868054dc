"""The table of the most exposed rows: what each cell shows, and the number by which it is sorted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from giveaway.findings.explain import SUBGROUP, why
from giveaway.findings.extras import ReportExtras
from giveaway.network.depths import suffix
from giveaway.records import ScoreTable
from giveaway.reporting.validation import StoredValidation
from giveaway.reporting.words import layers_of
from giveaway.text import shown_text

BEFORE_WHY = ("loss", "leverage", "predicted_success")  # scores after the one that ranks, before the reasons
AFTER_WHY = ("newton", "left_out", "residual")
ABOUT_ROW = ("class", "target", "others_say", "records")
MOST_LETTERS = 200


@dataclass(frozen=True)
class Column:
    """A heading, its key in the script of the page, what it means, and whether its cells are numbers."""

    name: str
    key: str
    meaning: str
    number: bool


@dataclass(frozen=True)
class Cell:
    """The text that is shown and, for a number, the value that sorts it."""

    text: str
    value: str = ""


@dataclass(frozen=True)
class Listing:
    """Rows in the order of their exposure; `contents` has a text or a picture for each, or is empty."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: tuple[int, ...]
    nearest: tuple[str, ...]
    contents: tuple[tuple[str, bytes], ...]


MEANINGS = {
    "rank": "1 is the most exposed",
    "id": "the name of the row",
    "percentile": "the percentage of all rows that rank lower",
    "class": "its target",
    "target": "its target",
    "others_say": "what the other records predict for it",
    "records": "how many records the person has",
    "residual": "how far its prediction is from its target",
    "fused": "two views combined by rank: what the model did with it, and what the other records predict",
    "newton": "the estimated rise of its loss if it had been left out",
    "influence": "the same to first order: too small if leverage is high",
    "left_out": "how wrongly the other records predict it",
    "leverage": "how far its own target pulls its own prediction, 0 to 1",
    "loss": "its loss in the audited model",
    "predicted_success": "the predicted balanced success of an attack on it: not measured",
    "measured_success": "the share of shadow models for which LiRA got its membership right: measured, of the recipe",
    "found_exposed": "counted as exposed by the per-record test",
    "why": "what stands out about it",
}
OF_PEOPLE = {"leverage": "how far the targets of a person's records pull their predictions, from 0 to their number"}


def listing(table: ScoreTable, extras: ReportExtras, measured: StoredValidation | None, *, top: int) -> Listing:
    """List the `top` most exposed rows with the columns that a reader can use."""
    by = table.ranking()
    rows = table.order(by)[:top]
    ranks = np.arange(1, len(rows) + 1)
    values: dict[str, Any] = {"rank": ranks, "id": table.ids[rows]}
    subgroups = [name for name in table.attributes if name.startswith(SUBGROUP)]
    deeper = _deeper(table)
    flags = ["newton_capped", *(f"newton_capped{suffix(depth)}" for depth in table.meta.depths or {})]
    known = (*ABOUT_ROW, *AFTER_WHY, *subgroups, *flags, "nearest")
    others = [name for name in table.attributes if name not in known]
    for name in [*(n for n in ABOUT_ROW if n in table.attributes), *subgroups, *others]:
        values[name] = table[name][rows]
    values[by] = table[by][rows]
    values["percentile"] = 100.0 * (len(table) - ranks) / len(table)
    values |= {name: table[name][rows] for name in BEFORE_WHY if name in table.scores and name != by}
    if measured is not None and len(measured.success) == len(table) and not table.meta.by_person:
        values["measured_success"] = measured.success[rows]
        values["found_exposed"] = np.where(measured.flagged[rows], "yes", "not shown")
    values["why"] = np.array(why(table, rows, nearest=False), dtype=object)
    columns_of = {**table.attributes, **table.scores}
    values |= {name: columns_of[name][rows] for name in (*AFTER_WHY, *deeper) if name in columns_of and name != by}
    near = table["nearest"][rows].tolist() if "nearest" in table.attributes else []
    meanings = MEANINGS | deeper | (OF_PEOPLE if table.meta.by_person else {})
    columns = [
        Column(
            shown_text(name.removeprefix(SUBGROUP), 80),
            name if name in MEANINGS or name == by else "",
            meanings.get(name, "a column of the table"),
            column.dtype.kind in "fiu",
        )
        for name, column in values.items()
    ]
    cells = [[_cell(value) for value in column.tolist()] for column in values.values()]
    return Listing(
        tuple(columns),
        tuple(zip(*cells, strict=True)),
        tuple(int(row) for row in rows),
        tuple(shown_text(names, 200) for names in near) if any(near) else (),
        _contents(extras, rows),
    )


def _deeper(table: ScoreTable) -> dict[str, str]:
    """Return one column of each depth, newton if there is one, and what it means."""
    found = {}
    for depth in table.meta.depths or {}:
        name = next((name for name in ("newton", "influence") if name + suffix(depth) in table.scores), None)
        if name is not None:
            found[name + suffix(depth)] = f"{MEANINGS[name]}; through {layers_of(depth)} of the network"
    return found


def _contents(extras: ReportExtras, rows: np.ndarray) -> tuple[tuple[str, bytes], ...]:
    held = extras.contents
    if held is None:
        return ()
    shown = dict(zip(held.rows.tolist(), zip(held.texts, held.pictures, strict=True), strict=True))
    return tuple(shown.get(int(row), ("", b"")) for row in rows)


def _cell(value: Any) -> Cell:
    if isinstance(value, float):
        return Cell(f"{value:.4g}", repr(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Cell(str(value), str(value))
    return Cell(shown_text(value, MOST_LETTERS))
