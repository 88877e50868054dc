"""A trained network seen at several depths: its last layer, its last few, or all of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from giveaway.checks import check_choice, check_positive, fail
from giveaway.network.network import Network
from giveaway.network.solves import CURVATURES

DEPTH = re.compile(r"head|all|last:[1-9][0-9]*")


@dataclass(frozen=True)
class Solves:
    """Score records by right sides of their own: exact up to the tolerance, r solves a record.

    rows : numbers of the records to score; by default all of them.
    curvature : "ggn" (Gauss–Newton) or "hessian".
    tolerance, most_steps, allow_unconverged : where the solves stop, after how many steps they give up, and whether
        what they have reached by then is used instead of raising an error.
    """

    rows: Any = None
    curvature: str = "ggn"
    tolerance: float = 1e-3
    most_steps: int = 200
    allow_unconverged: bool = False

    def __post_init__(self) -> None:
        check_choice("curvature", self.curvature, CURVATURES)
        check_positive("tolerance", self.tolerance, remedy="1e-3 suits most scores")


class Depths:
    """A model and its training records, to be audited through more than the last layer.

    model, data, loss, dtype : as `giveaway.network.Network` takes them.
    damping : λ > 0, beside the summed loss: n times the weight decay of a mean loss.
    depths : "head" (the last linear layer), "last:k" (the last k layers that own parameters), "all".
    memory : gigabytes that a piece of work may take; by default a quarter of what is free, 1 on a CPU.

    >>> import torch, giveaway as ga
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    >>> x, y = torch.eye(3).repeat(4, 1), torch.arange(12) % 2
    >>> deep = ga.network.Depths(model, (x, y), loss="cross_entropy", depths=["head", "all"], damping=0.5)
    >>> ga.audit(deep, scores=["newton", "leverage"]).columns
    ('newton_head', 'leverage_head', 'newton_all', 'leverage_all')
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        loss: str,
        damping: float,
        depths: str | Sequence[str] = ("all",),
        memory: float | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.damping = check_positive("damping", damping, remedy="n times the weight decay suits a mean loss")
        limit = None if memory is None else int(1e9 * check_positive("memory", memory, remedy="give gigabytes"))
        self.networks: dict[str, Network] = {}
        for depth in checked_depths("depths", depths):
            self.networks[depth] = Network(model, data, loss=loss, parameters=depth, dtype=dtype, memory=limit)
            records = self.first.records  # as they were read; another depth has other parameters alone
            data = (records.arguments or records.keywords, records.targets)

    @property
    def first(self) -> Network:
        """The network of the first depth; the others differ in their parameters alone."""
        return next(iter(self.networks.values()))

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """What the model is called with, by the place or the name of each argument."""
        records = self.first.records
        return {**{str(place): value for place, value in enumerate(records.arguments)}, **records.keywords}


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
