"""How time and memory of an audit grow: `python -m benchmarks.scale [--parts records classes wide] [--out FILE.json]`.

records : 1,000 to 1,000,000 records of 64 features and 10 classes, read from .npy files in windows; exact curvature,
    and a sketch of 64 probes. Four columns, so that the table stays small beside what an audit holds besides, and
    without the comparison of penalties, which audits again.
classes : 10 to 1,000 classes, 4,000 records of 32 features; a sketch of 64 probes.
wide : 50,000 records of 256 features and 10,000 classes within 8 GB; a sketch of 32 probes, products in float32
    (quicker than bfloat16 on the CPU it was measured on).

Every audit has a process of its own, on one thread unless --threads says otherwise. CPU seconds are those of reading
and auditing, after imports and a first small audit; peaks are of the whole process, libraries included, once with the
pages of mapped files (the kernel's own mark) and once without them (looked at every 5 ms), each beside what was
resident before. Exponents are least squares on logarithms. Parts that the file has already stay
unless they are named; --small takes sizes that only show that it runs.
"""

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import giveaway as ga
from benchmarks.measuring import alone, cpu_timed, memory, read_options, reset_peak_memory, timed, write_parts
from giveaway.curvature.choice import Dense, Sketch
from giveaway.extract import from_file
from giveaway.records import ScoreTable

WEIGHT_DECAY = 1e-4
CHUNK = 8_192
SAMPLES_A_CLASS = 64
WIDE_GIGABYTES = 8.0
WIDE_WEIGHT_DECAY = 5e-4


