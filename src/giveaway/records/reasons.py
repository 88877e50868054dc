"""Why a row of a table ranks high, in a sentence or two, each of them true of that row beside all others."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from giveaway.checks import fail
from giveaway.text import shown_text

NOTHING = "Nothing stands out."
HIGH = 95  # percent of the rows that must lie below for a place among them to be a reason
SPOKE = 0.1  # of the weight of all views: one that counts less gives no reason
UNKNOWN = -1  # the class that trees say where every one of them saw the record
VARIANTS = {"mirror": "mirror image", "shift": "shifted image"}


@dataclass(frozen=True, eq=False)
class OwnTerms:
    """Clauses that tell what sets some rows apart in the data's own terms: `named` by columns, classes and counts,
    `shown` by values and words of records too, and `heat` a text's words as JSON, [[words, level], …]; None where those
    are withheld."""

    rows: np.ndarray
    named: np.ndarray
    shown: np.ndarray | None = None
    heat: np.ndarray | None = None

    def __post_init__(self) -> None:
        kinds = [(part.shape, part.dtype.kind) for part in vars(self).values() if part is not None]
        if kinds != [((len(self.rows),), kind) for kind in "iUUU"[: len(kinds)]]:
            raise fail("own_terms", "a clause a row", "others", "write the audit again")

    def of(self, rows: np.ndarray, contents: bool) -> list[str]:
        """Return the clause of each row, "" where there is none."""
        clauses = self.shown if contents and self.shown is not None else self.named
        known = dict(zip(self.rows.tolist(), clauses.tolist(), strict=True))
        return [known.get(row, "") for row in rows.tolist()]

    def words(self, rows: np.ndarray) -> list[list[tuple[str, int]]]:
        """Return the words of each row, in parts with their level of heat; [] where they are withheld."""
        known = {} if self.heat is None else dict(zip(self.rows.tolist(), self.heat.tolist(), strict=True))
        return [[(str(part), int(level)) for part, level in json.loads(known.get(row, "[]"))] for row in rows.tolist()]

    def withheld(self) -> "OwnTerms":
        return replace(self, shown=None, heat=None)


def why(
    table: Any, rows: np.ndarray, *, nearest: bool = True, values: bool = True, contents: bool = False
) -> list[str]:
    """Return for each row how it stands out; without `values` no target but classes is told, and only with `contents`
    what the record holds."""
    parts = []
    if "carried_by" in table.attributes:
        parts.append(_carried(table, rows))
    parts.append(_unseen(table, rows, values, contents))
    if table.meta.loss == "tokens" and _spoke(table, "newton"):
        rise = "without {2} {1} loss would rise, by estimate, more than that of".format(*_pronouns(table))
        parts.append(_above(table, rows, "newton", rise))
    if _spoke(table, "trace"):
        parts.append(_learned(table, rows))
    if _spoke(table, "relatives"):
        parts.append(_variants(table, rows))
    told = [[clause for clause in clauses if clause] for clauses in zip(*parts, strict=True)]
    told = [found or place for found, place in zip(told, _fit(table, rows), strict=True)]
    if nearest and "nearest" in table.attributes:
        for found, ids in zip(told, table["nearest"][rows], strict=True):
            found += [f"nearest: {ids}"] if ids else []
    return [" ".join(f"{clause[0].upper()}{clause[1:]}." for clause in found) or NOTHING for found in told]


def _spoke(table: Any, view: str) -> bool:
    """Return whether the table has this view, and `fused` listens to it."""
    weights = {} if table.meta.fusion is None else table.meta.fusion.weights
    return view in table.scores and weights.get(view, 0.0) >= SPOKE * sum(weights.values()) > 0


def _carried(table: Any, rows: np.ndarray) -> list[str]:
    """Say how many records a person has, and which of them is the worst predicted."""
    what = "the model's loss on them" if table.meta.view is None else "the error in what the others predict for them"
    told = zip(*(table[name][rows].tolist() for name in ("records", "carried_by", "carries")), strict=True)
    several = "of their {} records, number {} makes up {:.0f} % of " + what
    return [f"their one record is number {at}" if n == 1 else several.format(n, at, 100 * c) for n, at, c in told]


def _unseen(table: Any, rows: np.ndarray, values: bool, contents: bool) -> list[str]:
    """Say what each row would be taken for if nobody had seen it, and what sets it apart from the others."""
    him, trees = _pronouns(table)[2], [""] * len(rows)
    if _spoke(table, "out_of_bag"):
        lead = "without the trees that saw it, the model would"
        trees = _contradiction(table, rows, "trees_say", values, f"{lead} call it {{}}", f"{lead} say {{}}, it is {{}}")
        trees = trees or _above(table, rows, "out_of_bag", f"trees that never saw {him} predict {him} worse than")
    lead = "the other records predict"
    others = _contradiction(table, rows, "others_say", values, f"{lead} {{}}", f"{lead} {{}}, it is {{}}")
    beyond = f"the model knows {him} beyond what the other texts explain, more than"
    worse = beyond if table.meta.loss == "tokens" else f"the others predict {him} worse than"
    others = others or _above(table, rows, "left_out", worse)
    terms = [""] * len(rows) if table.own_terms is None else table.own_terms.of(rows, contents)
    told = ((one or other, term) for one, other, term in zip(trees, others or trees, terms, strict=True))
    return [": ".join(filter(None, clauses)) for clauses in told]


def _contradiction(table: Any, rows: np.ndarray, name: str, values: bool, of_class: str, of_value: str) -> list[str]:
    """Say what a view that never saw a row tells of it: another class, or a value that is far off; [] if it cannot."""
    said, classes, targets = (table.attributes.get(column) for column in (name, "class", "target"))
    if said is not None and classes is not None:
        no = {"", str(UNKNOWN)} if table.meta.class_names is None else {""}  # the number is of earlier versions
        words = zip(said[rows].tolist(), classes[rows].tolist(), strict=True)
        return ["" if str(one) in no | {str(own)} else of_class.format(shown_text(one, 40)) for one, own in words]
    if said is None or targets is None or not values:
        return []
    error = np.nan_to_num(np.abs(said - targets), nan=-1.0)  # nothing was said
    far = zip(_percent_below(error, rows), said[rows], targets[rows], strict=True)
    return [of_value.format(f"{one:.4g}", f"{own:.4g}") if below >= HIGH else "" for below, one, own in far]


def _learned(table: Any, rows: np.ndarray) -> list[str]:
    """Say which rows were hard to learn, when they were learned, and how often they were forgotten."""
    hard = _above(table, rows, "trace", f"{_pronouns(table)[0]} harder to learn than")
    learned, forgotten = (table.attributes.get(name) for name in ("learned_by", "forgotten"))
    if learned is None or table.meta.trace is None:
        return hard
    half, step, steps = int(np.median(learned)), table.meta.trace.steps.removesuffix("s"), table.meta.trace.epochs
    clauses = []
    for row, words, below in zip(rows, hard, _percent_below(learned, rows), strict=True):
        found = [words] if words else []
        if below >= HIGH or (words and learned[row] > half):
            late = f"learned by {step} {learned[row]} of {steps}, half of the records by {step} {half}"
            found.append(late if words else f"it was {late}")
        if forgotten is not None and forgotten[row] and found:
            found.append("forgotten once" if forgotten[row] == 1 else f"forgotten {forgotten[row]} times")
        clauses.append("; ".join(found))
    return clauses


def _variants(table: Any, rows: np.ndarray) -> list[str]:
    """Say of which rows the model knows the variants less that count most."""
    fusion, recognized = table.meta.fusion, table.attributes.get("recognized", np.ones(len(table), dtype=bool))
    told = (None if fusion is None else fusion.relatives) or {}
    weights = {VARIANTS.get(name, f"variant {shown_text(name, 40)}"): told[name]["weight"] for name in told}
    counting = [name for name, weight in weights.items() if weight >= 0.5 * max(weights.values())]
    which = "variants of their records" if table.meta.by_person else f"its {' and '.join(counting) or 'variant'}"
    less = _above(table, rows, "relatives", f"the model errs more about {which} than about those of")
    unknown = f"the model does not recognize {which}"
    return [words if recognized[row] else unknown for row, words in zip(rows, less, strict=True)]


def _fit(table: Any, rows: np.ndarray) -> list[list[str]]:
    """Say which rows pull their own predictions, which the model errs about, and which stand alone in a direction."""
    _, its, it = _pronouns(table)
    pulls = _above(table, rows, "leverage", f"{its} own target pulls the model's prediction more than that of")
    errs = _above(table, rows, "residual", f"the model errs more about {it} than about")
    capped = table.attributes.get("newton_capped", np.zeros(len(table), dtype=bool))[rows]
    alone = f"nothing else holds the model in one direction of {its} features, so the score is capped"
    clauses = zip(pulls, errs, ([alone, ""][not one] for one in capped), strict=True)
    return [[clause for clause in found if clause] for found in clauses]


def _above(table: Any, rows: np.ndarray, column: str, lead: str) -> list[str]:
    """End a clause with the percentage of all rows that lie below a row, where that is most of them."""
    if column not in table.scores and column not in table.attributes:
        return [""] * len(rows)
    below = _percent_below(table[column], rows)
    return [f"{lead} {percent} % of the {table.meta.rows_are}" if percent >= HIGH else "" for percent in below]


def _percent_below(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return (100 * np.searchsorted(np.sort(values), values[rows], side="left")) // max(1, len(values))


def _pronouns(table: Any) -> tuple[str, str, str]:
    return ("they were", "their", "them") if table.meta.by_person else ("it was", "its", "it")
