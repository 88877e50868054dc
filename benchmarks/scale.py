"""How time and memory of an audit grow: `python benchmarks/scale.py OUT.json [records] [classes] [wide]`.

records : 1,000 to 1,000,000 records of 64 features and 10 classes, read from .npy files in windows; exact curvature,
    and a sketch of 64 probes. Four columns, so that the table stays small beside what an audit holds besides, and
    without the comparison of penalties, which audits again.
classes : 10 to 1,000 classes, 4,000 records of 32 features; a sketch of 64 probes.
wide : 50,000 records of 256 features and 10,000 classes within 8 GB; a sketch of 32 probes, products in float32
    (quicker than bfloat16 on the CPU it was measured on).

Every audit has a process of its own, on one thread unless --threads says otherwise. CPU seconds are those of reading
and auditing, after imports and a first small audit; peaks are of the whole process, libraries included, once with the
pages of mapped files (the kernel's own mark) and once without them (looked at every 5 ms), each beside what was
resident before. Exponents are least squares on logarithms. A section that OUT.json has already stays unless it is
named; --small takes sizes that only show that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import environment, memory, read_json, reset_peak_memory, write_json

import giveaway as ga
from giveaway.curvature.choice import Dense, Sketch
from giveaway.extract import from_file

WEIGHT_DECAY = 1e-4
CHUNK = 8_192
SAMPLES_A_CLASS = 64
LOOKED_EVERY = 0.005  # seconds
WIDE_GIGABYTES = 8.0
WIDE_WEIGHT_DECAY = 5e-4


def write_head(folder: Path, n: int, d: int, m: int, *, seed: int = 0, weight_decay: float = WEIGHT_DECAY) -> Path:
    """Confident, partly wrong predictions on features whose spectrum falls as 1/k; fewer records are the first ones."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir()
    spectrum = torch.arange(1, d + 1).float().rsqrt()
    turn = torch.linalg.qr(torch.randn(d, d, generator=generator))[0]
    centres = torch.randn(m, d, generator=generator) * spectrum
    features = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (n, d))
    targets, labels = np.empty(n, dtype=np.int64), torch.empty(n, dtype=torch.int64)
    for start in range(0, n, CHUNK):
        part = slice(start, min(start + CHUNK, n))
        own = torch.randint(m, (CHUNK,), generator=generator)
        noise = torch.randn(CHUNK, d, generator=generator)
        wrong = torch.rand(CHUNK, generator=generator) < 0.1
        given = torch.where(wrong, torch.randint(m, (CHUNK,), generator=generator), own)
        rows = torch.relu(0.3 + (centres[own] + 1.2 * noise * spectrum) @ turn)
        features[part] = rows[: part.stop - start].numpy()
        targets[part], labels[part] = given[: part.stop - start].numpy(), own[: part.stop - start]
    count = min(n, SAMPLES_A_CLASS * m)
    sample, own = torch.from_numpy(np.array(features[:count])), labels[:count]
    mean = sample.mean(0)
    weight = torch.zeros(m, d).index_add_(0, own, sample - mean)
    weight /= torch.bincount(own, minlength=m).clamp_min(1).unsqueeze(1)
    bias = -0.5 * weight.square().sum(1) - weight @ mean
    outputs = sample[:CHUNK] @ weight.T + bias
    scale = 8.0 / float((outputs.gather(1, own[:CHUNK].unsqueeze(1)).squeeze(1) - outputs.mean(1)).mean())
    features.flush()
    np.save(folder / "targets.npy", targets)
    np.save(folder / "weight.npy", (scale * weight).numpy())
    np.save(folder / "bias.npy", (scale * bias).numpy())
    np.save(folder / "l2.npy", np.float64(weight_decay * n))
    return folder


