"""All records at once: leverage blocks from random projections of the Gauss–Newton curvature.

H = AᵀA with A the stack of W_j^{1/2} J_j and √λ I. With random signs Ω, q columns, Z = H⁻¹ AᵀΩ/√q takes q solves and
then serves every record: U_i = J_i Z (m × q) and B_i ≈ U_i U_iᵀ, whose quadratic forms have a relative error of √(2/q).

With many parameters most of a right side's length is √λ Ω in directions that no record sees: a residual small beside it
need not be small beside what records see. What solves leave, R, puts W^{1/2} U off by at most ‖R‖_F/(2√λ), as along an
eigenvector of H − λI with eigenvalue h it is √h/(h + λ) ≤ 1/(2√λ) times R.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from giveaway.checks import check_choice, fail
from giveaway.linalg.probes import signs
from giveaway.network.blocks import SCORES, RecordBlocks, gls_trace, scored
from giveaway.network.in_parts import CheckpointedSolves, OnSolved, Tensors, score_in_parts
from giveaway.network.jacobian import Piece
from giveaway.network.nystrom import parameter_signs
from giveaway.network.products import GaussNewton
from giveaway.network.scores import NetworkScores
from giveaway.network.solves import InverseCurvature

REDONE_ABOVE = 0.5  # top eigenvalue of W^{1/2} B W^{1/2} from which a sketched Newton step is not trusted


def sketch_records(
    inverse: InverseCurvature,
    *,
    probes: int = 64,
    seed: int = 0,
    scores: Sequence[str] = ("influence", "newton", "leverage", "gls_trace"),
    most_redone: int = 128,
    at_once: int | None = None,
    solves: CheckpointedSolves | None = None,
    on_solved: OnSolved = lambda done, total: None,
) -> NetworkScores:
    """Scores of every record from `probes` solves, `at_once` together (by default as many as fit).

    Records whose top leverage comes out above 0.5 have their Newton step in doubt; up to `most_redone` of them, the
    highest first, are scored again with right sides of their own, and the report says how many there were. Its
    `sketch_error` is each score's relative error (root mean square over records), as two independent halves of the
    probes tell it. `solve_error` bounds what inexact solves of the probes do (up to the rounding of products): to
    W^{1/2} U of all records together, relative to the norm that was found of it.

    `solves` keeps what is finished, for a run that goes on after a kill. `on_solved` is told the right sides done, and
    how many there are: more, once records are found that need their own.
    """
    names = [check_choice("scores", name, SCORES) for name in ([scores] if isinstance(scores, str) else scores)]
    check_probes(probes)
    if not isinstance(inverse.curvature, GaussNewton):
        raise fail("curvature", '"ggn" for a sketch', repr(inverse.curvature.kind), "score chosen records with it")
    network = inverse.network
    solves = CheckpointedSolves(inverse) if solves is None else solves
    projected, residual, left = _projection(solves, probes, seed, at_once or probes, on_solved)
    found: list[dict[str, torch.Tensor]] = []
    halves: list[dict[str, torch.Tensor]] = []
    top, capped, total = [], [], 0.0
    with torch.no_grad():
        for piece, u in inverse.jacobian.push(projected):
            u = u.double().permute(1, 2, 0)  # (b, m, q)
            parts = [2.0 * half @ half.mT for half in u.chunk(2, 2)]
            blocks = [
                RecordBlocks(block, piece.outputs, piece.batch.targets, network.loss)
                for block in ((parts[0] + parts[1]) / 2, *parts)
            ]
            one, first, second = (scored(each, names) for each in blocks)
            found.append(one)
            halves.append({name: _half_error(first[name], second[name]) for name in names})
            root = blocks[0].root
            top.append(one[names[0]].new_zeros(len(u)) if root is None else blocks[0].spread[0][:, -1])
            capped.append(blocks[0].capped)
            total += float(gls_trace(blocks[0]).sum())
    columns = {name: torch.cat([part[name] for part in found]) for name in names}
    errors = {name: float(torch.cat([part[name] for part in halves]).square().mean().sqrt()) for name in names}
    flags, report = torch.cat(capped), {"probes": probes, "seed": seed, "sketch_error": errors}
    if total > 0 and inverse.curvature.damping > 0:
        report["solve_error"] = left / (2.0 * math.sqrt(inverse.curvature.damping * total))
    doubtful = torch.cat(top)
    order = doubtful.argsort(descending=True, stable=True)[: min(most_redone, int((doubtful > REDONE_ABOVE).sum()))]
    if len(order):
        again = score_in_parts(
            solves, order.cpu(), scores=names, on_solved=lambda done, total: on_solved(probes + done, probes + total)
        )
        for name in names:
            columns[name][order] = again[name].to(columns[name])
        flags[order] = again.capped
    report |= {"above_half": int((doubtful > REDONE_ABOVE).sum()), "redone": len(order)}
    everything = torch.full((network.n,), residual, dtype=torch.float64, device=network.device)
    return NetworkScores(torch.arange(network.n), columns, flags, everything, {**inverse.report, **report})


def check_probes(probes: int) -> None:
    """Refuse a number of probes that has no two halves, or few in them."""
    if not isinstance(probes, int) or probes < 4 or probes % 2:
        raise fail("probes", "an even number of at least 4", repr(probes), "64 suits a ranking, 256 closer values")


def _projection(
    solves: CheckpointedSolves, probes: int, seed: int, at_once: int, on_solved: OnSolved
) -> tuple[torch.Tensor, float, float]:
    """Z (P, q), the worst residual of its solves and the norm of what they leave of the right sides."""
    inverse, worst, left = solves.inverse, 0.0, 0.0
    network = inverse.network
    solved = torch.empty(probes, network.size, dtype=network.dtype, device=network.device)
    # a block of signs begins at a word's border or lies inside one word: powers of two do
    step = 1 << (min(probes, at_once, inverse.columns).bit_length() - 1)
    for start in range(0, probes, step):
        block = slice(start, min(start + step, probes))

        def solve(block: slice = block) -> Tensors:
            right = _right_sides(inverse, block, seed).div_(math.sqrt(probes))
            solution = inverse(right.T)
            solved[block] = solution.x.T
            return {
                "z": solved[block],
                "residual": solution.residual,
                "left": solution.residual * torch.linalg.vector_norm(right, dim=1),
            }

        found = solves.part(f"projected-{block.start}-{block.stop}", solve)
        solved[block] = found["z"].to(solved)
        worst = max(worst, float(found["residual"].max()))
        left = math.hypot(left, float(torch.linalg.vector_norm(found["left"])))
        on_solved(block.stop, probes)
    return solved.T, worst, left


def _right_sides(inverse: InverseCurvature, block: slice, seed: int) -> torch.Tensor:
    """AᵀΩ as rows (block, P)."""
    network = inverse.network

    def rooted(piece: Piece) -> torch.Tensor:
        numbers = torch.arange(piece.rows.start, piece.rows.stop, device=network.device)
        omega = signs(seed, numbers, network.m, block, dtype=network.dtype).permute(2, 0, 1)
        return network.loss.rooted(piece.outputs, piece.batch.targets, omega)

    right = inverse.jacobian.pull(block.stop - block.start, rooted).T.contiguous()
    if inverse.curvature.damping > 0:
        omega = parameter_signs(seed, network.size, block, network.device, network.dtype)
        right.add_(omega, alpha=math.sqrt(inverse.curvature.damping))
    return right


def _half_error(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Half of the difference of the halves, relative to their mean: the deviation of that mean."""
    total = (first + second).abs()
    return (first - second) / torch.where(total > 0, total, 1.0)
