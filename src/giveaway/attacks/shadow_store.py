"""Which shadow models there are, and the folder they are kept in: model-K.npy each until all the models asked for are
there, then values.npy (population.npy) of all; seconds.csv says how long each took. A killed run goes on. A slice of
the models is such a folder of its own, slices/A-B in that of all, so that machines which train slices never wait."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from giveaway.checks import check_choice, check_whole, fail
from giveaway.records.row_digests import RowDigests
from giveaway.records.signals import KINDS, MARKER, VECTORS, Signals, SignalsFolder, stage_digests
from giveaway.storage.arrays import array_digest, write_npy
from giveaway.storage.files import as_json
from giveaway.storage.folder import MarkedFolder
from giveaway.version import VERSION

SECONDS, ALONE, SLICES = "seconds.csv", "model-", "slices"  # the files of single models begin so
HALVES, SEEDS = 0, 1  # streams of random numbers that do not meet

Folder = str | os.PathLike[str]


def balanced_membership(models: int, records: int, *, seed: int, first: int = 0) -> np.ndarray:
    """Choose (models, records) of bool: every record is in exactly half of the models, and half the records in each.

    Models come in pairs, and the second of a pair gets the half of the records that the first did not. A pair is
    drawn from `seed` and its own number, so that more models (`first` on) leave the earlier rows as they were.

    >>> balanced_membership(4, 6, seed=0).sum(axis=0)
    array([2, 2, 2, 2, 2, 2])
    """
    _check_halves(models, records, first)
    return np.stack([model_membership(first + row, records, seed=seed) for row in range(models)])


def _check_halves(models: int, records: int, first: int = 0) -> None:
    if models < 2 or models % 2 or first < 0 or first % 2:
        got = f"{models}" + (f" from model {first} on" if first else "")
        raise fail("models", "an even number of models", got, "half of them leave each record out: ask for pairs")
    if records < 2:
        raise fail("records", "at least two records", str(records), "pass more records")


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


class TrainingJob(NamedTuple):
    """How one model is trained: the rows, the seed, which of the stored records are among the rows, and its name."""

    indices: np.ndarray
    seed: int
    members: np.ndarray
    name: str


@dataclass(frozen=True, eq=False)
class ShadowPlan:
    """Which models there are, `job(number)` of each, and what is stored of their predictions. Of the rows that a
    model predicts, `stored` are kept: the records, then the points of the population. `provenance` must stay the same
    when a run is resumed or more models are added. The kind is None until a model shows it. Of a slice, the models are
    those from `first` on."""

    records: int
    models: int
    kind: str | None
    job: Callable[[int], TrainingJob]
    provenance: Mapping[str, Any]
    stored: slice | np.ndarray
    labels: np.ndarray | None = None
    population: int = 0
    population_labels: np.ndarray | None = None
    first: int = 0

    @property
    def numbers(self) -> range:
        return range(self.first, self.models)

    def of_kind(self, kind: str) -> ShadowPlan:
        """Return the plan of models that turned out to give signals of this kind."""
        return replace(self, kind=kind, provenance={**self.provenance, "kind": kind})


def plan_of_halves(
    records: int,
    models: int,
    kind: str | None,
    fingerprint: Mapping[str, Any],
    seed: int = 0,
    labels: Any = None,
    population: int = 0,
    population_labels: Any = None,
) -> ShadowPlan:
    """Plan models that are trained on half of the records each, as `balanced_membership` chooses them. `fingerprint`
    names what the signals depend on besides the split; the training function is not known here."""
    if kind is not None:
        check_choice("kind", kind, KINDS)
    _check_halves(models, records)
    check_whole("population", population, 0)
    for name, known, rows in (("labels", labels, records), ("population_labels", population_labels, population)):
        if known is None and kind in VECTORS and rows:
            raise fail(name, "a class index a record", "none", f"signals of kind {kind!r} need labels")
        if known is not None and np.shape(known) != (rows,):
            raise fail(name, f"{rows} class indices", f"shape {np.shape(known)}", "align them with the records")
    labels, population_labels = (None if known is None else np.asarray(known) for known in (labels, population_labels))
    given = {"split": "complementary halves", "records": records, "population": population, "kind": kind, "seed": seed}
    given |= {"labels": labels, "population_labels": population_labels}

    def job(number: int) -> TrainingJob:
        members = model_membership(number, records, seed=seed)
        return TrainingJob(np.flatnonzero(members), model_seed(number, seed=seed), members, f"model {number}")

    rest = (labels, population, population_labels)
    return ShadowPlan(records, models, kind, job, summaries(given, fingerprint), slice(None), *rest)


def summaries(given: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Join what a plan knows and what its user names: arrays by their hash, the rest as JSON gives it back."""
    known = {"giveaway": VERSION, **given}
    if taken := sorted({*known} & {*fingerprint}):
        raise fail("fingerprint", "names of its own", ", ".join(taken), "these are checked anyway: leave them out")
    summary = {}
    for name, value in {**known, **fingerprint}.items():
        if isinstance(value, np.ndarray | torch.Tensor) and value.ndim and value.dtype != object:
            summary[name] = f"sha256 {array_digest(value)}"
            continue
        try:
            summary[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            expected = "arrays, numbers, strings, or lists and mappings of them"
            raise fail("fingerprint", expected, type(value).__name__, "name what the signals depend on") from error
    return summary


class ShadowFolder(MarkedFolder):
    marker, kind, again = "shadow.json", "shadow folder", "run again: what it held is trained anew"
    beside = (SLICES,)

    def slices(self) -> dict[range, ShadowFolder]:
        """Return the slices that were begun in this folder, in the order of their models."""
        names = (re.fullmatch(r"(\d{6})-(\d{6})", file.name) for file in (self.path / SLICES).glob("*"))
        ranges = sorted((int(name[1]), int(name[2]), name[0]) for name in names if name)
        return {range(first, end): ShadowFolder(self.path / SLICES / name) for first, end, name in ranges}

    def inner(self) -> list[MarkedFolder]:
        parts = self.slices().values()
        return [part for part in parts if not part.path.is_symlink() and (part.marked or part.interrupted())]

    def remove_if_empty(self) -> None:
        for place in (*(part.path for part in self.slices().values()), self.path / SLICES):
            MarkedFolder(place).remove_if_empty()
        super().remove_if_empty()


class ShadowStore(ShadowFolder):
    """The finished models of one plan in one folder; made by `open_store`, which holds the folder's lock."""

    def __init__(self, path: Folder, plan: ShadowPlan) -> None:
        super().__init__(path)
        self.plan = plan
        self._columns = {"values": slice(plan.records)}
        if plan.population:
            self._columns["population"] = slice(plan.records, None)
        self._form: tuple[np.dtype[Any], tuple[int, ...]] | None = None

    def finished(self) -> set[int]:
        """Return the numbers of the models whose signals are stored, asked for or not; refuse damaged files."""
        there = [name for name in self.listed() if name.endswith(".npy") and (self.path / name).exists()]
        for name in there:
            self.verified(name)
        return {int(name[6:-4]) for name in there if name.startswith(ALONE)} | self._joined_numbers()

    def put(self, number: int, row: np.ndarray, seconds: float) -> str:
        """Store the signals of a finished model, and how long it took; return why they cannot be stored, else ""."""
        rows = self.plan.records + self.plan.population
        if row.dtype.kind != "f" or row.ndim == 0 or len(row) != rows:
            return f"predict gave {row.dtype} of shape {row.shape} where floats of {rows} rows were expected"
        if not np.isfinite(row).all():
            return "NaN or infinity in its signals"
        if self._form is None:
            known = next((self._row(other) for other in self.finished()), row)
            self._form = (known.dtype, known.shape)
        if (row.dtype, row.shape) != self._form:
            expected = f"{self._form[0]} of shape {self._form[1]} as from the other models"
            got = f"{row.dtype} of shape {row.shape}"
            return str(fail("predict", expected, got, "return the same from every model"))
        self.stage(self._file(number).name, partial(np.save, arr=row, allow_pickle=False))
        known_seconds = (self.path / SECONDS).read_text(encoding="utf-8") if (self.path / SECONDS).is_file() else ""
        self.save_pages({SECONDS: f"{known_seconds}{number},{seconds:.6f}\n"})
        return ""

    def signals(self) -> Signals:
        """Return the signals of the plan's models, memory-mapped; every one of them must be finished."""
        if not (self.path / MARKER).is_file() or not self._joined_numbers().issuperset(self.plan.numbers):
            self._assemble()
        found = Signals.load(self.path)  # which holds every file against its checksum
        alone = [number for number in self._joined_numbers() if self._file(number).is_file()]
        for number in alone:
            if not np.array_equal(self._row(number), self.joined(number)):
                got, remedy = f"others in {self.path}", "remove values.npy, and run again"
                raise fail("signals", f"the signals of {self._file(number).name} in values.npy", got, remedy)
        self.clear({self._file(number).name for number in alone})
        return found.of_models(slice(len(self.plan.numbers)))

    def _assemble(self) -> None:
        plan, numbers = self.plan, sorted(self._joined_numbers().union(self.plan.numbers))
        for name, columns in self._columns.items():
            self._stage(name, (self._row(number)[columns] for number in numbers), len(numbers))
        self._stage("members", (plan.job(number).members for number in numbers), len(numbers))
        labels = {"labels": plan.labels, "population_labels": plan.population_labels if plan.population else None}
        known = {name: array for name, array in labels.items() if array is not None}
        for name, array in known.items():
            self.stage(f"{name}.npy", partial(np.save, arr=array, allow_pickle=False))
        stated = {"kind": plan.kind, "arrays": [*self._columns, "members", *known], "files": self.staged}
        self.save_pages({MARKER: as_json(stated)})

    def _stage(self, name: str, rows: Iterator[np.ndarray], count: int) -> None:
        """Write one .npy of `count` rows, row by row."""
        first = next(rows)
        shape, blocks = (count, *first.shape), chain([first], rows)
        self.stage(f"{name}.npy", partial(write_npy, dtype=first.dtype, shape=shape, blocks=blocks))

    def _row(self, number: int) -> np.ndarray:
        """Return the stored signals of a model on records and population points."""
        return self._array(self._file(number).stem) if self._file(number).is_file() else self.joined(number)

    def joined(self, number: int) -> np.ndarray:
        return np.concatenate([self._array(name)[number - self.plan.first] for name in self._columns])

    def _joined_numbers(self) -> set[int]:
        there = all((self.path / f"{name}.npy").is_file() for name in self._columns)
        count = min(len(self._array(name)) for name in self._columns) if there else 0
        return set(range(self.plan.first, self.plan.first + count))

    def _array(self, name: str) -> np.ndarray:
        return np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False)

    def _file(self, number: int) -> Path:
        return self.path / f"{ALONE}{number:06d}.npy"


