"""The plan of an audit: every option resolved before any work, so that a mistake costs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from giveaway.checks import check_choice, fail
from giveaway.curvature.choice import Auto, Choice, Sketch, check_probes, choose
from giveaway.gp.distinguishability import KernelGiven, Process
from giveaway.linalg.precision import precision_named
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head, LossTrace
from giveaway.scores.catalogue import CATALOGUE, VIEWS
from giveaway.scores.predicted import exists_for
from giveaway.views.model import ProcessView
from giveaway.views.others import OthersView, view_of
from giveaway.views.trace import check_trace

DEFAULT = "default"
NEEDED = {"trace": "a trace", "relatives": "relatives", "bag": "out-of-bag predictions"}  # by the sources of scores


@dataclass(frozen=True)
class Plan:
    """What will be computed for whom. `choice` is None for a black box; `no_view` says why there is no view."""

    scores: tuple[str, ...]
    unit: str
    optimum: str = "assumed"
    beside_view: str = "newton"
    choice: Choice | None = None
    view: OthersView | None = None
    trace: LossTrace | None = None
    no_view: str | None = None
    process: ProcessView | None = None

    @property
    def of_head(self) -> tuple[str, ...]:
        """The scores that see the head, and the one that fused takes from it."""
        beside = [self.beside_view] if self.of_view or self.of_theory else []
        return tuple(dict.fromkeys([*self._from("head"), *beside]))

    @property
    def of_theory(self) -> tuple[str, ...]:
        return self._from("theory")

    @property
    def of_view(self) -> tuple[str, ...]:
        return self._from(*VIEWS, "fused")

    @property
    def of_lood(self) -> tuple[str, ...]:
        return self._from("process")

    @property
    def curved(self) -> bool:
        return any(CATALOGUE[name].curvature for name in (*self.of_head, *self.of_theory))

    def _from(self, *sources: str) -> tuple[str, ...]:
        return tuple(name for name in self.scores if CATALOGUE[name].source in sources)


def named_scores(scores: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names that the option holds, each once and known, "default" among them."""
    names = (scores,) if isinstance(scores, str) else tuple(scores)
    if not names:
        raise fail("scores", "at least one score", "none", "leave scores out for the default ones")
    for name in names:
        check_choice("scores", name, (DEFAULT, *CATALOGUE))
    return tuple(dict.fromkeys(names))


def plan(
    head: Head,
    scores: str | Sequence[str] = DEFAULT,
    *,
    optimum: str = "assumed",
    curvature: Any = Auto(),  # noqa: B008 (frozen)
    trace: LossTrace | None = None,
    kernel: Process | KernelGiven | None = None,
    processes: Processes = ALONE,
) -> Plan:
    """Resolve the options of `ga.audit`, or say what is not possible."""
    named = named_scores(scores)
    if trace is not None:
        check_trace(trace, head)
    if head.inputs is None and kernel is not None:
        raise fail("inputs", "inputs beside kernel", "none", "pass the records themselves to Head, or drop the kernel")
    sources = {CATALOGUE[name].source for name in named if name != DEFAULT}
    given = dict(zip(NEEDED, (trace, head.relatives, head.out_of_bag), strict=True))
    there = {source: value is not None for source, value in given.items()}
    required = "others" in sources or ("fused" in sources and not any(there.values()))
    viewed = DEFAULT in named or "fused" in sources or required or ("theory" in sources and head.inputs is not None)
    view, no_view = view_of(head, required=required, processes=processes) if viewed else (None, None)
    if no_view is not None and any(there.values()):
        no_view = no_view.replace("No fused score", "No left_out score")
    there["others"] = view is not None
    choice = choose(head, curvature, processes) if head.linear else None
    check_choice("optimum", optimum, ("assumed", "corrected", "refit"))
    available = {"head": True, "process": kernel is not None, "theory": False, "fused": any(there.values()), **there}
    default = [
        name
        for name, score in CATALOGUE.items()
        if (available[score.source] and score.ranks)
        and (head.loss != "squared" or not score.classes)
        and (head.linear or not score.features)
    ]
    names = tuple(dict.fromkeys(n for name in named for n in (default if name == DEFAULT else (name,))))
    for name in names:
        _check_score(name, head, given)
    if optimum != "assumed" and not head.linear:
        raise fail("optimum", '"assumed" for a black box', repr(optimum), "leave optimum out")
    if optimum == "corrected" and head.weight is None:
        raise fail("optimum", 'a head with its weights for "corrected"', "none", "pass weight= and bias= to Head")
    process = None
    if kernel is not None or any(CATALOGUE[name].source == "process" for name in names):
        process = ProcessView(head, kernel if isinstance(kernel, Process) else Process(kernel))
    resolved = Plan(
        scores=names,
        unit="record" if head.groups is None else "person",
        optimum=optimum,
        beside_view="newton" if head.linear else "loss",
        choice=choice,
        view=view,
        trace=trace,
        no_view=no_view,
        process=process,
    )
    wanted = curvature.sketch if isinstance(curvature, Auto) else curvature
    if choice is not None and choice.sketch is not None and resolved.curved:
        precision_named(choice.sketch.precision, head.device)  # refuses one that the device has not
        check_probes(choice.sketch)
    elif isinstance(wanted, Sketch) and wanted.errors:
        raise fail("errors", "a sketched curvature", "none: these scores are exact", "leave errors out")
    return resolved


def _check_score(name: str, head: Head, given: dict[str, Any]) -> None:
    score = CATALOGUE[name]
    if given.get(score.source, head) is None:
        remedy = "pass trace= to audit" if score.source == "trace" else "give them to the head, or leave it out"
        raise fail("scores", f"{NEEDED[score.source]} beside a score that needs it", f"{name} alone", remedy)
    if score.classes and head.loss == "squared":
        raise fail("scores", "scores that exist for squared loss", name, "leave it out: it needs classes")
    if score.features and not head.linear:
        raise fail("scores", "scores that exist for a black box", name, "leave it out: it needs a linear head")
    alone = head.inputs is None and (score.source != "fused" or all(value is None for value in given.values()))
    if score.source in ("others", "process", "fused") and alone:
        expected = "inputs beside a score that looks at the records"
        raise fail("scores", expected, f"{name} alone", "pass inputs to the head")
    if score.source == "theory" and (head.groups is not None or not exists_for(head)):
        got, remedy = f"{name} of other targets, or with sample weights", "leave it out"
        if head.groups is not None:
            got, remedy = f"{name} of people", "leave it out, or audit the records, by a head without groups"
        raise fail("scores", "records of equal weight with values or one class each", got, remedy)
