"""`giveaway lood`: records in, their leave-one-out distinguishability under a Gaussian process in a folder.

Chosen records are looked at more closely: attacked at their own inputs, measured at given queries, and at the queries
that tell most.
"""

import io
import json
import math
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.auditing.cost import price_process
from giveaway.auditing.store import AuditFolder, check_folder, provenance, save_audit
from giveaway.checks import as_tensor, check_choice, check_finite, check_number, fail
from giveaway.cli.audit_folder import RANKING_ONLY, ROWS_OF_PEOPLE
from giveaway.cli.source import device_named, names_in, to_toml, whole_numbers
from giveaway.extract.user_files import inputs_from, read_npz_keys
from giveaway.figures import lood_map
from giveaway.gp.attack import record_attack
from giveaway.gp.distinguishability import Process, RemovedRecords, divergence, divergence_at, lood_table, remove
from giveaway.gp.nngp import KernelChoice
from giveaway.gp.posterior import Posterior
from giveaway.gp.query import optimal_queries
from giveaway.records import ScoreTable
from giveaway.records.examples import as_numbers
from giveaway.reporting.picture import figure_bytes
from giveaway.storage.arrays import digest_of
from giveaway.text import say, stages_of

Pages = dict[str, str | bytes]

CLOSELY = 10  # records looked at unless some are named
FPR = (0.001, 0.01, 0.1)
NOT_PRICED = "an estimate: what --records, --queries and --optimize ask besides is not in it"


def run_lood(
    path: str, out: str, top: int, as_json: bool, options: dict[str, Any], *, overwrite: bool, dry_run: bool = False
) -> None:
    """Compute the distances of the records in `path`, save them in the folder `out`, and say who is most exposed; or
    with `dry_run` say what that would cost."""
    check_number("top", top, minimum=1, remedy="give a count")
    if dry_run:
        device = device_named(options.get("device")) or torch.device("cpu")
        cost = price_process(_process(options), inputs_from(path, targets=True)[0], device)
        say(json.dumps(vars(cost)) if as_json else f"{cost.line()}\n{NOT_PRICED}")
        return
    table, files = lood_into(path, out, options, overwrite)
    by, unit, order = table.ranking(), table.meta.rows_are, table.order()[:top]
    if as_json:
        meta = {name: value for name, value in table.meta.to_json().items() if name != "provenance"}
        rows = [{"row": int(row), by: float(table[by][row])} for row in order]
        told = {"ranked_by": by, "top": rows, "statement": RANKING_ONLY, "files": files}
        say(json.dumps({"folder": str(Path(out)), **meta, **told}))
        return
    kernel = "" if table.meta.kernel is None else table.meta.kernel.name
    say(f"The {len(order)} most exposed of {len(table)} {unit}, by lood_kl under {kernel}\n")
    say("rank    row    lood_kl  lood_mean")
    for place, row in enumerate(order, start=1):
        say(f"{place:4d}  {row:5d}  {table['lood_kl'][row]:9.4g}  {table['lood_mean'][row]:9.4g}")
    if unit == "people":
        say(f"\n{ROWS_OF_PEOPLE.format('scores.csv')}")
    say(f"\n{RANKING_ONLY}")
    say(f"Wrote {', '.join(files)} to {Path(out)} (restricted: they name records)")


def lood_into(path: str, out: str, options: dict[str, Any], overwrite: bool) -> tuple[ScoreTable, list[str]]:
    """Compute and write; return the table, and the names of the files in the folder `out`."""
    process = _process(options)
    limits = [name for name in ("low", "high") if name in options]
    if len(limits) == 1:
        raise fail("low", "--low and --high together", f"--{limits[0]} alone", "give both, or neither")
    if limits and "optimize" not in options:
        raise fail("low", "--optimize beside --low and --high", "none", "name what to search for")
    if "optimize" in options:
        check_choice("optimize", options["optimize"], ("kl", "mean"))
    x, y = inputs_from(path, targets=True)
    queries = None
    if "queries" in options:
        queries = as_numbers(read_npz_keys("queries", options["queries"], ("queries",))[0], "queries")
    groups = names_in(options["groups"]) if "groups" in options else None
    if groups is not None and {"records", "queries", "optimize"} & options.keys():
        raise fail("groups", "no --records, --queries or --optimize beside --groups", "both", "look at records alone")
    digest = digest_of({"inputs": x, "targets": y, "queries": queries, "groups": groups})
    origin = provenance(digest, {"inputs": path, **options})
    with AuditFolder(out).locked(new=True) as place, stages_of(enabled=True) as on_stage:
        check_folder(place, origin, overwrite=overwrite)
        began = time.perf_counter()
        posterior = process.fit(x, y, device=device_named(options.get("device")), on_stage=on_stage)
        on_stage("Gaussian process, leaving records out", 0, 1)
        table = lood_table(posterior, groups=groups)
        seconds = round(time.perf_counter() - began, 3)
        table = replace(table, meta=replace(table.meta, seconds=seconds, provenance=origin))
        pages: Pages = {"lood.png": figure_bytes(lood_map(table["lood_kl"], table["lood_mean"]))}
        if groups is None:
            named = whole_numbers("records", options["records"]) if "records" in options else table.order()[:CLOSELY]
            searched = {name: options[name] for name in ("optimize", "starts", "steps", "seed") if name in options}
            on_stage("Gaussian process, single records", 0, 1)
            bounds = (options["low"], options["high"]) if limits else None
            pages |= study(posterior, np.array(named), queries=queries, bounds=bounds, **searched)
        save_audit(place, {"scores": table}, pages | {"config.toml": to_toml({"inputs": path, **options})})
    return table, ["scores.csv", "scores.npz", *pages, "audit.json"]


