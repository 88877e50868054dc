"""The plan of an audit: every option resolved before any work, so that a mistake costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from giveaway.checks import InputError, check_choice, fail
from giveaway.curvature.choice import Choice
from giveaway.records import Head
from giveaway.scores.catalogue import CATALOGUE
from giveaway.scores.predicted import exists_for

SENSITIVITY_UP_TO = 2_000
DEFAULT = "default"
OPTIMA = ("assumed", "corrected", "refit")


@dataclass(frozen=True)
class Plan:
    """What will be computed for whom."""

    scores: tuple[str, ...]
    unit: str
    optimum: str = "assumed"
    l2_sensitivity: bool = False
    beside_view: str = "newton"

    @property
    def of_head(self) -> tuple[str, ...]:
        """The scores that see the head, and the one that fused takes from it."""
        named = [name for name in self.scores if CATALOGUE[name].source == "head"]
        beside = [self.beside_view] if self.of_view or self.of_theory else []
        return tuple(dict.fromkeys([*named, *beside]))

    @property
    def of_theory(self) -> tuple[str, ...]:
        """The scores that theory predicts."""
        return self._from("theory")

    @property
    def of_view(self) -> tuple[str, ...]:
        """The scores of what the other records predict."""
        return self._from("others")

    @property
    def of_lood(self) -> tuple[str, ...]:
        """The scores of a Gaussian process."""
        return self._from("process")

    @property
    def curved(self) -> bool:
        """Whether a score needs the head's curvature."""
        return any(CATALOGUE[name].curvature for name in (*self.of_head, *self.of_theory))

    def _from(self, source: str) -> tuple[str, ...]:
        return tuple(name for name in self.scores if CATALOGUE[name].source == source)

    def options(self) -> dict[str, Any]:
        """The plan for the metadata."""
        return {
            "scores": list(self.scores),
            "unit": self.unit,
            "converged": self.optimum != "corrected",
            "refit": self.optimum == "refit",
            "l2_sensitivity": self.l2_sensitivity,
        }


def named_scores(scores: str | Sequence[str]) -> tuple[str, ...]:
    """The names that the option holds, each once and known, "default" among them."""
    names = (scores,) if isinstance(scores, str) else tuple(scores)
    if not names:
        raise fail("scores", "at least one score", "none", "leave scores out for the default ones")
    for name in names:
        check_choice("scores", name, (DEFAULT, *CATALOGUE))
    return tuple(dict.fromkeys(names))


def plan(
    head: Head, scores: tuple[str, ...], *, optimum: str, choice: Choice | None, view: bool, process: bool, inputs: bool
) -> Plan:
    """Resolve the options of an audit of `head`, or say what is not possible.

    `view` says whether the other records can predict each one, `process` whether a Gaussian process was given, `inputs`
    whether the records themselves are there at all. `choice` is None for a black box.
    """
    check_choice("optimum", optimum, OPTIMA)
    classes = head.loss != "squared"
    available = {"head": True, "others": view, "process": process, "theory": False}
    default = tuple(
        name
        for name, score in CATALOGUE.items()
        if (available[score.source] and score.ranks)
        and (classes or not score.classes)
        and (head.linear or not score.features)
    )
    names = tuple(dict.fromkeys(n for name in scores for n in (default if name == DEFAULT else (name,))))
    unit = "record" if head.groups is None else "person"
    for name in names:
        _check_score(name, head, unit, classes=classes, inputs=inputs)
    for value in ("refit", "corrected"):
        if optimum == value and not head.linear:
            raise fail("optimum", '"assumed" for a black box', repr(value), "leave optimum out")
    if optimum == "corrected" and head.weight is None:
        raise InputError(
            'optimum: expected a head with its weights for "corrected", got none; pass weight= and bias= to Head'
        )
    beside = "newton" if head.linear else "loss"
    return Plan(names, unit, optimum, _compares_l2(head, names, choice), beside)


def _check_score(name: str, head: Head, unit: str, *, classes: bool, inputs: bool) -> None:
    score = CATALOGUE[name]
    if score.classes and not classes:
        raise fail("scores", "scores that exist for squared loss", name, "leave it out: it needs classes")
    if score.features and not head.linear:
        raise fail("scores", "scores that exist for a black box", name, "leave it out: it needs a linear head")
    if score.source in ("others", "process") and not inputs:
        raise fail(
            "scores", "inputs beside a score that looks at the records", f"{name} alone", "pass inputs to the head"
        )
    if score.source == "theory" and (unit == "person" or not exists_for(head)):
        expected = "records of equal weight with values or one class each"
        got = f"{name} of people" if unit == "person" else f"{name} of other targets, or with sample weights"
        remedy = ", or audit the records, by a head without groups" if unit == "person" else ""
        raise fail("scores", expected, got, f"leave it out{remedy}")


def _compares_l2(head: Head, names: tuple[str, ...], choice: Choice | None) -> bool:
    """Whether the ranking at other penalties is computed too."""
    wanted = None if choice is None else choice.curvature.l2_sensitivity
    if wanted and "newton" not in names:
        raise fail("l2_sensitivity", "newton among the scores", ", ".join(names), "add newton: it is what is compared")
    if wanted is not None:
        return wanted
    degrees = head.m - 1 if head.loss == "cross_entropy" and head.m > 1 else head.m
    exact = choice is not None and choice.sketch is None and head.looked_up
    return exact and head.width * degrees <= SENSITIVITY_UP_TO and "newton" in names
