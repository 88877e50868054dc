"""What an audit will cost, before it starts: operations by stage, memory, disk, and time at a measured rate.

Operations are floating-point ones, a multiplication and an addition being two, of the matrix products and the
factorizations, which are nearly all there is at sizes where the cost matters. With n records, d features (the bias
column included), m outputs, q probes:

dense, softmax     n·d(d+1)·r(r+1) + P³ with r = m − 1, P = d·r, and a Cholesky m³/3 a record
dense, separate    2·n·d(d+1)·k + k·d³ with k = 1 matrix (squared) or m
sketch             4·n·d·m·q a step, 2·n·d·m·q each for right sides and scores, and the preconditioner
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from giveaway.checks import check_choice

LOSSES = ("squared", "cross_entropy", "binary_cross_entropy")
CURVATURES = ("dense", "sketch")
PRECONDITIONERS = ("blocks", "shared", "diagonal")
STEPS = 20  # of conjugate gradients, where nothing is known of the problem
SKETCH_BYTES = 4  # a number of a sketch
WORKING_COPIES = 7  # right sides, solution, residual, the same preconditioned, direction, product, and one on the way
COLUMNS = 14  # of a table with every score
MATRIX_BYTES = {"cpu": 16_000_000, "cuda": 256_000_000}  # in a product that is timed: full speed, and soon done
ROWS = 4_096

Stages = dict[str, float]
NOTE = "an estimate: matrix products at a measured rate; reading the features and small steps come on top"


@dataclass(frozen=True)
class Rate:
    """How fast matrix products of one shape ran here."""

    per_second: float
    dtype: str
    device: str
    shape: tuple[int, int, int]

    def __str__(self) -> str:
        return scaled(self.per_second, ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"))


@dataclass(frozen=True)
class Cost:
    """The cost of one audit. `bytes` is the peak of one process, `seconds` None where no rate was measured."""

    records: int
    features: int
    outputs: int
    loss: str
    curvature: str
    probes: int | None
    processes: int
    device: str
    flops: dict[str, float]
    bytes: int
    disk_bytes: int
    seconds: float | None
    passes: float
    rate: Rate | None = None
    notes: tuple[str, ...] = (NOTE,)

    @property
    def operations(self) -> float:
        """All stages together."""
        return sum(self.flops.values())

    def lines(self) -> list[str]:
        """The cost in short lines: a headline, then what to know of it."""
        kind = "class" if self.loss == "cross_entropy" and self.outputs > 1 else "output"
        size = f"{_count(self.records, 'record')} × {_count(self.features, 'feature')} × {_count(self.outputs, kind)}"
        how = "dense curvature"
        if self.probes is not None:
            how = f"sketched curvature, {_count(self.probes, 'probe')}"
        where = "on this GPU" if torch.device(self.device).type == "cuda" else "on this machine"
        if self.processes > 1:
            where = f"with {self.processes} processes like this one"
        took = "time not measured"
        if self.seconds is not None:
            took = f"{human_seconds(self.seconds)} {where} (measured rate {self.rate})"
        about = f"about {_power(self.operations)} operations, {human_bytes(self.bytes)}, {took}"
        disk = f"disk: {human_bytes(self.disk_bytes)}; passes over the features: {self.passes:,.0f}"
        return [f"audit: {size}; {how}; {about}", disk, *self.notes]

    def to_json(self) -> dict[str, Any]:
        """The same for machines."""
        return {**dataclasses.asdict(self), "notes": list(self.notes), "operations": self.operations}


def estimate(
    *,
    n: int,
    width: int,
    outputs: int,
    loss: str,
    curvature: str,
    probes: int = 256,
    steps: int = STEPS,
    features_dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    rate: Rate | None = None,
    preconditioner: str = "blocks",
    probe_blocks: int = 1,
    held_bytes: int = 0,
    processes: int = 1,
    checkpointed: bool = True,
) -> Cost:
    """The cost of an audit of `n` records with `width` features (the bias column included).

    `probe_blocks` is how many blocks the probes are solved in, `held_bytes` what is held in memory besides (features
    that are not streamed, rows in work). Processes share the records; a dense inverse is every process's own work.
    """
    check_choice("loss", loss, LOSSES)
    check_choice("curvature", curvature, CURVATURES)
    check_choice("preconditioner", preconditioner, PRECONDITIONERS)
    if curvature == "dense":
        shared, own, matrices, disk = _dense(n, width, outputs, loss)
        passes = 2.0
    else:
        shared, own, matrices, disk = _sketch(n, width, outputs, probes, steps, preconditioner, probe_blocks)
        passes = float(probe_blocks * (steps + 1) + 1 + (preconditioner != "diagonal"))
    table = 8 * COLUMNS * n
    seconds = None
    if rate is not None:
        seconds = (sum(shared.values()) / processes + sum(own.values())) / rate.per_second
    notes = [f"each pass reads {human_bytes(n * width * features_dtype.itemsize)} of features"]
    if curvature == "sketch":
        notes.append(f"memory: {WORKING_COPIES} copies of the probes solved at once, and the preconditioner")
    return Cost(
        records=n,
        features=width,
        outputs=outputs,
        loss=loss,
        curvature=curvature,
        probes=probes if curvature == "sketch" else None,
        processes=processes,
        device=str(device),
        flops=shared | own,
        bytes=matrices + table + held_bytes,
        disk_bytes=3 * table + (disk if checkpointed else 0),  # .csv takes twice what .npz does
        seconds=seconds,
        passes=passes,
        rate=rate,
        notes=(*notes, NOTE),
    )


def _dense(n: int, d: int, m: int, loss: str) -> tuple[Stages, Stages, int, int]:
    """Stages shared by records, stages of every process, bytes of matrices, bytes of a checkpoint."""
    if loss == "cross_entropy" and m > 1:
        r = m - 1
        pairs, matrices, size = r * (r + 1) // 2, 1, d * r
        shared = {"left out": n * m**3 / 3}
    else:
        pairs = matrices = 1 if loss == "squared" else m
        size = d
        shared = {}
    products = float(n * d * (d + 1) * pairs)
    sums = 8 * pairs * d * (d + 1) // 2
    inverse = {"inverse": float(matrices * size**3)}
    return {"sums": products, "forms": products, **shared}, inverse, 16 * matrices * size**2, sums


def _sketch(
    n: int, d: int, m: int, q: int, steps: int, preconditioner: str, blocks: int
) -> tuple[Stages, Stages, int, int]:
    """The same for a sketch; its columns are kept for all probes, the rest of the copies for one block of them."""
    product = 2.0 * n * d * m * q
    column = SKETCH_BYTES * d * m
    shared = {"right sides": product, "steps": 2 * product * steps, "scores": product}
    at_once = math.ceil(q / blocks)
    matrices = {"blocks": m, "shared": 1, "diagonal": 0}[preconditioner]
    own = {"preconditioner factors": float(matrices * d**3), "preconditioner": 0.0}
    if matrices:
        shared["preconditioner sums"] = float(n * d * (d + 1) * matrices)
        own["preconditioner"] = 2.0 * d * d * m * q * (steps + 1)
    held = column * (q + (WORKING_COPIES - 1) * at_once) + max(SKETCH_BYTES * matrices * d * d, column)
    return shared, own, held, column * q


def product_shape(
    *, width: int, outputs: int, loss: str, curvature: str, probes: int = 256, device: torch.device | str = "cpu"
) -> tuple[int, int, int]:
    """(a, b, c) of the product (a × b)·(b × c) that such an audit is made of, cut to what is quick to measure."""
    if curvature == "sketch":
        a, b, c = ROWS, width, outputs * probes
    else:
        softmax = loss == "cross_entropy" and outputs > 1
        pairs = outputs * (outputs - 1) // 2 if softmax else 1 if loss == "squared" else outputs
        # pairs of features against the numbers of W, or features against both: linalg.pairs expands the smaller
        a, b, c = (width * width // 2, ROWS, pairs) if 2 * pairs > width else (width, ROWS, pairs * width)
    most = MATRIX_BYTES["cuda" if torch.device(device).type == "cuda" else "cpu"] // 8
    a = max(1, min(a, most // b))
    return a, b, max(1, min(c, most // max(a, b)))


def calibrate(
    device: torch.device | str,
    dtype: torch.dtype,
    seconds: float = 0.3,
    *,
    shape: tuple[int, int, int] = (ROWS, 1_024, 1_024),
) -> Rate:
    """The rate of products of `shape` in `dtype`, measured here for about `seconds`, after one that warms up."""
    place = torch.device(device)
    a, b, c = shape
    # random numbers: a GPU multiplies constants faster
    generator = torch.Generator(place).manual_seed(0)
    left = torch.randn(a, b, dtype=dtype, device=place, generator=generator)
    right = torch.randn(b, c, dtype=dtype, device=place, generator=generator)
    out = torch.empty(a, c, dtype=dtype, device=place)

    def timed(repeats: int) -> float:
        _finish(place)
        began = perf_counter()
        for _ in range(repeats):
            torch.mm(left, right, out=out)
        _finish(place)
        return max(perf_counter() - began, 1e-9)

    timed(1)
    repeats = max(1, min(100_000, round(seconds / timed(1))))
    rate = 2.0 * a * b * c * repeats / timed(repeats)
    return Rate(rate, str(dtype).removeprefix("torch."), str(place), shape)


def _finish(device: torch.device) -> None:
    """Wait for what a GPU was told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def human_seconds(seconds: float) -> str:
    """A duration as one says it: 40 s, 12 minutes, 3.5 hours."""
    if seconds < 0.95:
        return "under a second"
    for most, unit, name in ((100, 1, "s"), (6_000, 60, "minutes"), (172_800, 3_600, "hours")):
        if seconds < most:
            return f"{seconds / unit:.1f} {name}" if name == "hours" else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.1f} days"


def human_bytes(count: float) -> str:
    """A size as one says it, in powers of a thousand: 21 GB."""
    return scaled(count, ("bytes", "kB", "MB", "GB", "TB", "PB"))


def scaled(value: float, units: tuple[str, ...]) -> str:
    """Two digits of `value`, or three before the point, in the unit that suits it; units are a thousand apart."""
    place = 0
    while place + 1 < len(units) and round(value) >= 1_000:
        value, place = value / 1_000, place + 1
    digits = 1 if place and round(value, 1) < 10 else 0
    return f"{value:,.{digits}f} {units[place]}"


def _power(value: float) -> str:
    """6.8e16."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _count(number: int, name: str) -> str:
    plural = {"class": "classes"}.get(name, f"{name}s")
    return f"{number:,} {name if number == 1 else plural}"
