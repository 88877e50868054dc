"""Figures: what scores find, what attacks achieve, when records were learned, what remedies buy, and those of
the theory.

With `axes` a figure is drawn there, and their figure is returned, instead of a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from giveaway.checks import as_tensor, check_choice, check_finite, fail
from giveaway.evaluation import recall_at, recall_curve
from giveaway.evaluation.ranking import log_spaced_counts
from giveaway.evaluation.success import AttackSummary
from giveaway.findings.mitigation import Mitigation
from giveaway.findings.remedies import AS_IT_IS
from giveaway.records import ScoreTable
from giveaway.reporting.picture import CHANCE, COLOURS, DASHES, GREY, PALE, axis_from, blank, legend, plain
from giveaway.text import percent
from giveaway.theory import TradeOff, expected_gap, random_design

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[np.ndarray, np.ndarray]
KEPT = 0.05  # the share whose recall the legend states
POINTS = 400  # of a trade-off curve
GRID = 120  # points a side of the map of the gap
MOST_POINTS = 20_000  # of the map of distances
MARKED = 10  # of its rows
MARKERS = "osD^vP"  # of remedies


def recall_curves(
    scores: Mapping[str, ArrayLike],
    truth: ArrayLike,
    *,
    top: float = 0.01,
    ranked_by: str | None = None,
    axes: Axes | None = None,
) -> Figure:
    """Draw what each score finds of the true top in every share kept; the highest five and `ranked_by` in colour."""
    if ranked_by is not None:
        check_choice("ranked_by", ranked_by, scores)
    known = _finite("truth", truth)
    columns = {name: _finite(f"scores[{name!r}]", values) for name, values in scores.items()}
    curves = {name: recall_curve(values, known, top) for name, values in columns.items()}
    height = {name: float(recalls.mean()) for name, (_, recalls) in curves.items()}
    title = f"What each score finds of the {percent(top)} most exposed of {len(known):,} records"
    _, axes = blank(title, (7.2, 4.6), axes)
    kept = max(KEPT, 1 / len(known))
    found = {name: 100 * recall_at(values, known, top, kept) for name, values in columns.items()}
    labels = {name: f"{name}: {recall:.0f} % in {percent(kept)}" for name, recall in found.items()}
    _draw_curves(axes, curves, height, labels, "scores", first=ranked_by)
    keeps = log_spaced_counts(len(known)) / len(known)
    axes.plot(keeps, keeps, zorder=1, **CHANCE)
    axes.set(xscale="log", xlim=(keeps[0], 1), ylim=(0, 1.01))
    axes.set_xlabel("share of records kept, highest scores first (percent, logarithmic)")
    axes.set_ylabel(f"share of the true top {percent(top)} found (percent)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: percent(value))
    return legend(axes, "found among those kept")


def roc_curves(attacks: Sequence[AttackSummary], *, axes: Axes | None = None) -> Figure:
    """Draw true against false positives of each attack, both logarithmic, down to one false positive."""
    if len({attack.attack for attack in attacks}) < len(attacks):
        raise fail("attacks", "a different name for each", "repeated names", "rename them")
    curves = {attack.attack: roc_points(attack) for attack in attacks}
    return draw_roc(curves, {a.attack: (a.auc.value, a.auc.low, a.auc.high) for a in attacks}, axes)


def roc_points(attack: AttackSummary) -> Curve:
    """Thin the ROC curve of an attack to false-positive rates that are evenly spaced on a logarithmic axis."""
    rates = log_spaced_counts(attack.nonmembers) / attack.nonmembers
    return rates, attack.tpr(rates)


def draw_roc(
    curves: Mapping[str, Curve], aucs: Mapping[str, tuple[float, float, float]], axes: Axes | None = None
) -> Figure:
    """Draw thinned ROC curves, each of which begins at one false positive; AUCs come with their interval."""
    _, axes = blank("What the attack finds at each rate of false alarms", (6.2, 5.4), axes)
    labels = {name: f"{name}: AUC {auc:.3f} ({low:.3f}–{high:.3f})" for name, (auc, low, high) in aucs.items()}
    height = {name: auc for name, (auc, _, _) in aucs.items()}
    _draw_curves(axes, curves, height, labels, "attacks", drawstyle="steps-post")
    least = min(float(rates[0]) for rates, _ in curves.values())
    edge = least / 2
    axes.plot([edge, 1], [edge, 1], zorder=1, **CHANCE)
    axes.axvspan(edge, least, color="#EEEEEE", linewidth=0, zorder=0)
    words = f"1 of {round(1 / least):,} non-members:\nno smaller rate is known"
    axes.axvline(least, color=GREY, linewidth=0.8, label=words)
    axes.set(xscale="log", yscale="log", xlim=(edge, 1), ylim=(edge, 1.1))
    axes.set_xlabel("false-positive rate: share of non-members called members")
    axes.set_ylabel("true-positive rate: share of members called members")
    return legend(axes)


def _draw_curves(
    axes: Axes, curves: Mapping[str, Curve], height: Any, labels: Any, others: str, *, first: Any = None, **style: Any
) -> None:
    """Draw the highest curves, and `first`, in colour, and the rest in grey with one label."""
    if not curves:
        raise fail(others, "at least one", "none", "name what to draw")
    chosen = sorted(curves, key=lambda name: (name != first, -height[name]))[: len(COLOURS)]
    rest = [name for name in curves if name not in chosen]
    for place, name in enumerate(sorted(chosen, key=lambda name: -height[name])):
        width = 2.6 if name == first else 1.8
        (line,) = axes.plot(*curves[name], color=COLOURS[place], linewidth=width, zorder=3 + place, **style)
        line.set(label=labels[name], linestyle=DASHES[place])  # curves often lie on each other
    for name in rest:
        label = f"{len(rest)} other {others}" if name == rest[0] else None
        axes.plot(*curves[name], color=PALE, linewidth=1, label=label, zorder=2, **style)


def when_learned(table: ScoreTable, axes: Axes | None = None) -> Figure:
    """Draw √loss of the most exposed records at each epoch of a trace, gaps bridged, over the band of all records."""
    trace = table.meta.trace
    if trace is None:
        raise fail("table", "an audit with a trace of the training", "none", "pass trace= to audit")
    if table.meta.by_person:
        raise fail("table", "rows that are records", "people", "audit the records, by a head without groups")
    shown, what = min(len(trace.rows), len(table)), table.meta.rows_are
    _, axes = blank(f"When the {shown} of {len(table):,} {what} ranked highest were learned", (8.2, 4.4), axes)
    low, middle, high = np.sqrt(np.maximum(np.array(trace.band, dtype=np.float64), 0.0)).T
    epochs = np.arange(1, trace.epochs + 1)
    axes.fill_between(epochs, low, high, color=PALE, alpha=0.6, linewidth=0, label=f"80 % of all {what}", zorder=1)
    axes.plot(epochs, middle, color=GREY, linewidth=1.5, label=f"median of all {what}", zorder=2)
    for place, (row, losses) in enumerate(zip(trace.rows, trace.losses, strict=True)):
        roots = np.sqrt(np.array(losses, dtype=np.float64))  # None, where it did not come up, is NaN
        there, first = ~np.isnan(roots), place < len(COLOURS)
        label = f"rank {place + 1}: {plain(table.ids[row])}" if first else "_"
        label = f"ranks {place + 1} to {shown}" if place == len(COLOURS) else label
        style: Any = {"color": COLOURS[0], "linewidth": 0.8, "alpha": 0.4}
        if first:
            style = {"color": COLOURS[place], "linestyle": DASHES[place], "linewidth": 1.8}
        axes.plot(epochs[there], roots[there], marker=".", markersize=4, label=label, zorder=20 - place, **style)
    axes.set(xlim=(min(1, trace.epochs - 1), trace.epochs), ylim=(0, None))
    when = "as training came to it" if trace.steps == "epochs" else f"at the {trace.steps}"
    axes.set(xlabel=trace.steps.removesuffix("s"), ylabel=f"root of the loss {when}")
    return legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def tradeoff_curves(
    curves: Mapping[str, TradeOff], *, title: str = "Errors of the best attack", axes: Axes | None = None
) -> Figure:
    """Draw missed members β against falsely accused non-members α, a line per curve; chance is the falling diagonal."""
    _, axes = blank(title, (5.6, 5.0), axes)
    alpha = np.concatenate([np.geomspace(1e-6, 1e-2, POINTS // 4), np.linspace(1e-2, 1, POINTS)[1:]])
    for place, (label, curve) in enumerate(curves.items()):
        style = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
        axes.plot(alpha, curve.beta(alpha), label=label, linewidth=1.8, **style)
    axes.plot([0, 1], [1, 0], **CHANCE)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_xlabel("false-positive rate α: share of non-members accused")
    axes.set_ylabel("false-negative rate β: share of members missed")
    return legend(axes)


def gap_map(
    freedom: float,
    *,
    variance: float = 1.0,
    outputs: int = 1,
    largest_error: float = 3.0,
    largest_leverage: float = 20.0,
    axes: Axes | None = None,
) -> Figure:
    """Draw E[loss left out − loss trained on] as colours over ε² and h̄."""
    errors, leverages = np.linspace(0, largest_error, GRID), np.linspace(0, largest_leverage, GRID)
    gap = expected_gap(random_design(leverages[:, None], errors[None], freedom, variance=variance, outputs=outputs))
    figure, axes = blank(f"Expected loss gap, n − p = {freedom:g}", (5.8, 4.8), axes)
    # one image: an SVG would have each of its 57,000 triangles as a gradient of its own, 90 MB of them
    mesh = axes.pcolormesh(errors**2, leverages, gap, cmap="viridis", shading="gouraud", rasterized=True)
    axes.figure.colorbar(mesh, ax=axes, label="mean of loss left out − loss trained on")
    axes.set_xlabel("squared error of the record under the true model, ε²")
    axes.set_ylabel("population leverage h̄")
    return figure


def lood_map(kl: np.ndarray, mean: np.ndarray, *, axes: Axes | None = None) -> Figure:
    """Draw each record (or person) at its two distances, the most exposed by KL marked with their row numbers."""
    shown = np.flatnonzero((mean >= axis_from(mean)) & (kl >= axis_from(kl)))
    title, hidden = f"{len(shown):,} rows", len(kl) - len(shown)
    if len(shown) > MOST_POINTS:
        title = f"{MOST_POINTS:,} of {title}, chosen at random"
        shown = np.random.default_rng(0).choice(shown, MOST_POINTS, replace=False)
    title += f"; {hidden:,} more are 0 or nearly" if hidden else ""
    top = np.argsort(-kl, kind="stable")[:MARKED]
    figure, axes = blank(f"Leave-one-out distinguishability: {title}", (6.6, 5.0), axes)
    axes.scatter(mean[shown], kl[shown], s=6, color=COLOURS[0], alpha=0.5, linewidth=0, rasterized=True)
    axes.scatter(mean[top], kl[top], s=18, color=COLOURS[1], linewidth=0)
    for row in top:
        axes.annotate(str(row), (mean[row], kl[row]), xytext=(4, 2), textcoords="offset points", fontsize=7, color=GREY)
    if len(shown):
        axes.set(xscale="log", yscale="log")
    axes.set_xlabel("lood_mean: half the squared change of the mean")
    axes.set_ylabel("lood_kl: KL divergence of the prediction without from the one with")
    return figure


def trade_off(found: Mitigation, *, axes: Axes | None = None) -> Figure:
    """Draw every remedy by its accuracy and by the attack's AUC on the most exposed; better is lower and to the right.

    Bars are 95 % intervals: upright of the AUC, across of the difference in accuracy to the training as it is.
    """
    _, axes = blank("What each remedy costs, and what it buys", (9.6, 5.4), axes)
    start = found.outcomes[0]
    kinds: dict[str, list[Any]] = {}
    for outcome in found.outcomes[1:]:
        kinds.setdefault(outcome.remedy.kind, []).append(outcome)
    looks = [*zip(COLOURS, MARKERS, strict=False), (GREY, MARKERS[-1])]
    for number, ((kind, outcomes), (colour, marker)) in enumerate(zip(kinds.items(), looks, strict=False)):
        for setting in dict.fromkeys(tuple(outcome.remedy.settings) for outcome in outcomes):
            joined = [start, *(one for one in outcomes if tuple(one.remedy.settings) == setting)]
            points = [(one.accuracy.value, one.attack.on_most_exposed.value) for one in joined]
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.2, alpha=0.5)
        for outcome in outcomes:
            _mark(axes, outcome, colour, marker, label=kind if outcome is outcomes[0] else None)
            words = plain(outcome.remedy.label.removesuffix(" most exposed")) if outcome.remedy.label != kind else ""
            place = (outcome.accuracy.value, outcome.attack.on_most_exposed.value)
            style: Any = {"fontsize": 8, "color": colour, "va": "bottom" if number % 2 else "top"}
            axes.annotate(words, place, xytext=(6, 3 if number % 2 else -3), textcoords="offset points", **style)
    _mark(axes, start, "black", "*", label=AS_IT_IS)
    axes.axhline(0.5, color=GREY, linestyle=":", linewidth=1.3)
    across = axes.get_yaxis_transform()
    axes.text(0.995, 0.5, "a coin", transform=across, fontsize=9, color=GREY, ha="right", va="bottom")
    axes.set_xlabel(f"{found.measure} on {found.held_out:,} records held out")
    by = f"{found.models} shadow models a remedy" if found.models else "the model's own losses, a weak attack"
    axes.set_ylabel(f"attack's AUC on the {found.top:,} most exposed\n({by})")
    return legend(axes, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _mark(axes: Axes, outcome: Any, colour: str, marker: str, label: str | None) -> None:
    told = outcome.attack.on_most_exposed
    across, up = ([[one.value - one.low], [one.high - one.value]] for one in (outcome.change, told))
    size = 12 if marker == "*" else 7
    style: Any = {"fmt": marker, "color": colour, "markersize": size, "elinewidth": 0.7, "label": label}
    axes.errorbar(outcome.accuracy.value, told.value, xerr=across, yerr=up, **style)


def _finite(argument: str, values: ArrayLike) -> np.ndarray:
    tensor = as_tensor(argument, values)
    if tensor.ndim != 1 or not len(tensor):
        raise fail(argument, "one number per record", f"shape {tuple(tensor.shape)}", "pass a vector")
    check_finite(argument, tensor)
    return tensor.cpu().double().numpy()
