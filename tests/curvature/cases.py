"""What the tests of a head's curvature compare with: derivatives by automatic differentiation, explicit matrices."""

from typing import Any, NamedTuple

import numpy as np
import torch

from giveaway import Head
from giveaway.curvature.products import HeadProducts
from giveaway.linalg.precision import Precision
from tests import oracles

FLOAT64, FLOAT32 = Precision("float64"), Precision("float32")
SOME_WEIGHTS = np.random.default_rng(3).random(60) + 0.1
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"l2": 0.4},
    "no penalty": {"l2": 0.0},
    "weighted": {"l2": 0.4, "sample_weight": SOME_WEIGHTS},
    "free intercept": {"l2": 0.4, "penalize_intercept": False},
    "no intercept": {"l2": 0.4, "intercept": False},
}
PENALIZED = [name for name in OPTIONS if name != "no penalty"]


class Terms(NamedTuple):
    """Design matrix, targets (n, m), gradients and Hessians in the outputs, weights, and the kind of the loss."""

    x: np.ndarray
    y: np.ndarray
    g: np.ndarray
    W: np.ndarray
    weight: np.ndarray
    kind: str


def terms(head: Head) -> Terms:
    kind, y = oracles.kind_of(head.loss, head.m), oracles.target_matrix(head.targets.numpy(), head.loss, head.m)
    x, weight = head.window(slice(0, head.n)).rows().numpy(), oracles.weights_or_ones(head.sample_weight, head.n)
    return Terms(x, y, *oracles.derivatives(head.outputs.double().numpy(), y, kind), weight, kind)


def arrays_of(head: Head) -> dict[str, Any]:
    """A head as the oracles take it."""
    arrays = {name: getattr(head, name).numpy() for name in ("features", "outputs", "targets")}
    return arrays | {name: getattr(head, name) for name in ("loss", "l2", "intercept", "sample_weight")}


def explicit_curvature(head: Head, l2: float | None = None, *, shared: bool = True) -> np.ndarray:
    """H on all d·k parameters, feature by feature, with k = 1 where the outputs of a squared loss share theirs."""
    x, _, _, W, weight, kind = terms(head)
    W = W[:, :1, :1] if shared and kind == "squared" else W
    l2 = head.l2 if l2 is None else l2
    penalty = oracles.penalty_vector(head.width, W.shape[1], l2, head.intercept, head.penalize_intercept)
    return oracles.curvature(x, W, weight, penalty)


def dense_inverse(head: Head, l2: float) -> np.ndarray:
    """Pseudo-inverse of the curvature on all d·m parameters."""
    return oracles.pseudo_inverse(explicit_curvature(head, l2, shared=False))


def gradient_like(head: Head) -> torch.Tensor:
    """A (d, m) matrix in the range of the curvature: softmax gradients sum to zero over the classes."""
    v = torch.randn(head.width, head.m, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return v - v.mean(1, keepdim=True) if terms(head).kind == "softmax" else v


def unseen(head: Head) -> np.ndarray:
    """The projection (k, k) onto what the loss sees of a record's outputs."""
    k = 1 if head.loss == "squared" else head.m
    return np.eye(k) - 1.0 / k if oracles.kind_of(head.loss, head.m) == "softmax" else np.eye(k)


def explicit_root(head: Head) -> np.ndarray:
    """A with AᵀA = H in the directions seen: k rows a record, then k a feature for the penalty."""
    x, _, _, curvatures, weight, kind = terms(head)
    rows = []
    for j, W in enumerate(curvatures[:, :1, :1] if kind == "squared" else curvatures):
        if kind == "softmax":
            p = np.exp(head.outputs[j].numpy() - np.logaddexp.reduce(head.outputs[j].numpy()))
            root = np.diag(np.sqrt(p)) - np.outer(p, np.sqrt(p))
        else:
            root = np.sqrt(W)
        np.testing.assert_allclose(root @ root.T, W, atol=1e-12)
        rows.append(np.sqrt(weight[j]) * np.kron(x[j][:, None], root).T)
    projection = unseen(head)
    penalty = oracles.penalty_vector(head.width, len(projection), head.l2, head.intercept, head.penalize_intercept)
    rows.append(np.kron(np.eye(head.width), projection) * np.sqrt(penalty))
    return np.concatenate(rows)


def vectors_for(products: HeadProducts, columns: int, seed: int = 0) -> torch.Tensor:
    """Any vectors (D, k, s) in the directions that the loss sees."""
    v = torch.from_numpy(np.random.default_rng(seed).normal(size=(*products.shape, columns)))
    return v - v.mean(1, keepdim=True) if products.loss.coupled else v
