"""Why a row of a table ranks high, in a phrase: what its columns say of it beside all others."""

from typing import Any

import numpy as np

from giveaway.text import shown_text

NOTHING = "nothing stands out"
NOTABLE = 0.25  # of the rows: a row further down gets no reason
SPOKE = 0.1  # of the weight of all views: one that counts less gives no reason
UNKNOWN = -1  # the class that trees say where every one of them saw the record
VARIANTS = {"mirror": "mirror image", "shift": "shifted image"}


def why(table: Any, rows: np.ndarray, *, nearest: bool = True, values: bool = True) -> list[str]:
    """Return one phrase per row that says how it stands out; without `values` it holds no target but classes."""
    columns = [[""] * len(rows)]
    if _spoke(table, "trace"):
        columns.append(_when_learned(table, rows))
    if _spoke(table, "relatives"):
        columns.append(_unrecognized(table, rows))
    if _spoke(table, "out_of_bag"):
        columns.append(_contradictions(table, rows, values, "out_of_bag", "trees_say", "trees that never saw it say"))
    for name, words in (("leverage", "high leverage"), ("residual", "poorly fitted")):
        if name in table.scores or name in table.attributes:
            columns.append([_phrase(words, share) for share in _shares(table[name], rows)])
    if "newton_capped" in table.attributes:
        capped = table["newton_capped"][rows]
        columns.append(["alone in a feature direction (score capped)" if c else "" for c in capped])
    if "fused" in table.scores:
        columns.append(_contradictions(table, rows, values, "left_out", "others_say", "the other records predict"))
    phrases = ["; ".join(filter(None, parts)) or NOTHING for parts in zip(*columns, strict=True)]
    if not nearest or "nearest" not in table.attributes:
        return phrases
    near = table["nearest"][rows].tolist()
    return [f"{phrase}; nearest: {ids}" if ids else phrase for phrase, ids in zip(phrases, near, strict=True)]


def _spoke(table: Any, view: str) -> bool:
    """Return whether the table has this view, and `fused` listens to it."""
    weights = {} if table.meta.fusion is None else table.meta.fusion.weights
    return view in table.scores and weights.get(view, 0.0) >= SPOKE * sum(weights.values()) > 0


def _when_learned(table: Any, rows: np.ndarray) -> list[str]:
    """Say which rows were hard to learn, and which came late: most of their losses did, and little is left."""
    trace, learned, loss = table["trace"], table.attributes.get("learned_by"), table.scores.get("loss")
    late = np.zeros(len(table), dtype=bool)
    if learned is not None and loss is not None:
        late = (learned > np.quantile(learned, 1 - NOTABLE)) & (np.sqrt(np.maximum(loss, 0.0)) < 0.5 * trace)
    words = ["learned last" if late[row] else "hard to learn" for row in rows]
    return [_phrase(*item) for item in zip(words, _shares(trace, rows), strict=True)]


def _unrecognized(table: Any, rows: np.ndarray) -> list[str]:
    """Say of which rows the model knows the variants less that count most."""
    fusion, recognized = table.meta.fusion, table.attributes.get("recognized", np.ones(len(table), dtype=bool))
    told = (None if fusion is None else fusion.relatives) or {}
    weights = {VARIANTS.get(name, f"variant {shown_text(name, 40)}"): told[name]["weight"] for name in told}
    counting = [name for name, weight in weights.items() if weight >= 0.5 * max(weights.values())]
    which = f"its {' and '.join(counting) or 'variant'} {'are' if len(counting) > 1 else 'is'}"
    if table.meta.by_person:
        which = "variants of their records are"
    words = [f"{which} {'known less well' if recognized[row] else 'not recognized'}" for row in rows]
    return [_phrase(*item) for item in zip(words, _shares(table["relatives"], rows), strict=True)]


def _contradictions(table: Any, rows: np.ndarray, values: bool, column: str, attribute: str, who: str) -> list[str]:
    """Say what a view that never saw each row predicts for it where that is not the row's own target."""
    said, classes, targets = (table.attributes.get(name) for name in (attribute, "class", "target"))
    if said is not None and classes is not None:
        no = {"", str(UNKNOWN)} if table.meta.class_names is None else {""}  # the number is of earlier versions
        words = zip(said[rows].tolist(), classes[rows].tolist(), strict=True)
        return [f"{who} {one}" if str(one) not in no | {str(own)} else "" for one, own in words]
    if said is not None and targets is not None:
        error = np.nan_to_num(np.abs(said - targets), nan=-1.0)  # nothing was said
        if values:
            return [
                f"{who} {said[row]:.3g}, not {targets[row]:.3g}" if share <= NOTABLE else ""
                for row, share in zip(rows, _shares(error, rows), strict=True)
            ]
    elif column in table.scores:
        error = table[column]
    else:
        return [""] * len(rows)
    return [_phrase(f"{who} otherwise", share) for share in _shares(error, rows)]


def _shares(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rank of each row among all rows, as a share of them."""
    return (np.searchsorted(np.sort(-values), -values[rows], side="left") + 1) / len(values)


def _phrase(words: str, share: float) -> str:
    for limit, name in ((0.01, "top 1 %"), (0.05, "top 5 %"), (NOTABLE, "top 25 %")):
        if share <= limit:
            return f"{words} ({name})"
    return ""
