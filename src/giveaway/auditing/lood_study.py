"""A closer look at chosen records under a Gaussian process: at given queries, and at the best ones there are."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, fail
from giveaway.gp.attack import record_attack
from giveaway.gp.divergence import lood, lood_at
from giveaway.gp.posterior import Posterior
from giveaway.gp.query import Queries, optimal_queries
from giveaway.gp.removal import Removal, remove

FPR = (0.001, 0.01, 0.1)


@dataclass(frozen=True, eq=False)
class LoodStudy:
    """What can be told of the chosen `records` (R,): rows of named columns, as CSV files by name."""

    records: np.ndarray
    pages: dict[str, str]
    optimum: Queries | None


def study(
    posterior: Posterior,
    records: Any,
    *,
    queries: Any = None,
    optimize: str | None = None,
    starts: int = 8,
    method: str = "lbfgs",
    bounds: tuple[float, float] | None = None,
    steps: int = 200,
    seed: int = 0,
) -> LoodStudy:
    """The attack on each record at its own input, distances at given queries, and the queries that maximize one."""
    removal = remove(posterior, records)
    if removal.rows.shape[1] != 1:
        got = f"shape {tuple(removal.rows.shape)}"
        raise fail("records", "single records, (R,)", got, "name each record by its row")
    rows = removal.rows[:, 0].cpu().numpy()
    pages = {"records.csv": _attack_page(posterior, removal)}
    if queries is not None:
        pages["queries.csv"] = _query_page(removal, queries)
    optimum = None
    if optimize is not None:
        optimum = optimal_queries(
            removal,
            objective=optimize,  # type: ignore[arg-type]
            starts=starts,
            method=method,  # type: ignore[arg-type]
            bounds=bounds,
            steps=steps,
            seed=seed,
        )
        pages["optimized.csv"] = _optimum_page(rows, optimum)
    return LoodStudy(rows, pages, optimum)


def _attack_page(posterior: Posterior, removal: Removal) -> str:
    found = record_attack(posterior, fpr=FPR)
    rows = removal.rows[:, 0]
    own = lood(posterior, list(removal.rows))
    columns = [rows, own.kl, own.mean, found.auc[rows], *found.tpr[rows].T]
    return _csv(["row", "lood_kl", "lood_mean", "attack_auc", *(f"attack_tpr_at_{rate:g}" for rate in FPR)], columns)


def _query_page(removal: Removal, queries: Any) -> str:
    """Every record at every query alone, and at all of them together (query "all")."""
    points = as_tensor("queries", queries).to(torch.float64)
    own = tuple(removal.posterior.inputs.shape[1:])
    if points.ndim != len(own) + 1 or tuple(points.shape[1:]) != own or not len(points):
        got = f"shape {tuple(points.shape)}"
        raise fail("queries", f"queries as (q, {', '.join(map(str, own))})", got, "shape them as the inputs")
    check_finite("queries", points)
    lines = []
    parts = [*enumerate(points.split(1)), *([("all", points)] if len(points) > 1 else [])]
    for name, part in parts:
        found = lood_at(removal, part.unsqueeze(0).to(removal.posterior.inputs))
        lines += [
            [int(row), name, f"{kl:.10g}", f"{mean:.10g}"]
            for row, kl, mean in zip(removal.rows[:, 0], found.kl.tolist(), found.mean.tolist(), strict=True)
        ]
    return _text(["row", "query", "lood_kl", "lood_mean"], lines)


def _optimum_page(rows: np.ndarray, found: Queries) -> str:
    reached = found.converged.sum(1)
    columns = [torch.from_numpy(rows), found.value, found.own, found.value / found.own, reached]
    return _csv(["row", "value", "value_at_the_record", "ratio", "starts_converged"], columns)


def _csv(names: list[str], columns: list[torch.Tensor]) -> str:
    values = [column.tolist() for column in columns]
    return _text(names, [[_cell(value) for value in line] for line in zip(*values, strict=True)])


def _cell(value: float) -> int | str:
    """A number with ten digits, and nothing where there is none (no query told anything of the record)."""
    if isinstance(value, int):
        return value
    return "" if math.isnan(value) else f"{value:.10g}"


def _text(names: list[str], lines: list[list[Any]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(lines)
    return stream.getvalue()
