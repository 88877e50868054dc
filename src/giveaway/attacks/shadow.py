"""Train many models and keep what each says of all records: on halves of them (shadow models), or without one."""

import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs, parallel_config
from scipy.stats import rankdata

from giveaway.attacks import shadow_store
from giveaway.attacks.retraining import Retraining
from giveaway.attacks.shadow_store import Folder, ShadowFolder, ShadowPlan, TrainingJob
from giveaway.attacks.slices import slice_of
from giveaway.attacks.thresholds import statistic
from giveaway.checks import InputError, fail, raised_at
from giveaway.records import Signals
from giveaway.records.row_digests import RowDigests

FAILURES_NAMED = 3
LEAST_TASKS = 4  # for each worker and wave
WAITING_BYTES = 2**28  # of finished models that may wait to be stored
DIED = ("BrokenExecutor", "KilledWorker", "FutureCancelledError", "RayError")  # what joblib, Dask and Ray raise

OnModel = Callable[[int, int], Any]


class TrainedModel(NamedTuple):
    """The signals of a model and the seconds of its training; or why it has none, with a traceback."""

    number: int
    signals: np.ndarray | None
    seconds: float = 0.0
    reason: str = ""
    trace: str = ""
    kind: str | None = None
    refused: bool = False  # by a check of ours, whose words say it all


def train_shadows(
    training: Retraining,
    *,
    models: int,
    folder: Folder,
    seed: int = 0,
    population: int = 0,
    on_model: OnModel | None = None,
    only: range | None = None,
    digests: RowDigests | None = None,
    about: Mapping[str, Any] = {},
) -> Signals:
    """Train `models` models, each on its own half of the records, and return their signals; resume what is in `folder`.

    Parameters
    ----------
    models : even; ask for more later, and only the new ones are trained. The first one's outputs are checked before
        the second is trained.
    population : how many of the last records are never trained on.
    on_model : called with the count of finished models and of all, after every model.
    only : the numbers of some of the models, which are trained apart: any number of machines that see `folder` take a
        slice each, and `collect_slices(folder)` joins them. `about` is kept with a slice for that.
    digests : of the records, under the key of an audit; kept with the signals.

    A folder whose fingerprint, split, kind, seed or code differs is refused.
    """
    plan, place = _plan(training, models, seed, population), Path(folder)
    if only is not None:
        plan, place = slice_of(plan, only, folder, about)
    signals = shadow_store.marked_with(train_plan(training, plan, place, on_model), place, digests)
    return signals if only is None else signals.of_models(slice(only.start - plan.first, None))


def first_model(training: Retraining, *, models: int, folder: Folder, seed: int = 0) -> tuple[float, int]:
    """Train the first model, which is kept in `folder`; return its seconds, and how many are missing after it."""
    plan = _plan(training, models, seed)
    train_plan(training, replace(plan, models=1), folder)
    with shadow_store.open_store(folder, shadow_store.stored_kind(folder, plan)) as store:
        return shadow_store.stored_seconds(folder, 1) or 0.0, len(set(range(models)) - store.finished())


def _plan(training: Retraining, models: int, seed: int, population: int = 0) -> ShadowPlan:
    records = training.known_records() - population
    labels, others = (None, None) if training.labels is None else np.split(training.labels, [records])
    named, of_population = training.plan_entries(), (population, others if population else None)
    return shadow_store.plan_of_halves(records, models, training.kind, named, seed, labels, *of_population)


@dataclass(frozen=True, eq=False)
class RetrainedRecords:
    """What training with a record changed, one entry for each record; high = the record gives itself away.

    loss_gap : mean loss without − mean loss with the record.
    memorization : share of right predictions with the record − without it (Feldman's memorization); None for squared
        errors, where no prediction is right or wrong. φ > 0 counts as right, which with more than two classes not every
        right prediction has: logits avoid that.
    auc : chance that a model with the record has a lower loss than one without it; ties count half.
    """

    records: np.ndarray
    loss_gap: np.ndarray
    memorization: np.ndarray | None
    auc: np.ndarray


