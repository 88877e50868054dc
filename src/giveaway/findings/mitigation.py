"""Weights that bring the most exposed rows down in a training to come."""

import numpy as np

from giveaway.checks import check_number, fail
from giveaway.records import ScoreTable

NOTE = "heuristic: weights that depend on the data void a stated (ε, δ)"


def weights(table: ScoreTable, *, cap: float = 0.9) -> np.ndarray:
    """Return one weight per row in (0, 1] that brings its newton down to the `cap` quantile of all rows
    (docs/derivations.md): exact for squared loss and one row at a time, else an estimate, so audit the retrained model.
    Weights multiply those of the audited training and are not normalised."""
    for name in ("newton", "influence"):
        if name not in table.scores:
            remedy = "audit a linear head with it; a black box has no curvature to tell how a record pulls"
            raise fail("table", f"the column {name}", ", ".join(table.columns), remedy)
    remedy = "give a quantile, such as 0.9"
    if not 0.0 < check_number("cap", cap, minimum=0.0, remedy=remedy) <= 1.0:
        raise fail("cap", "a quantile above 0 and up to 1", f"{cap:g}", remedy)
    newton, influence = table["newton"], table["influence"]
    limit = float(np.quantile(newton, cap))
    above = newton > limit
    if limit <= 0.0 and above.any():
        got = f"a quantile of {limit:g}, which no weight above 0 reaches"
        raise fail("cap", "a quantile of newton above 0", got, "give a higher cap")
    result = np.ones(len(newton))
    ratio = limit / newton[above]
    remainder = np.clip(influence[above] / newton[above], 0.0, 1.0)  # 1 − h
    cross = ratio * remainder * (1.0 - remainder)
    root = 2.0 * ratio * remainder**2 / (1.0 - 2.0 * cross + np.sqrt(1.0 - 4.0 * cross))
    result[above] = np.clip(root, np.finfo(np.float64).tiny, 1.0)
    return result
