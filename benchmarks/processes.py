"""Audits by several processes: `python -m benchmarks.processes [--ranks 1 2 4] [--records 20000]`.

One audit of made images (16 × 16, 4 classes) with a sketch of the head, the second view from landmarks and a trace, by
torchrun with one, two and four processes on this machine: seconds from start to end (of the command, and of the audit
itself), the largest memory of a process, and how far each column is from that of one process. With more processes than
cores, seconds tell nothing but that it works.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import giveaway as ga
from benchmarks.measuring import ROOT, digits, read_options, timed, write_result
from giveaway.records import ScoreTable

RUN = """
import resource, sys
sys.argv = ["giveaway", *sys.argv[1:]]
from giveaway.views import left_out
left_out.EXACT_UP_TO = 100
from giveaway.cli import cli
try:
    cli(standalone_mode=False)
finally:
    print("largest", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
"""


def write_records(folder: Path, n: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(4, size=n)
    images = rng.integers(0, 160, (4, 1, 16, 16))[y] + rng.integers(0, 96, (n, 1, 16, 16))
    np.save(folder / "images.npy", images.astype(np.uint8))
    features = rng.normal(size=(4, 32))[y] + rng.normal(size=(n, 32))
    weight = rng.normal(size=(4, 32)) / 4
    np.savez(folder / "head.npz", features=features, targets=y, weight=weight, bias=np.zeros(4))
    outputs = features @ weight.T
    losses = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(n), y]
    trace = ga.LossTrace(n, targets=y)
    for _ in range(4):
        trace.add(np.arange(n), losses + rng.exponential(size=n))
    trace.save(folder / "losses.trace")


def measure(folder: Path, ranks: int) -> tuple[dict[str, Any], ScoreTable]:
    (folder / "run.py").write_text(RUN, encoding="utf-8")
    meeting = ["--master-addr", "127.0.0.1", "--master-port", str(29_500 + ranks)]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *meeting, "run.py"]
    command += ["audit", "--features", "head.npz", "--inputs", "images.npy", "--trace", "losses.trace", "--l2", "1"]
    command += ["--curvature", "sketch", "--out", f"of-{ranks}"]
    for option in ("precision=float64", "tolerance=1e-8", "probes=64"):
        command += ["--config", option]
    path = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    told, seconds = timed(lambda: subprocess.run(command, cwd=folder, env=path, check=True, capture_output=True))
    table = ScoreTable.load(folder / f"of-{ranks}")
    largest = max(int(size) for size in re.findall(rb"largest (\d+)", told.stdout))
    found = {"command seconds": digits(seconds), "audit seconds": table.meta.seconds}
    return found | {"largest process, GB": digits(largest * 1024 / 1e9)}, table


def main() -> None:
    options = read_options(__doc__, "processes.json", ranks=(1, 2, 4), records=20_000)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_records(folder, options.records)
        runs, tables = {}, {}
        for ranks in options.ranks:
            runs[ranks], tables[ranks] = measure(folder, ranks)
            one = tables[options.ranks[0]]
            away = {name: np.abs(tables[ranks][name] - one[name]).max() for name in one.columns}
            runs[ranks]["largest difference"] = {name: digits(away[name] / np.abs(one[name]).max()) for name in away}
    write_result(options.out, {"records": options.records, "by processes": runs})


if __name__ == "__main__":
    main()
