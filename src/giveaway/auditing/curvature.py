"""Which curvature an audit takes, and its making."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from giveaway.auditing.progress import OnRows
from giveaway.checks import check_choice, check_number, fail
from giveaway.curvature.dense import DenseCurvature, dense_bytes
from giveaway.curvature.sketched import PROBES, TOLERANCE, SketchedCurvature, probes_at_once
from giveaway.linalg.kept import Kept, kept_by
from giveaway.linalg.memory import free_memory
from giveaway.linalg.precision import precision_named
from giveaway.linalg.team import Team
from giveaway.records import Head
from giveaway.records.window import Window

CURVATURES = ("auto", "dense", "sketch")
LEAST_PROBES = 32
EXPECTED_PRODUCTS = 16  # of one block of probes, for the progress alone


@dataclass(frozen=True)
class CurvatureOptions:
    """How H⁻¹ is had; see `giveaway.audit`."""

    curvature: str = "auto"
    probes: int = PROBES
    tolerance: float = TOLERANCE
    precision: str = "auto"
    memory: float | None = None
    allow_unconverged: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("curvature", self.curvature, CURVATURES)
        if isinstance(self.probes, bool) or not isinstance(self.probes, int) or self.probes < LEAST_PROBES:
            expected = f"a whole number of at least {LEAST_PROBES}"
            raise fail("probes", expected, repr(self.probes), "256 suits most heads")
        check_number("tolerance", self.tolerance, minimum=0.0, remedy="1e-3 suits most heads")
        if not 0 < self.tolerance < 1:
            raise fail("tolerance", "a number between 0 and 1", f"{self.tolerance:g}", "1e-3 suits most heads")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise fail("seed", "a whole number from 0 to 2**63 - 1", repr(self.seed), "leave it out for 0")
        if self.memory is not None:
            check_number("memory", self.memory, minimum=0.0, remedy="give it in gigabytes")

    def budget(self, head: Head) -> int:
        """Bytes that the curvature may take: as given, or half of what is free."""
        return free_memory(head.device) // 2 if self.memory is None else int(self.memory * 1e9)

    def agreed(self, head: Head, team: Team) -> CurvatureOptions:
        """With the memory that every process of `team` has."""
        return self if team.size == 1 else replace(self, memory=team.smallest(self.budget(head)) / 1e9)


@dataclass(frozen=True)
class Choice:
    """dense or sketch, and why."""

    kind: str
    because: str


def choose(head: Head, options: CurvatureOptions) -> Choice:
    """Dense where its matrices fit the budget, unless the user says otherwise."""
    if options.curvature != "auto":
        return Choice(options.curvature, "asked for")
    needed, budget = dense_bytes(head), options.budget(head)
    kind = "dense" if needed <= budget else "sketch"
    verb = "fits" if kind == "dense" else "does not fit"
    return Choice(kind, f"dense takes {needed / 1e9:.3g} GB, which {verb} the budget of {budget / 1e9:.3g} GB")


def check_sketch(head: Head, options: CurvatureOptions) -> None:
    """Whether a sketch of `head` can be had: it reads the records many times."""
    precision_named(options.precision, head.device)
    if not head.looked_up:
        raise fail(
            "curvature",
            "features that can be read many times for a sketch",
            "a stream that runs the model in every pass",
            "pass cache= to from_torch, or take curvature='dense'",
        )


def make(
    head: Head,
    options: CurvatureOptions,
    choice: Choice,
    *,
    team: Team,
    kept: Kept,
    on_rows: OnRows,
    on_window: Callable[[Window], Any],
) -> DenseCurvature | SketchedCurvature:
    """The curvature chosen; `on_window` is given every window of a dense one's sums."""

    def each(window: Window) -> None:
        on_window(window)
        on_rows(len(window))

    if choice.kind == "dense":
        return DenseCurvature(head, team=team, kept=kept, on_window=each)
    return SketchedCurvature(
        head,
        probes=options.probes,
        tolerance=options.tolerance,
        precision=options.precision,
        memory=options.budget(head),
        allow_unconverged=options.allow_unconverged,
        seed=options.seed,
        team=team,
        kept=kept_by(kept, team),
        on_rows=on_rows,
    )


def passes_of(head: Head, options: CurvatureOptions, choice: Choice) -> int:
    """About how often the records are read to make it."""
    if choice.kind == "dense":
        return 1
    precision = precision_named(options.precision, head.device)
    at_once = probes_at_once(head, options.probes, options.budget(head), precision)
    return EXPECTED_PRODUCTS * -(-options.probes // at_once)
