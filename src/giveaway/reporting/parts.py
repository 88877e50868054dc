"""The parts of a report that may be missing: each is there, or says in its place why it is not."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from giveaway.checks import InputError
from giveaway.findings.explain import breakdowns
from giveaway.findings.extras import ReportExtras
from giveaway.findings.measured import Measured
from giveaway.records import ScoreTable
from giveaway.reporting.cloud import cloud
from giveaway.reporting.figures import recall_curves
from giveaway.reporting.measured_figures import attack_curve
from giveaway.reporting.table_figures import exposure_distribution
from giveaway.reporting.theory_figures import tradeoff_curves
from giveaway.reporting.words import agreement_lines
from giveaway.text import shown_text
from giveaway.theory import fixed_design

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = 4  # of the most exposed, beside that of the row in the middle
RATES = (0.01, 0.05)


@dataclass(frozen=True)
class Part:
    """What a section shows, or None and a sentence instead."""

    value: Any = None
    note: str = ""


def part(make: Callable[[], Any]) -> Part:
    """What `make` gives. The rest of the page does not depend on it, so whatever goes wrong is said in its place."""
    try:
        return Part(make())
    except InputError as error:
        return Part(note=f"Not shown: {shown_text(error, 400)}.")
    except Exception as error:
        return Part(note=f"This part could not be made ({type(error).__name__}: {shown_text(error, 400)}).")


def parts(table: ScoreTable, look: ReportExtras, measured: Measured | None) -> dict[str, Part]:
    """Every optional section by its name."""
    return {
        "spread": part(lambda: picture(exposure_distribution(table))),
        "maps": part(lambda: cloud(table, look)),
        "breakdowns": part(lambda: breakdowns(table)),
        "curves": part(lambda: _curves(table)),
        "agreement": part(lambda: _agreement(table, measured)),
        "removals": part(lambda: _removals(table, look)),
        "penalties": part(lambda: _penalties(table)),
    }


def picture(figure: Figure) -> tuple[str, str]:
    """A figure as the address and the words of an image element: an SVG within the page."""
    from matplotlib import rc_context

    stream = io.BytesIO()
    with rc_context({"svg.hashsalt": "giveaway", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(stream.getvalue()).decode(), figure.axes[0].get_title("left")


def _curves(table: ScoreTable) -> dict[str, Any]:
    """Trade-off curves of the theory at the leverages of the most exposed rows and of the one in the middle."""
    if "leverage" not in table.scores:
        raise InputError("there is no leverage, which the theory starts from")
    if table.meta.get("unit") == "person":
        raise InputError("the theory is of single records, not of people with several")
    order = table.order()
    rows = [*order[:CURVES], order[len(order) // 2]][: len(order)]
    named = {f"rank {place + 1 if place < CURVES else len(order) // 2 + 1}": row for place, row in enumerate(rows)}
    outputs = table.meta.get("outputs") or 1
    degrees = outputs - 1 if table.meta.get("loss") == "cross_entropy" and outputs > 1 else outputs
    leverages = {name: float(np.clip(table["leverage"][row], 0.0, 1.0)) for name, row in named.items()}
    found = {name: fixed_design.tradeoff(h, m=degrees) for name, h in leverages.items()}
    lines = [
        (
            name,
            shown_text(table.ids[named[name]], 40),
            f"{leverages[name]:.3g}",
            f"{float(curve.auc()):.3f}",
            *(f"{100 * float(curve.tpr(rate)):.3g} %" for rate in RATES),
        )
        for name, curve in found.items()
    ]
    figure = tradeoff_curves(
        {f"{name}: leverage {leverages[name]:.2g}": curve for name, curve in found.items()},
        title="Errors of the best attack on a linear model",
    )
    return {"picture": picture(figure), "lines": lines, "rates": [f"{100 * rate:g} %" for rate in RATES]}


def _agreement(table: ScoreTable, measured: Measured | None) -> dict[str, Any]:
    """How well the scores find what LiRA found, where that was measured."""
    if measured is None:
        raise InputError("no shadow models were trained; giveaway validate trains them and fills this place")
    stated = measured.stated
    pictures = [attack_curve(measured)]
    if table.meta.get("unit") != "person" and len(table) == len(measured.effect_size):
        columns = {name: table[name] for name in table.columns}
        pictures.insert(0, recall_curves(columns, measured.effect_size, ranked_by=table.ranking()))
    conclusion = stated["conclusion"]
    return {"conclusion": conclusion, **agreement_lines(stated), "pictures": [picture(p) for p in pictures]}


def _removals(table: ScoreTable, look: ReportExtras) -> list[dict[str, Any]]:
    """Who comes to the top once the most exposed are gone."""
    if not look.removals:
        raise InputError(look.missing.get("what-if", "the head was not given to the report (head=)"))
    found = []
    for gone in look.removals:
        lines = [
            (shown_text(table.ids[row], 40), int(row), f"{before:.3g}", f"{after:.3g}")
            for row, before, after in zip(gone.risen[:8], gone.before[:8], gone.after[:8], strict=True)
        ]
        found.append(
            {
                "share": f"{100 * gone.share:g} %",
                "removed": len(gone.removed),
                "entered": len(gone.entered),
                "names": [shown_text(table.ids[row], 40) for row in gone.entered[:12]],
                "spearman": None if gone.spearman is None else f"{gone.spearman:.3f}",
                "lines": lines,
            }
        )
    return found


def _penalties(table: ScoreTable) -> list[tuple[str, str, str]]:
    """How the order by newton changes with l2."""
    found = table.meta.get("l2_sensitivity")
    if not found:
        raise InputError("the audit did not compare penalties (--l2-sensitivity; there must be an l2)")
    return [
        (
            f"{factor} × l2",
            f"{found[f'spearman_at_{factor}_l2']:.3f}",
            f"{100 * found[kept]:.0f} %" if (kept := f"top_kept_at_{factor}_l2") in found else "not known",
        )
        for factor in ("0.1", "10")
    ]