def retrain_without(
    training: Retraining,
    chosen: Sequence[int],
    *,
    repeats: int,
    members: Any = None,
    seed: int = 0,
    folder: Folder | None = None,
    on_model: OnModel | None = None,
) -> RetrainedRecords:
    """Train `repeats` models on all records, and for each chosen record as many without it, from the same seeds.

    `members` (numbers of records) is the training set, all records unless given; it must hold the chosen ones. The
    models with the record are shared by all chosen records: repeats·(1 + chosen) trainings in all. With a `folder` each
    finished model is stored at once, a killed run goes on where it was, and more repeats train only the new models.
    """
    records = training.known_records()
    everyone = np.arange(records) if members is None else np.unique(_row_numbers("members", members, records))
    which = _row_numbers("chosen", chosen, records)
    if not len(which) or not np.isin(which, everyone).all():
        raise fail("chosen", "records of the training set", f"{len(which)} with others among them", "choose members")
    count = len(which)
    if len(np.unique(which)) < count:
        raise fail("chosen", "different records", f"{count - len(np.unique(which))} repeated", "name each once")
    if repeats < 2:
        raise fail("repeats", "at least 2 models with and without", str(repeats), "one model shows only its own noise")
    own = None if training.labels is None else training.labels[which]
    given = {"split": "leave one out", "chosen": which, "members": everyone, "records": records, "kind": training.kind}
    provenance = shadow_store.summaries({**given, "seed": seed, "labels": own}, training.plan_entries())

    def job(number: int) -> TrainingJob:
        """Rounds of one seed follow each other: first a model with everyone, then one without each chosen record."""
        turn, place = divmod(number, 1 + count)
        indices, name = everyone, f"model {turn} with all records"
        if place:
            indices, name = everyone[everyone != which[place - 1]], f"model {turn} without record {which[place - 1]}"
        return TrainingJob(indices, shadow_store.model_seed(turn, seed=seed), np.arange(count) != place - 1, name)

    plan = ShadowPlan(count, repeats * (1 + count), training.kind, job, provenance, which, own)
    if (signals := train_plan(training, plan, folder, on_model)).queries > 1:
        raise fail("predict", "one query a record", str(signals.queries), "return one signal a record")
    by_round = signals.values.reshape(repeats, 1 + count, *signals.values.shape[1:])
    places = np.arange(count)
    sides = (by_round[:, 0], True), (by_round[:, 1 + places, places], False)
    inside, outside = (replace(signals, values=v, members=np.full(v.shape[:2], known)) for v, known in sides)
    return _compared(inside, outside, which)


def _compared(inside: Signals, outside: Signals, records: np.ndarray) -> RetrainedRecords:
    """Compare models with each of the records and models without it, all else equal."""
    by = "squared_error" if inside.kind == "squared_error" else "loss"
    loss_in, loss_out = (-statistic(side, by)[..., 0] for side in (inside, outside))
    memorization = None if by == "squared_error" else right(inside).mean(0) - right(outside).mean(0)
    k = len(loss_in)
    ranks = rankdata(np.concatenate([-loss_in, -loss_out]), axis=0)[:k]
    auc = (ranks.sum(axis=0) - k * (k + 1) / 2) / (k * len(loss_out))
    return RetrainedRecords(records, loss_out.mean(axis=0) - loss_in.mean(axis=0), memorization, auc)


def right(signals: Signals) -> np.ndarray:
    """Return whether each model gets each record right, (M, n); φ > 0 counts as right."""
    values = signals.values[:, :, 0]
    return values > 0 if signals.kind == "phi" else values.argmax(-1) == np.asarray(signals.labels)


def _row_numbers(argument: str, value: Any, records: int) -> np.ndarray:
    rows = np.asarray(value)
    if rows.ndim != 1 or (rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= records)):
        expected, got = f"row numbers from 0 to {records - 1}", f"{rows.dtype} of shape {rows.shape}"
        raise fail(argument, expected, got, "name records by number; np.flatnonzero turns a mask into numbers")
    return rows.astype(np.int64)


def collect_shadows(
    train_missing: Callable[[Sequence[int]], Iterable[TrainedModel]],
    plan: ShadowPlan,
    *,
    folder: Folder | None,
    on_model: OnModel | None = None,
) -> Signals:
    """Store what `train_missing(numbers)` gives, model by model, and return the signals of all models of the plan. It
    yields them in any order. If the very first fails, no other is waited for. Without a folder nothing is kept."""
    with shadow_store.open_store(folder, plan) as store:
        missing = sorted(set(plan.numbers) - store.finished())
        failures: dict[int, TrainedModel] = {}
        wanted = set(missing)
        for model in train_missing(missing) if missing else ():
            wanted.remove(model.number)
            reason = model.reason
            if model.signals is not None:
                reason = store.put(model.number, model.signals, model.seconds)
            if reason:
                failures[model.number] = model._replace(reason=reason)
                if len(missing) - len(wanted) == 1:
                    wanted.clear()
                    break
            elif on_model is not None:
                on_model(len(plan.numbers) - len(wanted) - len(failures), len(plan.numbers))
        failures |= {number: TrainedModel(number, None, reason="no signals") for number in wanted}
        if not failures:
            return store.signals()
        remedy = "repair train, and pass folder= to keep finished models"
        if folder is not None:
            kept = len(store.finished() & set(plan.numbers))
            remedy = f"{kept} finished models are kept in {store.path}: repair train and run again"
        raise _failed(failures, plan, remedy)


def _failed(failures: Mapping[int, TrainedModel], plan: ShadowPlan, remedy: str) -> InputError:
    order = sorted(failures)
    jobs = {number: plan.job(number) for number in order[:FAILURES_NAMED]}
    names = {number: f"{job.name} (seed {job.seed})" for number, job in jobs.items()}
    reasons = [f"{name}: {failures[number].reason}" for number, name in names.items()]
    if len(order) > FAILURES_NAMED:
        reasons.append(f"and {len(order) - FAILURES_NAMED} more")
    got = f"{len(order)} without: " + "; ".join(reasons)
    error = fail("train", f"signals from all {len(plan.numbers)} models", got, remedy)
    if plan.kind is None and failures[order[0]].refused:  # the first model of all
        error = InputError(failures[order[0]].reason)
    for number, name in names.items():
        if failures[number].trace:
            error.add_note(f"{name}: {failures[number].trace}")
    return error


