"""What all leave-one-out distances of a Gaussian process cost beside the linear algebra they cannot do without.

One thread and CPU seconds, every ratio from alternating timings in one process:
  all_records  all n distances for three outputs given the kernel matrix, over LAPACK's Cholesky factorization and
               triangular inverse of that matrix (target: at most 1.5);
  one_record   a fresh factorization of the other n − 1 records for each record, over the same per record (target: at
               least 1,000);
  deep_kernel  the NNGP kernel of 10 ReLU layers, n records of 3,072 numbers, over one product X Xᵀ and ten
               arc cosines of an n × n matrix (target: at most 3).
And how many n × n matrices `ga.lood` takes at its peak, in a process of its own.

    python -m benchmarks.lood_speed [--records 5000] [--repeats 3] [--threads 1] [--out FILE.json]
"""

import statistics
from functools import partial

import numpy as np
import torch
from scipy.linalg import lapack
from threadpoolctl import threadpool_limits

from benchmarks.measuring import (
    alone,
    cpu_timed,
    digits,
    memory,
    read_options,
    reset_peak_memory,
    write_result,
)
from giveaway.gp.distinguishability import divergence, lood
from giveaway.gp.kernels import RBF, kernel_matrix
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import kernel_regression

OUTPUTS, NOISE = 3, 0.05
PIXELS, LAYERS = 3072, 10
MEMORY_OF = (3_000, 9_000)
ALONE = 2  # records for which the others are factored afresh, a repeat


def records_part(n: int, repeats: int) -> dict:
    """Times of all distances, of LAPACK and of single factorizations, in turn."""
    x, y = normal(n, 20), normal(n, OUTPUTS, seed=1)
    kernel = RBF(20**0.5)
    matrix = kernel_matrix(kernel, x)
    regularized = matrix.clone()
    regularized.diagonal().add_(NOISE)
    scratch = np.empty((n, n), order="F")
    times: dict[str, list[float]] = {name: [] for name in ("all", "fit", "lapack", "potrf", "trtri", "alone")}
    for repeat in range(repeats):
        scratch[:] = regularized.numpy()
        (factor, info), potrf = cpu_timed(lambda: lapack.dpotrf(scratch, lower=1, overwrite_a=1))
        assert info == 0
        (_, info), trtri = cpu_timed(partial(lapack.dtrtri, factor, lower=1, overwrite_c=1))
        assert info == 0
        posterior, fitted = cpu_timed(lambda: kernel_regression(matrix, y, NOISE))
        found, left = cpu_timed(partial(divergence, posterior))
        del posterior
        by_hand, afresh = cpu_timed(partial(one_by_one, matrix, y, repeat * ALONE))
        worst = max(abs(float(found.kl[i]) - kl) / kl for i, kl in by_hand.items())
        measured = (fitted + left, fitted, potrf + trtri, potrf, trtri, afresh / ALONE)
        for values, seconds in zip(times.values(), measured, strict=True):
            values.append(seconds)
    over = [ours / theirs for ours, theirs in zip(times["all"], times["lapack"], strict=True)]
    faster = [one / (ours / n) for one, ours in zip(times["alone"], times["all"], strict=True)]
    return {
        "records": n,
        "outputs": OUTPUTS,
        "cpu_seconds": {name: digits(values) for name, values in times.items()},
        "largest_relative_difference_of_kl": worst,
        "all_records": compared(over, "<= 1.5"),
        "one_record": compared(faster, ">= 1000"),
    }


def compared(ratios: list[float], target: str) -> dict:
    return {"ratio": digits(ratios), "median": digits(statistics.median(ratios)), "target": target}


def one_by_one(matrix: torch.Tensor, y: torch.Tensor, first: int) -> dict[int, float]:
    """KL of a few records, each from a factorization of all the others."""
    found = {}
    for i in range(first, first + ALONE):
        kept = torch.cat([torch.arange(i), torch.arange(i + 1, len(matrix))])
        others = matrix[kept[:, None], kept]
        others.diagonal().add_(NOISE)
        factor = torch.linalg.cholesky(others)
        cross = matrix[kept, i : i + 1]
        solved = torch.cholesky_solve(torch.cat([cross, y[kept]], 1), factor)
        variance = float(matrix[i, i] - cross.T @ solved[:, :1])
        residual = float((y[i] - cross.T @ solved[:, 1:]).square().sum())
        x = variance / NOISE
        found[i] = (OUTPUTS * (x - np.log1p(x)) + x / (1 + x) * residual / NOISE) / 2
    return found


def kernel_part(n: int, repeats: int) -> dict:
    """Times of a deep kernel and of the product and arc cosines it contains."""
    x = normal(n, PIXELS)
    kernel = NNGP(LAYERS, "relu", weight_variance=2.0)
    product = torch.empty(n, n, dtype=torch.float64)
    ours, parts = [], []
    for _ in range(repeats):
        _, multiplied = cpu_timed(lambda: torch.mm(x, x.T, out=product))
        cosines = (product / PIXELS).clamp_(-1.0, 1.0)
        _, passes = cpu_timed(lambda cosines=cosines: [torch.acos(cosines, out=product) for _ in range(LAYERS)])
        del cosines
        ours.append(cpu_timed(lambda: kernel_matrix(kernel, x))[1])
        parts.append([multiplied, passes])
    over = [seconds / sum(pair) for seconds, pair in zip(ours, parts, strict=True)]
    return {
        "records": n,
        "features": PIXELS,
        "layers": LAYERS,
        "cpu_seconds": {"kernel": digits(ours), "product_and_arc_cosines": [digits(pair) for pair in parts]},
        "deep_kernel": compared(over, "<= 3"),
    }


def memory_part(n: int) -> float:
    """Peak memory in n × n matrices, beside what a small run leaves."""
    x, y = normal(n, 20), normal(n, OUTPUTS, seed=1)
    lood("rbf", x[:100], y[:100], NOISE)
    before = memory("VmRSS")
    reset_peak_memory()
    lood("rbf", x, y, NOISE)
    return (memory("VmHWM") - before) / (8 * n * n)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def main() -> None:
    options = read_options(__doc__, "lood_speed.json", records=5_000, repeats=3, threads=1)
    torch.set_num_threads(options.threads)
    threadpool_limits(options.threads)
    for part in (records_part, kernel_part):
        part(500, 1)  # nothing below is a first call
    found = records_part(options.records, options.repeats)
    deep = kernel_part(options.records, options.repeats)
    peaks = {n: digits(alone(memory_part, n)) for n in MEMORY_OF}
    write_result(options.out, {"all_records": found, "deep_kernel": deep, "matrices_at_the_peak": peaks}, "scipy")


if __name__ == "__main__":
    main()
