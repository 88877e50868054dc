"""How close all head columns of an audit come to the speed of a plain matrix product, and the memory they take.

For each setting a fresh process builds a multinomial head, then audits it (every head column; without the comparison of
penalties, which audits again) a few times, each time between two timings of a float64 matrix product. Printed and
saved are CPU seconds of all threads, peak memory above what was resident after imports and loading, and
F / CPU seconds relative to the rate of the product, with F = n·d(d+1)·r(r+1) + P³ as docs/notation.md counts it. The
same share is given of the two stages that hold most of F, the sums and the forms, which no other stage can raise. One
thread by default: CPU seconds are then work and not waiting.

    python -m benchmarks.head_speed [--threads 1] [--repeats 5] [--settings A B] [--out FILE.json]
"""

import statistics

import torch
from threadpoolctl import threadpool_limits

import giveaway as ga
from benchmarks.measuring import alone, cpu_timed, memory, read_options, reset_peak_memory, write_result
from giveaway.linalg.dense import PairTiles, invert

SETTINGS = {  # records, features, classes
    "A": (5_000, 64, 10),
    "B": (5_000, 64, 100),
    "C": (20_000, 512, 2),
    "CIFAR-10": (25_000, 128, 10),
}
GEMM_SIZE = 2048
ROWS = 2048


def measure(setting: str, repeats: int, threads: int) -> dict:
    """One setting, in this process."""
    torch.set_num_threads(threads)
    threadpool_limits(threads)
    n, d, m = SETTINGS[setting]
    head = made_head(n, d, m)
    ga.audit(made_head(200, 8, m))
    resident = memory("VmRSS")
    reset_peak_memory()
    ga.audit(head)
    peak = memory("VmHWM") - resident
    runs = []
    for _ in range(repeats):
        before = gemm_rate()
        _, seconds = cpu_timed(lambda: ga.audit(head))
        runs.append((seconds, (before + gemm_rate()) / 2))
    width, r = d + 1, m - 1
    size = width * r
    operations = n * width * (width + 1) * r * (r + 1) + size**3
    shares = [operations / seconds / rate for seconds, rate in runs]
    stages, counted = stage_shares(head, width, r * (r + 1) // 2, size)
    return {
        "setting": setting,
        "records": n,
        "features": d,
        "classes": m,
        "parameters": size,
        "operations": operations,
        "cpu_seconds": [round(seconds, 4) for seconds, _ in runs],
        "gemm_gigaflops": [round(rate / 1e9, 1) for _, rate in runs],
        "share_of_gemm_rate": [round(share, 3) for share in shares],
        "median_share": round(statistics.median(shares), 3),
        "best_share": round(max(shares), 3),
        **stages,
        "rest_seconds": round(min(seconds for seconds, _ in runs) - counted, 3),
        "peak_megabytes": round(peak / 1e6, 1),
        "allowed_megabytes": round((2 * size**2 * 8 + 100e6) / 1e6, 1),
    }


def stage_shares(head: ga.Head, d: int, p: int, size: int) -> tuple[dict[str, float], float]:
    """The best share of the product's rate that the sums, the inverse and the forms reach by themselves, and their
    seconds in one audit together."""
    x = head.window(slice(0, ROWS)).columns()
    v = torch.rand(p, x.shape[1], dtype=torch.float64)
    tiles, windows = PairTiles(d, p), len(head.targets) / x.shape[1]
    matrix = torch.rand(size, size, dtype=torch.float64).div_(size).fill_diagonal_(1.0)
    matrix = (matrix + matrix.T).div_(2)
    pairs = x.shape[1] * d * (d + 1) * p
    shares, counted = {}, 0.0
    for name, stage, operations, times in (
        ("sums_share", lambda: tiles.add(x, v), pairs, windows),
        ("inverse_share", lambda: invert(matrix.clone), size**3, 1),
        ("forms_share", lambda: tiles.forms(x), pairs, windows),
    ):
        runs = [(gemm_rate(), cpu_timed(stage)[1]) for _ in range(5)]
        shares[name] = round(max(operations / seconds / rate for rate, seconds in runs), 3)
        counted += times * min(seconds for _, seconds in runs)
    return shares, counted


def made_head(n: int, d: int, m: int) -> ga.Head:
    """Features as after a ReLU, in float32, and labels drawn from the head's own softmax."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(n, d, generator=generator).relu()
    outputs = features @ (torch.randn(d, m, generator=generator) * 2 / d**0.5)
    noise = torch.empty(n, m).exponential_(generator=generator).log()
    return ga.Head(features, outputs, (outputs - noise).argmax(1), "cross_entropy", l2=1.0)


def gemm_rate() -> float:
    """Operations a CPU second of a float64 product of square matrices."""
    left, right = (torch.randn(GEMM_SIZE, GEMM_SIZE, dtype=torch.float64) for _ in range(2))
    out = left @ right
    _, seconds = cpu_timed(lambda: [torch.mm(left, right, out=out) for _ in range(2)])
    return 4 * GEMM_SIZE**3 / seconds


def main() -> None:
    options = read_options(__doc__, "head_speed.json", threads=1, repeats=5, settings=SETTINGS)
    results = []
    for setting in options.settings:
        results.append(alone(measure, setting, options.repeats, options.threads, threads=options.threads))
        print({name: value for name, value in results[-1].items() if not isinstance(value, list)}, flush=True)
    write_result(options.out, {"results": results}, "scipy")


if __name__ == "__main__":
    main()
