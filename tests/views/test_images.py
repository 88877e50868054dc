"""Patch features against plain loops over every patch."""

import math

import numpy as np
import pytest
import torch

from giveaway.views import images as module
from giveaway.views.images import THRESHOLD, draw_patches, patch_features


@pytest.fixture(autouse=True)
def few_patches(monkeypatch):
    monkeypatch.setattr(module, "PATCHES", 300)
    monkeypatch.setattr(module, "FILTERS", 4)


def pictures(n, channels, height, width, seed=0, dtype=np.uint8):
    return np.random.default_rng(seed).integers(0, 256, (n, channels, height, width)).astype(dtype)


def by_loops(images, patches, pool, threshold):
    """Normalize, respond, rectify and average, one patch at a time in float64."""
    filters, offset = patches.filters.double().numpy(), patches.offset.double().numpy()
    size = patches.shape[1]
    n, _, height, width = images.shape
    rows, columns = height - size + 1, width - size + 1
    out = np.zeros((n, 2, len(filters), pool, pool))
    for i in range(n):
        maps = np.zeros((len(filters), rows, columns))
        for y in range(rows):
            for x in range(columns):
                patch = images[i, :, y : y + size, x : x + size].astype(np.float64).ravel()
                normal = (patch - patch.mean()) / np.sqrt(patch.var() + patches.noise)
                maps[:, y, x] = filters @ normal - offset
        for a in range(pool):
            for b in range(pool):
                y = slice(a * rows // pool, math.ceil((a + 1) * rows / pool))
                x = slice(b * columns // pool, math.ceil((b + 1) * columns / pool))
                cell = maps[:, y, x]
                out[i, 0, :, a, b] = np.maximum(cell - threshold, 0).mean((1, 2))
                out[i, 1, :, a, b] = np.maximum(-cell - threshold, 0).mean((1, 2))
    return out.reshape(n, -1)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize(
    ("channels", "height", "width", "size", "pool"), [(1, 6, 7, 3, 2), (3, 8, 5, 4, 1), (2, 7, 7, 2, 3)]
)
def test_features_are_those_of_plain_loops(channels, height, width, size, pool, dtype):
    images = pictures(4, channels, height, width, dtype=dtype)
    patches = draw_patches(torch.from_numpy(images), 5, size, 4)
    made = patch_features(torch.from_numpy(images), patches, pool)
    expected = by_loops(images, patches, pool, THRESHOLD)
    assert made.dtype == torch.float32
    assert made.shape == (4, 2 * 5 * pool * pool)
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert (made > 0).any(0).float().mean() > 0.5


def test_whitening_is_the_inverse_root_of_the_covariance():
    images = torch.from_numpy(pictures(30, 2, 5, 5).astype(np.float64))
    size, count = 2, 4
    generator = torch.Generator().manual_seed(3)
    which = torch.randint(30, (300,), generator=generator)
    top = torch.randint(4, (300,), generator=generator)
    left = torch.randint(4, (300,), generator=generator)
    raw = np.stack(
        [images[i, :, y : y + 2, x : x + 2].numpy().ravel() for i, y, x in zip(which, top, left, strict=True)]
    )
    patches = draw_patches(images, count, size, 3)
    assert patches.noise == pytest.approx(1e-3 * raw.var(1).mean())
    normal = (raw - raw.mean(1, keepdims=True)) / np.sqrt(raw.var(1, keepdims=True) + patches.noise)
    covariance = np.cov(normal.T, bias=True)
    ridged = covariance + 0.01 * np.trace(covariance) / 8 * np.eye(8)
    values, vectors = np.linalg.eigh(ridged)
    whiten = vectors @ np.diag(values**-0.5) @ vectors.T
    unit = (normal[:count] - normal.mean(0)) @ whiten
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    np.testing.assert_allclose(patches.filters.numpy(), unit @ whiten, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(patches.offset.numpy(), unit @ whiten @ normal.mean(0), rtol=1e-4, atol=1e-5)


def features_of_patches(images):
    pictures = torch.from_numpy(images)
    return patch_features(pictures, draw_patches(pictures, 4, 6, 0), 2)


def test_brightness_and_contrast_do_not_matter():
    images = pictures(6, 1, 8, 8, dtype=np.float64)
    plain, changed = (features_of_patches(x) for x in (images, images * 0.01 - 7.0))
    torch.testing.assert_close(plain, changed, rtol=1e-3, atol=1e-3)


def test_flat_images_are_zero_or_finite():
    images = pictures(5, 1, 8, 8)
    assert features_of_patches(np.full((4, 1, 8, 8), 9, np.uint8)).eq(0).all()
    half = np.concatenate([images, np.zeros_like(images)])
    filters = draw_patches(torch.from_numpy(half), 20, 6, 0).filters
    assert len(torch.unique(filters, dim=0)) > 15  # black patches are not drawn while there are others
