from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from benchmarks.networks import Convolution
from benchmarks.recipes import RECIPES, build_mlp, signals_of, solve_logistic, train_recipe
from benchmarks.stacked import Training
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import correlate
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression, Ridge

from giveaway.attacks.shadow_store import balanced_membership
from giveaway.checks import InputError
from giveaway.records import Signals
from tests.conftest import refused


def made(n=60, d=4, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, d))
    return inputs, rng.integers(0, classes, n)


def test_ridge_equals_the_closed_form(tmp_path):
    inputs, _ = made()
    values = inputs @ [1.0, -2.0, 0.5, 0.0] + np.random.default_rng(1).normal(size=60) + 7
    signals = train_recipe("ridge", inputs, values, models=4, folder=tmp_path, records=50)
    members = balanced_membership(4, 50, seed=0)
    for number in range(4):
        model = Ridge(alpha=1.0).fit(inputs[:50][members[number]], values[:50][members[number]])
        error = (model.predict(inputs) - values) ** 2
        np.testing.assert_allclose(signals.values[number, :, 0], error[:50], atol=1e-10)
        np.testing.assert_allclose(signals.population[number, :, 0], error[50:], atol=1e-10)
    np.testing.assert_array_equal(signals.members, members)
    assert signals.kind == "squared_error"


def test_logistic_is_at_its_optimum():
    inputs, classes = made()
    theta = solve_logistic(inputs, classes, 3, 1.0)
    x = np.column_stack([inputs, np.ones(60)])
    gradient = x.T @ (softmax(x @ theta, axis=1) - np.eye(3)[classes]) + theta
    assert np.abs(gradient).max() < 1e-5
    # scikit-learn leaves the intercept out of the penalty: give it the column of ones instead
    model = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(x, classes)
    np.testing.assert_allclose(theta.T, model.coef_, atol=1e-5)


def test_logistic_where_a_class_is_absent_from_a_half(tmp_path):
    inputs, classes = made()
    classes[classes == 2] = 0
    classes[7] = 2
    signals = train_recipe("logistic", inputs, classes, models=2, folder=tmp_path)
    assert signals.values.shape == (2, 60, 1, 3)


def test_a_diverged_model_is_named(tmp_path):
    inputs, classes = made()
    wild = replace(RECIPES["mlp"], training=Training(30, 16, "sgd", 1e12))
    with pytest.raises(InputError, match=r"model 0 \(seed \d+\): NaN or infinity in its signals"):
        train_recipe(wild, inputs.astype(np.float32), classes, models=2, folder=tmp_path)


def test_networks_take_double_precision(tmp_path):
    inputs, classes = made()
    quick = replace(RECIPES["mlp"], training=Training(epochs=1, batch_size=16, learning_rate=0.01))
    single = train_recipe(quick, inputs.astype(np.float32), classes, models=2, folder=tmp_path / "single")
    state = torch.random.get_rng_state()
    double = train_recipe(quick, inputs, classes, models=2, folder=tmp_path / "double")
    np.testing.assert_array_equal(single.values, double.values)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_mlp_ensemble_resumes_and_grows(tmp_path):
    inputs, classes = made()
    small = replace(RECIPES["mlp"], training=Training(2, 16, "adam", 1e-2), models_at_once=2)
    data = (inputs.astype(np.float32), classes)
    whole = train_recipe(small, *data, models=6, folder=tmp_path / "whole")
    finished = []

    def interrupt(done, models):
        finished.append(done)
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_recipe(small, *data, models=6, folder=tmp_path / "killed", on_model=interrupt)
    resumed = train_recipe(small, *data, models=6, folder=tmp_path / "killed")
    np.testing.assert_array_equal(resumed.values, whole.values)
    grown = train_recipe(small, *data, models=8, folder=tmp_path / "killed")
    np.testing.assert_array_equal(grown.values[:6], whole.values)
    assert whole.values.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipe": replace(RECIPES["mlp"], training=Training(3, 16))}, "epochs was 1, is 3"),
        ({"recipe": replace(RECIPES["mlp"], build=partial(build_mlp, hidden=(8,)))}, "architecture was"),
        ({"inputs": np.zeros((60, 4))}, "inputs differ"),
        ({"kind": "phi"}, "kind was 'logits', is 'phi'"),
    ],
)
def test_what_changed_is_refused(tmp_path, change, words):
    inputs, classes = made()
    base = {"recipe": "mlp", "inputs": inputs.astype(np.float32), "targets": classes, "models": 2, "folder": tmp_path}
    quick = replace(RECIPES["mlp"], training=Training(1, 16))
    train_recipe(**{**base, "recipe": quick})
    refused(words, train_recipe, **{**base, "recipe": quick, **change})


def test_the_cnn_has_its_size_and_trains(tmp_path):
    model = RECIPES["cnn"].build((3, 32, 32), 10)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(0.90, rel=0.02)
    images = np.random.default_rng(0).normal(size=(24, 1, 8, 8)).astype(np.float32)
    quick = replace(RECIPES["cnn"], training=replace(RECIPES["cnn"].training, epochs=1, batch_size=6))
    signals = train_recipe(quick, images, np.arange(24) % 2, models=2, folder=tmp_path, kind="phi")
    assert signals.values.shape == (2, 24, 1)


def test_kinds_agree_with_signals():
    inputs, classes = made()
    logits = inputs @ np.random.default_rng(2).normal(size=(4, 3))
    members = np.ones((1, 60), dtype=bool)
    full = Signals(logits[None], members, "logits", classes)
    np.testing.assert_allclose(signals_of(logits, classes, "phi"), full.statistic()[0, :, 0], atol=1e-12)
    np.testing.assert_allclose(signals_of(logits, classes, "probabilities"), full.distribution()[0, :, 0], atol=1e-12)
    np.testing.assert_allclose(signals_of(np.array([[1.0, 2.0]]), np.array([[0.0, 4.0]]), "squared_error"), [5.0])


@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6))
def test_a_convolution_by_patches_is_the_convolution(given_channels, made_channels, height, width):
    layer = Convolution(given_channels, made_channels).double()
    x = torch.randn(3, given_channels, height, width, dtype=torch.float64, requires_grad=True)
    expected = np.stack([
        [
            sum(correlate(channel, kernel, mode="same") for channel, kernel in zip(image, filters, strict=True))
            for filters in layer.weight.detach().numpy()
        ]
        for image in np.pad(x.detach().numpy(), [(0, 0), (0, 0), (1, 1), (1, 1)])
    ])[..., 1:-1, 1:-1]  # fmt: skip
    patches = layer.by_patches(x)
    np.testing.assert_allclose(patches.detach().numpy(), expected, atol=1e-12)
    by_torch = torch.nn.functional.conv2d(x, layer.weight, padding=1)
    weights = torch.randn_like(by_torch)
    for found in zip(
        *(torch.autograd.grad(out, (layer.weight, x), weights) for out in (patches, by_torch)), strict=True
    ):
        np.testing.assert_allclose(*(gradient.numpy() for gradient in found), atol=1e-12)
