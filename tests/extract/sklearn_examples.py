"""Shared by the tests of from_sklearn: how far a Head is from the optimum of its own objective."""

import torch

N, D = 90, 5
EXACT = {"tol": 1e-10, "max_iter": 20_000}
LBFGS = {"solver": "lbfgs", "alpha": 0.3, "tol": 1e-12, "max_iter": 20_000, "max_fun": 200_000, "random_state": 0}


def objective_gradient(head, l2=None):
    """Gradient of Σ w_i ℓ_i + l2/2·‖θ‖² at the head's parameters, by autograd, from the definitions alone."""
    theta = head.parameters().clone().requires_grad_()
    design = torch.cat([head.features.double(), torch.ones(head.n, int(head.intercept)).double()], dim=1)
    f = design @ theta
    y = head.targets
    if head.loss == "squared":
        losses = ((f - y) ** 2).sum(1)
    elif head.loss == "binary_cross_entropy":
        losses = torch.nn.functional.binary_cross_entropy_with_logits(f, y, reduction="none").sum(1)
    elif head.m == 1:
        losses = torch.nn.functional.binary_cross_entropy_with_logits(f[:, 0], y.double(), reduction="none")
    else:
        losses = torch.nn.functional.cross_entropy(f, y, reduction="none")
    if head.sample_weight is not None:
        losses = losses * head.sample_weight
    penalized = theta if head.penalize_intercept or not head.intercept else theta[:-1]
    total = losses.sum() + (head.l2 if l2 is None else l2) / 2 * (penalized**2).sum()
    return torch.autograd.grad(total, theta)[0]


def off_optimum(head, l2=None):
    """Gradient left over, against the pull of the penalty: a penalty wrong by a factor 2 leaves 0.5 or 1."""
    pull = head.l2 * head.weight.double().norm() if head.l2 else objective_gradient(head, l2=1e6).norm() / 1e6
    return float(objective_gradient(head, l2).norm() / pull)
