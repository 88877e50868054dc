"""What an audit will cost: operations by stage, memory, and time at a measured rate (docs/derivations.md)."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from giveaway.curvature.choice import Auto, Dense, Sketch, choose
from giveaway.curvature.losses import Loss, loss_named
from giveaway.curvature.sketch import probes_at_once
from giveaway.linalg.precision import precision_named
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head
from giveaway.records.rows import LazyRows
from giveaway.text import human_seconds

QUICK = 3e11  # operations
LONG = 60.0  # seconds; the cost of a longer audit is announced before the work
STEPS = 20  # of conjugate gradients, while nothing is known about the problem
SKETCH_BYTES = 4  # per number of a sketch
WORKING_COPIES = 7  # right sides, solution, residual, preconditioned residual, direction, product, and one in transit
COLUMNS = 14  # of a table with every score
MATRIX_BYTES = {"cpu": 16_000_000, "cuda": 256_000_000}  # in a timed product: large enough for full speed, soon done
ROWS = 4_096
FLOPS = ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s")
NOTE = "an estimate: matrix products at a measured rate; reading the features and small steps come on top"


@dataclass(frozen=True)
class Workload:
    """The size of an audit. `features` includes the bias column; without `probes` the curvature is dense."""

    records: int
    features: int
    outputs: int
    loss: str
    probes: int | None = None
    probe_blocks: int = 1  # in which the probes are solved one after the other
    processes: int = 1
    device: str = "cpu"
    held_bytes: int = 0  # in memory besides, such as features that are not streamed

    @property
    def of_loss(self) -> Loss:
        return loss_named(self.loss, self.outputs)


@dataclass(frozen=True)
class AuditCost:
    """The cost of one audit. `bytes` is the peak of one process; `seconds` is None if no rate was measured."""

    work: Workload
    flops: dict[str, float]  # by stage
    bytes: int
    seconds: float | None
    rate: float | None  # operations a second
    notes: tuple[str, ...] = (NOTE,)

    @property
    def operations(self) -> float:
        return sum(self.flops.values())

    def lines(self) -> list[str]:
        """Return the cost in short lines: a headline, then further facts."""
        work = self.work
        outputs = _count(work.outputs, "class", "classes") if work.of_loss.coupled else _count(work.outputs, "output")
        size = f"{_count(work.records, 'record')} × {_count(work.features, 'feature')} × {outputs}"
        how = "dense curvature" if work.probes is None else f"sketched curvature, {_count(work.probes, 'probe')}"
        where = "on this GPU" if torch.device(work.device).type == "cuda" else "on this machine"
        if work.processes > 1:
            where = f"with {work.processes} processes like this one"
        time = "time not measured"
        if self.seconds is not None:
            time = f"{human_seconds(self.seconds)} {where} (measured rate {_scaled(self.rate or 0.0, FLOPS)})"
        mantissa, exponent = f"{self.operations:.1e}".split("e")
        about = f"about {mantissa}e{int(exponent)} operations, {human_bytes(self.bytes)}, {time}"
        return [f"audit: {size}; {how}; {about}", *self.notes]

    def to_json(self) -> dict[str, Any]:
        """Return the same for machines."""
        cost = {name: value for name, value in vars(self).items() if name != "work"}
        named = ("records", "features", "outputs", "loss", "probes", "processes", "device")
        kind = "dense" if self.work.probes is None else "sketch"
        told = {"curvature": kind, **cost, "operations": self.operations}
        return {name: getattr(self.work, name) for name in named} | told


def estimate(work: Workload, rate: float | None = None) -> AuditCost:
    """Estimate the cost of an audit. Processes share the records; each one factors the matrices by itself."""
    shared, repeated, matrices = _dense(work) if work.probes is None else _sketch(work, work.probes)
    operations = sum(shared.values()) / work.processes + sum(repeated.values())
    held = matrices + 8 * COLUMNS * work.records + work.held_bytes
    return AuditCost(work, shared | repeated, held, None if rate is None else operations / rate, rate)


def _dense(work: Workload) -> tuple[dict[str, float], dict[str, float], int]:
    """Return the operations that processes share and those of each one, and the bytes of matrices."""
    n, d, m, pairs, coupled = work.records, work.features, work.outputs, work.of_loss.pairs, work.of_loss.coupled
    matrices, size = (1, d * (m - 1)) if coupled else (pairs, d)
    products = float(n * d * (d + 1) * pairs)
    shared = {"sums": products, "forms": products} | ({"left out": n * m**3 / 3} if coupled else {})
    return shared, {"inverse": float(matrices * size**3)}, 16 * matrices * size**2


def _sketch(work: Workload, q: int) -> tuple[dict[str, float], dict[str, float], int]:
    """Return the same for a sketch; it keeps its columns for all probes, and the other copies for one block."""
    n, d, m = work.records, work.features, work.outputs
    product = 2.0 * n * d * m * q
    column = SKETCH_BYTES * d * m
    at_once = -(-q // work.probe_blocks)
    shared = {"right sides": product, "steps": 2 * product * STEPS, "scores": product}
    shared["preconditioner sums"] = float(n * d * (d + 1) * m)
    repeated = {"preconditioner factors": float(m * d**3), "preconditioner": 2.0 * d * d * m * q * (STEPS + 1)}
    held = column * (q + (WORKING_COPIES - 1) * at_once) + SKETCH_BYTES * m * d * d
    return shared, repeated, held


def product_shape(work: Workload) -> tuple[int, int, int]:
    """Return (a, b, c) of the product (a × b)·(b × c) that such an audit consists of, cut to what is quick to time."""
    d, m = work.features, work.outputs
    if work.probes is not None:
        a, b, c = ROWS, d, m * -(-work.probes // work.probe_blocks)
    else:
        # pairs of features against the numbers of W, or features against both: linalg.pairs expands the smaller
        pairs = work.of_loss.pairs
        a, b, c = (d * d // 2, ROWS, pairs) if 2 * pairs > d else (d, ROWS, pairs * d)
    most = MATRIX_BYTES[torch.device(work.device).type] // 8
    a = max(1, min(a, most // b))
    return a, b, max(1, min(c, most // max(a, b)))


def calibrate(place: torch.device, dtype: torch.dtype, shape: tuple[int, int, int], *, seconds: float = 0.3) -> float:
    """Measure operations a second in products of `shape` for about `seconds`, after one that warms up."""
    a, b, c = shape
    # random numbers: a GPU multiplies constants faster
    generator = torch.Generator(place).manual_seed(0)
    left = torch.randn(a, b, dtype=dtype, device=place, generator=generator)
    right = torch.randn(b, c, dtype=dtype, device=place, generator=generator)
    out = torch.empty(a, c, dtype=dtype, device=place)
    wait = torch.cuda.synchronize if place.type == "cuda" else lambda place: None

    def timed(repeats: int) -> float:
        wait(place)
        began = perf_counter()
        for _ in range(repeats):
            torch.mm(left, right, out=out)
        wait(place)
        return max(perf_counter() - began, 1e-9)

    timed(1)
    repeats = max(1, min(100_000, round(seconds / timed(1))))
    return 2.0 * a * b * c * repeats / timed(repeats)


def quick(head: Head, curvature: Dense | Sketch | Auto) -> bool:
    """Whether the audit takes seconds on any machine, so that nothing need be measured."""
    sketch = choose(head, curvature).sketch
    per_record = head.width * head.m * (2.0 * head.width * head.m if sketch is None else 80.0 * sketch.probes)
    return head.n * per_record < QUICK


def forecast(head: Head, curvature: Dense | Sketch | Auto, processes: Processes = ALONE) -> AuditCost:
    """Estimate the cost of the head's own scores at a rate measured here; views of the records are not included."""
    sketch = choose(head, curvature).sketch
    dtype, probes, blocks = torch.float64, None, 1
    if sketch is not None:
        dtype, probes = precision_named(sketch.precision, head.device).between, sketch.probes
        blocks = -(-probes // probes_at_once(head, sketch))
    work = Workload(
        records=head.n,
        features=head.width,
        outputs=head.m,
        loss=head.loss,
        probes=probes,
        probe_blocks=blocks,
        processes=processes.size,
        device=str(head.device),
        held_bytes=0 if isinstance(head.features, LazyRows) else head.features.nbytes,
    )
    return estimate(work, calibrate(head.device, dtype, product_shape(work)))


def human_bytes(count: float) -> str:
    """Write a size as people say it, in powers of a thousand: 21 GB."""
    return _scaled(count, ("bytes", "kB", "MB", "GB", "TB", "PB"))


def _scaled(value: float, units: tuple[str, ...]) -> str:
    """Write two digits of `value`, or three before the point, in the unit that suits it; units are a thousand apart."""
    place = 0
    while place + 1 < len(units) and round(value) >= 1_000:
        value, place = value / 1_000, place + 1
    digits = 1 if place and round(value, 1) < 10 else 0
    return f"{value:,.{digits}f} {units[place]}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
