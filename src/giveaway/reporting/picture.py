"""The empty picture every figure starts from: one style, bytes that repeat, shown by a notebook as it is.

matplotlib is imported when a picture is drawn, and only through its objects: nothing global of the caller's changes.
"""

from __future__ import annotations

import base64
import io
from functools import cache
from html import escape
from typing import TYPE_CHECKING

from giveaway.checks import check_choice, fail

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UNDATED = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
PIXELS_PER_INCH = 96  # of a web page


def blank(title: str, size: tuple[float, float], axes: Axes | None = None) -> tuple[Figure, Axes]:
    """Axes with a title in the style of the others: the caller's, or those of a new picture of `size` inches."""
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
    """A Picture (a Figure that a notebook shows) of `size` inches, without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = picture_class()(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def figure_of(axes: Axes) -> Figure:
    """The whole figure that `axes` belong to, also from within a subfigure."""
    from matplotlib.axes import Axes

    if not isinstance(axes, Axes):
        raise fail("axes", "one matplotlib Axes", type(axes).__name__, "pass one of those plt.subplots() returns")
    return axes.figure.canvas.figure


@cache
def picture_class() -> type[Figure]:
    """Picture, made on the first call: a subclass of Figure needs matplotlib, which importing giveaway does not."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A Figure that shows itself in a notebook, though pyplot does not know it."""

        def _repr_html_(self) -> str:
            return picture_html(self)

    return Picture


def picture_html(figure: Figure) -> str:
    """An <img> that holds the PNG, as wide as the figure's inches, with its title for those who cannot see it."""
    content = base64.b64encode(figure_bytes(figure)).decode("ascii")
    width = round(PIXELS_PER_INCH * figure.get_size_inches()[0])
    return f'<img src="data:image/png;base64,{content}" alt="{escape(title_of(figure))}" width="{width}">'


def title_of(figure: Figure) -> str:
    """The figure's own title, else the first there is of its axes."""
    titles = [figure.get_suptitle()]
    titles += [axes.get_title(loc=place) for axes in figure.axes for place in ("left", "center", "right")]
    return next(filter(None, titles), "")


def figure_bytes(figure: Figure, kind: str = "png") -> bytes:
    """The picture as png (150 dots an inch), svg or pdf; the same figure gives the same bytes."""
    from matplotlib import rc_context

    check_choice("kind", kind, UNDATED)
    stream = io.BytesIO()
    with rc_context({"svg.hashsalt": "giveaway"}):  # ids in an SVG are random without it
        figure.savefig(stream, format=kind, dpi=150, metadata=UNDATED[kind])
    return stream.getvalue()
