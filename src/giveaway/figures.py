"""Every picture, as a matplotlib figure that notebooks show; `axes=` draws into axes of your own, to restyle."""

from giveaway.reporting.figures import loss_by_influence, recall_curves, roc_curves, save_figure
from giveaway.reporting.lood_figures import lood_map, query_pictures
from giveaway.reporting.table_figures import by_class, exposure_distribution, loss_by_leverage
from giveaway.reporting.theory_figures import gap_map, tradeoff_curves

__all__ = [
    "by_class",
    "exposure_distribution",
    "gap_map",
    "lood_map",
    "loss_by_influence",
    "loss_by_leverage",
    "query_pictures",
    "recall_curves",
    "roc_curves",
    "save_figure",
    "tradeoff_curves",
]
