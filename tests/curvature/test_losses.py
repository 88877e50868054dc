"""Losses as functions of the outputs: against automatic differentiation, and many digits for confident records."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.curvature.losses import (
    Logistic,
    Loss,
    Softmax,
    Squared,
    loss_named,
    loss_of,
)
from tests import oracles
from tests.conftest import KINDS, made_head

DIGITS = 200


def parts(kind: str, seed: int = 0) -> tuple[Loss, torch.Tensor, torch.Tensor, np.ndarray, str]:
    """The loss of a made head with outputs and targets as it takes them, and the targets as the oracles do."""
    head = made_head(kind, seed=seed)
    y = loss_of(head).targets(head.targets)
    matrix = oracles.target_matrix(head.targets.numpy(), head.loss, head.m)
    return loss_of(head), head.outputs, y, matrix, oracles.kind_of(head.loss, head.m)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_a_loss(kind):
    loss, f, y, matrix, name = parts(kind)
    value = oracles.losses(f, matrix, name)
    np.testing.assert_allclose(loss.value(f, y), value, rtol=1e-11, atol=1e-14)
    gradient, hessian = oracles.derivatives(f, matrix, name)
    np.testing.assert_allclose(loss.gradient(f, y), gradient, rtol=1e-10, atol=1e-14)
    residual = np.abs(gradient).max(1) if name != "squared" else np.linalg.norm(f.numpy() - matrix, axis=1)
    np.testing.assert_allclose(loss.residual(f, y), residual, rtol=1e-10, atol=1e-14)
    for size in (1e-3, 1.0, 30.0):
        step = size * torch.randn(f.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        expected = oracles.losses(f + step, matrix, name) - value
        np.testing.assert_allclose(loss.gap(f, y, step), expected, rtol=1e-10, atol=1e-12)
    if loss.classes:
        entropies = [oracles.entropy_of(row, name) for row in f.numpy()]
        margins = [oracles.margin_of(row, goal, name) for row, goal in zip(f.numpy(), matrix, strict=True)]
        np.testing.assert_allclose(loss.entropy(f), entropies, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(loss.margin(f, y), margins, rtol=1e-12)
    packed = loss.pair_weights(f).T
    if loss.coupled:
        rows, columns = (numbers.numpy() for numbers in torch.triu_indices(loss.degrees, loss.degrees))
        np.testing.assert_allclose(packed, hessian[:, rows, columns], rtol=1e-10, atol=1e-14)
    else:
        diagonal = hessian[:, range(loss.m), range(loss.m)]
        np.testing.assert_allclose(packed.expand_as(f), diagonal, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(loss.diagonal(f), diagonal, rtol=1e-10, atol=1e-14)
        assert np.abs(hessian - np.einsum("nk,kl->nkl", diagonal, np.eye(loss.m))).max() < 1e-14


@pytest.mark.parametrize("kind", KINDS)
def test_target_sensitivity_is_minus_the_mixed_derivative(kind):
    loss, f, _, matrix, name = parts(kind)
    y = torch.from_numpy(matrix)

    def gradient(goal: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda output: oracles.record_loss(output, goal, name))(f[0])

    mixed = -torch.func.jacfwd(gradient)(y[0])
    if name == "softmax":
        centred = torch.eye(loss.m, dtype=torch.float64) - 1 / loss.m
        mixed = centred @ mixed @ centred
        torch.testing.assert_close(mixed, loss.sensitivity * centred)
    else:
        torch.testing.assert_close(mixed, loss.sensitivity * torch.eye(loss.m, dtype=torch.float64))


# ------------------------------------------------------------------------------------------------ confident records


def exact_softmax(f: list[float], label: int, step: list[float]) -> dict[str, object]:
    """Loss, probabilities, gradient, diagonal of W and gap of one record in decimal arithmetic."""
    with localcontext() as context:
        context.prec = DIGITS
        logits, moved = [Decimal(v) for v in f], [Decimal(a) + Decimal(b) for a, b in zip(f, step, strict=True)]

        def loss_at(values: list[Decimal]) -> Decimal:
            return sum((v - values[label]).exp() for v in values).ln()

        total = sum(v.exp() for v in logits)
        p = [v.exp() / total for v in logits]
        others = [sum(p[:k] + p[k + 1 :]) for k in range(len(p))]
        return {
            "value": float(loss_at(logits)),
            "gradient": [float(-others[k] if k == label else p[k]) for k in range(len(p))],
            "diagonal": [float(p[k] * others[k]) for k in range(len(p))],
            "gap": float(loss_at(moved) - loss_at(logits)),
        }


LEADS = [0.1, 5.0, 15.0, 20.5, 35.0, 36.9, 60.0, 300.0]


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("label", [0, 1, 2], ids=["right", "runner-up", "wrong"])
def test_confident_softmax_keeps_its_digits(lead, label):
    f, step = [lead + 1.5, 1.5, 0.25], [-0.3, 0.2, 0.01]
    exact = exact_softmax(f, label, step)
    loss = Softmax(3)
    outputs, y = torch.tensor([f], dtype=torch.float64), torch.tensor([label])
    np.testing.assert_allclose(loss.value(outputs, y)[0], exact["value"], rtol=1e-13)
    np.testing.assert_allclose(loss.gradient(outputs, y)[0], exact["gradient"], rtol=1e-13)
    np.testing.assert_allclose(loss.pair_weights(outputs)[[0, 2], 0], exact["diagonal"][:2], rtol=1e-13)
    gap = loss.gap(outputs, y, torch.tensor([step], dtype=torch.float64))
    np.testing.assert_allclose(gap[0], exact["gap"], rtol=1e-12)
    np.testing.assert_allclose(loss.residual(outputs, y)[0], np.abs(exact["gradient"]).max(), rtol=1e-13)


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("label", [0, 1], ids=["wrong", "right"])
def test_confident_logistic_keeps_its_digits(lead, label):
    """One logit f is two classes with logits 0 and f."""
    exact = exact_softmax([0.0, lead], label, [0.0, -0.3])
    loss = Logistic(1)
    f, y = torch.tensor([[lead]], dtype=torch.float64), torch.tensor([[float(label)]], dtype=torch.float64)
    np.testing.assert_allclose(loss.value(f, y)[0], exact["value"], rtol=1e-13)
    np.testing.assert_allclose(loss.gradient(f, y)[0], exact["gradient"][1:], rtol=1e-13)
    np.testing.assert_allclose(loss.diagonal(f)[0], exact["diagonal"][1:], rtol=1e-13)
    np.testing.assert_allclose(loss.gap(f, y, torch.full_like(f, -0.3))[0], exact["gap"], rtol=1e-12)


@given(
    f=st.lists(st.floats(-40, 40), min_size=4, max_size=4),
    step=st.lists(st.floats(-60, 60), min_size=4, max_size=4),
    label=st.integers(0, 3),
)
def test_gaps_of_any_size(f, step, label):
    exact = exact_softmax(f, label, step)
    outputs, moved = torch.tensor([f], dtype=torch.float64), torch.tensor([step], dtype=torch.float64)
    gap = float(Softmax(4).gap(outputs, torch.tensor([label]), moved)[0])
    one_hot = torch.eye(4, dtype=torch.float64)[[label]]
    as_soft = float(Softmax(4).gap(outputs, one_hot, moved)[0])
    assert gap == pytest.approx(exact["gap"], rel=1e-9, abs=1e-13)
    assert as_soft == pytest.approx(exact["gap"], rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e300])
@pytest.mark.parametrize(
    ("loss", "hard"), [(Softmax(3), True), (Softmax(3), False), (Logistic(3), False)], ids=["hard", "soft", "logistic"]
)
def test_saturated_outputs_give_finite_numbers(loss, hard, size):
    f = size * torch.tensor([[1.0, -1.0, 0.5], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 2, 1]) if hard else torch.eye(3, dtype=torch.float64)[[0, 2, 1]]
    step = torch.tensor([[-1e3, 1e3, 0.0]], dtype=torch.float64).expand(3, 3)
    results = [loss.value(f, y), loss.gradient(f, y), loss.gap(f, y, step), loss.gap(f, y, -step), loss.entropy(f)]
    results += [loss.residual(f, y), loss.pair_weights(f), loss.margin(f, y)]
    assert all(bool(torch.isfinite(result).all()) for result in results)
    assert bool((loss.value(f, y) >= 0).all())


def test_squared_gap_does_not_cancel():
    f = torch.tensor([[1e8, -1e8]], dtype=torch.float64)
    gap = Squared(2).gap(f, torch.zeros_like(f), torch.tensor([[1e-8, 1e-8]], dtype=torch.float64))
    assert float(gap[0]) == pytest.approx(2e-16, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("squared_many", (Squared, 3, 3)),
        ("one_logit", (Logistic, 1, 1)),
        ("multi_label", (Logistic, 3, 3)),
        ("two_classes", (Softmax, 2, 1)),
        ("soft_labels", (Softmax, 4, 3)),
    ],
)
def test_the_loss_of_a_head(kind, expected):
    loss = loss_of(made_head(kind))
    assert (type(loss), loss.m, loss.degrees) == expected
    assert (loss.coupled, loss.shared, loss.classes) == (
        expected[0] is Softmax,
        expected[0] is Squared,
        expected[0] is not Squared,
    )


# ------------------------------------------------------------------------------------------- W and its root, and names

GENERATOR = torch.Generator().manual_seed(0)
F = 3 * torch.randn(7, 4, generator=GENERATOR, dtype=torch.float64)
CLASSES = torch.randint(0, 4, (7,), generator=GENERATOR)
SOFT = torch.softmax(torch.randn(7, 4, generator=GENERATOR, dtype=torch.float64), 1)
BITS = torch.randint(0, 2, (7, 4), generator=GENERATOR).double()


CASES = [
    (Squared(4), SOFT, lambda f, y: ((f - y) ** 2).sum()),
    (Softmax(4), CLASSES, lambda f, y: -torch.log_softmax(f, 0)[y]),
    (Softmax(4), SOFT, lambda f, y: -(y * torch.log_softmax(f, 0)).sum()),
    (Logistic(4), BITS, lambda f, y: torch.nn.functional.binary_cross_entropy_with_logits(f, y, reduction="sum")),
]


@pytest.mark.parametrize(("loss", "y", "one"), CASES)
def test_derivatives_record_by_record(loss, y, one):
    u = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for i in range(7):
        f = F[i].clone().requires_grad_()
        value = one(f, y[i])
        (g,) = torch.autograd.grad(value, f)
        W = torch.autograd.functional.hessian(lambda f, i=i: one(f, y[i]), F[i])
        torch.testing.assert_close(loss.value(F, y)[i], value.detach())
        torch.testing.assert_close(loss.gradient(F, y)[i], g)
        unit = torch.eye(4, dtype=torch.float64)[:, None].expand(4, 7, 4)
        torch.testing.assert_close(loss.curve(F, unit)[:, i], W)
        torch.testing.assert_close(loss.curve(F, u)[:, i], u[:, i] @ W)
        roots = loss.root(F, unit)[:, i].T
        torch.testing.assert_close(roots @ roots.T, W)


def test_which_loss_a_name_means():
    assert isinstance(loss_named("cross_entropy", 3), Softmax)
    assert isinstance(loss_named("cross_entropy", 1), Logistic)
    with pytest.raises(InputError, match="loss: expected a known name, got 'cross-entropy'; did you mean"):
        loss_named("cross-entropy", 3)
