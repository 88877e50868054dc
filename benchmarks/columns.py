"""Memory of audits whose scores are columns on the disk: `python -m benchmarks.columns [--records 1000000 10000000]`.

Made heads of 20 features and 2 classes, read from .npy files; four columns (newton, loss, leverage and influence) of an
exact curvature. Each audit has a process of its own, on one thread. The peak is that of the process's own memory,
without the pages of mapped files, which the system takes back when it needs them (looked at every 5 ms). Arrays below
64 MB are held, as the outputs of a million records are here: the ratio is that of the last two, whose are not.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import alone, memory, read_options, timed, write_result
from benchmarks.scale import write_head
from giveaway.auditing.columns import audit_in_columns
from giveaway.extract import from_file

NAMES = ["newton", "loss", "leverage", "influence"]


def audited(folder: Path, out: Path) -> tuple[int, float]:
    before = memory("RssAnon")
    head, _ = from_file(folder)
    _, seconds = timed(lambda: audit_in_columns(head, out, NAMES))
    return before, seconds


def measure(n: int) -> dict[str, Any]:
    peaks: list[int] = []
    with tempfile.TemporaryDirectory() as place:
        head, out = write_head(Path(place) / "head", n, 20, 2), Path(place) / "out"
        before, seconds = alone(audited, head, out, watch=lambda run: peaks.append(memory("RssAnon", run)))
        written = sum(file.stat().st_size for file in out.glob("*.npy"))
    sizes = {"peak": max(peaks), "before": before, "columns": written}
    return {"records": n, "seconds": round(seconds, 1), "megabytes": {k: round(v / 1e6, 1) for k, v in sizes.items()}}


def main() -> None:
    options = read_options(__doc__, "columns.json", records=(1_000_000, 5_000_000, 10_000_000))
    runs = [measure(n) for n in options.records]
    ratio = runs[-1]["megabytes"]["peak"] / runs[-2]["megabytes"]["peak"]
    write_result(options.out, {"runs": runs, "peak ratio": round(ratio, 3)})


if __name__ == "__main__":
    main()
