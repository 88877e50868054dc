"""The maps of a report: loss against leverage, and the head's features, with one set of points behind both (bokeh).

Points are drawn for the most exposed rows and a random choice of the others. The script of the page links the points to
the table: what is selected in a map is listed there.
"""

import json
from typing import Any

import numpy as np

from giveaway.checks import InputError
from giveaway.findings.extras import EXPOSED, ReportExtras, chosen_rows
from giveaway.records import ScoreTable
from giveaway.reporting.picture import axis_from
from giveaway.text import shown_text

MOST_POINTS = 5_000
RINGED = 20  # of the most exposed have a ring
SOURCE = "cloud"
COLOURS = "Viridis256"
RING: Any = {"size": 10, "fill_color": None, "line_color": "#b3202a", "line_width": 1.5, "nonselection_line_alpha": 0.3}
DOT: Any = {"size": 5, "line_color": None, "fill_alpha": 0.75, "selection_line_color": "#000000"}
DOT |= {"selection_fill_alpha": 1.0, "nonselection_fill_alpha": 0.12}
FRAME: Any = {"tools": "pan,wheel_zoom,box_select,lasso_select,tap,reset", "active_drag": "box_select"}
FRAME |= {"toolbar_location": "above", "height": 380, "min_width": 300, "sizing_mode": "stretch_width"}


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
    rows = chosen_rows(table, MOST_POINTS) if features is None else features.rows
    ranks = table.rank()[rows]
    columns: dict[str, Any] = {
        "row": rows.astype(np.int32),
        "rank": ranks.astype(np.int32),
        "risk": (1.0 - (ranks - 1) / max(1, len(table) - 1)).astype(np.float32),
        "score": table[table.ranking()][rows].astype(np.float32),
        "id": [shown_text(name, 40) for name in table.ids[rows].tolist()],
    }
    if "class" in table.attributes:
        columns["class"] = [shown_text(name, 40) for name in table["class"][rows].tolist()]
    hidden = 0
    if axes is not None:
        scale = "linear" if table.meta.loss == "tokens" else "log"  # what texts gain may be below 0
        for side, name in zip("xy", axes, strict=True):
            values = table[name][rows]
            if scale == "log":
                least = axis_from(values)
                hidden += int((values < least).sum())
                values = np.maximum(values, least / 2 if np.isfinite(least) else 1e-12)
            columns[side] = values.astype(np.float32)
    if features is not None:
        columns["u"], columns["v"] = features.places[:, 0], features.places[:, 1]
    order = np.argsort(-ranks, kind="stable")  # the most exposed are drawn last, on top
    columns = {k: [v[i] for i in order] if isinstance(v, list) else v[order] for k, v in columns.items()}
    source = ColumnDataSource(columns, name=SOURCE)
    plots = []
    if axes is not None:
        labels = ["loss in the audited model", axes[1]]
        plots.append(_plot(source, "x", "y", f"Loss and {axes[1]}", labels, scale))
    if features is not None:
        method = features.method
        method += "" if features.explained is None else f", {100 * features.explained:.0f} % of their variance"
        plots.append(_plot(source, "u", "v", f"Features of the last layer ({method})", ["", ""], "linear"))
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
    ringed = CDSView(filter=IndexFilter(indices=list(last)))
    plot.scatter(x, y, source=source, view=ringed, **RING)
    hover = [("rank", "@rank"), ("id", "@id"), ("row", "@row"), ("score", "@score{0.0000}")]
    hover += [("class", "@class")] if "class" in source.data else []
    plot.add_tools(HoverTool(tooltips=hover, renderers=[points]))
    plot.xaxis.axis_label, plot.yaxis.axis_label = labels
    if not any(labels):
        plot.axis.major_label_text_font_size = "0px"
        plot.axis.major_tick_line_color = plot.axis.minor_tick_line_color = None
    return plot
