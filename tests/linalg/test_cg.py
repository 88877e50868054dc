"""Conjugate gradients for many right sides against dense solves, with residuals recomputed from the matrix itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.linalg.cg import CONVERGED, NEGATIVE, RAN_OUT, SolveError, column_cg


def with_spectrum(values, seed: int = 0) -> torch.Tensor:
    """A symmetric matrix with these eigenvalues."""
    values = np.asarray(values, dtype=np.float64)
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))
    matrix = (q * values) @ q.T
    return torch.from_numpy((matrix + matrix.T) / 2)


def sides(size: int, count: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(size, count)))


def product_with(matrix: torch.Tensor):
    """Counts its calls."""

    def product(v: torch.Tensor) -> torch.Tensor:
        product.calls += 1
        return (matrix @ v.reshape(len(matrix), -1)).view_as(v)

    product.calls = 0
    return product


def true_residuals(matrix: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> np.ndarray:
    """‖b − A x‖/‖b‖ a column, in float64."""
    b = b.numpy().astype(np.float64)
    left = b - matrix.numpy() @ x.numpy().astype(np.float64)
    return np.linalg.norm(left, axis=0) / np.linalg.norm(b, axis=0)


@settings(max_examples=40)
@given(
    size=st.integers(1, 25),
    count=st.integers(1, 6),
    condition=st.sampled_from([1.0, 30.0, 1e4]),
    tolerance=st.sampled_from([1e-2, 1e-6, 1e-10]),
    seed=st.integers(0, 1000),
)
def test_solves_to_the_true_residual(size, count, condition, tolerance, seed):
    matrix, b = with_spectrum(np.geomspace(1, condition, size), seed), sides(size, count, seed + 1)
    solution = column_cg(product_with(matrix), b, tolerance=tolerance, most_steps=2_000)
    residuals = true_residuals(matrix, solution.x, b)
    assert residuals.max() <= 1.01 * tolerance
    np.testing.assert_allclose(solution.residual, residuals, rtol=1e-3, atol=1e-14)
    assert solution.status == (CONVERGED,) * count
    expected = np.linalg.solve(matrix.numpy(), b.numpy())
    error = np.linalg.norm(solution.x.numpy() - expected, axis=0)
    # ‖x − A⁻¹b‖ ≤ ‖A⁻¹‖·‖r‖, and the smallest eigenvalue is one
    assert (error <= 1.02 * tolerance * np.linalg.norm(b.numpy(), axis=0) + 1e-13).all()


def test_as_many_steps_as_distinct_eigenvalues():
    """What makes it conjugate gradients: plain descent would take dozens."""
    matrix = with_spectrum([1.0] * 10 + [7.0] * 10 + [200.0] * 10)
    assert column_cg(product_with(matrix), sides(30, 4), tolerance=1e-9).steps == 3


def test_a_preconditioner_takes_an_ill_conditioned_matrix():
    scale = torch.from_numpy(np.geomspace(1, 1e5, 60))
    matrix = scale[:, None] * with_spectrum(np.linspace(1, 4, 60)) * scale
    b = sides(60, 5)
    with pytest.raises(SolveError):
        column_cg(product_with(matrix), b, tolerance=1e-6, most_steps=100)
    diagonal = matrix.diagonal().unsqueeze(1)
    solution = column_cg(product_with(matrix), b, tolerance=1e-6, most_steps=100, precondition=lambda r: r / diagonal)
    assert solution.steps < 40
    assert true_residuals(matrix, solution.x, b).max() <= 1e-6
    once = column_cg(product_with(matrix), b, tolerance=1e-6, precondition=lambda r: torch.linalg.solve(matrix, r))
    assert once.steps <= 2


@pytest.mark.parametrize("lost", [1, 7])
def test_singular_and_consistent_gives_the_solution_of_least_norm(lost):
    matrix = with_spectrum([0.0] * lost + list(np.linspace(1, 50, 20)))
    b = matrix @ sides(20 + lost, 4)
    solution = column_cg(product_with(matrix), b, tolerance=1e-11)
    np.testing.assert_allclose(solution.x, np.linalg.pinv(matrix.numpy(), rcond=1e-10) @ b.numpy(), atol=1e-9)


def test_right_sides_of_zero():
    matrix, b = with_spectrum(np.linspace(1, 9, 12)), sides(12, 3)
    b[:, 1] = 0.0
    solution = column_cg(product_with(matrix), b, tolerance=1e-9)
    assert (solution.x[:, 1] == 0).all()
    assert solution.status == (CONVERGED,) * 3
    assert float(solution.residual[1]) == 0
    np.testing.assert_allclose(solution.x, np.linalg.solve(matrix.numpy(), b.numpy()), atol=1e-8)
    nothing = column_cg(product_with(matrix), torch.zeros(12, 3, dtype=torch.float64))
    assert (nothing.steps, nothing.x.abs().max()) == (0, 0)


def test_it_is_the_worst_column_that_stops_it():
    """An eigenvector is solved in one step; a mean over the columns would stop there."""
    matrix = with_spectrum(np.geomspace(1, 1e3, 40))
    easy = torch.linalg.eigh(matrix)[1][:, -1:].repeat(1, 99)
    b = torch.cat([easy, sides(40, 1)], 1)
    solution = column_cg(product_with(matrix), b, tolerance=1e-4)
    assert solution.steps > 20
    assert true_residuals(matrix, solution.x, b)[-1] <= 1e-4
    few = column_cg(product_with(matrix), b, tolerance=1e-4, most_steps=5, allow_unconverged=True)
    assert few.status == (CONVERGED,) * 99 + (RAN_OUT,)
    assert few.steps == 5
    np.testing.assert_allclose(few.residual, true_residuals(matrix, few.x, b), atol=1e-12)


def test_columns_do_not_mix():
    """Each column as if it were alone, up to rounding, and whatever the dimensions before the last."""
    matrix, b = with_spectrum(np.geomspace(1, 1e3, 24)), sides(24, 5)
    together = column_cg(product_with(matrix), b, tolerance=1e-9)
    for k in range(5):
        alone = column_cg(product_with(matrix), b[:, k : k + 1], tolerance=1e-9)
        np.testing.assert_allclose(alone.x[:, 0], together.x[:, k], atol=1e-8)
    shaped = column_cg(product_with(matrix), b.view(6, 4, 5), tolerance=1e-9)
    torch.testing.assert_close(shaped.x.view(24, 5), together.x, rtol=0, atol=0)
    assert shaped.x.shape == (6, 4, 5)


def test_the_words_when_steps_run_out():
    matrix, b = with_spectrum(np.geomspace(1, 1e6, 50)), sides(50, 3)
    with pytest.raises(SolveError) as caught:
        column_cg(product_with(matrix), b, tolerance=1e-8, most_steps=7)
    words = str(caught.value)
    assert words.startswith("solve: expected a residual of 1e-08 for every right side, got ")
    assert words.endswith("for the worst of 3 after 7 steps; allow more steps, a larger tolerance, or more damping")
    worst = float(words.split("got ")[1].split()[0])
    found = column_cg(product_with(matrix), b, tolerance=1e-8, most_steps=7, allow_unconverged=True)
    assert worst == pytest.approx(true_residuals(matrix, found.x, b).max(), rel=0.05)
    assert found.status == (RAN_OUT,) * 3


def test_negative_curvature_is_said_with_its_remedy():
    matrix, b = with_spectrum([-3.0, *np.linspace(1, 5, 19)]), sides(20, 4)
    with pytest.raises(SolveError) as caught:
        column_cg(product_with(matrix), b, tolerance=1e-8)
    assert str(caught.value) == (
        "solve: expected a curvature that is nowhere negative, got 4 of 4 right sides along which it is; use the "
        "Gauss-Newton curvature, more damping (l2), or a higher precision"
    )


def test_columns_that_never_meet_the_negative_direction_are_solved():
    matrix = with_spectrum([-3.0, *np.linspace(1, 5, 19)])
    bad = torch.linalg.eigh(matrix)[1][:, :1]
    b = sides(20, 4)
    b = b - bad @ (bad.T @ b)
    b[:, 2:3] += bad
    solution = column_cg(product_with(matrix), b, tolerance=1e-6, allow_unconverged=True)
    assert solution.status == (CONVERGED, CONVERGED, NEGATIVE, CONVERGED)
    assert solution.x.isfinite().all()
    assert true_residuals(matrix, solution.x, b)[[0, 1, 3]].max() <= 1e-6


def rounded(matrix: torch.Tensor):
    """Products whose factors and result have the eight bits of bfloat16, summed in float32."""
    cheap = matrix.to(torch.bfloat16).float()

    def product(v: torch.Tensor) -> torch.Tensor:
        return (cheap @ v.to(torch.bfloat16).float()).to(torch.bfloat16).float()

    return product


def test_cheap_products_reach_the_tolerance_in_the_true_residual():
    matrix, b = with_spectrum(np.geomspace(1, 100, 80)), sides(80, 6)
    misled = column_cg(rounded(matrix), b.float(), tolerance=1e-3, most_steps=300, allow_unconverged=True)
    assert true_residuals(matrix, misled.x, b).max() > 2e-3  # by themselves they do not
    exact = product_with(matrix)
    solution = column_cg(
        rounded(matrix),
        b.float(),
        tolerance=1e-3,
        most_steps=300,
        exact_product=lambda v: exact(v.double()).float(),
        trusted=0.02,
    )
    residuals = true_residuals(matrix, solution.x, b)
    assert residuals.max() <= 1.001e-3
    np.testing.assert_allclose(solution.residual, residuals, rtol=1e-3, atol=1e-6)
    assert exact.calls <= solution.steps / 3  # the exact product is the dear one


def test_a_wrong_product_is_found_out():
    """A product that has little to do with the matrix: the exact one tells, and the solve gives up."""
    matrix, b = with_spectrum(np.geomspace(1, 100, 40)), sides(40, 3)
    other = with_spectrum(np.geomspace(1, 100, 40), seed=9)
    solution = column_cg(
        product_with(other),
        b,
        tolerance=1e-6,
        most_steps=1_000,
        exact_product=product_with(matrix),
        allow_unconverged=True,
    )
    assert set(solution.status) == {RAN_OUT}
    assert solution.steps < 1_000
    np.testing.assert_allclose(solution.residual, true_residuals(matrix, solution.x, b), rtol=1e-6)
    with pytest.raises(SolveError, match="expected a residual of 1e-06"):
        column_cg(product_with(other), b, tolerance=1e-6, most_steps=1_000, exact_product=product_with(matrix))


def test_start_is_gone_on_from():
    matrix, b = with_spectrum(np.geomspace(1, 1e4, 40)), sides(40, 3)
    first = column_cg(product_with(matrix), b, tolerance=1e-3)
    kept = first.x.clone()
    again = column_cg(product_with(matrix), b, tolerance=1e-3, start=first.x)
    assert again.steps == 0
    torch.testing.assert_close(again.x, first.x, rtol=0, atol=0)
    near = torch.linalg.solve(matrix, b) + 1e-6 * sides(40, 3, 8)
    cold, warm = (column_cg(product_with(matrix), b, tolerance=1e-6, start=at) for at in (None, near))
    assert warm.steps < cold.steps
    assert true_residuals(matrix, warm.x, b).max() <= 1e-6
    torch.testing.assert_close(first.x, kept, rtol=0, atol=0)  # a start is not written to


def test_every_step_is_reported():
    seen = []
    solution = column_cg(product_with(with_spectrum(np.linspace(1, 30, 20))), sides(20, 2), on_step=seen.append)
    assert seen == list(range(1, solution.steps + 1))


def test_right_side_is_left_alone():
    matrix, b = with_spectrum(np.linspace(1, 30, 20)), sides(20, 2)
    before = b.clone()
    column_cg(product_with(matrix), b)
    torch.testing.assert_close(b, before, rtol=0, atol=0)
