"""Figures 1 to 5 of the GLS paper from the kept results; Figure 3 shows records, and needs the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import cifar10_training
from benchmarks.drawing import image
from benchmarks.reproduce.gls.training import DEPTHS
from benchmarks.reproduce.gls.truth import GRID
from benchmarks.reproduce.job import Arrays, read_result
from benchmarks.reproduce.page import words
from giveaway.figures import tradeoff_curves
from giveaway.reporting.picture import COLOURS, GREY, blank, new_picture
from giveaway.theory import fixed_design

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(results: Path, data: Path | None = None) -> dict[str, Figure]:
    """Draw every picture that the results allow, by name."""
    every = {name: found for name in ("gls_resnet18", "gls_full_model") if (found := read_result(results, name))}
    paper = words("gls", {name: found for name, (found, _) in every.items()})
    figures = {"gls_theory": theory(paper["printed"]["leverages"])}
    if "gls_resnet18" not in every:
        return figures
    found, arrays = every["gls_resnet18"]
    figures["gls_depths"] = by_depth(paper)
    figures["gls_tradeoff"] = measured_tradeoff(found, arrays)
    if "drawn_at" in arrays:
        figures["gls_tsne"] = one_class(found, arrays)
    if data is not None and "extremes" in found:
        figures["gls_extremes"] = extremes(found, cifar10_training(data)[0])
    return figures


def by_depth(paper: dict[str, Any]) -> Figure:
    """Draw Figure 1: rank correlation with the LiRA score, and seconds, by depth."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    figure, axes = blank("GLS with what shadow models say, and its cost, by depth", (6.4, 4.2))
    measured = paper["depths"]
    depths = [depth for depth in paper["shown"] if depth in measured]
    joined = [depth for depth in depths if depth in DEPTHS]  # of the same targets, or some of them
    seconds = [measured[depth]["seconds"]["mean"] for depth in depths]
    printed = [paper["printed"]["table_2"]["lira"][depth] for depth in joined]
    beside = axes.twinx()
    beside.bar(depths, seconds, color="#DDE8F0", width=0.6)
    beside.set_yscale("log")
    beside.set_ylim(min(seconds) / 10, 2 * max(seconds))
    beside.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    beside.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    beside.yaxis.set_minor_locator(NullLocator())
    beside.set_ylabel("seconds for all training records of a target")
    axes.set_zorder(beside.get_zorder() + 1)
    axes.patch.set_visible(False)
    lowest = 0.0
    for place, (metric, title) in enumerate({"lira": "LiRA score", "effect_size": "effect size"}.items()):
        colour, label = COLOURS[2 - 2 * place], f"ours, {title}"
        for part in (joined, [depth for depth in depths if depth not in joined]):
            if not part:
                continue
            ours = [measured[depth]["all"]["gls_trace"][metric] for depth in part]
            mean, width = zip(*((value["mean"], value["half_width"]) for value in ours), strict=True)
            axes.errorbar(part, mean, width, color=colour, marker="os"[place], capsize=4, label=label)
            lowest = min(lowest, *(m - w for m, w in zip(mean, width, strict=True)))
            label = None
    style = {"color": GREY, "marker": "D", "linestyle": ":", "capsize": 4, "label": "printed, LiRA score"}
    axes.errorbar(joined, *zip(*printed, strict=True), **style)
    axes.set_ylabel("Spearman of GLS (trace)")
    axes.set_ylim(lowest, 1)
    early = [measured[depth]["doubtful"] for depth in depths]
    names = [depth.replace(", ", ",\n") + "*" * mark for depth, mark in zip(depths, early, strict=True)]
    axes.set_xticks(range(len(depths)), names)
    if any(early):
        axes.set_xlabel(f"* error of solves {paper['limits']['doubtful']} or more")
    axes.legend(frameon=False, loc="upper left")
    return figure


def one_class(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figure 2: t-SNE of one class, coloured by the leverage of the last layer."""
    figure, axes = blank(f"“{found['drawn']['class']}” as the last layer sees it (t-SNE)", (6.2, 5.2))
    leverage = arrays["drawn_leverage"]
    order = np.argsort(leverage)  # the highest on top
    x, y = arrays["drawn_at"][order].T
    points = axes.scatter(x, y, c=leverage[order], s=6, cmap="viridis", linewidths=0)
    figure.colorbar(points, ax=axes, label="GLS (trace), logarithm to the base of 10")
    axes.set(xticks=[], yticks=[])
    return figure


def extremes(found: dict[str, Any], records: np.ndarray) -> Figure:
    """Draw Figure 3: the images with the highest and the lowest leverage."""
    rows = [found["extremes"][side] for side in ("highest", "lowest")]
    figure = new_picture((1.0 * len(rows[0]), 2.6))
    figure.suptitle("Highest GLS (above) and lowest (below)", x=0.01, ha="left", fontsize=12)
    grid = figure.subplots(2, len(rows[0]), squeeze=False)
    for line, numbers in zip(grid, rows, strict=True):
        for axes, number in zip(line, numbers, strict=True):
            image(axes, records[number])
    return figure


def measured_tradeoff(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figure 4: LiRA's errors on the 2 % of highest and of lowest leverage, mean and middle 95 % of the models."""
    depth = next(depth for depth in DEPTHS if depth in found["depths"])
    attacks = found["depths"][depth]["tradeoff"]["attacks"]
    figure, axes = blank(f"LiRA on the highest and lowest 2 % of GLS, {attacks} attacks", (5.6, 5.0))
    curves = arrays[f"tradeoff_{DEPTHS.index(depth)}"]
    for (mean, low, high), name, colour in zip(curves, ("highest", "lowest"), (COLOURS[1], COLOURS[0]), strict=True):
        axes.plot(GRID, mean, color=colour, linewidth=1.8, label=f"{name} 2 %")
        axes.fill_between(GRID, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot([0, 1], [1, 0], color=GREY, linestyle=":", linewidth=1.3, label="chance")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set(
        xlabel="false-positive rate α: share of non-members accused",
        ylabel="false-negative rate β: share of members missed",
    )
    axes.legend(frameon=False)
    return figure


def theory(leverages: Sequence[float]) -> Figure:
    """Draw Figure 5: trade-off curves of the best attack in the linear model, one output."""
    curves = {f"leverage {h:g}": fixed_design.tradeoff(h, m=1) for h in leverages}
    return tradeoff_curves(curves, title="Errors of the best attack by leverage, m = 1")
