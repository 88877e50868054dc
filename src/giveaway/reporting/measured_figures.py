"""The picture of an attack that was measured earlier and lies in the audit folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from giveaway.findings.measured import Measured
from giveaway.reporting.figures import COLOURS, GREY, blank

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attack_curve(measured: Measured) -> Figure:
    """True against false positives of LiRA, both logarithmic, down to one false positive."""
    auc, low, high = measured.stated["lira"]["auc"]
    figure, axes = blank("What the attack finds at each rate of false alarms", (6.2, 5.0))
    least = float(measured.false_positives[0])
    label = f"LiRA: AUC {auc:.3f} ({low:.3f}–{high:.3f})"
    axes.plot(
        measured.false_positives,
        measured.true_positives,
        color=COLOURS[0],
        linewidth=1.8,
        drawstyle="steps-post",
        label=label,
    )
    axes.plot([least, 1], [least, 1], color=GREY, linestyle=":", linewidth=1.3, label="chance")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.1))
    axes.set_xlabel("false-positive rate: share of non-members called members")
    axes.set_ylabel("true-positive rate: share of members called members")
    axes.legend(loc="best", frameon=False, fontsize=10)
    return figure
