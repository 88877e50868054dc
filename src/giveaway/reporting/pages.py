"""The templates that all pages are made from, and the pages to share: the summary of an audit, what remedies buy,
and an index of many.

What is shared holds no ids, no neighbours, no map, and no group of fewer than ten rows. Counts are rounded, and scores
and shares have one or two digits, so that a row more or less rarely changes a figure; where it does, two summaries of
neighbouring data sets tell something of that row. Of the metadata it holds only what describes the audit, never a path;
of the user's own words the title, and the names of classes and subgroups of ten rows or more.
"""

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from giveaway.checks import InputError, fail
from giveaway.findings.explain import LEAST, about, breakdowns
from giveaway.findings.mitigation import Mitigation
from giveaway.records import ScoreTable
from giveaway.records.meta import Provenance, check_fields
from giveaway.reporting.answers import answers, at_least, headline
from giveaway.reporting.figures import trade_off
from giveaway.reporting.picture import figure_bytes, image_of
from giveaway.reporting.validation import StoredValidation, agreement_lines
from giveaway.reporting.words import access_of, found_elsewhere, notes, shared_count, standing
from giveaway.storage.files import as_json, read_json
from giveaway.text import shown_text

SPECIAL = re.compile(r"([\\`*_{}\[\]#!])|[<>|~$&@]|:(?=/)|(?<=www)\.", re.IGNORECASE)  # an address would be a link
SCHEMA = "giveaway.summary/1"
IN_INDEX = {"date", "rows", "unit", "ranked_by", "access", "statement"}


def page(name: str, **values: Any) -> str:
    """Fill in the template `name`; every text that is put into it is escaped."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> jinja2.Environment:
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
    environment.filters["md"] = _markdown
    environment.filters["tied"] = lambda words: words.replace(" %", "\u00a0%")  # no line breaks before the sign
    return environment


def _markdown(value: object, most: int = 4_000) -> Markup:
    """Write a text of others, or of ours, so that Markdown and HTML take nothing in it for theirs."""
    # not every reader of Markdown takes a backslash before the others
    return Markup(SPECIAL.sub(lambda m: f"\\{m[0]}" if m[1] else f"&#{ord(m[0])};", shown_text(value, most)))


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
    spread = section(lambda: [shared for each in breakdowns(table) if (shared := each.to_json()) is not None])
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "statement": headline(table, measured, chosen, shared=True),
        "measured": measured is not None,
        "found_on_benchmarks": found_elsewhere(table),
        "standing": dict(standing(table, measured, chosen)),
        "title": meta.title,
        "notes": (section(lambda: notes(table, shared=True)).content or []) if len(table) >= LEAST else [],
        "unit": meta.unit,
        "rows": about(len(table)) if len(table) >= LEAST else None,
        "records": about(meta.records or len(table)) if (meta.records or len(table)) >= LEAST else None,
        "loss": meta.loss,
        "access": chosen,
        "ranked_by": table.ranking(),
        "spread_over": spread.content or [],
        "no_spread": "This section could not be made." if spread.note else None,  # an error's words may hold values
        "seconds": meta.seconds,
        "audit": origin.audit,
        "versions": dict(origin.versions) or None,
        "date": origin.date or datetime.date.today().isoformat(),
    }
    if "predicted_success" in table.scores and len(table) >= LEAST:
        found["mean_predicted_success"] = round(float(table["predicted_success"].mean()), 2)
    if measured is not None:
        told = ("records", "at_least_exposed", "lira", "agreement")
        found["validation"] = {name: coarse(measured.stated[name]) for name in told}
        found["validation"]["models"] = measured.stated["models"]
        found["validation"]["at_least_exposed"]["records"] = at_least(measured.stated["at_least_exposed"]["records"])
    return found


def coarse(value: Any) -> Any:
    """Round every count and share of nested JSON as what is shared is rounded."""
    if isinstance(value, Mapping):
        return {name: coarse(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [coarse(each) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return round(value, 2) if isinstance(value, float) else about(value)


def summary_pages(table: ScoreTable, measured: StoredValidation | None = None) -> dict[str, str]:
    """Return the file names and contents of the shareable output."""
    found = summary(table, measured)
    agreement = None if measured is None else agreement_lines(measured.stated)
    groups = [
        (spread["kind"], group["name"], *map(group.get, ("times_an_even_share", "by_chance_to", "stands_out")))
        for spread in found["spread_over"]
        for group in spread["groups"]
    ]
    told = answers(table, measured, found["access"], None if found["no_spread"] else groups, shared=True)
    versions = ", ".join(f"{name} {version}" for name, version in (found["versions"] or {}).items())
    shown = {"rows": shared_count(len(table)), "answers": told, "versions": versions, **table.meta.nouns}
    return {
        "summary.json": json.dumps(found, indent=2, allow_nan=False) + "\n",
        "summary.html": page("summary.html", found=found, agreement=agreement, least=LEAST, **shown),
    }


def mitigation_pages(found: Mitigation) -> dict[str, str | bytes]:
    """Return the files of a mitigation, which name no record: figures for machines, the page, and its picture."""
    picture, rows = trade_off(found), []
    for one in found.outcomes:
        measured = (one.change, one.attack.on_all, one.attack.on_most_exposed, one.attack.found)
        cells = (f"{each.value:.3f} ({each.low:.3f} to {each.high:.3f})" for each in measured)
        rows.append([one.remedy.label, f"{one.trained_on:,}", f"{one.accuracy.value:.3f}", *cells])
    return {
        "mitigation.json": as_json(found.to_json()),
        "mitigation.html": page("mitigation.html", found=found, rows=rows, picture=image_of(picture)[0]),
        "mitigation.png": figure_bytes(picture),
    }


def index_page(folders: Sequence[str | Path]) -> str:
    """Return a page of the audits in `folders`, in the order given: what their summaries say, side by side."""
    if not folders:
        raise fail("folders", "at least one audit folder", "none", "name the folders given to --out")
    return page("index.html", audits=[_index_entry(Path(folder)) for folder in folders])


def _index_entry(folder: Path) -> list[str]:
    """Return the cells of an audit's row, as the template orders them: others may have written the summary."""
    if not (path := folder / "summary.json").is_file():
        raise fail("folders", "audit folders with summary.json", str(folder), "run giveaway report there first")
    remedy = "run giveaway report there again"
    found = read_json("folders", path, remedy)
    if found.get("schema") != SCHEMA or not found.keys() >= IN_INDEX:
        raise fail("folders", f"summaries of the schema {SCHEMA}", f"{path}, another", remedy)
    verdict, measured = "none", "not measured"
    if (folder / "gate.json").is_file():
        gate = read_json("folders", folder / "gate.json", remedy)
        verdict = "met" if gate.get("met") else "not met" if gate.get("exit_code", 3) else "waived"
        verdict = f"{verdict}, {gate.get('date', 'undated')}"
    if (validation := found.get("validation")) is not None:
        check_fields(str(path), validation, {"at_least_exposed.records": int, "records": int})
        measured = f"{validation['at_least_exposed']['records']} of {validation.get('records')}"
    rows = f"{found['rows'] or f'fewer than {LEAST}'} {'people' if found['unit'] == 'person' else 'records'}"
    predicted = found.get("mean_predicted_success", "–")
    cells = (folder.resolve().name, found["date"], rows, found["ranked_by"], found["access"], measured, predicted)
    return [shown_text(cell, 600) for cell in (*cells, verdict, found["statement"])]
