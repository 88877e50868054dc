"""Influence through a whole network at the paper's damping of 10, of the summed and of the mean loss, with the
Gauss–Newton matrix and with the Hessian, beside that of the last layer of the same targets.

gᵀ(G + λ)⁻¹g of all records comes from the library's sketch, solved until the error of its solves is small. The Hessian
has no such root: there Z = (H + λ)^(-1/2) Ω/√q with Ω normal, by a Chebyshev polynomial on the spectrum that Lanczos'
method finds, and gᵀ(H + λ)⁻¹g ≈ ‖gᵀZ‖², with a relative error of √(2/q). Where H + λ is not positive there is no such
score, and where it is too near to that for a short polynomial there is none here. The smallest eigenvalue told is the
first below −10 that was seen, or the smallest that was: there may be smaller ones.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Chebyshev
from torch import nn

from benchmarks.measuring import digits, timed
from benchmarks.reproduce.job import Job, Piece, keep_plan, references_of
from benchmarks.reproduce.per_sample.agreement import METRICS, figures
from benchmarks.reproduce.per_sample.attacks import Truth
from benchmarks.reproduce.per_sample.data import small
from benchmarks.reproduce.per_sample.experiment import (
    DAMPING,
    PROBES,
    SMALL_EPOCHS,
    Experiment,
    built,
    head_of,
    target_members,
    train_targets,
)
from giveaway.auditing.run import audit
from giveaway.network import GaussNewton, InverseCurvature, Network, sketch_records
from giveaway.network.solves import Hessian

TARGETS = 4
TOLERANCE, SOLVED = 1e-2, 0.1  # of the first solves; error of solves at which a sketch stops
LANCZOS, MOST_LANCZOS = 30, 150  # steps, at least and at most
MOST_DEGREE, OFF = 30, 0.03  # of the polynomial, and its relative error
VARIANTS = {f"{kind}, {units}": (kind, units) for units in ("summed", "mean") for kind in ("ggn", "hessian")}


def run_whole(experiment: Experiment, job: Job) -> None:
    """Train targets, score each in every way, and compare with the truth that the setting's results keep."""
    job = replace(job, targets=min(job.targets, 2 if job.small else TARGETS))
    keep_plan(job.work / "plan.json", {"seed": job.seed, "small": job.small})
    data = experiment.load(job.data)
    if job.small:
        data, experiment = small(data), replace(experiment, training=replace(experiment.training, epochs=SMALL_EPOCHS))
        experiment = replace(experiment, build=experiment.build_small or experiment.build)
    _, kept = references_of(job, experiment.name)
    truth = Truth(kept["success_lira"], kept["effect_lira"], 0.0, 0.0).ordered
    rows = [np.flatnonzero(own) for own in target_members(data, job)]
    found: dict[str, Any] = {"of": experiment.name, "records_a_model": len(rows[0]), "damping": DAMPING}
    for number, state in enumerate(train_targets(experiment, data, job)):
        model = built(experiment, data)
        model.load_state_dict(state)
        x, y = torch.from_numpy(data.inputs[rows[number]]), torch.from_numpy(data.targets[rows[number]])
        network, probes = _network(model, x, y, job), 8 if job.small else PROBES
        _, ends = job.piece(f"{number} spectrum.npz", "spectrum", partial(_ends, network))
        makers: dict[str, Callable[[], Piece]] = {"last layer": partial(_last_layer, model, x, y, experiment, job)}
        for name, (kind, units) in VARIANTS.items():
            damping, before = DAMPING * (len(x) if units == "mean" else 1), found.get(name, {"report": []})["report"]
            tolerance = before[-1]["tolerance"] if before and kind == "ggn" else TOLERANCE
            ways = {"ggn": partial(sketched, tolerance=tolerance), "hessian": partial(rooted, ends=ends)}
            makers[name] = partial(_whole, partial(ways[kind], network, damping, probes), job)
        for name, make in makers.items():
            columns, report = job.piece(f"{number} {name}.npz", name, make)
            own = found.setdefault(name, {"targets": [], "report": []})
            own["report"].append(report)
            told = columns and digits(figures(columns["influence"], truth[rows[number]]))
            own["targets"].append(dict(zip(METRICS, told, strict=True)) if told else None)
    job.save({**found, "seconds": job.seconds()})


def _last_layer(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, experiment: Experiment, job: Job) -> Piece:
    def scored() -> Any:
        return audit(
            head_of(model.to(job.device).eval(), x, y, experiment.l2(len(x)), job.device), scores=["influence"]
        )

    table, seconds = timed(scored, job.device)
    return {"influence": table["influence"]}, {"seconds": round(seconds, 3)}


def _network(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, job: Job) -> Network:
    classes = not y.is_floating_point()
    records = (x.to(job.device), (y if classes else y[:, None]).to(job.device))
    return Network(model.to(job.device).eval(), records, loss="cross_entropy" if classes else "squared")


