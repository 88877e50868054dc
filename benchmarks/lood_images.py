"""All leave-one-out distances of many images under a convolutional NNGP (depth 3), on a GPU.

whole : from images (3 × 32 × 32, made) to distances, for each of --sizes, after a smaller matrix whose seconds are
    nearly all compiling. Seconds of the clock, of the kernel and of the distances, peak memory, and how far a few
    entries of the kernel are from those computed alone, on the CPU, where nothing is compiled.
compiled : how much longer the kernel of --few images takes where nothing is compiled.

    python -m benchmarks.lood_images [--device cuda] [--sizes 25000,50000] [--few 8000] [--parts whole compiled]
"""

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.measuring import digits, read_options, timed, write_parts
from giveaway.gp import nngp
from giveaway.gp.distinguishability import divergence
from giveaway.gp.kernels import kernel_matrix
from giveaway.gp.nngp import KernelChoice
from giveaway.gp.posterior import kernel_regression

OUTPUTS, NOISE, LOOKED_AT = 3, 0.05, 4
COMPILES = 2_000  # images: enough for their kernel to be compiled
KERNEL = KernelChoice("conv_nngp", sphere=True)


def made_images(n: int) -> torch.Tensor:
    """Return coarse patterns with noise, float64."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return draw(n, 3, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3) + 0.5 * draw(n, 3, 32, 32)


def matrix_of(images: torch.Tensor) -> torch.Tensor:
    return kernel_matrix(KERNEL.kernel(images), images)


def whole(sizes: Sequence[int], device: torch.device) -> dict[str, Any]:
    torch.linalg.cholesky(torch.eye(500, dtype=torch.float64, device=device))  # libraries load
    _, compiling = timed(lambda: matrix_of(made_images(COMPILES).to(device)), device)
    told = {f"seconds of the first {COMPILES} images, with compiling": digits(compiling)}
    found: dict[str, Any] = {"depth": nngp.DEPTH, "outputs": OUTPUTS, **told}
    print(told, flush=True)
    for n in sizes:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        images = made_images(n)
        x, y = images.to(device), torch.randn(n, OUTPUTS, dtype=torch.float64).to(device)
        matrix, kernel = timed(lambda x=x: matrix_of(x), device)
        some = torch.cat([torch.arange(LOOKED_AT), torch.arange(n - LOOKED_AT, n)])
        there, alone = matrix[some][:, some].cpu(), matrix_of(images[some])
        regression = partial(kernel_regression, matrix.T, y, NOISE, overwrite=True)
        of_all, distances = timed(lambda regression=regression: divergence(regression()).kl, device)
        assert bool(of_all.isfinite().all())
        found[f"{n} images"] = {
            "seconds": digits(kernel + distances),
            "kernel": digits(kernel),
            "distances": digits(distances),
            "largest relative difference of entries": digits(float(((there - alone) / alone).abs().max())),
            "peak gigabytes": digits(torch.cuda.max_memory_allocated() / 1e9) if device.type == "cuda" else None,
        }
        print(n, found[f"{n} images"], flush=True)
        del matrix, of_all, regression
    return found


def compiled(few: int, device: torch.device) -> dict[str, Any]:
    x = made_images(few).to(device)
    matrix_of(x)
    _, with_it = timed(lambda: matrix_of(x), device)
    with patch.object(nngp, "can_compile", lambda device: False):
        _, without = timed(lambda: matrix_of(x), device)
    told = {"images": few, "compiled": with_it, "not compiled": without, "not compiled / compiled": without / with_it}
    return digits(told)


def main() -> None:
    options = read_options(
        __doc__, "lood_images.json", parts=("whole", "compiled"), device="cuda", sizes="25000,50000", few=8_000
    )
    device = torch.device(options.device)
    sizes = [int(size) for size in options.sizes.split(",")]
    measures = {"whole": partial(whole, sizes, device), "compiled": partial(compiled, options.few, device)}
    write_parts(options.out, options.parts, lambda name: measures[name](), device=device)


if __name__ == "__main__":
    main()
