"""CPU seconds of the same audits by this code and by an earlier one, asked in turn: one thread, fresh processes.

dense : every head column of 5,000 records, 64 features, 10 classes.
sketch : four columns of 50,000 records, 64 features, 10 classes, from 64 probes.
table : both views of 50,000 made rows (12 numbers and 8 categories in one-hot form), a head of 32 features, 2 classes.
images : both views of the first 6,000 images of --images, an .npz file with `images` (n, h, w, c) and `labels`.

For each the best and the median CPU seconds of both, and the median over the pairs of after / before. Data are made,
and a small audit is run, before the clock starts.

    git worktree add ../before COMMIT
    python -m benchmarks.speed_before --before ../before [--what sketch table] [--images FILE.npz] [--pairs 3]
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import ROOT, cpu_timed, read_options, write_parts

WORK = ("dense", "sketch", "table", "images")
SMALL = 300  # records of the audit that warms up
COLUMNS = {"sketch": ["loss", "leverage", "influence", "newton"], "table": ["newton", "left_out", "fused"]}
COLUMNS["images"] = COLUMNS["table"]


def made(what: str, n: int, file: str | None) -> tuple[dict[str, Any], np.ndarray | None]:
    """Return the arguments of a head of n records, and the records themselves where the views see them."""
    rng = np.random.default_rng(0)
    if what == "images":
        arrays = np.load(str(file))
        inputs = np.ascontiguousarray(arrays["images"][:n].transpose(0, 3, 1, 2))
        y = arrays["labels"][:n].reshape(-1).astype(np.int64)
        x = rng.normal(size=(n, 32)).astype(np.float32)
    elif what == "table":
        codes = rng.integers(0, 6, (n, 8))
        one_hot = (codes[:, :, None] == np.arange(6)).reshape(n, -1).astype(np.float32)
        inputs = np.hstack([rng.normal(size=(n, 12)).astype(np.float32), one_hot])
        x = np.tanh(inputs @ rng.normal(size=(inputs.shape[1], 32)).astype(np.float32) / 4)
        y = (x @ rng.normal(size=32) + rng.logistic(size=n) > 0).astype(np.int64)
    else:
        inputs, y = None, rng.integers(0, 10, n)
        x = (rng.normal(size=(10, 64))[y] + 2 * rng.normal(size=(n, 64))).astype(np.float32)
    m = int(y.max()) + 1
    weight = np.stack([x[y == k].mean(0) if (y == k).any() else x[0] for k in range(m)])
    return {"features": x, "outputs": x @ weight.T, "targets": y, "loss": "cross_entropy", "l2": 1e-3 * n}, inputs


def audit(what: str, n: int, file: str | None) -> float:
    """Return the CPU seconds of one audit by whichever giveaway is imported."""
    import giveaway as ga

    arguments, inputs = made(what, n, file)
    options: dict[str, Any] = {"scores": COLUMNS[what]} if what in COLUMNS else {}
    if hasattr(ga, "Sketch"):
        from giveaway.curvature.choice import Dense, Sketch

        alone = {"l2_sensitivity": False} if hasattr(Dense, "l2_sensitivity") else {}  # of earlier versions
        chosen = Sketch(probes=64, **alone) if what == "sketch" else Dense(**alone)
        head, options = ga.Head(**arguments, inputs=inputs), {**options, "curvature": chosen}
    else:  # before options that belong together were one object
        head = ga.Head(**arguments)
        options |= {"curvature": "sketch", "probes": 64} if what == "sketch" else {"curvature": "dense"}
        options |= {"l2_sensitivity": False, "inputs": inputs}
    return cpu_timed(lambda: ga.audit(head, **options))[1]


def measured(what: str, source: Path, file: Path | None) -> float:
    """Measure with the package in `source`, in a fresh process of one thread."""
    here = {"PYTHONPATH": os.pathsep.join([str(source.resolve()), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed_before",
        "--one",
        what,
        *(["--images", str(file)] if file else []),
    ]
    done = subprocess.run(command, env=os.environ | here, check=True, capture_output=True, text=True, cwd=ROOT)
    return float(json.loads(done.stdout.splitlines()[-1]))


def compared(what: str, options: Any) -> dict[str, Any]:
    pairs = []
    for turn in range(options.pairs):
        order = (options.before / "src", ROOT / "src")[:: 1 if turn % 2 == 0 else -1]
        seconds = {source: measured(what, source, options.images) for source in order}
        pairs.append((seconds[options.before / "src"], seconds[ROOT / "src"]))
    before, after = ([pair[k] for pair in pairs] for k in (0, 1))
    told = {"before": before, "after": after}
    return {
        "commit_before": subprocess.check_output(
            ["git", "-C", options.before, "rev-parse", "--short", "HEAD"], text=True
        ).strip(),
        "cpu_seconds": {name: [round(one, 2) for one in each] for name, each in told.items()},
        "best": {name: round(min(each), 2) for name, each in told.items()},
        "median": {name: round(statistics.median(each), 2) for name, each in told.items()},
        "ratio": round(statistics.median(a / b for b, a in pairs), 3),
        "ratio_of_best": round(min(after) / min(before), 3),
    }


def main() -> None:
    options = read_options(__doc__, out="speed_before.json", before=Path, what=WORK, images=Path, pairs=3, one=str)
    if options.one:
        torch.set_num_threads(1)
        sizes = {"dense": 5_000, "images": 6_000}
        audit(options.one, SMALL, options.images)
        print(json.dumps(audit(options.one, sizes.get(options.one, 50_000), options.images)))
        return
    what = [name for name in options.what if name != "images" or options.images]
    write_parts(options.out, what, lambda name: compared(name, options))


if __name__ == "__main__":
    main()
