"""report.html: one self-contained page for those who may see the training data, with every text escaped.

It loads nothing, is complete without JavaScript except for the maps, and its content policy forbids any request. A
section that cannot be made says why in its place.

Its maps show loss against leverage, and the head's features, with one set of points behind both (bokeh): the most
exposed rows and a random choice of the others. The script of the page links the points to the table.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from giveaway.auditing.texts import NEEDS
from giveaway.checks import InputError
from giveaway.findings.explain import SUBGROUP, breakdowns
from giveaway.findings.extras import EXPOSED, ReportExtras, chosen_rows
from giveaway.network.network import suffix
from giveaway.records import ScoreTable
from giveaway.records.reasons import why
from giveaway.reporting.answers import answers
from giveaway.reporting.figures import when_learned
from giveaway.reporting.pages import page, section
from giveaway.reporting.picture import axis_from, image_of
from giveaway.reporting.validation import StoredValidation, agreement_lines
from giveaway.reporting.words import access_of, layers_of, notes, standing
from giveaway.text import shown_cell, shown_text

TOP = 100
NO_HEAD = "the report was made from the table alone; pass head= to have it"
ABOUT_ROW = ("class", "target")  # beside rank, id, score and reason
OF_TRACE = ("trace · band", "trace · rows", "trace · losses")
MOST_POINTS = 5_000
RINGED = 20  # of the most exposed have a ring
SOURCE = "cloud"
COLOURS = "Viridis256"
RING: Any = {"size": 10, "fill_color": None, "line_color": "#b3202a", "line_width": 1.5, "nonselection_line_alpha": 0.3}
DOT: Any = {"size": 5, "line_color": None, "fill_alpha": 0.75, "selection_line_color": "#000000"}
DOT |= {"selection_fill_alpha": 1.0, "nonselection_fill_alpha": 0.12}
FRAME: Any = {"tools": "pan,wheel_zoom,box_select,lasso_select,tap,reset", "active_drag": "box_select"}
FRAME |= {"toolbar_location": "above", "height": 380, "min_width": 300, "sizing_mode": "stretch_width"}
MEANINGS = {
    "percentile": "the percentage of all rows that rank lower",
    "others_say": "what the other records predict for it",
    "trees_say": "what the trees that never saw it predict for it; nothing, or nan, where every tree saw it",
    "learned_by": "the epoch by which half of its √loss was behind it: the larger, the later it was learned",
    "records": "how many records the person has",
    "residual": "how far its prediction is from its target",
    "fused": "all views combined by rank: what the model did with it, and what tells what it would say without it",
    "newton": "the estimated rise of its loss if it had been left out",
    "influence": "the rise of its loss if left out, to first order: too small if leverage is high",
    "left_out": "how wrongly the other records predict it",
    "trace": "how large its losses were while the model was trained: the mean of their roots over the epochs",
    "relatives": "the loss on variants of it, such as its mirror image, in normal scores",
    "recognized": "whether its variants get half of the probability for its class",
    "out_of_bag": "the loss of what the trees that never saw it predict for it",
    "leverage": "how far its own target moves its own prediction, from 0 to 1; of a person, to the number of records",
    "loss": "its loss in the audited model",
    "predicted_success": "how often an attack on it is predicted to be right, members and others alike: not measured",
    "measured_success": "the share of shadow models for which LiRA got its membership right: measured, of the recipe",
    "expected_effect": "its effect size, by models and score together: at 1.04 an attack is right 70 % of the time",
    "found_exposed": "flagged as exposed by the test of every record; not judged: too few models with or without it",
}

OF_TEXTS = {
    "tokens": "how many tokens, about words, it has of which the model's prediction counts",
    "copies": "how many other texts have the same scored tokens",
    "shared": "the share of its tokens that follow two or more tokens which stand before them in another text too",
    "longest_run": "the most tokens in a row that the model gives back, each after those before it",
    "longest_run_before": "the same of the model before fine-tuning: what it gave back then was not learned here",
    "continues": "whether the model gives back what follows the beginning, word for word",
    "records": "how many texts the person has",
} | {score.__name__: " ".join((score.__doc__ or "").split()) for some in NEEDS.values() for score in some}


def render(
    table: ScoreTable,
    *,
    extras: ReportExtras | None = None,
    measured: StoredValidation | None = None,
    top: int = TOP,
    summary: str = "",
) -> str:
    """Return the page as a string; `summary` is the page beside it to share instead."""
    extras = extras or ReportExtras(missing={"map": NO_HEAD})
    chosen, meta = access_of(table), table.meta
    sections = {
        "breakdowns": section(lambda: breakdowns(table)),
        "maps": section(lambda: maps(table, extras)),
        "learned": section(lambda: image_of(when_learned(table))),
        "agreement": section(lambda: _agreement(table, measured)),
    }
    noted, groups = section(lambda: notes(table)), sections["breakdowns"]
    compared = [(o.kind, g.name, g.ratio, g.high, g.stands_out) for o in groups.content or () for g in o.groups]
    return page(
        "report.html",
        table=table,
        **meta.nouns,
        by=table.ranking(),
        answers=answers(table, measured, chosen, None if groups.note else compared),
        standing=standing(table, measured, chosen),
        notes=[noted.note] if noted.note else noted.content,
        missing=extras.missing,
        summary=summary,
        listed=_listing(table, extras, measured, top),
        sections=sections,
        bokeh=bokeh_script() if sections["maps"].content else "",
        facts=facts(meta.to_json()),
    )


def _listing(table: ScoreTable, extras: ReportExtras, measured: StoredValidation | None, top: int) -> dict[str, Any]:
    """Return the table of the `top` rows ranked highest: a cell is its text and the number that sorts it; what else is
    known of a row is one line of text."""
    by, known = table.ranking(), {**table.attributes, **table.scores}
    rows = table.order(by)[:top]
    ranks = np.arange(1, len(rows) + 1)
    values: dict[str, Any] = {"rank": ranks, "id": table.ids[rows]}
    values |= {name: known[name][rows] for name in (*ABOUT_ROW, by) if name in known}
    more: dict[str, Any] = {"percentile": 100.0 * (len(table) - ranks) / len(table)}
    if measured is not None and len(measured.success) == len(table) and not table.meta.by_person:
        values["measured_success"] = measured.success[rows]
        told = np.where(measured.judged[rows], "not shown", "not judged")
        values["found_exposed"] = np.where(measured.flagged[rows], "yes", told)
        more["expected_effect"] = measured.expected[rows]
    values["why"] = np.array(why(table, rows, nearest=False, contents=True), dtype=object)
    more |= {name: known[name][rows] for name in sorted(known) if name not in values}  # a stored table has others
    meanings = {**MEANINGS, **(OF_TEXTS if table.meta.loss == "tokens" else {})}
    for depth in table.meta.depths or ():
        through = f"; through {layers_of(depth)} of the network"
        meanings |= {name + suffix(depth): meaning + through for name, meaning in MEANINGS.items()}
    kinds = {name: "number" if column.dtype.kind in "fiu" else "name" for name, column in values.items()}
    records: list[Any] = [] if table.own_terms is None else table.own_terms.words(rows)
    shown = None if (heated := any(records)) else extras.contents
    if shown is not None:
        held = dict(zip(shown.rows.tolist(), shown.held, strict=True))
        records = [held.get(row, "") if shown.pictures else [(held.get(row, ""), 0)] for row in rows.tolist()]
    lines = zip(*(column.tolist() for column in more.values()), strict=True)
    names = [shown_text(name.removeprefix(SUBGROUP), 80) for name in more]
    return {
        "columns": list((kinds | {"why": "text why"}).items()),
        "rows": list(zip(*([_cell(value) for value in column.tolist()] for column in values.values()), strict=True)),
        "more": [" · ".join(f"{name} {_cell(v)[0]}" for name, v in zip(names, line, strict=True)) for line in lines],
        "meanings": [(name, meanings[name]) for name in (*values, *more) if name in meanings],
        "numbers": rows.tolist(),
        "records": records if any(records) else [],
        "heated": heated,
        "pictures": shown is not None and shown.pictures,
    }


def _cell(value: Any) -> tuple[str, str]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return shown_cell(value, 600), repr(value) if number else ""


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


def _agreement(table: ScoreTable, measured: StoredValidation | None) -> dict[str, Any]:
    if measured is None:
        raise InputError("no shadow models were trained; giveaway validate trains them and fills this section")
    images = [image_of(figure) for figure in measured.figures(table)]
    return {"conclusion": measured.stated["conclusion"], **agreement_lines(measured.stated), "pictures": images}


def maps(table: ScoreTable, extras: ReportExtras) -> dict[str, str]:
    """Draw both maps, or the one that the table allows: bokeh's document, as JSON that cannot end a script element, and
    how much is drawn."""
    from bokeh.embed import json_item
    from bokeh.layouts import row
    from bokeh.models import ColumnDataSource

    features = extras.feature_map
    axes = next((pair for pair in (("loss", "leverage"), ("loss", "left_out")) if set(pair) <= {*table.columns}), None)
    if axes is None and features is None:
        raise InputError("a map needs loss with leverage or left_out, or the features")
    rows, rank = chosen_rows(table, MOST_POINTS) if features is None else features.rows, table.rank()
    order = np.argsort(-rank[rows], kind="stable")  # the most exposed are drawn last, on top
    rows = rows[order]
    columns: dict[str, Any] = {
        "row": rows.astype(np.int32),
        "rank": rank[rows].astype(np.int32),
        "risk": (1.0 - (rank[rows] - 1) / max(1, len(table) - 1)).astype(np.float32),
        "score": table[table.ranking()][rows].astype(np.float32),
        "id": [shown_text(name, 40) for name in table.ids[rows].tolist()],
    }
    if "class" in table.attributes:
        columns["class"] = [shown_text(name, 40) for name in table["class"][rows].tolist()]
    source, plots, hidden = ColumnDataSource(columns, name=SOURCE), [], 0
    if axes is not None:
        scale = "linear" if table.meta.loss == "tokens" else "log"  # what texts gain may be below 0
        for side, name in zip("xy", axes, strict=True):
            values = table[name][rows]
            if scale == "log":
                least = axis_from(values)
                hidden += int((values < least).sum())
                values = np.maximum(values, least / 2 if np.isfinite(least) else 1e-12)
            source.add(values.astype(np.float32), side)
        labels = ["loss in the audited model", axes[1]]
        plots.append(_plot(source, "x", "y", f"Loss and {axes[1]}", labels, scale))
    if features is not None:
        source.add(features.places[order, 0], "u")
        source.add(features.places[order, 1], "v")
        method = features.method
        method += "" if features.explained is None else f", {100 * features.explained:.0f} % of their variance"
        plots.append(_plot(source, "u", "v", "Features of the last layer", [method, ""], "linear"))
    layout = row(plots, sizing_mode="stretch_width", styles={"flex-wrap": "wrap"})  # one below the other on a phone
    drawn = f"{len(rows):,} of {len(table):,} drawn" if len(rows) < len(table) else f"all {len(table):,} drawn"
    if len(rows) < len(table):
        drawn += f": the {min(EXPOSED, len(rows)):,} most exposed and others at random"
    if hidden:
        drawn += f"; {hidden:,} values of zero, or nearly, are drawn at the edge"
    item: Any = json_item(layout, "maps")  # type: ignore[arg-type]
    text = json.dumps(renumbered(item), ensure_ascii=True, allow_nan=False)
    return {"item": text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"), "drawn": drawn}


def renumbered(item: Any) -> Any:
    """Number the models of a document from 1, whatever bokeh made before."""
    numbers: dict[str, str] = {}

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: new(v) if k in ("id", "root_id") and isinstance(v, str) else walk(v) for k, v in value.items()}
        return [walk(part) for part in value] if isinstance(value, list) else value

    def new(name: str) -> str:
        return numbers.setdefault(name, f"m{len(numbers) + 1}")

    return walk(item)


def bokeh_script() -> str:
    """Return bokeh's own code, without its widgets."""
    from bokeh.resources import Resources

    code = "\n".join(Resources(mode="inline", components=["bokeh"], minified=True, log_level="error").js_raw)
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _plot(source: Any, x: str, y: str, title: str, labels: list[str], kind: Any) -> Any:
    from bokeh.models import CDSView, HoverTool, IndexFilter
    from bokeh.plotting import figure
    from bokeh.transform import linear_cmap

    plot = figure(title=title, x_axis_type=kind, y_axis_type=kind, **FRAME)
    points = plot.scatter(x, y, source=source, fill_color=linear_cmap("risk", COLOURS, 1.0, 0.0), **DOT)
    last = range(max(0, len(source.data["rank"]) - RINGED), len(source.data["rank"]))
    plot.scatter(x, y, source=source, view=CDSView(filter=IndexFilter(indices=list(last))), **RING)
    hover = [("rank", "@rank"), ("id", "@id"), ("row", "@row"), ("score", "@score{0.0000}")]
    hover += [("class", "@class")] if "class" in source.data else []
    plot.add_tools(HoverTool(tooltips=hover, renderers=[points]))
    plot.xaxis.axis_label, plot.yaxis.axis_label = labels
    if not any(labels):
        plot.axis.major_label_text_font_size = "0px"
        plot.axis.major_tick_line_color = plot.axis.minor_tick_line_color = None
    return plot
