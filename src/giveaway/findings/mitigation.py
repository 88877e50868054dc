"""What helps: a model trained with each of several remedies, how well it predicts, and how far an attack still tells.

Exposure must mean the same for every model, so it is measured, never read off a score: an attack tells records trained
on from others, among all of them and among those that the audit ranks highest. The records held out are drawn once, one
of every five neighbours in the audit's ranking, and are the same for all remedies.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.attacks import shadow_store
from giveaway.attacks.retraining import Retraining
from giveaway.attacks.shadow import OnModel, right, train_plan
from giveaway.attacks.thresholds import AttackScores, mean_over_out
from giveaway.auditing.validate import checked_training
from giveaway.checks import InputError, check_number, fail
from giveaway.evaluation.ranking import Interval
from giveaway.evaluation.success import summarize
from giveaway.findings.remedies import Remedy, remedies
from giveaway.records import ScoreTable, Signals
from giveaway.storage.arrays import digest_of
from giveaway.storage.files import private_folder

NOTE = "heuristic: weights that depend on the data void a stated (ε, δ)"
HELD_OUT = 5  # one record in so many
TOP, LEAST_TOP = 0.05, 100  # of the records are the most exposed, but at least so many: a fifth of them is held out
LEAST_MODELS = 4
RATE = 0.01  # of false alarms
RESAMPLES = 100


@dataclass(frozen=True)
class AttackFigures:
    """AUC of an attack on all records that a remedy left in and on the most exposed of them, and the share of all
    records trained on that it finds at 1 % false alarms."""

    on_all: Interval
    on_most_exposed: Interval
    found: Interval


@dataclass(frozen=True)
class RemedyOutcome:
    """What one remedy cost and what it bought.

    accuracy, change : on records held out, and its difference to the training as it is; R² where values are predicted.
    before : AUC on the records that take the place of those left out, while these were there; None where all stay.
    """

    remedy: Remedy
    trained_on: int
    accuracy: Interval
    change: Interval
    attack: AttackFigures
    before: Interval | None
    seconds: float


@dataclass(frozen=True)
class Mitigation:
    """The outcomes of all remedies, the training as it is being the first; `missing` says what was not tried."""

    outcomes: tuple[RemedyOutcome, ...]
    missing: Mapping[str, str]
    records: int
    held_out: int
    top: int
    models: int
    measure: str  # "accuracy", "R²" or the mean "log-likelihood" of a token
    ranked_by: str
    people: bool = False  # whether the audit knows whose records they are

    def to_json(self) -> dict[str, Any]:
        """Return counts and figures; nothing of single records."""
        return {"schema": "giveaway.mitigation/1", **asdict(self), "statements": self.statements()}

    def statements(self) -> list[str]:
        """Say what the figures mean, and what they do not."""
        attack = "that model: it guesses by the losses alone which records it was trained on"
        if self.models:
            attack = f"{self.models} other models of each remedy, each trained on half of the records: it guesses which"
        trained_on = f"{self.records - self.held_out} of {self.records}"
        said = [
            f"{self.measure.capitalize()} is of one model of each remedy, trained on the same {trained_on} records, or "
            f"on fewer where some were left out, and asked about the other {self.held_out}.",
            f"The attack is on {attack}; 0.5 is chance. The most exposed are the {self.top} that the audit ranks "
            f"highest by {self.ranked_by}, of the records left in.",
            "Differences within the intervals may be noise, and other trainings would differ too. "
            "An attack that fails is no proof of safety. These are models like yours, not the one that you release: "
            "audit that one.",
        ]
        whose = "Records, not people, were left out and held out, so that a person's records may be on both sides."
        said += [whose] if self.people else []
        return said + [
            f"{one.remedy.label.capitalize()}, the attack on the next {self.top} has an AUC of "
            f"{one.attack.on_most_exposed.value:.2f}; it was {one.before.value:.2f} ({one.before.low:.2f} to "
            f"{one.before.high:.2f}) while the others were there."
            + (" Others stand out now." if one.attack.on_most_exposed.low > one.before.high else "")
            for one in self.outcomes
            if one.before is not None
        ]


@dataclass(frozen=True, eq=False)
class Trial:
    """One remedy as it is trained; `kept` are the records it leaves in, `top` the most exposed of them."""

    remedy: Remedy
    training: Retraining
    plan: shadow_store.ShadowPlan
    folder: Path
    kept: np.ndarray
    top: np.ndarray


class Trials:
    """Every remedy of a training as `mitigate` tries it, planned before anything is trained."""

    def __init__(
        self,
        training: Retraining | Callable[..., Any],
        table: ScoreTable,
        folder: str | Path,
        *,
        tried: Mapping[str, Sequence[Any]] | None = None,
        models: int = 8,
        seed: int = 0,
    ) -> None:
        self.training, _ = checked_training(training, table)
        self.table, self.models, self.folder = table, models, folder
        if self.training.targets is None and table.meta.loss != "tokens":
            raise fail("y", "labels or values, for the accuracy", "none", "pass y (--data on the command line)")
        if models % 2 or 0 < models < LEAST_MODELS or models < 0:
            expected = f"0, or an even number of at least {LEAST_MODELS}"
            raise fail("models", expected, str(models), "half of them leave each record out")
        weighted = {"newton", "influence"} <= set(table.columns)
        offered, self.missing = remedies(self.training, tried=tried, weighted=weighted)
        order, n = table.order(), len(table)
        drawn = np.random.default_rng(seed).integers(HELD_OUT, size=-(-n // HELD_OUT))
        self.held = np.zeros(n, dtype=bool)
        self.held[order] = np.arange(n) % HELD_OUT == np.repeat(drawn, HELD_OUT)[:n]
        self.trials = []
        for remedy in offered:
            left = order[round(remedy.drop * n) :]
            kept = np.isin(np.arange(n), left)
            changed = remedy.applied(self.training, weights(table) if remedy.weighted else None)
            plan = _plan(changed, kept, self.held, models, seed)
            name = re.sub(r"[^\w.=-]+", "-", remedy.label)[:40] + "-" + digest_of({}, (plan.provenance,))[:12]
            top = left[: max(round(TOP * n), LEAST_TOP)]
            self.trials.append(Trial(remedy, changed, plan, Path(folder) / name, kept, top))

    def run(self, on_model: OnModel | None = None) -> Mitigation:
        """Train what is missing, and measure; a remedy that cannot be trained is told among the missing."""
        private_folder(Path(self.folder))
        outcomes: list[RemedyOutcome] = []
        missing, before = dict(self.missing), None
        for place, trial in enumerate(self.trials):

            def on_one(done: int, total: int, first: int = place) -> None:
                if on_model is not None:
                    on_model(first * total + done, len(self.trials) * total)

            try:
                signals = train_plan(trial.training, trial.plan, trial.folder, on_one)
            except InputError as error:
                if before is None:
                    raise
                missing[trial.remedy.label] = str(error)
                continue
            before = signals if before is None else before
            outcomes.append(self._outcome(trial, signals, before))
        counts = len(self.table), int(self.held.sum()), len(self.trials[0].top), self.models
        measure = "R²" if self.training.labels is None else "accuracy"
        measure = "log-likelihood" if self.training.targets is None else measure
        return Mitigation(tuple(outcomes), missing, *counts, measure, self.table.ranking())

    def _outcome(self, trial: Trial, signals: Signals, before: Signals) -> RemedyOutcome:
        attackers = slice(1, None) if self.models else slice(1)
        attack, earlier = (_attack(one.of_models(attackers)) for one in (signals, before))
        return RemedyOutcome(
            remedy=trial.remedy,
            trained_on=int(signals.members[0].sum()),
            accuracy=_mean(self._right(signals)),
            change=_mean(self._right(signals) - self._right(before)),
            attack=_figures(attack, np.flatnonzero(trial.kept), trial.top),
            before=_figures(earlier, trial.top, trial.top).on_all if trial.remedy.drop else None,
            seconds=round(shadow_store.stored_seconds(trial.folder, 1) or 0.0, 3),
        )

    def _right(self, signals: Signals) -> np.ndarray:
        """Return whether the first model gets each held-out record right; of values, parts whose mean is R²."""
        first = signals.of_models(slice(1)).of_records(self.held)
        said = np.asarray(first.values[0, :, 0], dtype=np.float64)
        if self.training.targets is None:
            return said
        if self.training.labels is None:
            assert self.training.values is not None
            return 1 - said / self.training.values[self.held].var(axis=0).sum()
        return right(first)[0].astype(np.float64)


def mitigate(
    training: Retraining | Callable[..., Any],
    table: ScoreTable,
    *,
    folder: str | Path = "giveaway-remedies",
    tried: Mapping[str, Sequence[Any]] | None = None,
    models: int = 8,
    seed: int = 0,
    on_model: OnModel | None = None,
) -> Mitigation:
    """Train your model with each of several remedies, and say what each costs and what it buys.

    training : `attacks.Retraining(model, X, y)` with an estimator or your own function. A function is given a remedy's
        setting where it takes its keyword: `l2=`, `epochs=`, `sample_weight=` (one for each of its rows), `epsilon=`.
    table : the audit of your model, whose ranking says which records are the most exposed.
    folder : where finished models are kept; the same call goes on where it was.
    tried : values for keywords or parameters, such as {"C": (0.01, 0.1), "drop": (0.1,)}, in place of the usual ones.
    models : how many shadow models of each remedy the attack takes. With 0 it has the model's own losses alone, and
        misses what they do not show: a remedy that looks good then may not be.
    """
    return Trials(training, table, folder, tried=tried, models=models, seed=seed).run(on_model)


def _plan(training: Retraining, kept: np.ndarray, held: np.ndarray, models: int, seed: int) -> shadow_store.ShadowPlan:
    """Plan one model on the records that are not held out, and shadow models on halves of all."""
    n = training.known_records()

    def job(number: int) -> shadow_store.TrainingJob:
        members = kept & (~held if number == 0 else shadow_store.model_membership(number - 1, n, seed=seed))
        drawn = shadow_store.model_seed(number, seed=seed)
        return shadow_store.TrainingJob(np.flatnonzero(members), drawn, members, f"model {number}")

    given = {"split": "one held out in five, then halves", "records": n, "kind": training.kind, "seed": seed}
    given |= {"kept": kept, "held_out": held, "labels": training.labels}
    known = shadow_store.summaries(given, training.plan_entries())
    return shadow_store.ShadowPlan(n, 1 + models, training.kind, job, known, slice(None), training.labels)


def _attack(signals: Signals) -> AttackScores:
    """Guess membership by φ; with several models, by how much it is above its mean over the others without the record
    (LiRA from models without the record, with one deviation for all)."""
    phi = signals.statistic()
    scores = phi.mean(axis=2)
    for model in range(signals.models):
        others = np.arange(signals.models) != model
        scores[model] -= mean_over_out(phi[others], signals.members[others]).mean(axis=1)
    return AttackScores("loss", scores, signals.members)


def _figures(attack: AttackScores, rows: np.ndarray, top: np.ndarray) -> AttackFigures:
    among = [AttackScores("loss", attack.scores[:, which], attack.members[:, which]) for which in (rows, top)]
    on_all, on_top = (summarize(one, rates=(RATE,), resamples=RESAMPLES) for one in among)
    return AttackFigures(on_all.auc, on_top.auc, on_all.true_positive_rate[RATE])


def _mean(each: np.ndarray) -> Interval:
    """Return the mean with its normal interval."""
    value, error = float(each.mean()), 1.96 * float(each.std()) / len(each) ** 0.5
    return Interval(value, value - error, value + error)


def weights(table: ScoreTable, *, cap: float = 0.9) -> np.ndarray:
    """Return one weight per row in (0, 1] that brings its newton down to the `cap` quantile of all rows
    (docs/derivations.md): exact for squared loss and one row at a time, else an estimate, so audit the retrained model.
    Weights multiply those of the audited training and are not normalised."""
    if lacking := [name for name in ("newton", "influence") if name not in table.scores]:
        remedy = "audit a linear head with it; a black box has no curvature to tell how a record pulls"
        raise fail("table", f"the column {lacking[0]}", ", ".join(table.columns), remedy)
    remedy = "give a quantile, such as 0.9"
    if not 0.0 < check_number("cap", cap, minimum=0.0, remedy=remedy) <= 1.0:
        raise fail("cap", "a quantile above 0 and up to 1", f"{cap:g}", remedy)
    newton, influence = table["newton"], table["influence"]
    limit = float(np.quantile(newton, cap))
    above = newton > limit
    if limit <= 0.0 and above.any():
        got = f"a quantile of {limit:g}, which no weight above 0 reaches"
        raise fail("cap", "a quantile of newton above 0", got, "give a higher cap")
    result = np.ones(len(newton))
    ratio = limit / newton[above]
    remainder = np.clip(influence[above] / newton[above], 0.0, 1.0)  # 1 − h
    cross = ratio * remainder * (1.0 - remainder)
    root = 2.0 * ratio * remainder**2 / (1.0 - 2.0 * cross + np.sqrt(1.0 - 4.0 * cross))
    result[above] = np.clip(root, np.finfo(np.float64).tiny, 1.0)
    return result
