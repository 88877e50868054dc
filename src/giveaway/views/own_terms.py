"""What sets a record apart in the data's own terms: columns and values, words, or what its nearest records are called.

Columns are chosen by the second view's distances: those that keep the record from its nearest records of the same class
more than they keep others from theirs. What is said are counts, which anybody can repeat. Every clause is made twice:
`named` tells of columns and classes, `shown` of values and words, which are contents of a record.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from giveaway.records import Head
from giveaway.text import shown_text
from giveaway.views.tables import column_of
from giveaway.views.text import WORD

SAMPLE = 4_096  # records at random that distances are taken to
NUMBERS = 1 << 22  # of the sample at most
NEAREST = 10  # records of the same class whose distances are split over the columns
TYPICAL = 64  # records that tell how far each column keeps nearest records apart anyway
COLUMNS = 8  # that keep a record apart most: what is said is of these
FEW_VALUES = 20  # a column of numbers with no more is compared by equality, others from the value outwards
RARE = 1e-3  # of the records, but three at least: so many are few
FIRST = 3  # of the columns: a value that is rare in these is told before all else
FRACTION = 0.25  # of what chance would give: so much less is told
PULL = 3.0  # standard deviations by which the texts with a word are of one class more often than all texts
LETTERS = 40  # of a value or a word


class Clause(NamedTuple):
    """Part of a sentence, without and with what records hold; empty where there is nothing to say."""

    named: str = ""
    shown: str = ""


def own_terms(
    head: Head, rows: np.ndarray, near: np.ndarray, kind: str, classes: np.ndarray | None, said: np.ndarray | None
) -> list[Clause]:
    """Return a clause for each of `rows`. `near` (r, k) are the numbers of their nearest records, `kind` is what the
    view took the records for, `classes` (n,) what they are called, and `said` (n,) what the others predict."""
    clauses = [Clause()] * len(rows)
    if kind == "tabular":
        table = TableTerms(head.inputs, rows, classes)
        differs = np.zeros(len(rows), dtype=bool) if said is None or classes is None else (said != classes)[rows]
        clauses = [table.clause(place, bool(odd)) for place, odd in enumerate(differs)]
    elif kind == "text":
        clauses = _words(head.inputs, rows, classes, said)
    if classes is None:
        return clauses
    things = {"images": "images", "text": "texts"}.get(kind, "records")
    around = [
        _nearest(things, classes[row], classes[others[others >= 0]]) for row, others in zip(rows, near, strict=True)
    ]
    return [clause if clause.named else nearest for clause, nearest in zip(clauses, around, strict=True)]


def _nearest(things: str, own: Any, called: np.ndarray) -> Clause:
    if not (called != own).any():
        return Clause()
    *first, last = [shown_text(name, LETTERS) for name in called.tolist()]
    words = f"{', '.join(first)} and {last}" if first else last
    all_called = f"all called {last}" if {*first} == {last} else f"called {words}"
    said = f"its nearest {things} are {all_called}, it is called {shown_text(own, LETTERS)}"
    return Clause(said, said)


class TableTerms:
    """The columns of a table, and what sets some of its rows apart in them."""

    def __init__(self, inputs: Any, rows: np.ndarray, classes: np.ndarray | None) -> None:
        self._inputs = inputs if hasattr(inputs, "iloc") else np.asarray(inputs).reshape(len(inputs), -1)
        self._rows, self._classes, n, width = rows, classes, len(inputs), self._inputs.shape[1]
        names = list(inputs.columns) if hasattr(inputs, "columns") else [f"column {k}" for k in range(width)]
        self._names = [shown_text(name, LETTERS) for name in names]
        self._column = lru_cache(maxsize=4 * COLUMNS)(lambda k: column_of(self._inputs, k))
        drawn = np.random.default_rng(0).permutation(n)[: max(NEAREST, min(SAMPLE, NUMBERS // width))]
        self._places = np.concatenate([rows, drawn])  # those to explain, and the sample
        parts = [_standardized(column_of(self._inputs, k)[self._places]) for k in range(width)]
        self._number, self._level, self._weight, several = (np.stack(part, -1) for part in zip(*parts, strict=True))
        self._several = several > FEW_VALUES
        typical = [self._apart(len(rows) + place) for place in range(min(TYPICAL, len(drawn)))]
        self._typical = np.median(typical, axis=0)

    def clause(self, place: int, contradicted: bool) -> Clause:
        """Say in which columns, one or two together, few records are alike, or few of those are called as the row is;
        the latter first where the others contradict the row. Nothing where neither is so."""
        row, n, beyond = self._rows[place], len(self._inputs), self._apart(place) - self._typical
        columns = [k for k in np.argsort(-beyond, kind="stable")[:COLUMNS].tolist() if beyond[k] > 0]
        if not columns:
            return Clause()
        conditions = [self._alike(k, row) for k in columns]
        alike = np.stack([mask for mask, *_ in conditions]).astype(np.float64)
        own = None if self._classes is None else self._classes[row]
        same = np.zeros(n) if self._classes is None else (self._classes == own).astype(np.float64)
        counts, called = (np.rint(part @ alike.T).astype(np.int64) for part in (alike, alike * same))
        lift = counts * n / np.outer(counts.diagonal(), counts.diagonal())  # 1 of two columns that do not go together
        np.fill_diagonal(lift, 0.0)
        rare, odd = (counts <= max(3, round(RARE * n))) & (lift <= FRACTION), called < FRACTION * same.mean() * counts
        first = np.zeros_like(rare)
        np.fill_diagonal(first[:FIRST, :FIRST], rare.diagonal()[:FIRST])
        share = called / (counts + 1)  # of the others, and one more of each kind
        order = [(first, ~first), *((odd, share), (rare, lift))[:: 1 if contradicted else -1]]
        told = next(((which, cost) for which, cost in order if which.any()), None)
        if told is None:
            return Clause()
        a, b = divmod(int(np.where(told[0], told[1], np.inf).argmin()), len(columns))
        names, words = (
            " and ".join(dict.fromkeys(pair)) for pair in zip(conditions[a][1:], conditions[b][1:], strict=True)
        )
        count, of_class = int(counts[a, b]), int(called[a, b])
        if not rare[a, b]:
            end = f"{'is' if of_class == 1 else 'are'} called {shown_text(own, LETTERS)}"
            only = f"only {of_class} of the {count} records"
            return Clause(f"{only} with {names} {end}", f"{only} with {words} {end}")
        if count == 1:
            return Clause(f"no other record has {names}", f"no other record has {words}")
        return Clause(f"only {count} records have {names}", f"only {count} records have {words}")

    def _apart(self, place: int) -> np.ndarray:
        """Split the squared distance to the nearest records of the same class over the columns, on average."""
        pool = np.arange(len(self._rows), len(self._places))
        pool = pool[self._places[pool] != self._places[place]]
        if self._classes is not None:
            same = pool[self._classes[self._places[pool]] == self._classes[self._places[place]]]
            pool = same if len(same) else pool
        squares = np.square(self._number[pool] - self._number[place])
        squares += (self._level[pool] != self._level[place]) * (self._weight[pool] + self._weight[place])
        return squares[np.argsort(squares.sum(1), kind="stable")[:NEAREST]].mean(0)

    def _alike(self, k: int, row: int) -> tuple[Any, str, str]:
        """Return which records are like the row in a column, and the condition in words, without its value and with it:
        of the same value, or in a column of many numbers at least as far out."""
        values, name = self._column(k), self._names[k]
        value, text = values[row], values.dtype.kind == "U"
        if not text and np.isnan(value):
            return np.isnan(values), f"its {name}", f"no {name}"
        sign = "=" if text or not self._several[k] else "≤" if value < np.nanmedian(values) else "≥"
        alike = {"=": np.equal, "≤": np.less_equal, "≥": np.greater_equal}[sign](values, value)
        told = (
            shown_text(value, LETTERS) if text else f"{value:g}" if float(f"{value:g}") == value else repr(float(value))
        )
        named = {"=": f"its {name}", "≤": f"{name} as low", "≥": f"{name} as high"}[sign]
        return alike, named, f"{name} {sign} {told}"


def _standardized(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return a column as the view measures distances in it: standardized numbers, levels (of numbers: whether one is
    missing), what two different levels add for each of them, and how many values there are."""
    text = values.dtype.kind == "U"
    found, level, counts = np.unique(values if text else np.isnan(values), return_inverse=True, return_counts=True)
    share = counts / len(values)
    weight = (1.0 if text else 0.5) / np.maximum(share * (1.0 - share), 1e-9)
    numbers = np.zeros(len(values))
    if not text and not np.isnan(values).all():
        spread = np.nanstd(values)
        numbers = np.nan_to_num((values - np.nanmean(values)) / spread) if spread > 0 else numbers
    return numbers, level, weight[level], len(found) if text else len(np.unique(values))


