"""Pictures of leave-one-out distinguishability: all records at a glance, and the best queries beside their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from giveaway.reporting.figures import COLOURS, GREY, MOST_POINTS, blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PAIRS = 10
MARKED = 10


def lood_map(kl: np.ndarray, mean: np.ndarray) -> Figure:
    """A point a record (or person) at its two distances, the most exposed by KL marked with their row numbers."""
    rows = np.flatnonzero((kl > 0) & (mean > 0))
    shown, title = rows, f"{len(rows):,} rows"
    if len(rows) > MOST_POINTS:
        shown = np.random.default_rng(0).choice(rows, MOST_POINTS, replace=False)
        title = f"{MOST_POINTS:,} of {len(rows):,} rows, chosen at random"
    top = np.argsort(-kl, kind="stable")[:MARKED]
    figure, axes = blank(f"Leave-one-out distinguishability: {title}", (6.6, 5.0))
    axes.scatter(mean[shown], kl[shown], s=6, color=COLOURS[0], alpha=0.5, linewidth=0, rasterized=True)
    axes.scatter(mean[top], kl[top], s=18, color=COLOURS[1], linewidth=0)
    for row in top:
        axes.annotate(str(row), (mean[row], kl[row]), xytext=(4, 2), textcoords="offset points", fontsize=7, color=GREY)
    if len(rows):
        axes.set(xscale="log", yscale="log")
    axes.set_xlabel("lood_mean: half the squared change of the mean")
    axes.set_ylabel("lood_kl: KL of the prediction without from with")
    return figure


def query_pictures(records: np.ndarray, queries: np.ndarray, rows: np.ndarray, objective: str) -> Figure:
    """Images (k, channels, height, width) of records above the query that maximizes the distance, for up to ten."""
    from matplotlib.figure import Figure

    count = min(len(rows), MOST_PAIRS)
    figure = Figure(figsize=(1.1 * count + 0.6, 2.9), layout="constrained")
    axes = figure.subplots(2, count, squeeze=False)
    for column in range(count):
        for line, picture in enumerate((records[column], queries[column])):
            place = axes[line, column]
            place.imshow(_as_picture(picture), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            place.set(xticks=[], yticks=[])
        axes[0, column].set_title(f"row {rows[column]}", fontsize=8)
    axes[0, 0].set_ylabel("record", fontsize=8)
    axes[1, 0].set_ylabel("query", fontsize=8)
    figure.suptitle(f"Records and the queries with the largest {objective} distance", fontsize=9)
    return figure


def _as_picture(image: np.ndarray) -> np.ndarray:
    """Channels last, the first alone of one or two, from 0 to 1 over the image's own range where it leaves that."""
    low, high = min(0.0, float(image.min())), max(1.0, float(image.max()))
    scaled = (image - low) / (high - low)
    return scaled[0] if len(scaled) < 3 else scaled[:3].transpose(1, 2, 0)
