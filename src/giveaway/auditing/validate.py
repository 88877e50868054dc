"""Check an audit against an attack: how well do its scores find the records that LiRA finds?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from giveaway.attacks.lira import lira_within
from giveaway.attacks.retraining import Retraining
from giveaway.attacks.shadow import OnModel, train_shadows
from giveaway.attacks.shadow_store import Folder, stored_seconds
from giveaway.checks import check_kind, fail
from giveaway.evaluation.counts import LEAST, DefensibleCount, defensible_count
from giveaway.evaluation.posterior import EffectPosterior, posterior
from giveaway.evaluation.ranking import SHARES, AgreementTable, Interval, agreement
from giveaway.evaluation.success import AttackSummary, EffectSizes, effect_sizes, shadow_curve, success_rate, summarize
from giveaway.records import ScoreTable, Signals
from giveaway.records.row_digests import RowDigests
from giveaway.text import human_seconds
from giveaway.views.trace import BY_CHANCE, within_classes

LEAST_MODELS = 8
LEAST_RECORDS = 100  # the top 1 % must hold a record
FOR_OWN_VARIANCE = 64  # models; with fewer a variance for every record costs LiRA more than it tells (docs/validate.md)
LEAST_FOR_WORTH = 2_000  # records: with fewer, the simulated worth was wrong by more than tenfold at times
WORTH_WITHIN = 1 / 2.7, 2.0  # between which the measured worth lay, as parts of the simulated one


@dataclass(frozen=True)
class Validation:
    """What the attack measured on the audited records, and how well each score finds it.

    target : which of the signals' models are the audited one, and so none of the `models` that the truth comes from;
        empty where it is known to be none of them, None where that is not known.
    training_seconds : of all the signals' models, summed; None where it is not known.
    success, effect_size : of every record, ½ and 0 for one that has fewer than three models with or without it.
    posterior : every record's effect size by the models and `ranked_by` together.
    """

    table: AgreementTable
    worth: dict[str, float]  # in shadow models, by the recall of the narrowest top; infinity above `tried`
    tried: int
    attack: AttackSummary
    variance: str  # of LiRA, as `attacks.lira` names it
    count: DefensibleCount
    success: np.ndarray
    effect_size: np.ndarray
    posterior: EffectPosterior
    models: int
    ranked_by: str
    target: tuple[int, ...] | None
    audit_seconds: float | None
    attack_seconds: float
    training_seconds: float | None

    def conclusion(self) -> str:
        """Say in one sentence what was found."""
        row = next(row for row in self.table.rows if row.score == self.ranked_by)
        (top, keep), recall = next(iter(row.recall.items()))
        return (
            f"The {100 * keep:.0f} % of records that {self.ranked_by} ranks highest hold {100 * recall.value:.0f} % "
            f"({100 * recall.low:.0f} to {100 * recall.high:.0f} %) of the {100 * top:.0f} % that LiRA with "
            f"{self.models} models finds most exposed. By itself, LiRA would find as much with "
            f"{worth_in_words(self.worth[self.ranked_by], self.tried)} shadow models; {self.count}."
            f"{self._together()}"
        )

    def _together(self) -> str:
        """Say what models and score are worth together, as far as the simulated number was right on measured sets."""
        if len(self.success) < LEAST_FOR_WORTH or np.isinf(self.posterior.worth):
            return ""
        low, high = (max(self.models, round(self.posterior.worth * factor)) for factor in WORTH_WITHIN)
        return (
            f" Read in a way that takes {self.ranked_by} into account too, the {self.models} models find about as much "
            f"as LiRA by itself would with {low} to {high} (simulated, not measured)."
        )

    def about_target(self) -> str:
        """Say in a sentence where the audited model stands among the models."""
        if self.target is None:
            return (
                f"Whether the audited model is one of the {self.models} is not known; if it is, its own signals are "
                "part of the truth that its scores are held against."
            )
        if not self.target:
            return f"The audited model is not one of the {self.models}."
        named = ", ".join(map(str, self.target))
        return f"The audited model ({named} of the signals) is left out: the truth comes from the other {self.models}."

    def cost(self) -> str:
        """Say in a sentence what either side took."""
        trained = self.models + len(self.target or ())
        seconds = (self.audit_seconds, self.attack_seconds, self.training_seconds)
        audit, attack, training = ("an unknown time" if one is None else human_seconds(one) for one in seconds)
        summed = "" if self.training_seconds is None else ", summed over them"
        return f"The audit took {audit} and the attack {attack}; training {trained} models took {training}{summed}."

    def to_json(self) -> dict[str, Any]:
        """Return everything but the values of single records."""
        return {
            "models": self.models,
            "target": None if self.target is None else list(self.target),
            "records": len(self.success),
            "ranked_by": self.ranked_by,
            "worth_tried_up_to": self.tried,
            "conclusion": self.conclusion(),
            "agreement": {
                row.score: {
                    **{f"top {top:g} in {keep:g}": _interval(cell) for (top, keep), cell in row.recall.items()},
                    "spearman": _interval(row.spearman),
                    "worth_in_shadow_models": None if np.isinf(self.worth[row.score]) else self.worth[row.score],
                }
                for row in self.table.rows
            },
            "lira": {
                "auc": _interval(self.attack.auc),
                "balanced_accuracy": _interval(self.attack.balanced_accuracy),
                "tpr_at_fpr": {f"{rate:g}": _interval(cell) for rate, cell in self.attack.true_positive_rate.items()},
                "nonmembers": self.attack.nonmembers,
                "variance": self.variance,
            },
            "at_least_exposed": {
                "records": self.count.at_least,
                "confidence": self.count.confidence,
                "flagged": int(self.count.flagged.sum()),
                "by_success": self.count.by_success,
                "judged": int(self.count.judged.sum()),
                "effect_size_above": self.count.effect,
                "false_discovery_rate": self.count.false_discovery,
                "power_at_twice_that": self.count.power,
            },
            "with_the_score": {
                "models": self.models,
                "worth_in_shadow_models": None if np.isinf(self.posterior.worth) else self.posterior.worth,
                "confidence_of_intervals": self.posterior.confidence,
            },
            "seconds": {
                "audit": self.audit_seconds,
                "attack": round(self.attack_seconds, 3),
                "training": None if self.training_seconds is None else round(self.training_seconds, 3),
            },
        }

    def to_markdown(self) -> str:
        """Write the conclusion, the table and the figures of the attack."""
        lines = [self.conclusion(), "", self.table.to_markdown(), "| score | worth in shadow models |", "|---|---|"]
        lines += [f"| {name} | {worth_in_words(value, self.tried)} |" for name, value in self.worth.items()]
        rates = ", ".join(
            f"{cell.value:.3f} at {rate:g}"
            for rate, cell in self.attack.true_positive_rate.items()
            if rate * self.attack.nonmembers >= 1  # below, not one false alarm is allowed
        )
        of = {"per_record": "a variance for each record", "global_residual": "one variance for all records"}
        lines += ["", f"LiRA, with {of[self.variance]}: AUC {self.attack.auc.value:.3f}; true-positive rate {rates}"]
        lines[-1] += f" false positives (of {self.attack.nonmembers:,} guesses about non-members)."
        return "\n".join([*lines, "", self.about_target(), "", self.cost(), ""])


def validate(
    training: Retraining | Signals | Callable[..., Any],
    table: ScoreTable,
    *,
    rows: np.ndarray | None = None,
    models: int = 64,
    folder: Folder = "giveaway-signals",
    seed: int = 0,
    on_model: OnModel | None = None,
    target: int | Sequence[int] | None = None,
) -> Validation:
    """Train shadow models as your model was trained, and hold an audit's table against them.

    Every score of the table is compared with LiRA's effect size over the models, each of which is attacked with its own
    signals left out of the statistics.

    Parameters
    ----------
    training : `attacks.Retraining(model, X, y)` with an estimator or your own function; `train(rows, seed)` alone,
        which returns outputs on all records of the table; or the signals of models that are there already.
    rows : which of the records of X and y (or of the signals) each row of the table is; by default they are the same.
    models, folder, on_model : of `attacks.train_shadows`: the models are kept in `folder`, a killed run goes on where
        it was, and more models train only the new ones.
    target : with signals, the numbers of the models that are the audited one: everything then comes from the others
        only; pass () if it is none of them.

    >>> import tempfile
    >>> import giveaway as ga
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_digits(return_X_y=True)
    >>> X, y = X[:200] / 16, y[:200]
    >>> model = LogisticRegression().fit(X, y)
    >>> table = ga.audit(ga.from_sklearn(model, X, y))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = ga.validate(ga.attacks.Retraining(model, X, y), table, models=8, folder=folder)
    >>> print(found.about_target())
    The audited model is not one of the 8.
    """
    check_kind("table", table, ScoreTable, "pass what ga.audit returned")
    if isinstance(training, Signals):
        return held_against(training, table, rows, seed=seed, target=target)
    if target is not None:
        raise fail("target", "nothing beside a training", type(target).__name__, "drop target=")
    told, digests = checked_training(training, table, rows)
    _check_counts(len(table), models)
    signals = train_shadows(told, models=models, folder=folder, seed=seed, on_model=on_model, digests=digests)
    seconds = stored_seconds(folder, models)
    return held_against(signals, table, rows, seed=seed, target=(), training_seconds=seconds, own=True)


def held_against(
    signals: Signals,
    table: ScoreTable,
    rows: np.ndarray | None = None,
    *,
    seed: int = 0,
    target: int | Sequence[int] | None = None,
    training_seconds: float | None = None,
    own: bool = False,
) -> Validation:
    """Hold a table against signals, as `validate` does; `own` where it is known that they are of its records."""
    began = time.perf_counter()
    places = _check_rows(table, signals.records, rows)
    left_out = _check_target(target, signals.models)
    others = np.setdiff1d(np.arange(signals.models), left_out or ())
    _check_counts(len(table), len(others))
    compared = signals if places is None else signals.of_records(places)
    compared = compared.of_models(others) if left_out else compared
    if compared.labels is not None:
        _check_labels(table, compared.labels, "signals")
    count = defensible_count(compared)
    judged = count.judged
    if judged.sum() < LEAST_RECORDS:
        expected = f"{LEAST_RECORDS} records or more with {LEAST} models on either side"
        raise fail("signals", expected, f"{judged.sum()} in {compared.models} models", "train more shadow models")
    attacked = compared if judged.all() else compared.of_records(judged)
    measured = effect_sizes(attacked)
    if not (own or _check_digests(table, compared.digests, "signals", "take signals of these records, in order")):
        _check_whose(table, judged, measured)
    success, effect = np.full(len(table), 0.5), np.zeros(len(table))
    variance = "per_record" if compared.models >= FOR_OWN_VARIANCE else "global_residual"
    scored, effect[judged] = lira_within(attacked, variance=variance), measured.effect_size
    success[judged] = success_rate(scored)
    truth_models = compared.models // 2
    sizes = [2**k for k in range(1, 20) if 2**k <= compared.models - truth_models]
    top, keep = SHARES[0]
    scores = {name: table[name][judged] for name in table.columns}
    curve = shadow_curve(attacked, sizes=sizes, top=top, keep=keep, truth_models=truth_models, seed=seed, scores=scores)
    return Validation(
        table=agreement(scores, measured.effect_size, seed=seed),
        worth={name: curve.worth(recall) for name, recall in curve.of_scores.items()},
        tried=sizes[-1],
        attack=summarize(scored, resamples=50, seed=seed),
        variance=variance,
        count=count,
        success=success,
        effect_size=effect,
        posterior=posterior(compared, table[table.ranking()], seed=seed),
        models=compared.models,
        ranked_by=table.ranking(),
        target=left_out,
        audit_seconds=table.meta.seconds,
        attack_seconds=time.perf_counter() - began,
        training_seconds=training_seconds,
    )


def checked_training(
    training: Any, table: ScoreTable, rows: np.ndarray | None = None
) -> tuple[Retraining, RowDigests | None]:
    """Return how the audited model is trained, with the labels of the table where none are known, and the digests of
    its records. Refuse those that are not the table's: number, targets and inputs, where known, must be the same."""
    if table.meta.by_person and rows is None:
        remedy = "audit by record: a head without groups (dataclasses.replace(head, groups=None))"
        raise fail("table", "rows that are records", "people", remedy)
    told = training if isinstance(training, Retraining) else Retraining(training)
    classes, loss = _class_numbers(table), table.meta.loss
    if loss == "tokens" and told.kind is None:  # what a model says of a text is the mean log-likelihood of its tokens
        told = replace(told, kind="phi")
    if told.y is None and rows is None:
        labelled = classes is not None and told.kind != "squared_error"
        told = replace(told, y=classes) if labelled else replace(told, records=told.records or len(table))
    numbers = np.asarray(told.y).dtype.kind in "iub" if told.y is not None else False
    if numbers and loss == "squared" and not told.is_estimator and told.kind is None:
        told = replace(told, y=np.asarray(told.y).astype(np.float64))
    if told.values is not None and classes is not None and not told.is_estimator:
        remedy = "pass labels as whole numbers or names"
        raise fail("y", "labels, since the audit is of classes", f"values ({np.asarray(told.y).dtype})", remedy)
    _check_counts(len(table))
    places = _check_rows(table, told.known_records(), rows)
    if told.labels is not None:
        _check_labels(table, told.labels if places is None else told.labels[places], "y")
    if table.digests is None:
        return told, None
    # a training may know records as inputs, or as the features of a head
    digests = table.digests.again(targets=told.targets, inputs=told.X, features=told.X)
    remedy = "pass X and y of the audit, as it was given them"
    _check_digests(table, digests if places is None else digests.at(places), "X", remedy)
    return told, digests


