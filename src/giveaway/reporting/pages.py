"""The templates that all pages are made from, and the pages to share: the summary of an audit, and an index of many.

What is shared holds no ids, no neighbours, no map, and no group of fewer than ten rows, and nothing that depends on one
row: quantiles stand for at least ten rows. Of the metadata it holds only what describes the audit, never a path; of the
user's own words the title, and the names of classes and subgroups of ten rows or more.
"""

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from giveaway.checks import InputError, fail
from giveaway.findings.explain import LEAST, breakdowns
from giveaway.records import ScoreTable
from giveaway.records.meta import Provenance
from giveaway.reporting.validation import StoredValidation, agreement_lines
from giveaway.reporting.words import access_of, found_elsewhere, headline, notes, standing
from giveaway.text import shown_text

SCHEMA = "giveaway.summary/1"
SHARES = (("median", 0.5), ("top 10 %", 0.1), ("top 5 %", 0.05), ("top 1 %", 0.01))
IN_INDEX = {"date", "rows", "unit", "ranked_by", "access", "statement"}


def page(name: str, **values: Any) -> str:
    """Fill in the template `name`; every text that is put into it is escaped."""
    templates = resources.files("giveaway.reporting") / "templates"
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(lambda part: (templates / part).read_text(encoding="utf-8")),
    )
    environment.filters["as_is"] = Markup  # for our own code, and JSON that cannot leave its element
    environment.filters["shown"] = shown_text
    environment.filters["tied"] = lambda words: words.replace(" %", "\u00a0%")  # no line breaks before the sign
    return environment.get_template(name).render(**values)


@dataclass(frozen=True)
class ReportSection:
    """The content of an optional section, or None and a sentence instead."""

    content: Any = None
    note: str = ""


def section(make: Callable[[], Any]) -> ReportSection:
    """Call `make`. The rest of the page does not depend on it, so whatever goes wrong is said in its place."""
    try:
        return ReportSection(make())
    except InputError as error:
        return ReportSection(note=f"Not shown: {shown_text(error, 400)}.")
    except Exception as error:
        return ReportSection(note=f"This section could not be made ({type(error).__name__}: {shown_text(error, 400)}).")


def summary(table: ScoreTable, measured: StoredValidation | None = None) -> dict[str, Any]:
    """Return everything that the summary says, for machines."""
    chosen, meta = access_of(table), table.meta
    origin = meta.provenance or Provenance()
    by = table.ranking()
    values = table[by]
    spread = section(lambda: [shared for each in breakdowns(table) if (shared := each.to_json()) is not None])
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "statement": headline(table, measured, chosen),
        "measured": measured is not None,
        "found_on_benchmarks": found_elsewhere(by),
        "standing": dict(standing(table, measured, chosen)),
        "title": meta.title,
        "notes": notes(table, shared=True) if len(table) >= LEAST else [],
        "unit": meta.unit,
        "rows": len(table),
        "records": meta.records or len(table),
        "loss": meta.loss,
        "access": chosen,
        "ranked_by": by,
        "quantiles": {
            name: float(f"{np.quantile(values, 1 - share):.4g}")
            for name, share in SHARES
            if share * len(values) >= LEAST  # at least ten rows lie above
        },
        "spread_over": spread.content or [],
        "no_spread": "This section could not be made." if spread.note else None,  # an error's words may hold values
        "l2_sensitivity": meta.l2_sensitivity if len(table) >= LEAST else None,
        "seconds": meta.seconds,
        "audit": origin.audit,
        "versions": dict(origin.versions) or None,
        "date": origin.date or datetime.date.today().isoformat(),
    }
    if "predicted_success" in table.scores and len(table) >= LEAST:
        found["mean_predicted_success"] = round(float(table["predicted_success"].mean()), 4)
    if measured is not None:
        stated = ("models", "records", "at_least_exposed", "lira", "agreement")
        found["validation"] = {name: measured.stated[name] for name in stated}
    return found


def summary_pages(table: ScoreTable, measured: StoredValidation | None = None) -> dict[str, str]:
    """Return the file names and contents of the shareable output."""
    found = summary(table, measured)
    agreement = None if measured is None else agreement_lines(measured.stated)
    return {
        "summary.json": json.dumps(found, indent=2, allow_nan=False) + "\n",
        "summary.html": page("summary.html", found=found, unit=table.meta.rows_are, least=LEAST, agreement=agreement),
    }


def index_page(folders: Sequence[str | Path]) -> str:
    """Return a page of the audits in `folders`, in the order given: what their summaries say, side by side."""
    if not folders:
        raise fail("folders", "at least one audit folder", "none", "name the folders given to --out")
    return page("index.html", audits=[_index_entry(Path(folder)) for folder in folders])


def _index_entry(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not path.is_file():
        raise fail("folders", "audit folders with summary.json", str(folder), "run giveaway report there first")
    found = _read_json(path)
    if found.get("schema") != SCHEMA or not found.keys() >= IN_INDEX:
        expected, got = f"summaries of the schema {SCHEMA}", f"{path}, another"
        raise fail("folders", expected, got, "run giveaway report there again")
    verdict = "none"
    if (folder / "gate.json").is_file():
        gate = _read_json(folder / "gate.json")
        verdict = "met" if gate.get("met") else "not met" if gate.get("exit_code", 3) else "waived"
        verdict = shown_text(f"{verdict}, {gate.get('date', 'undated')}", 40)
    return {"name": shown_text(folder.resolve().name, 60), "found": found, "gate": verdict}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise fail("folders", "readable JSON", str(path), "run giveaway report there again") from error
    if not isinstance(found, dict):
        raise fail("folders", "a JSON object", str(path), "run giveaway report there again")
    return found
