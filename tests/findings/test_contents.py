"""What a report shows of the records themselves: pictures that are those records, text that is cut and harmless."""

from __future__ import annotations

import io

import numpy as np
import pandas
import pytest
import torch
from matplotlib.image import imread

from giveaway.findings.extras import contents_of

ROWS = np.array([2, 0])


def pixels(png: bytes) -> np.ndarray:
    return np.round(255 * imread(io.BytesIO(png), format="png")[..., :3]).astype(int)


@pytest.mark.parametrize("form", ["first", "last", "grey", "tensor", "flat channels"])
def test_images_are_those_of_their_rows(form):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 3, 8, 6), dtype=np.uint8)
    images[:, :, 0, 0], images[:, :, 0, 1] = 0, 255
    given = {
        "first": images,
        "last": images.transpose(0, 2, 3, 1),
        "grey": images[:, 0],
        "tensor": torch.from_numpy(images / 255.0),
        "flat channels": images[:, :1],
    }[form]
    found = contents_of(given, ROWS)
    assert found.texts == ("", "")
    for row, png in zip(ROWS, found.pictures, strict=True):
        shown = pixels(png)
        factor = shown.shape[0] // 8
        expected = images[row] if form in ("first", "last", "tensor") else np.repeat(images[row, :1], 3, axis=0)
        np.testing.assert_allclose(shown[::factor, ::factor].transpose(2, 0, 1), expected, atol=1)


def test_large_images_are_thinned_and_a_constant_one_is_black():
    found = contents_of(np.full((3, 1, 1000, 40), 0.3), ROWS)
    assert pixels(found.pictures[0]).max() == 0
    assert pixels(found.pictures[0]).shape[0] <= 192


def test_strings_are_cut_and_harmless():
    found = contents_of(["a", "b", "x" * 10_000_000 + "\x1b[31m"], ROWS)
    assert len(found.texts[0]) <= 400
    assert found.texts[0].endswith("…")
    assert found.texts[1] == "a"
    assert "\\x1b" in contents_of(["\x1b[31m"], np.array([0])).texts[0]


def test_tables_name_their_columns():
    frame = pandas.DataFrame({"age": [1.5, 2.0, 3.25], "job": ["x", "y", "z\u202e"]})
    assert contents_of(frame, ROWS).texts == ("age: 3.25, job: z\\u202e", "age: 1.5, job: x")
    wide = np.arange(90.0).reshape(3, 30)
    text = contents_of(wide, ROWS).texts[0]
    assert text.startswith("0: 60, 1: 61, ")
    assert text.endswith(", … 6 more")
    assert contents_of(np.array([["a", "b"], ["c", "d"], ["e", "f"]]), ROWS).texts[0] == "0: e, 1: f"
