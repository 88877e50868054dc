"""`giveaway audit`: a head in, a folder with its table, its report and its shareable summary out."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.auditing.depths import DepthAudit, with_depths
from giveaway.auditing.progress import parts_of
from giveaway.auditing.run import Execution, audit
from giveaway.auditing.store import check_folder, fingerprint, provenance, pseudonyms, read_key, save_audit, save_page
from giveaway.checks import check_choice, fail
from giveaway.cli.config import to_toml
from giveaway.curvature.choice import Auto, Sketch
from giveaway.extract.torch_model import model_digest
from giveaway.extract.user_files import subgroups_from
from giveaway.findings.explain import SUBGROUP
from giveaway.findings.extras import FILE as EXTRAS
from giveaway.findings.extras import MAPS, ReportExtras, make_extras
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head, ScoreTable
from giveaway.records.meta import Provenance
from giveaway.reporting.pages import summary_pages
from giveaway.reporting.report import render
from giveaway.reporting.validation import StoredValidation
from giveaway.reporting.words import access_of, check_access, headline
from giveaway.storage.checkpoint import FolderCheckpoint

MIXED = "several"


def audit_into(
    out: str,
    head: Head,
    config: dict[str, Any],
    arguments: dict[str, Any],
    *,
    deeper: DepthAudit | None = None,
    processes: Processes = ALONE,
    resume: bool = False,
) -> tuple[ScoreTable, Path] | None:
    """Audit `head` with the `arguments` of ga.audit; `config` are the user's options, kept beside the result.

    `deeper` adds columns of the records through the network that the head is the last layer of. Of several processes
    the first writes the folder, and the others get None. `resume` goes on with what a killed run left there.
    """
    check_access(config.get("access", "probabilities"), head.loss)
    check_choice("map", config.get("map", "auto"), MAPS)
    if "pseudonymize" in config:
        head = _renamed(head, read_key(config["pseudonymize"], out))
    subgroups = subgroups_from(config["subgroups"], head.n) if "subgroups" in config else {}
    given = None if deeper is None else deeper.deep.inputs
    digest = processes.agreed(fingerprint(head, given) if processes.first else "")
    origin = provenance(digest, config, None if deeper is None else model_digest(deeper.deep.model))
    existed = Path(out).is_dir()
    folder = check_folder(out, origin) if processes.first else Path(out)
    processes.barrier()
    checkpoint: FolderCheckpoint | None = None
    try:
        checkpoint = _checkpoint(folder, origin, processes, resume=resume)
        run = partial(audit, progress=processes.first, execution=Execution(processes, checkpoint))
        table = run(head, **arguments)
        by_record = None
        if table.meta.by_person:
            by_record = run(dataclasses.replace(head, groups=None), **_without_comparison(arguments))
        processes.leave()  # all at once: what is left to do is the first one's, and may take long
        if not processes.first:
            return None
        if deeper is not None:
            with parts_of(enabled=True, work="depths", unit="solve") as on_part:
                found = deeper.run(checkpoint, on_part)
            table = _with_depths(table, found)
            by_record = None if by_record is None else _with_depths(by_record, found)
        table = _finished(table, config, subgroups, head, origin)
        tables = {"scores": table}
        if by_record is not None:
            tables = {"people": table, "scores": _finished(by_record, config, subgroups, head, origin)}
        extras = make_extras(
            head,
            table,
            method=config.get("map", "auto"),
            what_if=config.get("what_if"),
            show_records=bool(config.get("show_records")),
        )
        pages = {**report_pages(table, extras, StoredValidation.load(folder)), EXTRAS: extras.to_bytes()}
        save_audit(folder, tables, pages, to_toml(config))
        checkpoint.finish()
    except BaseException:
        left = checkpoint is not None and checkpoint.abandon()
        if processes.first and not left and not existed and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return table, folder


def work_ahead(deeper: DepthAudit) -> str:
    """What scores through the network will take, in solves: how many passes a solve needs is known once it is done."""
    solves = f"{deeper.solves:,} solves" if deeper.solves else "no solves, a few passes over the records"
    more = ", and some for records in doubt" if isinstance(deeper.method, Sketch) else ""
    sizes = ", ".join(f"{depth} ({network.size:,} parameters)" for depth, network in deeper.deep.networks.items())
    return f"depths: {sizes}: {solves} each{more}; not in this estimate"


def _without_comparison(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments for a second audit, which need not compare penalties again."""
    return {**arguments, "curvature": dataclasses.replace(arguments.get("curvature", Auto()), l2_sensitivity=False)}


