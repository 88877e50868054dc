"""A study of chosen records under a Gaussian process: at given queries, and at the best queries there are."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, fail
from giveaway.gp.attack import record_attack
from giveaway.gp.distinguishability import divergence, divergence_at
from giveaway.gp.posterior import Posterior, RemovedRecords, remove
from giveaway.gp.query import OptimalQueries, optimal_queries

FPR = (0.001, 0.01, 0.1)


@dataclass(frozen=True, eq=False)
class LoodStudy:
    """What can be told of the chosen `records` (R,): rows of named columns, as CSV files by name."""

    records: np.ndarray
    pages: dict[str, str]
    optimum: OptimalQueries | None


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
) -> LoodStudy:
    """Attack each record at its own input, measure it at given queries, and search for the queries that tell most."""
    removal = remove(posterior, records)
    if removal.rows.shape[1] != 1:
        got = f"shape {tuple(removal.rows.shape)}"
        raise fail("records", "single records, (R,)", got, "name each record by its row")
    rows = removal.rows[:, 0]
    attack, distance = record_attack(posterior, fpr=FPR), divergence(posterior, list(removal.rows))
    names = ["row", "lood_kl", "lood_mean", "attack_auc", *(f"attack_tpr_at_{rate:g}" for rate in FPR)]
    columns = [rows, distance.kl, distance.mean, attack.auc[rows], *attack.tpr[rows].T]
    pages = {"records.csv": _csv(names, columns)}
    if queries is not None:
        pages["queries.csv"] = _query_page(removal, queries)
    optimum = None
    if optimize is not None:
        optimum = optimal_queries(removal, objective=optimize, starts=starts, bounds=bounds, steps=steps, seed=seed)  # type: ignore[arg-type]
        names = ["row", "value", "value_at_the_record", "ratio", "starts_converged"]
        columns = [rows, optimum.value, optimum.own, optimum.value / optimum.own, optimum.converged.sum(1)]
        pages["optimized.csv"] = _csv(names, columns)
    return LoodStudy(rows.cpu().numpy(), pages, optimum)


def _query_page(removal: RemovedRecords, queries: Any) -> str:
    """Measure every record at every query alone, and at all of them together (query "all")."""
    points = as_tensor("queries", queries).to(torch.float64)
    shape = tuple(removal.inputs.shape[1:])
    if points.ndim != len(shape) + 1 or tuple(points.shape[1:]) != shape or not len(points):
        got = f"shape {tuple(points.shape)}"
        raise fail("queries", f"queries as (q, {', '.join(map(str, shape))})", got, "shape them as the inputs")
    check_finite("queries", points)
    lines: list[tuple[Any, ...]] = []
    for name, part in [*enumerate(points.split(1)), *([("all", points)] if len(points) > 1 else [])]:
        distance = divergence_at(removal, part.unsqueeze(0).to(removal.inputs))
        lines += [(row, name, kl, mean) for row, kl, mean in _lines([removal.rows[:, 0], distance.kl, distance.mean])]
    return _text(["row", "query", "lood_kl", "lood_mean"], lines)


def _csv(names: Sequence[str], columns: Sequence[torch.Tensor]) -> str:
    return _text(names, _lines(columns))


def _lines(columns: Sequence[torch.Tensor]) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _text(names: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Write numbers with ten digits, and nothing where there is none (no query told anything of the record)."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for line in lines:
        writer.writerow([_cell(value) if isinstance(value, float) else value for value in line])
    return stream.getvalue()


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.10g}"