def train_plan(
    training: Retraining, plan: ShadowPlan, folder: Folder | None, on_model: OnModel | None = None
) -> Signals:
    """Train the models of the plan that are missing, each a task of joblib's; the first one alone, to see its kind."""
    if folder is not None and (slices := ShadowFolder(folder).slices()):
        got = f"{len(slices)} slices that are trained apart in {folder}"
        raise fail("only", "the models of a slice", got, "collect the slices first (--collect)")
    plan = shadow_store.stored_kind(folder, plan)
    first: list[TrainedModel] = []
    if plan.kind is None:
        with nullcontext() if folder is None else ShadowFolder(folder).locked(new=True):  # or refuse it at once
            first = list(_by_joblib(training, plan, [plan.first]))
        if first[0].kind is None:
            raise _failed({plan.first: first[0]}, plan, "repair train: nothing else was trained")
        plan = plan.of_kind(first[0].kind)

    def train_missing(missing: Sequence[int]) -> Iterator[TrainedModel]:
        yield from first
        yield from _by_joblib(training, plan, missing[len(first) :], first)

    return collect_shadows(train_missing, plan, folder=folder, on_model=on_model)


def _by_joblib(
    training: Retraining, plan: ShadowPlan, numbers: Sequence[int], known: Sequence[TrainedModel] = ()
) -> Iterator[TrainedModel]:
    def task(number: int) -> Any:
        devices = training.devices
        device = {"device": devices[number % len(devices)]} if devices else {}
        indices, seed, *_ = plan.job(number)
        return delayed(_train_one)(sent, number, indices, seed, plan.kind, plan.stored, device)

    # batch_size 1: joblib would group quick models, and a group is stored only when the last of it is done
    with _engine(training) as sent, Parallel(return_as="generator_unordered", batch_size=1) as parallel:
        least, start, wave = LEAST_TASKS * effective_n_jobs(None), 0, 1
        size = max((model.signals.nbytes for model in known if model.signals is not None), default=0)
        # in waves, the first of one model: joblib hands out all the tasks it has, and quick models would pile up
        while start < len(numbers):
            wave = max(least, WAITING_BYTES // size) if size else max(wave, least * (start > 0))
            tasks = map(task, numbers[start : start + wave])
            start += wave
            for model in parallel(tasks):
                size = max(size, 0 if model.signals is None else model.signals.nbytes)
                yield model


def _train_one(
    sent: Any,
    number: int,
    indices: np.ndarray,
    seed: int,
    kind: str | None,
    stored: slice | np.ndarray,
    device: dict[str, str],
) -> TrainedModel:
    """Train a model in a worker, which must not raise: the other models go on."""
    began = time.perf_counter()
    try:
        training: Retraining = sent() if callable(sent) else sent
        signals, kind = training.signals(training.train(indices, seed, **device), kind)
        return TrainedModel(number, signals[stored], time.perf_counter() - began, kind=kind)
    except Exception as error:
        refused, trace = isinstance(error, InputError), traceback.format_exc()
        reason = str(error) if refused else raised_at(error)
        return TrainedModel(number, None, reason=reason, trace=trace, refused=refused)


@contextmanager
def _engine(training: Retraining) -> Iterator[Any]:
    """Set joblib up as asked, and put its own errors in giveaway's words; yield the training as tasks are to name it,
    so that Dask and Ray send the records once and not with every model."""
    name = training.backend
    sent: Any = training
    options: dict[str, Any] = {"backend": name, "n_jobs": training.workers}
    try:
        if name == "dask":
            options["scatter"] = [training]
        elif name == "ray":
            import ray
            from ray.util.joblib.ray_backend import RayBackend

            options["backend"] = RayBackend()
            options["backend"].supports_return_generator = True  # its pool does; joblib's own for processes does not
            sent = partial(ray.get, ray.put(training))
        configured = parallel_config(**options)
    except (ImportError, ValueError) as error:
        remedy = f"pip install giveaway[{name}], and connect to the cluster first"
        raise fail("backend", "a running cluster", f"{name!r} without one", remedy) from error
    try:
        with configured:
            yield sent
    except pickle.PicklingError as error:
        remedy = 'keep open files and locks out of it, or use backend="threading"'
        raise fail("train", "a function that can be sent to another process", "one that cannot", remedy) from error
    except Exception as error:
        if not any(kind.__name__ in DIED for kind in type(error).__mro__):
            raise
        remedy = "finished models are kept: run again, with fewer workers if memory ran out"
        raise fail("workers", "processes that live", "one that was killed, for memory perhaps", remedy) from error
