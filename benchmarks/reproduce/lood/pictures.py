"""The LOOD paper's figures from the kept results; those on images with other settings are in docs/lood.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.drawing import image, panels
from benchmarks.reproduce.job import Arrays, read_result
from benchmarks.reproduce.lood.networks import CENTRE
from benchmarks.reproduce.lood.searches import AFTER, FOUND
from benchmarks.reproduce.lood.toys import BEYOND, ENDS, SINE
from giveaway.reporting.picture import COLOURS, GREY, PALE, blank, new_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 5  # curves of single records


def draw(results: Path) -> dict[str, Figure]:
    """Draw every picture that the results allow, by name."""
    pictures: dict[str, dict[str, Callable[[dict[str, Any], Arrays], Figure]]] = {
        "lood_retrained": {"lood_retrained": networks_and_process, "lood_perturbed": beside_the_record},
        "lood_influence": {"lood_influence": predicted_changes},
        "lood_activations": {"lood_networks": activations},
        "lood_correlation": {"lood_correlation": correlations},
        "lood_searches": {"lood_ends": ends, "lood_gallery": gallery, "lood_steps": steps, "lood_runs": runs},
        "lood_toys": {"lood_slopes": slopes, "lood_sine": steepest, "lood_placed": placed},
    }
    drawn: dict[str, Figure] = {}
    for setting, figures in pictures.items():
        kept = read_result(results, setting)
        if kept is not None:
            drawn |= {name: make(*kept) for name, make in figures.items()}
    return drawn


def networks_and_process(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figure 3a, and KL beside it."""
    own = arrays["auc"][:, arrays["auc"].shape[1] // 2]
    labels = {"nngp_auc": "AUC on NNGP", "lood_kl": "KL-LOOD on NNGP"}
    told = [found["correlation_with_auc"][name] for name in labels]
    titles = [f"Pearson {cell['pearson']:.2f}, Spearman {cell['spearman']:.2f}" for cell in told]
    figure, axes_of_all = panels((10.0, 4.2), titles)
    for axes, colour, (name, label) in zip(axes_of_all, COLOURS, labels.items(), strict=False):
        axes.scatter(arrays[name], own, s=18, color=colour, linewidths=0, alpha=0.8)
        axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1.2)
        axes.set(xlabel=label, ylabel=f"AUC on {found['rounds']} networks with and {found['rounds']} without")
    return figure


