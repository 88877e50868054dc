"""Shadow models: train many models on random halves of the records, and keep what each says of all of them."""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError

from giveaway.attacks.shadow_store import ShadowPlan, ShadowStore, open_store
from giveaway.checks import InputError, check_choice, fail
from giveaway.records import Signals

BACKENDS = ("loky", "threading", "dask")
FAILURES_NAMED = 3
LONGEST_REASON = 160

Train = Callable[..., Callable[..., Any]]
OnModel = Callable[[int, int], Any]


@dataclass(frozen=True)
class Failure:
    """A model that gave no signals: why, in a line, and the traceback of the user's code."""

    reason: str
    trace: str = ""


Outcome = tuple[int, np.ndarray | Failure]


def train_shadows(
    train: Train,
    *,
    records: int,
    models: int,
    folder: str | os.PathLike[str],
    kind: str,
    fingerprint: Mapping[str, Any],
    labels: Any = None,
    seed: int = 0,
    population: int = 0,
    population_labels: Any = None,
    code: str | None = None,
    workers: int = 1,
    backend: str = "loky",
    devices: Sequence[str] = (),
    on_model: OnModel | None = None,
) -> Signals:
    """Signals of `models` models, each trained on its own half of the records; a folder with some of them is resumed.

    Parameters
    ----------
    train : `train(indices, seed) -> predict`. `indices` (sorted int64) are the records to train on, `seed` an int
        below 2³² for all that is random. `predict()` returns the signals of all records in order, then of the
        population points: floats of shape (records + population, …) as `kind` asks (see Signals), a query axis
        allowed; it is called once. A `predict` that needs an argument gets the row numbers 0, 1, … to predict. A
        `train` with a parameter `device` gets one of `devices` in turn.
    models : even; ask for more later, and only the new ones are trained.
    fingerprint : what else the signals depend on, by name: the arrays of data (kept as hashes), epochs, loss, and so
        on. A folder whose fingerprint, split, kind, seed or code differs is refused.
    population : number of further points, never trained on, that follow the records.
    code : a name for the version of your training code; the source of `train` (not of what it calls) where none is
        given and Python can find it.
    workers, backend : joblib's; "loky" (processes), "threading" or "dask" (a running cluster's client;
        workers=-1 for all of it).
    on_model : called with the count of finished models and of all, after every model.
    """
    check_choice("backend", backend, BACKENDS)
    if not isinstance(workers, int) or workers < -1 or workers == 0:
        raise fail("workers", "a count of at least 1, or -1 for every core", repr(workers), "give a whole number")
    if devices and not _takes(train, "device"):
        raise fail("devices", "a train that takes device=", "one that does not", "add the parameter, or drop devices")
    used = {**fingerprint, "code": _source(train) if code is None else code}
    plan = ShadowPlan(records, models, kind, used, seed, labels, population, population_labels)

    def one_by_one(missing: Sequence[int]) -> Iterator[Outcome]:
        tasks = (
            delayed(_one_model)(
                train,
                number,
                np.flatnonzero(plan.members(number)),
                plan.seed_of(number),
                plan.rows,
                {"device": devices[number % len(devices)]} if devices else {},
            )
            for number in missing
        )
        # batch_size 1: joblib would group quick models, and a group is stored only when the last of it is done
        with _joblib(backend, workers):
            yield from Parallel(return_as="generator_unordered", batch_size=1)(tasks)

    return collect_shadows(one_by_one, plan, folder=folder, on_model=on_model)


