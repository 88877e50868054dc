"""report.html: one self-contained page, readable without JavaScript, every text escaped."""

from __future__ import annotations

import os
from importlib import resources
from typing import Any

import jinja2
import numpy as np

from giveaway.auditing.why import why
from giveaway.files import write_text
from giveaway.records import ScoreTable

SHOWN = ("leverage", "loss", "influence", "loo_gap")
PREDICTED = (
    "predicted_* columns are estimates from theory in which only the last layer varies: not measured, no guarantee, "
    "and far too low for networks."
)
WITHOUT_DRIFT = "newton and loo_gap take it into account, as asked; influence does not."


def report(table: ScoreTable, path: str | os.PathLike[str], *, top: int = 50) -> None:
    """Write the page of `table` to `path`."""
    write_text(path, render(table, top=top))


def render(table: ScoreTable, *, top: int = 50) -> str:
    """The page as a string."""
    by = table.ranking()
    rows = table.order(by)[:top]
    attributes = [name for name in table.attributes if name != "newton_capped"]
    scores = [by, *(name for name in SHOWN if name in table.scores and name != by)]
    reasons = why(table, rows)
    body = [
        {
            "rank": place + 1,
            "id": str(table.ids[row]),
            "cells": [_cell(table[name][row]) for name in [*attributes, *scores]],
            "why": reasons[place],
        }
        for place, row in enumerate(rows)
    ]
    source = resources.files("giveaway.reporting").joinpath("template.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source).render(
        unit="people" if table.meta.get("unit") == "person" else "records",
        one="person" if table.meta.get("unit") == "person" else "record",
        rows=len(table),
        records=table.meta.get("records", len(table)),
        by=by,
        columns=[*attributes, *scores],
        body=body,
        spread=_spread(table[by]),
        notes=notes(table),
        facts=_facts(table.meta),
    )


def notes(table: ScoreTable) -> list[str]:
    """What a reader must know of this table besides its numbers."""
    meta = table.meta
    said = []
    optimum = meta.get("optimum") or {}
    relative = optimum.get("relative_gradient")
    if relative is None:
        said.append("How far the head is from its optimum is not known: its weights were not given.")
    elif relative >= 1e-4:
        assumed = (meta.get("options") or {}).get("converged", True)
        said.append(
            f"The head is not at the optimum of its training objective (relative gradient {relative:.2g}): "
            + ("scores assume it is. converged=False or refit=True take it into account." if assumed else WITHOUT_DRIFT)
        )
    if any(name.startswith("predicted_") for name in table.columns):
        said.append(PREDICTED)
    repeats = meta.get("repeats") or {}
    if repeats.get("exact") or repeats.get("near"):
        said.append(
            f"{repeats['exact']} records have an exact copy and at least {repeats['near']} more a near copy. Scores of "
            "repeated people are understated: pass groups to score people instead of rows."
        )
    if meta.get("newton_capped"):
        said.append(f"{meta['newton_capped']} rows are alone in some direction; their newton and loo_gap are capped.")
    curvature = meta.get("curvature") or {}
    if "eigenvectors" in curvature.get("inverse", ""):
        said.append("The curvature is singular; its pseudo-inverse was used (rank and cut below).")
    sensitivity = meta.get("l2_sensitivity")
    if sensitivity:
        low, high = sensitivity["spearman_at_0.1_l2"], sensitivity["spearman_at_10_l2"]
        said.append(f"Rank correlation of newton with itself at a tenth of l2: {low:.3f}, at ten times: {high:.3f}.")
    return said


def _spread(values: np.ndarray) -> list[tuple[str, str]]:
    shares = [("median", 50), ("top 10 %", 90), ("top 5 %", 95), ("top 1 %", 99), ("largest", 100)]
    return [(name, _cell(float(np.percentile(values, q)))) for name, q in shares]


def _facts(meta: Any, prefix: str = "") -> list[tuple[str, str]]:
    facts = []
    for key, value in meta.items():
        if isinstance(value, dict):
            facts += _facts(value, f"{prefix}{key} · ")
        elif value is not None:
            facts.append((prefix + key, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return facts


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
