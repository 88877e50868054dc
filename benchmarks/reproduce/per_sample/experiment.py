"""One setting of the per-sample paper from its data to its results: train, attack, score, compare."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import giveaway as ga
from benchmarks.measuring import timed
from benchmarks.recipes import Recipe, train_recipe
from benchmarks.reproduce.job import Arrays, Job, read_piece, write_piece
from benchmarks.reproduce.per_sample.agreement import compare
from benchmarks.reproduce.per_sample.attacks import attack_references
from benchmarks.reproduce.per_sample.data import Data, Load, small
from benchmarks.stacked import State, Training, train_stacked
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.network import InverseCurvature, Network, sketch_records
from giveaway.records import ScoreTable, Signals

OF_HEAD = ("loss", "gradient_norm", "influence", "newton", "leverage")
ROWS_AT_ONCE = 2000
DAMPING, TOLERANCE = 10.0, 1e-2  # of the whole network, as the paper has them
PROBES = 64


def score_target(
    model: nn.Sequential, data: Data, rows: Any, number: int, job: Job, *, experiment: Experiment
) -> tuple[Arrays, dict[str, float]]:
    """Return columns by name, one value a training record, and the seconds of each kind; both are kept in --work."""
    path = job.work / "scores" / f"{number}.npz"
    if path.exists():
        return read_piece(path)
    model = model.to(job.device).eval()
    x, y = torch.from_numpy(data.inputs[rows]), torch.from_numpy(data.targets[rows])
    seconds: dict[str, float] = {}

    def costed(name: str, work: Callable[[], Any]) -> Any:
        with job.phase(name):
            result, seconds[name] = timed(work, job.device)
        return result

    def of_head() -> tuple[ga.Head, ScoreTable]:
        head = head_of(model, x, y, experiment.l2(len(rows)), job.device)
        names = OF_HEAD + (("entropy",) if data.classes else ())
        return head, ga.audit(head, scores=names)

    head, table = costed("surrogates", of_head)
    columns = {name: table[name] for name in table.columns}
    columns |= costed("input_gradient", lambda: input_gradient(model, x, y, job.device))
    inputs = {"fused": x.numpy() if experiment.head_only else data.of(rows)}
    if experiment.head_only:
        inputs["fused_records"] = data.of(rows)
    for name, records in inputs.items() if experiment.fused else ():
        with_inputs = replace(head, inputs=records)
        fused = costed(name, partial(ga.audit, with_inputs, scores="fused"))
        columns[name] = fused["fused"]
    if number < experiment.whole_network:
        columns["whole_network"] = costed("whole_network", lambda: whole_network(model, x, y, data, job))
    write_piece(path, columns, seconds)
    job.stop_in_time()
    return columns, seconds


def input_gradient(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, device: torch.device) -> Arrays:
    """Return the norm of the loss's gradient in a record's input; words have none."""
    found = []
    for part, labels in zip(x.split(ROWS_AT_ONCE), y.split(ROWS_AT_ONCE), strict=True):
        inputs, labels = part.to(device).requires_grad_(), labels.to(device)
        outputs = model(inputs)
        values = (
            (outputs[:, 0] - labels).square()
            if y.is_floating_point()
            else nn.functional.cross_entropy(outputs, labels, reduction="none")
        )
        (gradient,) = torch.autograd.grad(values.sum(), inputs, allow_unused=True)
        if gradient is None:
            return {}
        found.append(gradient.flatten(1).norm(dim=1).cpu())
    return {"input_gradient_norm": torch.cat(found).double().numpy()}


@torch.no_grad()
def head_of(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, l2: float, device: torch.device) -> ga.Head:
    """Return the last layer, with the features it sees of every record."""
    body, last = model[:-1], model[-1]
    assert isinstance(last, nn.Linear)
    features = torch.cat([body(rows.to(device)) for rows in x.split(ROWS_AT_ONCE)])
    loss = "squared" if y.is_floating_point() else "cross_entropy"
    weight, bias = last.weight.detach(), last.bias.detach()
    return ga.Head(features, last(features), y.to(device), loss, l2=l2, weight=weight, bias=bias)


def whole_network(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, data: Data, job: Job) -> Any:
    """Return gᵀ(H + 10)⁻¹g through all parameters, with H the Gauss–Newton curvature of the summed loss."""
    loss = "cross_entropy" if data.classes else "squared"
    records = (x.to(job.device), y.to(job.device) if data.classes else y.to(job.device)[:, None])
    network = Network(model, records, loss=loss)
    inverse = InverseCurvature(network, damping=DAMPING, tolerance=TOLERANCE, allow_unconverged=True)
    sketched = sketch_records(inverse, probes=PROBES, scores=("influence",), seed=job.seed, most_redone=0)
    return sketched["influence"].cpu().numpy()


FIRST_TARGET = 10_000  # seeds and halves that no reference has
SMALL_EPOCHS = 3
DECOUPLED_L2 = 0.01  # of a head trained with AdamW, whose decay belongs to no objective


@dataclass(frozen=True)
class Experiment:
    """A data set and how its models are made; `build` gives an nn.Sequential that ends with the linear head.

    head_only : nothing but the head is trained, on features of a frozen encoder. fused : our own score too.
    whole_network : for how many targets the influence through all parameters is computed too. differs : what is not as
    in the paper. build_small : the model of a small run, where the other would take too long on a CPU.
    """

    name: str
    title: str
    load: Load
    build: Callable[[tuple[int, ...], int], nn.Sequential]
    training: Training
    models_at_once: int
    stack: bool = True
    head_only: bool = False
    fused: bool = True
    whole_network: int = 0
    differs: tuple[str, ...] = ()
    build_small: Callable[[tuple[int, ...], int], nn.Sequential] | None = None

    def l2(self, records: int) -> float:
        """Return the penalty of the head in units of the summed loss: decay of the mean loss, times the records."""
        return DECOUPLED_L2 if self.training.optimizer == "adamw" else records * self.training.weight_decay


def run(experiment: Experiment, job: Job) -> None:
    """Do what is missing and write the results."""
    data = experiment.load(job.data)
    if job.small:
        data = small(data)
        training = replace(experiment.training, epochs=min(SMALL_EPOCHS, experiment.training.epochs))
        build = experiment.build_small or experiment.build
        experiment = replace(experiment, build=build, training=training, whole_network=min(1, experiment.whole_network))
    if job.device.type == "cpu":
        experiment = replace(experiment, training=replace(experiment.training, precision="float32"))
    train = partial(train_references, experiment, data, job)
    found = attack_references(job, plan_of(experiment, data), train, partial(fit_of, data=data))
    with job.phase("targets"):
        states = train_targets(experiment, data, job)
    rows = [np.flatnonzero(own) for own in target_members(data, job)]
    tables, costs = [], []
    for number, state in enumerate(states):
        model = built(experiment, data)
        model.load_state_dict(state)
        columns, seconds = score_target(model, data, rows[number], number, job, experiment=experiment)
        tables.append(columns)
        costs.append(seconds)
    result, summaries = compare(found.truth, found.halves, tables, rows, data)
    told = {
        "title": experiment.title,
        "inputs_sha256": _digest(data.inputs),
        "records": data.records,
        "others": len(data.inputs) - data.records,
        "records_a_model": len(rows[0]),
        "parameters": sum(value.numel() for value in built(experiment, data).parameters()),
        "training": {**asdict(experiment.training), "models_at_once": experiment.models_at_once},
        "l2": experiment.l2(len(rows[0])),
        "differs": list(experiment.differs),
        "fit": found.fit,
        "seconds": {**job.seconds(), **found.seconds, "per_target": per_target(costs)},
    }
    job.save(told | result, summaries)


def plan_of(experiment: Experiment, data: Data) -> dict[str, Any]:
    """Return what the references depend on."""
    return {
        "giveaway": ga.__version__,
        "training": asdict(experiment.training),
        "network": str(built(experiment, data)),
        "records": data.records,
        "inputs": _digest(data.inputs),
        "targets": _digest(data.targets),
    }


def _digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()


def train_references(experiment: Experiment, data: Data, job: Job) -> Signals:
    """Train the references and return their signals on all rows: logits of classes, squared errors of values."""
    at_once = min(experiment.models_at_once, job.models)

    def stop_in_time(done: int, total: int) -> None:
        if done % at_once == 0 and done < total:
            job.stop_in_time()

    recipe = Recipe(
        loss="cross_entropy" if data.classes else "squared",
        build=experiment.build,
        training=experiment.training,
        models_at_once=at_once,
        stack=experiment.stack,
    )
    with job.phase("references"):
        return train_recipe(
            recipe,
            data.inputs,
            data.targets,
            models=job.models,
            folder=job.work / "references",
            records=data.records,
            seed=job.seed,
            device=job.device,
            on_model=stop_in_time,
        )


def train_targets(experiment: Experiment, data: Data, job: Job) -> list[State]:
    """Return the trained state of every target, kept one file each."""
    folder = job.work / "targets"
    folder.mkdir(exist_ok=True)
    files = [folder / f"{number}.pt" for number in range(job.targets)]
    missing = [number for number, file in enumerate(files) if not file.exists()]

    def keep(number: int, state: State) -> None:
        beside = files[number].with_suffix(".part")
        torch.save(state, beside)
        beside.replace(files[number])

    if missing:
        at_once = min(experiment.models_at_once, job.targets)
        for number, _ in train_stacked(
            partial(built, experiment, data),
            data.inputs,
            data.targets,
            target_members(data, job),
            experiment.training,
            seeds=[model_seed(FIRST_TARGET + number, seed=job.seed) for number in range(job.targets)],
            numbers=missing,
            models_at_once=at_once,
            stack=experiment.stack,
            device=job.device,
            on_trained=keep,
        ):
            if (number + 1) % at_once == 0 and number + 1 < job.targets:
                job.stop_in_time()
    return [torch.load(file, map_location="cpu", weights_only=True) for file in files]


def target_members(data: Data, job: Job) -> np.ndarray:
    """Return which records each target is trained on, (targets, records) of bool."""
    even = job.targets + job.targets % 2
    return balanced_membership(even, data.records, seed=job.seed, first=FIRST_TARGET)[: job.targets]


def built(experiment: Experiment, data: Data) -> nn.Sequential:
    return experiment.build(data.inputs.shape[1:], data.outputs)


def fit_of(references: Signals, data: Data) -> dict[str, Any]:
    """Return how good the references are on what they were trained on, on the records left out, and on the others."""
    sums, counts = np.zeros(3), np.zeros(3)
    for number in range(references.models):
        own = references.members[number]
        here, there = references.values[number, :, 0], references.population[number, :, 0]  # type: ignore[index]
        if data.classes:
            labels = data.targets
            here, there = here.argmax(-1) == labels[: data.records], there.argmax(-1) == labels[data.records :]
        for place, part in enumerate((here[own], here[~own], there)):
            sums[place] += part.sum(dtype=np.float64)
            counts[place] += part.size
    kind = "accuracy" if data.classes else "mean squared error"
    trained, left_out, others = (sums / counts).round(5).tolist()
    return {"kind": kind, "trained": trained, "left_out": left_out, "others": others}


def per_target(costs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median over targets: the first one also waits for the device to be made ready."""
    names = dict.fromkeys(name for cost in costs for name in cost)
    return {name: round(float(np.median([cost[name] for cost in costs if name in cost])), 4) for name in names}
