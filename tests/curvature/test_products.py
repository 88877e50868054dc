"""Products with a curvature that is never formed, against one that is: Kronecker products a record, derivatives by
automatic differentiation; and its preconditioners: positive, exact where they can be, no part of the solution."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway import Head
from giveaway.curvature import products as products_module
from giveaway.curvature.products import ClassBlocks, HeadProducts, SharedGram, preconditioner_for
from giveaway.linalg.cg import Solution, column_cg
from giveaway.linalg.precision import Precision, signs
from giveaway.linalg.processes import Execution
from tests.conftest import KINDS, made_arrays, made_head
from tests.curvature.cases import (
    FLOAT32,
    FLOAT64,
    OPTIONS,
    SOME_WEIGHTS,
    explicit_curvature,
    explicit_root,
    unseen,
    vectors_for,
)


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
    other = explicit_curvature(head, 9.0) @ v.numpy().reshape(-1, 7)
    np.testing.assert_allclose(HeadProducts(head, 9.0).apply(v, FLOAT64).reshape(-1, 7), other, rtol=1e-10, atol=1e-10)
    theta = torch.from_numpy(np.random.default_rng(0).normal(size=(head.width, head.m)))
    assert products.as_vectors(theta).shape == (*products.shape, head.m if products.loss.shared else 1)
    assert torch.equal(products.as_parameters(products.as_vectors(theta)), theta)


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


@given(
    kind=st.sampled_from(["squared_many", "one_logit", "classes", "multi_label"]),
    cut=st.tuples(st.integers(0, 99), st.integers(1, 100)).filter(lambda cut: cut[0] < cut[1]),
    rows=st.integers(1, 70),
)
def test_windows_and_cuts_of_the_probes_change_nothing(kind, cut, rows):
    head = made_head(kind, l2=0.3)
    products = HeadProducts(head, head.l2)
    whole = products.draw(2, slice(0, 100), FLOAT64)
    v = vectors_for(products, 3)
    applied = products.apply(v, FLOAT64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products_module, "LEAST_ROWS", 1)
        patch.setattr(products_module, "MOST_ROWS", rows)
        assert max(len(window) for window in products.windows(1)) <= rows
        part = products.draw(2, slice(*cut), FLOAT64)
        torch.testing.assert_close(part, whole[:, :, cut[0] : cut[1]], rtol=0, atol=1e-12 * float(whole.abs().max()))
        again = products.apply(v, FLOAT64)
        torch.testing.assert_close(again, applied, rtol=0, atol=1e-13 * float(applied.abs().max()))


def test_every_row_is_read_once_a_product():
    seen = []
    products = HeadProducts(made_head("classes"), 0.1, Execution(on_rows=seen.append))
    products.apply(vectors_for(products, 2), FLOAT64)
    products.draw(0, slice(0, 5), FLOAT64)
    assert sum(seen) == 120


@pytest.mark.parametrize(
    ("lead", "precision", "error", "of_draws"),
    [
        (8.0, FLOAT64, 1e-9, 1e-11),
        (8.0, FLOAT32, 2e-2, 1e-4),
        (20.0, FLOAT32, 1e-4, 1e-4),
        (50.0, FLOAT32, 1e-4, 1e-4),
        (50.0, FLOAT64, 1e-12, 1e-11),
        (80.0, FLOAT64, 1e-12, 1e-11),
    ],
)
def test_sure_records_keep_their_digits(lead, precision, error, of_draws):
    """Every record's own class leads by about `lead`: W is e^-lead, and nothing else hides what is lost of it."""
    head = made_head("classes", n=30)
    outputs = lead * np.eye(5)[head.targets.numpy()] + np.random.default_rng(1).normal(size=(30, 5))
    head = Head(head.features, outputs, head.targets, loss="cross_entropy")
    probabilities = np.exp(outputs - outputs.max(1, keepdims=True))
    probabilities /= probabilities.sum(1, keepdims=True)
    products = HeadProducts(head, 0.0)
    v, omega = vectors_for(products, 3), signs(7, torch.arange(head.n), head.m, slice(0, 6)).numpy()
    applied = products.apply(v.to(precision.dtype), precision).double().numpy()
    drawn = products.draw(7, slice(0, 6), precision).double().numpy()
    curved, rooted = np.zeros(applied.shape), np.zeros(drawn.shape)
    for row, p, w in zip(head.features.numpy(), probabilities, omega, strict=True):
        x, top, complement = np.append(row, 1.0), p.argmax(), 1.0 - p
        complement[top] = np.delete(p, top).sum()  # the leading class's, as the sum of the others'
        u = np.einsum("d,dks->ks", x, v.numpy())
        W = np.diag(p * complement) - (np.outer(p, p) - np.diag(p * p))
        W[top, top] = -np.delete(W[top], top).sum()
        curved += x[:, None, None] * (W @ (u - u[top]))  # W sees contrasts only
        root = np.diag(np.sqrt(p) * complement) - (np.outer(p, np.sqrt(p)) - np.diag(p * np.sqrt(p)))
        rooted += x[:, None, None] * (root @ w)
    np.testing.assert_allclose(applied, curved, rtol=0, atol=error * np.abs(curved).max())
    np.testing.assert_allclose(drawn, rooted, rtol=0, atol=of_draws * np.abs(rooted).max())


