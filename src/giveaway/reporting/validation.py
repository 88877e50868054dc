"""The files of a validation: its words, its table and its pictures."""

from __future__ import annotations

from giveaway.auditing.validate import Validation
from giveaway.findings.measured import Measured
from giveaway.records import ScoreTable
from giveaway.reporting.figures import figure_bytes, loss_by_influence, recall_curves, roc_curves


def validation_pages(table: ScoreTable, found: Validation, *, recipe: str | None = None) -> dict[str, str | bytes]:
    """File names and contents. A table without loss and influence has no picture of them."""
    scores = {name: table[name] for name in table.columns}
    figures = {
        "validation_recall.png": recall_curves(scores, found.effect_size, ranked_by=found.ranked_by),
        "validation_roc.png": roc_curves([found.attack]),
    }
    if {"loss", "influence"} <= scores.keys():
        figures["validation_map.png"] = loss_by_influence(scores["loss"], scores["influence"], found.success)
    shown = "".join(f"\n![{figure.axes[0].get_title(loc='left')}]({name})\n" for name, figure in figures.items())
    return {
        "validation.md": found.to_markdown() + shown,
        "validation.csv": found.table.to_csv(),
        **Measured.of(found, recipe=recipe).pages(),
        **{name: figure_bytes(figure) for name, figure in figures.items()},
    }
