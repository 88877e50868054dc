"""The optional parts of a report: the map of features, the records themselves, and all of it from the folder."""

import io
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch
from matplotlib.image import imread
from sklearn.decomposition import PCA

from giveaway import Head, audit
from giveaway.findings.canaries import mean_of_records
from giveaway.findings.extras import EXPOSED, FILE, FeatureMap, ReportExtras, contents_of, feature_map, make_extras
from giveaway.records import ScoreTable
from tests.conftest import made_arrays, made_head, refused


def loaded(look: ReportExtras, folder) -> ReportExtras:
    (folder / FILE).write_bytes(look.to_bytes())
    return ReportExtras.load(folder)


def test_everything_comes_back_from_the_folder(tmp_path):
    head = made_head("classes", l2=0.5, inputs=np.random.default_rng(0).random((60, 3, 5, 5)))
    table = audit(head)
    look = make_extras(head, table, show_records=True)
    found = loaded(look, tmp_path)
    assert look.missing == found.missing == {}
    assert look.feature_map.method == found.feature_map.method == "PCA"
    assert look.feature_map.explained == found.feature_map.explained
    np.testing.assert_array_equal(look.feature_map.places, found.feature_map.places)
    np.testing.assert_array_equal(look.candidates.similarity, found.candidates.similarity)
    np.testing.assert_array_equal(found.contents.rows, table.order()[:100])
    assert (found.contents.held, found.contents.pictures) == (look.contents.held, True)
    assert b64decode(found.contents.held[0]).startswith(b"\x89PNG")
    assert look.to_bytes() == make_extras(head, table, show_records=True).to_bytes()


def test_texts_come_back_too_and_on_request_only(tmp_path):
    head = made_head("classes", l2=0.5)
    words = [f"record {i} 'quoted' \x00" for i in range(60)]
    table, spoken = audit(head), replace(head, inputs=words)
    assert make_extras(spoken, table).contents is None
    found = loaded(make_extras(spoken, table, show_records=True), tmp_path)
    first = int(table.order()[0])
    assert found.contents.held[0] == f"record {first} 'quoted' \\u0000"
    assert not found.contents.pictures


def test_a_black_box_has_canaries_but_no_map(tmp_path):
    head = Head(**made_arrays("classes") | {"features": None})
    look = loaded(make_extras(head, audit(head)), tmp_path)
    assert look.feature_map is None
    assert look.candidates is not None
    assert look.missing["map"] == "a black box has no features to map"


def test_a_folder_without_a_look_says_so(tmp_path):
    found = ReportExtras.load(tmp_path)
    assert found.feature_map is None
    assert set(found.missing) == {"map", "canaries"}
    assert all("run giveaway audit again" in reason for reason in found.missing.values())


def head_of(features: np.ndarray, **options) -> Head:
    n = len(features)
    return Head(features, np.zeros((n, 1)), np.arange(n, dtype=float), "squared", **options)


def table_of(head: Head, newton: np.ndarray | None = None) -> ScoreTable:
    scores = np.arange(head.n)[::-1] if newton is None else newton
    return ScoreTable({"newton": scores}, np.arange(len(scores)), {"unit": "record"})


def pca_map(features: np.ndarray) -> FeatureMap:
    head = head_of(features)
    return feature_map(head, table_of(head))


@pytest.mark.parametrize("d", [3, 60])
def test_the_map_turns_with_nothing(d):
    """Neither a shift of the features, nor their order, nor their sign moves a place."""
    x = np.random.default_rng(1).normal(size=(30, d)) * np.linspace(3.0, 1.0, d)
    places = pca_map(x).places
    for other in (x + 7.0, x[:, ::-1].copy(), -x):
        np.testing.assert_allclose(pca_map(other).places, places, atol=1e-5)


@pytest.mark.parametrize(
    ("features", "explained"),
    [
        (np.full((60, 3), 0.1), None),
        (np.zeros((60, 0)), None),
        (np.full((2, 3), 0.1), None),
        (np.arange(6.0)[:, None], 1.0),
        (np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]), 1.0),
        (np.c_[np.full(40, 0.1), np.arange(40.0)], 1.0),
        (np.array([[1e100, 0.0], [0.0, 1e100], [0.0, 0.0]]), 1.0),
        (np.array([[1e-300, 0.0], [0.0, 1e-300], [0.0, 0.0]]), None),
    ],
)
def test_little_to_place(features, explained):
    head = head_of(features)
    found = feature_map(head, table_of(head))
    assert found.method == "PCA"
    assert found.explained == (None if explained is None else pytest.approx(explained, abs=1e-12))
    assert found.places.shape == (len(features), 2)
    assert np.isfinite(found.places).all()
    if explained is None:
        assert not found.places.any()
    else:
        assert len(np.unique(found.places.round(6), axis=0)) == len(features)