@contextmanager
def open_store(folder: Folder | None, plan: ShadowPlan) -> Iterator[ShadowStore]:
    """Hold the folder's store while the block runs; refuse a second run, and a plan that differs. Without a folder it
    is a temporary one; signals that were read from it stay in their memory map."""
    with tempfile.TemporaryDirectory(prefix="giveaway-") if folder is None else nullcontext(folder) as place:
        store = ShadowStore(place, plan)
        with store.locked(new=True):
            if store.marked and any(name.endswith(".npy") for name in store.listed()):  # else train may be repaired
                meaning, remedy = "shadow models of the same plan", "train them in another folder (--signals)"
                store.check(store.read(), plan.provenance, meaning, remedy)
            else:
                store.commit(plan.provenance)
            yield store


def marked_with(signals: Signals, folder: Folder, digests: RowDigests | None) -> Signals:
    """Return signals that carry the digests of their records, and store those beside them in their folder."""
    if digests is None:
        return signals
    with ShadowFolder(folder).locked() as place:
        stated = SignalsFolder(folder).read() | stage_digests(place, digests)
        stated["files"] = {**stated["files"], **place.staged}
        place.save_pages({MARKER: as_json(stated)})
    return replace(signals, digests=replace(digests, key=None))


def stored_kind(folder: Folder | None, plan: ShadowPlan) -> ShadowPlan:
    """Return the plan, with the kind of the models that are in the folder where it has none yet."""
    if plan.kind is not None or folder is None or not ShadowFolder(folder).marked:
        return plan
    return plan.of_kind(str(ShadowFolder(folder).read().get("kind")))


def stored_seconds(folder: Folder, models: int) -> float | None:
    """Sum what training the first `models` models of a folder took; None where it is not known of all of them."""
    known = seconds_in(folder)
    return sum(known[number] for number in range(models)) if known.keys() >= set(range(models)) else None


def seconds_in(folder: Folder) -> dict[int, float]:
    if not (file := Path(folder) / SECONDS).is_file():  # trained elsewhere, or before the seconds were kept
        return {}
    whole = re.findall(r"^(\d+),(\d+\.\d{6})$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {int(number): float(seconds) for number, seconds in whole}
