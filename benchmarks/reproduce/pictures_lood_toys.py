"""Figures 2a, 7, 11 and 12 of the LOOD paper: curves over the queries of one draw, each over its largest value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.reproduce.kept_results import Arrays
from benchmarks.reproduce.lood_toys import BEYOND, ENDS
from benchmarks.reproduce.printed_lood import SINE
from giveaway.reporting.picture import COLOURS, GREY, blank, new_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def slopes(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figures 2a and 11a."""
    figure = new_picture((10.0, 3.9))
    titles = ["KL at every query, records in [−5, 5]", "Slope of the mean distance at the record added"]
    left, right = _panels(figure, titles)
    _curve(left, arrays["domain_kl"], ENDS, COLOURS[0], "KL")
    _mark(left, arrays["domain_records"], float(arrays["domain_record"][0]), "the record added")
    largest = found["steepest"]["shown"]["largest"]["slope"]
    _curve(right, arrays["steepest_slope"], ENDS, COLOURS[1], f"slope, at most {largest:.2g}")
    _mark(right, arrays["steepest_records"], found["steepest"]["shown"]["steepest"], "S*")
    right.set_xlabel("where the record is added")
    return figure


def steepest(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figures 7 and 11b: Algorithm 1's record added."""
    figure = new_picture((11.0, 3.9))
    told = found["steepest"]["shown"]
    names = {"mean": "mean distance", "log_ratio": "log ratio of variances", "kl": "KL"}
    titles = [f"{name}, at most {told['largest'][key]:.3g}" for key, name in names.items()]
    for place, (axes, key) in enumerate(zip(_panels(figure, titles), names, strict=True)):
        _curve(axes, arrays[f"steepest_{key}"], ENDS, COLOURS[place], None)
        _line(axes, told["mean_largest_at"], "Q*", color="black", linestyle="--", linewidth=1.2)
        _mark(axes, arrays["steepest_records"], told["steepest"], "S*")
    return figure


def placed(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figure 12."""
    figure = new_picture((11.0, 3.9))
    names = [f"{place:g}" for place in SINE["placed"]]
    told = [found["placed"][name]["shown"] for name in names]
    titles = [
        f"S at {name.replace('-', '−')}: at most {cell['largest']:.2g}" for name, cell in zip(names, told, strict=True)
    ]
    for place, axes in enumerate(_panels(figure, titles)):
        _curve(axes, arrays[f"placed_mean_{names[place]}"], BEYOND, COLOURS[place], "mean distance")
        _line(axes, told[place]["mean_largest_at"], "Q*", color="black", linestyle="--", linewidth=1.2)
        _mark(axes, arrays["placed_records"], SINE["placed"][place], "S")
    return figure


def _panels(figure: Figure, titles: Sequence[str]) -> list[Axes]:
    return [
        blank(title, (0, 0), figure.add_subplot(1, len(titles), place + 1))[1] for place, title in enumerate(titles)
    ]


def _curve(axes: Axes, values: np.ndarray, ends: float, colour: str, label: str | None) -> None:
    axes.plot(np.linspace(-ends, ends, len(values)), values, color=colour, linewidth=2.0, label=label)
    axes.set_xlabel("query")
    axes.set_ylabel("over its largest")


def _mark(axes: Axes, records: np.ndarray, added: float, label: str) -> None:
    _line(axes, added, label, color=GREY, linestyle=":", linewidth=1.8)
    axes.scatter(records, np.zeros(len(records)), s=22, color="#D00000", zorder=3, label="records")
    axes.set_ylim(-0.06, 1.4)  # room for the legend
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.legend(frameon=False, fontsize=9, loc="upper center", ncols=2)


def _line(axes: Axes, at: float, label: str, **style: Any) -> None:
    axes.plot([at, at], [0, 1.05], label=label, **style)
