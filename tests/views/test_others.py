"""The view of the other records: its errors against refits by brute force, and when the head's view is exact."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import expit, softmax
from sklearn.linear_model import Ridge

from giveaway import Head, audit
from giveaway.scores.fusion import Views
from giveaway.views import others
from giveaway.views.left_out import fourier_features
from giveaway.views.model import said_of, targets_of_head, value_spread
from giveaway.views.others import OthersView, not_learned
from giveaway.views.tables import table_features
from giveaway.views.text import text_features
from tests.conftest import KINDS, made_arrays, made_head
from tests.gp.test_leave_one_out import kernel_refits

N = 60
PEOPLE = np.array([f"p{i * 7 % 23:02d}" for i in range(N)])
WORDS = ["red", "blue", "green", "cat", "dog", "house", "tree", "sun", "moon", "star"]


def records(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(N, 3)) * [1.0, 1e3, 1e-4] + [5.0, -1e4, 0.0]


def texts(seed: int = 0, n: int = N) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 5)) for _ in range(n)]


def black_box(kind: str, **options) -> Head:
    return Head(**made_arrays(kind) | {"features": None}, **options)


def compared(head: Head) -> tuple[OthersView, Views]:
    view = OthersView(head)
    rows = head.n if head.groups is None else len(np.unique(head.groups))
    return view, view.compare(np.arange(rows, dtype=float), said_of(head).squares)


# ------------------------------------------------------------------------------------------------ against refits


def ridge_errors(x: np.ndarray, y: np.ndarray, l2: float, groups: list[np.ndarray]) -> np.ndarray:
    """Errors of every record after a refit without its group, by scikit-learn, one refit a group."""
    features = torch.cat(list(fourier_features(table_features(x)[1])[0]())).double().numpy()
    z = (features - features.mean(0)) / features.std(0)
    errors = np.empty_like(y)
    for own in groups:
        others = np.setdiff1d(np.arange(len(y)), own)
        errors[own] = y[own] - Ridge(alpha=l2).fit(z[others], y[others]).predict(z[own]).reshape(len(own), -1)
    return errors


def kernel_errors(x: np.ndarray, y: np.ndarray, noise: float, groups: list[np.ndarray]) -> np.ndarray:
    """The same of kernel ridge regression with a free constant."""
    apart = cdist(x, x)
    names = np.empty(len(x), dtype=int)
    for number, rows in enumerate(groups):
        names[rows] = number
    return kernel_refits(np.exp(-apart * len(x) * (len(x) - 1) / apart.sum()), y, noise, names)


def places(unit: str) -> list[np.ndarray]:
    return [np.array([i]) for i in range(N)] if unit == "record" else [np.flatnonzero(p == PEOPLE) for p in set(PEOPLE)]


def squares(errors: np.ndarray, unit: str) -> np.ndarray:
    own = (errors**2).sum(1)
    return own if unit == "record" else np.array([own[name == PEOPLE].sum() for name in np.unique(PEOPLE)])


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_s_errors_are_those_of_refits_without_the_record_or_the_person(kind, unit):
    head = made_head(kind, inputs=records(), groups=PEOPLE if unit == "person" else None)
    view, seen = compared(head)
    y = targets_of_head(head).numpy()
    if view.report["kernel"] == "rbf":
        errors = ridge_errors(records(), y, view.report["l2"], places(unit))
    else:
        z = (records() - records().mean(0)) / records().std(0)
        errors = kernel_errors(z, y, view.report["noise"], places(unit))
    np.testing.assert_allclose(seen.error_without, squares(errors, unit), rtol=2e-4)
    np.testing.assert_allclose(seen.error_with, squares(said_of(head).errors.numpy(), unit), rtol=1e-12)
    assert seen.leverage.shape == seen.error_with.shape
    assert ((seen.leverage >= 0) & (seen.leverage <= 1)).all()
    constant = ((y - y.mean(0)) ** 2).mean()
    assert view.report["left_out_error"] == pytest.approx((errors**2).mean() / constant, rel=1e-4)
    assert seen.variation == pytest.approx(constant * y.size, rel=1e-12)
    said = said_of(head).errors.numpy()
    held = np.clip(((errors**2).sum() - (said**2).sum()) / (constant * y.size), 0.0, 1.0)
    assert view.report["held_by_memory"] == pytest.approx(held, abs=1e-4)


@pytest.mark.parametrize("unit", ["record", "person"])
def test_texts_errors_are_those_of_refits_too(unit):
    head = made_head("classes", inputs=texts(), groups=PEOPLE if unit == "person" else None)
    view, seen = compared(head)
    features = torch.cat(list(text_features(texts())())).double().numpy()
    errors = kernel_errors(features, targets_of_head(head).numpy(), view.report["noise"], places(unit))
    np.testing.assert_allclose(seen.error_without, squares(errors, unit), rtol=2e-4)


# ------------------------------------------------------------------------------------------------ the model's errors


@pytest.mark.parametrize("make", [made_head, black_box])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_of_the_model_are_what_it_says_minus_the_targets(kind, make):
    arrays = made_arrays(kind)
    f, y = arrays["outputs"], arrays["targets"]
    if kind.startswith("squared"):
        spread = np.sqrt(((y - y.mean(0)) ** 2).mean())
        expected = (f - y) / spread
        assert value_spread(make(kind)) == pytest.approx(spread, rel=1e-12)
    elif kind in ("one_logit", "multi_label"):
        expected = expit(f) - y.reshape(N, -1)
    else:
        expected = softmax(f, axis=1) - (y if kind == "soft_labels" else np.eye(f.shape[1])[y])
    np.testing.assert_allclose(said_of(make(kind)).errors.numpy(), expected, rtol=1e-9, atol=1e-12)
    doubled = said_of(make(kind), 2.0 * torch.from_numpy(f)).errors.numpy()
    np.testing.assert_allclose(doubled, said_of(Head(**arrays | {"outputs": 2.0 * f})).errors.numpy(), rtol=1e-12)


def test_values_that_are_all_the_same():
    arrays = made_arrays("squared") | {"targets": np.full((N, 1), 0.1)}
    head = Head(**arrays, inputs=records())
    assert value_spread(head) == 1.0
    table = audit(head)
    np.testing.assert_array_equal(table["left_out"], 0.0)
    assert table.meta.view.memorized == 0.0


# ------------------------------------------------------------------------------------------------ was anything learned


def exact(head: Head) -> bool:
    return audit(head, scores=["fused"]).meta.view.head_is_exact


def test_features_that_are_the_inputs_or_a_linear_function_of_them():
    x = records()
    z = (x - x.mean(0)) / x.std(0)
    rng = np.random.default_rng(1)
    y = rng.normal(size=N)
    for features in (x, z @ rng.normal(size=(3, 7)) + 2.0, x[:, :1], (z @ rng.normal(size=(3, 2))).astype(np.float16)):
        assert exact(Head(features, y, y, "squared", inputs=x))
    assert exact(Head(np.c_[z, np.full(N, 0.1)], y, y, "squared", inputs=x))  # a constant feature tells nothing
    assert exact(Head(z, y, y, "squared", inputs=np.c_[x, x[:, 0], np.full(N, 7.0)]))  # columns that repeat others


def test_features_that_are_not():
    few = np.random.default_rng(0).normal(size=(20, 9))  # with fewer than 20 records it cannot be told
    assert not exact(Head(few[:19], few[:19, 0], few[:19, 1], "squared", inputs=few[:19]))
    assert exact(Head(few, few[:, 0], few[:, 1], "squared", inputs=few))
    x = records()
    z = (x - x.mean(0)) / x.std(0)
    y = np.random.default_rng(1).normal(size=N)
    for features in (np.maximum(z, 0.0), np.c_[z, z[:, 0] ** 2], np.tanh(0.3 * z), z + 0.02 * np.sin(9 * z)):
        assert not exact(Head(features, y, y, "squared", inputs=x))
    assert not exact(Head(None, y, y, "squared", inputs=x))
    assert not exact(Head(np.zeros((N, 0)), y, y, "squared", inputs=x))
    assert not exact(Head(z, y, y, "squared", inputs=texts()))


def test_images_are_compared_by_their_pixels(monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (N, 1, 5, 5)).astype(np.uint8)
    pixels, y = images.reshape(N, -1) / 255.0, np.arange(N) % 3
    outputs = np.random.default_rng(1).normal(size=(N, 3))
    assert exact(Head(pixels, outputs, y, "cross_entropy", inputs=images))
    assert not exact(Head(np.maximum(pixels - 0.5, 0.0), outputs, y, "cross_entropy", inputs=images))
    monkeypatch.setattr(others, "MOST_COLUMNS", 24)
    assert not exact(Head(pixels, outputs, y, "cross_entropy", inputs=images))


def test_some_of_many_features_are_tried(monkeypatch):
    monkeypatch.setattr(others, "TRIED", 4)
    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wide = torch.relu(x @ torch.randn(3, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    y = torch.arange(N) % 2
    assert not not_learned(Head(wide, wide[:, :2], y, "cross_entropy"), x.__getitem__)
    assert not_learned(Head(x @ x[:3], wide[:, :2], y, "cross_entropy"), x.__getitem__)
    assert not not_learned(Head(x, wide[:, :2], y, "cross_entropy"), None)


# ------------------------------------------------------------------------------------------------ which kernel


def rough_table(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Records in tight clusters, whose classes have nothing to do with where the clusters are."""
    rng = np.random.default_rng(0)
    centres, labels = rng.normal(size=(n // 4, 2)) * 30.0, rng.integers(0, 2, n // 4)
    return np.repeat(centres, 4, axis=0) + rng.normal(scale=0.01, size=(n, 2)), np.repeat(labels, 4)


@pytest.mark.parametrize(("margin", "kernel"), [(8.0, "laplace"), (0.05, "rbf")])
def test_a_model_that_memorizes_a_rough_table_is_seen_through_the_rough_kernel(margin, kernel):
    x, y = rough_table()
    outputs = margin * np.column_stack([0.5 - y, y - 0.5])
    table = audit(Head(np.tanh(x), outputs, y, "cross_entropy", l2=1.0, inputs=x), scores=["fused"])
    assert table.meta.view.kernel == kernel
    assert (table.meta.view.memorized > 0.5) == (kernel == "laplace")


def test_smooth_tables_and_very_many_records_keep_the_smooth_kernel(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = x @ [1.0, -2.0] + 0.01 * rng.normal(size=200)
    view = audit(Head(np.tanh(x), y, y, "squared", inputs=x), scores=["fused"]).meta.view
    assert (view.kernel, view.memorized) == ("rbf", 1.0)
    x, y = rough_table()
    head = Head(np.tanh(x), 8.0 * np.column_stack([0.5 - y, y - 0.5]), y, "cross_entropy", l2=1.0, inputs=x)
    monkeypatch.setattr(others, "EXACT_UP_TO", 199)
    assert audit(head, scores=["fused"]).meta.view.kernel == "rbf"
