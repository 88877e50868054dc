"""Training weights that hold down the most exposed records. A heuristic."""

from __future__ import annotations

import numpy as np

from giveaway.checks import check_number, fail
from giveaway.records import ScoreTable

NOTE = "heuristic: weights that depend on the data void a stated (ε, δ)"


def weights(table: ScoreTable, *, cap: float = 0.9) -> np.ndarray:
    """One weight a row in (0, 1] that brings its newton down to the `cap` quantile of all; 1 for rows below it.

    Take a record of leverage h and newton N, and retrain with weight s on it. With a = xᵀ H₋ᵢ⁻¹ x, H₋ᵢ the curvature
    without it, which s does not touch, its gradient g₋ at the head without it, and w the output curvature, its
    gradient becomes g₋/(1 + s·w·a) and its newton s·a·g₋²/(1 + s·w·a)². The audit, at s = 1, knows h = w·a/(1 + w·a)
    and N = a·g₋²/(1 + w·a)². Hence

        newton(s) = s·N/(1 − h + s·h)²,

    and the weight is the smaller root of newton(s) = c. That is exact for squared loss and one row at a time. It is an
    estimate for the other losses, and where many rows are weighted at once: each then also feels what the others lost,
    and some stay above c, so audit the retrained model. For h above ½ a weight a little below 1 exposes a record more,
    which is why a row alone in its direction ends close to 0: in effect left out.

    h is read as 1 − influence/newton, the leverage along the row's own gradient: the column `leverage` for one
    output, and the part of it that matters for several, or for a person, whose records all get the row's weight.
    Weights multiply those of the audited training and are not normalised: with the penalty kept, the data as a whole
    count less.
    """
    for name in ("newton", "influence"):
        if name not in table.scores:
            remedy = "audit a linear head with it; a black box has no curvature that would tell the pull of a record"
            raise fail("table", f"the column {name}", ", ".join(table.columns), remedy)
    cap = check_number("cap", cap, minimum=0.0, remedy="give a quantile, such as 0.9")
    if not 0.0 < cap <= 1.0:
        raise fail("cap", "a quantile above 0 and up to 1", f"{cap:g}", "give a quantile, such as 0.9")
    newton, influence = table["newton"], table["influence"]
    limit = float(np.quantile(newton, cap))
    above = newton > limit
    if limit <= 0.0 and above.any():
        got = f"a quantile of {limit:g}, which no weight above 0 reaches"
        raise fail("cap", "a quantile of newton above 0", got, "give a higher cap")
    result = np.ones(len(newton))
    ratio = limit / newton[above]
    kept = np.clip(influence[above] / newton[above], 0.0, 1.0)  # 1 − h
    cross = ratio * kept * (1.0 - kept)
    root = 2.0 * ratio * kept**2 / (1.0 - 2.0 * cross + np.sqrt(1.0 - 4.0 * cross))
    result[above] = np.clip(root, np.finfo(np.float64).tiny, 1.0)
    return result
