"""The LOOD paper's figures from the kept results: here 2c, 3a, 3c, 5 (networks) and 6; others are in docs/lood.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.reproduce import pictures_lood_searches, pictures_lood_toys
from benchmarks.reproduce.kept_results import Arrays, read_kept
from giveaway.reporting.picture import COLOURS, GREY, PALE, blank, new_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 5  # curves of single records


def draw(results: Path, data: Path | None = None) -> dict[str, Figure]:
    """Every picture that the results allow, by name."""
    pictures: dict[str, dict[str, Callable[[dict[str, Any], Arrays], Figure]]] = {
        "lood_retrained": {"lood_retrained": networks_and_process, "lood_perturbed": beside_the_record},
        "lood_influence": {"lood_influence": predicted_changes},
        "lood_activations": {"lood_networks": activations},
        "lood_correlation": {"lood_correlation": correlations},
        "lood_searches": {
            "lood_ends": pictures_lood_searches.ends,
            "lood_gallery": pictures_lood_searches.gallery,
            "lood_steps": pictures_lood_searches.steps,
            "lood_runs": pictures_lood_searches.runs,
        },
        "lood_toys": {
            "lood_slopes": pictures_lood_toys.slopes,
            "lood_sine": pictures_lood_toys.steepest,
            "lood_placed": pictures_lood_toys.placed,
        },
    }
    drawn: dict[str, Figure] = {}
    for setting, figures in pictures.items():
        kept = read_kept(results, setting)
        if kept is not None:
            drawn |= {name: make(*kept) for name, make in figures.items()}
    return drawn


def networks_and_process(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figure 3a, and KL beside it."""
    figure = new_picture((10.0, 4.2))
    own = arrays["auc"][:, arrays["auc"].shape[1] // 2]
    for place, (name, label) in enumerate((("nngp_auc", "AUC on NNGP"), ("lood_kl", "KL-LOOD on NNGP"))):
        told = found["correlation_with_auc"][name]
        title = f"Pearson {told['pearson']:.2f}, Spearman {told['spearman']:.2f}"
        _, axes = blank(title, (0, 0), figure.add_subplot(1, 2, place + 1))
        axes.scatter(arrays[name], own, s=18, color=COLOURS[place], linewidths=0, alpha=0.8)
        axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1.2)
        axes.set_xlabel(label)
        axes.set_ylabel(f"AUC on {found['rounds']} networks with and {found['rounds']} without")
    return figure


def beside_the_record(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figure 2c, and the same of the Gaussian process."""
    figure = new_picture((10.0, 4.2))
    sides = {"auc": "networks", "nngp_auc_along": "NNGP"}
    for place, (name, title) in enumerate(sides.items()):
        _, axes = blank(f"The attack at the record and beside it: {title}", (0, 0), figure.add_subplot(1, 2, place + 1))
        own = arrays["auc"][:, len(arrays["offsets"]) // 2]
        strongest = np.argsort(-own, kind="stable")[:SHOWN]  # some tie
        axes.plot(arrays["offsets"], arrays[name].T, color=PALE, linewidth=0.5)
        for colour, row in zip(COLOURS, strongest, strict=False):
            axes.plot(arrays["offsets"], arrays[name][row], color=colour, linewidth=1.4)
        axes.plot(arrays["offsets"], arrays[name].mean(0), color="black", linewidth=2.4, label="mean of all records")
        axes.axvline(0, color=GREY, linestyle=":", linewidth=1.0)
        axes.set_xlabel("distance along a random direction (pixel values)")
        axes.set_ylabel("AUC")
        axes.legend(frameon=False)
    return figure


def predicted_changes(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figure 3c: each estimate over its largest."""
    told = found["with_the_change"]
    influence = max((name for name in told if name.startswith("influence_")), key=lambda name: told[name]["pearson"])
    titles = {
        "lood_mean": "mean distance, NNGP",
        influence: f"influence, λ {influence.rsplit('_', 1)[1]}",
        "tracin": "TracIn",
    }
    figure = new_picture((11.0, 3.9))
    for place, (name, title) in enumerate(titles.items()):
        heading = f"{title}\nPearson {told[name]['pearson']:.2f}"
        _, axes = blank(heading, (0, 0), figure.add_subplot(1, len(titles), place + 1))
        axes.scatter(arrays["change"], arrays[name], s=18, color=COLOURS[place], linewidths=0, alpha=0.8)
        axes.set_xlabel("change of the prediction by retraining")
        axes.set_ylabel("estimate, over its largest")
    return figure


def activations(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figure 5 for networks, and NNGP in both settings."""
    titles = {"auc": "networks", "nngp_sphere": "NNGP on the sphere", "nngp_raw": "NNGP, centred pixels, σw² = 2"}
    figure = new_picture((11.0, 3.9))
    for place, (name, title) in enumerate(titles.items()):
        relu, gelu = arrays[f"{name}_relu"], arrays[f"{name}_gelu"]
        heading = f"{title}\nGELU higher for {int((gelu > relu).sum())} of {len(relu)}"
        _, axes = blank(heading, (0, 0), figure.add_subplot(1, len(titles), place + 1))
        ends = [min(relu.min(), gelu.min()), max(relu.max(), gelu.max())]
        axes.plot(ends, ends, color=GREY, linestyle=":", linewidth=1.2)
        axes.scatter(relu, gelu, s=18, color=COLOURS[place], linewidths=0, alpha=0.8)
        axes.locator_params(nbins=5)
        axes.set_xlabel("AUC under ReLU")
        axes.set_ylabel("AUC under GELU")
    return figure


def correlations(found: dict[str, Any], arrays: Arrays) -> Figure:
    """Figure 6: four panels, two kinds of records each."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = new_picture((10.0, 7.6))
    kernels, measures = {"rbf": "RBF", "nngp_1": "NNGP of depth 1"}, {"mean": "mean distance", "kl": "KL"}
    panels = [(kernel, measure) for kernel in kernels for measure in measures]
    for place, (kernel, measure) in enumerate(panels):
        title = f"{measures[measure]}, {kernels[kernel]}"
        _, axes = blank(title, (0, 0), figure.add_subplot(2, 2, place + 1))
        for colour, marker, kind in zip(COLOURS, "o^", ("images", "uniform"), strict=False):
            told = found["correlation_with_auc"][kernel][kind][measure]["spearman"]
            x, y = arrays[f"{kernel}_{kind}_{measure}"], 1.0 - arrays[f"{kernel}_{kind}_miss"]
            label = f"{kind}: Spearman {told:.3f}"
            axes.scatter(x, y, s=12, color=colour, marker=marker, linewidths=0, alpha=0.7, label=label)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(f"{measures[measure]} at the record (logarithmic)")
        axes.set_ylabel("AUC of the best attack")
        axes.legend(frameon=False, fontsize=9)
    return figure