def _whole(work: Callable[[], tuple[torch.Tensor | None, dict]], job: Job) -> Piece:
    (column, report), seconds = timed(work, job.device)
    seconds = round(seconds + report.pop("seconds", 0.0), 2)
    return {} if column is None else {"influence": column.cpu().numpy()}, {**report, "seconds": seconds}


def sketched(network: Network, damping: float, probes: int, tolerance: float) -> tuple[torch.Tensor, dict]:
    """Return the influence of every record, from solves that end when the error they leave is small: the bound falls as
    the residual does."""
    for _ in range(3):
        inverse = InverseCurvature(network, damping=damping, tolerance=tolerance, allow_unconverged=True)
        found = sketch_records(inverse, probes=probes, scores=("influence",), most_redone=0)
        if found.report["solve_error"] <= SOLVED:
            break
        tolerance = max(tolerance * SOLVED / found.report["solve_error"] / 2, 1e-6)
    kept = ("probes", "solve_error", "worst_residual", "most_steps_taken", "unsolved", "tolerance")
    return found["influence"], {name: found.report[name] for name in kept}


def rooted(
    network: Network, damping: float, probes: int, ends: dict[str, float]
) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """Return the same with the Hessian, whose spectrum has these ends, or None where it curves downwards by as much as
    the damping, or by nearly as much."""
    hessian, generator = Hessian(network), torch.Generator().manual_seed(0)
    low, high = ends["smallest_eigenvalue"], ends["largest_eigenvalue"]
    report = {**ends, "probes": probes}
    margin = max(0.05 * (high - low), 0.01 * damping, ends["largest_off_by"])
    low, high = low - max(0.2 * abs(low), ends["smallest_off_by"]) + damping, high + margin + damping
    if low <= 0:
        return None, report
    grid = np.geomspace(low, high, 2_000)
    for degree in range(1, MOST_DEGREE + 1):
        inverse_root = Chebyshev.interpolate(lambda t: t**-0.5, degree, [low, high])
        off = float(np.abs(inverse_root(grid) ** 2 * grid - 1).max())
        if off <= OFF:
            break
    report |= {"degree": degree, "off": off}
    if off > OFF:
        return None, report
    start = torch.randn(probes, network.size, generator=generator).T.to(network.device, network.dtype) / probes**0.5
    z = _polynomial(hessian, damping, inverse_root, start)
    found = torch.cat([(_slopes(network, piece) * u).sum(2).square().sum(0) for piece, u in hessian.jacobian.push(z)])
    return found.double(), report


def _polynomial(hessian: GaussNewton, damping: float, series: Chebyshev, start: torch.Tensor) -> torch.Tensor:
    low, high = series.domain

    def mapped(right: torch.Tensor) -> torch.Tensor:
        return (hessian(right) + (damping - (high + low) / 2) * right) * (2 / (high - low))

    before, now = start, mapped(start)
    total = series.coef[0] * before + series.coef[1] * now
    for coefficient in series.coef[2:]:
        before, now = now, 2 * mapped(now) - before
        total += coefficient * now
    return total


def _ends(network: Network) -> Piece:
    ends, seconds = timed(lambda: spectrum(network), network.device)
    return {}, {**ends, "seconds": seconds}


def spectrum(network: Network, least: float = -DAMPING) -> dict[str, float]:
    """Return the ends of the Hessian's spectrum as Lanczos' method sees them from a random start, in as many steps as
    it takes to see an eigenvalue below `least`, or the most."""
    hessian, most = Hessian(network), min(MOST_LANCZOS, network.size)
    start = torch.randn(network.size, generator=torch.Generator().manual_seed(0))
    basis = [(start / start.norm()).to(network.device, network.dtype)]
    diagonal, beside = [], []
    while True:
        image, earlier = hessian(basis[-1][:, None])[:, 0], torch.stack(basis)
        diagonal.append(float(image @ basis[-1]))
        for _ in range(2):  # twice is enough
            image -= earlier.T @ (earlier @ image)
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
        beside.append(float(image.norm()))
        steps, of_all = len(diagonal), beside[-1] <= 10 * torch.finfo(network.dtype).eps * max(abs(values))
        if steps == most or of_all or (steps >= LANCZOS and values[0] < least):
            break
        basis.append(image / beside[-1])
    ends = {"smallest_eigenvalue": float(values[0]), "largest_eigenvalue": float(values[-1])}
    smallest_off_by, largest_off_by = beside[-1] * abs(vectors[-1, [0, -1]])
    return {**ends, "steps": steps, "smallest_off_by": float(smallest_off_by), "largest_off_by": float(largest_off_by)}


def _slopes(network: Network, piece: Any) -> torch.Tensor:
    """Return the gradient (b, m) of each record's loss in its outputs."""
    outputs = piece.outputs.detach().requires_grad_()
    with torch.enable_grad():
        (slopes,) = torch.autograd.grad(network.loss.value(outputs, piece.batch.targets).sum(), outputs)
    return slopes
