"""Products with a curvature that is never formed, against one that is: Kronecker products a record, derivatives by
automatic differentiation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway import Head
from giveaway.curvature import products as products_module
from giveaway.curvature.products import HeadProducts
from giveaway.linalg.precision import signs
from tests.conftest import KINDS, made_head
from tests.curvature.cases import FLOAT32, FLOAT64, OPTIONS, explicit_curvature, explicit_root, unseen, vectors_for


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "many_classes"])
def test_apply_against_kronecker_products(kind, options):
    head = made_head(kind, **OPTIONS[options])
    products = HeadProducts(head, head.l2)
    v = vectors_for(products, 7)
    expected = explicit_curvature(head) @ v.numpy().reshape(-1, 7)
    found = products.apply(v, FLOAT64).numpy().reshape(-1, 7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * np.abs(expected).max())
    single = products.apply(v.float(), FLOAT32)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.reshape(-1, 7), expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_another_penalty_than_the_head_s():
    head = made_head("classes", l2=0.4)
    products = HeadProducts(head, 9.0)
    v = vectors_for(products, 2)
    expected = explicit_curvature(head, 9.0) @ v.numpy().reshape(-1, 2)
    np.testing.assert_allclose(products.apply(v, FLOAT64).reshape(-1, 2), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "two_classes", "classes", "soft_labels", "multi_label"])
def test_draws_are_the_root_times_its_signs(kind, options):
    head = made_head(kind, **OPTIONS[options])
    products = HeadProducts(head, head.l2)
    probes = slice(3, 45)
    root = explicit_root(head)
    H = explicit_curvature(head)
    projection = np.kron(np.eye(head.width), unseen(head))
    np.testing.assert_allclose(root.T @ root, projection @ H @ projection, atol=1e-10 * np.abs(H).max())
    omega = signs(11, torch.arange(head.n + head.width), products.k, probes).numpy().reshape(len(root), -1)
    expected = root.T @ omega
    found = products.draw(11, probes, FLOAT64).numpy().reshape(len(H), -1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    single = products.draw(11, probes, FLOAT32).numpy().reshape(len(H), -1)
    np.testing.assert_allclose(single, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@settings(max_examples=25)
@given(
    kind=st.sampled_from(["squared_many", "one_logit", "classes", "multi_label"]),
    cut=st.tuples(st.integers(0, 99), st.integers(1, 100)).filter(lambda cut: cut[0] < cut[1]),
    rows=st.integers(1, 70),
    cached=st.integers(1, 20_000),
)
def test_windows_and_cuts_of_the_probes_change_nothing(kind, cut, rows, cached):
    head = made_head(kind, l2=0.3)
    products = HeadProducts(head, head.l2)
    whole = products.draw(2, slice(0, 100), FLOAT64)
    v = vectors_for(products, 3)
    applied = products.apply(v, FLOAT64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products_module, "LEAST_ROWS", 1)
        patch.setattr(products_module, "MOST_ROWS", rows)
        patch.setattr(products_module, "CACHED", cached)
        assert max(len(window) for window in products.windows(1)) <= rows
        part = products.draw(2, slice(*cut), FLOAT64)
        torch.testing.assert_close(part, whole[:, :, cut[0] : cut[1]], rtol=0, atol=1e-12 * float(whole.abs().max()))
        again = products.apply(v, FLOAT64)
        torch.testing.assert_close(again, applied, rtol=0, atol=1e-13 * float(applied.abs().max()))


def test_every_row_is_read_once_a_product():
    seen = []
    products = HeadProducts(made_head("classes"), 0.1, on_rows=seen.append)
    products.apply(vectors_for(products, 2), FLOAT64)
    products.draw(0, slice(0, 5), FLOAT64)
    assert sum(seen) == 120


@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "classes", "multi_label"])
def test_parameters_as_vectors_and_back(kind):
    head = made_head(kind)
    products = HeadProducts(head, 0.0)
    theta = torch.from_numpy(np.random.default_rng(0).normal(size=(head.width, head.m)))
    v = products.as_vectors(theta)
    assert v.shape == (*products.shape, head.m if products.loss.shared else 1)
    torch.testing.assert_close(products.as_parameters(v), theta, rtol=0, atol=0)


def sure_head(lead: float) -> Head:
    """Every record's own class leads by about `lead`."""
    head = made_head("classes", n=30)
    outputs = lead * np.eye(5)[head.targets.numpy()] + np.random.default_rng(1).normal(size=(30, 5))
    return Head(head.features, outputs, head.targets, loss="cross_entropy")


def sure_terms(head: Head) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x (n, d), p (n, m), and 1 − p, the leading class's as the sum of the others'."""
    outputs = head.outputs.numpy()
    p = np.exp(outputs - outputs.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    complement = 1.0 - p
    for j, top in enumerate(p.argmax(1)):
        complement[j, top] = np.delete(p[j], top).sum()
    return np.column_stack([head.features.numpy(), np.ones(head.n)]), p, complement


@pytest.mark.parametrize(
    ("lead", "precision", "error"),
    [
        (8.0, FLOAT64, 1e-9),
        (8.0, FLOAT32, 2e-2),
        (20.0, FLOAT32, 1e-4),
        (50.0, FLOAT32, 1e-4),
        (50.0, FLOAT64, 1e-12),
    ],
)
def test_sure_records_keep_their_digits(lead, precision, error):
    """W is e^-lead of all records, and nothing else is there to hide what is lost of it."""
    head = sure_head(lead)
    products = HeadProducts(head, 0.0)
    v = vectors_for(products, 3)
    found = products.apply(v.to(precision.dtype), precision).double().numpy()
    expected = np.zeros(found.shape)
    for x, p, complement in zip(*sure_terms(head), strict=True):
        u = np.einsum("d,dks->ks", x, v.numpy())
        W = np.diag(p * complement) - (np.outer(p, p) - np.diag(p * p))
        top = p.argmax()
        W[top, top] = -np.delete(W[top], top).sum()
        u = u - u[top]  # W sees contrasts only
        expected += x[:, None, None] * (W @ u)
    np.testing.assert_allclose(found, expected, rtol=0, atol=error * np.abs(expected).max())


@pytest.mark.parametrize(
    ("lead", "precision", "error"),
    [
        (8.0, FLOAT64, 1e-11),
        (8.0, FLOAT32, 1e-4),
        (30.0, FLOAT32, 1e-4),
        (80.0, FLOAT64, 1e-11),
    ],
)
def test_draws_of_sure_records_keep_their_digits(lead, precision, error):
    head = sure_head(lead)
    products = HeadProducts(head, 0.0)
    found = products.draw(7, slice(0, 6), precision).double().numpy()
    omega = signs(7, torch.arange(head.n), head.m, slice(0, 6)).numpy()
    expected = np.zeros(found.shape)
    for x, p, complement, w in zip(*sure_terms(head), omega, strict=True):
        root = np.diag(np.sqrt(p) * complement)
        root -= np.outer(p, np.sqrt(p)) - np.diag(p * np.sqrt(p))
        expected += x[:, None, None] * (root @ w)
    np.testing.assert_allclose(found, expected, rtol=0, atol=error * np.abs(expected).max())
