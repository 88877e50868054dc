"""Pictures of a table of scores: how exposure is spread, over which losses and leverages, and over which classes.

With `axes` a picture is drawn there, and their figure returned, instead of a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import hypergeom

from giveaway.checks import check_number, fail
from giveaway.records import ScoreTable
from giveaway.reporting.figures import COLOURS, DASHES, GREY, MOST_POINTS, PALE, legend, percent, sample
from giveaway.reporting.picture import blank
from giveaway.text import shown_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOPS = (0.05, 0.01)
LOGARITHMIC_FROM = 10  # largest to smallest: closer values are as well read on a linear axis
FEW_ROWS = 10  # smaller classes are pooled
MOST_CLASSES = 20


def exposure_distribution(table: ScoreTable, by: str | None = None, axes: Axes | None = None) -> Figure:
    """How many rows have which score, with the median and where the highest 5 % and 1 % begin.

    Scores without a negative one that span more than a decade have a logarithmic axis; zeros have no place on it, and
    the title counts them.
    """
    name = table.ranking(by)
    values = np.sort(_some(table)[name])[::-1]
    n, placed = len(values), values
    logarithmic = bool(values[-1] >= 0 and values[0] > LOGARITHMIC_FROM * values[values > 0].min(initial=np.inf))
    title = f"How {_plain(name)} is spread over {_rows(n)}"
    if logarithmic and values[-1] == 0:
        placed = values[values > 0]
        title += f"; {n - len(placed):,} of them are 0, left out"
    figure, axes = blank(title, (7.0, 4.2), axes)
    bins = int(np.clip(2 * np.sqrt(len(placed)), 10, 60))
    edges = np.geomspace(placed[-1], placed[0], bins + 1) if logarithmic else np.histogram_bin_edges(placed, bins)
    edges[[0, -1]] = min(edges[0], placed[-1]), max(edges[-1], placed[0])  # geomspace may end a rounding short
    counts, *_ = axes.hist(placed, edges.tolist(), color=COLOURS[0], alpha=0.55, linewidth=0)
    marks = [(f"median: {np.median(values):.3g}", float(np.median(values)))]
    for count, share in ((round(share * n), share) for share in TOPS):
        if count:  # of 40 rows none is the top 1 %
            begins = float(values[count - 1])
            marks.append((f"top {percent(share)} ({_rows(count)}): from {begins:.3g}", begins))
    for (label, place), colour, dashes in zip(marks, (GREY, COLOURS[4], COLOURS[1]), DASHES, strict=False):
        style = {"color": colour, "linestyle": dashes, "linewidth": 1.8, "label": label}
        if logarithmic and place == 0:
            axes.plot([], [], **style)
        else:
            axes.axvline(place, **style)
    axes.set_xscale("log" if logarithmic else "linear")
    axes.set_xlabel(_plain(name) + (" (logarithmic)" if logarithmic else "") + ", higher is more exposed")
    axes.set(ylabel="rows", ylim=(0, 1.3 * np.max(counts)))  # room for the legend
    legend(axes)
    return figure


def loss_by_leverage(table: ScoreTable, top: int = 20, axes: Axes | None = None) -> Figure:
    """A point a row at its loss and leverage, the `top` most exposed marked.

    Of more than 20,000 rows a random choice is drawn, and all that are marked. Rows where either value is not positive
    have no place on logarithmic axes; the title counts them.
    """
    top = int(check_number("top", top, minimum=1, remedy="mark at least one row"))
    loss, leverage = _column(table, "loss"), _column(table, "leverage")
    there = (loss > 0) & (leverage > 0)
    if not there.any():
        raise fail("table", "a positive loss and leverage in some row", "none", "draw exposure_distribution instead")
    shown, title = sample(np.flatnonzero(there), MOST_POINTS, "rows")
    hidden = int((~there).sum())
    title += f"\n{hidden:,} more not positive" if hidden else ""
    highest = table.order()[:top]
    marked = highest[there[highest]]
    said = f"{len(highest):,} most exposed by {_plain(table.ranking())}"
    said = said if len(marked) == len(highest) else f"{len(marked):,} of the {said}"
    figure, axes = blank(f"Loss and leverage: {title}", (7.0, 5.0), axes)
    axes.scatter(
        loss[shown], leverage[shown], s=7, color=COLOURS[0], alpha=0.45, linewidths=0, rasterized=True, label="a row"
    )
    axes.scatter(loss[marked], leverage[marked], s=26, color=COLOURS[1], edgecolors="white", linewidths=0.5, label=said)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("loss of the row in the audited model (logarithmic)")
    axes.set_ylabel("leverage: its pull on the head (logarithmic)")
    legend(axes)
    return figure


def by_class(table: ScoreTable, share: float = 0.05, axes: Axes | None = None) -> Figure:
    """Each class's share among the most exposed `share` of the rows over its share of all rows; 1 is an even spread.

    The grey band of a class holds at least 95 % of what drawing the same number of rows at random would give. Classes
    under 10 rows are one line, and so are those nearest to an even spread beyond the first 20.
    """
    if "class" not in table.attributes:
        raise fail(
            "table", "a class of every row", "none", "draw exposure_distribution, or audit a classifier by record"
        )
    n = len(_some(table))
    count = round(n * check_number("share", share, minimum=0, remedy="such as 0.05"))
    if not 0 < count <= n:
        raise fail("share", f"a share that keeps 1 to {n} rows", f"{share:g}", "keep more, or fewer")
    highest = table.order()[:count]
    names, line = np.unique(table["class"], return_inverse=True)
    labels, pooled = _lines(names, np.bincount(line), np.bincount(line[highest], minlength=len(names)))
    line = pooled[line]
    sizes, found = np.bincount(line), np.bincount(line[highest], minlength=len(labels))
    even = sizes * count / n
    ratio = found / even
    low, high = (hypergeom.ppf(tail, n, sizes, count) / even for tail in (0.025, 0.975))
    title = f"Classes of the top {percent(share)} by {_plain(table.ranking())} ({count:,} of {_rows(n)})"
    figure, axes = blank(title, (7.8, 1.8 + 0.28 * len(labels)), axes)
    order = np.argsort(-ratio, kind="stable")[::-1]  # the highest on top
    heights = np.arange(len(labels))
    axes.hlines(heights, low[order], high[order], color=PALE, linewidth=8, label="by chance (95 %)", zorder=2)
    axes.plot(
        [1, 1], [-0.6, len(labels) - 0.4], color=GREY, linestyle=":", linewidth=1.5, label="even spread", zorder=3
    )
    axes.plot(ratio[order], heights, "o", color=COLOURS[0], markersize=7, zorder=4)
    for height, place in enumerate(order):
        said = f"{percent(found[place] / count)} of the top, {percent(sizes[place] / n)} of all"
        axes.text(1.02, height, said, transform=axes.get_yaxis_transform(), va="center", fontsize=9, color=GREY)
    axes.set_yticks(heights, [labels[place] for place in order])
    axes.set(xlim=(-0.05, 1.08 * max(ratio.max(), high.max(), 1)), ylim=(-1.6, len(labels) - 0.4))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("share of the top ÷ share of all rows")
    axes.set_ylabel("class")
    axes.legend(loc="lower right", ncols=2, frameon=False, fontsize=10)  # in the free line below the classes
    return figure


def _lines(names: np.ndarray, sizes: np.ndarray, found: np.ndarray) -> tuple[list[str], np.ndarray]:
    """A label for each line, and every class's line: its own, that of those nearest to even, or that of the rare."""
    rare = sizes < FEW_ROWS
    uneven = np.where(rare, -1.0, np.abs(found - sizes * found.sum() / sizes.sum()))
    own = np.sort(np.argsort(-uneven, kind="stable")[: min(MOST_CLASSES, int((~rare).sum()))])
    line = np.full(len(names), -1)
    line[own] = np.arange(len(own))
    labels = [_plain(name) for name in names[own].tolist()]
    for pooled, words in ((~rare & (line < 0), "others"), (rare, "rare")):
        if pooled.any():
            line[pooled] = len(labels)
            kinds = int(pooled.sum())
            labels.append(f"{words} ({kinds:,} class{'' if kinds == 1 else 'es'})")
    return labels, line


def _column(table: ScoreTable, name: str) -> np.ndarray:
    if name not in table.scores:
        remedy = f"audit with the score {name}" if name != "leverage" else "audit a model with a linear head"
        raise fail("table", f"the score {name}", ", ".join(table.columns[:12]), remedy)
    return _some(table)[name]


def _some(table: ScoreTable) -> ScoreTable:
    if not len(table):
        raise fail("table", "at least one row", "none", "audit some records")
    return table


def _plain(value: object) -> str:
    """A name as it is: matplotlib would read a formula between dollars."""
    return shown_text(value, 24).replace("$", r"\$")


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
