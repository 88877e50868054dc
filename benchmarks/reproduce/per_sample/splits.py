"""California Housing, linear regression, over several splits: in closed form and with Adam, LiRA on several statistics.

The paper prints one row and names neither the statistic nor, consistently, how its models are fitted."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import giveaway as ga
from benchmarks.reproduce.job import Job, Piece
from benchmarks.reproduce.per_sample.agreement import METRICS, figures, repeated
from benchmarks.reproduce.per_sample.attacks import SMALLEST_ERROR, Truth, attack_truth, halves_of
from benchmarks.reproduce.per_sample.data import Data, california, small
from benchmarks.reproduce.per_sample.experiment import FIRST_TARGET, SMALL_EPOCHS, Experiment, built, target_members
from benchmarks.stacked import train_stacked
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.records import Signals

SPLITS = 5
WAYS = CLOSED, ADAM = ("closed_form", "adam")
STATISTICS = {
    "log squared error": lambda e: np.log(np.maximum(e**2, SMALLEST_ERROR)),
    "squared error": np.square,
    "absolute error": np.abs,
    "residual with its sign": lambda e: e,
}
SCORES = ("loss", "gradient_norm", "influence", "newton")


def run_splits(experiment: Experiment, job: Job) -> None:
    """Fit and attack each split in both ways, and keep what the scores of 16 targets find."""
    makers = {f"{how}_{split}": partial(_one, experiment, split, how) for how in WAYS for split in range(SPLITS)}
    records = _data(job, 0).records
    job.save_pieces(makers, splits=SPLITS, ways=WAYS, records=records, l2=experiment.l2(records // 2))


def _data(job: Job, split: int) -> Data:
    data = california(job.data, seed=split)
    return small(data, split) if job.small else data


def _one(experiment: Experiment, split: int, how: str, job: Job) -> Piece:
    data = _data(job, split)
    even = job.models + job.models % 2
    members = np.concatenate(
        [balanced_membership(even, data.records, seed=split)[: job.models], target_members(data, job)]
    )
    fit = closed_form if how == CLOSED else partial(_adam, job=job)
    theta = fit(experiment, data, members)
    errors = np.stack([data.inputs @ own[:-1] + own[-1] - data.targets for own in theta])[:, : data.records]
    errors, targets = errors[: job.models].astype(np.float64), range(job.models, len(theta))
    scored = [_scores(data, np.flatnonzero(members[row]), theta[row], experiment) for row in targets]
    told: dict[str, Any] = {"mean_squared_error": _fit(errors, members[: job.models])}
    for name, statistic in STATISTICS.items():
        signals = Signals(statistic(errors), members[: job.models], "phi")
        truth, halves = _truth(signals), [_truth(signals.of_models(own)) for own in halves_of(job.models)]
        order = truth.ordered
        found = {
            score: np.array(
                [figures(own[score], order[members[row]]) for row, own in zip(targets, scored, strict=True)]
            )
            for score in scored[0]
        }
        told[name] = {"balanced_accuracy": round(truth.accuracy, 5), "halves": repeated(halves)}
        told[name] |= {
            score: dict(zip(METRICS, values.mean(0).round(4).tolist(), strict=True)) for score, values in found.items()
        }
    return {}, told


def _truth(signals: Signals) -> Truth:
    """Return LiRA's truth; whichever way a statistic moves, its size orders the ties."""
    found = attack_truth("lira", signals)
    return Truth(found.success, np.abs(found.effect), found.threshold, found.accuracy)


def _fit(errors: np.ndarray, members: np.ndarray) -> list[float]:
    return [round(float(np.square(errors)[mask].mean()), 5) for mask in (members, ~members)]


def closed_form(experiment: Experiment, data: Data, members: np.ndarray) -> np.ndarray:
    """Return the minimum (models, d + 1) of the summed squared error and ½λ‖θ‖², the bias last and penalized too."""
    x = np.column_stack([data.inputs[: data.records], np.ones(data.records)]).astype(np.float64)
    y = data.targets[: data.records].astype(np.float64)
    penalty = experiment.l2(data.records // 2) / 2 * np.eye(x.shape[1])
    return np.stack([np.linalg.solve(x[own].T @ x[own] + penalty, x[own].T @ y[own]) for own in members])


def _adam(experiment: Experiment, data: Data, members: np.ndarray, job: Job) -> np.ndarray:
    training = replace(experiment.training, epochs=SMALL_EPOCHS) if job.small else experiment.training
    found: dict[int, np.ndarray] = {}

    def keep(number: int, state: dict[str, torch.Tensor]) -> None:
        found[number] = torch.cat([state["0.weight"][0], state["0.bias"]]).double().numpy()

    seeds = [
        model_seed(number if number < job.models else FIRST_TARGET + number, seed=job.seed)
        for number in range(len(members))
    ]
    options: dict[str, Any] = {"models_at_once": len(members), "device": job.device, "on_trained": keep}
    for _ in train_stacked(
        partial(built, experiment, data), data.inputs, data.targets, members, training, seeds=seeds, **options
    ):
        pass
    return np.stack([found[number] for number in range(len(members))])


def _scores(data: Data, rows: np.ndarray, theta: np.ndarray, experiment: Experiment) -> dict[str, np.ndarray]:
    x, y = data.inputs[rows].astype(np.float64), data.targets[rows].astype(np.float64)
    outputs = (x @ theta[:-1] + theta[-1])[:, None]
    head = ga.Head(x, outputs, y, "squared", l2=experiment.l2(len(rows)), weight=theta[None, :-1], bias=theta[-1:])
    table = ga.audit(head, scores=SCORES)
    slope = np.linalg.norm(theta[:-1])  # of the output in the input: the same for every record
    return {**{name: table[name] for name in SCORES}, "input_gradient_norm": 2 * np.abs(outputs[:, 0] - y) * slope}
