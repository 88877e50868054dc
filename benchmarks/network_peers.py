"""Gauss–Newton solves through a whole network: giveaway beside curvlinops, each in a process of its own.

An MLP with 99,802 parameters is trained on 5,000 records. Two questions:

- `steps`: conjugate gradients for 16 right sides, 10 iterations. As many products, so CPU time and memory are those of
  the products; giveaway's right sides share their directions and come further.
- `residual`: the inverse curvature times the gradients of 128 records, until each residual is 1e-3. giveaway
  preconditions too; curvlinops' products go into plain conjugate gradients for all columns at once, with PATIENCE
  seconds of CPU time: where they have not ended by then, their time is a lower bound. `--records` takes fewer.

Reported are CPU seconds of all threads and peak resident memory above what was resident before the first product, on
one thread; what --out has of other questions or contenders stays. Needs `curvlinops-for-pytorch` (head_peers.py says
how to get it). `python -m benchmarks.network_peers`.
"""

import itertools
import time
from typing import Any

import torch
from torch import nn

from benchmarks.measuring import alone, cpu_timed, digits, memory, read_json, read_options, timed, write_result

DIMS = (40, 800, 80, 32, 10)
RECORDS, COLUMNS, STEPS = 5_000, 16, 10
DECAY = 1e-3  # of the mean loss; damping is RECORDS times it
MEMORY = 400_000_000
PATIENCE = 900


def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """The same trained network in every process."""
    torch.manual_seed(0)
    layers = [part for a, b in itertools.pairwise(DIMS) for part in (nn.Linear(a, b), nn.ReLU())][:-1]
    model = nn.Sequential(*layers)
    teacher = nn.Sequential(nn.Linear(DIMS[0], 64), nn.Tanh(), nn.Linear(64, DIMS[-1]))
    x = torch.randn(RECORDS, DIMS[0])
    with torch.no_grad():
        y = (5 * teacher(x)).argmax(1)
    step = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        for rows in torch.randperm(RECORDS).split(100):
            step.zero_grad()
            penalty = sum(value.square().sum() for value in model.parameters())
            (nn.functional.cross_entropy(model(x[rows]), y[rows]) + DECAY / 2 * penalty).backward()
            step.step()
    return model.eval(), x, y


def right_sides(model: nn.Module, x: torch.Tensor, y: torch.Tensor, count: int) -> torch.Tensor:
    """Gradients (P, count) of the first records."""
    columns = []
    for i in range(count):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        columns.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(columns, 1)


def by_giveaway(model: nn.Module, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor, question: str) -> torch.Tensor:
    from giveaway.network import InverseCurvature, Network

    network = Network(model, (x, y), loss="cross_entropy", memory=MEMORY)
    options: dict = {"preconditioner": "none", "most_steps": STEPS, "tolerance": 1e-6, "allow_unconverged": True}
    if question == "residual":
        options = {"tolerance": 1e-3, "most_steps": 2_000}
    return InverseCurvature(network, damping=DECAY * RECORDS, **options)(b).x


def by_curvlinops(model: nn.Module, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor, question: str) -> torch.Tensor:
    from curvlinops import GGNLinearOperator

    data = list(zip(x.split(512), y.split(512), strict=True))
    loss = nn.CrossEntropyLoss(reduction="sum")
    ggn = GGNLinearOperator(model, loss, list(model.parameters()), data, check_deterministic=False)
    most, tolerance = (STEPS, 0.0) if question == "steps" else (2_000, 1e-3)
    # the library's CG wraps SciPy's, column by column; the same recursion for all columns at once serves it better
    solved, r = torch.zeros_like(b), b.clone()
    p, rr = r.clone(), b.square().sum(0)
    norms = rr.clone()
    began = time.process_time()
    for _ in range(most):
        image = ggn @ p + DECAY * RECORDS * p
        length = rr / (p * image).sum(0).clamp_min(1e-30)
        solved, r = solved + length * p, r - length * image
        now = r.square().sum(0)
        if bool((now <= tolerance**2 * norms).all()) or time.process_time() - began > PATIENCE:
            break
        p, rr = r + now / rr.clamp_min(1e-30) * p, now
    return solved


def residual(model: nn.Module, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """How far each column is from solved, by one operator for both contenders."""
    from giveaway.network import GaussNewton, Network

    network = Network(model, (x, y), loss="cross_entropy", memory=MEMORY)
    left = b - GaussNewton(network, DECAY * RECORDS)(found)
    return left.norm(dim=0) / b.norm(dim=0)


CONTENDERS = {"giveaway": by_giveaway, "curvlinops": by_curvlinops}


def measure(name: str, question: str, records: int) -> dict[str, Any]:
    """One contender in this process."""
    torch.set_num_threads(1)
    model, x, y = problem()
    b = right_sides(model, x, y, COLUMNS if question == "steps" else records)
    before = memory("VmHWM")
    (found, cpu), seconds = timed(lambda: cpu_timed(lambda: CONTENDERS[name](model, x, y, b, question)))
    peak = memory("VmHWM") - before
    return {
        "contender": name,
        "question": question,
        "cpu_s": round(cpu, 2),
        "wall_s": round(seconds, 2),
        "peak_mb": round(peak / 2**20),
        "worst_residual": digits(residual(model, x, y, b, found).max(), 3),
        "first_scores": digits((b * found).sum(0)[:4].tolist(), 6),
    }


def main() -> None:
    options = read_options(
        __doc__, "network_peers.json", questions=("steps", "residual"), contenders=CONTENDERS, records=128
    )
    chosen = list(itertools.product(options.questions, options.contenders))
    earlier = read_json(options.out).get("results", [])
    results = [one for one in earlier if (one["question"], one["contender"]) not in chosen]
    for question, name in chosen:
        results.append(alone(measure, name, question, options.records))
        write_result(options.out, {"records": options.records, "results": results}, "curvlinops-for-pytorch")


if __name__ == "__main__":
    main()
