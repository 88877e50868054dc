"""Memory of solves through networks of a million parameters: python -m benchmarks.network_memory [--out FILE.json].

An MLP and a CNN, 5,000 records each, untrained, each in a process of its own. All records are sketched from 64 right
sides that are solved together (`--memory` is the budget that allows it): preconditioner, right sides, conjugate
gradients and the products with every record. Few steps are taken: memory does not grow with their number, since every
vector is written over the one before.

Reported are peak resident memory of the whole process in gigabytes, with what was resident before, CPU and wall
seconds. The claim is 6 GB. Networks of an earlier run stay in the file.
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.measuring import alone, cpu_timed, memory, read_json, read_options, timed, write_result
from benchmarks.recipes import build_cnn
from giveaway.network import InverseCurvature, Network, NetworkScores, sketch_records

RECORDS, COLUMNS, STEPS, DAMPING, CLAIMED = 5_000, 64, 1, 10.0, 6.0


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 920), nn.ReLU(), nn.Linear(920, 300), nn.ReLU(), nn.Linear(300, 10))


def cnn() -> nn.Module:
    return build_cnn((3, 32, 32), 10, channels=(64, 128, 292))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {"mlp": (mlp, (784,)), "cnn": (cnn, (3, 32, 32))}


def measure(name: str, options: argparse.Namespace) -> dict[str, object]:
    """One network in this process."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    model, x, y = build().eval(), torch.randn(options.records, *shape), torch.randint(0, 10, (options.records,))
    before = peak()

    def sketch() -> tuple[InverseCurvature, NetworkScores]:
        network = Network(model, (x, y), loss="cross_entropy", memory=int(1e9 * options.memory))
        inverse = InverseCurvature(network, damping=DAMPING, most_steps=options.steps, allow_unconverged=True)
        assert inverse.columns >= COLUMNS
        return inverse, sketch_records(inverse, probes=COLUMNS, scores=("influence",), most_redone=0)

    ((inverse, found), cpu), seconds = timed(lambda: cpu_timed(sketch))
    return {
        "network": name,
        "parameters": found.report["parameters"],
        "records": options.records,
        "right_sides": found.report["right_sides"],
        "right_sides_at_once": COLUMNS,
        "steps": found.report["most_steps_taken"],
        "passes": found.report["passes"],
        "records_at_once": inverse.jacobian.rows,
        "budget_gb": options.memory,
        "peak_gb": peak(),
        "before_gb": before,
        "within_claim": peak() < CLAIMED,
        "cpu_seconds": round(cpu, 1),
        "seconds": round(seconds, 1),
    }


def peak() -> float:
    return round(memory("VmHWM") / 1e9, 3)


def main() -> None:
    options = read_options(
        __doc__, "network_memory.json", networks=NETWORKS, records=RECORDS, steps=STEPS, memory=2.7, threads=2
    )
    results = [one for one in read_json(options.out).get("results", []) if one["network"] not in options.networks]
    for name in options.networks:
        results.append(alone(measure, name, options, threads=options.threads))
        write_result(options.out, {"results": results})


if __name__ == "__main__":
    main()
