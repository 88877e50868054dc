"""The style that all figures share, and how a figure is saved or shown in a notebook.

matplotlib is imported when a figure is drawn, and only through its objects: nothing global of the caller changes. The
same figure always gives the same bytes.
"""

from __future__ import annotations

import base64
import io
import os
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from giveaway.checks import check_choice, fail
from giveaway.storage.files import write_atomically
from giveaway.text import shown_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")  # Okabe and Ito's
DASHES: tuple[Any, ...] = ("-", *((0, dashes) for dashes in ((6, 1.5), (3, 1.5), (6, 1.5, 1, 1.5), (1, 1))))
GREY, PALE = "#555555", "#C8C8C8"
CHANCE: dict[str, Any] = {"color": GREY, "linestyle": ":", "linewidth": 1.3, "label": "chance"}
GAP = 3.0  # decades without a value, that no axis need show
UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
PIXELS_PER_INCH = 96  # of a web page


def blank(title: str, size: tuple[float, float], axes: Axes | None = None) -> tuple[Figure, Axes]:
    """Return axes in the common style, with a title: the caller's axes, or those of a new figure of `size` inches."""
    if axes is None:
        axes = new_picture(size).add_subplot()
    figure = figure_of(axes)
    axes.set_title(title, fontsize=12, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E6E6E6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10)
    axes.xaxis.label.set_fontsize(11)
    axes.yaxis.label.set_fontsize(11)
    return figure, axes


def new_picture(size: tuple[float, float]) -> Figure:
    """Return a Picture (a Figure that a notebook shows) of `size` inches, without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = picture_class()(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def figure_of(axes: Axes) -> Figure:
    """Return the whole figure that `axes` belong to, also if they are in a subfigure."""
    from matplotlib.axes import Axes

    if not isinstance(axes, Axes):
        raise fail("axes", "one matplotlib Axes", type(axes).__name__, "pass one of those plt.subplots() returns")
    return axes.figure.canvas.figure


@cache
def picture_class() -> type[Figure]:
    """Make the class Picture on the first call: it needs matplotlib, which importing giveaway does not load."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A Figure that shows itself in a notebook, although pyplot does not know it."""

        def _repr_html_(self) -> str:
            """Return an <img> with the PNG, as wide as the figure's inches, and its title as the alternative text."""
            content = base64.b64encode(figure_bytes(self)).decode("ascii")
            width = round(PIXELS_PER_INCH * self.get_size_inches()[0])
            return f'<img src="data:image/png;base64,{content}" alt="{escape(title_of(self))}" width="{width}">'

    return Picture


def title_of(figure: Figure) -> str:
    """Return the figure's own title, or the first title of its axes."""
    titles = [figure.get_suptitle()]
    titles += [axes.get_title(loc=place) for axes in figure.axes for place in ("left", "center", "right")]
    return next(filter(None, titles), "")


def figure_bytes(figure: Figure, kind: str = "png", **style: Any) -> bytes:
    """Return the figure as png (150 dots per inch), svg or pdf; `style` are further rcParams."""
    from matplotlib import rc_context

    stream = io.BytesIO()
    settings: Any = {"svg.hashsalt": "giveaway", **style}  # without the salt, ids in an SVG are random
    with rc_context(settings):
        figure.savefig(stream, format=kind, dpi=150, metadata=UNDATED[kind])
    return stream.getvalue()


def image_of(figure: Figure) -> tuple[str, str]:
    """Return the address and the words of an image element: an SVG within the page."""
    content = figure_bytes(figure, "svg", **{"svg.fonttype": "none", "font.family": "sans-serif"})
    return f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}", title_of(figure)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write the figure in the format that the suffix of `path` names: .png, .svg or .pdf."""
    kind = check_choice("figure", Path(path).suffix.removeprefix(".").lower(), UNDATED)
    content = figure_bytes(figure, kind)
    write_atomically(path, lambda stream: stream.write(content))


def axis_from(values: np.ndarray) -> float:
    """Return where a logarithmic axis begins: at the smallest positive value, or above a gap of three decades or more
    (losses of 1e-12 would fill the axis with emptiness) that a tenth of the values are above."""
    ordered = np.sort(values[values > 0])
    gaps = np.flatnonzero(np.diff(np.log10(ordered)) >= GAP)
    gaps = gaps[gaps < 0.9 * len(ordered)]
    return float(ordered[gaps[-1] + 1] if len(gaps) else ordered[0]) if len(ordered) else np.inf


def legend(axes: Axes, title: str | None = None, **options: Any) -> Figure:
    """Add a legend without a frame, and return the figure."""
    options = {"loc": "best", "title": title, "title_fontsize": 10, "alignment": "left"} | options
    axes.legend(frameon=False, fontsize=10, **options)
    return figure_of(axes)


def plain(value: object) -> str:
    """Return a name that matplotlib does not read as a formula between dollar signs."""
    return shown_text(value, 24).replace("$", r"\$")