def _check_digests(table: ScoreTable, digests: RowDigests | None, argument: str, remedy: str) -> bool:
    """Refuse rows that are not the table's by their digests; return whether those prove that they are."""
    if table.digests is None or digests is None:
        return False
    proved, different = table.digests.compared(digests)
    if different:
        raise fail(argument, "the audit's own records, in their order", different, remedy)
    return proved


def _check_rows(table: ScoreTable, records: int, rows: np.ndarray | None) -> np.ndarray | None:
    if rows is None:
        if len(table) != records:
            expected = f"signals on the table's {len(table)} records"
            raise fail("signals", expected, f"{records} records", "pass rows=, a signal's record for each row")
        return None
    places = np.asarray(rows)
    valid = places.shape == (len(table),) and places.dtype.kind in "iu"
    if not valid or places.min() < 0 or places.max() >= records or len(np.unique(places)) < len(places):
        expected = f"{len(table)} different row numbers of the signals, 0 to {records - 1}"
        raise fail("rows", expected, f"{places.dtype} of shape {places.shape}", "give a record of the signals a row")
    return places


def _class_numbers(table: ScoreTable) -> np.ndarray | None:
    """Return the class of each row as the number that signals know it by; None where the table has no classes."""
    classes, names = table.attributes.get("class"), table.meta.class_names
    if classes is None or names is None:
        return classes if classes is not None and classes.dtype.kind in "iu" else None
    called, place = np.unique(classes.astype(str), return_inverse=True)
    number = {name: number for number, name in enumerate(names)}
    return np.array([number.get(name, -1) for name in called.tolist()])[place]


