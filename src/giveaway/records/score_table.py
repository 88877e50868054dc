"""ScoreTable: one row a record (or person), one column a score; high means more exposed."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from textwrap import wrap
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from giveaway.checks import ROWS_PER_CHECK, InputError, check_names, check_number, fail, nearest
from giveaway.records.meta import Meta
from giveaway.records.reasons import NOTHING, OwnTerms, why
from giveaway.records.row_digests import RowDigests
from giveaway.storage.arrays import packed, read_arrays, reading, unpacked
from giveaway.storage.files import parse_json, write_atomically
from giveaway.storage.folder import MarkedFolder
from giveaway.text import csv_cell, shown_cell, shown_text

DEFAULT_RANKING = ("fused", "newton")
MARKER = "audit.json"
ROWS_SHOWN = 10
REASON = 600  # letters of a reason at most
LINE = 120  # letters of what is printed


class TableFolder(MarkedFolder):
    marker, kind, links, again = MARKER, "audit folder", True, "run giveaway audit, or validate, again"


@dataclass(frozen=True, eq=False, repr=False)
class ScoreTable:
    """Scores of every row. `attributes` are facts about a row that are no score (class, capped, records); `meta` may be
    given as the dictionary that audit.json holds; by `digests` signals of other models are known to be of its records,
    which stay in the audit's folder; `own_terms` are for the reasons, and hold contents of records."""

    scores: Mapping[str, np.ndarray]
    ids: np.ndarray
    meta: Meta = field(default_factory=Meta)
    attributes: Mapping[str, np.ndarray] = field(default_factory=dict)
    digests: RowDigests | None = None
    own_terms: OwnTerms | None = None

    def __post_init__(self) -> None:
        n = len(self.ids)
        if not self.scores:
            raise fail("scores", "at least one column", "none", "name the scores of the table")
        scores = {name: np.asarray(values, dtype=np.float64) for name, values in self.scores.items()}
        attributes = {name: np.asarray(values) for name, values in self.attributes.items()}
        for name, values in (scores | attributes).items():
            if values.shape != (n,):
                raise fail(name, f"{n} values, one a row", f"shape {values.shape}", "align the column with the ids")
        for name, values in scores.items():
            if not np.isfinite(values).all():
                row = int(np.flatnonzero(~np.isfinite(values))[0])
                raise fail(name, "finite scores", f"{values[row]} in row {row}", "report this: a score is never NaN")
        object.__setattr__(self, "ids", check_names("ids", self.ids, n, unique=True))
        object.__setattr__(self, "scores", MappingProxyType(scores))
        object.__setattr__(self, "attributes", MappingProxyType(attributes))
        if self.digests is not None:
            self.digests.check(n)
        if not isinstance(self.meta, Meta):
            object.__setattr__(self, "meta", Meta.from_json(self.meta))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the scores."""
        return tuple(self.scores)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, name: str) -> np.ndarray:
        columns = {**self.attributes, **self.scores}
        if name not in columns:
            raise fail("column", "a column of this table", repr(name), nearest(name, [*self.scores, *self.attributes]))
        return columns[name]

    def ranking(self, by: str | None = None) -> str:
        """Return the column to rank by: `by`, or by default fused, else newton, else the first."""
        if by is not None:
            if by not in self.scores:
                raise fail("by", "a score of this table", repr(by), nearest(by, self.scores))
            return by
        return next(name for name in (*DEFAULT_RANKING, *self.columns) if name in self.scores)

    def order(self, by: str | None = None) -> np.ndarray:
        """Return row numbers from the most to the least exposed; ties stay in row order."""
        return np.argsort(-self.scores[self.ranking(by)], kind="stable")

    def rank(self, by: str | None = None) -> np.ndarray:
        """Return every row's rank, 1 for the most exposed."""
        ranks = np.empty(len(self), dtype=np.int64)
        ranks[self.order(by)] = np.arange(1, len(self) + 1)
        return ranks

    def top(self, k: int = 10, by: str | None = None, *, show_records: bool = False) -> "ScoreTable":
        """Return the k most exposed rows, the most exposed first, with their `rank` and `why`; `by` comes first. With
        `show_records` the reasons hold values and words of the records."""
        k = int(check_number("k", k, minimum=1, remedy="ask for at least one row"))
        rows, by = self.order(by)[:k], self.ranking(by)
        scores = {name: self.scores[name][rows] for name in (by, *self.scores)}
        reasons = why(self, rows, nearest=False, contents=show_records)
        attributes = {"rank": self.rank(by)[rows], "why": np.array(reasons, dtype=str)}
        attributes |= {name: values[rows] for name, values in self.attributes.items()}
        return ScoreTable(scores, self.ids[rows], self.meta, attributes)

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write one line a row in row order, `id` first; no cell can start a spreadsheet formula."""
        write_atomically(path, self.write_csv)

    def write_csv(self, stream: BinaryIO) -> None:
        columns = {"id": self.ids, **self.attributes, **self.scores}
        lines: Iterable[Iterable[str]] = [map(csv_cell, columns)]
        for start in range(0, len(self) + ROWS_PER_CHECK, ROWS_PER_CHECK):
            text = "".join(",".join(line) + "\n" for line in lines)
            stream.write(text.encode("utf-8", "backslashreplace"))
            block = slice(start, start + ROWS_PER_CHECK)
            lines = zip(*(map(csv_cell, values[block].tolist()) for values in columns.values()), strict=True)

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame indexed by id."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas: expected pandas installed, got none; pip install pandas") from error
        return pandas.DataFrame({**self.attributes, **self.scores}, index=pandas.Index(self.ids, name="id"))

    def save(self, folder: str | os.PathLike[str], name: str = "scores") -> None:
        """Write {name}.npz, {name}.csv, {name}-digests.npz and audit.json into a private folder: all, or none. What
        records hold is left out."""
        terms = None if self.own_terms is None else self.own_terms.withheld()
        with TableFolder(folder).locked(new=True, among_others=True) as place:
            replace(self, own_terms=terms).stage(place, name)
            place.commit(self.meta.to_json())

    def stage(self, folder: MarkedFolder, name: str) -> None:
        """Write {name}.npz, which `load` reads, and {name}.csv for the next commit of a folder."""
        arrays = {f"score:{k}": v for k, v in self.scores.items()}
        arrays |= {f"attribute:{k}": v for k, v in self.attributes.items()}
        if self.own_terms is not None:
            arrays |= {f"own:{name}": part for name, part in vars(self.own_terms).items() if part is not None}
        arrays |= {"ids": self.ids, "meta": np.array(json.dumps(self.meta.to_json(), allow_nan=False))}
        folder.stage(f"{name}.npz", lambda stream: np.savez(stream, allow_pickle=False, **packed(arrays)))
        folder.stage(f"{name}.csv", self.write_csv)
        if self.digests is not None:
            self.digests.stage(folder, f"{name}-digests.npz")

    @classmethod
    def load(cls, folder: str | os.PathLike[str], name: str = "scores") -> "ScoreTable":
        """Read what `save` wrote."""
        place = TableFolder(folder)
        if not (path := place.verified(f"{name}.npz")).is_file():
            raise fail("folder", f"an audit folder with {name}.npz", str(folder), "run giveaway audit there first")
        stored = read_arrays("folder", path, "ScoreTable.save")
        with reading("folder", path, "file written by ScoreTable.save"):
            arrays = unpacked(stored)
            if not {"meta", "ids"} <= arrays.keys():
                raise fail("folder", f"{name}.npz of an audit", "another .npz", "name the folder given to --out")
            scores, attributes, terms = (
                {key.removeprefix(kind): values for key, values in arrays.items() if key.startswith(kind)}
                for kind in ("score:", "attribute:", "own:")
            )
            if any(values.dtype.kind not in "fiubU" for values in attributes.values()):
                raise ValueError("other columns")
            meta = Meta.from_json(parse_json(str(arrays["meta"])))
            digests = RowDigests.load(place, f"{name}-digests.npz")
            return cls(scores, arrays["ids"], meta, attributes, digests, OwnTerms(**terms) if terms else None)

    def __repr__(self) -> str:
        """Return a line for each of the most exposed rows: rank, id, class, score and why, their names first."""
        by = self.columns[0] if "rank" in self.attributes else self.ranking()
        shown = self if "rank" in self.attributes else self.top(ROWS_SHOWN)
        known = {"id": shown.ids, **shown.attributes, **shown.scores}
        told = dict.fromkeys(("rank", "id", "class", "target", "records", by, self.ranking()))
        names = [name for name in told if name in known]
        columns = [[shown_text(name), *map(shown_cell, known[name][:ROWS_SHOWN].tolist())] for name in names]
        widths = [max(map(len, column)) for column in columns]
        starts = ["  ".join(map(str.rjust, cells, widths)) for cells in zip(*columns, strict=True)]
        reasons = ["why", *(shown_text(one, REASON) for one in shown["why"][:ROWS_SHOWN])]
        if set(reasons[1:]) <= {NOTHING}:
            reasons = [""] * len(starts)
        room, lines = max(40, LINE - len(starts[0]) - 2), []
        for start, reason in zip(starts, reasons, strict=True):
            first, *more = wrap(reason, room) or [""]
            lines += [f"{start}  {first}".rstrip(), *(f"{'':{len(start)}}  {text}" for text in more)]
        hidden = len(self) - ROWS_SHOWN
        return "\n".join([*lines, *([f"… {hidden} more rows"] if hidden > 0 else [])])

    def _repr_html_(self) -> str:
        return f"<p>A ranking, not a count; a low score is not evidence of safety.</p><pre>{escape(repr(self))}</pre>"
