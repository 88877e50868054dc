"""Signals: the predictions of many models for the same records, and which records each was trained on."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit, log_softmax, logsumexp, softmax

from giveaway.checks import check_choice, fail
from giveaway.records.row_digests import RowDigests
from giveaway.storage.folder import MarkedFolder

KINDS = ("logits", "probabilities", "phi", "squared_error")
VECTORS = ("logits", "probabilities")
ARRAYS = ("values", "members", "labels", "population", "population_labels")
MARKER, DIGESTS = "signals.json", "digests.npy"
BLOCK_NUMBERS = 4_000_000
SMALLEST_ERROR = 1e-30  # below it a squared error's logarithm says nothing


class SignalsFolder(MarkedFolder):
    marker, kind, argument, links = MARKER, "folder of signals", "signals", True
    again = "store or train the signals again"


@dataclass(frozen=True, eq=False, repr=False)
class Signals:
    """Signals of M models on N records.

    values : (M, N), or (M, N, Q) with Q queries a record; with a last axis of classes for "logits" and
        "probabilities". float16 to float64, NumPy or memory-mapped; read a block of records at a time.
    members : (M, N) of bool: was the record in the model's training set?
    kind : "logits", "probabilities", "phi" (log p_y − log(1 − p_y) of the true label) or "squared_error".
    labels : (N,) class indices; needed for logits and probabilities.
    population : the same models' signals on Z other points, (M, Z) and so on; population_labels : (Z,).
    step : of probabilities, 1/k where they are votes of k or rounded to one of k steps. Found from the values: 0 where
        none is 0 or 1, else what the smaller of p_y and 1 − p_y exceeds in 99 of 100 cases where it is not 0.
    digests : of the records, under the key of an audit: `table.digests.again(targets=y, inputs=X)`. `validate` refuses
        signals of other records by them.

    >>> phi = np.array([[2.0, -1.0], [0.5, 3.0]])
    >>> Signals(phi, members=phi > 1, kind="phi")
    Signals(models=2, records=2, queries=1, kind='phi')
    """

    values: np.ndarray
    members: np.ndarray
    kind: str
    labels: np.ndarray | None = None
    population: np.ndarray | None = None
    population_labels: np.ndarray | None = None
    step: float | None = None
    digests: RowDigests | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        set_field = object.__setattr__
        values = _checked_values("values", self.values, self.kind)
        set_field(self, "values", values)
        members = np.asarray(self.members)
        if members.shape != values.shape[:2] or (members.dtype != bool and not np.isin(members, (0, 1)).all()):
            expected = f"0/1 or bool of shape {values.shape[:2]}, (models, records)"
            raise fail("members", expected, f"{members.dtype} of shape {members.shape}", "align it with values")
        set_field(self, "members", members.astype(bool, copy=False))
        set_field(self, "labels", _checked_labels("labels", self.labels, values, self.kind))
        if self.population is not None:
            population = _checked_values("population", self.population, self.kind)
            if population.shape[0] != values.shape[0] or population.shape[2:] != values.shape[2:]:
                expected = f"shape ({values.shape[0]}, points, {', '.join(map(str, values.shape[2:]))})"
                raise fail("population", expected, f"shape {population.shape}", "take it from the same models")
            set_field(self, "population", population)
            known = _checked_labels("population_labels", self.population_labels, population, self.kind)
            set_field(self, "population_labels", known)
        if self.digests is not None:
            self.digests.check(values.shape[1])
        if self.step is None and self.kind == "probabilities":
            set_field(self, "step", self._found_step())

    @property
    def models(self) -> int:
        """The number M of models."""
        return self.values.shape[0]

    @property
    def records(self) -> int:
        """The number N of records."""
        return self.values.shape[1]

    @property
    def queries(self) -> int:
        """The number Q of queries a record."""
        return self.values.shape[2]

    def __repr__(self) -> str:
        return f"Signals(models={self.models}, records={self.records}, queries={self.queries}, kind={self.kind!r})"

    def blocks(self) -> Iterator[slice]:
        """Yield slices of records whose float64 values take a few tens of MB."""
        size = max(1, BLOCK_NUMBERS // max(1, self.values[:, :1].size))
        for start in range(0, self.records, size):
            yield slice(start, min(start + size, self.records))

    def statistic(self, which: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Return the statistic of LiRA, (M, n, Q), high for a member: φ, or minus the log of the squared error. φ of
        probabilities is log(p_y + step/2) − log(1 − p_y + step/2): of v of k votes log((v + ½) / (k − v + ½))."""
        values = np.array(self.values[:, which], dtype=np.float64)
        if self.kind == "phi":
            return values
        if self.kind == "squared_error":
            return -np.log(np.maximum(values, SMALLEST_ERROR))
        assert self.labels is not None
        own = _taken_out(values, self.labels[which], 0.0 if self.kind == "probabilities" else -np.inf)
        if self.kind == "logits":
            return own - logsumexp(values, axis=-1)
        half = 0.5 * (self.step or 0.0)
        return np.log(own + half) - np.log(values.sum(axis=-1) + half)

    def _found_step(self) -> float:
        """Return the step of probabilities, the median over models: 1 for labels, 0 where none is 0 or 1."""
        assert self.labels is not None
        steps, certain = [], False
        for model in range(self.models):
            values = np.array(self.values[model : model + 1], dtype=np.float64)
            smaller = np.minimum(_taken_out(values, self.labels, 0.0), values.sum(axis=-1))
            positive = smaller[smaller > 0]
            certain |= positive.size < smaller.size
            steps.append(np.quantile(positive, 0.01, method="lower") if positive.size else 1.0)
        return float(np.median(steps)) if certain else 0.0

    def confidence(self, which: slice | np.ndarray = slice(None), *, temperature: float = 1.0) -> np.ndarray:
        """Return the probability of the true label, (M, n, Q)."""
        if temperature != 1.0 and self.kind != "logits":
            raise fail("temperature", "1 unless signals are logits", f"{temperature} with {self.kind}", "store logits")
        values = np.asarray(self.values[:, which], dtype=np.float64)
        if self.kind == "phi":
            return expit(values)
        if self.kind == "squared_error":
            raise fail("signals", "signals of classes", "squared errors", "use an attack that takes them, as lira")
        assert self.labels is not None
        p = softmax(values / temperature, axis=-1) if self.kind == "logits" else values
        return np.take_along_axis(p, _places(p, self.labels[which]), axis=-1)[..., 0]

    def distribution(self, which: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Return the probabilities of all classes, (M, n, Q, C) in float64."""
        if self.kind not in VECTORS:
            raise fail("signals", "logits or probabilities", self.kind, "store the whole prediction")
        values = np.asarray(self.values[:, which], dtype=np.float64)
        return np.exp(log_softmax(values, axis=-1)) if self.kind == "logits" else values

    def of_models(self, which: slice | np.ndarray) -> "Signals":
        """Return the signals of some of the models."""
        population = None if self.population is None else self.population[which]
        return replace(self, values=self.values[which], members=self.members[which], population=population)

    def of_records(self, which: slice | np.ndarray) -> "Signals":
        """Return the signals on some of the records."""
        labels = None if self.labels is None else self.labels[which]
        digests = None if self.digests is None else self.digests.at(which)
        values, members = self.values[:, which], self.members[:, which]
        return replace(self, values=values, members=members, labels=labels, digests=digests)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write one .npy an array, which `load` maps into memory, and signals.json; no pickle."""
        stored = {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}
        with SignalsFolder(folder).locked(new=True, among_others=True) as place:
            for name, array in stored.items():
                place.stage(f"{name}.npy", partial(np.save, arr=array, allow_pickle=False))
            stated = {"kind": self.kind, "arrays": list(stored), "step": self.step}
            place.commit(stated | ({} if self.digests is None else stage_digests(place, self.digests)))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Signals":
        """Map what `save` wrote into memory."""
        place = SignalsFolder(folder)
        try:
            stored = place.read() if place.marked else {}
            files = {name: place.verified(f"{name}.npy") for name in stored["arrays"]}
            arrays: Any = {name: np.load(file, mmap_mode="r", allow_pickle=False) for name, file in files.items()}
            digests = None
            if "digests" in stored:
                columns = np.load(place.verified(DIGESTS), allow_pickle=False)
                of = dict(zip(stored["digests"]["kinds"], columns, strict=True))
                digests = RowDigests(of, stored["digests"]["keyed_by"])
            return cls(**arrays, kind=stored["kind"], step=stored.get("step"), digests=digests)
        except (OSError, EOFError, KeyError, TypeError) as error:
            raise fail("signals", "a folder written by Signals.save", str(place.path), "check the path") from error


def stage_digests(folder: MarkedFolder, digests: RowDigests) -> dict[str, Any]:
    """Write digests without their key for the next commit of a folder; return what signals.json says of them."""
    folder.stage(DIGESTS, partial(np.save, arr=np.array(list(digests.of.values())), allow_pickle=False))
    return {"digests": {"keyed_by": digests.keyed_by, "kinds": list(digests.of)}}


def _checked_values(argument: str, array: np.ndarray, kind: str) -> np.ndarray:
    values = array if isinstance(array, np.ndarray) else np.asarray(array)
    scalar_axes = values.ndim - (kind in VECTORS)
    if values.dtype.kind != "f":
        raise fail(argument, "floating-point numbers", f"dtype {values.dtype}", "convert them")
    if scalar_axes not in (2, 3):
        shape = "(models, records) or (models, records, queries)" + (", then classes" if kind in VECTORS else "")
        raise fail(argument, f"shape {shape}", f"shape {values.shape}", f"kind is {kind!r}")
    if 0 in values.shape:
        raise fail(argument, "at least one model, record and query", f"shape {values.shape}", "pass the signals")
    for model in range(values.shape[0]):
        if not np.isfinite(values[model].sum(dtype=np.float64)) and not np.isfinite(values[model]).all():
            raise fail(argument, "finite numbers", f"NaN or infinity in model {model}", "drop or repair that model")
    return values if scalar_axes == 3 else np.expand_dims(values, 2)


def _checked_labels(argument: str, labels: Any, values: np.ndarray, kind: str) -> np.ndarray | None:
    if labels is None:
        if kind in VECTORS:
            raise fail(argument, "a class index a record", "none", f"signals of kind {kind!r} need labels")
        return None
    known = np.asarray(labels)
    if known.shape != (values.shape[1],) or known.dtype.kind not in "iu":
        expected = f"{values.shape[1]} class indices"
        raise fail(argument, expected, f"{known.dtype} of shape {known.shape}", "align them with the records")
    known = known.astype(np.int64)
    if kind in VECTORS and not ((known >= 0) & (known < values.shape[-1])).all():
        raise fail(argument, f"classes 0 to {values.shape[-1] - 1}", "others", "number the classes from 0")
    return known


def _places(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.broadcast_to(labels[None, :, None, None], (*values.shape[:3], 1))


def _taken_out(values: np.ndarray, labels: np.ndarray, empty: float) -> np.ndarray:
    """Return values[m, i, q, labels[i]], and put `empty` in their place."""
    places = _places(values, labels)
    own = np.take_along_axis(values, places, axis=-1)[..., 0]
    np.put_along_axis(values, places, empty, axis=-1)
    return own
