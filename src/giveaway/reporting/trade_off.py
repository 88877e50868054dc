"""The trade-off of remedies, as a picture and as a page: what each costs in accuracy, and how far an attack still
tells."""

from typing import TYPE_CHECKING, Any

from giveaway.findings.mitigation import Mitigation
from giveaway.findings.remedies import AS_IT_IS
from giveaway.reporting.pages import page
from giveaway.reporting.picture import COLOURS, GREY, blank, figure_bytes, image_of, legend, plain
from giveaway.storage.files import as_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP"


def trade_off(found: Mitigation, *, axes: "Axes | None" = None) -> "Figure":
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


def _mark(axes: "Axes", outcome: Any, colour: str, marker: str, label: str | None) -> None:
    told = outcome.attack.on_most_exposed
    across, up = ([[one.value - one.low], [one.high - one.value]] for one in (outcome.change, told))
    size = 12 if marker == "*" else 7
    style: Any = {"fmt": marker, "color": colour, "markersize": size, "elinewidth": 0.7, "label": label}
    axes.errorbar(outcome.accuracy.value, told.value, xerr=across, yerr=up, **style)


def mitigation_pages(found: Mitigation) -> dict[str, str | bytes]:
    """Return the files of a mitigation, which name no record: figures for machines, the page, and its picture."""
    picture = trade_off(found)
    heads = ["remedy", "trained on", found.measure, "change", "attack on all", "on the most exposed"]
    heads.append("found of all at 1 % false alarms")
    rows = []
    for one in found.outcomes:
        figures = (one.attack.on_all, one.attack.on_most_exposed, one.attack.found)
        cells = [one.remedy.label, f"{one.trained_on:,}", f"{one.accuracy.value:.3f}"]
        rows.append(
            [*cells, *(f"{each.value:.3f} ({each.low:.3f} to {each.high:.3f})" for each in (one.change, *figures))]
        )
    html = page("mitigation.html", found=found, heads=heads, rows=rows, picture=image_of(picture)[0])
    return {
        "mitigation.json": as_json(found.to_json()),
        "mitigation.html": html,
        "mitigation.png": figure_bytes(picture),
    }