def collect_shadows(
    train_missing: Callable[[Sequence[int]], Iterable[Outcome]],
    plan: ShadowPlan,
    *,
    folder: str | os.PathLike[str],
    on_model: OnModel | None = None,
) -> Signals:
    """Store what `train_missing(numbers)` gives, model by model, and return the signals of all models of the plan.

    It yields (number, signals) in any order, models that were not asked for too (they are left out), and
    (number, Failure) for a model that could not be trained.
    """
    with open_store(folder, plan) as store:
        finished = store.finished()
        missing = [number for number in range(plan.models) if number not in finished]
        failures: dict[int, Failure] = {}
        wanted = set(missing)
        for number, outcome in train_missing(missing) if missing else ():
            if number not in wanted:
                continue
            wanted.discard(number)
            problem = outcome if isinstance(outcome, Failure) else _stored(store, number, outcome)
            if problem is not None:
                failures[number] = problem
            elif on_model is not None:
                on_model(plan.models - len(wanted) - len(failures), plan.models)
        if failures or wanted:
            raise _failed({**dict.fromkeys(wanted, Failure("no signals")), **failures}, plan, store)
        return store.signals()


def predicted_signals(predict: Callable[..., Any], rows: int) -> np.ndarray:
    """What `predict` says of rows 0 to rows − 1, handed over where it needs an argument."""
    try:
        parameters = inspect.signature(predict).parameters.values()
    except (TypeError, ValueError):  # some built-in functions show no signature
        return np.asarray(predict())
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    asks = any(p.default is p.empty and p.kind in places for p in parameters)
    return np.asarray(predict(np.arange(rows)) if asks else predict())


def _stored(store: ShadowStore, number: int, row: np.ndarray) -> Failure | None:
    problem = _unusable(row, store.plan.rows)
    if problem is not None:
        return Failure(problem)
    try:
        store.put(number, row)
    except InputError as error:
        return Failure(str(error))
    return None


def _failed(failures: dict[int, Failure], plan: ShadowPlan, store: ShadowStore) -> InputError:
    order = sorted(failures)
    named = [f"model {number} (seed {plan.seed_of(number)}): {failures[number].reason}" for number in order]
    more = [f"and {len(named) - FAILURES_NAMED} more"] if len(named) > FAILURES_NAMED else []
    kept = len(store.finished() & set(range(plan.models)))
    error = fail(
        "train",
        f"signals from all {plan.models} models",
        f"{len(failures)} without: " + "; ".join(named[:FAILURES_NAMED] + more),
        f"{kept} finished models are kept in {store.path}: repair train and run again",
    )
    for number in order[:FAILURES_NAMED]:
        if failures[number].trace:
            error.add_note(f"model {number}: {failures[number].trace}")
    return error


def _one_model(train: Train, number: int, indices: np.ndarray, seed: int, rows: int, device: dict[str, str]) -> Outcome:
    """Runs in a worker, which must not raise: the other models go on."""
    try:
        predict = train(indices, seed, **device)
        return number, predicted_signals(predict, rows)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        reason = text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"
        return number, Failure(reason, traceback.format_exc())


def _unusable(signals: np.ndarray, rows: int) -> str | None:
    if signals.dtype.kind != "f" or signals.ndim == 0 or len(signals) != rows:
        return f"predict gave {signals.dtype} of shape {signals.shape} where floats of {rows} rows were expected"
    if not np.isfinite(signals).all():
        return "NaN or infinity in its signals"
    return None


@contextmanager
def _joblib(backend: str, workers: int) -> Iterator[None]:
    """Joblib set up as asked, its own errors in giveaway's words."""
    try:
        configured = parallel_config(backend=backend, n_jobs=workers)
    except (ImportError, ValueError) as error:
        raise fail("backend", "a backend that is installed", repr(backend), "install dask and distributed") from error
    try:
        with configured:
            yield
    except pickle.PicklingError as error:
        remedy = 'keep open files and locks out of it, or use backend="threading"'
        raise fail("train", "a function that can be sent to another process", "one that cannot", remedy) from error
    except TerminatedWorkerError as error:
        remedy = "finished models are kept: run again with fewer workers"
        raise fail("workers", "processes that live", "one that was killed, for memory perhaps", remedy) from error


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _source(train: Any) -> str | None:
    while hasattr(train, "func"):  # functools.partial
        train = train.func
    try:
        return "sha256 " + hashlib.sha256(inspect.getsource(inspect.unwrap(train)).encode()).hexdigest()
    except (OSError, TypeError):
        return None
