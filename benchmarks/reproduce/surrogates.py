"""The scores of one target on its own training records: those of the paper and ours, from its head, and where asked the
influence through all of its parameters."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import giveaway as ga
from benchmarks.reproduce.data import Data
from benchmarks.reproduce.setting import Job, write_arrays
from giveaway.curvature.choice import Auto
from giveaway.network import InverseCurvature, Network, sketch_records

OF_HEAD = ("loss", "gradient_norm", "influence", "newton", "leverage")
OF_CLASSES = ("entropy",)
ROWS_AT_ONCE = 2000
DAMPING, TOLERANCE = 10.0, 1e-2  # of the whole network, as the paper has them
PROBES = 64

Columns = dict[str, np.ndarray]


def scored(
    model: nn.Sequential,
    data: Data,
    rows: np.ndarray,
    number: int,
    job: Job,
    *,
    l2: float,
    head_only: bool,
    whole: bool,
) -> tuple[Columns, dict[str, float]]:
    """Columns by name, one value a training record, and the seconds of each kind; kept in --work.

    head_only : nothing but the head was trained. whole : the influence through all parameters too.
    """
    path = job.work / "scores" / f"{number}.npz"
    if path.exists():
        with np.load(path) as held:
            return {name: held[name] for name in held if name != "seconds"}, json.loads(str(held["seconds"]))
    model = model.to(job.device).eval()
    x, y = torch.from_numpy(data.inputs[rows]), torch.from_numpy(data.targets[rows])
    seconds: dict[str, float] = {}

    def timed(name: str, work: Any) -> Any:
        with job.phase(name):
            began = time.perf_counter()
            found = work()
            if job.device.type == "cuda":
                torch.cuda.synchronize(job.device)
            seconds[name] = time.perf_counter() - began
        return found

    def of_head() -> tuple[ga.Head, ga.ScoreTable]:
        head = head_of(model, x, y, l2, job.device)
        names = OF_HEAD + (OF_CLASSES if data.classes else ())
        return head, ga.audit(head, scores=names, curvature=Auto(l2_sensitivity=False))

    head, table = timed("surrogates", of_head)
    columns = {name: table[name] for name in table.columns}
    given = {"fused": x.numpy() if head_only else data.of(rows)}
    if head_only:
        given["fused_records"] = data.of(rows)
    for name, inputs in given.items():
        columns[name] = timed(name, partial(ga.audit, head, inputs=inputs, scores="fused", l2_sensitivity=False))[
            "fused"
        ]
    if whole:
        columns["whole_network"] = timed("whole_network", lambda: whole_network(model, x, y, data, job))
    write_arrays(path, {**columns, "seconds": np.array(json.dumps(seconds))})
    job.stop_in_time()
    return columns, seconds


@torch.no_grad()
def head_of(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, l2: float, device: torch.device) -> ga.Head:
    """The last layer, and what it sees of every record."""
    body, last = model[:-1], model[-1]
    assert isinstance(last, nn.Linear)
    features = torch.cat([body(part.to(device)) for part in x.split(ROWS_AT_ONCE)])
    squared = y.is_floating_point()
    return ga.Head(
        features,
        last(features),
        y.to(device),
        "squared" if squared else "cross_entropy",
        l2=l2,
        weight=last.weight.detach(),
        bias=last.bias.detach(),
    )


def whole_network(model: nn.Sequential, x: torch.Tensor, y: torch.Tensor, data: Data, job: Job) -> np.ndarray:
    """gᵀ(H + 10)⁻¹g through all parameters, H the Gauss–Newton curvature of the summed loss."""
    loss = "cross_entropy" if data.classes else "squared"
    records = (x.to(job.device), y.to(job.device) if data.classes else y.to(job.device)[:, None])
    network = Network(model, records, loss=loss)
    inverse = InverseCurvature(network, damping=DAMPING, tolerance=TOLERANCE, allow_unconverged=True)
    found = sketch_records(inverse, probes=PROBES, scores=("influence",), seed=job.seed, most_redone=0)
    return found["influence"].cpu().numpy()
