"""Why a row ranks high, in words: newton is large where the head both bends toward the record and still misses it."""

from __future__ import annotations

import numpy as np

from giveaway.records import ScoreTable


def why(table: ScoreTable, rows: np.ndarray) -> list[str]:
    """One phrase a row, from how its leverage and its residual stand among all rows."""
    parts = [[""] * len(rows)]
    for name, words in (("leverage", "pulls the head"), ("residual", "fitted badly")):
        if name in table.scores or name in table.attributes:
            values = table[name]
            ahead = np.searchsorted(np.sort(-values), -values[rows], side="left")
            parts.append([_phrase(words, share) for share in (ahead + 1) / len(values)])
    if "newton_capped" in table.attributes:
        capped = table["newton_capped"][rows]
        parts.append(["alone in a direction (score capped)" if c else "" for c in capped])
    return ["; ".join(p for p in phrases if p) or "both moderate" for phrases in zip(*parts, strict=True)]


def _phrase(words: str, share: float) -> str:
    for limit, name in ((0.01, "top 1 %"), (0.05, "top 5 %"), (0.25, "top 25 %")):
        if share <= limit:
            return f"{words} ({name})"
    return ""
