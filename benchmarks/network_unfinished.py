"""What solves that end early do to a sketch: the bound `solve_error`, and what becomes of the scores.

A convolutional network with far more parameters than records, on scikit-learn's digits. The same probes are solved by
few steps and by many, without a preconditioner, so that there is something to end; leverages themselves come from the
dense Jacobian of all records.

python -m benchmarks.network_unfinished [--out FILE.json]
"""

import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call, jacrev, vmap

from benchmarks.measuring import read_options, write_result
from giveaway.network import InverseCurvature, Network, sketch_records

RECORDS, EPOCHS, PROBES, SEED = 400, 12, 16, 0
DAMPING = 1e-3  # of the mean loss
STEPS = (5, 6, 7, 8, 10, 12)
THREADS = 2
MIDDLE = torch.tensor([0.05, 0.95], dtype=torch.float64)


def trained(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    torch.manual_seed(SEED)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.ReLU()),
        *(nn.Conv2d(64, 128, 3, padding=1, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    )
    step = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(50):
            step.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            step.step()
    return model.eval()


def exact_leverage(model: nn.Module, x: torch.Tensor, damping: float) -> torch.Tensor:
    """trace of W B of every record, from K = A Aᵀ with A = W^{1/2} J of all records."""
    values = {name: value.detach() for name, value in model.named_parameters()}

    def outputs(values: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
        return functional_call(model, values, (one.unsqueeze(0),)).squeeze(0)

    found = []
    for part in x.split(20):
        jacobian = torch.cat([j.flatten(2) for j in vmap(jacrev(outputs), (None, 0))(values, part).values()], 2)
        p = model(part).detach().softmax(1)
        root = p.sqrt().unsqueeze(2) * (torch.eye(10) - (p.sqrt().unsqueeze(2) * p.sqrt().unsqueeze(1)))
        found.append(root.mT @ jacobian)
    rows = torch.cat(found).flatten(0, 1)
    kernel = (rows @ rows.T).double()
    return (kernel @ torch.linalg.inv(kernel + damping * torch.eye(len(kernel)))).diagonal().view(len(x), 10).sum(1)


def top(trace: torch.Tensor) -> set[int]:
    return set(trace.argsort(descending=True)[: len(trace) // 20].tolist())


def main() -> None:
    options = read_options(__doc__, "network_unfinished.json")
    torch.set_num_threads(THREADS)
    digits = load_digits()
    x = torch.tensor(digits.images[:RECORDS], dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target[:RECORDS])
    model = trained(x, y)
    network, damping = Network(model, (x, y), loss="cross_entropy"), DAMPING * RECORDS
    exact = exact_leverage(model, x, damping)

    def sketched(steps: int, tolerance: float) -> tuple[torch.Tensor, dict[str, float]]:
        inverse = InverseCurvature(
            network,
            damping=damping,
            preconditioner="none",
            tolerance=tolerance,
            most_steps=steps,
            allow_unconverged=True,
        )
        found = sketch_records(inverse, probes=PROBES, seed=SEED, scores="gls_trace", most_redone=0)
        return found["gls_trace"], found.report

    solved, of_solved = sketched(2000, 1e-5)
    rows = []
    for steps in STEPS:
        trace, report = sketched(steps, 1e-5)
        rows.append(
            {
                "steps": steps,
                "residual": report["worst_residual"],
                "solve_error": report["solve_error"],
                "sum_beside_solved": float(trace.sum() / solved.sum()),
                "single_records_beside_solved": [round(float(q), 4) for q in (trace / solved).quantile(MIDDLE)],
                "top_5_percent_shared": len(top(trace) & top(solved)) / len(top(solved)),
                "spearman_with_solved": float(spearmanr(trace, solved).statistic),
                "spearman_with_exact": float(spearmanr(trace, exact).statistic),
            }
        )
        print(rows[-1], flush=True)
    result = {
        "records": RECORDS,
        "parameters": network.size,
        "damping": damping,
        "probes": PROBES,
        "accuracy": float((model(x).argmax(1) == y).float().mean()),
        "sum_of_leverages": {"exact": float(exact.sum()), "solved": float(solved.sum())},
        "solved": {
            "steps": of_solved["most_steps_taken"],
            "residual": of_solved["worst_residual"],
            "solve_error": of_solved["solve_error"],
            "spearman_with_exact": float(spearmanr(solved, exact).statistic),
        },
        "ended": rows,
    }
    write_result(options.out, result)


if __name__ == "__main__":
    main()
