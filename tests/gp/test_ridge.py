"""Left-out errors of ridge regression against fitting again without the records."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.gp import ridge as module
from giveaway.gp.ridge import leave_one_out_ridge, rows_of_groups
from tests.conftest import refused

GRID = [1e-3, 0.1, 1.0, 30.0, 1e3]


def draw(n, d, outputs=2, seed=0, offset=3.0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, dtype=torch.float64, generator=generator) * torch.logspace(-2, 2, d) + offset
    w = torch.randn(d, outputs, dtype=torch.float64, generator=generator) / torch.logspace(-2, 2, d).unsqueeze(1)
    y = x @ w + 5.0 + torch.randn(n, outputs, dtype=torch.float64, generator=generator)
    return x, y


def refits(x, y, l2, groups, standardize=True):
    """Each group predicted by an intercept and weights fitted to the others; columns scaled as with all records."""
    z = x - x.mean(0)  # for the digits: the intercept is free
    z = z / x.std(0, correction=0) if standardize else z
    a = torch.cat([torch.ones(len(x), 1, dtype=torch.float64), z], dim=1)
    penalty = l2 * torch.eye(a.shape[1], dtype=torch.float64)
    penalty[0, 0] = 0.0
    out = torch.empty_like(y)
    for name in groups.unique():
        rows = groups == name
        b = a[~rows]
        out[rows] = a[rows] @ torch.linalg.solve(b.T @ b + penalty, b.T @ y[~rows])
    return out


def in_blocks(x, sizes):
    return lambda: iter(x.split(sizes))


def ridge(x, y, l2=None, **options):
    """leave_one_out_ridge of features in one block; `prediction` beside the errors."""
    blocks = x if callable(x) else lambda: iter([x])
    result = leave_one_out_ridge(blocks, y, **({} if l2 is None else {"grid": [l2]}), **options)
    return SimpleNamespace(**vars(result), prediction=torch.as_tensor(y).reshape(len(y), -1) - result.error)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize(("n", "d"), [(40, 5), (12, 12), (10, 25)])
def test_every_record_is_predicted_as_after_a_refit_without_it(n, d, standardize):
    x, y = draw(n, d, offset=0.3)
    view = ridge(x, y, l2=2.0, standardize=standardize)
    expected = refits(x, y, 2.0, torch.arange(n), standardize)
    torch.testing.assert_close(view.prediction, expected, rtol=1e-10, atol=1e-10)
    assert view.method == ("dual" if d > n else "primal")


def test_the_leverage_is_the_diagonal_of_the_hat_matrix():
    x, y = draw(30, 4)
    z = (x - x.mean(0)) / x.std(0, correction=0)
    hat = z @ torch.linalg.solve(z.T @ z + 0.7 * torch.eye(4, dtype=torch.float64), z.T) + 1 / 30
    view = ridge(x, y, l2=0.7)
    torch.testing.assert_close(view.leverage, hat.diagonal(), rtol=1e-12, atol=1e-13)
    pressed = y - (y - (y.mean(0) + (hat - 1 / 30) @ y)) / (1 - hat.diagonal()).unsqueeze(1)
    torch.testing.assert_close(view.prediction, pressed, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("groups", [None, np.arange(20) // 3])
def test_dual_and_primal_are_the_same_numbers(groups):
    x, y = draw(20, 9)
    wide = torch.cat([x, torch.full((20, 30), 4.0, dtype=torch.float64)], dim=1)  # constant columns change nothing
    primal = ridge(x, y, grid=GRID, groups=groups)
    dual = ridge(wide, y, grid=GRID, groups=groups)
    assert (primal.method, dual.method) == ("primal", "dual")
    for name in ("prediction", "leverage", "loo_error"):
        torch.testing.assert_close(getattr(dual, name), getattr(primal, name), rtol=1e-9, atol=1e-10)
    assert primal.l2 == dual.l2


@given(
    n=st.integers(2, 40),
    d=st.integers(1, 45),
    outputs=st.integers(1, 3),
    size=st.integers(1, 41),
    single=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_blocks_of_any_size_give_the_same_numbers(n, d, outputs, size, single, seed):
    x, y = draw(n, d, outputs, seed)
    x = x.float() if single else x
    whole = ridge(x, y, grid=GRID)
    parts = ridge(in_blocks(x, size), y, grid=GRID)
    torch.testing.assert_close(parts.prediction, whole.prediction, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(parts.leverage, whole.leverage, rtol=1e-9, atol=1e-9)
    assert whole.prediction.shape == (n, outputs)
    assert whole.prediction.dtype == torch.float64


@pytest.mark.parametrize("seed", [0, 438])
def test_of_penalties_that_make_no_difference_the_strongest_is_taken(seed):
    x, y = draw(2, 1, 1, seed)  # without one of two records the other is the prediction, whatever l2
    view = ridge(x, y, grid=GRID)
    assert view.l2 == max(GRID)
    torch.testing.assert_close(view.prediction, y.flip(0))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("n", "d"), [(25, 15), (15, 20)])
def test_l2_is_the_best_of_the_grid_by_refits(n, d, seed):
    x, y = draw(n, d, seed=seed)
    errors = torch.stack([(refits(x, y, l2, torch.arange(n)) - y).square().mean() for l2 in GRID])
    view = ridge(x, y, grid=GRID)
    assert view.l2 == GRID[int(errors.argmin())]
    torch.testing.assert_close(view.loo_error, errors, rtol=1e-8, atol=0.0)
    at_best = refits(x, y, view.l2, torch.arange(n))
    torch.testing.assert_close(view.prediction, at_best, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("n", "d"), [(60, 4), (60, 12), (30, 40)])
def test_groups_are_predicted_as_after_a_refit_without_them(n, d, monkeypatch):
    # sizes from 1 to more than d + 1 (the k + 1 directions instead of the block), scattered over the rows
    x, y = draw(n, d, offset=0.3)
    names = torch.randint(0, n // 4, (n,), generator=torch.Generator().manual_seed(2))
    names[torch.arange(0, n, 3)] = 0
    names[1] = 99
    errors = torch.stack([(refits(x, y, l2, names) - y).square().mean() for l2 in GRID])
    whole = ridge(in_blocks(x, 7), y, grid=GRID, groups=names)
    torch.testing.assert_close(whole.loo_error, errors, rtol=1e-8, atol=0.0)
    torch.testing.assert_close(whole.prediction, refits(x, y, whole.l2, names), rtol=1e-9, atol=1e-9)
    alone = ridge(x, y, l2=whole.l2)
    torch.testing.assert_close(whole.leverage, alone.leverage, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr(module, "GATHERED", 9 * d)  # a few rows a pass
    monkeypatch.setattr(module, "BATCH", 1)
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    parts = ridge(in_blocks(x, 7), y, grid=GRID, groups=names)
    torch.testing.assert_close(parts.prediction, whole.prediction, rtol=1e-10, atol=1e-10)


def test_the_rows_of_groups_by_size():
    rows = rows_of_groups(["b", "a", "c", "a", "b", "d"], 6)
    assert {size: found.tolist() for size, found in rows.items()} == {1: [[2], [5]], 2: [[1, 3], [0, 4]]}


def test_errors_that_are_not_kept_take_another_pass(monkeypatch):
    x, y = draw(50, 6, outputs=3)
    passes = []

    def blocks():
        passes.append(1)
        return iter(x.split(11))

    whole = ridge(blocks, y, grid=GRID)
    assert len(passes) == 3  # one looks at the first block alone
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    again = ridge(blocks, y, grid=GRID)
    assert len(passes) == 3 + 4
    torch.testing.assert_close(again.prediction, whole.prediction, rtol=0, atol=0)
    assert again.l2 == whole.l2


def test_memory_maps_and_large_column_means(tmp_path):
    x, y = draw(300, 5, offset=0.0)
    np.save(tmp_path / "x.npy", (x + 1e6).numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    shifted = ridge(mapped, y, l2=1.0)
    rounded = ridge((x + 1e6) - 1e6, y, l2=1.0)
    # the mean of the narrowest column (deviation 0.01) is known to 1e-10; uncentred products would lose every digit
    torch.testing.assert_close(shifted.prediction, rounded.prediction, rtol=1e-6, atol=1e-7)


def test_constant_columns_and_duplicates():
    x, y = draw(40, 3)
    odd = torch.cat([x, torch.full((40, 1), 0.1, dtype=torch.float64), x[:, :1]], dim=1)
    view = ridge(in_blocks(odd, 9), y, l2=1.0)
    doubled = torch.cat([x, x[:, :1]], dim=1)
    torch.testing.assert_close(view.prediction, refits(doubled, y, 1.0, torch.arange(40)), rtol=1e-9, atol=1e-9)
    nothing = ridge(torch.ones(40, 2), y)
    expected = (y.sum(0) - y) / 39  # the mean of the others
    torch.testing.assert_close(nothing.prediction, expected, rtol=1e-12, atol=1e-12)


def test_a_record_that_decides_its_own_fit_is_capped_and_not_chosen():
    x, y = draw(50, 3)
    x[:, 2] = 0.0
    x[7, 2] = 1.0
    view = ridge(x, y, l2=1e-11)
    assert view.prediction.isfinite().all()
    assert view.leverage[7] <= 1.0
    assert view.loo_error.isinf().all()
    assert ridge(x, y, grid=[1e-11, 1e3]).l2 == 1e3
    assert ridge(x, y, grid=[1e-12, 1e-11, 1e-13]).l2 == 1e-11
    pairs = ridge(x, y, l2=1e-11, groups=np.arange(50) // 2)
    assert pairs.loo_error.isinf().all()
    assert pairs.error.isfinite().all()
    default = ridge(x, y)
    assert default.loo_error.min().isfinite()
    torch.testing.assert_close(default.prediction, refits(x, y, default.l2, torch.arange(50)), rtol=1e-6, atol=1e-6)


def test_the_default_grid_finds_the_middle_and_does_not_depend_on_units():
    x, y = draw(200, 20, seed=3)
    noisy = y + 30 * torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    view = ridge(x, noisy)
    assert view.grid[0] < view.l2 < view.grid[-1]
    assert ridge(1000 * x, noisy).l2 == pytest.approx(view.l2, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"targets": torch.full((10,), torch.nan)}, "targets: expected finite numbers"),
        ({"targets": torch.zeros(10, 2, 2)}, r"targets: expected \(n,\) or \(n, C\)"),
        ({"features": torch.full((10, 2), torch.inf)}, "features: expected finite numbers"),
        ({"features": torch.full((10, 20), torch.inf)}, "features: expected finite numbers"),
        ({"groups": [1] * 10}, "groups: expected at least two groups"),
        ({"groups": [1] * 9}, "groups: expected one name a record"),
    ],
)
def test_errors_say_what_to_do(arguments, words):
    call = {"features": torch.randn(10, 2), "targets": torch.zeros(10), **arguments}
    refused(words, ridge, call.pop("features"), call.pop("targets"), **call)
