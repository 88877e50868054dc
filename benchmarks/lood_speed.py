"""What all leave-one-out distances of a Gaussian process cost beside the linear algebra they cannot do without.

On the CPU, one thread and CPU seconds, every ratio from alternating timings in one process:
  all_records  all n distances for three outputs given the kernel matrix, over LAPACK's Cholesky factorization and
               triangular inverse of that matrix (target: at most 1.5);
  one_record   a fresh factorization of the other n − 1 records for each record, over the same per record (target: at
               least 1,000);
  deep_kernel  the NNGP kernel of 10 ReLU layers, n records of 3,072 numbers, over one product X Xᵀ and ten
               arc cosines of an n × n matrix (target: at most 3).
With --images N (25,000 by default with --device cuda): seconds for the kernel of a convolutional network over N images
of 3 × 32 × 32, with a flattening read-out, and for all distances from it. The kernel is evaluated in float32 and
factored in float64; what that costs in accuracy is measured on the first records. With --budget SECONDS fewer images
are taken where the first blocks say that N would not fit.

    python benchmarks/lood_speed.py [--records 5000] [--repeats 3] [--threads 1] [--out FILE]
    PYTHONPATH=src python benchmarks/lood_speed.py --device cuda [--data cifar10.npz] [--budget 150] --out FILE
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from measuring import RESULTS, digits, environment, timed, write_json
from scipy.linalg import lapack
from threadpoolctl import threadpool_limits

from giveaway.gp.distinguishability import Divergence, divergence
from giveaway.gp.kernels import RBF, kernel_matrix
from giveaway.gp.nngp import NNGP, ConvNNGP
from giveaway.gp.posterior import fit

STARTED = time.perf_counter()
OUTPUTS, NOISE = 3, 0.05
PIXELS, LAYERS = 3072, 10
ALONE = 2  # records for which the others are factored afresh, a repeat
IMAGE_LAYERS, IMAGE_OUTPUTS = 3, 10
CHECKED = 256  # images whose kernel is also evaluated in float64
BLOCK = 2048  # images to a side in one call of the kernel
WORKING_MEMORY = {"cpu": 2**26, "cuda": 2**32}


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
        potrf, (factor, info) = cpu_seconds(lambda: lapack.dpotrf(scratch, lower=1, overwrite_a=1))
        assert info == 0
        trtri, (_, info) = cpu_seconds(lambda factor=factor: lapack.dtrtri(factor, lower=1, overwrite_c=1))
        assert info == 0
        fitted, posterior = cpu_seconds(lambda: fit(kernel, x, y, NOISE, matrix=matrix))
        left, found = cpu_seconds(lambda posterior=posterior: divergence(posterior))
        del posterior
        alone, by_hand = cpu_seconds(lambda repeat=repeat: one_by_one(matrix, y, repeat * ALONE))
        worst = max(abs(float(found.kl[i]) - kl) / kl for i, kl in by_hand.items())
        times["potrf"].append(potrf)
        times["trtri"].append(trtri)
        times["lapack"].append(potrf + trtri)
        times["fit"].append(fitted)
        times["all"].append(fitted + left)
        times["alone"].append(alone / ALONE)
        print(
            f"n = {n}: potrf {potrf:.2f} + trtri {trtri:.2f}, fit {fitted:.2f} + distances {left:.2f}, "
            f"a factorization of n - 1 {alone / ALONE:.2f} s; largest relative difference {worst:.1e}",
            flush=True,
        )
    over = [ours / theirs for ours, theirs in zip(times["all"], times["lapack"], strict=True)]
    faster = [one / (ours / n) for one, ours in zip(times["alone"], times["all"], strict=True)]
    return {
        "records": n,
        "outputs": OUTPUTS,
        "cpu_seconds": {name: digits(values) for name, values in times.items()},
        "largest_relative_difference_of_kl": worst,
        "all_records": {"ratio": digits(over), "median": digits(statistics.median(over)), "target": "<= 1.5"},
        "one_record": {"ratio": digits(faster), "median": digits(statistics.median(faster)), "target": ">= 1000"},
    }


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
    ours, theirs, parts = [], [], []
    for _ in range(repeats):
        multiplied, _ = cpu_seconds(lambda: torch.mm(x, x.T, out=product))
        cosines = product / PIXELS
        cosines.clamp_(-1.0, 1.0)
        passes, _ = cpu_seconds(lambda cosines=cosines: [torch.acos(cosines, out=product) for _ in range(LAYERS)])
        del cosines
        seconds, _ = cpu_seconds(lambda: kernel_matrix(kernel, x))
        ours.append(seconds)
        theirs.append(multiplied + passes)
        parts.append([multiplied, passes])
        print(
            f"n = {n}, {LAYERS} layers: kernel {seconds:.2f}, product {multiplied:.2f} + arc cosines {passes:.2f} s",
            flush=True,
        )
    over = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "records": n,
        "features": PIXELS,
        "layers": LAYERS,
        "cpu_seconds": {"kernel": digits(ours), "product_and_arc_cosines": [digits(pair) for pair in parts]},
        "deep_kernel": {"ratio": digits(over), "median": digits(statistics.median(over)), "target": "<= 3"},
    }


class Counted:
    """A kernel that prints how far a matrix of `pairs` pairs has got."""

    def __init__(self, kernel: ConvNNGP, pairs: int) -> None:
        self.kernel, self.pairs = kernel, pairs
        self.done, self.shown, self.began = 0, 0.0, time.perf_counter()

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        block = self.kernel(X, Z)
        finish(X.device)
        self.done += block.numel()
        seconds = time.perf_counter() - self.began
        if seconds - self.shown > 5 or self.done >= self.pairs:
            self.shown = seconds
            print(f"  kernel {100 * self.done / self.pairs:5.1f} % after {seconds:6.1f} s", flush=True)
        return block

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        return self.kernel.diagonal(X)


@torch.no_grad()
def images_part(n: int, device: str, data: Path | None, budget: float | None) -> dict:
    """Seconds of a convolutional kernel over n images and of all distances from it."""
    kind = torch.device(device).type
    x, y, source = images(n, data)
    x, y = x.to(device), y.to(device)
    kernel = ConvNNGP(IMAGE_LAYERS, "relu", readout="flatten", memory=WORKING_MEMORY[kind])
    few = slice(0, min(CHECKED, n))
    single, double = (of_few(kernel, x[few].to(kind_of), y[few]) for kind_of in (torch.float32, torch.float64))
    gaps = [float(((a - b) / b).abs().max()) for a, b in ((single.kl, double.kl), (single.mean, double.mean))]
    print(f"float32 kernel of {few.stop} images: KL off by {gaps[0]:.1e}, mean distance by {gaps[1]:.1e}", flush=True)
    if budget is not None:
        n = fitting(kernel, x, 0.85 * budget - (time.perf_counter() - STARTED))
        x, y = x[:n], y[:n]
    sides = [min(BLOCK, n - start) for start in range(0, n, BLOCK)]
    pairs = sum(side * sum(sides[: place + 1]) for place, side in enumerate(sides))
    matrix, filled = timed(lambda: kernel_matrix(Counted(kernel, pairs), x, block=BLOCK), device)
    posterior, fitted = timed(lambda: fit(kernel, x, y, NOISE, matrix=matrix), device)
    found, left = timed(lambda: divergence(posterior), device)
    print(f"{n} images: kernel {filled:.1f}, factorization {fitted:.1f}, distances {left:.1f} s", flush=True)
    quantiles = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64, device=found.kl.device)
    return {
        "images": n,
        "source": source,
        "kernel": repr(kernel),
        "outputs": IMAGE_OUTPUTS,
        "noise": NOISE,
        "seconds": {"kernel_float32": digits(filled), "factorization": digits(fitted), "distances": digits(left)},
        "largest_relative_error_of_float32": {"images": few.stop, "kl": gaps[0], "mean": gaps[1]},
        "kl_quantiles_5_50_95": [float(f"{value:.4g}") for value in found.kl.quantile(quantiles)],
        "all_finite": bool(torch.isfinite(found.kl).all() and torch.isfinite(found.mean).all()),
        **({"peak_device_gigabytes": digits(torch.cuda.max_memory_allocated() / 1e9)} if kind == "cuda" else {}),
    }


def of_few(kernel: ConvNNGP, x: torch.Tensor, y: torch.Tensor) -> Divergence:
    return divergence(fit(kernel, x, y, NOISE, matrix=kernel_matrix(kernel, x)))


def fitting(kernel: ConvNNGP, x: torch.Tensor, seconds: float) -> int:
    """The number of images, at most all, whose kernel takes `seconds` by the time of one block."""
    side = min(BLOCK, len(x))
    kernel(x[:side], x[:side])
    rate = side**2 / timed(lambda: kernel(x[:side], x[:side]), x.device)[1]
    needed = len(x) * (len(x) + side) / 2 / rate
    most = int(((side / 2) ** 2 + 2 * rate * max(seconds, 1.0)) ** 0.5 - side / 2)
    print(
        f"{rate / 1e6:.3f} million pairs a second: {needed:.0f} s for {len(x)} images, {seconds:.0f} s left", flush=True
    )
    return min(len(x), most)


def images(n: int, data: Path | None) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Images in float32, each centred and scaled to mean square 1, and one-hot targets less their mean."""
    if data is None:
        x = normal(n, 3, 32, 32).float()
        labels = torch.arange(n) % IMAGE_OUTPUTS
    else:
        with np.load(data) as stored:
            x = torch.from_numpy(stored["x_train"][:n]).permute(0, 3, 1, 2).float()
            labels = torch.from_numpy(stored["y_train"][:n].astype(np.int64))
    x = x - x.mean((1, 2, 3), keepdim=True)
    x = x / x.square().mean((1, 2, 3), keepdim=True).sqrt()
    targets = torch.nn.functional.one_hot(labels, IMAGE_OUTPUTS).double() - 1 / IMAGE_OUTPUTS
    return x.contiguous(), targets, "random" if data is None else data.name


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cpu_seconds(work: Callable[[], object]) -> tuple[float, object]:
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def finish(device: str | torch.device) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, help="time the convolutional kernel of so many images instead")
    parser.add_argument("--data", type=Path, help="an .npz with x_train (n, 32, 32, 3) and y_train; random without it")
    parser.add_argument("--budget", type=float, help="seconds that the images may take in all")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    threadpool_limits(arguments.threads)
    timed_images = arguments.images or (25_000 if arguments.device != "cpu" else 0)
    if timed_images:
        name = "lood_speed_images.json"
        result = {"images": images_part(timed_images, arguments.device, arguments.data, arguments.budget)}
    else:
        name = "lood_speed.json"
        for part in (records_part, kernel_part):
            part(500, 1)  # nothing below is a first call
        result = records_part(arguments.records, arguments.repeats)
        result = {"all_records": result, "deep_kernel": kernel_part(arguments.records, arguments.repeats)}
    where = environment(arguments.device, "scipy") | {"threads": arguments.threads}
    write_json(arguments.out or RESULTS / name, {"environment": where, **result}, show=True)


if __name__ == "__main__":
    main()
