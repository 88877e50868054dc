"""report.html: one self-contained page for those who may see the training data, every text escaped.

It loads nothing, is whole without JavaScript but for the maps, and its content policy forbids any request.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from giveaway.auditing.validate import Validation
from giveaway.findings.extras import ReportExtras, make_extras
from giveaway.findings.measured import Measured
from giveaway.records import Head, ScoreTable
from giveaway.reporting.cloud import bokeh_script
from giveaway.reporting.listing import listing
from giveaway.reporting.pages import page
from giveaway.reporting.parts import part, parts
from giveaway.reporting.words import access_of, found_elsewhere, headline, notes, standing
from giveaway.storage.files import write_text
from giveaway.text import shown_text

TOP = 100
NO_HEAD = "the report was made from the table alone; pass head= to have it"


def report(
    table: ScoreTable,
    path: str | os.PathLike[str],
    *,
    head: Head | None = None,
    validation: Validation | None = None,
    access: str | None = None,
    top: int = TOP,
) -> None:
    """Write the page of `table` to `path`, readable by you alone.

    With the `head` it was made of there are a map of its features and what happens once the most exposed are taken out;
    with a `validation` (ga.validate, ga.compare) the count that shadow models can defend. `access` is what the attacker
    has: labels, probabilities or weights.
    """
    look = None if head is None else make_extras(head, table)
    measured = None if validation is None else Measured.of(validation)
    write_text(path, render(table, look=look, measured=measured, access=access, top=top))


def render(
    table: ScoreTable,
    *,
    look: ReportExtras | None = None,
    measured: Measured | None = None,
    access: str | None = None,
    top: int = TOP,
) -> str:
    """The page as a string."""
    seen = ReportExtras(missing={"map": NO_HEAD, "what-if": NO_HEAD}) if look is None else look
    chosen = access_of(table, access)
    people = table.meta.get("unit") == "person"
    sections = parts(table, seen, measured)
    listed = listing(table, seen, measured, top=top)
    return page(
        "report.html",
        unit="people" if people else "records",
        one="person" if people else "record",
        rows=len(table),
        by=table.ranking(),
        headline=headline(table, measured, chosen),
        counted=measured is not None,
        found=found_elsewhere(table.ranking()),
        standing=standing(table, measured, chosen),
        notes=_notes(table),
        title=shown_text(table.meta.get("title") or "", 120),
        date=(table.meta.get("provenance") or {}).get("date", ""),
        missing_contents=seen.missing.get("contents", ""),
        listed=listed,
        pictures=[b64encode(png).decode() if png else "" for _, png in listed.contents],
        parts=sections,
        missing_map=seen.missing.get("map", ""),
        bokeh=bokeh_script() if sections["maps"].value else "",
        scores=table.columns,
        linear=table.meta.get("optimum") is not None or "newton" in table.scores,
        deeper=bool(table.meta.get("depths")) and not people,
        others_say="others_say" in table.attributes,
        spread=_spread(table[table.ranking()]),
        facts=[(shown_text(name, 120), shown_text(value, 400)) for name, value in facts(table.meta)],
    )


def _notes(table: ScoreTable) -> list[str]:
    found = part(lambda: notes(table))
    return [found.note] if found.note else found.value


def _spread(values: np.ndarray) -> list[tuple[str, str]]:
    """The least value among the top of the rows, as the picture beside it marks them."""
    ordered = np.sort(values)[::-1]
    counts = {f"top {100 * share:g} % from": max(1, round(share * len(values))) for share in (0.1, 0.05, 0.01)}
    found = {"median": float(np.median(values)), **{name: float(ordered[k - 1]) for name, k in counts.items()}}
    return [(name, f"{value:.4g}") for name, value in {**found, "largest": float(ordered[0])}.items()]


def facts(meta: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Every entry of the metadata as a name and a text."""
    found = []
    for key, value in meta.items():
        if isinstance(value, dict):
            found += facts(value, f"{prefix}{key} · ")
        elif value is not None:
            found.append((prefix + key, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return found
