"""Shadow models: train many models on random halves of the records, and keep what each says of all of them."""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs, parallel_config

from giveaway.attacks.shadow_store import ShadowPlan, ShadowStore, open_store
from giveaway.checks import InputError, check_choice, fail
from giveaway.records import Signals

BACKENDS = ("loky", "threading", "dask")
FAILURES_NAMED = 3
LONGEST_REASON = 160
LEAST_TASKS = 4  # for each worker and wave
WAITING_BYTES = 2**28  # of finished models that may wait to be stored

Train = Callable[..., Callable[..., Any]]
OnModel = Callable[[int, int], Any]


@dataclass(frozen=True)
class Failure:
    """A model that gave no signals: why, in a line, and the traceback of the user's code."""

    reason: str
    trace: str = ""


@dataclass(frozen=True, eq=False)
class Timed:
    """Signals of a model whose training was timed where it ran."""

    signals: np.ndarray
    seconds: float


Outcome = tuple[int, np.ndarray | Timed | Failure]


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
    """Train `models` models, each on its own half of the records, and return their signals; resume what is in `folder`.

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
    used = {**fingerprint, "code": source_of(train) if code is None else code}
    plan = ShadowPlan(records, models, kind, used, seed, labels, population, population_labels)
    one_by_one = one_model_at_a_time(train, plan, workers=workers, backend=backend, devices=devices)
    return collect_shadows(one_by_one, plan, folder=folder, on_model=on_model)


def one_model_at_a_time(
    train: Train, plan: ShadowPlan, *, workers: int, backend: str, devices: Sequence[str] = ()
) -> Callable[[Sequence[int]], Iterator[Outcome]]:
    """Return the function that `collect_shadows` asks for missing models: each is a task of joblib's."""
    check_choice("backend", backend, BACKENDS)
    if not isinstance(workers, int) or workers < -1 or workers == 0:
        raise fail("workers", "a count of at least 1, or -1 for every core", repr(workers), "give a whole number")
    if devices and not _takes(train, "device"):
        raise fail("devices", "a train that takes device=", "one that does not", "add the parameter, or drop devices")

    def train_missing(missing: Sequence[int]) -> Iterator[Outcome]:
        with _joblib(backend, workers):
            least = LEAST_TASKS * effective_n_jobs(None)
            start, wave = 0, least
            # in waves: joblib hands out all the tasks it has, and quick models would pile up before the slow disk
            while start < len(missing):
                tasks = (
                    delayed(_one_model)(
                        train,
                        number,
                        plan.indices(number),
                        plan.seed_of(number),
                        plan.rows_predicted,
                        plan.rows_stored,
                        {"device": devices[number % len(devices)]} if devices else {},
                    )
                    for number in missing[start : start + wave]
                )
                start += wave
                # batch_size 1: joblib would group quick models, and a group is stored only when the last of it is done
                for number, outcome in Parallel(return_as="generator_unordered", batch_size=1)(tasks):
                    if isinstance(outcome, Timed):
                        wave = max(least, WAITING_BYTES // max(1, outcome.signals.nbytes))
                    yield number, outcome

    return train_missing


def collect_shadows(
    train_missing: Callable[[Sequence[int]], Iterable[Outcome]],
    plan: ShadowPlan,
    *,
    folder: str | os.PathLike[str] | None,
    on_model: OnModel | None = None,
) -> Signals:
    """Store what `train_missing(numbers)` gives, model by model, and return the signals of all models of the plan.

    It yields (number, signals) in any order, models that were not asked for too (they are left out), and
    (number, Failure) for a model that could not be trained. Signals that are not Timed took as long as it took to
    yield them. Without a folder nothing is kept.
    """
    with open_store(folder, plan) as store:
        finished = store.finished()
        missing = [number for number in range(plan.models) if number not in finished]
        failures: dict[int, Failure] = {}
        wanted = set(missing)
        spent, began = 0.0, time.perf_counter()
        for number, outcome in train_missing(missing) if missing else ():
            spent += time.perf_counter() - began
            if number in wanted:
                wanted.discard(number)
                problem = outcome if isinstance(outcome, Failure) else _stored(store, number, outcome, spent)
                spent = 0.0
                if problem is not None:
                    failures[number] = problem
                elif on_model is not None:
                    on_model(plan.models - len(wanted) - len(failures), plan.models)
            began = time.perf_counter()
        if failures or wanted:
            raise _failed({**dict.fromkeys(wanted, Failure("no signals")), **failures}, plan, store)
        return store.signals()


def predicted_signals(predict: Callable[..., Any], rows: int) -> np.ndarray:
    """Return what `predict` says of rows 0 to rows − 1, which it is given if it needs an argument."""
    try:
        parameters = inspect.signature(predict).parameters.values()
    except (TypeError, ValueError):  # some built-in functions show no signature
        return np.asarray(predict())
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    asks = any(p.default is p.empty and p.kind in places for p in parameters)
    return np.asarray(predict(np.arange(rows)) if asks else predict())


def source_of(train: Any) -> str | None:
    """Hash the source of `train`, where Python can find it: this is its version unless the user names one."""
    while hasattr(train, "func"):  # functools.partial
        train = train.func
    try:
        return "sha256 " + hashlib.sha256(inspect.getsource(inspect.unwrap(train)).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def _stored(store: ShadowStore, number: int, outcome: np.ndarray | Timed, spent: float) -> Failure | None:
    timed = outcome if isinstance(outcome, Timed) else Timed(outcome, spent)
    problem = _unusable(timed.signals, store.plan.rows)
    if problem is not None:
        return Failure(problem)
    try:
        store.put(number, timed.signals, timed.seconds)
    except InputError as error:
        return Failure(str(error))
    return None


def _failed(failures: dict[int, Failure], plan: ShadowPlan, store: ShadowStore) -> InputError:
    order = sorted(failures)
    named = [f"{plan.name_of(number)}: {failures[number].reason}" for number in order]
    more = [f"and {len(named) - FAILURES_NAMED} more"] if len(named) > FAILURES_NAMED else []
    kept = len(store.finished() & set(range(plan.models)))
    finished = f"{kept} finished models are kept in {store.path}: repair train and run again"
    error = fail(
        "train",
        f"signals from all {plan.models} models",
        f"{len(failures)} without: " + "; ".join(named[:FAILURES_NAMED] + more),
        "repair train, and pass folder= to keep finished models" if store.temporary else finished,
    )
    for number in order[:FAILURES_NAMED]:
        if failures[number].trace:
            error.add_note(f"{plan.name_of(number)}: {failures[number].trace}")
    return error


def _one_model(
    train: Train,
    number: int,
    indices: np.ndarray,
    seed: int,
    rows: int,
    stored: slice | np.ndarray,
    device: dict[str, str],
) -> Outcome:
    """Train a model in a worker, which must not raise: the other models go on."""
    began = time.perf_counter()
    try:
        signals = predicted_signals(train(indices, seed, **device), rows)
        problem = _unusable(signals, rows)
        return number, Timed(signals[stored], time.perf_counter() - began) if problem is None else Failure(problem)
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
    """Set joblib up as asked, and put its own errors in giveaway's words."""
    try:
        configured = parallel_config(backend=backend, n_jobs=workers)
    except (ImportError, ValueError) as error:
        remedy = 'make a distributed.Client first (pip install "giveaway[dask]" where there is none)'
        raise fail("backend", "a running cluster", f"{backend!r} without one", remedy) from error
    try:
        with configured:
            yield
    except pickle.PicklingError as error:
        remedy = 'keep open files and locks out of it, or use backend="threading"'
        raise fail("train", "a function that can be sent to another process", "one that cannot", remedy) from error
    except BrokenExecutor as error:  # what joblib's own error for a worker that died is a kind of
        remedy = "finished models are kept: run again with fewer workers"
        raise fail("workers", "processes that live", "one that was killed, for memory perhaps", remedy) from error


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)
