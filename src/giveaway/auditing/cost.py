"""What an audit will cost: operations by stage, memory, and time at a measured rate; and what its views of the records
will, timed on some of them (docs/derivations.md)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any

import torch

from giveaway.auditing.plan import Plan
from giveaway.curvature.choice import Auto, Dense, Sketch, choose
from giveaway.curvature.losses import Loss, loss_named
from giveaway.curvature.sketch import probes_at_once
from giveaway.gp.distinguishability import Process
from giveaway.gp.posterior import as_records, kernel_regression, left_out_errors
from giveaway.linalg.precision import precision_named
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head
from giveaway.records.rows import LazyRows
from giveaway.text import human_seconds
from giveaway.views import left_out
from giveaway.views.left_out import RecordFeatures, fits_whole, fourier_features, landmark_count

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
TIMED, FACTORED = 256, 2_048  # records whose features or kernel are timed at most, and rows of the factor that is
TIMES = 5
LEAST_TIMED = 0.1  # seconds that the timed part of a kernel takes, unless there are fewer records
EIGEN = 17  # products of two matrices that eigenvectors cost, as measured for 3,000 rows


@dataclass(frozen=True)
class ViewCost:
    """What one view of the records will take, scaled up from `timed` of them."""

    name: str
    records: int
    seconds: float
    bytes: int
    timed: int
    note: str = ""

    def line(self) -> str:
        about = f"about {human_seconds(float(f'{self.seconds:.2g}'))}, {human_bytes(self.bytes)}"
        return f"{self.name}: {about}, scaled up from {_count(self.timed, 'record')} timed here{self.note}"


@dataclass(frozen=True)
class AuditCost:
    """What an audit of this size costs. `features` includes the bias column; without `probes` the curvature is dense.
    Processes share the records, and each one factors the matrices by itself."""

    records: int
    features: int
    outputs: int
    loss: str
    probes: int | None = None
    probe_blocks: int = 1  # in which the probes are solved one after the other
    processes: int = 1
    device: str = "cpu"
    held_bytes: int = 0  # in memory besides, such as features that are not read in windows
    rate: float | None = None  # operations a second, where they were measured
    views: tuple[ViewCost, ...] = ()
    notes: tuple[str, ...] = (NOTE,)

    @property
    def of_loss(self) -> Loss:
        return loss_named(self.loss, self.outputs)

    @cached_property
    def _counts(self) -> tuple[dict[str, float], dict[str, float], int]:
        """Operations of the stages that processes share, and of those that each one repeats; bytes of the matrices."""
        n, d, m, q, loss = self.records, self.features, self.outputs, self.probes, self.of_loss
        if q is None:
            matrices, size = (1, d * (m - 1)) if loss.coupled else (loss.pairs, d)
            products = float(n * d * (d + 1) * loss.pairs)
            shared = {"sums": products, "forms": products} | ({"left out": n * m**3 / 3} if loss.coupled else {})
            return shared, {"inverse": float(matrices * size**3)}, 16 * matrices * size**2
        product = 2.0 * n * d * m * q
        shared = {"right sides": product, "steps": 2 * product * STEPS, "scores": product}
        shared["preconditioner sums"] = float(n * d * (d + 1) * m)
        repeated = {"preconditioner factors": float(m * d**3), "preconditioner": 2.0 * d * d * m * q * (STEPS + 1)}
        copies = q + (WORKING_COPIES - 1) * -(-q // self.probe_blocks)  # all probes once, the rest for a block of them
        return shared, repeated, SKETCH_BYTES * m * d * (copies + d)

    @property
    def flops(self) -> dict[str, float]:
        """Operations by stage."""
        return self._counts[0] | self._counts[1]

    @property
    def operations(self) -> float:
        return sum(self.flops.values())

    @property
    def bytes(self) -> int:
        """The peak of one process."""
        return self._counts[2] + 8 * COLUMNS * self.records + self.held_bytes

    @property
    def seconds(self) -> float | None:
        shared, repeated = (sum(part.values()) for part in self._counts[:2])
        return None if self.rate is None else (shared / self.processes + repeated) / self.rate

    def lines(self) -> list[str]:
        """Return the cost in short lines: a headline, then further facts."""
        outputs = _count(self.outputs, "class", "classes") if self.of_loss.coupled else _count(self.outputs, "output")
        size = f"{_count(self.records, 'record')} × {_count(self.features, 'feature')} × {outputs}"
        how = "dense curvature" if self.probes is None else f"sketched curvature, {_count(self.probes, 'probe')}"
        where = "on this GPU" if torch.device(self.device).type == "cuda" else "on this machine"
        if self.processes > 1:
            where = f"with {self.processes} processes like this one"
        time = "time not measured"
        if self.seconds is not None:
            time = f"{human_seconds(self.seconds)} {where} (measured rate {_scaled(self.rate or 0.0, FLOPS)})"
        mantissa, exponent = f"{self.operations:.1e}".split("e")
        about = f"about {mantissa}e{int(exponent)} operations, {human_bytes(self.bytes)}, {time}"
        return [f"audit: {size}; {how}; {about}", *(view.line() for view in self.views), *self.notes]

    def to_json(self) -> dict[str, Any]:
        """Return the same for machines."""
        named = (
            "records",
            "features",
            "outputs",
            "loss",
            "probes",
            "processes",
            "device",
            "flops",
            "operations",
            "bytes",
        )
        told = {name: getattr(self, name) for name in (*named, "seconds", "rate", "notes")}
        kind = "dense" if self.probes is None else "sketch"
        return told | {"curvature": kind, "views": [vars(view) for view in self.views]}


def product_shape(work: AuditCost) -> tuple[int, int, int]:
    """Return (a, b, c) of the product (a × b)·(b × c) that such an audit consists of, cut to what is quick to time."""
    d, m = work.features, work.outputs
    if work.probes is not None:
        a, b, c = ROWS, d, m * -(-work.probes // work.probe_blocks)
    else:
        # pairs of features against the numbers of W, or features against both: linalg.dense expands the smaller
        pairs = work.of_loss.pairs
        a, b, c = (d * d // 2, ROWS, pairs) if 2 * pairs > d else (d, ROWS, pairs * d)
    most = MATRIX_BYTES[torch.device(work.device).type] // 8
    a = max(1, min(a, most // b))
    return a, b, max(1, min(c, most // max(a, b)))


def calibrate(place: torch.device, dtype: torch.dtype, shape: tuple[int, int, int]) -> float:
    """Measure operations a second in a product of `shape`."""
    a, b, c = shape
    # random numbers: a GPU multiplies constants faster
    generator = torch.Generator(place).manual_seed(0)
    left = torch.randn(a, b, dtype=dtype, device=place, generator=generator)
    right = torch.randn(b, c, dtype=dtype, device=place, generator=generator)
    out = torch.empty(a, c, dtype=dtype, device=place)
    return 2.0 * a * b * c / _quickest(lambda: torch.mm(left, right, out=out), place)


def _quickest(work: Callable[[], Any], place: torch.device) -> float:
    """Return the seconds of `work` at best: the first call warms up, and others may use the machine too."""
    wait = torch.cuda.synchronize if place.type == "cuda" else lambda place: None
    best = math.inf
    for _ in range(TIMES):
        wait(place)
        began = perf_counter()
        work()
        wait(place)
        best = min(best, perf_counter() - began)
    return max(best, 1e-9)


def price_view(features: RecordFeatures, kind: str, place: torch.device) -> ViewCost:
    """Price the prediction of every record from the others, by records of this kind (images, text or tabular)."""
    n, name, note = features.n, f"second view of {features.n:,} records", ""
    if kind == "tabular":
        both, rate = fourier_features(features)[0], calibrate(place, torch.float64, (TIMED, FACTORED, TIMED))
        rows, each = _per_record(both, place)
        d = min(n, rows.shape[1])
        seconds, held = 3 * n * each + (4.0 * n * rows.shape[1] * d + 2 * EIGEN * d**3) / rate, 8 * 3 * d * d
        if fits_whole(n, place):
            sharp = price_view(features, "images", place)
            seconds, held = seconds + sharp.seconds, max(held, sharp.bytes)
            note = "; most of it only if the model memorizes"
        return ViewCost(name, n, seconds, held, len(rows), note)
    rows, each = _per_record(features, place)
    d, rate = rows.shape[1], calibrate(place, torch.float32, (len(rows), rows.shape[1], len(rows)))
    if fits_whole(n, place):
        sample, chosen = min(n, left_out.SAMPLE), min(n, left_out.CHOSEN_ON)
        factors = _factoring(place) * (float(n) ** 3 + len(left_out.NOISES) * float(chosen) ** 3)
        seconds = n * each + d * (float(n) ** 2 + sample**2 + chosen**2) / rate + factors
        return ViewCost(name, n, seconds, int(8 * left_out.MATRICES * n * n) + 4 * n * d, len(rows))
    count = landmark_count(n)
    held, double = 4 * n * count, calibrate(place, torch.float64, (TIMED, FACTORED, TIMED))
    passes = 2 if held <= left_out.KEPT_BYTES else 4  # the last for the nearest records
    seconds = passes * n * each + 2.0 * n * count * (d + count) / rate
    seconds += (4.0 * n * count**2 + 4 * EIGEN * float(count) ** 3) / double
    return ViewCost(name, n, seconds, min(held, left_out.KEPT_BYTES) + 8 * 4 * count**2, len(rows))


def price_process(process: Process, inputs: Any, place: torch.device) -> ViewCost:
    """Price a Gaussian process's view of all records: its kernel of every pair, and one factorization."""
    x = as_records(inputs, place)
    n, count, pairs = len(x), 8, 0.0
    kernel = process.kernel_for(x)
    while not pairs or (pairs < LEAST_TIMED and count < min(n, TIMED)):
        count = min(2 * count, n)
        pairs = _quickest(lambda: kernel(x[:count], x[:count]), place)  # noqa: B023 (called here)
    seconds = 0.5 * pairs * (n / count) ** 2 + _factoring(place) * float(n) ** 3
    return ViewCost(f"Gaussian process of {n:,} records", n, seconds, 22 * n * n, count)


