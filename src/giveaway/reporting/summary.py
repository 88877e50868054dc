"""summary.html and summary.json: what may be sent on. No ids, no neighbours, no map, and no group of fewer than ten.

Nothing here depends on one row: quantiles stand for at least ten rows. Of the metadata there is only what describes the
audit, never a path; of the user's own words the title, and what classes and subgroups of ten rows or more are called.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

import numpy as np

from giveaway.findings.explain import LEAST, breakdowns
from giveaway.findings.measured import Measured
from giveaway.records import ScoreTable
from giveaway.reporting.pages import page
from giveaway.reporting.parts import part
from giveaway.reporting.words import access_of, agreement_lines, found_elsewhere, headline, notes, standing

SCHEMA = "giveaway.summary/1"
SHARES = (("median", 0.5), ("top 10 %", 0.1), ("top 5 %", 0.05), ("top 1 %", 0.01))


def summary(
    table: ScoreTable, *, measured: Measured | None = None, access: str | None = None, date: datetime.date | None = None
) -> dict[str, Any]:
    """Everything that the summary says, for machines."""
    chosen = access_of(table, access)
    meta = table.meta
    origin = meta.get("provenance") or {}
    by = table.ranking()
    spread = part(lambda: [told for found in breakdowns(table) if (told := found.to_json()) is not None])
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "statement": headline(table, measured, chosen),
        "measured": measured is not None,
        "found_on_benchmarks": found_elsewhere(by),
        "standing": {name: sentences for name, sentences in standing(table, measured, chosen)},
        "title": meta.get("title"),
        "notes": notes(table, shared=True) if len(table) >= LEAST else [],
        "unit": meta.get("unit", "record"),
        "rows": len(table),
        "records": meta.get("records", len(table)),
        "loss": meta.get("loss"),
        "access": chosen,
        "ranked_by": by,
        "quantiles": _quantiles(table[by]),
        "spread_over": spread.value or [],
        "no_spread": "This part could not be made." if spread.note else None,  # an error's own words may hold values
        "l2_sensitivity": meta.get("l2_sensitivity") if len(table) >= LEAST else None,
        "seconds": meta.get("seconds"),
        "audit": origin.get("audit"),
        "versions": origin.get("versions"),
        "date": date.isoformat() if date else origin.get("date") or datetime.date.today().isoformat(),
    }
    if "predicted_success" in table.scores and len(table) >= LEAST:
        found["mean_predicted_success"] = round(float(table["predicted_success"].mean()), 4)
    if measured is not None:
        stated = ("models", "records", "at_least_exposed", "lira", "agreement")
        found["validation"] = {name: measured.stated[name] for name in stated}
    return found


def summary_pages(table: ScoreTable, *, measured: Measured | None = None, access: str | None = None) -> dict[str, str]:
    """File names and contents of the shareable output."""
    found = summary(table, measured=measured, access=access)
    unit = "people" if found["unit"] == "person" else "records"
    agreement = None if measured is None else agreement_lines(measured.stated)
    return {
        "summary.json": json.dumps(found, indent=2, allow_nan=False) + "\n",
        "summary.html": page("summary.html", found=found, unit=unit, least=LEAST, agreement=agreement),
    }


def _quantiles(values: np.ndarray) -> dict[str, float]:
    """Of the ranking score, as far as at least ten rows lie above."""
    return {
        name: float(f"{np.quantile(values, 1 - share):.4g}") for name, share in SHARES if share * len(values) >= LEAST
    }