def _checkpoint(folder: Path, origin: Provenance, processes: Processes, *, resume: bool) -> FolderCheckpoint:
    """Make the checkpoint of this process; the first process makes its own before the others."""
    same = ("inputs_sha256", "weights_sha256", "config", "versions")
    begun: dict[str, Any] = {name: value for name, value in origin.to_json().items() if name in same}
    begun["processes"] = processes.size
    checkpoint = FolderCheckpoint(folder, begun, resume=resume, rank=processes.rank) if processes.first else None
    processes.barrier()
    return checkpoint or FolderCheckpoint(folder, begun, resume=resume, rank=processes.rank)


def statement(folder: str | Path, table: ScoreTable) -> str:
    """What may be said of the audit in `folder`: the headline of its pages."""
    return headline(table, StoredValidation.load(folder), access_of(table))


def report_pages(table: ScoreTable, extras: ReportExtras, measured: StoredValidation | None) -> dict[str, str | bytes]:
    """The restricted report and the summary to share."""
    return {"report.html": render(table, extras=extras, measured=measured), **summary_pages(table, measured=measured)}


def rebuild(folder: str | Path) -> list[Path]:
    """Write the pages of an audit folder again from what lies in it."""
    table = main_table(folder)
    if not table.meta.of_model:
        raise fail("folder", "an audit of a model", f"{folder}, which has none", "see the tables and pictures in it")
    pages = report_pages(table, ReportExtras.load(folder), StoredValidation.load(folder))
    return [save_page(folder, name, page) for name, page in pages.items()]


def main_table(folder: str | Path) -> ScoreTable:
    """The table that an audit folder's report is about: of people where there are any."""
    return ScoreTable.load(folder, "people" if (Path(folder) / "people.npz").is_file() else "scores")


def _renamed(head: Head, key: bytes) -> Head:
    groups = None if head.groups is None else pseudonyms(head.groups, key)
    return dataclasses.replace(head, ids=pseudonyms(head.ids, key), groups=groups)


def _with_depths(table: ScoreTable, deep: ScoreTable) -> ScoreTable:
    """Add the columns of the records. A person's would not be their sum: a table of people has the report alone."""
    if table.meta.unit == "person":
        return dataclasses.replace(table, meta=dataclasses.replace(table.meta, depths=deep.meta.depths))
    return with_depths(table, deep)


def _finished(
    table: ScoreTable, config: dict[str, Any], subgroups: dict[str, np.ndarray], head: Head, origin: Provenance
) -> ScoreTable:
    """The table as it may be written: with its subgroups, and neighbours only on request."""
    attributes = {k: v for k, v in table.attributes.items() if k != "nearest" or config.get("show_records")}
    for name, values in subgroups.items():
        of_rows = _of_people(values, head) if table.meta.by_person else values
        attributes[f"{SUBGROUP}{name}"] = of_rows
    told = {"access": config.get("access", "probabilities"), "title": config.get("title")}
    meta = dataclasses.replace(table.meta, **told, provenance=origin)
    return dataclasses.replace(table, attributes=attributes, meta=meta)


def _of_people(values: np.ndarray, head: Head) -> np.ndarray:
    """The subgroup of every person, `several` where its records belong to more than one."""
    assert head.groups is not None
    _, person = np.unique(head.groups, return_inverse=True)
    names, number = np.unique(values, return_inverse=True)
    low, high = np.full(person.max() + 1, len(names)), np.full(person.max() + 1, -1)
    np.minimum.at(low, person, number)
    np.maximum.at(high, person, number)
    return np.where(low == high, names[low], MIXED)
