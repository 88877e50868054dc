"""ScoreTable: one row a record (or person), one column a score; high means more exposed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from giveaway.checks import InputError, check_names, check_number, fail, nearest
from giveaway.files import private_folder, read_arrays, write_atomically, write_json, write_text

DEFAULT_RANKING = ("fused", "newton")
MARKER = "audit.json"
FORMULA_STARTS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


@dataclass(frozen=True, eq=False, repr=False)
class ScoreTable:
    """Scores of every row. `attributes` are facts about a row that are no score (class, capped, records)."""

    scores: Mapping[str, np.ndarray]
    ids: np.ndarray
    meta: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, np.ndarray] = field(default_factory=dict)

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
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the scores."""
        return tuple(self.scores)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self.scores:
            return self.scores[name]
        if name in self.attributes:
            return self.attributes[name]
        raise fail("column", "a column of this table", repr(name), nearest(name, [*self.scores, *self.attributes]))

    def ranking(self, by: str | None = None) -> str:
        """The column that `by` stands for: itself, or fused, newton or the only one there is."""
        if by is not None:
            if by not in self.scores:
                raise fail("by", "a score of this table", repr(by), nearest(by, self.scores))
            return by
        for name in DEFAULT_RANKING:
            if name in self.scores:
                return name
        return self.columns[0]

    def order(self, by: str | None = None) -> np.ndarray:
        """Row numbers from the most to the least exposed; ties stay in row order."""
        return np.argsort(-self.scores[self.ranking(by)], kind="stable")

    def rank(self, by: str | None = None) -> np.ndarray:
        """Every row's rank, 1 for the most exposed."""
        ranks = np.empty(len(self), dtype=np.int64)
        ranks[self.order(by)] = np.arange(1, len(self) + 1)
        return ranks

    def top(self, k: int = 10, by: str | None = None) -> ScoreTable:
        """The k most exposed rows, the most exposed first."""
        k = int(check_number("k", k, minimum=1, remedy="ask for at least one row"))
        return self._take(self.order(by)[:k])

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """One line a row in row order, `id` first; no cell can start a spreadsheet formula."""
        write_text(path, self._csv())

    def to_pandas(self) -> Any:
        """A pandas DataFrame indexed by id."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas: expected pandas installed, got none; pip install giveaway[pandas]") from error
        return pandas.DataFrame(self._named_columns(), index=pandas.Index(self.ids, name="id"))

    def save(self, folder: str | os.PathLike[str], name: str = "scores") -> None:
        """Write {name}.npz, {name}.csv and audit.json, which lists them, into a private folder, each atomically."""
        path = private_folder(folder)
        self.save_columns(path, name)
        write_json(path / MARKER, {**self.meta, "files": [f"{name}.npz", f"{name}.csv", MARKER]})

    def save_columns(self, folder: Path, name: str) -> None:
        """Write {name}.npz, which `load` reads, and {name}.csv into a folder that exists."""
        arrays = {f"score:{k}": v for k, v in self.scores.items()}
        arrays |= {f"attribute:{k}": v for k, v in self.attributes.items()}
        arrays |= {"ids": self.ids, "meta": np.array(json.dumps(dict(self.meta), allow_nan=False))}
        write_atomically(folder / f"{name}.npz", lambda stream: np.savez(stream, allow_pickle=False, **arrays))
        self.to_csv(folder / f"{name}.csv")

    @classmethod
    def load(cls, folder: str | os.PathLike[str], name: str = "scores") -> ScoreTable:
        """Read what `save` wrote."""
        path = Path(folder) / f"{name}.npz"
        if not path.is_file():
            raise fail("folder", f"an audit folder with {name}.npz", str(folder), "run giveaway audit there first")
        arrays = read_arrays("folder", path, "ScoreTable.save")
        if not {"meta", "ids"} <= arrays.keys():
            raise fail("folder", f"{name}.npz of an audit", "another .npz", "name the folder given to --out")
        meta = json.loads(str(arrays.pop("meta")))
        ids = arrays.pop("ids")
        split = {key: key.split(":", 1) for key in arrays}
        return cls(
            scores={split[key][1]: arrays[key] for key in arrays if split[key][0] == "score"},
            attributes={split[key][1]: arrays[key] for key in arrays if split[key][0] == "attribute"},
            ids=ids,
            meta=meta,
        )

    def __repr__(self) -> str:
        shown = self._take(np.arange(min(10, len(self))))
        columns = {"id": [str(i) for i in shown.ids]}
        columns |= {k: [_cell(v) for v in values] for k, values in shown._named_columns().items()}
        widths = {k: max(len(k), *map(len, cells)) for k, cells in columns.items()} if len(shown) else {}
        lines = ["  ".join(k.rjust(widths.get(k, len(k))) for k in columns)]
        lines += ["  ".join(columns[k][i].rjust(widths[k]) for k in columns) for i in range(len(shown))]
        more = f"\n… {len(self) - len(shown)} more rows" if len(self) > len(shown) else ""
        return "\n".join(lines) + more

    def _take(self, rows: np.ndarray) -> ScoreTable:
        return ScoreTable(
            scores={k: v[rows] for k, v in self.scores.items()},
            attributes={k: v[rows] for k, v in self.attributes.items()},
            ids=self.ids[rows],
            meta=self.meta,
        )

    def _named_columns(self) -> dict[str, np.ndarray]:
        return {**self.attributes, **self.scores}

    def _csv(self) -> str:
        columns = {"id": self.ids, **self._named_columns()}
        listed = [[_csv_text(value) for value in values.tolist()] for values in columns.values()]
        lines = [map(_csv_text, columns), *zip(*listed, strict=True)]
        return "".join(",".join(line) + "\n" for line in lines)


def _csv_text(value: Any) -> str:
    if not isinstance(value, str):
        return repr(value)
    if value.lstrip().startswith(FORMULA_STARTS):
        value = "'" + value
    # not the csv module, which leaves a lone carriage return bare: what follows it would start a row of its own
    return '"' + value.replace('"', '""') + '"' if any(mark in value for mark in ',"\r\n') else value


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
