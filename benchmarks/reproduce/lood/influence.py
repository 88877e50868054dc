"""Figure 3c of the LOOD paper: what leaving a record out does to its prediction, predicted without retraining."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import nn

from benchmarks.measuring import digits
from benchmarks.reproduce.job import Job, Piece
from benchmarks.reproduce.lood.attacks import truth_of
from benchmarks.reproduce.lood.measures import correlation
from benchmarks.reproduce.lood.networks import Pictures, Size, cars_and_planes, described, first_network, size_of
from benchmarks.stacked import EpochBatches
from giveaway.attacks.shadow_store import model_seed
from giveaway.gp.posterior import kernel_regression, leave_one_out
from giveaway.linalg.precision import tf32_products
from giveaway.network import Network, RecordDerivatives

NETWORKS = 5
CHECKPOINTS = 8
DAMPING = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # λ over the largest eigenvalue of the Gauss–Newton matrix
MEMORY = 4 * 10**9  # bytes of a piece of TracIn's work
CAP = 1e-8  # the least 1 − leverage
Checkpoint = tuple[dict[str, torch.Tensor], float]


def run(job: Job) -> None:
    size = size_of(job)
    truth = truth_of(job)
    pictures = cars_and_planes(job, size.records, size.held_out)
    chosen = truth["chosen"]
    if len(chosen) and int(chosen.max()) >= pictures.records:
        raise SystemExit("lood_influence: the results of lood_retrained are of other data; run it again")
    found = []
    for number in range(2 if job.small else NETWORKS):
        seed = model_seed(1_000 + number, seed=job.seed)
        make = partial(_one_network, job, size, pictures, chosen, seed)
        found.append(job.piece(f"network_{number}.npz", "networks", make)[0])
    change = np.abs(truth["change"].astype(np.float64))
    estimates: dict[str, np.ndarray] = {
        "lood_mean": np.abs(truth["nngp_change"].astype(np.float64)),
        "tracin": np.mean([one["tracin"] for one in found], 0),
    }
    for place, damping in enumerate(DAMPING):
        for name in ("influence", "newton"):
            estimates[f"{name}_{damping:g}"] = np.mean([one[name][place] for one in found], 0)
    job.save(
        {
            **described(size, pictures, "relu"),
            "chosen": len(chosen),
            "networks": len(found),
            "checkpoints": CHECKPOINTS,
            "damping_over_largest_eigenvalue": list(DAMPING),
            "largest_eigenvalue": digits(np.mean([one["largest"] for one in found])),
            "with_the_change": {name: correlation(values, change) for name, values in estimates.items()},
            "with_its_square": {
                name: correlation(values if name == "tracin" else values**2, change**2)
                for name, values in estimates.items()
            },
            "tracin_of_one_network": [correlation(one["tracin"], change)["pearson"] for one in found],
            "seconds": digits({name: value for name, value in job.seconds().items() if name != "networks"}),
        },
        {"chosen": chosen, "change": change, **{name: values / values.max() for name, values in estimates.items()}},
    )


def _one_network(job: Job, size: Size, pictures: Pictures, chosen: np.ndarray, seed: int) -> Piece:
    x, y = (torch.from_numpy(part[: pictures.records]).to(job.device) for part in (pictures.inputs, pictures.targets))
    network = first_network(size, "relu", x.shape[1], seed).to(job.device)
    with job.phase("training"), tf32_products(True):
        kept = train_with_checkpoints(network, x, y, size, seed)
    with job.phase("tracin"):
        traced = tracin(network, x, y, kept, torch.from_numpy(chosen)).cpu().numpy()
    with job.phase("influence"):
        gram, outputs = empirical_kernel(network, x)
        largest = 2 * float(torch.linalg.eigvalsh(gram)[-1])
        steps = [left_out(gram, outputs, y.double(), largest * damping) for damping in DAMPING]
    influence, newton = (torch.stack([step[k] for step in steps])[:, chosen].abs().cpu().numpy() for k in (0, 1))
    return {"tracin": traced, "influence": influence, "newton": newton, "largest": np.array(largest)}, {}


def train_with_checkpoints(
    network: nn.Module, x: torch.Tensor, y: torch.Tensor, size: Size, seed: int
) -> list[Checkpoint]:
    """Train as `train_stacked` does, and return copies of the parameters with the learning rate of the steps since."""
    training = size.training
    steps = math.ceil(len(x) / training.batch_size)
    batches = EpochBatches([np.arange(len(x))], steps, [seed], x.device)
    rates = training.rates(training.epochs * steps)
    rate = torch.tensor(rates[0], dtype=torch.float64 if x.device.type == "cpu" else torch.float32, device=x.device)
    optimizer = training.optimizer_of(list(network.parameters()), rate)
    weights = batches.weights[0].to(x.dtype)
    last = sorted({math.ceil(part * training.epochs / CHECKPOINTS) for part in range(1, CHECKPOINTS + 1)})
    kept: list[Checkpoint] = []
    done = 0
    for epoch in range(training.epochs):
        for step, rows in enumerate(batches.epoch()[0]):
            rate.fill_(rates[epoch * steps + step])
            optimizer.zero_grad()
            (training.losses(network(x[rows]), y[rows]) * weights[step]).sum().backward()
            optimizer.step()
        if epoch + 1 in last:
            state = {name: value.detach().clone() for name, value in network.state_dict().items()}
            kept.append((state, sum(rates[done : (epoch + 1) * steps])))
            done = (epoch + 1) * steps
    return kept


def tracin(
    network: nn.Module, x: torch.Tensor, y: torch.Tensor, kept: list[Checkpoint], rows: torch.Tensor
) -> torch.Tensor:
    """Return Σ η ‖∇ℓ(θ)‖² of these records over the states kept, whose last the network is left with."""
    total = torch.zeros(len(rows), dtype=torch.float64)
    for state, rate in kept:
        network.load_state_dict(state)
        records = Network(network, (x, y[:, None]), loss="squared", memory=MEMORY if x.is_cuda else None)
        total = total + rate * RecordDerivatives(records).norms(rows).cpu().double().square()
    return total


def empirical_kernel(network: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return G = J Jᵀ (n, n) over all weights of linear layers without biases, and outputs (n,), in float64.

    A layer's share is (inputs inputsᵀ) ∘ (slopes slopesᵀ), slopes being the output's derivatives by the layer's own.
    """
    passed: list[tuple[torch.Tensor, torch.Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda _, given, made: passed.append((given[0], made)))
        for module in network.modules()
        if isinstance(module, nn.Linear)
    ]
    outputs = network(x)[:, 0]
    for hook in hooks:
        hook.remove()
    slopes = torch.autograd.grad(outputs.sum(), [made for _, made in passed])
    gram = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for (given, _), slope in zip(passed, slopes, strict=True):
        a, d = given.detach().double(), slope.double()
        gram += (a @ a.T) * (d @ d.T)
    return gram, outputs.detach().double()


def left_out(
    gram: torch.Tensor, outputs: torch.Tensor, targets: torch.Tensor, damping: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return by how much each record's own output falls back when it is left out: first order, and the Newton step.

    The curvature of the summed squared loss is 2JᵀJ + λ: its leverages are those of a Gaussian process with covariance
    G and noise λ/2.
    """
    residual = targets - outputs
    leverage = leave_one_out(kernel_regression(gram, residual[:, None], damping / 2)).leverage
    return leverage * residual, leverage / (1.0 - leverage).clamp_min(CAP) * residual


RUNS = {"lood_influence": run}
