"""What auditing a head will cost, from a short measurement here."""

from __future__ import annotations

import torch

from giveaway.auditing.cost import Cost, calibrate, estimate, product_shape
from giveaway.curvature.choice import Auto, Dense, Sketch, choose
from giveaway.curvature.sketched import probes_at_once
from giveaway.linalg.precision import precision_named
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head
from giveaway.records.rows import LazyRows

QUICK = 3e11  # operations
LONG = 60.0  # seconds, from which the cost is told before the work


def quick(head: Head, curvature: Dense | Sketch | Auto) -> bool:
    """Whether the audit takes seconds on any machine, so that nothing need be measured."""
    sketch = choose(head, curvature).sketch
    per_record = head.width * head.m * (2.0 * head.width * head.m if sketch is None else 80.0 * sketch.probes)
    return head.n * per_record < QUICK


def forecast(head: Head, curvature: Dense | Sketch | Auto, processes: Processes = ALONE) -> Cost:
    """The cost of the head's own scores; that of looking at the records themselves is not in it."""
    sketch = choose(head, curvature).sketch
    kind, options = ("dense", Sketch()) if sketch is None else ("sketch", sketch)
    rows = {"width": head.width, "outputs": head.m, "loss": head.loss, "curvature": kind}
    precision = precision_named(options.precision, head.device)
    at_once = probes_at_once(head, options.probes, options.budget(head), precision)
    dtype = torch.float64 if sketch is None else precision.between
    shape = product_shape(**rows, probes=at_once, device=head.device)  # type: ignore[arg-type]
    held = 0 if isinstance(head.features, LazyRows) else head.features.nbytes
    return estimate(
        n=head.n,
        **rows,  # type: ignore[arg-type]
        probes=options.probes,
        features_dtype=head.features.dtype,
        device=head.device,
        rate=calibrate(head.device, dtype, shape=shape),
        probe_blocks=-(-options.probes // at_once),
        held_bytes=held,
        processes=processes.size,
    )