def audited(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Read and audit the head in `folder`, in this process."""
    rng = np.random.default_rng(0)
    first = ga.Head(rng.normal(size=(400, 4)), rng.normal(size=(400, 3)), rng.integers(0, 3, 400), "cross_entropy")
    scores, kind = options.pop("scores"), options.pop("curvature")
    curvature = Dense(**options) if kind == "dense" else Sketch(**options)
    ga.audit(first, scores=scores, curvature=Dense() if kind == "dense" else Sketch(**{**options, "memory": None}))
    resident, anonymous = memory("VmRSS"), memory("RssAnon")
    reset_peak_memory()
    began, wall = time.process_time(), time.perf_counter()
    head, _ = from_file(folder)
    table = ga.audit(head, scores=scores, curvature=curvature)
    seconds, wall = time.process_time() - began, time.perf_counter() - wall
    report = table.meta.curvature.to_json()
    told = ("parameters", "precision", "preconditioner", "probes_at_once", "steps", "residual", "solved_exactly")
    arrays = [*table.scores.values(), *table.attributes.values(), table.ids]
    return {
        "records": head.n,
        "features": head.features.shape[1],
        "classes": head.m,
        "cpu_seconds": round(seconds, 3),
        "wall_seconds": round(wall, 3),
        "peak_megabytes": megabytes(memory("VmHWM")),
        "resident_before_megabytes": megabytes(resident),
        "anonymous_before_megabytes": megabytes(anonymous),
        "table_megabytes": megabytes(sum(array.nbytes for array in arrays)),
        "targets_megabytes": megabytes(head.targets.nbytes),
        "curvature": {name: report[name] for name in told if name in report},
    }


def alone(folder: Path, threads: int, **options: Any) -> dict[str, Any]:
    """`audited` in a process of its own, whose memory without the pages of files is looked at from here."""
    command = [sys.executable, __file__, "--in-this-process", str(folder), json.dumps(options)]
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    peak = 0
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, env=environ)
        while process.poll() is None:
            peak = max(peak, memory("RssAnon", process.pid))
            time.sleep(LOOKED_EVERY)
        if process.returncode:
            raise SystemExit(process.returncode)
        out.seek(0)
        found: dict[str, Any] = json.loads(out.read())
    found["peak_anonymous_megabytes"] = megabytes(peak)
    print(
        f"  n={found['records']:<9,d} m={found['classes']:<6,d} {found['cpu_seconds']:10.2f} CPU s "
        f"{found['peak_megabytes']:9.1f} MB peak ({found['peak_anonymous_megabytes']:.1f} without files, "
        f"{found['resident_before_megabytes']:.1f} before, table {found['table_megabytes']:.1f})  {found['curvature']}",
        flush=True,
    )
    return found


def records(folder: Path, threads: int, small: bool) -> dict[str, Any]:
    """Time and memory as records grow."""
    sizes = [1_000, 10_000, 50_000] if small else [1_000, 10_000, 100_000, 1_000_000]
    heads = [write_head(folder / f"records-{n}", n, 64, 10) for n in sizes]
    results: dict[str, Any] = {}
    kinds: dict[str, dict[str, Any]] = {"dense": {}, "sketch": {"probes": 64}}
    for kind, options in kinds.items():
        print(f"records, {kind}:")
        options = {**options, "scores": ["loss", "influence", "newton", "leverage"], "l2_sensitivity": False}
        runs = [alone(head, threads, curvature=kind, **options) for head in heads]
        results[kind] = {"runs": runs, "exponent_of_cpu_seconds": exponent(runs[1:], "records", "cpu_seconds")}
        results[kind] |= growth(runs[1], runs[-1])
        print(f"  {json.dumps({name: value for name, value in results[kind].items() if name != 'runs'})}", flush=True)
    return results


def growth(less: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """What more records add to the peak, with and without the rows of the table and of the targets."""
    told = {"records_times": more["records"] // less["records"]}
    rows = sum(more[name] - less[name] for name in ("table_megabytes", "targets_megabytes"))
    for name in ("peak_megabytes", "peak_anonymous_megabytes"):
        added = more[name] - less[name]
        told[f"{name}_added_share"] = round(added / less[name], 4)
        told[f"{name}_added_share_beyond_rows"] = round((added - rows) / less[name], 4)
        told[f"{name}_added_bytes_a_record"] = round(added * 1e6 / (more["records"] - less["records"]), 1)
    told["rows_bytes_a_record"] = round(rows * 1e6 / (more["records"] - less["records"]), 1)
    return told


def classes(folder: Path, threads: int, small: bool) -> dict[str, Any]:
    """Time and memory of a sketch as classes grow."""
    print("classes, sketch:")
    runs = []
    for m in [10, 30, 100] if small else [10, 30, 100, 300, 1_000]:
        head = write_head(folder / f"classes-{m}", 4_000, 32, m)
        found = alone(head, threads, scores=["influence", "newton"], curvature="sketch", probes=64)
        found["added_megabytes"] = round(found["peak_megabytes"] - found["resident_before_megabytes"], 1)
        runs.append(found)
    results: dict[str, Any] = {"runs": runs}
    for name in ("cpu_seconds", "added_megabytes"):
        results[f"exponent_of_{name}"] = exponent(runs, "classes", name)
        results[f"exponent_of_{name}_from_100"] = exponent(runs[2:], "classes", name) if not small else None
    print(f"  {json.dumps({name: value for name, value in results.items() if name != 'runs'})}", flush=True)
    return results


def wide(folder: Path, threads: int, small: bool) -> dict[str, Any]:
    """Ten thousand classes on a CPU."""
    print("wide, sketch:")
    n, m = (2_000, 2_000) if small else (50_000, 10_000)
    head = write_head(folder / "wide", n, 256, m, weight_decay=WIDE_WEIGHT_DECAY)
    options = {"scores": ["influence", "newton"], "curvature": "sketch", "probes": 32, "memory": WIDE_GIGABYTES}
    found = alone(head, threads, **options)
    return {**options, **found, "within_8_gigabytes": found["peak_megabytes"] <= WIDE_GIGABYTES * 1e3}


def exponent(runs: list[dict[str, Any]], size: str, value: str) -> float:
    """The slope of log value against log size."""
    sizes, values = ([run[name] for run in runs] for name in (size, value))
    return round(float(np.polyfit(np.log(sizes), np.log(values), 1)[0]), 3)


def megabytes(size: int) -> float:
    return round(size / 1e6, 2)


def main() -> None:
    stages = {"records": records, "classes": classes, "wide": wide}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("chosen", nargs="*", metavar="|".join(stages))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--in-this-process", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_this_process:
        folder, options = arguments.in_this_process
        print(json.dumps(audited(Path(folder), json.loads(options))))
        return
    if arguments.out is None or not set(arguments.chosen) <= set(stages):
        parser.error(f"OUT.json, then any of {', '.join(stages)}")
    results = read_json(arguments.out)
    for name in arguments.chosen or stages:
        with tempfile.TemporaryDirectory() as folder:
            found = stages[name](Path(folder), arguments.threads, arguments.small)
        results[name] = {"environment": environment("cpu", "scipy"), "threads": arguments.threads, **found}
        write_json(arguments.out, results)


if __name__ == "__main__":
    main()
