"""What the others predict for each record, end to end, against refits written out here."""

import json

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist

from giveaway.gp import ridge
from giveaway.gp.posterior import left_out_errors
from giveaway.gp.ridge import RELATIVE
from giveaway.views import left_out as module
from giveaway.views.images import image_features
from giveaway.views.left_out import (
    NOISES,
    choose_noise,
    distances,
    errors_of_rows,
    landmark_features,
    laplace_matrix,
    left_out,
    left_out_smooth,
    scaling_of,
)
from giveaway.views.text import text_features
from tests.conftest import refused
from tests.gp.test_leave_one_out import kernel_refits, laplace_data, members_of, mixed_groups
from tests.views.made import held

WAYS = {
    "exact": lambda features, y, **options: left_out(features, y, exact=True, **options),
    "landmarks": lambda features, y, **options: left_out(features, y, exact=False, **options),
    "smooth": left_out_smooth,
}
every_way = pytest.mark.parametrize("way", WAYS)


def two_clouds(n=80, d=3, seed=0):
    """Two well-told-apart classes in order, ±1/2."""
    generator = torch.Generator().manual_seed(seed)
    label = (torch.arange(n) % 2).double() - 0.5
    x = torch.randn(n, d, generator=generator)
    x[:, 0] += 6 * label
    return x, label.unsqueeze(1)


def laplace_refits(x, y, noise, names, length, standardize=True):
    z = x.double().numpy() / (x.double().numpy().std(0) if standardize else 1.0)
    return kernel_refits(np.exp(-cdist(z, z) / length), y.numpy(), noise, names)


def ridge_refits(features, y, l2, names):
    a = np.hstack([np.ones((len(features), 1)), features])
    penalty = l2 * np.eye(a.shape[1])
    penalty[0, 0] = 0.0
    error = np.empty(y.shape)
    for name in np.unique(names):
        out = names == name
        weights = np.linalg.solve(a[~out].T @ a[~out] + penalty, a[~out].T @ y.numpy()[~out])
        error[out] = y.numpy()[out] - a[out] @ weights
    return error


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("grouped", [False, True])
def test_exact_errors_are_those_of_refits(standardize, grouped):
    x, y = two_clouds(50)
    y = y + 0.1 * x[:, 1:2]
    names = np.arange(50) // 3 if grouped else np.arange(50)
    found = left_out(held(x), y, groups=names if grouped else None, standardize=standardize)
    z = x.double().numpy() / (x.double().numpy().std(0) if standardize else 1.0)
    assert found.report["length"] == pytest.approx(pdist(z).mean(), rel=1e-5)
    # float32 distances: the oracle's are float64
    expected = laplace_refits(x, y, found.report["noise"], names, found.report["length"], standardize)
    np.testing.assert_allclose(found.error.numpy(), expected, rtol=1e-3, atol=2e-4)
    errors = [np.square(laplace_refits(x, y, noise, names, found.report["length"], standardize)) for noise in NOISES]
    assert found.report["noise"] == NOISES[int(np.argmin([error.mean() for error in errors]))]
    spread = float((y - y.mean(0)).square().mean())
    assert found.report["left_out_error"] == pytest.approx(np.square(expected).mean() / spread, rel=1e-2)


@pytest.mark.parametrize("grouped", [False, True])
def test_errors_from_landmarks_are_those_of_refits_on_the_same_features(grouped, monkeypatch):
    monkeypatch.setattr(module, "LANDMARKS", (16,))
    x, y = two_clouds(60)
    names = np.arange(60) // 4 if grouped else np.arange(60)
    found = left_out(held(x), y, groups=names if grouped else None, exact=False)
    assert found.report["landmarks"] == 16
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    scaling = scaling_of(x[order], standardize=True)
    seen = torch.cat(list(landmark_features(held(x), scaling.apply(x[order][:16]), scaling)())).double().numpy()
    expected = ridge_refits(seen, y, found.report["l2"], names)
    np.testing.assert_allclose(found.error.numpy(), expected, rtol=1e-7, atol=1e-8)
    squared = [
        np.square(ridge_refits(seen, y, share * np.var(seen, axis=0).sum() * 60, names)).mean() for share in RELATIVE
    ]
    assert np.square(expected).mean() == pytest.approx(min(squared), rel=1e-6)
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    streamed = left_out(held(x, 7), y, groups=names if grouped else None, exact=False)
    torch.testing.assert_close(streamed.error, found.error, rtol=1e-4, atol=1e-5)


