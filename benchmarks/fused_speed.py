"""What the fused score costs: one audit with both views, everything from arrays to the finished table.

tabular : a million made rows (12 numbers and 8 categories in one-hot form), a head of 32 features, 2 classes.
images : the records of one CIFAR-10 target model (25,000 images of 32 × 32), given --target and --cifar10.
Seconds are wall-clock, memory the largest resident size of the process. Run on an otherwise idle machine.

    python -m benchmarks.fused_speed --what tabular [--rows 1000000] [--to FOLDER]
    python -m benchmarks.fused_speed --what images --target cifar10_cnn_target_200.npz --cifar10 cifar10.npz
"""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import giveaway as ga
from benchmarks.data import arrays
from benchmarks.measuring import RESULTS, cpu_timed, memory, read_options, timed, write_result
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


def measure(what: str, options: argparse.Namespace) -> dict[str, Any]:
    if what == "tabular":
        head, inputs = made_table(options.rows)
    else:
        head, _ = from_file(options.target, l2=0.01)
        (index,), (images,) = arrays(options.target, "index"), arrays(options.cifar10, "x_train")
        inputs = np.ascontiguousarray(images[index].transpose(0, 3, 1, 2))
    before = memory("VmHWM")
    head, columns = replace(head, inputs=inputs), ["newton", "left_out", "fused"]
    audit = partial(ga.audit, head, scores=columns)
    (table, cpu), seconds = timed(lambda: cpu_timed(audit))
    return {
        "records": len(table),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "peak_gb": round(memory("VmHWM") / 1e9, 2),
        "data_gb": round(before / 1e9, 2),
        "view": table.meta.view.to_json(),
    }


def main() -> None:
    options = read_options(__doc__, what=("tabular", "images"), rows=1_000_000, target=Path, cifar10=Path, to=RESULTS)
    for what in options.what:
        write_result(options.to / f"fused_speed_{what}.json", measure(what, options))


if __name__ == "__main__":
    main()
