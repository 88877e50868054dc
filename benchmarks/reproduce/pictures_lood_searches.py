"""Figures 1, 8, 9, 10 and 14–19 of the LOOD paper: where searches for the best query end, and how they get there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.reproduce.kept_results import Arrays
from benchmarks.reproduce.lood_data import CENTRE
from benchmarks.reproduce.lood_searches import FOUND
from benchmarks.reproduce.printed_lood import BY_STEP
from giveaway.reporting.picture import COLOURS, PALE, blank, new_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def ends(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figure 1c, and how near each search came."""
    figure = new_picture((10.0, 4.0))
    told = found["cars_and_planes"]
    share, alike = arrays["cars_and_planes_share"], arrays["cars_and_planes_details"]
    title = f"{told['found']} of {told['chosen']} searches come to the record"
    _, left = blank(title, (0, 0), figure.add_subplot(1, 2, 1))
    left.scatter(alike, share, s=12, color=COLOURS[0], linewidths=0, alpha=0.6)
    left.set_xlabel("cosine of their details, query and record")
    left.set_ylabel("KL at the query over that at the record")
    _, right = blank("How alike the model finds query and record", (0, 0), figure.add_subplot(1, 2, 2))
    # in float16 the smallest are 0
    logs = np.log10(np.maximum(arrays["cars_and_planes_prediction_kl"], 1e-7))
    bins = np.linspace(logs.min(), logs.max(), 31)
    near = share > FOUND
    for colour, side, label in ((COLOURS[0], near, "came to the record"), (COLOURS[1], ~near, "ended lower")):
        right.hist(logs[side], bins=bins, color=colour, alpha=0.75, label=label)
    right.set_xlabel("log₁₀ KL of the two predictions")
    right.set_ylabel("searches")
    right.legend(frameon=False)
    return figure


def gallery(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figures 14–19: records above, queries below, by how far the search fell short."""
    share = arrays["cars_and_planes_share"][arrays["cars_and_planes_shown"].astype(int)]
    half = -(-len(share) // 2)
    figure = new_picture((1.1 * half, 5.4))
    grid = figure.subplots(4, half, squeeze=False)
    figure.suptitle(
        "Records (above) and where their search ended (below), with its share of the record's KL", fontsize=11
    )
    for axes in grid.flat:
        axes.axis("off")
    for place, value in enumerate(share):
        row, column = 2 * (place // half), place % half
        _show(grid[row, column], arrays["cars_and_planes_shown_records"][place], None)
        _show(grid[row + 1, column], stretched(arrays["cars_and_planes_shown_queries"][place]), f"{value:.3f}")
    return figure


def steps(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figure 9: one search in images, and all of them as curves (Figure 8a is where they end)."""
    figure = new_picture((11.0, 3.0))
    told = found["by_step"]
    grid = figure.add_gridspec(1, 6)
    for place, after in enumerate(BY_STEP["after"]):
        label = f"after {after} steps: {told['shown'][str(after)]:.2g}"
        _show(figure.add_subplot(grid[0, place]), stretched(arrays["by_step_queries"][place]), label)
    _show(figure.add_subplot(grid[0, 3]), arrays["by_step_record"][0], "the record: 1")
    _, axes = blank("KL at the query over that at the record", (0, 0), figure.add_subplot(grid[0, 4:]))
    best = arrays["by_step_best"].astype(int)
    for record, curves in enumerate(arrays["by_step_share"]):
        axes.plot(curves.T, color=PALE, linewidth=0.6, zorder=1)
        axes.plot(curves[best[record]], color=COLOURS[0], linewidth=1.3, zorder=2)
    axes.plot([], [], color=COLOURS[0], label="best start of each record")
    axes.plot([], [], color=PALE, label="its other starts")
    axes.set_xlabel("steps")
    axes.legend(frameon=False, fontsize=9)
    return figure


def runs(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figures 8b and 10: the record left of its query, KL at the query over that at the record below."""
    sides = {
        "convolutional": ("8b: CNN", found["convolutional"]["share_of_own_kl"]),
        "normalized": ("10: CNN, normalized records", found["normalized"]["over_the_record"]),
    }
    count = max(len(shares) for _, shares in sides.values())
    figure = new_picture((3.4 * count, 4.6))
    grid = figure.subplots(2, 2 * count, squeeze=False)
    for row, (name, (title, shares)) in enumerate(sides.items()):
        grid[row, 0].set_title(title, fontsize=11, loc="left")
        for place, share in enumerate(shares):
            record, query = arrays[f"{name}_records"][place], arrays[f"{name}_queries"][place]
            _show(grid[row, 2 * place], record, "record")
            asked = stretched(query) if name == "convolutional" else query
            _show(grid[row, 2 * place + 1], asked, f"query: {share:.4f}")
    return figure


def stretched(query: np.ndarray) -> np.ndarray:
    """With as much contrast as pixels allow: without biases a kernel sees only the direction from mid-grey."""
    away = query.astype(np.float64) - CENTRE
    return CENTRE + away * (CENTRE / np.abs(away).max())


def _show(axes: Axes, image: np.ndarray, label: str | None) -> None:
    axes.axis("on")
    axes.imshow(image.round().clip(0, 255).astype(np.uint8), interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    if label is not None:
        axes.set_xlabel(label, fontsize=9)
