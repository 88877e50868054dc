"""How an audit gets at H⁻¹: exactly (`Dense`), from random probes (`Sketch`), or whichever fits the memory (`Auto`)."""

from dataclasses import dataclass, field, replace
from typing import Any

from giveaway.checks import check_number, check_whole, fail
from giveaway.curvature.dense import (
    DenseCurvature,
    OrthogonalCurvature,
    dense_bytes,
    is_wide,
    keeps_digits,
    orthogonal_bytes,
)
from giveaway.curvature.sketch import Sketch, SketchedCurvature, budget, probes_at_once
from giveaway.linalg.processes import ALONE, HERE, Execution, Processes
from giveaway.records import Head

Curvature = DenseCurvature | SketchedCurvature

LEAST_PROBES, MOST_PROBES = 32, 1 << 16
EXPECTED_PRODUCTS = 16  # products that one block of probes takes, for the progress bar alone


@dataclass(frozen=True)
class Dense:
    """Form the curvature as a matrix and invert it: exact."""


@dataclass(frozen=True)
class Auto:
    """Take `Dense` where its matrices fit into `memory` gigabytes (by default half of what is free), else `sketch`."""

    memory: float | None = None
    sketch: Sketch = field(default_factory=Sketch)

    def __post_init__(self) -> None:
        check_number("memory", self.memory or 0.0, minimum=0.0, remedy="give it in gigabytes")


@dataclass(frozen=True)
class Choice:
    """The curvature that will be computed, `Dense` or `Sketch`, and why."""

    curvature: Dense | Sketch
    because: str

    @property
    def sketch(self) -> Sketch | None:
        return self.curvature if isinstance(self.curvature, Sketch) else None


def choose(head: Head, wanted: Any, processes: Processes = ALONE) -> Choice:
    """Resolve `Auto`, by the memory that every process has, and check that a sketch of `head` is possible."""
    if isinstance(wanted, Dense):
        return Choice(wanted, "asked for")
    if not isinstance(wanted, Sketch | Auto):
        raise fail("curvature", "Dense(), Sketch() or Auto()", repr(wanted), "make one, as ga.Sketch(probes=256)")
    memory = wanted.memory
    if processes.size > 1:
        memory = processes.smallest(budget(memory, head)) / 1e9
    if isinstance(wanted, Sketch):
        return Choice(replace(wanted, memory=memory), "asked for")
    needed, available = orthogonal_bytes(head) if is_wide(head) else dense_bytes(head), budget(memory, head)
    fits = "fits" if needed <= available else "does not fit"
    because = f"dense takes {needed / 1e9:.3g} GB, which {fits} the budget of {available / 1e9:.3g} GB"
    if needed <= available:
        return Choice(Dense(), because)
    return Choice(replace(wanted.sketch, memory=memory), because)


def check_probes(sketch: Sketch) -> None:
    """Refuse so few probes that the scores of a head would tell nothing, and more than anybody would wait for."""
    if check_whole("probes", sketch.probes, LEAST_PROBES, remedy="256 suits most heads") > MOST_PROBES:
        raise fail("probes", f"at most {MOST_PROBES:,}", f"{sketch.probes:,}", "256 suits most heads")


def compute(head: Head, choice: Choice, execution: Execution = HERE) -> Curvature:
    """Compute the chosen curvature; an exact one by whichever way keeps its digits."""
    if choice.sketch is not None:
        return SketchedCurvature(head, choice.sketch, execution)
    if is_wide(head):
        return OrthogonalCurvature(head, execution)
    curvature = DenseCurvature(head, execution)
    better = keeps_digits(head, curvature, execution.processes.smallest(budget(None, head)))
    return OrthogonalCurvature(head, execution) if better else curvature


def expected_passes(head: Head, choice: Choice) -> int:
    """Estimate how often computing the curvature reads the records."""
    sketch = choice.sketch
    return 1 if sketch is None else EXPECTED_PRODUCTS * -(-sketch.probes // probes_at_once(head, sketch))