def _words(texts: list[str], rows: np.ndarray, classes: np.ndarray | None, said: np.ndarray | None) -> list[Clause]:
    """Say which words of a text speak for what the others predict, or stand in no other text."""
    known = sorted({word for row in rows for word in WORD.findall(texts[row].lower())})
    if not known:
        return [Clause()] * len(rows)
    from sklearn.feature_extraction.text import CountVectorizer  # slow to import, and few audits are of texts

    counter = CountVectorizer(vocabulary=known, token_pattern=WORD.pattern, binary=True)
    held = counter.transform(texts).tocsr()
    total = np.asarray(held.sum(0)).ravel()
    clauses = []
    for row in rows:
        own = held[row].indices[np.argsort(total[held[row].indices], kind="stable")]
        others, clause = total[own] - 1, Clause()
        if alone := [f"“{shown_text(known[k], LETTERS)}”" for k in own[others == 0].tolist()]:
            words = "one of its words is" if len(alone) == 1 else f"{len(alone)} of its words are"
            clause = Clause(f"{words} in no other text", f"no other text has {' or '.join(alone[:3])}")
        if classes is not None and said is not None and said[row] != classes[row]:
            of_said = said[row] == classes
            even, counted = of_said.mean(), np.asarray(held[of_said][:, own].sum(0)).ravel()
            pull = (counted - others * even) / np.sqrt(np.maximum(others * even * (1.0 - even), 1.0))
            share = np.where(pull >= PULL, (counted + 1) / (others + 2), 0.0)
            if len(own) and share[k := int(share.argmax())] >= (1.0 + even) / 2:
                end = f", {counted[k]} are called {shown_text(said[row], LETTERS)}"
                texts_with = f"of the {others[k]} other texts with"
                shown = f"{texts_with} “{shown_text(known[own[k]], LETTERS)}”{end}"
                clause = Clause(f"{texts_with} one of its words{end}", shown)
        clauses.append(clause)
    return clauses