def fill_head(features: torch.Tensor, m: int, margin: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fill features (n, d) whose spectrum falls as 1/k, in clusters by class, and return targets, one in ten of them
    wrong, and the weight and bias of a head whose own outputs exceed the others by `margin`.

    The first records do not depend on how many there are.
    """
    (n, d), device = features.shape, features.device
    generator = torch.Generator(device).manual_seed(0)
    normal = partial(torch.randn, generator=generator, device=device)
    classes = partial(torch.randint, m, (CHUNK,), generator=generator, device=device)
    spectrum = torch.arange(1, d + 1, device=device).float().rsqrt()
    turn, centres = torch.linalg.qr(normal(d, d))[0], normal(m, d) * spectrum
    targets, labels = (torch.empty(n, dtype=torch.int64, device=device) for _ in range(2))
    for start in range(0, n, CHUNK):
        part, own = slice(start, min(start + CHUNK, n)), classes()
        rows = torch.relu(0.3 + (centres[own] + 1.2 * normal(CHUNK, d) * spectrum) @ turn)
        wrong = torch.rand(CHUNK, generator=generator, device=device) < 0.1
        given = torch.where(wrong, classes(), own)
        features[part], targets[part], labels[part] = (values[: part.stop - start] for values in (rows, given, own))
    sample, own = features[: SAMPLES_A_CLASS * m], labels[: SAMPLES_A_CLASS * m]
    mean = sample.mean(0)
    weight = torch.zeros(m, d, device=device).index_add_(0, own, sample - mean)
    weight /= torch.bincount(own, minlength=m).clamp_min(1).unsqueeze(1)
    bias = -0.5 * weight.square().sum(1) - weight @ mean
    outputs = sample[:CHUNK] @ weight.T + bias
    size = margin / float((outputs.gather(1, own[:CHUNK].unsqueeze(1)).squeeze(1) - outputs.mean(1)).mean())
    return targets, size * weight, size * bias


def write_head(folder: Path, n: int, d: int, m: int, *, weight_decay: float = WEIGHT_DECAY) -> Path:
    """Write the arrays of a made head to .npy files, and return their folder."""
    folder.mkdir()
    features = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (n, d))
    arrays = fill_head(torch.from_numpy(features), m, margin=8.0)
    features.flush()
    for name, values in zip(("targets", "weight", "bias"), arrays, strict=True):
        np.save(folder / f"{name}.npy", values.numpy())
    np.save(folder / "l2.npy", np.float64(weight_decay * n))
    return folder


def audited(folder: Path, scores: list[str], kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Read and audit the head in `folder`, in this process."""
    rng = np.random.default_rng(0)
    first = ga.Head(rng.normal(size=(400, 4)), rng.normal(size=(400, 3)), rng.integers(0, 3, 400), "cross_entropy")
    curvature = Dense(**options) if kind == "dense" else Sketch(**options)
    ga.audit(first, scores=scores, curvature=Dense() if kind == "dense" else Sketch(**{**options, "memory": None}))
    resident, anonymous = memory("VmRSS"), memory("RssAnon")
    reset_peak_memory()

    def audit() -> tuple[ga.Head, ScoreTable]:
        head, _ = from_file(folder)
        return head, ga.audit(head, scores=scores, curvature=curvature)

    ((head, table), seconds), wall = timed(lambda: cpu_timed(audit))
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


def measured(folder: Path, threads: int, scores: list[str], kind: str, **options: Any) -> dict[str, Any]:
    """`audited` in a process of its own, whose memory without the pages of files is watched from here."""
    peaks: list[int] = []
    found = alone(
        audited, folder, scores, kind, options, threads=threads, watch=lambda run: peaks.append(memory("RssAnon", run))
    )
    found["peak_anonymous_megabytes"] = megabytes(max(peaks))
    print(" ", json.dumps(found), flush=True)
    return found


def records(folder: Path, threads: int, small: bool) -> dict[str, Any]:
    """Time and memory as records grow."""
    sizes = [1_000, 10_000, 50_000] if small else [1_000, 10_000, 100_000, 1_000_000]
    heads = [write_head(folder / f"records-{n}", n, 64, 10) for n in sizes]
    results: dict[str, Any] = {}
    kinds: dict[str, dict[str, Any]] = {"dense": {}, "sketch": {"probes": 64}}
    scores = ["loss", "influence", "newton", "leverage"]
    for kind, options in kinds.items():
        runs = [measured(head, threads, scores, kind, **options) for head in heads]
        results[kind] = {"runs": runs, "exponent_of_cpu_seconds": exponent(runs[1:], "records", "cpu_seconds")}
        results[kind] |= growth(runs[1], runs[-1])
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
    runs = []
    for m in [10, 30, 100] if small else [10, 30, 100, 300, 1_000]:
        head = write_head(folder / f"classes-{m}", 4_000, 32, m)
        found = measured(head, threads, ["influence", "newton"], "sketch", probes=64)
        found["added_megabytes"] = round(found["peak_megabytes"] - found["resident_before_megabytes"], 1)
        runs.append(found)
    results: dict[str, Any] = {"runs": runs}
    for name in ("cpu_seconds", "added_megabytes"):
        results[f"exponent_of_{name}"] = exponent(runs, "classes", name)
        results[f"exponent_of_{name}_from_100"] = exponent(runs[2:], "classes", name) if not small else None
    return results


def wide(folder: Path, threads: int, small: bool) -> dict[str, Any]:
    """Ten thousand classes on a CPU."""
    n, m = (2_000, 2_000) if small else (50_000, 10_000)
    head = write_head(folder / "wide", n, 256, m, weight_decay=WIDE_WEIGHT_DECAY)
    scores, options = ["influence", "newton"], {"probes": 32, "memory": WIDE_GIGABYTES}
    found = measured(head, threads, scores, "sketch", **options)
    return {"scores": scores, **options, **found, "within_8_gigabytes": found["peak_megabytes"] <= WIDE_GIGABYTES * 1e3}


def exponent(runs: list[dict[str, Any]], size: str, value: str) -> float:
    """The slope of log value against log size."""
    sizes, values = ([run[name] for run in runs] for name in (size, value))
    return round(float(np.polyfit(np.log(sizes), np.log(values), 1)[0]), 3)


def megabytes(size: int) -> float:
    return round(size / 1e6, 2)


PARTS = {"records": records, "classes": classes, "wide": wide}


def main() -> None:
    options = read_options(__doc__, "scale.json", parts=PARTS, threads=1, small=False)

    def measure(name: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return {"threads": options.threads, **PARTS[name](Path(folder), options.threads, options.small)}

    write_parts(options.out, options.parts, measure, "scipy")


if __name__ == "__main__":
    main()
