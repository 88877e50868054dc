"""Left-out errors of kernel ridge regression against fitting again without the records."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.kernel_ridge import KernelRidge

from giveaway.views import exact, kernel
from giveaway.views.exact import NOISES, choose_noise, errors_of_rows, left_out_errors
from giveaway.views.kernel import kernel_matrix
from giveaway.views.ridge import rows_of_groups


def draw(n, outputs=2, d=3, seed=0):
    """Points of which some lie far out, their Laplace kernel by SciPy, and targets with outliers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x[: max(1, n // 10)] *= 6.0
    y = np.sin(x @ rng.normal(size=(d, outputs))) + 0.3 * rng.standard_t(3, size=(n, outputs)) + 2.0
    return x, np.exp(-cdist(x, x) / 1.7), y


def fit(k, y, noise):
    """Weights and constant of kernel ridge regression by the dense bordered system."""
    n = len(k)
    system = np.block([[k + noise * np.eye(n), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    solved = np.linalg.solve(system, np.vstack([y, np.zeros((1, y.shape[1]))]))
    return solved[:-1], solved[-1]


def refits(k, y, noise, names):
    """y minus what a fit to the other groups predicts."""
    error = np.empty_like(y)
    for name in np.unique(names):
        out = names == name
        weights, constant = fit(k[np.ix_(~out, ~out)], y[~out], noise)
        error[out] = y[out] - (k[np.ix_(out, ~out)] @ weights + constant)
    return error


def found(k, y, noise, members=()):
    # above the diagonal nothing may be read: kernel_matrix leaves it partly empty
    lower = torch.from_numpy(np.tril(k) + np.triu(np.full_like(k, np.nan), 1))
    return left_out_errors(lower, torch.from_numpy(y), noise, members)


def members_of(names):
    return list(rows_of_groups(names, len(names)).values())


def mixed_groups(n, seed=0):
    """Scattered groups: singles, pairs and some larger ones."""
    sizes, left = [], n
    for size in np.random.default_rng(seed).choice([1, 1, 2, 3, 7], size=n):
        sizes.append(min(size, left))
        left -= sizes[-1]
    names = np.repeat(np.arange(n), sizes)
    if len(set(names.tolist())) < 2:
        names[0] = n
    return np.random.default_rng(seed + 1).permutation(names)


@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0, 100.0])
def test_every_record_is_predicted_as_after_a_refit_without_it(noise):
    _, k, y = draw(60)
    result = found(k, y, noise)
    expected = refits(k, y, noise, np.arange(60))
    np.testing.assert_allclose(result.error.numpy(), expected, rtol=1e-8, atol=1e-10)
    weights, constant = fit(k, y, noise)
    moved = np.abs(expected - (y - k @ weights - constant)).max(1)  # by being left out
    most = np.argsort(-moved)[:6]
    np.testing.assert_allclose(result.error.numpy()[most], expected[most], rtol=1e-8)


@pytest.mark.parametrize("noise", [1e-3, 0.3, 30.0])
def test_groups_are_predicted_as_after_a_refit_without_them(noise, monkeypatch):
    _, k, y = draw(50, outputs=3)
    names = mixed_groups(50)
    sizes = {rows.shape[1] for rows in members_of(names)}
    assert {1, 2, 7} <= sizes
    expected = refits(k, y, noise, names)
    result = found(k, y, noise, members_of(names))
    np.testing.assert_allclose(result.error.numpy(), expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(result.leverage, found(k, y, noise).leverage, rtol=0, atol=0)
    monkeypatch.setattr(exact, "BLOCKS_AT_ONCE", 1)  # one group at a time
    torch.testing.assert_close(found(k, y, noise, members_of(names)).error, result.error, rtol=1e-12, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(2, 25),
    outputs=st.integers(1, 3),
    power=st.floats(-4, 2),
    grouped=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shape(n, outputs, power, grouped, seed):
    _, k, y = draw(n, outputs, seed=seed)
    names = mixed_groups(n, seed) if grouped else np.arange(n)
    result = found(k, y, 10.0**power, members_of(names) if grouped else ())
    np.testing.assert_allclose(result.error.numpy(), refits(k, y, 10.0**power, names), rtol=1e-8, atol=1e-8)
    assert result.leverage.shape == (n,)
    assert ((result.leverage >= 0) & (result.leverage <= 1)).all()


def test_the_leverage_is_how_far_a_fit_follows_its_own_target():
    _, k, y = draw(30, outputs=1)
    for noise in (1e-3, 1.0, 50.0):
        followed = []
        for i in range(30):
            nudged = y.copy()
            nudged[i] += 1.0  # the fit is linear in y: any step is exact
            weights, constant = fit(k, np.hstack([y, nudged]), noise)
            fitted = k[i] @ weights + constant
            followed.append(fitted[1] - fitted[0])
        np.testing.assert_allclose(found(k, y, noise).leverage.numpy(), followed, rtol=1e-8, atol=1e-10)


def test_scikit_learn_says_the_same():
    """It has no constant; one whose prior variance is very large (k + 10⁶) comes to the same."""
    _, k, y = draw(40)
    for noise in (0.1, 3.0):
        error = np.empty_like(y)
        for i in range(40):
            others = np.arange(40) != i
            model = KernelRidge(alpha=noise, kernel="precomputed").fit(k[np.ix_(others, others)] + 1e6, y[others])
            error[i] = y[i] - model.predict(k[i : i + 1, others] + 1e6)[0]
        np.testing.assert_allclose(found(k, y, noise).error.numpy(), error, rtol=2e-4, atol=2e-5)


def test_fifty_digits_say_the_same():
    x, k, y = draw(7, outputs=1)
    noise = 1e-4
    x[1] = x[0] + 1e-6  # nearly the same record twice
    k = np.exp(-cdist(x, x) / 1.7)
    with mpmath.workdps(50):
        for i in range(7):
            others = [j for j in range(7) if j != i]
            system = mpmath.matrix(7, 7)
            right = mpmath.matrix(7, 1)
            for a, row in enumerate(others):
                for b, column in enumerate(others):
                    system[a, b] = mpmath.mpf(float(k[row, column])) + (mpmath.mpf(noise) if a == b else 0)
                system[a, 6] = system[6, a] = 1
                right[a] = mpmath.mpf(float(y[row, 0]))
            solved = mpmath.lu_solve(system, right)
            guess = solved[6] + sum(mpmath.mpf(float(k[i, row])) * solved[a] for a, row in enumerate(others))
            assert float(found(k, y, noise).error[i, 0]) == pytest.approx(float(y[i, 0] - guess), rel=1e-8)


def test_a_constant_that_is_added_to_the_targets_changes_nothing():
    _, k, y = draw(30)
    torch.testing.assert_close(found(k, y + 1e3, 0.1).error, found(k, y, 0.1).error, rtol=1e-7, atol=1e-8)


def brute_noise(x, y, names, length):
    k = np.exp(-cdist(x, x) / length)
    errors = [np.square(refits(k, y, noise, names)).mean() for noise in NOISES]
    return NOISES[int(np.argmin(errors))]


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
def test_the_noise_is_the_best_by_refits(spread):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(45, 2)).astype(np.float32)
    y = x.sum(1, keepdims=True) + spread * rng.normal(size=(45, 1))
    names = mixed_groups(45)
    rows, targets = torch.from_numpy(x), torch.from_numpy(y.astype(np.float64))
    assert choose_noise(rows, targets, 1.5, [], seed=0) == brute_noise(x, y, np.arange(45), 1.5)
    assert choose_noise(rows, targets, 1.5, members_of(names), seed=0) == brute_noise(x, y, names, 1.5)


def test_more_noise_is_chosen_for_noisier_targets():
    x, _, _ = draw(80)
    rows = torch.from_numpy(x).float()
    rng = np.random.default_rng(0)
    chosen = [
        choose_noise(rows, torch.from_numpy(x[:, :1] + spread * rng.normal(size=(80, 1))), 2.0, [], seed=0)
        for spread in (0.0, 0.5, 5.0)
    ]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[2]


def seen_by_choosing(monkeypatch, n, names, seed):
    """The rows, and the groups among them, on which the noise is chosen; a record's feature is its number."""
    calls = []
    monkeypatch.setattr(
        exact, "kernel_matrix", lambda rows, length: calls.append(rows) or torch.eye(len(rows)).double()
    )
    real = exact.left_out_errors

    def spy(k, targets, noise, members):
        calls.append((targets, members))
        return real(k, targets, noise, members)

    monkeypatch.setattr(exact, "left_out_errors", spy)
    numbers = torch.arange(n, dtype=torch.float32).unsqueeze(1)
    members = [] if names is None else members_of(names)
    choose_noise(numbers, numbers.double(), 1.0, members, seed=seed)
    monkeypatch.undo()
    rows = calls[0].flatten().long()
    targets, groups = calls[1]
    assert torch.equal(targets.flatten().long(), rows)
    return rows, [rows[part] for group in groups for part in group]


def test_on_many_records_the_noise_is_chosen_on_some(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(exact, "CHOSEN_ON", 40)
        rows, _ = seen_by_choosing(patch, 100, None, 3)
    assert len(rows) == len(set(rows.tolist())) == 40


@pytest.mark.parametrize("seed", [0, 1])
def test_on_many_records_whole_groups_are_taken(monkeypatch, seed):
    names = mixed_groups(200, seed)
    drawn = []
    for again in (seed, seed, seed + 10):
        with monkeypatch.context() as patch:
            patch.setattr(exact, "CHOSEN_ON", 40)
            rows, groups = seen_by_choosing(patch, 200, names, again)
        assert len(set(rows.tolist())) == len(rows)
        assert 30 <= len(rows) <= 40
        assert sorted(row for group in groups for row in group.tolist()) == sorted(rows.tolist())
        for group in groups:
            assert set(group.tolist()) == set(np.flatnonzero(names == names[group[0]]).tolist())
        drawn.append(rows.tolist())
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize("names", [np.arange(100) // 50, np.minimum(np.arange(100), 3), np.arange(100) // 34])
def test_groups_larger_than_the_sample_leave_somebody_to_predict_from(names, monkeypatch):
    monkeypatch.setattr(exact, "CHOSEN_ON", 40)
    x, _, y = draw(100)
    noise = choose_noise(torch.from_numpy(x).float(), torch.from_numpy(y), 1.7, members_of(names), seed=0)
    assert noise in NOISES


def test_records_nearly_the_same_do_not_stop_it():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 2000, generator=generator)
    rows[:150] = rows[0] + 8e-4 * torch.randn(150, 2000, generator=generator)  # where rounding is a distance or none
    targets = torch.randn(200, 1, generator=generator).double()
    with pytest.raises(torch.linalg.LinAlgError):
        left_out_errors(kernel_matrix(rows, 35.0), targets, NOISES[0])
    assert choose_noise(rows, targets, 35.0, [], seed=0) > NOISES[0]
    result, used = errors_of_rows(rows, targets, 35.0, NOISES[0])
    assert used in NOISES[1:]
    close = np.exp(-cdist(rows.double().numpy(), rows.double().numpy()) / 35.0)
    # as far as float32 tells distances: the kernel of the cluster is off by about 1e-3
    expected = refits(close, targets.numpy(), used, np.arange(200))
    assert np.abs(result.error.numpy() - expected)[150:].max() < 0.05
    assert result.error.abs().max() < 20


def test_a_kernel_that_cannot_be_is_refused():
    k = torch.eye(5, dtype=torch.float64)
    k[0, 0] = -1.0
    with pytest.raises(torch.linalg.LinAlgError):
        left_out_errors(k.clone(), torch.ones(5, 1).double(), 0.5)
    k[:2, :2] = torch.tensor([[0.05, 0.95], [0.95, 0.05]])  # −0.9: with λ = 1 positive, but 0.1 where 1 is due
    with pytest.raises(torch.linalg.LinAlgError, match="below −λ/2"):
        left_out_errors(k.clone(), torch.ones(5, 1).double(), 1.0)


def test_a_noise_that_suffices_is_kept(monkeypatch):
    monkeypatch.setattr(kernel, "PAIRS_AT_ONCE", 100)
    x, _, y = draw(30)
    rows = torch.from_numpy(x).float()
    result, used = errors_of_rows(rows, torch.from_numpy(y), 1.7, 0.02)
    assert used == 0.02
    k = np.exp(-cdist(rows.double().numpy(), rows.double().numpy()) / 1.7)
    np.testing.assert_allclose(result.error.numpy(), refits(k, y, 0.02, np.arange(30)), rtol=1e-3, atol=1e-4)
