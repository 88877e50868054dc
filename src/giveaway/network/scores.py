"""Scores through a network: chosen records by right sides of their own, or all from a sketch (docs/derivations.md)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from giveaway.checks import check_choice, fail
from giveaway.curvature.blocks import Blocks, FactoredBlocks, MatrixBlocks
from giveaway.curvature.losses import Loss, OutputCurvature
from giveaway.curvature.sketch import REDO_ABOVE, CheckpointedParts, Tensors, records_to_redo, solve_probes
from giveaway.linalg.precision import signs
from giveaway.network.jacobian import Piece, RecordDerivatives, row_numbers
from giveaway.network.network import Network
from giveaway.network.solves import InverseCurvature, parameter_signs
from giveaway.scores.catalogue import CATALOGUE, OF_BATCH, relative_error, scores_of, standard_errors
from giveaway.scores.formulas import ScoreBatch
from giveaway.storage.folder import NO_CHECKPOINT, Checkpoint

AT_ONCE = 64  # right sides of chosen records that a checkpoint holds together
COUNTS, CAPPED, LEVERAGE = "counts", "capped", "top leverage"
USUAL = ("influence", "newton", "leverage", "gls_trace")

MakeBlocks = Callable[[OutputCurvature, torch.Tensor], Blocks]


@dataclass(frozen=True)
class NetworkScores:
    """Columns of scores of the records `rows`, which were `capped`, and a report."""

    rows: torch.Tensor
    columns: dict[str, torch.Tensor]
    capped: torch.Tensor
    report: dict[str, Any]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.columns[name]


class CheckpointedSolves:
    """Parts of the work of `inverse`, saved with what they cost as they finish, under names that begin with `name`.
    `on_solved` is told the right sides done, and how many are `expected` so far."""

    def __init__(
        self,
        inverse: InverseCurvature,
        checkpoint: Checkpoint = NO_CHECKPOINT,
        name: str = "solves",
        on_solved: Callable[[int, int], Any] = lambda done, expected: None,
    ) -> None:
        self.inverse, self._parts, self._prefix = inverse, CheckpointedParts(checkpoint), name
        self._names: list[str] = []
        self._on_solved, self.expected = on_solved, 0

    def part(self, name: str, compute: Callable[[], Tensors]) -> Tensors:
        """Compute a part, or load what an earlier run saved of it with what everything had cost by then."""
        self._names.append(f"{self._prefix}-{name}")
        inverse, jacobian = self.inverse, self.inverse.jacobian

        def counted() -> Tensors:
            tensors, whole = compute(), (inverse.right_sides, inverse.unsolved, inverse.steps)
            counts = inverse.worst, *whole, jacobian.passes, jacobian.column_passes
            return {**tensors, COUNTS: torch.tensor(counts, dtype=torch.float64)}

        tensors = dict(self._parts.part(self._names[-1], counted))
        inverse.worst, *whole = tensors.pop(COUNTS).tolist()
        inverse.right_sides, inverse.unsolved, inverse.steps, jacobian.passes, jacobian.column_passes = map(int, whole)
        self._on_solved(inverse.right_sides, max(self.expected, inverse.right_sides))
        return tensors

    def drop(self) -> None:
        for name in self._names:
            self._parts.checkpoint.drop(name)


def score_names(scores: str | Sequence[str] | None, loss: Loss) -> tuple[str, ...]:
    """The names of scores that a network has, each once; by default all that exist for the loss."""
    exist = [name for name in OF_BATCH if loss.classes or not CATALOGUE[name].classes]
    if scores is None:
        return tuple(exist)
    names = [check_choice("scores", name, OF_BATCH) for name in ([scores] if isinstance(scores, str) else scores)]
    for name in names:
        if name not in exist:
            raise fail("scores", "scores that exist for this loss", name, "leave it out: it needs classes")
    return tuple(dict.fromkeys(names))


def right_sides_of_a_record(network: Network, scores: Sequence[str]) -> int:
    """How many right sides a record needs: r, one where only influence looks at the curvature, or none."""
    curved = [name for name in scores if CATALOGUE[name].curvature]
    return network.loss.degrees if curved not in ([], ["influence"]) else len(curved)


def score_records(
    inverse: InverseCurvature,
    rows: Any = None,
    *,
    scores: str | Sequence[str] | None = None,
    at_once: int | None = None,
    solves: CheckpointedSolves | None = None,
) -> NetworkScores:
    """Score chosen records, exactly up to the solves' tolerance: r right sides a record (r = m − 1 for softmax).

    By default every score that exists for the loss. Where `influence` alone looks at the curvature, a record has one
    right side, its gradient. `at_once` right sides are solved together (by default as many as fit); `solves` keeps what
    is finished, for a run that goes on after a kill.

    >>> import torch
    >>> from giveaway.network import InverseCurvature, Network
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    >>> x, y = torch.eye(3).repeat(4, 1), torch.arange(12) % 2
    >>> network = Network(model, (x, y), loss="cross_entropy", parameters="all")
    >>> found = score_records(InverseCurvature(network, damping=0.1), rows=[0, 5])
    >>> bool((found["newton"] > found["influence"]).all())
    True
    """
    network = inverse.network
    names, numbers = score_names(scores, network.loss), row_numbers(network, rows)
    solves, derivatives = solves or CheckpointedSolves(inverse), RecordDerivatives(network)
    width = right_sides_of_a_record(network, names)
    solves.expected += width * len(numbers)
    parts: list[Tensors] = []
    step = max(1, min(at_once or inverse.columns, inverse.columns) // max(1, width))
    for start in range(0, len(numbers), step):
        compute = partial(_scored_exactly, inverse, derivatives, numbers[start : start + step], names)
        scored = solves.part(f"rows-{start}", compute)
        parts.append({name: value.to(network.device) for name, value in scored.items()})
    joined = _joined(parts)
    report = {**inverse.report, "notes": list(dict.fromkeys([*inverse.report["notes"], *derivatives.notes]))}
    return NetworkScores(numbers, joined, joined.pop(CAPPED), report)


def _scored_exactly(
    inverse: InverseCurvature, derivatives: RecordDerivatives, numbers: torch.Tensor, names: Sequence[str]
) -> Tensors:
    """Return the scores of these records by right sides of their own, and which were capped."""
    network = inverse.network

    def blocks(curvature: OutputCurvature, weight: torch.Tensor) -> Blocks:
        block = _own_blocks(inverse, derivatives, numbers).permute(1, 2, 0)[None, :, None]  # (1, m, 1, m, k)
        return MatrixBlocks(block, curvature, weight, network.loss, whole=True)

    f, y = network.outputs(numbers), network.records.take(numbers).targets
    batch = _score_batch(network.loss, f, y, blocks, lambda: derivatives.norms(numbers))
    if any(CATALOGUE[name].curvature and name != "influence" for name in names):
        return {**scores_of(batch, names), CAPPED: batch.left_out.capped}
    columns = scores_of(batch, [name for name in names if name != "influence"])
    if "influence" in names:
        right = torch.cat([part for _, part in derivatives.gradients(numbers)]).T
        columns["influence"] = (right * inverse(right).x).sum(0, dtype=torch.float64)
    capped = torch.zeros(len(numbers), dtype=torch.bool, device=network.device)
    return {**{name: columns[name] for name in names}, CAPPED: capped}


def _own_blocks(inverse: InverseCurvature, derivatives: RecordDerivatives, numbers: torch.Tensor) -> torch.Tensor:
    """Solve for the leverage blocks B (k, m, m) of these records."""
    network, r = inverse.network, inverse.network.loss.degrees
    basis = network.loss.basis()
    unseen = torch.ones(network.m, network.m - basis.shape[1], dtype=torch.float64) / network.m**0.5
    # the outputs' directions that the loss sees, and after them the one that softmax does not
    directions = torch.cat([basis, unseen], 1).to(network.device)
    turn = directions.T.to(network.dtype)
    rows = torch.cat([turn @ part for _, part in derivatives.jacobians(numbers)])  # (k, m, P)
    solution = inverse(rows[:, :r].flatten(0, 1).T)
    inner = (rows @ solution.x.T.unflatten(0, (len(rows), r)).mT).double().mT  # (k, r, m)
    inner[:, :, :r] = (inner[:, :, :r] + inner[:, :, :r].mT) / 2
    # left of it softmax does not see what is missing
    return directions[:, :r] @ inner @ directions.T


def _joined(parts: Sequence[Tensors]) -> Tensors:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _score_batch(
    loss: Loss, f: torch.Tensor, y: torch.Tensor, blocks: MakeBlocks, norms: Callable[[], torch.Tensor]
) -> ScoreBatch:
    """k records with outputs f (k, m), as groups of one record each, in float64."""
    f, y = f.double().unsqueeze(1), (y.double() if y.is_floating_point() else y).unsqueeze(1)
    weight = torch.ones(len(f), 1, dtype=f.dtype, device=f.device)
    return ScoreBatch(f, y, weight, loss, blocks, lambda: norms().double())


def sketch_records(
    inverse: InverseCurvature,
    *,
    probes: int = 64,
    seed: int = 0,
    scores: str | Sequence[str] = USUAL,
    most_redone: int = 128,
    at_once: int | None = None,
    solves: CheckpointedSolves | None = None,
) -> NetworkScores:
    """Score every record from `probes` solves, `at_once` together (by default as many as fit).

    Up to `most_redone` records whose top leverage comes out above 0.5, the highest first, are scored again with right
    sides of their own. The report's `sketch_error` is each score's relative error (root mean square over records), as
    two halves of the probes tell it; `solve_error` bounds what inexact solves do to W^½ U of all records together, as a
    share of its norm. `solves` keeps what is finished, for a run that goes on after a kill.
    """
    network = inverse.network
    names = score_names(scores, network.loss)
    check_probes(probes)
    if inverse.curvature.kind != "ggn":
        raise fail("curvature", '"ggn" for a sketch', repr(inverse.curvature.kind), "score chosen records with it")
    solves = solves or CheckpointedSolves(inverse)
    sketch = _Sketch(solves, probes, seed, at_once or probes)
    columns, errors, trace = sketch.score(names, [name for name in names if CATALOGUE[name].curvature])
    capped, leverage = columns.pop(CAPPED), columns.pop(LEVERAGE)
    off = {name: relative_error(columns[name].cpu().numpy(), error.cpu().numpy()) for name, error in errors.items()}
    report: dict[str, Any] = {"probes": probes, "seed": seed, "sketch_error": off}
    if trace > 0 and inverse.curvature.damping > 0:
        report["solve_error"] = sketch.left / (2.0 * math.sqrt(inverse.curvature.damping * trace))
    redone = torch.from_numpy(records_to_redo(leverage.cpu().numpy(), most_redone))
    if len(redone):
        again = score_records(inverse, redone, scores=names, at_once=AT_ONCE, solves=solves)
        for name in names:
            columns[name][redone] = again[name].to(columns[name])
        capped[redone] = again.capped
    report |= {"above_half": int((leverage > REDO_ABOVE).sum()), "redone": len(redone)}
    return NetworkScores(torch.arange(network.n), columns, capped, {**inverse.report, **report})


def check_probes(probes: int) -> None:
    """Refuse a number of probes that has no two halves, or few in them."""
    if not isinstance(probes, int) or probes < 4 or probes % 2:
        raise fail("probes", "an even number of at least 4", repr(probes), "64 suits a ranking, 256 closer values")


class _Sketch:
    """Z (P, q), and the norm of what its solves leave of the right sides."""

    def __init__(self, solves: CheckpointedSolves, probes: int, seed: int, at_once: int) -> None:
        self.inverse, self.network = solves.inverse, solves.inverse.network
        self.probes, self.seed = probes, seed
        self.z = torch.empty(probes, self.network.size, dtype=self.network.dtype, device=self.network.device).T
        # a block of signs begins at a word's border or lies inside one word: powers of two do
        step = 1 << (min(probes, at_once, self.inverse.columns).bit_length() - 1)
        solves.expected += probes
        solved = solve_probes(self.z, step, self._solve_block, solves.part)
        self.left = math.hypot(*(float(torch.linalg.vector_norm(part["left"])) for part in solved))

    def score(self, names: Sequence[str], curved: Sequence[str]) -> tuple[Tensors, Tensors, float]:
        """Return all scores with CAPPED and LEVERAGE, the standard errors of those that are `curved`, and the sum of
        trace(W B)."""
        half, trace, columns, errors = self.probes // 2, 0.0, [], []
        with torch.no_grad():
            for piece, u in self.inverse.jacobian.push(self.z):
                u = u.double().permute(1, 2, 0)  # (b, m, q)
                parts = slice(None), slice(0, half), slice(half, None)
                whole, first, second = (self._batch(piece, u, probes) for probes in parts)
                flags = {CAPPED: whole.left_out.capped, LEVERAGE: whole.blocks.top_leverage()}
                columns.append(scores_of(whole, names) | flags)
                errors.append(standard_errors([first, second], curved))
                trace += float(whole.blocks.trace().sum())
        return _joined(columns), _joined(errors), trace

    def _batch(self, piece: Piece, u: torch.Tensor, probes: slice) -> ScoreBatch:
        """The records of a piece with blocks from some of the probes."""
        loss = self.network.loss

        def blocks(curvature: OutputCurvature, weight: torch.Tensor) -> Blocks:
            own = signs(self.seed, piece.numbers, loss.m, slice(0, self.probes), dtype=u.dtype)[..., probes]
            some = u[..., probes] * (self.probes / own.shape[-1]) ** 0.5
            return FactoredBlocks(some.unsqueeze(1), own.unsqueeze(1), curvature, weight, loss, whole=True)

        f, y = piece.outputs, piece.batch.targets
        return _score_batch(loss, f, y, blocks, lambda: self.derivatives.norms(piece.rows))

    @cached_property
    def derivatives(self) -> RecordDerivatives:
        return RecordDerivatives(self.network)

    def _solve_block(self, probes: slice) -> Tensors:
        right = self._right_sides(probes).div_(math.sqrt(self.probes))
        solution = self.inverse(right.T)
        return {"z": solution.x, "left": solution.residual * torch.linalg.vector_norm(right, dim=1)}

    def _right_sides(self, probes: slice) -> torch.Tensor:
        """AᵀΩ as rows (probes, P)."""
        network = self.network

        def rooted(piece: Piece) -> torch.Tensor:
            omega = signs(self.seed, piece.numbers, network.m, probes, dtype=network.dtype).permute(2, 0, 1)
            return network.loss.root(piece.outputs, omega)

        right = self.inverse.jacobian.pull(probes.stop - probes.start, rooted).T.contiguous()
        if (damping := self.inverse.curvature.damping) > 0:
            right.add_(parameter_signs(network, self.seed, probes), alpha=math.sqrt(damping))
        return right
