"""Every figure, as a matplotlib figure that notebooks show; `axes=` draws into axes of your own, to restyle.

Figures of audits and validations come from `giveaway.reporting`; those of the theory's gap and of leave-one-out
distinguishability, which no report shows, are defined here.
"""

# ruff: noqa: F401 (some names are for others)
from typing import TYPE_CHECKING

import numpy as np

from giveaway.reporting.figures import (
    by_class,
    loss_by_leverage,
    recall_curves,
    roc_curves,
    tradeoff_curves,
    when_learned,
)
from giveaway.reporting.picture import (
    COLOURS,
    GREY,
    MOST_POINTS,
    blank,
    figure_of,
    new_picture,
    positive_rows,
    save_figure,
)
from giveaway.reporting.trade_off import trade_off
from giveaway.theory import expected_gap, random_design

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


GRID = 120
MOST_PAIRS = 10
MARKED = 10


def gap_map(
    freedom: float,
    *,
    variance: float = 1.0,
    outputs: int = 1,
    largest_error: float = 3.0,
    largest_leverage: float = 20.0,
    axes: "Axes | None" = None,
) -> "Figure":
    """Draw E[loss left out − loss trained on] as colours over ε² and h̄."""
    errors, leverages = np.linspace(0, largest_error, GRID), np.linspace(0, largest_leverage, GRID)
    design = random_design(leverages[:, None], errors[None], freedom, variance=variance, outputs=outputs)
    figure, axes = blank(f"Expected loss gap, n − p = {freedom:g}", (5.8, 4.8), axes)
    # one image: an SVG would have each of its 57,000 triangles as a gradient of its own, 90 MB of them
    mesh = axes.pcolormesh(
        errors**2, leverages, expected_gap(design), cmap="viridis", shading="gouraud", rasterized=True
    )
    axes.figure.colorbar(mesh, ax=axes, label="mean of loss left out − loss trained on")
    axes.set_xlabel("squared error of the record under the true model, ε²")
    axes.set_ylabel("population leverage h̄")
    return figure


def lood_map(kl: np.ndarray, mean: np.ndarray, *, axes: "Axes | None" = None) -> "Figure":
    """Draw each record (or person) at its two distances, the most exposed by KL marked with their row numbers."""
    shown, title = positive_rows(mean, kl, "rows", MOST_POINTS)
    top = np.argsort(-kl, kind="stable")[:MARKED]
    figure, axes = blank(f"Leave-one-out distinguishability: {title}", (6.6, 5.0), axes)
    axes.scatter(mean[shown], kl[shown], s=6, color=COLOURS[0], alpha=0.5, linewidth=0, rasterized=True)
    axes.scatter(mean[top], kl[top], s=18, color=COLOURS[1], linewidth=0)
    for row in top:
        axes.annotate(str(row), (mean[row], kl[row]), xytext=(4, 2), textcoords="offset points", fontsize=7, color=GREY)
    if len(shown):
        axes.set(xscale="log", yscale="log")
    axes.set_xlabel("lood_mean: half the squared change of the mean")
    axes.set_ylabel("lood_kl: KL divergence of the prediction without from the one with")
    return figure


def query_pictures(
    records: np.ndarray, queries: np.ndarray, rows: np.ndarray, objective: str, *, axes: "Axes | None" = None
) -> "Figure":
    """Draw images (k, channels, height, width) of records above the query with the largest distance, ten at most."""
    count = min(len(rows), MOST_PAIRS)
    axes = new_picture((max(4.0, 1.1 * count + 0.6), 2.9)).add_subplot() if axes is None else axes
    axes.set_title(f"Records and the queries with the largest {objective} distance", fontsize=9, pad=16)
    axes.set_axis_off()
    for name, images, bottom, side in (("record", records, 0.52, "S"), ("query", queries, 0.0, "N")):
        for column in range(count):  # each image close to its partner
            place = axes.inset_axes((column / count, bottom, 0.92 / count, 0.48), anchor=side)
            place.imshow(_as_picture(images[column]), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            place.set(xticks=[], yticks=[])
            place.set_title(f"row {rows[column]}" if name == "record" else "", fontsize=8)
            place.set_ylabel(name if column == 0 else "", fontsize=8)
    return figure_of(axes)


def _as_picture(image: np.ndarray) -> np.ndarray:
    """Return channels last (the first alone of one or two), rescaled to 0 to 1 if the image leaves that range."""
    low, high = min(0.0, float(image.min())), max(1.0, float(image.max()))
    scaled = (image - low) / (high - low)
    return scaled[0] if len(scaled) < 3 else scaled[:3].transpose(1, 2, 0)
