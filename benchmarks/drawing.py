"""Panels and images of the figures in docs/images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from giveaway.reporting.picture import blank, new_picture, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def panels(size: tuple[float, float], titles: Sequence[str], columns: int | None = None) -> "tuple[Figure, list[Axes]]":
    """Return a figure with one blank panel for each title, all in one row unless `columns` are given."""
    figure, across = new_picture(size), columns or len(titles)
    lines = -(-len(titles) // across)
    places = [figure.add_subplot(lines, across, place + 1) for place in range(len(titles))]
    return figure, [blank(title, size, axes)[1] for title, axes in zip(titles, places, strict=True)]


def image(axes: "Axes", pixels: Any, label: str | None = None, fontsize: float = 9) -> None:
    """Show an image without ticks or frame, and with a label below it."""
    axes.axis("on")
    axes.imshow(pixels, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    if label is not None:
        axes.set_xlabel(label, fontsize=fontsize, labelpad=2)


def publish(figure: "Figure", path: Path) -> Path:
    """Write a picture that everybody may read, unlike pictures of an audit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path)
    path.chmod(0o644)
    return path
