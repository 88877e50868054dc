"""Conjugate gradients for many right sides against dense solves, with residuals recomputed from the matrix itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.linalg.cg import CONVERGED, NEGATIVE, RAN_OUT, SolveError, column_cg, shared_cg


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


@given(
    size=st.integers(1, 25),
    count=st.integers(1, 30),
    condition=st.sampled_from([1.0, 30.0, 1e4]),
    tolerance=st.sampled_from([1e-2, 1e-6, 1e-10]),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("solve", [column_cg, shared_cg])
def test_solves_to_the_true_residual(solve, size, count, condition, tolerance, seed):
    matrix, b = with_spectrum(np.geomspace(1, condition, size), seed), sides(size, count, seed + 1)
    solution = solve(product_with(matrix), b, tolerance=tolerance, most_steps=2_000)
    residuals = true_residuals(matrix, solution.x, b)
    assert residuals.max() <= 1.01 * tolerance
    np.testing.assert_allclose(solution.residual, residuals, rtol=1e-3, atol=max(1e-14, 1e-15 * condition))
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


@pytest.mark.parametrize("solve", [column_cg, shared_cg])
@pytest.mark.parametrize("lost", [1, 3, 7])
def test_singular_and_consistent_gives_the_solution_of_least_norm(lost, solve):
    matrix = with_spectrum([0.0] * lost + list(np.linspace(1, 50, 20)))
    b = matrix @ sides(20 + lost, 4)
    solution = solve(product_with(matrix), b, tolerance=1e-11)
    np.testing.assert_allclose(solution.x, np.linalg.pinv(matrix.numpy(), rcond=1e-10) @ b.numpy(), atol=1e-9)


@pytest.mark.parametrize("solve", [column_cg, shared_cg])
def test_right_sides_of_zero(solve):
    matrix, b = with_spectrum(np.linspace(1, 9, 12)), sides(12, 3)
    b[:, 1] = 0.0
    solution = solve(product_with(matrix), b, tolerance=1e-9)
    assert (solution.x[:, 1] == 0).all()
    assert (solution.status, float(solution.residual[1])) == ((CONVERGED,) * 3, 0.0)
    np.testing.assert_allclose(solution.x, np.linalg.solve(matrix.numpy(), b.numpy()), atol=1e-8)
    nothing = solve(product_with(matrix), torch.zeros(12, 3, dtype=torch.float64))
    assert (nothing.steps, nothing.status, nothing.x.abs().max()) == (0, (CONVERGED,) * 3, 0)


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


def test_negative_curvature_is_said_and_columns_that_never_meet_it_are_solved():
    matrix, b = with_spectrum([-3.0, *np.linspace(1, 5, 19)]), sides(20, 4)
    with pytest.raises(SolveError) as caught:
        column_cg(product_with(matrix), b, tolerance=1e-8)
    assert str(caught.value) == (
        "solve: expected a curvature that is nowhere negative, got 4 of 4 right sides along which it is; use the "
        "Gauss-Newton curvature, more damping (l2), or a higher precision"
    )
    bad = torch.linalg.eigh(matrix)[1][:, :1]
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
    options = {"tolerance": 1e-3, "most_steps": 300}
    misled = column_cg(rounded(matrix), b.float(), **options, allow_unconverged=True)
    assert true_residuals(matrix, misled.x, b).max() > 2e-3  # by themselves they do not
    exact = product_with(matrix)
    checked = {"exact_product": lambda v: exact(v.double()).float(), "trusted": 0.02}
    solution = column_cg(rounded(matrix), b.float(), **options, **checked)
    residuals = true_residuals(matrix, solution.x, b)
    assert residuals.max() <= 1.001e-3
    np.testing.assert_allclose(solution.residual, residuals, rtol=1e-3, atol=1e-6)
    assert exact.calls <= solution.steps / 3  # the exact product is the dear one


def test_a_wrong_product_is_found_out():
    """A product that has little to do with the matrix: the exact one tells, and the solve gives up."""
    matrix, b = with_spectrum(np.geomspace(1, 100, 40)), sides(40, 3)
    other = with_spectrum(np.geomspace(1, 100, 40), seed=9)
    options = {"tolerance": 1e-6, "most_steps": 1_000, "exact_product": product_with(matrix)}
    solution = column_cg(product_with(other), b, **options, allow_unconverged=True)
    assert set(solution.status) == {RAN_OUT}
    assert solution.steps < 1_000
    np.testing.assert_allclose(solution.residual, true_residuals(matrix, solution.x, b), rtol=1e-6)
    with pytest.raises(SolveError, match="expected a residual of 1e-06"):
        column_cg(product_with(other), b, **options)


@pytest.mark.parametrize("solve", [column_cg, shared_cg])
def test_the_words_when_steps_run_out(solve):
    matrix, b = with_spectrum(np.geomspace(1, 1e6, 50)), sides(50, 3)
    before, seen = b.clone(), []
    with pytest.raises(SolveError) as caught:
        solve(product_with(matrix), b, tolerance=1e-8, most_steps=3)
    words = str(caught.value)
    assert words.startswith("solve: expected a residual of 1e-08 for every right side, got ")
    assert words.endswith("for the worst of 3 after 3 steps; allow more steps, a larger tolerance, or more damping")
    found = solve(product_with(matrix), b, tolerance=1e-8, most_steps=3, allow_unconverged=True, on_step=seen.append)
    np.testing.assert_allclose(found.residual, true_residuals(matrix, found.x, b), rtol=1e-6)
    assert float(words.split("got ")[1].split()[0]) == pytest.approx(float(found.residual.max()), rel=0.05)
    assert (found.status, seen) == ((RAN_OUT,) * 3, [1, 2, 3])
    torch.testing.assert_close(b, before, rtol=0, atol=0)


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
    solution = shared_cg(product_with(matrix), b, tolerance=1e-9)
    torch.testing.assert_close(solution.x, torch.linalg.solve(matrix, b), rtol=1e-5, atol=1e-18)


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


def test_products_that_are_no_numbers_or_what_was_given():
    torch.testing.assert_close(shared_cg(lambda v: v, sides(9, 4)).x, sides(9, 4))
    with pytest.raises(SolveError, match="solve: expected finite products, got infinity or nan; use a wider dtype"):
        shared_cg(lambda v: v * float("nan"), sides(9, 5))
