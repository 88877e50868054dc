"""The folder of a shadow ensemble: one file a finished model, then one array of all of them, as Signals saves it.

A finished model is model-K.npy, written to a temporary name and renamed, until all the models asked for are there.
Then the rows are copied, one at a time, into values.npy (population.npy), and the files of single models go away. At
no moment is a finished model held in only half a file, so a killed run goes on where it was. seconds.csv has a line a
finished model: its number, and how long it took.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch

from giveaway.attacks.membership import model_membership, model_seed
from giveaway.checks import check_choice, fail
from giveaway.records.signals import ARRAYS, KINDS, MARKER, Signals
from giveaway.storage.arrays import array_digest, write_npy
from giveaway.storage.files import write_atomically, write_json
from giveaway.storage.folder import MarkedFolder
from giveaway.version import VERSION

SECONDS = "seconds.csv"


class EnsemblePlan(Protocol):
    """Which models there are, what each is trained on, and what is kept of it: all that a store needs to know."""

    @property
    def records(self) -> int: ...
    @property
    def models(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def labels(self) -> Any: ...
    @property
    def population(self) -> int: ...
    @property
    def population_labels(self) -> Any: ...
    @property
    def rows(self) -> int:
        """What is stored of a model: records and population points."""
        ...

    @property
    def asked(self) -> int:
        """The rows that a model is asked about."""
        ...

    @property
    def kept(self) -> slice | np.ndarray:
        """Which of the rows asked about are stored."""
        ...

    def members(self, number: int) -> np.ndarray:
        """(records,) of bool: which of the records stored model `number` is trained on."""
        ...

    def indices(self, number: int) -> np.ndarray:
        """Row numbers of the training set of model `number`."""
        ...

    def seed_of(self, number: int) -> int:
        """The seed that model `number` is trained with."""
        ...

    def name_of(self, number: int) -> str:
        """Model `number` in words."""
        ...

    def provenance(self) -> dict[str, Any]:
        """Everything that must stay the same when a run is resumed or more models are added."""
        ...


@dataclass(frozen=True, eq=False)
class ShadowPlan:
    """What decides a shadow ensemble's signals besides its training function; `fingerprint` names the rest."""

    records: int
    models: int
    kind: str
    fingerprint: Mapping[str, Any]
    seed: int = 0
    labels: Any = None
    population: int = 0
    population_labels: Any = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        if self.models < 2 or self.models % 2:
            remedy = "half of them leave each record out: ask for pairs"
            raise fail("models", "an even number of models", str(self.models), remedy)
        if self.records < 2 or self.population < 0:
            got = f"{self.records} records and {self.population} points of a population"
            raise fail("records", "at least two records", got, "pass more records")
        for name, rows in (("labels", self.records), ("population_labels", self.population)):
            known = getattr(self, name)
            if known is None:
                if self.kind in ("logits", "probabilities") and rows:
                    raise fail(name, "a class index a record", "none", f"signals of kind {self.kind!r} need labels")
            elif np.shape(known) != (rows,):
                raise fail(name, f"{rows} class indices", f"shape {np.shape(known)}", "align them with the records")

    @property
    def rows(self) -> int:
        """Records and population points: what every model is asked about."""
        return self.records + self.population

    @property
    def asked(self) -> int:
        """The same: all of them are stored."""
        return self.rows

    @property
    def kept(self) -> slice:
        """All rows."""
        return slice(None)

    def members(self, number: int) -> np.ndarray:
        """(records,) of bool: the training set of model `number`."""
        return model_membership(number, self.records, seed=self.seed)

    def indices(self, number: int) -> np.ndarray:
        """Its row numbers."""
        return np.flatnonzero(self.members(number))

    def seed_of(self, number: int) -> int:
        """The seed that model `number` is trained with."""
        return model_seed(number, seed=self.seed)

    def name_of(self, number: int) -> str:
        """Model and seed, in words."""
        return f"model {number} (seed {self.seed_of(number)})"

    def provenance(self) -> dict[str, Any]:
        """Everything that must stay the same when a run is resumed or more models are added."""
        given = {
            "split": "complementary halves",
            "records": self.records,
            "population": self.population,
            "kind": self.kind,
            "seed": self.seed,
            "labels": None if self.labels is None else np.asarray(self.labels),
            "population_labels": None if self.population_labels is None else np.asarray(self.population_labels),
        }
        return summaries(given, self.fingerprint)


class ShadowFolder(MarkedFolder):
    """A folder that shadow models were trained into."""

    marker, kind, locks = "shadow.json", "shadow folder", True
    names = "|".join(map(re.escape, (MARKER, SECONDS, *(f"{name}.npy" for name in ARRAYS)))) + r"|model-\d{6,}\.npy"