def test_with_every_record_a_landmark_both_say_the_same():
    x, y = two_clouds(60)
    y = y + 0.3 * torch.randn(60, 1, generator=torch.Generator().manual_seed(5)).double()
    ours = left_out(held(x), y, exact=False)
    l2 = ours.report["l2"]
    expected = laplace_refits(x, y, l2, np.arange(60), ours.report["length"])
    np.testing.assert_allclose(ours.error.numpy(), expected, rtol=1e-2, atol=2e-3)


@every_way
def test_a_mislabelled_record_has_the_largest_error(way):
    x, y = two_clouds()
    y[31] = -y[31]
    found = WAYS[way](held(x), y)
    size = found.error.abs().sum(1)
    assert int(size.argmax()) == 31
    assert size[31] > 1.5 * size.sort().values[-2]
    assert found.leverage.shape == (80,)
    assert found.report["left_out_error"] < 0.5
    json.dumps(found.report)


@every_way
def test_copies_vouch_for_each_other_unless_they_are_one_group(way):
    x, y = two_clouds(82, d=12)
    x[81] = x[80]
    y[80:] = -0.5 * x[80, 0].sign()
    alone = WAYS[way](held(x), y).error[80:].abs()
    together = WAYS[way](held(x), y, groups=np.minimum(np.arange(82), 80)).error[80:].abs()
    assert together.min() > 0.7
    assert (alone < 0.8 * together).all()
    torch.testing.assert_close(together[0], together[1], rtol=1e-3, atol=1e-3)


