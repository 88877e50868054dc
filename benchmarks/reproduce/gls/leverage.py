"""Generalized leverage of a target's training records at four depths of differentiation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import timed
from benchmarks.networks import ResNet
from benchmarks.reproduce.gls.training import DEPTHS, layers_of
from benchmarks.reproduce.job import Piece
from giveaway.auditing.run import audit
from giveaway.curvature.choice import Dense
from giveaway.linalg.precision import tf32_products
from giveaway.network import GaussNewton, InverseCurvature, Jacobian, Network, score_records, sketch_records
from giveaway.records import Head

SUMMARIES = ("gls_trace", "gls_frobenius", "gls_spectral")
BESIDE = ("loss", "influence", "newton")  # of the head, free beside its GLS
DAMPING = {"last layer": 1e-4, "2 last layers": 1e-3, "4 last layers": 1e-2, "full model": 1e-2}  # of the mean loss
AT_ONCE = 1_000


@dataclass(frozen=True)
class Solving:
    """How much the deeper depths may cost. `probes`, `rank` (of the preconditioner) and `most_steps` by depth."""

    probes: dict[str, int]
    rank: dict[str, int]
    most_steps: dict[str, int]
    tolerance: float = 1e-2
    memory: int = 110_000_000_000
    checked: int = 14  # records with right-hand sides of their own


class RoughJacobian(Jacobian):
    """Passes in TF32, in which an H200 is fast; all else, such as orthogonalization, stays in float32."""

    def curved(self, right: torch.Tensor) -> torch.Tensor:
        with tf32_products(True):
            return super().curved(right)

    def pull(self, columns: int, cotangents: Callable[..., torch.Tensor]) -> torch.Tensor:
        with tf32_products(True):
            return super().pull(columns, cotangents)

    def push(self, right: torch.Tensor) -> Iterator[Any]:
        pieces = super().push(right)
        while True:
            with tf32_products(True):
                found = next(pieces, None)
            if found is None:
                return
            yield found


class Target:
    """A trained network with the records it was trained on. `on_step` is called at every step of the solves."""

    def __init__(
        self,
        model: ResNet,
        x: torch.Tensor,
        y: torch.Tensor,
        solving: Solving,
        on_step: Callable[[int], Any] = lambda step: None,
    ) -> None:
        self.model, self.x, self.y, self.solving, self.on_step = model.eval(), x, y, solving, on_step

    def score(self, depth: str) -> Piece:
        """Return the three summaries of every record at this depth, and what they cost."""
        return self._costed(lambda: self._closed_form() if depth == DEPTHS[0] else self._sketched(depth))

    def check(self, depth: str, rows: Sequence[int]) -> Piece:
        """Return gls_trace of a few records with right-hand sides of their own."""

        def exact() -> Piece:
            found = score_records(self._inverse(depth), list(rows), scores=["gls_trace"])
            return {"gls_trace": found["gls_trace"].cpu().numpy()}, found.report

        return self._costed(exact)

    @torch.no_grad()
    def features(self) -> torch.Tensor:
        """Return the input of the last linear layer for each record."""
        return torch.cat([self.model.top.features(self.model.lower(part)) for part in self.x.split(AT_ONCE)])

    def fused(self) -> Piece:
        """Return the library's own score, from the head and the images."""
        images = self.x.cpu().numpy()

        def both() -> Piece:
            table = audit(replace(self._head().to(self.x.device), inputs=images), scores=["fused"])
            return {"fused": np.asarray(table["fused"])}, {"view": table.meta.view.to_json()}

        return self._costed(both)

    def _head(self) -> Head:
        head, features = self.model.top.head, self.features()
        with torch.no_grad():
            outputs = head(features)
        l2 = DAMPING[DEPTHS[0]] * len(self.y)
        weight, bias = head.weight.detach(), head.bias.detach()
        return Head(features, outputs, self.y, "cross_entropy", l2=l2, weight=weight, bias=bias)

    def _closed_form(self) -> Piece:
        head = self._head()
        names = [*SUMMARIES, *BESIDE]
        table = audit(head.to(self.x.device), scores=names, curvature=Dense())
        parameters = sum(value.numel() for value in self.model.top.head.parameters())
        return {name: np.asarray(table[name]) for name in names}, {"parameters": parameters, "damping": head.l2}

    def _sketched(self, depth: str) -> Piece:
        inverse = self._inverse(depth)
        found = sketch_records(inverse, probes=self.solving.probes[depth], scores=SUMMARIES, most_redone=0)
        return {name: found[name].cpu().numpy() for name in SUMMARIES}, found.report

    def _inverse(self, depth: str) -> InverseCurvature:
        solving, damping = self.solving, DAMPING[depth] * len(self.y)
        if depth == DEPTHS[-1]:
            network = Network(self.model, (self.x, self.y), loss="cross_entropy", memory=solving.memory)
        else:
            top, names = self.model.top, layers_of(self.model.top, depth)
            with torch.no_grad():
                below = torch.cat([self.model.lower(part) for part in self.x.split(AT_ONCE)])
            network = Network(top, (below, self.y), loss="cross_entropy", parameters=names, memory=solving.memory)
        return InverseCurvature(
            network,
            damping=damping,
            curvature=GaussNewton(network, damping, RoughJacobian(network)),
            rank=min(solving.rank[depth], network.size // 2),
            tolerance=solving.tolerance,
            most_steps=solving.most_steps[depth],
            allow_unconverged=True,
            on_step=self.on_step,
        )

    def _costed(self, work: Callable[[], Piece]) -> Piece:
        """Add wall seconds and, on a GPU, the peak memory to the report of `work`."""
        device = self.x.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        (columns, report), seconds = timed(work, device)
        if device.type == "cuda":
            report["peak_gb"] = round(torch.cuda.max_memory_allocated(device) / 1e9, 2)
        return columns, {**report, "seconds": round(seconds, 3)}