SOME = ["squared_many", "one_logit", "classes", "multi_label"]


def matrix_of(preconditioner: Any, products: HeadProducts) -> np.ndarray:
    """What it does to the unit vectors."""
    size = products.width * products.k
    unit = torch.eye(size, dtype=torch.float64).view(*products.shape, size)
    return preconditioner(unit).reshape(size, size).numpy()


def solved(products: HeadProducts, preconditioner: Any | None, precision: Precision = FLOAT64) -> Solution:
    """H x = A v for a known v, to 1e-10 (float64) or 1e-4."""
    exact = vectors_for(products, 4)
    options = {"tolerance": 1e-10}
    if precision is not FLOAT64:
        options = {"tolerance": 1e-4, "exact_product": lambda v: products.apply(v.double(), FLOAT64).to(v.dtype)}
    right = products.apply(exact, FLOAT64).to(precision.dtype)
    return column_cg(
        lambda v: products.apply(v, precision), right, precondition=preconditioner, most_steps=400, **options
    )


@pytest.mark.parametrize("penalize", [True, False])
@pytest.mark.parametrize("kind", ["squared", "squared_many", "one_logit", "multi_label"])
def test_class_blocks_are_the_inverse_where_outputs_are_separate(kind, penalize):
    head = made_head(kind, l2=0.2, penalize_intercept=penalize, sample_weight=SOME_WEIGHTS)
    products = HeadProducts(head, head.l2)
    found = matrix_of(ClassBlocks(products, FLOAT64), products)
    expected = np.linalg.inv(explicit_curvature(head))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert solved(products, ClassBlocks(products, FLOAT64)).steps <= 3
    assert solved(products, ClassBlocks(products, FLOAT32), FLOAT32).steps <= 2


def test_class_blocks_of_softmax_are_the_inverted_diagonal_blocks():
    head = made_head("classes", l2=0.2, sample_weight=SOME_WEIGHTS)
    products = HeadProducts(head, head.l2)
    H = explicit_curvature(head).reshape(head.width, 5, head.width, 5)
    expected = np.zeros(H.shape)
    for k in range(5):
        expected[:, k, :, k] = np.linalg.inv(H[:, k, :, k])
    projection = np.kron(np.eye(head.width), unseen(head))
    expected = projection @ expected.reshape(projection.shape)
    found = matrix_of(ClassBlocks(products, FLOAT64), products)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("precision", [FLOAT64, FLOAT32], ids=["float64", "float32"])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("made", [ClassBlocks, SharedGram])
@pytest.mark.parametrize("kind", SOME)
def test_symmetric_and_positive_on_what_the_loss_sees(kind, made, l2, precision):
    head = made_head(kind, l2=l2, penalize_intercept=False, sample_weight=SOME_WEIGHTS)
    products = HeadProducts(head, head.l2)
    preconditioner = made(products, precision)
    columns = [preconditioner(v.to(precision.dtype)) for v in vectors_for(products, 3).split(1, 2)]
    if products.loss.coupled:
        for column in columns:
            assert float(column.sum(1).abs().max()) < 1e-4 * float(column.abs().max())
    unit = torch.eye(products.width * products.k, dtype=precision.dtype).view(*products.shape, -1)
    projection = np.kron(np.eye(head.width), unseen(head))
    matrix = preconditioner(unit).double().reshape(projection.shape).numpy() @ projection
    rounding = 1e-12 if precision is FLOAT64 else 1e-5
    np.testing.assert_allclose(matrix, matrix.T, rtol=0, atol=rounding * np.abs(matrix).max())
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    lost = len(values) - round(np.trace(projection))
    assert (values[lost:] > 0).all()
    assert np.abs(values[:lost]).max(initial=0.0) < rounding * values[-1]