@every_way
def test_results_depend_neither_on_the_order_of_records_nor_on_the_size_of_blocks(way, monkeypatch):
    x, y = two_clouds(40)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(8))
    first, second = WAYS[way](held(x), y), WAYS[way](held(x[order]), y[order])
    if way == "smooth":  # the length comes from all, the waves from the seed
        assert first.report["length"] == pytest.approx(second.report["length"], rel=1e-6)
    torch.testing.assert_close(second.error, first.error[order], rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(second.leverage, first.leverage[order], rtol=1e-2, atol=1e-3)
    groups = np.arange(40) // 3
    whole = WAYS[way](held(x), y, groups=groups)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(ridge, "NUMBERS", 5)
    parts = WAYS[way](held(x, 7), y, groups=groups)
    torch.testing.assert_close(parts.error, whole.error, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(parts.leverage, whole.leverage, rtol=1e-3, atol=1e-4)
    assert torch.equal(parts.nearest([3, 17], 4), whole.nearest([3, 17], 4))


@every_way
def test_the_nearest_are_those_of_standardized_features(way):
    x, y = two_clouds(30)
    x[:, 1] *= 100
    found = WAYS[way](held(x, 8), y)
    z = x.double().numpy() / x.double().numpy().std(0)
    apart = cdist(z, z)
    np.fill_diagonal(apart, np.inf)
    rows = [4, 29, 0]
    np.testing.assert_array_equal(found.nearest(rows, 5).numpy(), np.argsort(apart[rows], 1)[:, :5])
    assert found.nearest(rows, 40)[:, 29:].eq(-1).all()
    assert found.nearest([], 2).shape == (0, 2)


@every_way
def test_targets_of_any_kind_and_number(way):
    x, y = two_clouds(30)
    found = WAYS[way](held(x), y)
    torch.testing.assert_close(WAYS[way](held(x), y[:, 0]).error, found.error, rtol=0, atol=0)
    assert WAYS[way](held(x), y.float()).error.dtype == torch.float64
    torch.testing.assert_close(WAYS[way](held(x), (2 * y).long()).error, 2 * found.error, rtol=1e-6, atol=1e-8)
    assert WAYS[way](held(x), torch.cat([y, -y, y * 0], 1)).error.shape == (30, 3)
    constant = WAYS[way](held(x), y * 0 + 0.1)
    assert constant.error.abs().max() < 1e-9
    assert constant.report["left_out_error"] == 0.0


@every_way
def test_two_records_predict_each_other_and_equal_ones_their_mean(way):
    x, y = two_clouds(2)
    torch.testing.assert_close(WAYS[way](held(x), y).error, y - y.flip(0))
    y = torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    same = WAYS[way](held(torch.full((9, 3), 0.1)), y)
    torch.testing.assert_close(same.error, y - (y.sum(0) - y) / 8, rtol=1e-6, atol=1e-7)
    assert same.nearest([0], 3).ge(1).all()


def test_exact_while_it_fits_and_landmarks_beyond(monkeypatch):
    x, y = two_clouds(30)
    assert left_out(held(x), y).report["method"] == "exact"
    with monkeypatch.context() as patch:
        patch.setattr(module, "EXACT_UP_TO", 29)
        assert left_out(held(x), y).report["method"] == "landmarks"
    monkeypatch.setattr(module, "available_memory", lambda: 8 * 30 * 30)
    assert left_out(held(x), y).report["method"] == "exact"
    assert left_out(held(x), y, groups=torch.arange(30) // 2).report["method"] == "landmarks"  # wants more
    monkeypatch.setattr(module, "available_memory", lambda: 0.85 * 8 * 30 * 30 - 1)
    assert left_out(held(x), y).report["method"] == "landmarks"
    report = left_out(held(x), y, exact=True, device=torch.device("cpu")).report
    assert set(report) == {"kernel", "length", "method", "noise", "noise_chosen_on", "left_out_error"}


def test_half_precision_features_and_a_sample_that_is_not_all(monkeypatch):
    x, y = two_clouds(60)
    single, half = left_out(held(x), y), left_out(held(x.half()), y)
    torch.testing.assert_close(half.error, single.error, rtol=0.05, atol=0.01)
    monkeypatch.setattr(module, "SAMPLE", 40)
    some = left_out(held(x), y)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:40]
    assert some.report["length"] == pytest.approx(scaling_of(x[order], standardize=True).length)
    assert left_out(held(x), y, exact=False).report["landmarks"] == 40


def test_images_and_texts():
    rng = np.random.default_rng(0)
    label = np.arange(60) % 2
    pixels = rng.normal(size=(60, 1, 8, 8))
    pixels[label == 1] += 3 * np.sin(2 * np.arange(8))  # stripes
    flipped = label.copy()
    flipped[10] = 1
    _, images = image_features(pixels)
    assert left_out(images, torch.from_numpy(flipped - 0.5)).error.abs().argmax() == 10
    words = [["gradient descent step", "posterior mean field"], ["salt pepper soup", "bread butter knife"]]
    texts = [f"{words[label[i]][i % 4 // 2]} {words[label[i]][i % 3 % 2]} {i}" for i in range(60)]
    found = left_out(text_features(texts), torch.from_numpy(flipped - 0.5), standardize=False)
    assert found.error.abs().argmax() == 10


@every_way
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"targets": torch.full((10, 1), torch.nan)}, "targets: expected finite numbers"),
        ({"targets": torch.zeros(10, 2, 2)}, r"targets: expected \(n,\) or \(n, C\)"),
        ({"features": held(torch.zeros(1, 2)), "targets": torch.zeros(1, 1)}, "of at least two records"),
        ({"features": held(torch.full((10, 2), torch.inf))}, "features: expected finite numbers"),
        ({"groups": [1] * 10}, "groups: expected at least two groups"),
        ({"groups": [1] * 9}, "groups: expected one name a record"),
    ],
)
def test_errors_say_what_to_do(way, change, words):
    call = {"features": held(torch.arange(20.0).view(10, 2)), "targets": torch.arange(10.0), **change}
    refused(words, WAYS[way], call.pop("features"), call.pop("targets"), **call)


def brute_noise(x, y, names, length):
    k = np.exp(-cdist(x, x) / length)
    errors = [np.square(kernel_refits(k, y, noise, names)).mean() for noise in NOISES]
    return NOISES[int(np.argmin(errors))]


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
def test_the_noise_is_the_best_by_refits(spread):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(45, 2)).astype(np.float32)
    y = x.sum(1, keepdims=True) + spread * rng.normal(size=(45, 1))
    names = mixed_groups(45)
    rows, targets = torch.from_numpy(x), torch.from_numpy(y.astype(np.float64))
    assert choose_noise(rows, targets, 1.5, []) == brute_noise(x, y, np.arange(45), 1.5)
    assert choose_noise(rows, targets, 1.5, members_of(names)) == brute_noise(x, y, names, 1.5)


