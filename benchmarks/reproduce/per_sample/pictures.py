"""Figures 2 to 7 of the per-sample paper from the kept summaries; Figure 6 shows records, and needs the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.data import cifar10
from benchmarks.drawing import image, panels
from benchmarks.reproduce.job import Arrays, read_result
from benchmarks.reproduce.page import read_paper
from benchmarks.reproduce.per_sample.data import bloodmnist_images
from giveaway.reporting.picture import COLOURS, GREY, new_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = read_paper("per_sample")
SHORT, NAMES = PAPER["settings"], PAPER["scores"]
WHOLE_NETWORK = ("california_mlp", "cifar10_cnn")
OF_HEAD = ("loss", "gradient_norm", "influence", "newton", "fused")
WITH_WHOLE = ("loss", "influence", "newton", "fused", "whole_network")
COLOUR = dict(zip(("loss", "fused", "newton", "gradient_norm", "influence"), COLOURS, strict=True))
COLOUR["whole_network"] = "black"
WIDTH = {"influence": 3.6, "newton": 2.2}  # what lies on each other stays visible
ATTACKS = {"lira": "LiRA", "rmia": "RMIA", "shokri": "Shokri's attack"}
IMAGES = {"bloodmnist_head": bloodmnist_images, "cifar10_cnn": cifar10}
LOWEST = 1e-3  # recall that is still drawn
COLUMNS = 4


def draw(results: Path, data: Path | None = None) -> dict[str, Figure]:
    """Draw every picture that the results allow, by name."""
    every = {name: found for name in PAPER["printed"]["table_1"] if (found := read_result(results, name)) is not None}
    kept = {name: arrays for name, (_, arrays) in every.items()}
    whole = {name: arrays for name, arrays in kept.items() if name in WHOLE_NETWORK}
    figures: dict[str, Figure] = {}
    if kept:
        for attack, title in ATTACKS.items():
            figures[f"mia_recall_{attack}"] = recalls(kept, attack, f"What scores find of the top of {title}", OF_HEAD)
        figures["mia_loss_influence"] = loss_and_influence(kept)
    if whole:
        title = "What scores find of the top of LiRA, with the whole network"
        figures["mia_recall_whole"] = recalls(whole, "lira", title, WITH_WHOLE)
    shown = {name: every[name][0]["shown"] for name in IMAGES if name in every}
    if data is not None and shown:
        figures["mia_images"] = highest(shown, {name: IMAGES[name](data)[0] for name in shown})
    return figures


def recalls(kept: dict[str, Arrays], attack: str, title: str, scores: Sequence[str]) -> Figure:
    """Figures 2 to 5: recall of the top share in as many kept; mean ± deviation over targets, dashed: the first."""
    figure, axes_of_all = _one_a_setting(title, list(kept))
    for axes, arrays in zip(axes_of_all, kept.values(), strict=True):
        shares = arrays["shares"]
        for score in scores:
            if f"curve_{attack}_{score}" not in arrays:
                continue
            mean, spread, first = arrays[f"curve_{attack}_{score}"]
            middle, single, low, high = np.maximum([mean, first, mean - spread, mean + spread], LOWEST / 10)
            colour = COLOUR[score]
            axes.plot(shares, middle, color=colour, linewidth=WIDTH.get(score, 1.2))
            axes.plot(shares, single, color=colour, linewidth=0.6, linestyle="--", alpha=0.6)
            axes.fill_between(shares, low, high, color=colour, alpha=0.07, linewidth=0)
        axes.plot([LOWEST, 1], [LOWEST, 1], color=GREY, linestyle=":", linewidth=1.2)
        axes.set(xscale="log", yscale="log", xlim=(max(shares[0], 1e-4), 1), ylim=(LOWEST, 1.2))
        axes.set_xlabel("share sought and kept")
    for axes in axes_of_all[::COLUMNS]:
        axes.set_ylabel("share found")
    _legend(
        figure, axes_of_all[0], {**{NAMES[score].replace("**", ""): COLOUR[score] for score in scores}, "chance": GREY}
    )
    return figure


def loss_and_influence(kept: dict[str, Arrays]) -> Figure:
    """Figure 7: a point a training record of the first target, coloured by LiRA's success, the most exposed on top."""
    from matplotlib.ticker import NullFormatter

    figure, axes_of_all = _one_a_setting("Loss and influence of the first target's records", list(kept))
    for axes, arrays in zip(axes_of_all, kept.values(), strict=True):
        success = arrays["success_lira"][arrays["target_rows"].astype(np.int64)]
        rows = np.argsort(success, kind="stable")
        points = axes.scatter(
            10 ** arrays["target_loss"][rows],
            10 ** arrays["target_influence"][rows],
            c=success[rows],
            cmap="viridis_r",
            vmin=0.5,
            vmax=1,
            s=3,
            linewidths=0,
        )
        axes.set(xscale="log", yscale="log")
        for axis, name in ((axes.xaxis, "loss"), (axes.yaxis, "influence")):
            values = arrays[f"target_{name}"]
            axis.set_view_interval(10 ** np.quantile(values, 0.002), 10 ** (values.max() + 0.2), ignore=True)
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("loss")
    for axes in axes_of_all[::COLUMNS]:
        axes.set_ylabel("influence")
    bar = figure.colorbar(points, ax=axes_of_all, extend="min", shrink=0.9, pad=0.01)
    bar.set_label("LiRA's success rate")
    bar.outline.set_visible(False)
    return figure


def highest(shown: dict[str, Any], images: dict[str, np.ndarray]) -> Figure:
    """Figure 6: ten images with the highest scores of each kind, from the left."""
    rows = [(name, score) for name in shown for score in ("newton", "influence", "fused")]
    figure = new_picture((9.0, 0.95 * len(rows) + 0.4))
    figure.suptitle("Highest scores of the first target", x=0.01, ha="left", fontsize=12)
    grid = figure.subplots(len(rows), 10, squeeze=False)
    for line, (name, score) in zip(grid, rows, strict=True):
        for axes, number in zip(line, shown[name][score]["highest"], strict=True):
            image(axes, images[name][number])
        label = f"{SHORT[name]}\n{NAMES[score].replace('**', '')}"
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9)
    return figure


def _one_a_setting(title: str, names: list[str]) -> tuple[Figure, list[Axes]]:
    """Make one panel a setting, four in a row."""
    columns = min(COLUMNS, len(names))
    size = (max(3.0 * columns, 6.4) + 0.4, 2.9 * -(-len(names) // columns) + 0.9)
    figure, axes_of_all = panels(size, [""] * len(names), columns)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    for axes, name in zip(axes_of_all, names, strict=True):
        axes.set_title(SHORT[name], fontsize=10, loc="left")
        axes.tick_params(labelsize=8)
    return figure, axes_of_all


def _legend(figure: Figure, axes: Axes, colours: dict[str, str]) -> None:
    handles = [
        axes.plot([], [], color=colour, linestyle=":" if name == "chance" else "-")[0]
        for name, colour in colours.items()
    ]
    wide = figure.get_size_inches()[0] > 9
    columns = len(colours) if wide else -(-len(colours) // 2)
    figure.legend(handles, list(colours), loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
