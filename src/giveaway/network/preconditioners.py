"""Cheap inverses of the damped Gauss–Newton curvature that make the exact solves short."""

from __future__ import annotations

from collections.abc import Callable

import torch

from giveaway.checks import check_choice
from giveaway.linalg.probes import signs
from giveaway.network.gradients import RecordDerivatives
from giveaway.network.jacobian import Jacobian, Piece
from giveaway.network.kronecker import Kronecker
from giveaway.network.network import Network
from giveaway.network.nystrom import steepest

NAMES = ("nystrom", "kronecker", "diagonal", "none")

Precondition = Callable[[torch.Tensor], torch.Tensor]


def preconditioner_of(jacobian: Jacobian, name: str, damping: float, rank: int) -> Precondition | None:
    """V (P, s) ↦ an approximate inverse of the damped curvature times V."""
    check_choice("preconditioner", name, NAMES)
    if name == "none":
        return None
    if name == "nystrom":
        found = steepest(jacobian, rank)
        return lambda right: found.solve(right.T, damping).T
    if name == "diagonal":
        return _diagonal(exact_diagonal(jacobian), damping)
    network = jacobian.network
    factors = Kronecker(network)
    jacobian.passes += factors.passes
    jacobian.column_passes += factors.passes * network.m
    places = network.parameters.places
    others = [place for parameter, place in places.items() if parameter not in factors.covered]
    if not others:
        return lambda right: factors.solve(right.T, damping).T
    rest = torch.cat([torch.arange(place.start, place.stop) for place in others]).to(network.device)
    diagonal = _floored(exact_diagonal(jacobian)[rest], damping)

    def solve(right: torch.Tensor) -> torch.Tensor:
        found = factors.solve(right.T, damping)
        found[:, rest] /= diagonal
        return found.T

    return solve


def exact_diagonal(jacobian: Jacobian) -> torch.Tensor:
    """Diagonal (P,) of Σ_j J_jᵀ W_j J_j, from the Jacobian of every record: one pass of m columns."""
    network = jacobian.network
    total = torch.zeros(network.size, dtype=network.dtype, device=network.device)
    with torch.no_grad():
        for numbers, rows in RecordDerivatives(network).jacobians():
            f, y = network.outputs(numbers), network.records.take(numbers).targets
            total += torch.einsum("bmp,bmn,bnp->p", rows, network.loss.curvature(f, y), rows)
    jacobian.passes += 1
    jacobian.column_passes += network.m
    return total


def hutchinson_diagonal(jacobian: Jacobian, probes: int = 32, seed: int = 0) -> torch.Tensor:
    """The same diagonal as the mean of (Σ_j J_jᵀ S_j ω_j)² over random signs ω: one pass of `probes` columns."""
    network = jacobian.network
    found = jacobian.pull(probes, lambda piece: _signed(network, piece, seed, probes))
    return found.square().mean(1)


def _signed(network: Network, piece: Piece, seed: int, probes: int) -> torch.Tensor:
    numbers = torch.arange(piece.rows.start, piece.rows.stop, device=network.device)
    omega = signs(seed, numbers, network.m, slice(0, probes), dtype=network.dtype).permute(2, 0, 1)
    return network.loss.rooted(piece.outputs, piece.batch.targets, omega)


def _diagonal(diagonal: torch.Tensor, damping: float) -> Precondition:
    damped = _floored(diagonal, damping).unsqueeze(1)
    return lambda right: right / damped


def _floored(diagonal: torch.Tensor, damping: float) -> torch.Tensor:
    floor = 10 * torch.finfo(diagonal.dtype).eps * diagonal.max()
    return (diagonal + damping).clamp_min(max(float(floor), torch.finfo(diagonal.dtype).tiny))
