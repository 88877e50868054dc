"""What an audit will cost: operations, memory, and time at a measured rate; and what its views of the records and the
audit of a language model will, timed on some of them (docs/derivations.md)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from giveaway.auditing.plan import Plan
from giveaway.auditing.texts import audit_texts
from giveaway.checks import free_memory
from giveaway.curvature.choice import Auto, Dense, Sketch, choose
from giveaway.curvature.losses import loss_named
from giveaway.curvature.sketch import probes_at_once
from giveaway.extract.language_models import from_causal_lm
from giveaway.extract.text_gradients import MOST_ON_CPU, NUMBERS_AT_ONCE, TextCurvature, linear_layers, output_head
from giveaway.extract.token_rows import check_dataset, checked_models
from giveaway.extract.torch_model import device_of
from giveaway.gp.distinguishability import Process
from giveaway.gp.posterior import as_records, kernel_regression, left_out_errors
from giveaway.linalg.precision import precision_named
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head, LazyRows
from giveaway.text import human_seconds
from giveaway.views import left_out

QUICK = 3e11  # operations: so many take seconds on any machine
LONG = 60.0  # seconds; the cost of a longer audit is announced before the work
STEPS = 20  # of conjugate gradients, while nothing is known about the problem
SKETCH_BYTES = 4  # per number of a sketch
WORKING_COPIES = 7  # right sides, solution, residual, preconditioned residual, direction, product, and one in transit
COLUMNS = 14  # of a table with every score
PRODUCT = {"cpu": 1_024, "cuda": 8_192}  # rows of a timed product: large enough for full speed, soon done
NOTE = "an estimate: matrix products at a measured rate; reading the features and small steps come on top"
TIMED, FACTORED = 256, 2_048  # records whose features or kernel are timed at most, and rows of the factor that is
TIMED_TEXTS = 32
TOKEN_BYTES = 400  # of a token while the other texts predict it; measured with 10⁶ of them
TIMES = 5
LEAST_TIMED = 0.1  # seconds that the timed part of a kernel takes, unless there are fewer records
EIGEN = 17  # products of two matrices that eigenvectors cost, as measured for 3,000 rows


@dataclass(frozen=True)
class TimedCost:
    """What a view of the records, or the audit of texts, will take, scaled up from `timed` of them."""

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
    views: tuple[TimedCost, ...] = ()
    notes: tuple[str, ...] = (NOTE,)

    @cached_property
    def _work(self) -> tuple[float, float, int]:
        """Operations that processes share, operations that each one repeats, and bytes of the matrices."""
        n, d, m, q, loss = self.records, self.features, self.outputs, self.probes, loss_named(self.loss, self.outputs)
        if q is None:
            matrices, size = (1, d * (m - 1)) if loss.coupled else (loss.pairs, d)
            solves = n * m**3 / 3 if loss.coupled else 0.0
            return 2.0 * n * d * (d + 1) * loss.pairs + solves, float(matrices * size**3), 16 * matrices * size**2
        products = 2 * (STEPS + 1)  # two a step, one for the right sides and one for the scores
        shared = products * 2.0 * n * d * m * q + n * d * (d + 1) * m
        repeated = m * d**3 + 2.0 * d * d * m * q * (STEPS + 1)
        copies = q + (WORKING_COPIES - 1) * -(-q // self.probe_blocks)  # all probes once, the rest for a block of them
        return shared, repeated, SKETCH_BYTES * m * d * (copies + d)

    @property
    def operations(self) -> float:
        return self._work[0] + self._work[1]

    @property
    def bytes(self) -> int:
        """The peak of one process."""
        return self._work[2] + 8 * COLUMNS * self.records + self.held_bytes

    @property
    def seconds(self) -> float | None:
        shared, repeated, _ = self._work
        return None if self.rate is None else (shared / self.processes + repeated) / self.rate

    def lines(self) -> list[str]:
        """Return the cost in short lines: a headline, then further facts."""
        classes = loss_named(self.loss, self.outputs).coupled
        outputs = _count(self.outputs, "class", "classes") if classes else _count(self.outputs, "output")
        size = f"{_count(self.records, 'record')} × {_count(self.features, 'feature')} × {outputs}"
        how = "dense curvature" if self.probes is None else f"sketched curvature, {_count(self.probes, 'probe')}"
        where = "on this GPU" if torch.device(self.device).type == "cuda" else "on this machine"
        if self.processes > 1:
            where = f"with {self.processes} processes like this one"
        time = "time not measured" if self.seconds is None else f"{human_seconds(self.seconds)} {where}"
        mantissa, exponent = f"{self.operations:.1e}".split("e")
        about = f"about {mantissa}e{int(exponent)} operations, {human_bytes(self.bytes)}, {time}"
        return [f"audit: {size}; {how}; {about}", *(view.line() for view in self.views), *self.notes]

    def to_json(self) -> dict[str, Any]:
        """Return the same for machines."""
        sizes = ("records", "features", "outputs", "loss", "probes", "processes", "device")
        told = {name: getattr(self, name) for name in (*sizes, "operations", "bytes", "seconds", "rate", "notes")}
        kind = "dense" if self.probes is None else "sketch"
        return told | {"curvature": kind, "views": [vars(view) for view in self.views]}


def forecast(
    head: Head, curvature: Dense | Sketch | Auto, processes: Processes = ALONE, resolved: Plan | None = None
) -> AuditCost:
    """Estimate the cost of the head's own scores at a rate measured here, and of the views that are `resolved`; without
    a plan, nothing is measured for an audit that is quick on any machine."""
    sketch, dtype, probes, blocks = choose(head, curvature).sketch, torch.float64, None, 1
    if sketch is not None:
        dtype, probes = precision_named(sketch.precision, head.device).between, sketch.probes
        blocks = -(-probes // probes_at_once(head, sketch))
    held = 0 if isinstance(head.features, LazyRows) else head.features.nbytes
    size = (head.n, head.width, head.m, head.loss, probes, blocks)
    cost = AuditCost(*size, processes=processes.size, device=str(head.device), held_bytes=held)
    if resolved is None and cost.operations < QUICK:
        return cost
    views = []
    if resolved is not None and resolved.view is not None:
        views.append(price_view(resolved.view.features, resolved.view.kind, head.device, head.groups is not None))
    if resolved is not None and resolved.process is not None and resolved.of_lood:
        views.append(price_process(resolved.process.process, resolved.process.inputs, head.device))
    return replace(cost, rate=calibrate(head.device, dtype), views=tuple(views))


def calibrate(place: torch.device, dtype: torch.dtype) -> float:
    """Measure operations a second in a product of two square matrices."""
    size = PRODUCT[place.type]
    # random numbers: a GPU multiplies constants faster
    generator = torch.Generator(place).manual_seed(0)
    left, right = torch.randn(2, size, size, dtype=dtype, device=place, generator=generator)
    out = torch.empty_like(left)
    return 2.0 * size**3 / _quickest(lambda: torch.mm(left, right, out=out), place)


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


def price_view(features: left_out.RecordFeatures, kind: str, place: torch.device, grouped: bool = False) -> TimedCost:
    """Price the prediction of every record, or of `grouped` ones, from the others, by records of this kind (images,
    text or tabular)."""
    n, note, seconds, held = features.n, "", 0.0, 0
    seen = left_out.fourier_features(features)[0] if kind == "tabular" else features
    some = slice(0, min(n, TIMED))
    d, each = seen.of(some).shape[1], _quickest(lambda: seen.of(some), place) / some.stop
    rate = calibrate(place, torch.float64)
    if kind == "tabular":
        count = min(n, d)
        seconds, held = 3 * n * each + (4.0 * n * d * count + 2 * EIGEN * count**3) / rate, 8 * 3 * count**2
    elif not left_out.fits_whole(n, place, grouped):
        count = left_out.landmark_count(n)
        passes = 2 if 4 * n * count <= left_out.KEPT_BYTES else 4  # the last for the nearest records
        products = 2.0 * n * count * (d + 3 * count) + 4 * EIGEN * float(count) ** 3
        seconds, held = passes * n * each + products / rate, min(4 * n * count, left_out.KEPT_BYTES) + 8 * 4 * count**2
    if left_out.fits_whole(n, place, grouped):
        sample, chosen = min(n, left_out.SAMPLE), min(n, left_out.CHOSEN_ON)
        squares = float(n) ** 2 + sample**2 + chosen**2
        cubes = float(n) ** 3 + len(left_out.NOISES) * float(chosen) ** 3
        seconds += n * each + d * squares / calibrate(place, torch.float32)
        seconds += cubes * _factoring(place, left_out.in_single(place, grouped))
        held = max(held, left_out.kernel_bytes(n, place, grouped) + 4 * n * d)
        note = "; most of it only if the model memorizes" if kind == "tabular" else ""
    return TimedCost(f"second view of {n:,} records", n, seconds, held, some.stop, note)


def price_process(process: Process, inputs: Any, place: torch.device) -> TimedCost:
    """Price a Gaussian process's view of all records: its kernel of every pair, and one factorization."""
    x = as_records(inputs, place)
    n, count, pairs = len(x), 8, 0.0
    kernel = process.kernel_for(x)
    while not pairs or (pairs < LEAST_TIMED and count < min(n, TIMED)):
        count = min(2 * count, n)
        pairs = _quickest(lambda: kernel(x[:count], x[:count]), place)  # noqa: B023 (called here)
    seconds = 0.5 * pairs * (n / count) ** 2 + _factoring(place) * float(n) ** 3
    return TimedCost(f"Gaussian process of {n:,} records", n, seconds, 22 * n * n, count)


