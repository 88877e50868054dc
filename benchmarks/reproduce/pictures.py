"""The pictures of docs/results.md from the committed results alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from giveaway.figures import save_figure
from giveaway.reporting.picture import blank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_all(results: Path, images: Path, data: Path | None = None) -> list[Path]:
    """Draw every picture that the results allow and return their paths; those that show records need `data`."""
    from benchmarks.reproduce.gls import pictures as gls
    from benchmarks.reproduce.lood import pictures as lood
    from benchmarks.reproduce.per_sample import pictures as per_sample

    images.mkdir(parents=True, exist_ok=True)
    written = []
    for paper in (per_sample, gls, lood):
        for name, figure in paper.draw(results, data).items():
            path = images / f"{name}.png"
            save_figure(figure, path)
            path.chmod(0o644)  # published, unlike pictures of an audit
            written.append(path)
    return written


def panels(figure: Figure, titles: Sequence[str], columns: int | None = None) -> list[Axes]:
    """Add one blank panel for each title, all in one row unless told otherwise."""
    across = columns or len(titles)
    lines = -(-len(titles) // across)
    return [blank(title, (0, 0), figure.add_subplot(lines, across, place + 1))[1] for place, title in enumerate(titles)]
