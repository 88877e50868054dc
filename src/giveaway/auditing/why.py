"""Why a row ranks high, in words: what the head did with it, and what the other records would have said of it."""

from __future__ import annotations

import numpy as np

from giveaway.records import ScoreTable

NOTABLE = 0.25  # of the rows: further down nothing is said


def why(table: ScoreTable, rows: np.ndarray, *, nearest: bool = True, values: bool = True) -> list[str]:
    """One phrase a row, from how it stands among all rows.

    `nearest` adds the ids of the records nearest to it; without `values` no target that is no class is told.
    """
    parts = [[""] * len(rows)]
    for name, words in (("leverage", "pulls the head"), ("residual", "among the worst fitted")):
        if name in table.scores or name in table.attributes:
            parts.append([_phrase(words, share) for share in _shares(table[name], rows)])
    if "newton_capped" in table.attributes:
        capped = table["newton_capped"][rows]
        parts.append(["alone in a direction (score capped)" if c else "" for c in capped])
    if "fused" in table.scores:
        parts.append(_others(table, rows, values))
    nothing = "nothing stands out" if "fused" in table.scores else "both moderate"
    found = ["; ".join(p for p in phrases if p) or nothing for phrases in zip(*parts, strict=True)]
    if not nearest or "nearest" not in table.attributes:
        return found
    near = table["nearest"][rows].tolist()
    return [f"{phrase}; nearest: {ids}" if ids else phrase for phrase, ids in zip(found, near, strict=True)]


def _others(table: ScoreTable, rows: np.ndarray, values: bool) -> list[str]:
    """What the other records say, where that is not what the record says."""
    said, of_class, of_value = (table.attributes.get(name) for name in ("others_say", "class", "target"))
    if said is not None and of_class is not None:
        return [f"the other records say {said[row]}" if said[row] != of_class[row] else "" for row in rows]
    if said is not None and of_value is not None:
        apart = np.abs(said - of_value)
        if values:
            return [
                f"the other records say {said[row]:.3g}, not {of_value[row]:.3g}" if share <= NOTABLE else ""
                for row, share in zip(rows, _shares(apart, rows), strict=True)
            ]
    elif "left_out" in table.scores:
        apart = table["left_out"]
    else:
        return [""] * len(rows)
    return [_phrase("the other records say otherwise", share) for share in _shares(apart, rows)]


def _shares(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Each row's place from the top among all rows, as a share of them."""
    return (np.searchsorted(np.sort(-values), -values[rows], side="left") + 1) / len(values)


def _phrase(words: str, share: float) -> str:
    for limit, name in ((0.01, "top 1 %"), (0.05, "top 5 %"), (NOTABLE, "top 25 %")):
        if share <= limit:
            return f"{words} ({name})"
    return ""
