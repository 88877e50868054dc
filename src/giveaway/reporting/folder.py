"""The folder of an audit, which `ga.report` and `giveaway audit` write: tables, report, and the summary to share."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.auditing.store import AuditFolder, check_folder, provenance, save_audit
from giveaway.auditing.validate import Validation
from giveaway.checks import check_kind, check_names, fail
from giveaway.findings.explain import SUBGROUP
from giveaway.findings.extras import FILE, ReportExtras, make_extras
from giveaway.records import Head, ScoreTable
from giveaway.records.meta import Provenance
from giveaway.records.texts import Texts
from giveaway.reporting.pages import summary_pages
from giveaway.reporting.report import NO_HEAD, TOP, render
from giveaway.reporting.validation import StoredValidation, validation_pages
from giveaway.reporting.words import check_access
from giveaway.storage.arrays import digest_of
from giveaway.storage.files import write_text

MIXED = "several"


def report(
    table: ScoreTable,
    path: str | os.PathLike[str],
    *,
    head: Head | Texts | None = None,
    validation: Validation | None = None,
    access: str | None = None,
    title: str | None = None,
    subgroups: Mapping[str, Any] | None = None,
    show_records: bool = False,
    overwrite: bool = False,
    top: int = TOP,
) -> None:
    """Write the folder that `giveaway audit` writes: report.html, summary.html to share, and the scores.

    A `path` that ends in .html gets the restricted page alone. Everything is readable by you alone.

    head : that the table was made of, for a map of its features and what happens once the most exposed are taken out.
    validation : of `ga.validate`, for the count that shadow models can defend.
    access : what the attacker has: labels, probabilities or weights.
    title : what was audited, for the heading of both pages.
    subgroups : names of columns, and what each record belongs to, such as {"ward": wards}.
    show_records : name the nearest records of the most exposed and, with the head, show what they hold.
    overwrite : write over the audit of other records in that folder.
    """
    check_kind("table", table, ScoreTable, "pass what ga.audit returned")
    origin = table.meta.provenance or provenance(digest_of({"ids": table.ids, **table.scores}), {})
    groups = {name: check_names(name, v, len(v), unique=False) for name, v in (subgroups or {}).items()}
    table = described(table, head, origin, groups, access=access, title=title, show_records=show_records)
    measured = None if validation is None else StoredValidation.of(validation)
    if Path(path).suffix == ".html":
        extras = None if head is None else make_extras(head, table, show_records=show_records)
        write_text(path, render(table, extras=extras, measured=measured, top=top))
        return
    with AuditFolder(path).locked(new=True, among_others=True) as place:
        bare = place.marked and not place.read().get("provenance")  # of ScoreTable.save
        check_folder(place, origin, overwrite=overwrite or bare)
        pages = {} if validation is None or measured is None else validation_pages(table, validation, measured)
        write_audit(place, {"scores": table}, head, measured, pages=pages, show_records=show_records, top=top)


def write_audit(
    place: AuditFolder,
    tables: dict[str, ScoreTable],
    head: Head | Texts | None,
    measured: StoredValidation | None = None,
    *,
    pages: Mapping[str, str | bytes] = {},
    top: int = TOP,
    show_records: bool = False,
) -> None:
    """Write tables, report and summary into a folder that is held."""
    table = next(iter(tables.values()))
    extras = ReportExtras(missing={"map": NO_HEAD, "canaries": NO_HEAD})
    if head is not None:
        extras = make_extras(head, table, show_records=show_records)
    measured = measured or StoredValidation.load(place.path)
    save_audit(place, tables, {**pages, **report_pages(table, extras, measured, top), FILE: extras.to_bytes()})


def report_pages(
    table: ScoreTable, extras: ReportExtras, measured: StoredValidation | None, top: int = TOP
) -> dict[str, str | bytes]:
    """Return the restricted report and the summary to share."""
    page = render(table, extras=extras, measured=measured, top=top, summary="summary.html")
    return {"report.html": page, **summary_pages(table, measured)}


def rebuild(place: AuditFolder) -> list[Path]:
    """Write the pages of an audit folder again from what lies in it."""
    table, folder = audited_table(place.path), place.path
    return place.save_pages(report_pages(table, ReportExtras.load(folder), StoredValidation.load(folder)))


def main_table(folder: str | os.PathLike[str]) -> ScoreTable:
    """Return the table that an audit folder's report is about: of people where there are any."""
    return ScoreTable.load(folder, "people" if AuditFolder(folder).verified("people.npz").is_file() else "scores")


def audited_table(folder: str | os.PathLike[str]) -> ScoreTable:
    """Return the main table of a folder, if it is of a model."""
    table = main_table(folder)
    if not table.meta.of_model:
        raise fail("folder", "an audit of a model", f"{folder}, which has none", "see the tables and pictures in it")
    return table


def described(
    table: ScoreTable,
    head: Head | Texts | None,
    origin: Provenance,
    subgroups: Mapping[str, np.ndarray],
    *,
    access: str | None,
    title: str | None,
    show_records: bool,
) -> ScoreTable:
    """Return the table as it may be written: with its subgroups; neighbours and what records hold only on request."""
    attributes = {name: values for name, values in table.attributes.items() if name != "nearest" or show_records}
    for name, values in subgroups.items():
        if table.meta.by_person and head is not None and len(values) == head.n:
            values = _of_people(values, head)
        attributes[f"{SUBGROUP}{name}"] = values
    access = check_access(access or table.meta.access, table.meta.loss)
    meta = replace(table.meta, access=access, title=title or table.meta.title, provenance=origin)
    terms = table.own_terms if show_records or table.own_terms is None else table.own_terms.withheld()
    return replace(table, attributes=attributes, meta=meta, own_terms=terms)


def _of_people(values: np.ndarray, head: Head | Texts) -> np.ndarray:
    """Return the subgroup of every person, `several` where its records belong to more than one."""
    _, first, person = np.unique(np.asarray(head.groups), return_index=True, return_inverse=True)
    mixed = np.bincount(person, values != values[first][person]) > 0
    return np.where(mixed, MIXED, values[first])