def beside_the_record(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figure 2c, and the same of the Gaussian process."""
    sides = {"auc": "networks", "nngp_auc_along": "NNGP"}
    titles = [f"The attack at the record and beside it: {title}" for title in sides.values()]
    figure, axes_of_all = panels((10.0, 4.2), titles)
    own = arrays["auc"][:, len(arrays["offsets"]) // 2]
    strongest = np.argsort(-own, kind="stable")[:SHOWN]  # some tie
    for axes, name in zip(axes_of_all, sides, strict=True):
        axes.plot(arrays["offsets"], arrays[name].T, color=PALE, linewidth=0.5)
        for colour, row in zip(COLOURS, strongest, strict=False):
            axes.plot(arrays["offsets"], arrays[name][row], color=colour, linewidth=1.4)
        axes.plot(arrays["offsets"], arrays[name].mean(0), color="black", linewidth=2.4, label="mean of all records")
        axes.axvline(0, color=GREY, linestyle=":", linewidth=1.0)
        axes.set(xlabel="distance along a random direction (pixel values)", ylabel="AUC")
        axes.legend(frameon=False)
    return figure


def predicted_changes(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figure 3c: each estimate over its largest."""
    told = found["with_the_change"]
    influence = max((name for name in told if name.startswith("influence_")), key=lambda name: told[name]["pearson"])
    labels = {"lood_mean": "mean distance, NNGP", influence: f"influence, λ {influence.rsplit('_', 1)[1]}"}
    labels["tracin"] = "TracIn"
    titles = [f"{title}\nPearson {told[name]['pearson']:.2f}" for name, title in labels.items()]
    figure, axes_of_all = panels((11.0, 3.9), titles)
    for axes, colour, name in zip(axes_of_all, COLOURS, labels, strict=False):
        axes.scatter(arrays["change"], arrays[name], s=18, color=colour, linewidths=0, alpha=0.8)
        axes.set(xlabel="change of the prediction by retraining", ylabel="estimate, over its largest")
    return figure


def activations(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figure 5 for networks, and for NNGP with both inputs."""
    labels = {"auc": "networks", "nngp_sphere": "NNGP on the sphere", "nngp_raw": "NNGP, centred pixels, σw² = 2"}
    pairs = [(arrays[f"{name}_relu"], arrays[f"{name}_gelu"]) for name in labels]
    higher = [f"GELU higher for {int((gelu > relu).sum())} of {len(relu)}" for relu, gelu in pairs]
    titles = [f"{label}\n{count}" for label, count in zip(labels.values(), higher, strict=True)]
    figure, axes_of_all = panels((11.0, 3.9), titles)
    for axes, colour, (relu, gelu) in zip(axes_of_all, COLOURS, pairs, strict=False):
        line = [min(relu.min(), gelu.min()), max(relu.max(), gelu.max())]
        axes.plot(line, line, color=GREY, linestyle=":", linewidth=1.2)
        axes.scatter(relu, gelu, s=18, color=colour, linewidths=0, alpha=0.8)
        axes.locator_params(nbins=5)
        axes.set(xlabel="AUC under ReLU", ylabel="AUC under GELU")
    return figure


def correlations(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figure 6: four panels, two kinds of records each."""
    from matplotlib.ticker import LogLocator, NullFormatter

    kernels, measures = {"rbf": "RBF", "nngp_1": "NNGP of depth 1"}, {"mean": "mean distance", "kl": "KL"}
    chosen = [(kernel, measure) for kernel in kernels for measure in measures]
    titles = [f"{measures[measure]}, {kernels[kernel]}" for kernel, measure in chosen]
    figure, axes_of_all = panels((10.0, 7.6), titles, columns=2)
    for axes, (kernel, measure) in zip(axes_of_all, chosen, strict=True):
        for colour, marker, kind in zip(COLOURS, "o^", ("images", "uniform"), strict=False):
            told = found["correlation_with_auc"][kernel][kind][measure]["spearman"]
            x, y = arrays[f"{kernel}_{kind}_{measure}"], 1.0 - arrays[f"{kernel}_{kind}_miss"]
            label = f"{kind}: Spearman {told:.3f}"
            axes.scatter(x, y, s=12, color=colour, marker=marker, linewidths=0, alpha=0.7, label=label)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=f"{measures[measure]} at the record (logarithmic)", ylabel="AUC of the best attack")
        axes.legend(frameon=False, fontsize=9)
    return figure


def ends(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figure 1c, and how near each search came."""
    told = found["cars_and_planes"]
    share, alike = arrays["cars_and_planes_share"], arrays["cars_and_planes_details"]
    title = f"{told['found']} of {told['chosen']} searches come to the record"
    figure, (left, right) = panels((10.0, 4.0), [title, "How alike the model finds query and record"])
    left.scatter(alike, share, s=12, color=COLOURS[0], linewidths=0, alpha=0.6)
    left.set(xlabel="cosine of their details, query and record", ylabel="KL at the query over that at the record")
    # in float16 the smallest are 0
    logs = np.log10(np.maximum(arrays["cars_and_planes_prediction_kl"], 1e-7))
    bins = np.linspace(logs.min(), logs.max(), 31)
    near = share > FOUND
    for colour, side, label in ((COLOURS[0], near, "came to the record"), (COLOURS[1], ~near, "ended lower")):
        right.hist(logs[side], bins=bins, color=colour, alpha=0.75, label=label)
    right.set(xlabel="log₁₀ KL of the two predictions", ylabel="searches")
    right.legend(frameon=False)
    return figure


def gallery(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figures 14–19: records above, queries below, by how far the search fell short."""
    share = arrays["cars_and_planes_share"][arrays["cars_and_planes_shown"].astype(int)]
    half = -(-len(share) // 2)
    figure = new_picture((1.1 * half, 5.4))
    grid = figure.subplots(4, half, squeeze=False)
    title = "Records (above) and where their search ended (below), with its share of the record's KL"
    figure.suptitle(title, fontsize=11)
    for axes in grid.flat:
        axes.axis("off")
    for place, value in enumerate(share):
        row, column = 2 * (place // half), place % half
        _show(grid[row, column], arrays["cars_and_planes_shown_records"][place])
        _show(grid[row + 1, column], stretched(arrays["cars_and_planes_shown_queries"][place]), f"{value:.3f}")
    return figure


def steps(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figure 9: one search in images, and all of them as curves (Figure 8a is where they end)."""
    figure = new_picture((11.0, 3.0))
    grid = figure.add_gridspec(1, 6)
    for place, after in enumerate(AFTER):
        label = f"after {after} steps: {found['by_step']['shown'][str(after)]:.2g}"
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
    """Draw Figures 8b and 10: the record left of its query, KL at the query over that at the record below."""
    sides = {
        "convolutional": ("8b: CNN", found["convolutional"]["share_of_own_kl"]),
        "normalized": ("10: CNN, normalized records", found["normalized"]["over_the_record"]),
    }
    count = min(len(shares) for _, shares in sides.values())
    figure = new_picture((3.4 * count, 4.6))
    grid = figure.subplots(2, 2 * count, squeeze=False)
    for row, (name, (title, shares)) in enumerate(sides.items()):
        grid[row, 0].set_title(title, fontsize=11, loc="left")
        for place, share in enumerate(shares[:count]):
            record, query = arrays[f"{name}_records"][place], arrays[f"{name}_queries"][place]
            _show(grid[row, 2 * place], record, "record")
            asked = stretched(query) if name == "convolutional" else query
            _show(grid[row, 2 * place + 1], asked, f"query: {share:.4f}")
    return figure


def stretched(query: np.ndarray) -> np.ndarray:
    """Give a query all the contrast that pixels allow: without biases a kernel reads only the direction from grey."""
    away = query.astype(np.float64) - CENTRE
    return CENTRE + away * (CENTRE / np.abs(away).max())


def _show(axes: Axes, pixels: np.ndarray, label: str | None = None) -> None:
    image(axes, pixels.round().clip(0, 255).astype(np.uint8), label)


def slopes(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figures 2a and 11a: curves over the queries of one draw, each over its largest value, as in the next two."""
    titles = ["KL at every query, records in [−5, 5]", "Slope of the mean distance at the record added"]
    figure, (left, right) = panels((10.0, 3.9), titles)
    _curve(left, arrays["domain_kl"], ENDS, COLOURS[0], "KL")
    _mark(left, arrays["domain_records"], float(arrays["domain_record"][0]), "the record added")
    shown = found["steepest"]["shown"]
    _curve(right, arrays["steepest_slope"], ENDS, COLOURS[1], f"slope, at most {shown['largest']['slope']:.2g}")
    _mark(right, arrays["steepest_records"], shown["steepest"], "S*")
    right.set_xlabel("where the record is added")
    return figure


def steepest(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figures 7 and 11b: Algorithm 1's record added."""
    told = found["steepest"]["shown"]
    names = {"mean": "mean distance", "log_ratio": "log ratio of variances", "kl": "KL"}
    titles = [f"{name}, at most {told['largest'][key]:.3g}" for key, name in names.items()]
    figure, axes_of_all = panels((11.0, 3.9), titles)
    for axes, colour, key in zip(axes_of_all, COLOURS, names, strict=False):
        _curve(axes, arrays[f"steepest_{key}"], ENDS, colour, None)
        _line(axes, told["mean_largest_at"], "Q*", color="black", linestyle="--", linewidth=1.2)
        _mark(axes, arrays["steepest_records"], told["steepest"], "S*")
    return figure


def placed(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Draw Figure 12."""
    told = {f"{place:g}": found["placed"][f"{place:g}"]["shown"] for place in SINE["placed"]}
    titles = [f"S at {name.replace('-', '−')}: at most {cell['largest']:.2g}" for name, cell in told.items()]
    figure, axes_of_all = panels((11.0, 3.9), titles)
    for axes, colour, (name, cell) in zip(axes_of_all, COLOURS, told.items(), strict=False):
        _curve(axes, arrays[f"placed_mean_{name}"], BEYOND, colour, "mean distance")
        _line(axes, cell["mean_largest_at"], "Q*", color="black", linestyle="--", linewidth=1.2)
        _mark(axes, arrays["placed_records"], float(name), "S")
    return figure


def _curve(axes: Axes, values: np.ndarray, far: float, colour: str, label: str | None) -> None:
    axes.plot(np.linspace(-far, far, len(values)), values, color=colour, linewidth=2.0, label=label)
    axes.set(xlabel="query", ylabel="over its largest")


def _mark(axes: Axes, records: np.ndarray, added: float, label: str) -> None:
    _line(axes, added, label, color=GREY, linestyle=":", linewidth=1.8)
    axes.scatter(records, np.zeros(len(records)), s=22, color="#D00000", zorder=3, label="records")
    axes.set_ylim(-0.06, 1.4)  # room for the legend
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.legend(frameon=False, fontsize=9, loc="upper center", ncols=2)


def _line(axes: Axes, at: float, label: str, **style: Any) -> None:
    axes.plot([at, at], [0, 1.05], label=label, **style)
