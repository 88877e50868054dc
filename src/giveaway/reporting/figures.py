"""Pictures of a validation: recall curves, ROC curves, and who is exposed by loss and influence.

With `axes` a picture is drawn there, and their figure returned, instead of a new one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from giveaway.checks import as_tensor, check_choice, check_finite, fail
from giveaway.evaluation import AttackSummary, recall_at, recall_curve
from giveaway.evaluation.ranking import log_spaced_counts
from giveaway.reporting.picture import blank, figure_bytes
from giveaway.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")  # Okabe and Ito's
DASHES: tuple[Any, ...] = (
    "-",
    (0, (6, 1.5)),
    (0, (3, 1.5)),
    (0, (6, 1.5, 1, 1.5)),
    (0, (1, 1)),
)  # curves often lie on each other
GREY, PALE = "#555555", "#C8C8C8"
KEPT = 0.05  # the share whose recall the legend states
MOST_POINTS = 20_000


def recall_curves(
    scores: Mapping[str, ArrayLike],
    truth: ArrayLike,
    *,
    top: float = 0.01,
    ranked_by: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """How much of the true top each score finds, for every share of the records kept.

    The five highest curves (by their mean over the logarithmic axis) have a colour, and so has `ranked_by`; the others
    are grey.
    """
    if ranked_by is not None:
        check_choice("ranked_by", ranked_by, scores)
    known = _finite("truth", truth)
    columns = {name: _finite(f"scores[{name!r}]", values) for name, values in scores.items()}
    curves = {name: recall_curve(values, known, top) for name, values in columns.items()}
    height = {name: float(recalls.mean()) for name, (_, recalls) in curves.items()}
    figure, axes = blank(
        f"What each score finds of the {percent(top)} most exposed of {len(known):,} records", (7.2, 4.6), axes
    )
    kept = max(KEPT, 1 / len(known))
    labels = {
        name: f"{name}: {100 * recall_at(values, known, top, kept):.0f} % in {percent(kept)}"
        for name, values in columns.items()
    }
    _draw(axes, curves, height, labels, first=ranked_by, others="scores", drawstyle="default")
    keeps = log_spaced_counts(len(known)) / len(known)
    axes.plot(keeps, keeps, color=GREY, linestyle=":", linewidth=1.3, label="chance", zorder=1)
    axes.set(xscale="log", xlim=(keeps[0], 1), ylim=(0, 1.01))
    axes.set_xlabel("share of records kept, highest scores first (percent, logarithmic)")
    axes.set_ylabel(f"share of the true top {percent(top)} found (percent)")
    axes.xaxis.set_major_formatter(lambda value, _: percent(value))
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    legend(axes, "found among those kept")
    return figure


def roc_curves(attacks: Sequence[AttackSummary], *, axes: Axes | None = None) -> Figure:
    """True against false positives of each attack, both logarithmic, down to one false positive."""
    if len({attack.attack for attack in attacks}) < len(attacks):
        raise fail("attacks", "a different name for each", "repeated names", "rename them")
    curves = {}
    for attack in attacks:
        rates = log_spaced_counts(attack.nonmembers) / attack.nonmembers
        allowed = np.searchsorted(attack.false_positives, rates + 1e-12, side="right") - 1
        curves[attack.attack] = (rates, attack.true_positives[allowed])
    figure, axes = blank("What the attack finds at each rate of false alarms", (6.2, 5.4), axes)
    labels = {a.attack: f"{a.attack}: AUC {a.auc.value:.3f} ({a.auc.low:.3f}–{a.auc.high:.3f})" for a in attacks}
    _draw(
        axes,
        curves,
        {a.attack: a.auc.value for a in attacks},
        labels,
        first=None,
        others="attacks",
        drawstyle="steps-post",
    )
    nonmembers = max(attack.nonmembers for attack in attacks)
    least = 1 / nonmembers
    edge = least / 2
    axes.plot([edge, 1], [edge, 1], color=GREY, linestyle=":", linewidth=1.3, label="chance", zorder=1)
    axes.axvspan(edge, least, color="#EEEEEE", linewidth=0, zorder=0)
    axes.axvline(least, color=GREY, linewidth=0.8, label=f"1 of {nonmembers:,} non-members:\nno smaller rate is known")
    axes.set(xscale="log", yscale="log", xlim=(edge, 1), ylim=(edge, 1.1))
    axes.set_xlabel("false-positive rate: share of non-members called members")
    axes.set_ylabel("true-positive rate: share of members called members")
    legend(axes)
    return figure


def loss_by_influence(
    loss: ArrayLike,
    influence: ArrayLike,
    success: ArrayLike,
    *,
    most_points: int = MOST_POINTS,
    axes: Axes | None = None,
) -> Figure:
    """A point a record at its loss and influence, coloured by the attack's success rate, the most exposed on top.

    Above `most_points` a random choice of the records is drawn. Records where either value is not positive have no
    place on logarithmic axes; the title counts them.
    """
    values = [_finite(name, v) for name, v in (("loss", loss), ("influence", influence), ("success", success))]
    if len({len(column) for column in values}) > 1:
        got = f"{', '.join(str(len(column)) for column in values)} values"
        raise fail("loss, influence, success", "one value a record", got, "align them")
    x, y, rate = values
    if rate.min() < 0 or rate.max() > 1:
        raise fail("success", "rates from 0 to 1", f"{rate.min():g} to {rate.max():g}", "pass a share of models")
    if most_points < 1:
        raise fail("most_points", "at least 1", f"{most_points}", "allow more points")
    rows = np.flatnonzero((x > 0) & (y > 0))
    if not len(rows):
        raise fail("loss, influence", "positive values in some record", "none", "draw scores that are not all zero")
    hidden = len(x) - len(rows)
    rows, title = sample(rows, most_points, "records")
    title += f"; {hidden:,} more are not positive" if hidden else ""
    rows = rows[np.argsort(rate[rows], kind="stable")]
    figure, axes = blank(f"Exposure by loss and influence: {title}", (7.0, 5.0), axes)
    points = axes.scatter(
        x[rows], y[rows], c=rate[rows], cmap="viridis_r", vmin=0.5, vmax=1, s=7, linewidths=0, rasterized=True
    )
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("loss of the record in the audited model (logarithmic)")
    axes.set_ylabel("influence of the record on itself (logarithmic)")
    bar = axes.figure.colorbar(points, ax=axes, extend="min" if rate[rows].min() < 0.5 else "neither", pad=0.02)
    bar.set_label("attack's success rate over models (0.5 is chance)", fontsize=11)
    bar.outline.set_visible(False)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write the picture as the suffix of `path` says: .png, .svg or .pdf."""
    content = figure_bytes(figure, Path(path).suffix.removeprefix(".").lower())
    write_atomically(path, lambda stream: stream.write(content))


