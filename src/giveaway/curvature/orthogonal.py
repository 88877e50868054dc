"""Exact curvature of a penalized head by orthogonal factors of its records, which keep the digits of 1 − h where
leverages lie near 1: few records, or features that nearly repeat others (docs/derivations.md)."""

from collections.abc import Callable
from typing import Any

import torch

from giveaway.curvature.blocks import Blocks, MatrixBlocks
from giveaway.curvature.dense import MOST_ROWS, DenseCurvature
from giveaway.curvature.losses import loss_of
from giveaway.linalg.dense import EPS
from giveaway.linalg.processes import HERE, Execution
from giveaway.records import Head
from giveaway.records.head import Window

MOST_OPERATIONS = 1e11  # of factors that are worth the digits where records are more than features


def is_wide(head: Head) -> bool:
    """Whether there is a penalty, and at least as many features as records."""
    return head.l2 > 0 and head.features.shape[1] >= head.n


def orthogonal_bytes(head: Head) -> int:
    """What the features and the factors take."""
    coupled = head.m if loss_of(head).coupled else 1
    return 8 * (3 * head.n * head.width + (8 + 3 * head.m // coupled) * (head.n * coupled) ** 2)


def keeps_digits(head: Head, curvature: DenseCurvature, available: int) -> bool:
    """Whether `curvature` may have lost digits to rounding that orthogonal factors would keep, within `available`
    bytes and MOST_OPERATIONS."""
    coupled = head.m if loss_of(head).coupled else 1
    affordable = orthogonal_bytes(head) <= available and coupled**3 * head.n**2 * head.width <= MOST_OPERATIONS
    return head.l2 > 0 and curvature.loses_digits and affordable


class OrthogonalCurvature(DenseCurvature):
    """As `DenseCurvature`, of a head with a penalty."""

    loses_digits = False

    def __init__(self, head: Head, execution: Execution = HERE) -> None:
        got = f"{head.n} records of {head.width} features"
        self._begin(head, orthogonal_bytes(head), got, "take curvature=Sketch(), or a machine with more memory")
        x = torch.zeros(head.n, head.width, dtype=torch.float64, device=head.device)
        outputs, weight = x.new_zeros(head.n, 1, head.m), x.new_zeros(head.n, 1, 1)
        for part in execution.processes.share(list(head.slices(MOST_ROWS))):
            window = head.window(part)
            x[part], outputs[part, 0], weight[part, 0, 0] = window.rows(), window.outputs.to(x), window.weights
            execution.on_rows(len(window))
        for tensor in (x, outputs, weight):
            execution.processes.sum_(tensor)
        self._dead = int((x == 0).all(0).sum())
        penalized = head.width - int(head.intercept and not head.penalize_intercept)  # the columns in front
        self._basis: torch.Tensor | None = None
        if penalized >= head.n:  # features enter by their coordinates in the span of the records
            self._basis, coordinates = torch.linalg.qr(x[:, :penalized].T)
            x, penalized = torch.cat([coordinates.T, x[:, penalized:]], 1), head.n
        self.x, self.penalized = x, (torch.arange(x.shape[1], device=x.device) < penalized).to(x)
        # the outputs that the loss sees of a matrix (c, r), and Sᵀ of them for every matrix (n, c, r)
        self._seen, curvature = x.new_ones(1, 1), self.loss.curvature(outputs)
        if self.loss.coupled:
            self._seen = self.loss.basis().to(x)
            contrast = curvature.contrast(self._seen.T.expand(head.n, -1, -1), -1)
            self._roots = [curvature.root_transposed(contrast, -1).mT * weight.sqrt()]
        else:
            self._roots = list((weight * curvature.weights).sqrt().split(1, 2))[: 1 if self.loss.shared else None]
        self._factor(head.l2)

    def _factor(self, l2: float) -> None:
        self.l2, size = l2, self.x.shape[1] * self._seen.shape[1]
        each = torch.einsum("nd,cr->ncdr", self.x, self._seen).reshape(-1, size)
        penalty = torch.diag((l2 * self.penalized).sqrt().repeat_interleave(self._seen.shape[1]))
        self.factors, self.y, self.u, self.norm, self.condition, self._idle = [], [], [], 0.0, 0.0, 0
        for root in self._roots:
            a = torch.einsum("nd,ncr->ncdr", self.x, root).reshape(-1, size)
            stack = torch.cat([a, penalty])
            reflectors, scales = torch.geqrf(stack)
            beside = torch.diag(a.new_ones(len(reflectors)))[:, size:]
            self.u.append(torch.ormqr(reflectors, scales, beside)[: len(a)].reshape(len(self.x), -1, len(a)))
            self.factors.append(factor := reflectors[:size].triu())
            # a bias without any curvature, and what a penalty below rounding cannot tell from the rest
            idle = factor.diagonal().abs() <= size * EPS * stack.norm(dim=0)
            factor[idle], factor[:, idle] = 0.0, 0.0
            factor.diagonal()[idle] = 1.0
            self._idle += int(idle.sum()) * (self.loss.m if self.loss.shared else 1)
            inverse = torch.linalg.solve_triangular(factor, torch.diag((~idle).to(a)), upper=True)
            self.norm = max(self.norm, float(inverse.norm()))
            condition = float(inverse.norm() * factor.norm())
            self.condition = max(self.condition, torch.inf if bool(idle.any()) else condition)
            self.y.append((each @ inverse).view(len(self.x), -1, size))

    @property
    def report(self) -> dict[str, Any]:
        told = {"curvature": "dense", "parameters": self.size, "rank": self.size - self._idle, "inverse": "orthogonal"}
        return told | {"dead_features": self._dead, "l2": self.l2}

    def group_bytes(self, s: int) -> int:
        return 8 * s * len(self._seen) * max(s * self.loss.m, 2 * self.u[0].shape[2])

    def window_blocks(self, window: Window, size: int = 1) -> Callable[[slice, slice | None], Blocks]:
        def blocks(groups: slice, probes: slice | None = None) -> Blocks:
            n, rows = groups.stop - groups.start, window.part(slice(groups.start * size, groups.stop * size))

            def gram(factors: list[torch.Tensor]) -> torch.Tensor:
                """F Fᵀ of every group (Q, R, R)."""
                own = torch.stack([one[rows.numbers].reshape(n, size * len(self._seen), -1) for one in factors])
                return (own @ own.mT).expand(self.loss.m // len(self._seen), -1, -1, -1).flatten(0, 1)

            block = gram(self.y).permute(1, 2, 0).reshape(size, len(self._seen), size, len(self._seen), -1)
            curvature = self.loss.curvature(rows.outputs.to(torch.float64).view(n, size, -1))
            error = (EPS * self.norm) ** 2 * self.x[rows.numbers].square().sum(1).view(n, size).sum(1)
            both, weight = (error, EPS * self.condition), rows.weights.view(n, size)
            return MatrixBlocks(block, curvature, weight, self.loss, complement=gram(self.u), error=both)

        return blocks

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        d, k = (0, 0) if self._basis is None else self._basis.shape
        inside = v if self._basis is None else torch.cat([self._basis.T @ v[:d], v[d:]])
        columns = inside @ self._seen if self.loss.coupled else inside
        parts = [columns.reshape(-1, 1)] if self.loss.coupled else columns.chunk(len(self.factors), 1)
        solved = [torch.cholesky_solve(part, r, upper=True) for part, r in zip(parts, self.factors, strict=True)]
        within = solved[0].view(columns.shape) @ self._seen.T if self.loss.coupled else torch.cat(solved, 1)
        if self._basis is None:
            return within
        outside = (v[:d] - self._basis @ inside[:k]) / self.l2
        return torch.cat([self._basis @ within[:k] + outside, within[k:]])