@pytest.mark.parametrize("made", [ClassBlocks, SharedGram])
@pytest.mark.parametrize("kind", SOME)
def test_solutions_are_those_of_the_matrix(kind, made):
    head = made_head(kind, l2=0.05, sample_weight=SOME_WEIGHTS)
    products = HeadProducts(head, head.l2)
    exact = vectors_for(products, 4)
    for precision, error in ((FLOAT64, 1e-7), (FLOAT32, 1e-2)):
        solution = solved(products, made(products, precision), precision)
        torch.testing.assert_close(solution.x.double(), exact, rtol=0, atol=error)


def scaled_head(n: int = 400) -> Head:
    """Features in units a thousand times apart, and two rare classes."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(n, 8)) * np.geomspace(1, 1e3, 8)
    outputs = 2 * rng.normal(size=(n, 6)) + [0, 0, 0, 0, -4, -6]
    return Head(features, outputs, rng.integers(0, 6, n), loss="cross_entropy", l2=1e-2)


def test_both_save_steps_where_features_differ_in_size():
    products = HeadProducts(scaled_head(), 1e-2)
    blocks = solved(products, ClassBlocks(products, FLOAT64)).steps
    shared = solved(products, SharedGram(products, FLOAT64)).steps
    assert blocks <= 40
    assert blocks <= shared <= 150
    plain = column_cg(
        lambda v: products.apply(v, FLOAT64),
        products.apply(vectors_for(products, 4), FLOAT64),
        tolerance=1e-10,
        most_steps=150,
        allow_unconverged=True,
    )
    assert set(plain.status) == {"steps"}


@pytest.mark.parametrize("heaviest", [1, 5, 50])
def test_fewer_records_change_the_steps_and_not_the_solution(monkeypatch, heaviest):
    products = HeadProducts(scaled_head(), 1e-2)
    exact, every = vectors_for(products, 4), solved(products, ClassBlocks(products, FLOAT64))
    monkeypatch.setattr(products_module, "HEAVIEST", heaviest)
    few = ClassBlocks(products, FLOAT64, every_record=False)
    projection = np.kron(np.eye(products.width), unseen(products.head))
    matrix = matrix_of(few, products) @ projection
    values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    assert (values[products.width :] > 0).all()
    solution = solved(products, few)
    assert every.steps < solution.steps < 150
    right = products.apply(exact, FLOAT64)
    left = products.apply(solution.x, FLOAT64) - right
    assert float(torch.linalg.vector_norm(left) / torch.linalg.vector_norm(right)) < 1e-9


@pytest.mark.parametrize(("precision", "error"), [(FLOAT64, 1e-6), (FLOAT32, 2e-2)], ids=["float64", "float32"])
@pytest.mark.parametrize("repeated", [False, True], ids=["dead", "repeated"])
@pytest.mark.parametrize("made", [ClassBlocks, SharedGram])
@pytest.mark.parametrize("kind", SOME)
def test_features_without_a_direction_of_their_own(kind, made, repeated, precision, error):
    """A column of zeros, or one twice, unpenalized: a singular and consistent system. The scores need xᵀH⁻¹x only."""
    arrays = made_arrays(kind)
    features = arrays["features"]
    added = features[:, 0] if repeated else np.zeros(len(features))
    head = Head(**arrays | {"features": np.insert(features, 2, added, axis=1)})
    products = HeadProducts(head, 0.0)
    x = head.window(slice(0, head.n)).rows()
    expected = torch.einsum("nd,dks->nks", x, vectors_for(products, 4))
    solution = solved(products, made(products, precision), precision)
    seen = torch.einsum("nd,dks->nks", x, solution.x.double())
    torch.testing.assert_close(seen, expected, rtol=0, atol=error * float(expected.abs().max()))


def test_the_better_one_where_it_fits():
    head = made_head("classes", n=200)
    products = HeadProducts(head, 0.1)
    needed = 5 * 5 * 5 * 8
    assert preconditioner_for(products, needed, 32, FLOAT64).name == "class blocks"
    assert preconditioner_for(products, needed - 1, 32, FLOAT64).name == "shared"
    assert preconditioner_for(products, needed - 1, 32, FLOAT32).name == "class blocks"
    # one column does not pay for summing every record: their weights are held instead
    assert preconditioner_for(products, needed + 2 * 5 * 200, 1, FLOAT64).name == "class blocks"
    assert preconditioner_for(products, needed + 2 * 5 * 200 - 1, 1, FLOAT64).name == "shared"
