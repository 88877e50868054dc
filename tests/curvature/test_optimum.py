"""Distance from the optimum and the way there: against automatic differentiation, scikit-learn and the oracle."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from giveaway import Head
from giveaway.checks import InputError
from giveaway.curvature.losses import Softmax, loss_of
from giveaway.curvature.optimum import gradient_sum, refit
from tests import oracles
from tests.conftest import KINDS, made_arrays, made_head
from tests.curvature.cases import OPTIONS, PENALIZED, terms


def at_random_parameters(kind: str, **options) -> Head:
    head = made_head(kind, **options)
    generator = torch.Generator().manual_seed(7)
    theta = torch.randn(head.width, head.m, dtype=torch.float64, generator=generator)
    return head.with_parameters(theta)


def objective(head: Head, theta: torch.Tensor) -> torch.Tensor:
    """Σ s ℓ + λ/2 ‖θ‖², softmax penalized for what the outputs can see of θ."""
    x, y, _, _, weight, kind = terms(head)
    f, y = torch.from_numpy(x) @ theta, torch.from_numpy(y)
    total = sum(weight[i] * oracles.record_loss(f[i], y[i], kind) for i in range(head.n))
    seen = theta - theta.mean(1, keepdim=True) if isinstance(loss_of(head), Softmax) else theta
    if head.intercept and not head.penalize_intercept:
        seen = seen[:-1]
    return total + 0.5 * head.l2 * seen.square().sum()


@pytest.mark.parametrize("case", PENALIZED)
@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "classes", "soft_labels", "multi_label"])
def test_gradient_sum(kind, case):
    head = at_random_parameters(kind, **OPTIONS[case])
    theta = head.parameters().requires_grad_()
    value = objective(head, theta)
    (expected,) = torch.autograd.grad(value, theta)
    value = float(value.detach())
    found = gradient_sum(head)
    torch.testing.assert_close(found.total, expected, rtol=1e-10, atol=1e-11)
    assert found.objective == pytest.approx(value, rel=1e-9)
    x, _, g, _, weight, _ = terms(head)
    sizes = weight * np.linalg.norm(x, axis=1) * np.linalg.norm(g, axis=1)
    assert found.relative == pytest.approx(float(expected.norm()) / sizes.sum(), rel=1e-10)


@pytest.mark.parametrize("case", PENALIZED)
@pytest.mark.parametrize("kind", KINDS)
def test_refit_reaches_the_oracle_s_optimum_from_anywhere(kind, case):
    options = OPTIONS[case]
    head = at_random_parameters(kind, **options)
    fitted = refit(head)
    assert gradient_sum(fitted).relative < 1e-10
    targets = head.targets.numpy()
    theta, outputs = oracles.refit(head.features.numpy(), targets, head.loss, n_outputs=head.m, **options)
    centred = fitted.outputs.numpy()
    if isinstance(loss_of(head), Softmax):
        centred = centred - centred.mean(1, keepdims=True)
    scale = np.abs(outputs).max()
    np.testing.assert_allclose(centred, outputs, rtol=0, atol=1e-8 * scale)
    np.testing.assert_allclose(
        fitted.window(slice(0, head.n)).rows() @ fitted.parameters(), fitted.outputs, atol=1e-12 * scale
    )
    np.testing.assert_allclose(fitted.parameters().numpy(), theta, atol=1e-7 * np.abs(theta).max())


def test_refit_needs_no_weights_to_start_from():
    head = made_head("classes", l2=0.4)
    assert head.weight is None
    theta, _ = oracles.refit(head.features.numpy(), head.targets.numpy(), head.loss, l2=0.4)
    np.testing.assert_allclose(refit(head).parameters().numpy(), theta, atol=1e-8)


@pytest.mark.parametrize("kind", ["one_logit", "classes"])
def test_refit_equals_scikit_learn_s_logistic_regression(kind):
    arrays = made_arrays(kind, n=200)
    model = LogisticRegression(C=2.0, tol=1e-12, max_iter=5000).fit(arrays["features"], arrays["targets"])
    fitted = refit(Head(**arrays, l2=0.5, penalize_intercept=False))
    np.testing.assert_allclose(fitted.weight.numpy(), model.coef_, atol=1e-5)
    bias = model.intercept_ - model.intercept_.mean() if kind == "classes" else model.intercept_
    np.testing.assert_allclose(fitted.bias.numpy(), bias, atol=1e-5)


def test_refit_equals_scikit_learn_s_ridge():
    arrays = made_arrays("squared_many")
    model = Ridge(alpha=1.5).fit(arrays["features"], arrays["targets"])
    fitted = refit(Head(**arrays, l2=3.0, penalize_intercept=False))
    np.testing.assert_allclose(fitted.weight.numpy(), model.coef_, rtol=1e-9)
    np.testing.assert_allclose(fitted.bias.numpy(), model.intercept_, rtol=1e-9)


@pytest.mark.parametrize("kind", ["squared", "squared_many"])
def test_rank_deficient_least_squares_without_penalty(kind):
    arrays = made_arrays(kind)
    wider = np.column_stack([arrays["features"], np.zeros(60), arrays["features"][:, 0] * 3])
    fitted = refit(Head(**arrays | {"features": wider}))
    _, outputs = oracles.refit(arrays["features"], arrays["targets"], "squared")
    np.testing.assert_allclose(fitted.outputs.numpy(), outputs, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_separable_data_without_penalty_have_no_optimum(classes):
    rng = np.random.default_rng(0)
    targets = np.arange(30) % classes
    features = np.eye(classes)[targets] * 4 + 0.1 * rng.normal(size=(30, classes))
    outputs = np.zeros((30, 1 if classes == 2 else classes))
    words = (
        "refit: expected a head with a finite optimum, got .* the classes are separable or nearly so, give l2 above 0"
    )
    with pytest.raises(InputError, match=words):
        refit(Head(features, outputs, targets, "cross_entropy"))
    assert gradient_sum(refit(Head(features, outputs, targets, "cross_entropy", l2=1e-3))).relative < 1e-10