def _per_record(features: RecordFeatures, place: torch.device) -> tuple[torch.Tensor, float]:
    """Return the features of some records, and the seconds that one record's take."""
    some = slice(0, min(features.n, TIMED))
    return features.of(some).to(place), _quickest(lambda: features.of(some), place) / some.stop


def _factoring(place: torch.device) -> float:
    """Time a factorization that leaves every record out, and return its seconds over the cube of its rows."""
    matrix = 2.0 * torch.eye(FACTORED, dtype=torch.float64, device=place)
    right = matrix[:, :10].contiguous()
    work = partial(kernel_regression, matrix, right, 1.0, constant=True)
    return _quickest(lambda: left_out_errors(work()), place) / FACTORED**3


def quick(head: Head, curvature: Dense | Sketch | Auto) -> bool:
    """Whether the audit takes seconds on any machine, so that nothing need be measured."""
    sketch = choose(head, curvature).sketch
    per_record = head.width * head.m * (2.0 * head.width * head.m if sketch is None else 80.0 * sketch.probes)
    return head.n * per_record < QUICK


def forecast(
    head: Head, curvature: Dense | Sketch | Auto, processes: Processes = ALONE, resolved: Plan | None = None
) -> AuditCost:
    """Estimate the cost of the head's own scores at a rate measured here, and of the views that are `resolved`."""
    sketch, dtype, probes, blocks = choose(head, curvature).sketch, torch.float64, None, 1
    if sketch is not None:
        dtype, probes = precision_named(sketch.precision, head.device).between, sketch.probes
        blocks = -(-probes // probes_at_once(head, sketch))
    held = 0 if isinstance(head.features, LazyRows) else head.features.nbytes
    size = (head.n, head.width, head.m, head.loss, probes, blocks)
    cost = AuditCost(*size, processes=processes.size, device=str(head.device), held_bytes=held)
    rate = calibrate(head.device, dtype, product_shape(cost))
    views = []
    if resolved is not None and resolved.view is not None and (resolved.of_view or resolved.of_theory):
        views.append(price_view(resolved.view.features, resolved.view.kind, head.device))
    if resolved is not None and resolved.process is not None and resolved.of_lood:
        views.append(price_process(resolved.process.process, resolved.process.inputs, head.device))
    return replace(cost, rate=rate, views=tuple(views))


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
