"""The scores of one target on its own training records: those of the paper and ours, from its head, and where asked the
influence through all of its parameters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

import giveaway as ga
from benchmarks.reproduce.job import Arrays, Job, read_piece, write_piece
from benchmarks.reproduce.per_sample.data import Data
from giveaway.curvature.choice import Auto
from giveaway.network import InverseCurvature, Network, sketch_records

OF_HEAD = ("loss", "gradient_norm", "influence", "newton", "leverage")
ROWS_AT_ONCE = 2000
DAMPING, TOLERANCE = 10.0, 1e-2  # of the whole network, as the paper has them
PROBES = 64


def score_target(
    model: nn.Sequential, data: Data, rows: Any, number: int, job: Job, *, l2: float, head_only: bool, whole: bool
) -> tuple[Arrays, dict[str, float]]:
    """Return columns by name, one value a training record, and the seconds of each kind; both are kept in --work.

    head_only : nothing but the head was trained. whole : also compute the influence through all parameters.
    """
    path = job.work / "scores" / f"{number}.npz"
    if path.exists():
        return read_piece(path)
    model = model.to(job.device).eval()
    x, y = torch.from_numpy(data.inputs[rows]), torch.from_numpy(data.targets[rows])
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        with job.phase(name):
            began = time.perf_counter()
            result = work()
            if job.device.type == "cuda":
                torch.cuda.synchronize(job.device)
            seconds[name] = time.perf_counter() - began
        return result

    def of_head() -> tuple[ga.Head, ga.ScoreTable]:
        head = head_of(model, x, y, l2, job.device)
        names = OF_HEAD + (("entropy",) if data.classes else ())
        return head, ga.audit(head, scores=names, curvature=Auto(l2_sensitivity=False))

    head, table = timed("surrogates", of_head)
    columns = {name: table[name] for name in table.columns}
    inputs = {"fused": x.numpy() if head_only else data.of(rows)}
    if head_only:
        inputs["fused_records"] = data.of(rows)
    for name, records in inputs.items():
        with_inputs = replace(head, inputs=records)
        fused = timed(name, partial(ga.audit, with_inputs, scores="fused", curvature=Auto(l2_sensitivity=False)))
        columns[name] = fused["fused"]
    if whole:
        columns["whole_network"] = timed("whole_network", lambda: whole_network(model, x, y, data, job))
    write_piece(path, columns, seconds)
    job.stop_in_time()
    return columns, seconds


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
