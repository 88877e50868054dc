"""Every figure, as a matplotlib figure that notebooks show; `axes=` draws into axes of your own, to restyle."""

# ruff: noqa: F401 (the names are for others)
from giveaway.reporting.figures import (
    gap_map,
    lood_map,
    recall_curves,
    roc_curves,
    trade_off,
    tradeoff_curves,
    when_learned,
)
from giveaway.reporting.picture import save_figure
