"""The kind of features follows from the kind of records."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from giveaway.checks import InputError
from giveaway.views import images
from giveaway.views.images import as_images, draw_patches, patch_features
from giveaway.views.left_out import left_out, scaling_of
from giveaway.views.others import features_of
from giveaway.views.tables import table_features
from giveaway.views.text import text_features
from tests.conftest import refused
from tests.views.made import gather

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (5, 3, 8, 8)).astype(np.uint8)
TABLE = RANDOM.normal(size=(6, 3))
TEXTS = ["a text", "another", "and one more"]


@pytest.fixture(autouse=True)
def few_patches(monkeypatch):
    monkeypatch.setattr(images, "PATCHES", 300)
    monkeypatch.setattr(images, "FILTERS", 4)


def averaged(x, factor):
    """Means over squares of factor × factor pixels, one at a time; what is left over at the edges is cut."""
    small = np.zeros((*x.shape[:2], x.shape[2] // factor, x.shape[3] // factor))
    for row in range(small.shape[2]):
        for column in range(small.shape[3]):
            y, z = row * factor, column * factor
            small[:, :, row, column] = x[:, :, y : y + factor, z : z + factor].astype(np.float64).mean((2, 3))
    return small


def patches_and_pixels(x, sizes=(3,)):
    pictures = as_images(x)
    made = [patch_features(pictures, draw_patches(pictures, 4, size, k), 4) for k, size in enumerate(sizes)]
    pixels = np.asarray(x)
    pixels = averaged(pixels if pixels.ndim == 4 else pixels[:, None], 2)
    return torch.cat([*made, torch.from_numpy(pixels).flatten(1).float()], dim=1)


IMAGES = [
    *(PIXELS, torch.from_numpy(PIXELS), PIXELS / 255, (PIXELS / 255).astype(np.float16), PIXELS.astype(np.int32) - 128),
    *(PIXELS.astype(np.uint16) * 200, PIXELS > 128, PIXELS[:, ::-1, :, ::-1], PIXELS.tolist(), PIXELS[:, 0]),
    *(PIXELS.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2), torch.from_numpy(PIXELS[:, 0].copy())),
]
TABLES = [TABLE, torch.from_numpy(TABLE), TABLE.astype(np.float16), TABLE[::-1, ::2], TABLE[:, 0], TABLE.tolist()]
LISTS = [TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object)]


@pytest.mark.parametrize(
    ("inputs", "view", "expected"),
    [
        *((inputs, "images", patches_and_pixels) for inputs in IMAGES),
        *((inputs, "tabular", lambda x: gather(table_features(np.asarray(x))[1])) for inputs in TABLES),
        *((inputs, "text", lambda x: gather(text_features(x, dimensions=4096))) for inputs in LISTS),
    ],
)
def test_features_are_those_of_the_kind(inputs, view, expected):
    described, features = features_of(inputs)
    assert described["view"] == view
    assert features.n == len(inputs)
    made = gather(features)
    assert made.isfinite().all()
    torch.testing.assert_close(made, expected(inputs), rtol=1e-6, atol=1e-6)
    some = torch.tensor([2, 0])
    torch.testing.assert_close(features.of(some), made[some], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("channels", "kind", "height", "width", "factor", "side", "sizes"),
    [
        (3, "uint8", 224, 224, 7, 32, [6, 10]),
        (3, "float32", 64, 64, 2, 32, [6, 10]),
        (1, "float64", 8, 8, 1, 8, [3]),
        (1, "uint8", 70, 101, 2, 35, [7, 11]),
        (1, "float32", 63, 90, 1, 63, [12, 20]),
        (3, "float64", 16, 40, 1, 16, [3, 5]),
    ],
)
def test_larger_images_are_averaged_over_squares(channels, kind, height, width, factor, side, sizes):
    pixels = np.random.default_rng(1).integers(0, 256, (3, channels, height, width)).astype(kind)
    described, features = features_of(pixels)
    small = averaged(pixels, factor)
    assert described == {"view": "images", "side": side, "patches": sizes, "filters": 4, "cells": 4, "seed": 0}
    made = gather(features)
    assert made.shape == (3, len(sizes) * 2 * 4 * 16 + channels * (small.shape[2] // 2) * (small.shape[3] // 2))
    torch.testing.assert_close(made, patches_and_pixels(small.astype(np.float32), sizes), rtol=1e-3, atol=1e-3)
    assert [width for width, _ in features.shares] == [128] * len(sizes) + [made.shape[1] - 128 * len(sizes)]
    assert sum(share for _, share in features.shares) == pytest.approx(1.0)


def scaled(inputs):
    features = features_of(inputs)[1]
    scaling = scaling_of(gather(features), standardize=True, shares=features.shares)
    return scaling.apply(gather(features)), scaling.length


def test_whole_numbers_and_floats_of_one_image_are_the_same_in_the_units_of_the_kernel():
    pixels = RANDOM.integers(0, 256, (6, 3, 64, 64)).astype(np.uint8)
    plain, length = scaled(pixels)
    for other in (pixels.astype(np.float32) / 255, pixels.astype(np.int64), pixels / 255 - 0.5):
        rows, own = scaled(other)
        torch.testing.assert_close(torch.cdist(rows, rows), torch.cdist(plain, plain), rtol=1e-2, atol=1e-2 * length)
        assert own == pytest.approx(length, rel=1e-2)


@pytest.mark.parametrize(
    "shape", [(6, 3, 1, 1), (6, 1, 1, 1), (6, 1, 1, 9), (6, 1, 2, 2), (6, 2, 1, 7), (6, 1, 3, 5), (2, 1, 4, 4)]
)
def test_tiny_images_in_blocks_of_any_size(shape):
    described, features = features_of(np.random.default_rng(2).normal(size=shape))
    made = gather(features)
    assert described["side"] == min(shape[2:])
    assert made.isfinite().all()
    assert made.std(0).max() > 0
    for block in (1, 4):
        torch.testing.assert_close(gather(replace(features, block=block)), made, rtol=1e-5, atol=1e-5)
    assert left_out(features, torch.arange(float(shape[0]))).error.isfinite().all()


def test_images_that_are_all_flat_or_all_the_same_are_predicted_by_the_mean():
    y = torch.arange(6.0, dtype=torch.float64).unsqueeze(1)
    for pixels in (np.zeros((6, 1, 8, 8), np.uint8), np.repeat(PIXELS[:1], 6, 0)):
        for exact in (True, False):
            error = left_out(features_of(pixels)[1], y, exact=exact).error
            torch.testing.assert_close(error, y - (15 - y) / 5, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 1, 8, 8), (9, 3, 64, 70)])
def test_memory_maps_of_images(tmp_path, shape):
    pixels = RANDOM.integers(0, 256, shape).astype(np.uint8)
    np.save(tmp_path / "x.npy", pixels)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert torch.equal(gather(features_of(mapped)[1]), gather(features_of(pixels)[1]))


@pytest.mark.parametrize(
    "inputs", [np.zeros((3, 4, 5)), np.zeros((2, 2, 2, 2, 2)), np.float64(3.0), torch.zeros(3, 4, 5), torch.zeros(())]
)
def test_other_shapes_are_refused(inputs):
    refused(r"inputs: expected images \(n, c, h, w\), strings, or a table", features_of, inputs)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], "inputs: expected at least one record"),
        (np.zeros((0, 3)), "inputs: expected at least one record"),
        (np.zeros((3, 0)), "of one number at least, got shape \\(3, 0\\)"),
        (torch.zeros(0, 3, 8, 8), "inputs: expected at least one record"),
        ([[1.0, 2.0], [3.0]], "inputs: expected one shape for all records, got rows of different lengths"),
        (np.zeros((5, 8, 8, 3)), "channels before height and width.*transpose"),
        (np.full((5, 1, 8, 8), np.nan), "images: expected finite numbers"),
        (np.ones((5, 2)), "matrix: expected at least one column that varies"),
        ("one text", "strings: expected a list of strings"),
        (["a", None], "strings: expected strings, got NoneType in row 1"),
        (["a", 3], "strings: expected strings, got int in row 1"),
        (np.zeros((5, 2), dtype=complex), "matrix: expected an array of numbers"),
    ],
)
def test_errors_say_what_to_do(inputs, words):
    with pytest.raises(InputError, match=words) as caught:
        features_of(inputs)
    assert "\n" not in str(caught.value)
