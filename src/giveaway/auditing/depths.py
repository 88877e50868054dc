"""Scores through more of a network than its last layer, as columns of an audit named with their depth."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from giveaway.checks import check_choice, check_number, fail
from giveaway.linalg.kept import NOTHING_KEPT, Kept
from giveaway.network.blocks import SCORES
from giveaway.network.ekfac import ekfac_records
from giveaway.network.gradients import row_numbers
from giveaway.network.in_parts import KeptSolves, right_sides_of_a_record, score_in_parts
from giveaway.network.losses import OutputLoss, PerRecord
from giveaway.network.network import Network
from giveaway.network.scores import NetworkScores
from giveaway.network.sketch import check_probes, sketch_records
from giveaway.network.solves import InverseCurvature

METHODS = ("sketch", "exact", "ekfac")
USUAL = ("influence", "newton", "leverage", "gls_trace")
OF_EKFAC = ("influence", "gls_trace")
DEPTH = re.compile(r"head|all|last:[1-9][0-9]*")
PROBES_AT_ONCE = 16  # a killed run loses no more than their solves
TOLD = {"worst_residual": "residual", "most_steps_taken": "steps"}  # names of the network's report, and ours

OnPart = Callable[[int, int], Any]


@dataclass(frozen=True)
class Depths:
    """`columns` and `attributes` of the records numbered `rows`, such as influence_all and newton_capped_last2;
    `report` says of each depth, by its name, what was done."""

    rows: np.ndarray
    columns: dict[str, np.ndarray]
    attributes: dict[str, np.ndarray]
    report: dict[str, dict[str, Any]]


def audit_depths(
    model: nn.Module,
    data: Any,
    *,
    loss: str | PerRecord | OutputLoss,
    damping: float,
    depths: Sequence[str] = ("all",),
    scores: Sequence[str] | None = None,
    method: str = "sketch",
    rows: Any = None,
    curvature: str = "ggn",
    probes: int = 64,
    tolerance: float = 1e-3,
    most_steps: int = 200,
    allow_unconverged: bool = False,
    seed: int = 0,
    memory: float | None = None,
    dtype: torch.dtype | None = None,
    kept: Kept = NOTHING_KEPT,
    on_part: OnPart = lambda done, total: None,
) -> Depths:
    """Exposure of records through the whole network or its last layers.

    Parameters
    ----------
    data, loss, dtype : as `giveaway.network.Network` takes them.
    damping : λ > 0, beside the summed loss: n times the weight decay of a mean loss.
    depths : "head" (the last linear layer), "last:k" (the last k layers that own parameters), "all".
    scores : by default influence, newton, leverage and gls_trace, where the method has them.
    method : "sketch" scores all records from `probes` solves; "exact" the records numbered `rows` (all, unless given)
        by solves of their own, r a record; "ekfac" all records without a solve, approximately.
    curvature : "ggn"; "hessian" for "exact" alone.
    probes, seed : of a sketch, whose error is about √(2/probes) of a score.
    tolerance, most_steps, allow_unconverged : of the solves: their residual, how long they may take to get there, and
        whether those that do not are used nevertheless.
    memory : gigabytes that a piece of work may take; by default a quarter of what is free, 1 on a CPU.
    kept : where finished work is kept, to go on with after a kill.
    on_part : told how many right sides are solved and how many there are as far as is known (records that a sketch
        is in doubt of add to them); with "ekfac", depths.

    Examples
    --------
    >>> import torch
    >>> from giveaway.auditing.depths import audit_depths
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    >>> x, y = torch.eye(3).repeat(4, 1), torch.arange(12) % 2
    >>> found = audit_depths(model, (x, y), loss="cross_entropy", depths=["head", "all"], damping=0.5)
    >>> list(found.columns)[:4], len(found.rows)
    (['influence_head', 'newton_head', 'leverage_head', 'gls_trace_head'], 12)
    """
    names = _checked_scores(scores, method)
    wanted = _checked_depths(depths)
    options: dict[str, Any] = {
        "damping": _positive("damping", damping, "n times the weight decay suits a mean loss"),
        "curvature": check_choice("curvature", curvature, ("ggn", "hessian")),
        "tolerance": _positive("tolerance", tolerance, "1e-3 suits most scores"),
        "most_steps": most_steps,
        "allow_unconverged": allow_unconverged,
    }
    if method == "sketch":
        check_probes(probes)
    if method != "exact":
        if curvature != "ggn":
            raise fail("curvature", f'"ggn" beside method="{method}"', repr(curvature), 'use method="exact"')
        if rows is not None:
            raise fail("rows", 'method="exact" beside them', f'method="{method}"', "drop rows: all records are scored")
    budget = None if memory is None else int(1e9 * _positive("memory", memory, "give gigabytes"))
    networks: dict[str, Network] = {}
    for depth in wanted:  # all of them before any work, so that a mistake costs nothing
        given = next((_already_read(network) for network in networks.values()), data)
        networks[depth] = Network(model, given, loss=loss, parameters=depth, dtype=dtype, memory=budget)
    first = networks[wanted[0]]
    chosen = row_numbers(first, rows)
    each = {"sketch": probes, "exact": len(chosen) * right_sides_of_a_record(first, names), "ekfac": 1}[method]
    told = _Told(on_part, each, len(wanted))
    found: dict[str, NetworkScores] = {}
    for depth, network in networks.items():
        told.begin()
        place = f"depth-{_short(depth)}"
        one = _load(kept, place, chosen)
        if one is None:
            began, solves = time.perf_counter(), None
            if method == "ekfac":
                one = ekfac_records(network, damping=options["damping"])
            else:
                solves = KeptSolves(InverseCurvature(network, **options), kept, place)
                if method == "exact":
                    one = score_in_parts(solves, chosen, scores=names, on_solved=told)
                else:
                    one = _sketched(solves, names, probes, seed, told)
            one.report.update(method=method, seconds=round(time.perf_counter() - began, 3))
            _save(kept, place, one)
            if solves is not None:
                solves.drop()
        found[depth] = one
        told.end(one.report.get("right_sides", 1))
    of_newton = found if "newton" in names else {}
    return Depths(
        chosen.numpy(),
        {f"{name}_{_short(depth)}": one[name].cpu().numpy() for depth, one in found.items() for name in names},
        {f"newton_capped_{_short(depth)}": one.capped.cpu().numpy() for depth, one in of_newton.items()},
        {depth: {TOLD.get(key, key): value for key, value in one.report.items()} for depth, one in found.items()},
    )


def _sketched(solves: KeptSolves, names: Sequence[str], probes: int, seed: int, told: OnPart) -> NetworkScores:
    return sketch_records(
        solves.inverse,
        probes=probes,
        seed=seed,
        scores=names,
        at_once=PROBES_AT_ONCE,
        solves=solves,
        on_solved=told,
    )


class _Told:
    """Tells of all depths together what each says of itself."""

    def __init__(self, on_part: OnPart, each: int, depths: int) -> None:
        self._on_part, self._each = on_part, each
        self._before, self._later = 0, each * depths

    def begin(self) -> None:
        self._later -= self._each

    def __call__(self, done: int, total: int) -> None:
        self._on_part(self._before + done, self._before + total + self._later)

    def end(self, right_sides: int) -> None:
        self(right_sides, right_sides)
        self._before += right_sides


def _checked_scores(scores: Sequence[str] | None, method: str) -> list[str]:
    check_choice("method", method, METHODS)
    if scores is None:
        return list(OF_EKFAC if method == "ekfac" else USUAL)
    names = [check_choice("scores", name, SCORES) for name in ([scores] if isinstance(scores, str) else scores)]
    if not names:
        raise fail("scores", "at least one score", "none", "leave scores out for the usual ones")
    missing = [name for name in names if method == "ekfac" and name not in OF_EKFAC]
    if missing:
        remedy = 'leave it out, or use method="sketch"'
        raise fail("scores", f'{" or ".join(OF_EKFAC)} beside method="ekfac"', missing[0], remedy)
    return list(dict.fromkeys(names))


def _checked_depths(depths: Sequence[str]) -> list[str]:
    wanted = [depths] if isinstance(depths, str) else list(depths)
    for depth in wanted:
        if not isinstance(depth, str) or not DEPTH.fullmatch(depth):
            raise fail("depths", "head, all or last:k", repr(depth), "say how many layers, as last:2")
    if not wanted:
        raise fail("depths", "at least one depth", "none", "name one, as all")
    return list(dict.fromkeys(wanted))


def _positive(argument: str, value: Any, remedy: str) -> float:
    number = check_number(argument, value, minimum=0.0, remedy=remedy)
    if number == 0:
        raise fail(argument, "a positive number", repr(value), remedy)
    return number


def _already_read(network: Network) -> Any:
    """The records of a network, for another that looks through other parameters."""
    records = network.records
    return records.arguments or records.keywords, records.targets


def _short(depth: str) -> str:
    return depth.replace(":", "")


def _save(kept: Kept, place: str, found: NetworkScores) -> None:
    """A finished depth, which needs its parts no more."""
    report = torch.frombuffer(bytearray(json.dumps(found.report).encode()), dtype=torch.uint8)
    kept.save(place, {**found.columns, "capped": found.capped, "residual": found.residual, "report": report})


def _load(kept: Kept, place: str, rows: torch.Tensor) -> NetworkScores | None:
    columns = kept.load(place)
    if columns is None:
        return None
    capped, residual, report = (columns.pop(name) for name in ("capped", "residual", "report"))
    return NetworkScores(rows, columns, capped, residual, json.loads(bytes(report.tolist())))