class ShadowStore(ShadowFolder):
    """The finished models of one plan in one folder; made by `open_store`, which holds the folder's lock."""

    def __init__(self, path: str | os.PathLike[str], plan: EnsemblePlan, *, temporary: bool) -> None:
        super().__init__(path)
        self.plan, self.temporary = plan, temporary
        self._form: tuple[np.dtype[Any], tuple[int, ...]] | None = None

    def finished(self) -> set[int]:
        """Numbers of the models whose signals are stored, asked for or not."""
        alone = {int(file.stem.split("-")[1]) for file in self.path.glob("model-*.npy")}
        return alone | set(range(self._assembled()))

    def put(self, number: int, row: np.ndarray, seconds: float) -> None:
        """Store the signals of a finished model, and how long it took."""
        if self._form is None:
            known = next((self._row(other) for other in self.finished()), row)
            self._form = (known.dtype, known.shape)
        if (row.dtype, row.shape) != self._form:
            expected = f"{self._form[0]} of shape {self._form[1]} as from the other models"
            raise fail("predict", expected, f"{row.dtype} of shape {row.shape}", "return the same from every model")
        # first the seconds: of a model trained again after a kill between the two, the last line counts
        with open(os.open(self.path / SECONDS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as stream:
            stream.write(f"{number},{seconds:.6f}\n")
        write_atomically(self._file(number), partial(np.save, arr=row, allow_pickle=False))

    def signals(self) -> Signals:
        """The signals of the plan's models, memory-mapped; every one of them must be finished."""
        if not (self.path / MARKER).is_file() or self._assembled() < self.plan.models:
            self._assemble()
        return Signals.load(self.path).of_models(slice(self.plan.models))

    def _assemble(self) -> None:
        plan, count = self.plan, max(self.plan.models, self._assembled())
        (self.path / MARKER).unlink(missing_ok=True)
        parts = {"values": slice(plan.records)}
        if plan.population:
            parts["population"] = slice(plan.records, None)
        for name, part in parts.items():
            rows = (self._row(number)[part] for number in range(count))
            self._write_rows(name, rows, count)
        self._write_rows("members", (plan.members(number) for number in range(count)), count)
        labels = {"labels": plan.labels, "population_labels": plan.population_labels if plan.population else None}
        stored = {name: np.asarray(array) for name, array in labels.items() if array is not None}
        for name, array in stored.items():
            write_atomically(self.path / f"{name}.npy", partial(np.save, arr=array, allow_pickle=False))
        write_json(self.path / MARKER, {"kind": plan.kind, "arrays": [*parts, "members", *stored]})
        for number in range(count):
            self._file(number).unlink(missing_ok=True)

    def _write_rows(self, name: str, rows: Iterator[np.ndarray], count: int) -> None:
        """Write one .npy of `count` rows, row by row."""
        first = next(rows)

        def write(stream: BinaryIO) -> None:
            write_npy(stream, first.dtype, (count, *first.shape), chain([first], rows))

        write_atomically(self.path / f"{name}.npy", write)

    def _row(self, number: int) -> np.ndarray:
        """The stored signals of a model on records and population points."""
        if self._file(number).is_file():
            return np.load(self._file(number), mmap_mode="r", allow_pickle=False)
        parts = [self._array("values")[number]]
        if self.plan.population:
            parts.append(self._array("population")[number])
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _assembled(self) -> int:
        names = ("values", "population") if self.plan.population else ("values",)
        return min(len(self._array(name)) if (self.path / f"{name}.npy").is_file() else 0 for name in names)

    def _array(self, name: str) -> np.ndarray:
        return np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False)

    def _file(self, number: int) -> Path:
        return self.path / f"model-{number:06d}.npy"


@contextmanager
def open_store(folder: str | os.PathLike[str] | None, plan: EnsemblePlan) -> Iterator[ShadowStore]:
    """The folder's store for as long as the block runs: refused to a second run, and to a plan that differs.

    Without a folder it is a temporary one; signals that were read from it stay in their memory map.
    """
    with tempfile.TemporaryDirectory(prefix="giveaway-") if folder is None else nullcontext(folder) as place:
        store = ShadowStore(place, plan, temporary=folder is None)
        store.claim()
        with store.locked():
            for unfinished in store.path.glob(".*.part"):  # what a killed run was writing
                unfinished.unlink()
            expected = plan.provenance()
            if store.marked:
                store.check(store.read(), expected, "shadow models of the same plan", "train them in another folder")
            else:
                store.write(expected)
            yield store


def stored_seconds(folder: str | os.PathLike[str], models: int) -> float | None:
    """What training the first `models` models of a folder took, summed; None where it is not known of all of them."""
    file = Path(folder) / SECONDS
    if not file.is_file():  # trained elsewhere, or before the seconds were kept
        return None
    whole = re.findall(r"^(\d+),(\d+\.\d{6})$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    known = {int(number): float(seconds) for number, seconds in whole}
    return sum(known[number] for number in range(models)) if known.keys() >= set(range(models)) else None


def summaries(given: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance from what a plan knows and what its user names, arrays by their hash."""
    known = {"giveaway": VERSION, **given}
    taken = sorted({*known} & {*fingerprint})
    if taken:
        raise fail("fingerprint", "names of its own", ", ".join(taken), "these are checked anyway: leave them out")
    return {name: _summary(value) for name, value in {**known, **fingerprint}.items()}


def _summary(value: Any) -> Any:
    """Arrays by their hash, block by block; anything else as JSON gives it back."""
    if isinstance(value, np.ndarray | torch.Tensor) and value.ndim and value.dtype != object:
        return f"sha256 {array_digest(value)}"
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        expected = "arrays, numbers, strings, or lists and mappings of them"
        raise fail("fingerprint", expected, type(value).__name__, "name what the signals depend on") from error
