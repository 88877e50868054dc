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
from typing import Any, BinaryIO

import numpy as np
import torch

from giveaway.checks import check_choice, fail
from giveaway.records.signals import ARRAYS, KINDS, MARKER, Signals
from giveaway.storage.arrays import array_digest, write_npy
from giveaway.storage.files import MarkedFolder, write_atomically, write_json
from giveaway.version import VERSION

SECONDS = "seconds.csv"
HALVES, SEEDS = 0, 1  # streams of random numbers that do not meet
PAIRS = "half of them leave each record out: ask for pairs"


def balanced_membership(models: int, records: int, *, seed: int, first: int = 0) -> np.ndarray:
    """Choose (models, records) of bool: every record is in exactly half of the models, and half the records in each.

    Models come in pairs, and the second of a pair gets the half of the records that the first did not. A pair is
    drawn from `seed` and its own number, so that more models (`first` on) leave the earlier rows as they were.

    >>> balanced_membership(4, 6, seed=0).sum(axis=0)
    array([2, 2, 2, 2, 2, 2])
    """
    if models < 2 or models % 2 or first < 0 or first % 2:
        got = f"{models}" + (f" from model {first} on" if first else "")
        raise fail("models", "an even number of models", got, PAIRS)
    if records < 2:
        raise fail("records", "at least two records", str(records), "pass more records")
    return np.stack([model_membership(first + row, records, seed=seed) for row in range(models)])


def model_membership(number: int, records: int, *, seed: int) -> np.ndarray:
    """Return row `number` of `balanced_membership`."""
    pair, second = divmod(number, 2)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(HALVES, pair)))
    half = np.zeros(records, dtype=bool)
    half[rng.permutation(records)[: records // 2]] = True
    return ~half if second else half


def model_seed(number: int, *, seed: int) -> int:
    """Return the seed of model `number`, below 2³², from the ensemble's seed."""
    return int(np.random.SeedSequence(seed, spawn_key=(SEEDS, number)).generate_state(1)[0])


@dataclass(frozen=True, eq=False)
class ShadowPlan:
    """Which shadow models there are, what each is trained on, and what decides their signals.

    The training function is not part of it: `fingerprint` names what else the signals depend on.
    """

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
            raise fail("models", "an even number of models", str(self.models), PAIRS)
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
        """How many rows are stored of a model: records and population points."""
        return self.records + self.population

    @property
    def rows_predicted(self) -> int:
        """How many rows a model predicts."""
        return self.rows

    @property
    def rows_stored(self) -> slice | np.ndarray:
        """Which of the rows predicted are stored."""
        return slice(None)

    def members(self, number: int) -> np.ndarray:
        """Say which of the stored records model `number` is trained on: (records,) of bool."""
        return model_membership(number, self.records, seed=self.seed)

    def indices(self, number: int) -> np.ndarray:
        """Return the row numbers of the training set of model `number`."""
        return np.flatnonzero(self.members(number))

    def seed_of(self, number: int) -> int:
        """Return the seed that model `number` is trained with."""
        return model_seed(number, seed=self.seed)

    def name_of(self, number: int) -> str:
        """Name model `number` in an error."""
        return f"model {number} (seed {self.seed_of(number)})"

    def provenance(self) -> dict[str, Any]:
        """Return everything that must stay the same when a run is resumed or more models are added."""
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

    def __init__(self, path: str | os.PathLike[str], plan: ShadowPlan, *, temporary: bool) -> None:
        super().__init__(path)
        self.plan, self.temporary = plan, temporary
        self._form: tuple[np.dtype[Any], tuple[int, ...]] | None = None

    def finished(self) -> set[int]:
        """Return the numbers of the models whose signals are stored, asked for or not."""
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
        """Return the signals of the plan's models, memory-mapped; every one of them must be finished."""
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
        """Return the stored signals of a model on records and population points."""
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
def open_store(folder: str | os.PathLike[str] | None, plan: ShadowPlan) -> Iterator[ShadowStore]:
    """Hold the folder's store while the block runs; refuse a second run, and a plan that differs.

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
    """Sum what training the first `models` models of a folder took; None where it is not known of all of them."""
    file = Path(folder) / SECONDS
    if not file.is_file():  # trained elsewhere, or before the seconds were kept
        return None
    whole = re.findall(r"^(\d+),(\d+\.\d{6})$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    known = {int(number): float(seconds) for number, seconds in whole}
    return sum(known[number] for number in range(models)) if known.keys() >= set(range(models)) else None


def summaries(given: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Join what a plan knows and what its user names, arrays by their hash."""
    known = {"giveaway": VERSION, **given}
    taken = sorted({*known} & {*fingerprint})
    if taken:
        raise fail("fingerprint", "names of its own", ", ".join(taken), "these are checked anyway: leave them out")
    return {name: _summary(value) for name, value in {**known, **fingerprint}.items()}


def _summary(value: Any) -> Any:
    """Return the hash of an array, and anything else as JSON gives it back."""
    if isinstance(value, np.ndarray | torch.Tensor) and value.ndim and value.dtype != object:
        return f"sha256 {array_digest(value)}"
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        expected = "arrays, numbers, strings, or lists and mappings of them"
        raise fail("fingerprint", expected, type(value).__name__, "name what the signals depend on") from error
