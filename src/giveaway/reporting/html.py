"""report.html: one self-contained page, readable without JavaScript, every text escaped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from typing import Any

import jinja2
import numpy as np

from giveaway.auditing.why import why
from giveaway.files import write_text
from giveaway.records import ScoreTable

SHOWN = ("newton", "left_out", "leverage", "loss")  # what a page has room for beside the reasons
PREDICTED = {
    "theory of the head": (
        "predicted_* columns are estimates from theory in which only the last layer varies: not measured, no "
        "guarantee, and far too low for networks."
    ),
    "both views": (
        "predicted_* columns are estimates from both views: not measured on an attack, no guarantee; docs/fused.md "
        "says how far they were off."
    ),
}
KINDS = {"images": "patches of the images", "tabular": "columns of the table", "text": "words and letters"}
EXACT = (
    "The features are a linear function of the inputs: nothing was learned before the head, fused ranks as newton does."
)
BLIND = "What the other records say is no better than a constant here: read fused with care, beside the other columns."
WITHOUT_DRIFT = "newton and loo_gap take it into account, as asked; influence does not."


def report(table: ScoreTable, path: str | os.PathLike[str], *, top: int = 50) -> None:
    """Write the page of `table` to `path`."""
    write_text(path, render(table, top=top))


def render(table: ScoreTable, *, top: int = 50) -> str:
    """The page as a string."""
    by = table.ranking()
    rows = table.order(by)[:top]
    said = [name for name in ("class", "target", "others_say") if name in table.attributes]
    attributes = [*said, *(name for name in table.attributes if name not in ("newton_capped", "nearest", *said))]
    scores = [by, *(name for name in SHOWN if name in table.scores and name != by)]
    reasons = why(table, rows, nearest=False)
    near = table["nearest"][rows].tolist() if "nearest" in table.attributes else [""] * len(rows)
    body = [
        {
            "rank": place + 1,
            "id": str(table.ids[row]),
            "cells": [_cell(table[name][row]) for name in [*attributes, *scores]],
            "why": reasons[place],
            "nearest": near[place],
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
        nearest=any(near),
        scores=table.columns,
        linear=table.meta.get("optimum") is not None or "newton" in table.scores,
        spread=_spread(table[by]),
        notes=notes(table),
        facts=_facts(table.meta),
    )


def notes(table: ScoreTable) -> list[str]:
    """What a reader must know of this table besides its numbers."""
    meta = table.meta
    said = [*_about_view(meta)]
    optimum = meta.get("optimum")
    relative = (optimum or {}).get("relative_gradient")
    if optimum is None:
        if "optimum" in meta:
            said.append("A black box: nothing inside the model was looked at.")
    elif relative is None:
        said.append("How far the head is from its optimum is not known: its weights were not given.")
    elif relative >= 1e-4:
        assumed = (meta.get("options") or {}).get("converged", True)
        said.append(
            f"The head is not at the optimum of its training objective (relative gradient {relative:.2g}): "
            + ("scores assume it is. converged=False or refit=True take it into account." if assumed else WITHOUT_DRIFT)
        )
    if any(name.startswith("predicted_") for name in table.columns):
        said.append(PREDICTED[meta.get("predicted_by") or "theory of the head"])
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


def _about_view(meta: Mapping[str, Any]) -> list[str]:
    """The second view in words, or why there is none."""
    view = meta.get("view")
    if not view:
        return [meta["no_view"]] if meta.get("no_view") else []
    error, kept = view["left_out_error"], view["memorized"]
    said = [
        f"The other records predict a left-out one with {100 * error:.3g} % of the squared error of a constant "
        f"({KINDS.get(view['view'], view['view'])}, {view['kernel']} kernel, {view['method']}); training took away "
        f"{100 * kept:.3g} % of that error."
    ]
    if view["head_is_exact"]:
        return [*said, EXACT]
    said[0] += f" In fused the model's own view counts {view['head_weight']:.2g} and theirs 1."
    return [*said, BLIND] if error >= 1.0 else said


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
