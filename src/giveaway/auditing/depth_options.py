"""How scores through a network are computed, checked before anything is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from giveaway.checks import check_choice, check_number, fail
from giveaway.network.scores import USUAL, check_probes, score_names

METHODS = ("sketch", "exact", "ekfac")
CURVATURES = ("ggn", "hessian")
OF_EKFAC = ("influence", "gls_trace")
DEPTH = re.compile(r"head|all|last:[1-9][0-9]*")
POSITIVE = {
    "damping": "n times the weight decay suits a mean loss",
    "tolerance": "1e-3 suits most scores",
    "memory": "give gigabytes",
}


@dataclass(frozen=True)
class DepthOptions:
    """The options of `giveaway.auditing.depths.audit_depths`."""

    damping: float
    depths: Sequence[str] = ("all",)
    scores: Sequence[str] | None = None
    method: str = "sketch"
    curvature: str = "ggn"
    probes: int = 64
    tolerance: float = 1e-3
    most_steps: int = 200
    allow_unconverged: bool = False
    seed: int = 0
    memory: float | None = None

    def __post_init__(self) -> None:
        check_choice("method", self.method, METHODS)
        object.__setattr__(self, "scores", _checked_scores(self.scores, self.method))
        object.__setattr__(self, "depths", checked_depths("depths", self.depths))
        check_choice("curvature", self.curvature, CURVATURES)
        for name, remedy in POSITIVE.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _positive(name, value, remedy))
        if self.method == "sketch":
            check_probes(self.probes)
        if self.method != "exact" and self.curvature != "ggn":
            expected = f'"ggn" beside method="{self.method}"'
            raise fail("curvature", expected, repr(self.curvature), 'use method="exact"')

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the scores, without their depth."""
        assert self.scores is not None
        return tuple(self.scores)

    @property
    def bytes(self) -> int | None:
        """That a piece of work may take."""
        return None if self.memory is None else int(1e9 * self.memory)

    @property
    def of_solves(self) -> dict[str, Any]:
        """Those of InverseCurvature."""
        names = ("damping", "curvature", "tolerance", "most_steps", "allow_unconverged")
        return {name: getattr(self, name) for name in names}


def checked_depths(argument: str, depths: str | Sequence[str]) -> tuple[str, ...]:
    """Names of depths, each once."""
    wanted = (depths,) if isinstance(depths, str) else tuple(depths)
    for depth in wanted:
        if not isinstance(depth, str) or not DEPTH.fullmatch(depth):
            raise fail(argument, "head, all or last:k", repr(depth), "say how many layers, as last:2")
    if not wanted:
        raise fail(argument, "at least one depth", "none", "name one, as all")
    return tuple(dict.fromkeys(wanted))


def suffix(depth: str) -> str:
    """How the columns of a depth end."""
    return f"_{depth.replace(':', '')}"


def _checked_scores(scores: Sequence[str] | None, method: str) -> tuple[str, ...]:
    if scores is None:
        return OF_EKFAC if method == "ekfac" else USUAL
    names = score_names(scores)
    if not names:
        raise fail("scores", "at least one score", "none", "leave scores out for the usual ones")
    missing = [name for name in names if method == "ekfac" and name not in OF_EKFAC]
    if missing:
        remedy = 'leave it out, or use method="sketch"'
        raise fail("scores", f'{" or ".join(OF_EKFAC)} beside method="ekfac"', missing[0], remedy)
    return names


def _positive(argument: str, value: Any, remedy: str) -> float:
    number = check_number(argument, value, minimum=0.0, remedy=remedy)
    if number == 0:
        raise fail(argument, "a positive number", repr(value), remedy)
    return number
