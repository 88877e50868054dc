"""report.html: one self-contained page for those who may see the training data, with every text escaped.

It loads nothing, is complete without JavaScript except for the maps, and its content policy forbids any request. A
section that cannot be made says why in its place.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from giveaway.checks import InputError
from giveaway.findings.explain import SUBGROUP, breakdowns
from giveaway.findings.extras import ReportExtras
from giveaway.network.depths import suffix
from giveaway.records import ScoreTable
from giveaway.records.reasons import why
from giveaway.reporting import figures
from giveaway.reporting.maps import bokeh_script, maps
from giveaway.reporting.pages import page, section
from giveaway.reporting.picture import figure_bytes, title_of
from giveaway.reporting.validation import StoredValidation, agreement_lines
from giveaway.reporting.words import access_of, found_elsewhere, headline, layers_of, notes, standing
from giveaway.text import shown_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 100
NO_HEAD = "the report was made from the table alone; pass head= to have it"
BEFORE_WHY = ("loss", "leverage", "predicted_success")  # scores after the one that ranks, before the reasons
AFTER_WHY = ("newton", "trace", "learned_by", "left_out", "relatives", "out_of_bag", "residual")
ABOUT_ROW = ("class", "target", "others_say", "trees_say", "records")
OF_TRACE = ("trace · band", "trace · rows", "trace · losses")
MEANINGS = {
    "rank": "1 is the most exposed",
    "id": "the name of the row",
    "percentile": "the percentage of all rows that rank lower",
    "class": "its target",
    "target": "its target",
    "others_say": "what the other records predict for it",
    "trees_say": "what the trees that never saw it predict for it; nothing, or nan, where every tree saw it",
    "learned_by": "the epoch by which half of its √loss was behind it: the larger, the later it was learned",
    "records": "how many records the person has",
    "residual": "how far its prediction is from its target",
    "fused": "all views combined by rank: what the model did with it, and what tells what it would say without it",
    "newton": "the estimated rise of its loss if it had been left out",
    "influence": "the same to first order: too small if leverage is high",
    "left_out": "how wrongly the other records predict it",
    "trace": "how large its losses were while the model was trained: the mean of their roots over the epochs",
    "relatives": "the loss on variants of it, such as its mirror image, in normal scores",
    "recognized": "whether its variants get half of the probability for its class",
    "out_of_bag": "the loss of what the trees that never saw it predict for it",
    "leverage": "how far its own target pulls its own prediction, 0 to 1",
    "loss": "its loss in the audited model",
    "predicted_success": "the predicted balanced success of an attack on it: not measured",
    "measured_success": "the share of shadow models for which LiRA got its membership right: measured, of the recipe",
    "expected_effect": "its effect size by the shadow models and the score together: at 1.04 an attack is right 70 % "
    "of the time",
    "found_exposed": "flagged as exposed by the test of every record; not judged: too few models with or without it",
    "why": "what stands out about it",
}
VIEWS = ("left_out", "trace", "relatives", "out_of_bag")
OF_PEOPLE = {"leverage": "how far the targets of a person's records pull their predictions, from 0 to their number"}


def render(
    table: ScoreTable,
    *,
    extras: ReportExtras | None = None,
    measured: StoredValidation | None = None,
    access: str | None = None,
    top: int = TOP,
    summary: str = "",
) -> str:
    """Return the page as a string; `summary` is the page beside it to share instead."""
    extras = extras or ReportExtras(missing={"map": NO_HEAD})
    chosen = access_of(table, access)
    sections = {
        "maps": section(lambda: maps(table, extras)),
        "learned": section(lambda: _image(figures.when_learned(table))),
        "breakdowns": section(lambda: breakdowns(table)),
        "agreement": section(lambda: _agreement(table, measured)),
        "penalties": section(lambda: _penalties(table)),
    }
    meta = table.meta
    asked = None if meta.fusion is None else meta.fusion.weights  # views that `fused` asked
    noted = section(lambda: notes(table))
    return page(
        "report.html",
        table=table,
        unit=meta.rows_are,
        one=meta.unit,
        by=table.ranking(),
        headline=headline(table, measured, chosen),
        counted=measured is not None,
        found=found_elsewhere(table),
        standing=standing(table, measured, chosen),
        notes=[noted.note] if noted.note else noted.content,
        missing=extras.missing,
        summary=summary,
        listed=_listing(table, extras, measured, top),
        sections=sections,
        bokeh=bokeh_script() if sections["maps"].content else "",
        linear=meta.optimum is not None or "newton" in table.scores,
        views=[name for name in VIEWS if name in table.scores or name in (asked or ())],
        asks_model=asked is None or "head" in asked,
        facts=facts(meta.to_json()),
    )


def _listing(table: ScoreTable, extras: ReportExtras, measured: StoredValidation | None, top: int) -> dict[str, Any]:
    """Return the table of the `top` most exposed rows: a cell is its text and the number that sorts it."""
    by = table.ranking()
    rows = table.order(by)[:top]
    ranks = np.arange(1, len(rows) + 1)
    values: dict[str, Any] = {"rank": ranks, "id": table.ids[rows]}
    subgroups = [name for name in table.attributes if name.startswith(SUBGROUP)]
    depths = table.meta.depths or {}
    deeper = {}  # one column of each depth, newton if there is one, and what it means
    for depth in depths:
        name = next((name for name in ("newton", "influence") if name + suffix(depth) in table.scores), None)
        if name is not None:
            deeper[name + suffix(depth)] = f"{MEANINGS[name]}; through {layers_of(depth)} of the network"
    flags = ["newton_capped", *(f"newton_capped{suffix(depth)}" for depth in depths)]
    known = (*ABOUT_ROW, *AFTER_WHY, *subgroups, *flags, "nearest")
    others = [name for name in table.attributes if name not in known]
    for name in [*(n for n in ABOUT_ROW if n in table.attributes), *subgroups, *others]:
        values[name] = table[name][rows]
    values[by] = table[by][rows]
    values["percentile"] = 100.0 * (len(table) - ranks) / len(table)
    values |= {name: table[name][rows] for name in BEFORE_WHY if name in table.scores and name != by}
    if measured is not None and len(measured.success) == len(table) and not table.meta.by_person:
        values["measured_success"] = measured.success[rows]
        values["expected_effect"] = measured.expected[rows]
        told = np.where(measured.judged[rows], "not shown", "not judged")
        values["found_exposed"] = np.where(measured.flagged[rows], "yes", told)
    values["why"] = np.array(why(table, rows, nearest=False), dtype=object)
    columns_of = {**table.attributes, **table.scores}
    values |= {name: columns_of[name][rows] for name in (*AFTER_WHY, *deeper) if name in columns_of and name != by}
    near = table["nearest"][rows].tolist() if "nearest" in table.attributes else []
    meanings = MEANINGS | deeper | (OF_PEOPLE if table.meta.by_person else {})
    columns = [
        {
            "name": shown_text(name.removeprefix(SUBGROUP), 80),
            "key": name if name in MEANINGS or name == by else "",  # in the script of the page
            "meaning": meanings.get(name, "a column of the table"),
            "number": column.dtype.kind in "fiu",
        }
        for name, column in values.items()
    ]
    records: list[str] = []
    if (shown := extras.contents) is not None:
        held = dict(zip(shown.rows.tolist(), shown.held, strict=True))
        records = [held.get(int(row), "") for row in rows]
    return {
        "columns": columns,
        "rows": list(zip(*([_cell(value) for value in column.tolist()] for column in values.values()), strict=True)),
        "numbers": rows.tolist(),
        "nearest": [shown_text(names, 200) for names in near] if any(near) else [],
        "records": records,
        "pictures": extras.contents is not None and extras.contents.pictures,
    }


def _cell(value: Any) -> tuple[str, str]:
    if isinstance(value, float):
        return f"{value:.4g}", repr(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value), str(value)
    return shown_text(value, 200), ""


def facts(meta: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return every entry of the metadata as a name and a text, but for the lists that the figure of the trace shows."""
    found = []
    for key, value in meta.items():
        if isinstance(value, dict):
            found += facts(value, f"{prefix}{key} · ")
        elif value is not None and prefix + key not in OF_TRACE:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found.append((shown_text(prefix + key, 120), shown_text(text, 400)))
    return found


