"""Memory of solves through networks of a million parameters: python benchmarks/network_memory.py OUT.json.

An MLP and a CNN, 5,000 records each, untrained, each in a process of its own. All records are sketched from 64 right
sides that are solved together (`--memory` is the budget that allows it): preconditioner, right sides, conjugate
gradients and the products with every record. Few steps are taken: memory does not grow with their number, since every
vector is written over the one before.

Reported are peak resident memory of the whole process in gigabytes, with what was resident before, CPU and wall
seconds. The claim is 6 GB. Networks of an earlier run stay in OUT.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measuring import environment, in_own_process, memory, read_json, write_json
from torch import nn

from giveaway.attacks.recipes import build_cnn
from giveaway.network import InverseCurvature, Network, sketch_records

RECORDS, COLUMNS, STEPS, DAMPING, CLAIMED = 5_000, 64, 1, 10.0, 6.0


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 920), nn.ReLU(), nn.Linear(920, 300), nn.ReLU(), nn.Linear(300, 10))


def cnn() -> nn.Module:
    return build_cnn((3, 32, 32), 10, channels=(64, 128, 292))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {"mlp": (mlp, (784,)), "cnn": (cnn, (3, 32, 32))}


def measure(name: str, options: argparse.Namespace) -> None:
    """One network in this process; prints one line of JSON."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    model, x, y = build().eval(), torch.randn(options.records, *shape), torch.randint(0, 10, (options.records,))
    before, cpu, wall = peak(), time.process_time(), time.perf_counter()
    network = Network(model, (x, y), loss="cross_entropy", memory=int(1e9 * options.memory))
    inverse = InverseCurvature(network, damping=DAMPING, most_steps=options.steps, allow_unconverged=True)
    assert inverse.columns >= COLUMNS
    found = sketch_records(inverse, probes=COLUMNS, scores=("influence",), most_redone=0)
    result = {
        "network": name,
        "parameters": network.size,
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
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "seconds": round(time.perf_counter() - wall, 1),
    }
    print(json.dumps(result))


def peak() -> float:
    return round(memory("VmHWM") / 1e9, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--memory", type=float, default=2.7, help="gigabytes of a piece of work")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one, options)
        return
    results = read_json(options.out).get("results", [])
    given = [f"--{key}={getattr(options, key)}" for key in ("records", "steps", "memory", "threads")]
    for name in options.networks:
        results = [result for result in results if result["network"] != name]
        results.append(in_own_process(__file__, "--one", name, *given, threads=options.threads))
        print(results[-1], flush=True)
        if options.out:
            write_json(options.out, {"environment": environment(), "results": results})


if __name__ == "__main__":
    main()