def _factoring(place: torch.device, single: bool = False) -> float:
    """Time a factorization that leaves every record out, and return its seconds over the cube of its rows."""
    matrix = 2.0 * torch.eye(FACTORED, dtype=torch.float64, device=place)
    work = partial(kernel_regression, matrix, matrix[:, :10].contiguous(), 1.0, constant=True)
    return _quickest(lambda: left_out_errors(work(), single=single), place) / FACTORED**3


def price_texts(model: Any, dataset: Any, **options: Any) -> TimedCost:
    """Read and audit the first rows, and say what all will take; rows of other lengths take more or less."""
    model, base = checked_models(model, options.get("base"))
    check_dataset(dataset)
    loader = dataset if isinstance(dataset, DataLoader) else None
    every: Any = dataset if loader is None else loader.dataset
    rows, size = len(every), (options.get("batch_size") if loader is None else loader.batch_size) or 8
    timed = min(rows, max(TIMED_TEXTS, 2 * size))
    first: Any = Subset(every, range(timed))
    if loader is not None:
        first = DataLoader(first, batch_size=size, collate_fn=loader.collate_fn)
    place = device_of(model)
    on_gpu = place.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(place)
    began = perf_counter()
    texts = from_causal_lm(model, first, **options)
    audit_texts(texts, "default", None)
    seconds, share = perf_counter() - began, rows / timed
    logits = size * int(texts.lengths.max()) * texts.vocabulary
    weights = sum(p.nbytes for one in (model, base) if one is not None for p in one.parameters())
    at_work = weights + 8 * logits + 16 * min(logits, NUMBERS_AT_ONCE)
    held: float = torch.cuda.max_memory_allocated(place) if on_gpu else at_work
    tokens, curvature = round(len(texts.tokens) * share), options.get("curvature", TextCurvature())
    if curvature is not None:  # gradients of some parameters at a time, what the head was given, and their products
        head = curvature.through == "head"
        layers: list[Any] = [output_head(model)] if head else list(linear_layers(model, curvature.through).values())
        size, units = sum(layer.weight.numel() for layer in layers), round(texts.n * share)
        gradients, chosen = (1 + curvature.probes) * units, curvature.probes * min(units, curvature.documents)
        held += 3 * min(free_memory(place) // 6 if on_gpu else MOST_ON_CPU, 4 * gradients * size)
        held += 20 * gradients * chosen + (12 * tokens * layers[0].weight.shape[1] if head else 0)
        kind, times = (torch.bfloat16, 3) if on_gpu else (torch.float32, 1)
        seconds += 2.0 * times * gradients * chosen * size / calibrate(place, kind) / share
    name = f"audit: {rows:,} rows, about {float(f'{tokens:.2g}'):,.0f} tokens"
    beside = f"; {human_bytes(TOKEN_BYTES * tokens)} more for the texts; rows of other lengths take more or less"
    return TimedCost(name, rows, seconds * share, int(held), timed, beside)


def human_bytes(count: float) -> str:
    """Write a size as people say it, in powers of a thousand: 21 GB."""
    units = ["PB", "TB", "GB", "MB", "kB", "bytes"]
    while len(units) > 1 and round(count) >= 1_000:
        count /= 1_000
        units.pop()
    return f"{count:,.{int(units[-1] != 'bytes' and round(count, 1) < 10)}f} {units[-1]}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
