"""The kind of features follows from the kind of records."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from giveaway.checks import InputError
from giveaway.views import images
from giveaway.views.choose import features_of
from giveaway.views.images import patch_features
from giveaway.views.tabular import tabular_features
from giveaway.views.text import text_features

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (5, 3, 8, 8)).astype(np.uint8)
TABLE = RANDOM.normal(size=(6, 3))
TEXTS = ["a text", "another", "and one more"]


@pytest.fixture(autouse=True)
def few_patches(monkeypatch):
    monkeypatch.setattr(images, "PATCHES", 300)


def gather(blocks):
    return torch.cat(list(blocks()))


@pytest.mark.parametrize(
    ("inputs", "view", "expected"),
    [
        (PIXELS, "images", lambda x: patch_features(x, filters=4)),
        (torch.from_numpy(PIXELS), "images", lambda x: patch_features(x, filters=4)),
        (PIXELS / 255, "images", lambda x: patch_features(x, filters=4)),
        (PIXELS[:, 0], "images", lambda x: patch_features(x, filters=4)),
        (torch.from_numpy(PIXELS[:, 0].copy()), "images", lambda x: patch_features(x, filters=4)),
        (TABLE, "tabular", lambda x: tabular_features(x, features=6)),
        (torch.from_numpy(TABLE), "tabular", lambda x: tabular_features(x, features=6)),
        (TABLE[:, 0], "tabular", lambda x: tabular_features(x[:, None], features=6)),
        (TABLE.tolist(), "tabular", lambda x: tabular_features(x, features=6)),
        (TEXTS, "text", lambda x: text_features(x, dimensions=32)),
        (np.array(TEXTS), "text", lambda x: text_features(x, dimensions=32)),
        (np.array(TEXTS, dtype=object), "text", lambda x: text_features(x, dimensions=32)),
    ],
)
def test_features_are_those_of_the_kind(inputs, view, expected):
    described, blocks = features_of(inputs, filters=4, features=6, dimensions=32)
    assert described["view"] == view
    torch.testing.assert_close(gather(blocks), gather(expected(inputs)), rtol=0, atol=0)


def test_the_description_says_what_was_used():
    assert features_of(PIXELS[:, :, :4, :], filters=4, seed=2)[0] == {
        "view": "images",
        "filters": 4,
        "size": 4,
        "pool": 1,
        "seed": 2,
    }
    table = np.column_stack([TABLE, [0, 1, 2, 0, 1, 2]])
    described, blocks = features_of(table, categorical=[3], features=0)
    assert described == {"view": "tabular", "features": 0, "categorical": 1, "seed": 0}
    assert next(blocks()).shape == (6, 6)


@pytest.mark.parametrize("inputs", [np.zeros((3, 4, 5)), np.zeros((2, 2, 2, 2, 2)), np.float64(3.0)])
def test_other_shapes_are_refused(inputs):
    with pytest.raises(InputError, match=r"inputs: expected images \(n, c, h, w\), strings, or a table"):
        features_of(inputs)