def test_the_most_exposed_and_some_of_the_others_have_a_place():
    n = 3_000
    newton = np.random.default_rng(0).random(n)
    head = head_of(np.random.default_rng(1).normal(size=(n, 2)))
    table = table_of(head, newton)
    found = feature_map(head, table, most=1_200)
    assert len(found.rows) == 1_200
    assert (np.diff(found.rows) > 0).all()
    assert np.isin(table.order()[:EXPOSED], found.rows).all()
    # the others are spread over the whole ranking, not the next ones
    others = np.setdiff1d(found.rows, table.order()[:EXPOSED])
    assert 1_500 < np.median(table.rank()[others]) < 2_000
    again = feature_map(head, table, most=1_200)
    np.testing.assert_array_equal(again.rows, found.rows)
    np.testing.assert_array_equal(again.places, found.places)
    few = feature_map(head, table, most=7)
    np.testing.assert_array_equal(few.rows, np.sort(table.order()[:7]))
    whole = feature_map(head, table, most=5_000)
    np.testing.assert_array_equal(whole.rows, np.arange(n))


def test_units_of_the_columns_do_not_stretch_the_map():
    """One column in tens of thousands once made a worm of it."""
    features = np.random.default_rng(0).normal(size=(80, 5))
    plain, raw = pca_map(features), pca_map(features * [1e4, 1.0, 1e-3, 50.0, 1.0] + 7.0)
    np.testing.assert_allclose(raw.places, plain.places, atol=1e-4)
    assert raw.explained < 0.7


def test_people_stand_at_the_mean_of_their_records():
    groups = np.random.default_rng(2).integers(0, 30, 200)
    head = made_head("classes", n=200, groups=groups)
    table = audit(head)
    assert table.meta.unit == "person"
    means = np.array([head.features.numpy()[groups == person].mean(0) for person in np.unique(groups)])
    found = feature_map(head, table)
    np.testing.assert_array_equal(found.rows, np.arange(len(means)))
    everyone = head.features.numpy()
    scaled = (means - everyone.mean(0)) / everyone.std(0)
    expected = PCA(2).fit_transform(scaled) / np.abs(scaled - scaled[0]).max()
    np.testing.assert_allclose(np.abs(found.places), np.abs(expected), atol=1e-5)
    row_of = np.searchsorted(np.unique(groups), groups)
    some = np.array([3, 11, 20])
    np.testing.assert_allclose(mean_of_records(head.features.__getitem__, row_of, some), means[some], rtol=1e-12)


def test_only_the_rows_on_the_map_are_read():
    read = []

    def features(which: torch.Tensor) -> torch.Tensor:
        read.extend(which.tolist())
        return torch.stack([2.0 * which, which + 0.5], 1)

    found = mean_of_records(features, np.arange(40_000) // 2, np.array([5, 19_999]))
    assert read == [10, 11, 39_998, 39_999]
    np.testing.assert_array_equal(found, [[21.0, 11.0], [79_997.0, 39_999.0]])


def test_what_is_refused():
    head = made_head("classes")
    table = audit(head)
    refused("table: expected 60 rows, as the head has, got 4", feature_map, head, table.top(4))


ROWS = np.array([2, 0])


def pixels(png: str) -> np.ndarray:
    return np.round(255 * imread(io.BytesIO(b64decode(png)), format="png")[..., :3]).astype(int)


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
    assert found.pictures
    for row, png in zip(ROWS, found.held, strict=True):
        shown = pixels(png)
        factor = shown.shape[0] // 8
        expected = images[row] if form in ("first", "last", "tensor") else np.repeat(images[row, :1], 3, axis=0)
        np.testing.assert_allclose(shown[::factor, ::factor].transpose(2, 0, 1), expected, atol=1)


def test_large_images_are_thinned_and_a_constant_one_is_black():
    found = contents_of(np.full((3, 1, 1000, 40), 0.3), ROWS)
    assert pixels(found.held[0]).max() == 0
    assert pixels(found.held[0]).shape[0] <= 192


def test_strings_are_cut_and_harmless():
    found = contents_of(["a", "b", "x" * 10_000_000 + "\x1b[31m"], ROWS)
    assert len(found.held[0]) <= 400
    assert found.held[0].endswith("…")
    assert found.held[1] == "a"
    assert "\\u001b" in contents_of(["\x1b[31m"], np.array([0])).held[0]


def test_tables_name_their_columns():
    frame = pandas.DataFrame({"age": [1.5, 2.0, 3.25], "job": ["x", "y", "z\u202e"]})
    assert contents_of(frame, ROWS).held == ["age: 3.25, job: z\\u202e", "age: 1.5, job: x"]
    wide = np.arange(90.0).reshape(3, 30)
    text = contents_of(wide, ROWS).held[0]
    assert text.startswith("0: 60, 1: 61, ")
    assert text.endswith(", … 6 more")
    assert contents_of(np.array([["a", "b"], ["c", "d"], ["e", "f"]]), ROWS).held[0] == "0: e, 1: f"
