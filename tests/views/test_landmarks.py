"""Nyström features: the kernel they stand for, and when they are held."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from giveaway.views import landmarks as module
from giveaway.views.blocks import RecordFeatures
from giveaway.views.kernel import scaling_of
from giveaway.views.landmarks import landmark_count, landmark_features


def draw(n, d=4, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def counted(x, block=7):
    made = []

    def of(rows):
        made.append(rows)
        return x[rows]

    return RecordFeatures(len(x), of, block), made


def laplace_by_scipy(x, scaling):
    z = ((x - scaling.shift) * scaling.scale).double().numpy()
    return np.exp(-cdist(z, z) / scaling.length)


def gather(blocks):
    return torch.cat(list(blocks())).double()


def test_with_every_record_a_landmark_products_are_the_kernel():
    x = draw(50)
    scaling = scaling_of(x, standardize=True)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    features = gather(landmark_features(counted(x)[0], scaling.apply(x[order]), scaling))
    np.testing.assert_allclose((features @ features.T).numpy(), laplace_by_scipy(x, scaling), atol=1e-4)


def test_with_some_landmarks_products_are_those_of_nystrom():
    x = draw(60)
    scaling = scaling_of(x, standardize=False)
    features = gather(landmark_features(counted(x)[0], scaling.apply(x[:15]), scaling))
    k = laplace_by_scipy(x, scaling)
    expected = k[:, :15] @ np.linalg.solve(k[:15, :15], k[:15])
    assert features.shape == (60, 15)
    np.testing.assert_allclose((features @ features.T).numpy(), expected, atol=1e-4)
    np.testing.assert_allclose((features @ features.T).numpy()[:15], k[:15], atol=1e-4)  # exact for landmarks


def test_more_landmarks_come_nearer():
    x = draw(120, d=2)
    scaling = scaling_of(x, standardize=True)
    k = laplace_by_scipy(x, scaling)
    errors = []
    for count in (5, 20, 60, 120):
        features = gather(landmark_features(counted(x)[0], scaling.apply(x[:count]), scaling))
        errors.append(float(np.linalg.norm((features @ features.T).numpy() - k)))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-2 * errors[0]


def test_landmarks_that_are_the_same_record_count_once():
    x = draw(10)
    x[5:] = x[:5]
    scaling = scaling_of(x, standardize=True)
    features = gather(landmark_features(counted(x)[0], scaling.apply(x), scaling))
    assert features.isfinite().all()
    np.testing.assert_allclose((features @ features.T).numpy(), laplace_by_scipy(x, scaling), atol=2e-3)
    same = torch.ones(6, 3)
    scaling = scaling_of(same, standardize=True)
    features = gather(landmark_features(counted(same)[0], scaling.apply(same), scaling))
    np.testing.assert_allclose((features @ features.T).numpy(), np.ones((6, 6)), rtol=1e-5)


def test_features_are_held_or_made_anew(monkeypatch):
    x = draw(40)
    scaling = scaling_of(x, standardize=True)
    few, made = counted(x)
    held = landmark_features(few, scaling.apply(x[:8]), scaling)
    first = gather(held)
    assert len(made) == 6
    assert torch.equal(gather(held), first)
    assert len(made) == 6
    monkeypatch.setattr(module, "KEPT_BYTES", 4 * 40 * 8 - 1)
    streamed = landmark_features(few, scaling.apply(x[:8]), scaling)
    assert len(made) == 6
    assert torch.equal(gather(streamed), first)
    assert torch.equal(gather(streamed), first)
    assert len(made) == 18


@pytest.mark.parametrize(
    ("n", "count"),
    [
        *[(2, 2), (300, 300), (4096, 4096), (50_000, 4096), (100_000, 4096), (119_000, 4096), (120_000, 2048)],
        *[(1_000_000, 1024), (10_000_000, 256), (1_000_000_000, 256)],
    ],
)
def test_the_number_of_landmarks(n, count):
    assert landmark_count(n) == count
    assert count in (n, 256) or n * count**2 <= module.WORK