def seen_by_choosing(monkeypatch, n, names, seed):
    """The rows, and the groups among them, on which the noise is chosen; a record's feature is its number."""
    monkeypatch.setattr(module, "SEED", seed)
    calls = []

    def matrix(rows, length):
        calls.append(rows)
        return torch.eye(len(rows)).double()

    def errors(regression, members):
        calls.append((regression.targets, members))
        return left_out_errors(regression, members)

    monkeypatch.setattr(module, "laplace_matrix", matrix)
    monkeypatch.setattr(module, "left_out_errors", errors)
    numbers = torch.arange(n, dtype=torch.float32).unsqueeze(1)
    choose_noise(numbers, numbers.double(), 1.0, [] if names is None else members_of(names))
    monkeypatch.undo()
    rows = calls[0].flatten().long()
    targets, groups = calls[1]
    assert torch.equal(targets.flatten().long(), rows)
    return rows, [rows[part] for group in groups for part in group]


@pytest.mark.parametrize("seed", [0, 1])
def test_on_many_records_the_noise_is_chosen_on_some_or_on_whole_groups(monkeypatch, seed):
    names = mixed_groups(200, seed)
    drawn = []
    for again, given in ((seed, names), (seed, names), (seed + 10, names), (seed, None)):
        with monkeypatch.context() as patch:
            patch.setattr(module, "CHOSEN_ON", 40)
            rows, groups = seen_by_choosing(patch, 200, given, again)
        assert len(set(rows.tolist())) == len(rows)
        drawn.append(rows.tolist())
        if given is None:
            assert len(rows) == 40
            continue
        assert 30 <= len(rows) <= 40
        assert sorted(row for group in groups for row in group.tolist()) == sorted(rows.tolist())
        for group in groups:
            assert set(group.tolist()) == set(np.flatnonzero(names == names[group[0]]).tolist())
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize("names", [np.arange(100) // 50, np.minimum(np.arange(100), 3), np.arange(100) // 34])
def test_groups_larger_than_the_sample_leave_somebody_to_predict_from(names, monkeypatch):
    monkeypatch.setattr(module, "CHOSEN_ON", 40)
    x, _, y = laplace_data(100)
    noise = choose_noise(torch.from_numpy(x).float(), torch.from_numpy(y), 1.7, members_of(names))
    assert noise in NOISES


def near_copies(apart: float, copies: int, n: int = 300) -> torch.Tensor:
    """Rows (n, 400), the first of them `apart` times their size from each other."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n, 400, generator=generator)
    rows[:copies] = rows[0] + apart / 2**0.5 * torch.randn(copies, 400, generator=generator)
    return rows


@pytest.mark.parametrize("apart", [1e-5, 1e-3, 2e-2, 5e-2])
@pytest.mark.parametrize("copies", [20, 250])  # a few pairs are made anew from differences, many in float64
def test_distances_of_near_copies_are_not_lost_in_rounding(apart, copies, monkeypatch):
    rows = near_copies(apart, copies)
    expected = cdist(rows.double().numpy(), rows.double().numpy())
    np.testing.assert_allclose(distances(rows[:200], rows), expected[:200], rtol=1e-3, atol=1e-7 * 400**0.5)
    rows[1:copies:2] = rows[0]  # these are the same
    assert not distances(rows[1:copies:2], rows[:1]).any()
    assert not distances(rows[:copies], rows)[:, 1:copies:2][1::2].any()
    rows = near_copies(apart, copies)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 70)
    lower = laplace_matrix(rows, 28.0).tril()
    np.testing.assert_allclose(lower, np.tril(np.exp(-expected / 28.0)), rtol=0, atol=3e-5)


@pytest.mark.parametrize("apart", [1e-7, 1e-4, 1e-2])
@pytest.mark.parametrize("names", [None, np.arange(300) // 2])
def test_left_out_errors_of_near_copies_are_those_of_refits(apart, names):
    rows = near_copies(apart, 250)
    targets = torch.randn(300, 2, generator=torch.Generator().manual_seed(1)).double()
    kernel = np.exp(-cdist(rows.double().numpy(), rows.double().numpy()) / 28.0)
    expected = kernel_refits(kernel, targets.numpy(), NOISES[0], np.arange(300) if names is None else names)
    found = errors_of_rows(rows, targets, 28.0, NOISES[0], [] if names is None else members_of(names)).error.numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3 * np.abs(expected).max())
