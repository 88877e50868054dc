"""The plan of an audit: every option resolved before any work, so that a mistake costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from giveaway.checks import InputError, check_choice, fail
from giveaway.records import Head
from giveaway.scores.catalogue import CATALOGUE
from giveaway.scores.predicted import exists_for

SENSITIVITY_UP_TO = 2_000


@dataclass(frozen=True)
class Plan:
    """What will be computed for whom."""

    scores: tuple[str, ...]
    unit: str
    converged: bool
    refit: bool
    l2_sensitivity: bool
    beside_view: str = "newton"

    @property
    def of_head(self) -> tuple[str, ...]:
        """The scores that see the head, and the one that fused takes from it."""
        named = [name for name in self.scores if not (self._elsewhere(name) or CATALOGUE[name].predicted)]
        beside = [self.beside_view] if self.of_view or self.of_theory else []
        return tuple(dict.fromkeys([*named, *beside]))

    @property
    def of_theory(self) -> tuple[str, ...]:
        """The scores that theory predicts."""
        return tuple(name for name in self.scores if CATALOGUE[name].predicted)

    @property
    def of_view(self) -> tuple[str, ...]:
        """The scores of what the other records predict."""
        return tuple(name for name in self.scores if CATALOGUE[name].view)

    @property
    def of_lood(self) -> tuple[str, ...]:
        """The scores of a Gaussian process."""
        return tuple(name for name in self.scores if CATALOGUE[name].lood)

    @staticmethod
    def _elsewhere(name: str) -> bool:
        return CATALOGUE[name].view or CATALOGUE[name].lood

    def options(self) -> dict[str, Any]:
        """As JSON."""
        return {name: value for name, value in asdict(self).items() if name != "beside_view"} | {
            "scores": list(self.scores)
        }


def plan(
    head: Head,
    *,
    scores: Sequence[str] | None,
    by: str,
    converged: bool,
    refit: bool,
    l2_sensitivity: bool | None,
    also: Sequence[str] = (),
    view: bool = False,
    lood: bool = False,
    inputs: bool = False,
    dense: bool = True,
) -> Plan:
    """Resolve the options of an audit of `head`, or say what cannot be had.

    `also` names columns besides `scores`, or besides those there are by default. `view` says whether the records
    themselves make a view, `lood` whether a kernel's scores are wanted besides those named, `inputs` whether the
    records themselves are there at all, `dense` whether the curvature is exact, and records can be read again cheaply.
    """
    check_choice("by", by, ("auto", "person", "record"))
    if by == "person" and head.groups is None:
        raise fail("by", "a head with groups", "none", "pass groups= to Head, one person's name a record")
    classes = head.loss != "squared"
    if scores is None:
        shown = {"view": view, "lood": lood, "predicted": False, "features": head.linear, "classes": classes}
        names = tuple(
            n for n, score in CATALOGUE.items() if all(on or not getattr(score, k) for k, on in shown.items())
        )
    else:
        names = (scores,) if isinstance(scores, str) else tuple(scores)
    names = (*names, *also)
    if not names:
        raise fail("scores", "at least one score", "none", "leave scores out for all of them")
    for name in names:
        check_choice("scores", name, CATALOGUE)
        if CATALOGUE[name].classes and not classes:
            raise fail("scores", "scores that exist for squared loss", name, "leave it out: it needs classes")
        if CATALOGUE[name].features and not head.linear:
            raise fail("scores", "scores that exist for a black box", name, "leave it out: it needs a linear head")
        if (CATALOGUE[name].view or CATALOGUE[name].lood) and not inputs:
            raise fail("scores", "inputs beside a score that looks at the records", f"{name} alone", "pass inputs")
    unit = "person" if by == "person" or (by == "auto" and head.groups is not None) else "record"
    for name in names:
        if CATALOGUE[name].predicted and (unit == "person" or not exists_for(head)):
            expected = "records of equal weight with values or one class each"
            got = f"{name} of people" if unit == "person" else f"{name} of other targets, or with sample weights"
            raise fail("scores", expected, got, "leave it out" + (", or audit by='record'" if unit == "person" else ""))
    for option, asked in (("refit", refit), ("converged", not converged)):
        if asked and not head.linear:
            raise fail(option, "a linear head beside it", "a black box", f"leave {option} out")
    if not converged and head.weight is None:
        raise InputError(
            "converged: expected a head with its weights when converged=False, got none; pass weight= and bias= to Head"
        )
    degrees = head.m - 1 if head.loss == "cross_entropy" and head.m > 1 else head.m
    if l2_sensitivity is None:
        l2_sensitivity = dense and head.width * degrees <= SENSITIVITY_UP_TO and "newton" in names
    elif l2_sensitivity and "newton" not in names:
        raise fail("l2_sensitivity", "newton among the scores", ", ".join(names), "add newton: it is what is compared")
    beside = "newton" if head.linear else "loss"
    return Plan(tuple(dict.fromkeys(names)), unit, converged, refit, l2_sensitivity, beside)
