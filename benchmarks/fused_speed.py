"""What the fused score costs: one audit with both views, everything from arrays to the finished table.

tabular : a million made rows (12 numbers and 8 categories in one-hot form), a head of 32 features, 2 classes.
images : the records of one CIFAR-10 target model (25,000 images of 32 × 32), given --target and --cifar10.
Seconds are wall-clock, memory the largest resident size of the process. Run on an otherwise idle machine.

    python benchmarks/fused_speed.py tabular [--rows 1000000] [--out FILE.json]
    python benchmarks/fused_speed.py images --target cifar10_cnn_target_200.npz --cifar10 cifar10.npz
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from measuring import RESULTS, environment, memory, write_json

import giveaway as ga
from giveaway.curvature.choice import Auto
from giveaway.extract import from_file


def made_table(rows: int) -> tuple[ga.Head, np.ndarray]:
    """Numbers and codes, a random network's features of them, and labels that depend on them with noise."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(rows, 12)).astype(np.float32)
    codes = rng.integers(0, 6, (rows, 8))
    x = np.hstack([numbers, (codes[:, :, None] == np.arange(6)).reshape(rows, -1).astype(np.float32)])
    features = np.tanh(x @ rng.normal(size=(x.shape[1], 32)).astype(np.float32) / 4)
    logit = features @ rng.normal(size=32).astype(np.float32)
    y = (logit + rng.logistic(size=rows) > 0).astype(np.int64)
    outputs = np.column_stack([-logit / 2, logit / 2]).astype(np.float32)
    return ga.Head(features, outputs, y, "cross_entropy", l2=1.0), x


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.what == "tabular":
        head, inputs = made_table(options.rows)
    else:
        head, _ = from_file(options.target, l2=0.01)
        with np.load(options.target) as held, np.load(options.cifar10) as images:
            inputs = np.ascontiguousarray(images["x_train"][held["index"]].transpose(0, 3, 1, 2))
    before = memory("VmHWM")
    began, cpu = time.perf_counter(), time.process_time()
    table = ga.audit(
        replace(head, inputs=inputs), scores=["newton", "left_out", "fused"], curvature=Auto(l2_sensitivity=False)
    )
    return {
        "records": len(table),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_gb": round(memory("VmHWM") / 1e9, 2),
        "data_gb": round(before / 1e9, 2),
        "view": table.meta.view.to_json(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tabular", "images"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--cifar10", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {**measure(options), "environment": environment()}
    write_json(options.out or RESULTS / f"fused_speed_{options.what}.json", found, show=True)


if __name__ == "__main__":
    main()