def sample(rows: np.ndarray, most: int, unit: str) -> tuple[np.ndarray, str]:
    """The rows, or a random choice of `most` of them, the same each time; and the words that say so."""
    if len(rows) <= most:
        return rows, f"{len(rows):,} {unit}"
    chosen = np.random.default_rng(0).choice(rows, most, replace=False)
    return chosen, f"{most:,} of {len(rows):,} {unit}, chosen at random"


def legend(axes: Axes, title: str | None = None) -> None:
    """Words beside the curves, without a frame."""
    axes.legend(loc="best", frameon=False, fontsize=10, title=title, title_fontsize=10, alignment="left")


def percent(share: float) -> str:
    """0.05 as 5 %."""
    return f"{100 * share:.3g} %"


def _finite(argument: str, values: ArrayLike) -> np.ndarray:
    tensor = as_tensor(argument, values)
    if tensor.ndim != 1 or not len(tensor):
        raise fail(argument, "one number a record", f"shape {tuple(tensor.shape)}", "pass a vector")
    check_finite(argument, tensor)
    return tensor.cpu().double().numpy()


def _draw(
    axes: Axes,
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    height: Mapping[str, float],
    labels: Mapping[str, str],
    *,
    first: str | None,
    others: str,
    drawstyle: Any,
) -> None:
    """The highest curves, and `first`, in colour, the rest in grey with one label."""
    if not curves:
        raise fail(others, "at least one", "none", "name what to draw")
    chosen = sorted(curves, key=lambda name: (name != first, -height[name]))[: len(COLOURS)]
    rest = [name for name in curves if name not in chosen]
    for place, name in enumerate(sorted(chosen, key=lambda name: -height[name])):
        width = 2.6 if name == first else 1.8
        (line,) = axes.plot(*curves[name], color=COLOURS[place], linewidth=width, drawstyle=drawstyle, zorder=3 + place)
        line.set(label=labels[name], linestyle=DASHES[place])
    for name in rest:
        label = f"{len(rest)} other {others}" if name == rest[0] else None
        axes.plot(*curves[name], color=PALE, linewidth=1, label=label, drawstyle=drawstyle, zorder=2)
