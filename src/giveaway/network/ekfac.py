"""Influence of all records by Kronecker factors with corrected eigenvalues (EKFAC): three passes, no solves.

Layers are taken apart (the curvature between two of them is left out), and inside a layer the eigenvectors are those of
a Kronecker product. Cheap, and exact only where both hold.
"""

from __future__ import annotations

from typing import Any

import torch

from giveaway.checks import check_number, fail
from giveaway.network.kronecker import Kronecker
from giveaway.network.network import Network
from giveaway.network.scores import NetworkScores


def ekfac_records(network: Network, *, damping: float) -> NetworkScores:
    """Approximate `influence` and `gls_trace` of every record through the linear and convolutional layers chosen."""
    check_number("damping", damping, minimum=0.0, remedy="in units of the summed loss, as n times weight decay")
    factors = Kronecker(network)
    if not factors.layers:
        remedy = "choose linear or convolutional layers, or use a sketch"
        raise fail("parameters", "linear or convolutional layers for EKFAC", "none", remedy)
    influence, trace = [], []
    with torch.no_grad():
        for _, (f, y, found) in factors.pieces():
            g = network.loss.gradient(f, y).unsqueeze(1)
            u = torch.cat([g, factors.roots(f, y)], 1)
            forms = sum(factors.layers[name].forms(seen, u, damping).double() for name, seen in found.items())
            assert isinstance(forms, torch.Tensor)
            influence.append(forms[:, 0])
            trace.append(forms[:, 1:].sum(1))
    columns = {"influence": torch.cat(influence), "gls_trace": torch.cat(trace)}
    covered = sum(network.parameters.values[name].numel() for name in factors.covered)
    notes = []
    if covered < network.size:
        notes.append(f"EKFAC: {network.size - covered} of {network.size} parameters are in other layers, and left out")
    report: dict[str, Any] = {
        "curvature": "ekfac",
        "parameters": covered,
        "damping": damping,
        "passes": factors.passes + 1,
        "column_passes": (factors.passes + 1) * network.m,
        "notes": notes,
    }
    nothing = torch.zeros_like(columns["influence"])
    return NetworkScores(torch.arange(network.n), columns, nothing.bool(), nothing, report)