def _check_labels(table: ScoreTable, labels: np.ndarray, argument: str) -> None:
    """Refuse records of other classes than the table's: they are other records."""
    if (classes := _class_numbers(table)) is None:
        return
    if len(different := np.flatnonzero(labels != classes)):
        got = f"other classes in {len(different)} of them, first in row {different[0]}"
        raise fail(argument, "the audit's own records", got, "give those of these records; rows says which they are")


def _check_whose(table: ScoreTable, judged: np.ndarray, measured: EffectSizes) -> None:
    """Refuse signals that, within classes, go with the ranking neither by what the models know nor by what changes."""
    classes = _class_numbers(table)
    classes = np.zeros(len(table), dtype=np.int64) if classes is None else classes
    score, said = table[table.ranking()][judged], (measured.mean_out, measured.effect_size)
    together = max(abs(within_classes(score, values, classes[judged])) for values in said)
    if together * np.sqrt(len(score)) < BY_CHANCE:
        got = f"signals that do not go with {table.ranking()} (correlation {together:.2f} within classes)"
        raise fail("signals", "the audit's own records, in their order", got, "take signals of these records, in order")


def _check_counts(records: int, models: int = LEAST_MODELS) -> None:
    if models < LEAST_MODELS:
        raise fail("signals", f"at least {LEAST_MODELS} models", f"{models}", "train more shadow models")
    if records < LEAST_RECORDS:
        raise fail("table", f"at least {LEAST_RECORDS} records", f"{records}", "validate a larger audit")


def _check_target(target: int | Sequence[int] | None, models: int) -> tuple[int, ...] | None:
    if target is None:
        return None
    numbers = np.atleast_1d(np.asarray(target, dtype=np.int64 if np.size(target) == 0 else None))
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not np.isin(numbers, np.arange(models)).all():
        raise fail("target", f"models of the signals, 0 to {models - 1}", repr(target), "number the audited model")
    return tuple(np.unique(numbers).tolist())


def worth_in_words(worth: float, tried: int) -> str:
    """Say how many shadow models; outside of those that were tried there is only a bound."""
    if not np.isfinite(worth):
        return f"more than {tried} (the most that could be tried)"
    return f"about {worth:.{int(worth < 10)}f}" if worth >= 2 else "fewer than 2"


def _interval(cell: Interval) -> list[float]:
    return [round(value, 6) for value in (cell.value, cell.low, cell.high)]
