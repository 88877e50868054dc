"""Pictures of the theory: trade-off curves, and the expected gap over error and leverage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from giveaway.reporting.figures import COLOURS, DASHES, GREY
from giveaway.reporting.picture import blank
from giveaway.theory import TradeOff, expected_gap, random_design

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 400
GRID = 120


def tradeoff_curves(
    curves: Mapping[str, TradeOff], *, title: str = "Errors of the best attack", axes: Axes | None = None
) -> Figure:
    """Missed members β against falsely accused non-members α, a line a curve; chance is the falling diagonal."""
    figure, axes = blank(title, (5.6, 5.0), axes)
    alpha = np.concatenate([np.geomspace(1e-6, 1e-2, POINTS // 4), np.linspace(1e-2, 1, POINTS)[1:]])
    for place, (label, curve) in enumerate(curves.items()):
        style = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
        axes.plot(alpha, curve.beta(alpha), label=label, linewidth=1.8, **style)
    axes.plot([0, 1], [1, 0], color=GREY, linestyle=":", linewidth=1.3, label="chance")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xlabel("false-positive rate α: share of non-members accused")
    axes.set_ylabel("false-negative rate β: share of members missed")
    axes.legend(frameon=False)
    return figure


def gap_map(
    freedom: float,
    *,
    variance: float = 1.0,
    outputs: int = 1,
    largest_error: float = 3.0,
    largest_leverage: float = 20.0,
    axes: Axes | None = None,
) -> Figure:
    """Colours for E[loss left out − loss trained on] over ε² and h̄."""
    errors, leverages = np.linspace(0, largest_error, GRID), np.linspace(0, largest_leverage, GRID)
    design = random_design(leverages[:, None], errors[None], freedom, variance=variance, outputs=outputs)
    figure, axes = blank(f"Expected loss gap, n − p = {freedom:g}", (5.8, 4.8), axes)
    drawn = axes.pcolormesh(errors**2, leverages, expected_gap(design), cmap="viridis", shading="gouraud")
    axes.figure.colorbar(drawn, ax=axes, label="mean of loss left out − loss trained on")
    axes.set_xlabel("squared error of the record under the true model, ε²")
    axes.set_ylabel("population leverage h̄")
    return figure
