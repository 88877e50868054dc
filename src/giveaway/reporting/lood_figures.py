"""Pictures of leave-one-out distinguishability: all records at a glance, and the best queries beside their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from giveaway.reporting.figures import COLOURS, GREY, MOST_POINTS, sample
from giveaway.reporting.picture import blank, figure_of, new_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PAIRS = 10
MARKED = 10


def lood_map(kl: np.ndarray, mean: np.ndarray, *, axes: Axes | None = None) -> Figure:
    """A point a record (or person) at its two distances, the most exposed by KL marked with their row numbers."""
    rows = np.flatnonzero((kl > 0) & (mean > 0))
    shown, title = sample(rows, MOST_POINTS, "rows")
    top = np.argsort(-kl, kind="stable")[:MARKED]
    figure, axes = blank(f"Leave-one-out distinguishability: {title}", (6.6, 5.0), axes)
    axes.scatter(mean[shown], kl[shown], s=6, color=COLOURS[0], alpha=0.5, linewidth=0, rasterized=True)
    axes.scatter(mean[top], kl[top], s=18, color=COLOURS[1], linewidth=0)
    for row in top:
        axes.annotate(str(row), (mean[row], kl[row]), xytext=(4, 2), textcoords="offset points", fontsize=7, color=GREY)
    if len(rows):
        axes.set(xscale="log", yscale="log")
    axes.set_xlabel("lood_mean: half the squared change of the mean")
    axes.set_ylabel("lood_kl: KL of the prediction without from with")
    return figure


def query_pictures(
    records: np.ndarray, queries: np.ndarray, rows: np.ndarray, objective: str, *, axes: Axes | None = None
) -> Figure:
    """Images (k, channels, height, width) of records above the query that maximizes the distance, for up to ten."""
    count = min(len(rows), MOST_PAIRS)
    title = f"Records and the queries with the largest {objective} distance"
    if axes is None:
        figure = new_picture((1.1 * count + 0.6, 2.9))
        figure.suptitle(title, fontsize=9)
        places = figure.subplots(2, count, squeeze=False)
    else:
        figure = figure_of(axes)
        axes.set_title(title, fontsize=9, pad=16)  # above the rows' numbers
        places = _inside(axes, count)
    for column in range(count):
        for line, picture in enumerate((records[column], queries[column])):
            place = places[line, column]
            place.imshow(_as_picture(picture), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            place.set(xticks=[], yticks=[])
        places[0, column].set_title(f"row {rows[column]}", fontsize=8)
    places[0, 0].set_ylabel("record", fontsize=8)
    places[1, 0].set_ylabel("query", fontsize=8)
    return figure


def _inside(axes: Axes, count: int) -> np.ndarray:
    """Two lines of `count` small axes that fill the given ones."""
    axes.set_axis_off()
    places = np.empty((2, count), dtype=object)
    for line, (bottom, side) in enumerate(((0.52, "S"), (0.0, "N"))):  # each image close to the other of its pair
        for column in range(count):
            places[line, column] = axes.inset_axes((column / count, bottom, 0.92 / count, 0.48), anchor=side)
    return places


def _as_picture(image: np.ndarray) -> np.ndarray:
    """Channels last, the first alone of one or two, from 0 to 1 over the image's own range where it leaves that."""
    low, high = min(0.0, float(image.min())), max(1.0, float(image.max()))
    scaled = (image - low) / (high - low)
    return scaled[0] if len(scaled) < 3 else scaled[:3].transpose(1, 2, 0)
