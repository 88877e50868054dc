"""`giveaway lood`: a file of records in, a folder of tables and pictures out."""

from __future__ import annotations

import io
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.auditing.lood_study import LoodStudy, study
from giveaway.auditing.store import check_folder, provenance, save_audit
from giveaway.checks import check_choice, fail
from giveaway.cli.config import to_toml
from giveaway.cli.source import device_named, names_in
from giveaway.extract.user_files import inputs_from, reading
from giveaway.figures import lood_map, query_pictures
from giveaway.gp.distinguishability import KernelChoice, Process, lood_table
from giveaway.gp.posterior import Posterior
from giveaway.records import ScoreTable
from giveaway.records.examples import as_numbers
from giveaway.reporting.picture import figure_bytes
from giveaway.storage.arrays import digest_of

CLOSELY = 10  # records looked at unless some are named


def run_lood(path: str, out: str, options: dict[str, Any]) -> tuple[ScoreTable, Path, list[str]]:
    """The table, the folder, and the files in it."""
    named = {field.name for field in fields(KernelChoice)} - {"name"}
    choice = KernelChoice(options["kernel"], **{name: options[name] for name in named if name in options})
    process = Process(choice, options["noise"])
    bounds = _bounds(options)
    if "optimize" in options:
        check_choice("optimize", options["optimize"], ("kl", "mean"))
    x, y = inputs_from(path, targets=True)
    queries = _queries(options["queries"]) if "queries" in options else None
    groups = names_in(options["groups"]) if "groups" in options else None
    if groups is not None and {"records", "queries", "optimize"} & options.keys():
        raise fail("groups", "no --records, --queries or --optimize beside --groups", "both", "look at records alone")
    digest = digest_of({"inputs": x, "targets": y, "queries": queries, "groups": groups})
    origin = provenance(digest, {"inputs": path, **options})
    existed = Path(out).is_dir()
    folder = check_folder(out, origin)
    try:
        began = time.perf_counter()
        posterior = process.fit(x, y, device=device_named(options.get("device")))
        table = lood_table(posterior, groups=groups)
        seconds = round(time.perf_counter() - began, 3)
        table = replace(table, meta=replace(table.meta, seconds=seconds, provenance=origin))
        pages: dict[str, str | bytes] = {"lood.png": figure_bytes(lood_map(table["lood_kl"], table["lood_mean"]))}
        if groups is None:
            rows = _rows(options["records"]) if "records" in options else table.order()[:CLOSELY].copy()
            searched = ("optimize", "starts", "steps", "seed")
            chosen = {name: options[name] for name in searched if name in options}
            found = study(posterior, rows, queries=queries, bounds=bounds, **chosen)
            pages |= found.pages | _pictures(posterior, found, options.get("optimize", ""))
        save_audit(folder, {"scores": table}, pages, to_toml({"inputs": path, **options}))
    except BaseException:
        if not existed and not any(folder.iterdir()):
            folder.rmdir()
        raise
    return table, folder, ["scores.csv", "scores.npz", *pages, "audit.json"]


def _pictures(posterior: Posterior, found: LoodStudy, objective: str) -> dict[str, str | bytes]:
    """The optimal queries as arrays, and as pictures where the records are images."""
    if found.optimum is None:
        return {}
    queries = found.optimum.queries[:, 0].cpu().numpy()
    stream = io.BytesIO()
    np.savez(stream, row=found.records, queries=queries)
    pages: dict[str, str | bytes] = {"optimized.npz": stream.getvalue()}
    if queries.ndim == 4:
        records = posterior.inputs[found.records].cpu().numpy()
        pages["optimized.png"] = figure_bytes(query_pictures(records, queries, found.records, objective))
    return pages


def _queries(path: str) -> np.ndarray:
    with reading("queries", path, ".npz file") as file, np.load(file, allow_pickle=False) as stored:
        if "queries" not in stored.files:
            raise fail("queries", f"the key queries in {file.name}", "keys " + ", ".join(stored.files), "add it")
        return as_numbers(stored["queries"], "queries")


def _rows(text: str) -> np.ndarray:
    try:
        return np.array([int(part) for part in text.split(",")])
    except ValueError as error:
        raise fail("records", "row numbers such as 3,17", repr(text), "separate them by commas") from error


def _bounds(options: dict[str, Any]) -> tuple[float, float] | None:
    given = [name for name in ("low", "high") if name in options]
    if len(given) == 1:
        raise fail("low", "--low and --high together", f"--{given[0]} alone", "give both, or neither")
    if given and "optimize" not in options:
        raise fail("low", "--optimize beside --low and --high", "none", "name what to search for")
    return (options["low"], options["high"]) if given else None
