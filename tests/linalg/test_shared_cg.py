"""Conjugate gradients whose right sides share their directions: against dense solves, and against each side alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.linalg.cg import CONVERGED, RAN_OUT, SolveError, column_cg, shared_cg
from tests.linalg.test_cg import product_with, sides, true_residuals, with_spectrum


@settings(max_examples=60)
@given(
    size=st.integers(1, 25),
    count=st.integers(1, 40),
    condition=st.sampled_from([1.0, 30.0, 1e4]),
    tolerance=st.sampled_from([1e-2, 1e-6, 1e-10]),
    seed=st.integers(0, 1000),
)
def test_solves_to_the_true_residual(size, count, condition, tolerance, seed):
    matrix, b = with_spectrum(np.geomspace(1, condition, size), seed), sides(size, count, seed + 1)
    solution = shared_cg(product_with(matrix), b, tolerance=tolerance, most_steps=500)
    residuals = true_residuals(matrix, solution.x, b)
    assert residuals.max() <= 1.01 * tolerance
    np.testing.assert_allclose(solution.residual, residuals, rtol=1e-3, atol=1e-15 * condition)
    assert solution.status == (CONVERGED,) * count
    expected = np.linalg.solve(matrix.numpy(), b.numpy())
    error = np.linalg.norm(solution.x.numpy() - expected, axis=0)
    assert (error <= 2 * tolerance * condition * np.linalg.norm(expected, axis=0)).all()


@pytest.mark.parametrize("condition", [1e2, 1e6])
def test_as_many_right_sides_as_dimensions_are_solved_in_one_step(condition):
    matrix = with_spectrum(np.geomspace(1, condition, 30))
    assert shared_cg(product_with(matrix), sides(30, 30), tolerance=1e-8).steps <= 2
    assert column_cg(product_with(matrix), sides(30, 30), tolerance=1e-8, most_steps=2_000).steps >= 20


def test_many_right_sides_take_fewer_steps_than_each_alone():
    matrix, b = with_spectrum(np.geomspace(1e-2, 1e4, 400)), sides(400, 40)
    shared = shared_cg(product_with(matrix), b, tolerance=1e-6, most_steps=2_000)
    alone = column_cg(product_with(matrix), b, tolerance=1e-6, most_steps=1_000, allow_unconverged=True)
    assert alone.status == (RAN_OUT,) * 40
    assert shared.steps <= 50  # ten blocks of forty are all directions that there are
    assert true_residuals(matrix, shared.x, b).max() <= 1e-6


def test_right_sides_that_say_the_same():
    matrix = with_spectrum(np.geomspace(1, 1e3, 20))
    one = sides(20, 2)
    b = torch.cat([one, 1e6 * one, one @ torch.tensor([[1.0, 1e-9], [2.0, -3e-9]], dtype=torch.float64)], 1)
    b = torch.cat([b, torch.zeros(20, 1, dtype=torch.float64)], 1)
    solution = shared_cg(product_with(matrix), b, tolerance=1e-9)
    torch.testing.assert_close(solution.x, torch.linalg.solve(matrix, b), rtol=1e-5, atol=1e-18)
    assert float(solution.x[:, -1].abs().max()) == 0.0
    nothing = shared_cg(product_with(matrix), torch.zeros(20, 3, dtype=torch.float64))
    assert (nothing.steps, nothing.status, float(nothing.residual.max())) == (0, (CONVERGED,) * 3, 0.0)


def test_right_sides_of_which_some_are_nothing_to_the_preconditioner():
    diagonal = torch.logspace(0, 12, 40, dtype=torch.float64).unsqueeze(1)
    b = torch.eye(40, dtype=torch.float64)[:, ::3] + 1e-3 * sides(40, 14) * diagonal.rsqrt()
    matrix = torch.diag(diagonal[:, 0])
    seen: list[int] = []

    def product(v: torch.Tensor) -> torch.Tensor:
        seen.append(v.shape[1])
        return diagonal.float() * v

    solution = shared_cg(product, b.float(), tolerance=1e-3, precondition=lambda r: r / diagonal.float())
    assert true_residuals(matrix, solution.x, b.float()).max() <= 2e-3
    assert len(seen) <= 7
    assert set(seen) == {14}


def test_a_matrix_without_an_inverse_is_solved_where_it_has_one():
    matrix = with_spectrum([0.0, 0.0, 0.0, *np.geomspace(1e-2, 1e2, 17)])
    b = matrix @ sides(20, 5)
    solution = shared_cg(product_with(matrix), b, tolerance=1e-9)
    assert true_residuals(matrix, solution.x, b).max() <= 1e-9
    torch.testing.assert_close(matrix @ solution.x, b, rtol=1e-6, atol=1e-9)


def test_a_preconditioner_shortens_it():
    diagonal = torch.logspace(-3, 3, 200, dtype=torch.float64).unsqueeze(1)
    matrix = torch.diag(diagonal[:, 0]) + 1e-4 * with_spectrum(np.linspace(0, 1, 200))
    b = sides(200, 6)
    plain = shared_cg(product_with(matrix), b, tolerance=1e-6, most_steps=3_000)
    helped = shared_cg(product_with(matrix), b, tolerance=1e-6, precondition=lambda r: r / diagonal)
    assert helped.steps < plain.steps / 4
    once = shared_cg(product_with(matrix), b, tolerance=1e-6, precondition=lambda r: torch.linalg.solve(matrix, r))
    assert once.steps == 1


def test_single_precision_gets_to_what_it_holds_and_says_how_far():
    matrix = with_spectrum(np.geomspace(1, 1e4, 120))
    b = sides(120, 24).float()
    solution = shared_cg(product_with(matrix.float()), b, tolerance=3e-4, most_steps=60)
    assert true_residuals(matrix, solution.x, b).max() <= 4e-4
    beyond = shared_cg(product_with(matrix.float()), b, tolerance=1e-9, most_steps=300, allow_unconverged=True)
    assert beyond.status.count(RAN_OUT) > 0
    np.testing.assert_allclose(beyond.residual, true_residuals(matrix, beyond.x, b), rtol=0.5, atol=1e-5)


def test_running_out_of_steps():
    matrix, b = with_spectrum(np.geomspace(1, 1e6, 80)), sides(80, 2)
    words = r"solve: expected a residual of 1e-08 for every right side, got .* of 2 after 3 steps; allow more steps"
    with pytest.raises(SolveError, match=words):
        shared_cg(product_with(matrix), b, tolerance=1e-8, most_steps=3)
    seen: list[int] = []
    found = shared_cg(
        product_with(matrix), b, tolerance=1e-8, most_steps=3, allow_unconverged=True, on_step=seen.append
    )
    assert seen == [1, 2, 3]
    assert found.status == (RAN_OUT, RAN_OUT)
    np.testing.assert_allclose(found.residual, true_residuals(matrix, found.x, b), rtol=1e-6)


@pytest.mark.parametrize("least", [0.0, 1e-4])
def test_rounding_does_not_lead_away_where_the_matrix_is_nearly_singular(least):
    rng = np.random.default_rng(0)
    jacobian = torch.from_numpy(rng.normal(size=(100, 400))).float()
    matrix = jacobian.T @ jacobian + least * torch.eye(400)
    b = jacobian.T @ torch.from_numpy(rng.normal(size=(100, 128))).float()
    solution = shared_cg(product_with(matrix), b, tolerance=1e-3, allow_unconverged=True)
    assert float(solution.residual.max()) <= 1e-2
    np.testing.assert_allclose(solution.residual, true_residuals(matrix.double(), solution.x, b), rtol=0.2, atol=1e-4)


def test_nothing_worse_than_nothing_is_returned():
    matrix, b = with_spectrum(np.geomspace(1e-9, 1.0, 60)).float(), sides(60, 12).float()  # no solution in float32
    solution = shared_cg(product_with(matrix), b, tolerance=1e-6, most_steps=100, allow_unconverged=True)
    assert set(solution.status) == {RAN_OUT}
    assert float(solution.residual.max()) <= 1.0
    np.testing.assert_allclose(solution.residual, true_residuals(matrix.double(), solution.x, b), rtol=0.2, atol=1e-3)


def test_a_product_may_hand_back_what_it_was_given():
    b = sides(9, 4)
    solution = shared_cg(lambda v: v, b)
    torch.testing.assert_close(solution.x, b)


def test_products_that_are_no_numbers():
    with pytest.raises(SolveError, match="solve: expected finite products, got infinity or nan; use a wider dtype"):
        shared_cg(lambda v: v * float("nan"), sides(9, 5))
