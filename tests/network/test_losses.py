"""Losses: gradient, curvature and root against automatic differentiation."""

from __future__ import annotations

import pytest
import torch

from giveaway import InputError
from giveaway.curvature.dense import helmert
from giveaway.network.losses import Given, Logistic, Softmax, Squared, loss_of

GENERATOR = torch.Generator().manual_seed(0)
F = 3 * torch.randn(7, 4, generator=GENERATOR, dtype=torch.float64)
CLASSES = torch.randint(0, 4, (7,), generator=GENERATOR)
SOFT = torch.softmax(torch.randn(7, 4, generator=GENERATOR, dtype=torch.float64), 1)
BITS = torch.randint(0, 2, (7, 4), generator=GENERATOR).double()


def smoothed(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(f, y, reduction="none", label_smoothing=0.1)


CASES = [
    (Squared(), SOFT, lambda f, y: ((f - y) ** 2).sum()),
    (Softmax(), CLASSES, lambda f, y: -torch.log_softmax(f, 0)[y]),
    (Softmax(), SOFT, lambda f, y: -(y * torch.log_softmax(f, 0)).sum()),
    (Logistic(), BITS, lambda f, y: torch.nn.functional.binary_cross_entropy_with_logits(f, y, reduction="sum")),
    (Given(smoothed), CLASSES, lambda f, y: smoothed(f[None], y[None])[0]),
]


@pytest.mark.parametrize(("loss", "y", "one"), CASES)
def test_derivatives_record_by_record(loss, y, one):
    y = loss.prepare(y, F)
    u = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for i in range(7):
        f = F[i].clone().requires_grad_()
        value = one(f, y[i])
        (g,) = torch.autograd.grad(value, f)
        W = torch.autograd.functional.hessian(lambda f, i=i: one(f, y[i]), F[i])
        torch.testing.assert_close(loss.value(F, y)[i], value.detach())
        torch.testing.assert_close(loss.gradient(F, y)[i], g)
        torch.testing.assert_close(loss.curvature(F, y)[i], W)
        torch.testing.assert_close(loss.curved(F, y, u)[:, i], u[:, i] @ W)
        roots = loss.rooted(F, y, torch.eye(4, dtype=torch.float64)[:, None].expand(4, 7, 4))[:, i].T
        torch.testing.assert_close(roots @ roots.T, W)


@pytest.mark.parametrize("m", [2, 3, 9])
def test_softmax_looks_in_helmert_s_directions(m):
    torch.testing.assert_close(Softmax().basis(m), helmert(m))


def test_which_loss_a_name_means():
    assert isinstance(loss_of("cross_entropy", 3), Softmax)
    assert isinstance(loss_of("cross_entropy", 1), Logistic)
    with pytest.raises(InputError, match="loss: expected a known name, got 'cross-entropy'; did you mean"):
        loss_of("cross-entropy", 3)
    with pytest.raises(InputError, match="loss: expected one value a record"):
        loss_of(torch.nn.functional.cross_entropy, 3).prepare(CLASSES, F)
    saddle = Given(lambda f, y: f[:, 0] ** 2 - f[:, 1] ** 2)
    with pytest.raises(InputError, match="loss: expected a loss that is convex in the outputs"):
        saddle.rooted(F, CLASSES, F)