def _process(options: dict[str, Any]) -> Process:
    named = {field.name for field in fields(KernelChoice)} - {"name"}
    choice = KernelChoice(options["kernel"], **{name: options[name] for name in named if name in options})
    return Process(choice, options["noise"])


def study(
    posterior: Posterior,
    records: Any,
    *,
    queries: Any = None,
    optimize: str | None = None,
    starts: int = 8,
    bounds: tuple[float, float] | None = None,
    steps: int = 200,
    seed: int = 0,
) -> Pages:
    """Return files about the chosen records: their attacks, their distances at queries, and their best queries."""
    removal = remove(posterior, records)
    if removal.rows.shape[1] != 1:
        got = f"shape {tuple(removal.rows.shape)}"
        raise fail("records", "single records, (R,)", got, "name each record by its row")
    rows = removal.rows[:, 0]
    attack, distance = record_attack(posterior, rows, fpr=FPR), divergence(posterior, list(removal.rows))
    names = ["row", "lood_kl", "lood_mean", "attack_auc", *(f"attack_tpr_at_{rate:g}" for rate in FPR)]
    columns = [rows, distance.kl, distance.mean, attack.auc, *attack.tpr.T]
    pages: Pages = {"records.csv": _csv(names, columns)}
    if queries is not None:
        pages["queries.csv"] = _query_page(removal, queries)
    if optimize is None:
        return pages
    best = optimal_queries(removal, objective=optimize, starts=starts, bounds=bounds, steps=steps, seed=seed)  # type: ignore[arg-type]
    names = ["row", "value", "value_at_the_record", "ratio", "starts_converged"]
    columns = [rows, best.value, best.own, best.value / best.own, best.converged.sum(1)]
    pages["optimized.csv"] = _csv(names, columns)
    numbers, optimal, stream = rows.cpu().numpy(), best.queries[:, 0].cpu().numpy(), io.BytesIO()
    np.savez(stream, row=numbers, queries=optimal)
    pages["optimized.npz"] = stream.getvalue()
    return pages


def _query_page(removal: RemovedRecords, queries: Any) -> str:
    """Measure every record at every query alone, and at all of them together (query "all")."""
    points = as_tensor("queries", queries).to(torch.float64)
    shape = tuple(removal.inputs.shape[1:])
    if points.ndim != len(shape) + 1 or tuple(points.shape[1:]) != shape or not len(points):
        got = f"shape {tuple(points.shape)}"
        raise fail("queries", f"queries as (q, {', '.join(map(str, shape))})", got, "shape them as the inputs")
    check_finite("queries", points)
    pages = ""
    for name, part in [*enumerate(points.split(1)), *([("all", points)] if len(points) > 1 else [])]:
        distance = divergence_at(removal, part.unsqueeze(0).to(removal.inputs))
        rows, query = removal.rows[:, 0], np.full(len(removal.rows), name)
        pages += _csv([], [rows, query, distance.kl, distance.mean])
    return "row,query,lood_kl,lood_mean\n" + pages


def _csv(names: Sequence[str], columns: Sequence[Any]) -> str:
    """Write numbers with ten digits, and nothing where there is none (no query told anything of the record)."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return "" if math.isnan(value) else f"{value:.10g}"
        return str(value)

    lines = zip(*(column.tolist() for column in columns), strict=True)
    return "".join(",".join(map(cell, line)) + "\n" for line in [*([names] if names else []), *lines])