def _image(figure: Figure) -> tuple[str, str]:
    """Return the address and the words of an image element: an SVG within the page."""
    style = {"svg.fonttype": "none", "font.family": "sans-serif"}
    content = b64encode(figure_bytes(figure, "svg", **style)).decode()
    return f"data:image/svg+xml;base64,{content}", title_of(figure)


def _agreement(table: ScoreTable, measured: StoredValidation | None) -> dict[str, Any]:
    if measured is None:
        raise InputError("no shadow models were trained; giveaway validate trains them and fills this section")
    stated, images = measured.stated, []
    if not table.meta.by_person and len(table) == len(measured.effect_size):
        columns = {name: table[name] for name in table.columns}
        images.append(_image(figures.recall_curves(columns, measured.effect_size, ranked_by=table.ranking())))
    roc = {"LiRA": (measured.false_positives, measured.true_positives)}
    images.append(_image(figures.draw_roc(roc, {"LiRA": stated["lira"]["auc"]})))
    return {"conclusion": stated["conclusion"], **agreement_lines(stated), "pictures": images}


def _penalties(table: ScoreTable) -> list[tuple[str, str, str]]:
    found = table.meta.l2_sensitivity
    if not found:
        raise InputError("the audit did not compare penalties (--config l2_sensitivity=true; there must be an l2)")
    return [
        (
            f"{factor} × l2",
            f"{found[f'spearman_at_{factor}_l2']:.3f}",
            f"{100 * found[kept]:.0f} %" if (kept := f"top_kept_at_{factor}_l2") in found else "not known",
        )
        for factor in ("0.1", "10")
    ]
