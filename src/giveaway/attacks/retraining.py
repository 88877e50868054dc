"""Retraining: how a model is trained again on some of its records, and what it then says of all of them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier, is_regressor
from torch import nn
from torch.utils.data import DataLoader, Dataset

from giveaway.checks import check_choice, fail
from giveaway.extract import sklearn_fits
from giveaway.extract.model_records import BATCH_SIZE, ModelRecords, read_records
from giveaway.extract.sklearn_head import refusals, settled
from giveaway.records.signals import KINDS, VECTORS
from giveaway.records.texts import Texts

SUMS_TO_ONE = 1e-3  # probabilities may be rounded, or in half precision
ASKED = ("predict_proba", "decision_function", "predict")
RARE = 'a class or category may be missing there: merge rare ones, or set handle_unknown="ignore"'
WRITE = "write a function train(rows, seed) that fits it"


@dataclass(frozen=True, eq=False)
class Retraining:
    """How your model is trained again: your function, or an estimator of scikit-learn, which needs no code.

    Parameters
    ----------
    model : `train(rows, seed)`: `rows` (sorted int64) are the records to train on, `seed` an int below 2³² for all that
        is random. It returns the model (a torch module or anything with `predict_proba`, `decision_function` or
        `predict`; it is asked about `X`), its outputs on all records in order, or a function that gives them: without
        arguments, or given the row numbers 0, 1, …. One with a parameter `device` gets one of `devices` in turn.
        Or an estimator or Pipeline: clones are fitted, random states set from the seed; of a search, its best one.
    X, y : all records (an array, a DataFrame, a list, a sparse matrix, a Dataset), and their labels or values. For a
        function, whole numbers from 0 are the columns of its outputs; other labels are the columns in sorted order.
    kind : what the outputs are, see Signals; they are then stored as they come. By default it is found: with labels,
        rows that are not negative and sum to 1 are probabilities, others logits, and one number a record is the
        probability or the log-odds of the second class; with values, predictions become squared errors.
    records : how many records there are, where neither X nor y tells.
    fingerprint : what else the outputs depend on, by name; X, y, settings and the source of `train` are in it anyway.
    code : your name for the version of your code, instead of the source of `train`.
    sample_weight : of every record, handed to `fit`, or to your function as `sample_weight=`, for the rows trained on.
    workers, backend : joblib's; "loky" (processes), "threading", "dask" or "ray" (the cluster that is connected to).

    >>> from sklearn.linear_model import LogisticRegression
    >>> Retraining(LogisticRegression(), X=[[0.0], [1.0], [2.0], [3.0]], y=["no", "no", "yes", "yes"]).labels
    array([0, 0, 1, 1])
    """

    model: Any
    X: Any = None
    y: Any = None
    kind: str | None = None
    records: int | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    sample_weight: np.ndarray | None = None
    workers: int = 1
    backend: str = "loky"
    devices: Sequence[str] = ()
    labels: np.ndarray | None = field(init=False, default=None)
    values: np.ndarray | None = field(init=False, default=None)  # the targets of a regression
    classes: np.ndarray | None = field(init=False, default=None)  # None where labels are the numbers of columns

    def __post_init__(self) -> None:
        check_choice("backend", self.backend, ("loky", "threading", "dask", "ray"))
        if not isinstance(self.workers, int) or self.workers < -1 or self.workers == 0:
            remedy = "give a whole number"
            raise fail("workers", "a count of at least 1, or -1 for every core", repr(self.workers), remedy)
        if self.kind is not None:
            check_choice("kind", self.kind, KINDS)
        sizes = {"y": _length(self.y), "X": _length(self.X), "records": self.records}
        known = [(name, size) for name, size in sizes.items() if size is not None]
        for name, size in known[1:]:
            if size != known[0][1]:
                expected = f"{known[0][1]} records, as in {known[0][0]}"
                raise fail(name, expected, str(size), "pass X and y of the same records")
        object.__setattr__(self, "records", known[0][1] if known else None)
        if self.is_estimator:
            self._check_estimator()
        else:
            self._check_function()
        if self.y is not None and self.kind != "squared_error":
            self._read_targets(np.asarray(self.y))

    @property
    def is_estimator(self) -> bool:
        return hasattr(self.model, "fit") and not isinstance(self.model, type | nn.Module)

    @property
    def name(self) -> str:
        """The kind of the estimator that predicts: of a Pipeline, the last step."""
        return type(sklearn_fits.predicting_step(self.model)[0]).__name__

    @property
    def targets(self) -> np.ndarray | None:
        """Class indices or values, as far as they are known."""
        return self.values if self.labels is None else self.labels

    @cached_property
    def _model_records(self) -> ModelRecords:
        data = self.X if isinstance(self.X, DataLoader | Dataset) else (self.X, np.zeros(self.known_records()))
        return read_records(data, torch.device("cpu"), torch.float32)

    def known_records(self) -> int:
        """Return how many records there are; refuse where that, or what outputs are held against, is not known."""
        if self.records is None:
            raise fail("records", "how many records train knows", "none", "pass y, or records= and kind=")
        if self.labels is None and self.values is None and self.kind in (*VECTORS, None):
            remedy = 'pass y=, or return φ or squared errors and say kind="phi" or "squared_error"'
            raise fail("y", "the labels or values that outputs are held against", "none", remedy)
        return self.records

    def plan_entries(self) -> dict[str, Any]:
        """Return what the signals depend on besides the split: hashes of data and code, settings, what was named."""
        entries: dict[str, Any] = {"code": self.code}
        if self.is_estimator:
            entries["estimator"] = sklearn_fits.settings_of(self.model)
        elif self.code is None:
            entries["code"] = sklearn_fits.source_digest(self.model)
        data = {"X": None if isinstance(self.X, DataLoader | Dataset) else self.X, "y": self.y}
        data["sample_weight"] = self.sample_weight
        entries |= {name: sklearn_fits.data_digest(value) for name, value in data.items() if value is not None}
        return {**entries, **self.fingerprint}

    def train(self, rows: np.ndarray, seed: int, **device: str) -> np.ndarray:
        """Train one model and return its outputs on all records."""
        weights = {} if self.sample_weight is None else {"sample_weight": self.sample_weight[rows]}
        if self.is_estimator:
            with refusals(self.model, "estimator", "a fit to every half of the records", RARE):
                y = np.asarray(self.y)
                return self._ask(sklearn_fits.fitted_clone(self.model, self.X, y, rows, seed, **weights))
        said = self._ask(self.model(rows, seed, **weights, **device))
        return np.asarray(said.detach().cpu() if isinstance(said, torch.Tensor) else said)

    def signals(self, outputs: np.ndarray, kind: str | None) -> tuple[np.ndarray, str]:
        """Return a model's signals and their kind, which is found where it is None, as for the first model."""
        n = self.known_records()
        outputs = self._checked(outputs, n)
        if self.kind is not None and self.kind not in VECTORS:
            return outputs, self.kind
        if kind is None and bool((outputs == outputs[:1]).all()):
            remedy = "check that the model is fitted, and with what it is asked"
            raise fail("outputs", "outputs that differ between records", f"the same for all {n}", remedy)
        if self.labels is None:
            assert self.values is not None
            if outputs.size != self.values.size:
                got, remedy = f"shape {outputs.shape}", "if these are classes, pass y as whole numbers or names"
                raise fail("outputs", f"a prediction for each of the targets, shape {self.values.shape}", got, remedy)
            errors = outputs.reshape(n, -1) - self.values.reshape(n, -1)
            return (errors * errors).sum(axis=1), "squared_error"
        one_a_record = outputs.size == n
        columns = outputs.shape[-1] if not one_a_record else 2 if self.kind is None else 1
        if columns <= self.labels.max():
            got = f"shape {outputs.shape} for labels up to {self.labels.max()}"
            remedy = "return every class, also one that is missing in a half, and number classes from 0"
            raise fail("outputs", f"a column for each of the {self.labels.max() + 1} classes", got, remedy)
        if one_a_record:
            one = outputs.reshape(n)
            if (kind or ("probabilities" if one.min() >= 0 and one.max() <= 1 else "phi")) == "phi":
                return np.where(self.labels == 1, one, -one), "phi"
            return np.stack([1 - one, one], axis=1), "probabilities"
        sums = outputs.sum(axis=-1, dtype=np.float64)
        found = "probabilities" if outputs.min() >= 0 and np.abs(sums - 1).max() <= SUMS_TO_ONE else "logits"
        if (kind or found) != found or (self.kind or found) != found:
            got = "rows that sum to 1" if found == "probabilities" else "rows that do not sum to 1"
            raise fail("outputs", str(self.kind or kind), got, "return the same from every model, and leave kind out")
        return outputs, found

    def _checked(self, outputs: np.ndarray, n: int) -> np.ndarray:
        if outputs.dtype.kind not in "fiub":
            remedy = "return the model, its outputs on all records, or a function that gives them"
            got = "none" if outputs.ndim == 0 else f"dtype {outputs.dtype}"
            raise fail("outputs", "numbers: probabilities, decision values or predictions", got, remedy)
        if outputs.ndim == 0 or len(outputs) != n:
            remedy = "predict every record in order, not only those trained on"
            raise fail("outputs", f"{n} rows, one a record", f"shape {outputs.shape}", remedy)
        if outputs.dtype.kind != "f" and (self.labels is not None or self.kind is not None):
            got, remedy = f"{outputs.dtype}, as of predicted classes", "return probabilities or decision values"
            raise fail("outputs", "floating-point numbers", got, remedy)
        outputs = outputs if outputs.dtype.kind == "f" else outputs.astype(np.float64)
        if (bad := ~np.isfinite(outputs).reshape(n, -1).all(axis=1)).any():
            got = f"NaN or infinity in {int(bad.sum())} rows, first in row {int(bad.argmax())}"
            raise fail("outputs", "finite numbers", got, "repair those records, or the training that diverged")
        return outputs

    def _ask(self, made: Any) -> Any:
        if isinstance(made, Texts):
            return made.means(made.log_likelihood)
        if not isinstance(made, nn.Module) and not any(hasattr(made, name) for name in ASKED):
            if not callable(made):
                return made
            try:
                _signature(made).bind()
            except TypeError:  # it asks for row numbers
                return made(np.arange(self.known_records()))
            return made()
        if self.X is None:
            got = f"a {type(made).__name__} and no records"
            remedy = "pass X (--data on the command line), or return its outputs on all records"
            if self.kind == "phi":
                remedy = "return its outputs on all records, of a language model ga.from_causal_lm(model, documents)"
            raise fail("X", "the records that the returned model is asked about", got, remedy)
        if isinstance(made, nn.Module):
            return _module_outputs(made, self._model_records)
        if self.labels is None:
            return made.predict(self.X)
        classes = np.arange(self.labels.max() + 1) if self.classes is None else self.classes
        return sklearn_fits.classifier_outputs(made, self.X, classes)

    def _check_estimator(self) -> None:
        object.__setattr__(self, "model", settled(self.model))
        for name in ("X", "y"):
            if getattr(self, name) is None:
                raise fail(name, "the records and their targets beside an estimator", "none", "pass X and y")
        for name in ("kind", "devices"):
            if getattr(self, name):
                raise fail(name, "nothing beside an estimator", repr(getattr(self, name)), f"drop {name}=")
        try:
            clone(self.model)
        except (TypeError, RuntimeError) as error:
            raise fail("model", "an estimator that can be cloned", type(self.model).__name__, WRITE) from error
        if not is_classifier(self.model) and not is_regressor(self.model):
            raise fail("model", "a classifier or a regressor", type(self.model).__name__, WRITE)

    def _check_function(self) -> None:
        if not callable(self.model) or isinstance(self.model, type | nn.Module):
            got = f"the class {self.model.__name__}" if isinstance(self.model, type) else type(self.model).__name__
            remedy = "pass a function that trains a new model, or an estimator of scikit-learn"
            raise fail("model", "a function train(rows, seed) or an estimator", got, remedy)
        signature = _signature(self.model)
        try:
            signature.bind(0, 0, **({"device": ""} if self.devices else {}))
        except TypeError as error:
            expected = "a function of (rows, seed, device)" if self.devices else "a function of (rows, seed)"
            got, remedy = f"one of {signature}", "take these alone; functools.partial gives the rest"
            raise fail("train", expected, got, remedy) from error

    def _read_targets(self, y: np.ndarray) -> None:
        set_field = object.__setattr__
        y = y.ravel() if y.ndim == 2 and y.shape[1] == 1 else y
        if not is_classifier(self.model) if self.is_estimator else y.dtype.kind == "f":
            if y.dtype.kind not in "fiub":
                raise fail("y", "numbers beside a regressor", "labels", "name a classifier for them")
            if not np.isfinite(y).all():
                raise fail("y", "finite numbers", f"others ({y.dtype})", "repair or drop those records")
            set_field(self, "values", y.astype(np.float64))
            return
        if y.ndim != 1 or not len(y):
            raise fail("y", "one label a record", f"shape {y.shape}", "validate one label at a time")
        labels = y
        if self.is_estimator or y.dtype.kind not in "iu" or y.min() < 0:
            try:
                classes, labels = np.unique(y, return_inverse=True)
            except TypeError as error:
                raise fail("y", "labels of one type", "several, or gaps", "name every record's class") from error
            set_field(self, "classes", classes)
        set_field(self, "labels", labels.astype(np.int64))


def _module_outputs(module: nn.Module, records: ModelRecords) -> torch.Tensor:
    parameter = next(module.parameters(), torch.empty(0))
    module.eval()
    said = []
    with torch.inference_mode():
        for _, batch in replace(records, device=parameter.device, dtype=parameter.dtype).batches(BATCH_SIZE):
            outputs = module(*batch.arguments, **batch.keywords)
            said.append(getattr(outputs, "logits", outputs).float().cpu())
    return torch.cat(said)


def _length(value: Any) -> int | None:
    if value is None or isinstance(value, DataLoader | Dataset):
        return None
    return value.shape[0] if hasattr(value, "shape") else len(value)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature, or one that takes anything where a built-in function shows none."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return inspect.signature(lambda *positional, **named: None)
