"""The pictures of leave-one-out distinguishability show the numbers they were given."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from giveaway import figures
from giveaway.figures import lood_map, query_pictures
from giveaway.reporting.picture import COLOURS, figure_bytes

PNG = b"\x89PNG\r\n"


def values(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.lognormal(size=n), rng.lognormal(size=n)


def sets(figure) -> tuple[np.ndarray, np.ndarray]:
    """The points of all rows, and the marked ones."""
    everyone, marked = figure.axes[0].collections
    assert to_hex(everyone.get_facecolor()[0], keep_alpha=False).upper() == COLOURS[0]
    assert to_hex(marked.get_facecolor()[0], keep_alpha=False).upper() == COLOURS[1]
    return np.asarray(everyone.get_offsets()), np.asarray(marked.get_offsets())


def test_every_row_is_a_point_at_its_two_distances():
    kl, mean = values()
    figure = lood_map(kl, mean)
    (axes,) = figure.axes
    everyone, _ = sets(figure)
    np.testing.assert_array_equal(everyone, np.c_[mean, kl])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel().startswith("lood_mean")
    assert axes.get_ylabel().startswith("lood_kl")
    assert axes.get_title(loc="left") == "Leave-one-out distinguishability: 60 rows"


@pytest.mark.parametrize("n", [1, 4, 10, 60])
def test_the_most_exposed_by_divergence_are_marked_with_their_rows(n):
    kl, mean = values(n, seed=n)
    figure = lood_map(kl, mean)
    _, marked = sets(figure)
    top = sorted(range(n), key=lambda row: -kl[row])[:10]
    np.testing.assert_array_equal(marked, [(mean[row], kl[row]) for row in top])
    names = {text.get_text(): text.xy for text in figure.axes[0].texts}
    assert names == {str(row): (mean[row], kl[row]) for row in top}


def test_ties_are_marked_in_row_order():
    kl, mean = np.ones(30), np.arange(1.0, 31.0)
    assert [text.get_text() for text in lood_map(kl, mean).axes[0].texts] == [str(row) for row in range(10)]


def test_of_too_many_rows_a_sample_is_drawn_and_the_top_is_marked_all_the_same(monkeypatch):
    monkeypatch.setattr(figures, "MOST_POINTS", 20)
    kl, mean = values(500)
    figure = lood_map(kl, mean)
    everyone, marked = sets(figure)
    assert len(np.unique(everyone, axis=0)) == 20
    assert {tuple(point) for point in everyone} <= set(zip(mean, kl, strict=True))
    assert {point[1] for point in marked} == set(np.sort(kl)[-10:])
    assert "20 of 500 rows, chosen at random" in figure.axes[0].get_title(loc="left")
    np.testing.assert_array_equal(everyone, sets(lood_map(kl, mean))[0])


def test_zeros_have_no_place_on_a_logarithmic_axis():
    kl, mean = values()
    kl[3], mean[5], kl[7], mean[7] = 0.0, 0.0, 0.0, 0.0
    figure = lood_map(kl, mean)
    keep = np.setdiff1d(np.arange(60), [3, 5, 7])
    np.testing.assert_array_equal(sets(figure)[0], np.c_[mean, kl][keep])
    assert "57 rows" in figure.axes[0].get_title(loc="left")
    assert figure_bytes(figure).startswith(PNG)
    nothing = lood_map(kl, np.zeros(60))
    assert nothing.axes[0].get_xscale() == "linear"
    assert figure_bytes(nothing).startswith(PNG)


def test_the_same_numbers_give_the_same_bytes():
    assert figure_bytes(lood_map(*values())) == figure_bytes(lood_map(*values()))


def test_the_map_in_the_caller_s_axes():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert lood_map(*values(), axes=right) is figure
    for drawn, expected in zip(right.collections, lood_map(*values()).axes[0].collections, strict=True):
        np.testing.assert_array_equal(drawn.get_offsets(), expected.get_offsets())
    assert right.get_title(loc="left") == "Leave-one-out distinguishability: 60 rows"
    assert not left.has_data()


# ------------------------------------------------------------------------------------------------ pictures


def shown(place) -> np.ndarray:
    (image,) = [child for child in place.get_children() if isinstance(child, AxesImage)]
    assert image.get_clim() == (0, 1)
    return np.asarray(image.get_array())


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_records_stand_above_their_queries(channels):
    rng = np.random.default_rng(0)
    records, queries = rng.random((3, channels, 4, 5)), rng.random((3, channels, 4, 5))
    figure = query_pictures(records, queries, np.array([7, 2, 11]), "mean")
    above, below = np.array(figure.axes, dtype=object).reshape(2, 3)
    for column in range(3):
        for place, images in ((above, records), (below, queries)):
            picture = images[column].transpose(1, 2, 0)
            np.testing.assert_array_equal(shown(place[column]), picture[..., :3] if channels > 2 else picture[..., 0])
    assert [place.get_title() for place in above] == ["row 7", "row 2", "row 11"]
    assert (above[0].get_ylabel(), below[0].get_ylabel()) == ("record", "query")
    assert "largest mean distance" in figure.get_suptitle()
    assert figure_bytes(figure).startswith(PNG)


@pytest.mark.parametrize("count", [1, 10, 13])
def test_ten_pairs_at_most(count):
    images = np.random.default_rng(0).random((count, 1, 2, 2))
    figure = query_pictures(images, images, np.arange(count), "kl")
    assert len(figure.axes) == 2 * min(count, 10)
    assert figure.axes[min(count, 10) - 1].get_title() == f"row {min(count, 10) - 1}"


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.2, 0.8), (0.0, 1.0), (-3.0, 0.5), (0.5, 4.0), (-1.0, 2.0), (0.3, 0.3), (5.0, 5.0), (-2.0, -2.0)],
)
def test_a_picture_keeps_the_range_from_0_to_1_unless_it_leaves_it(low, high):
    image = np.linspace(low, high, 12).reshape(1, 1, 3, 4)
    figure = query_pictures(image, np.full((1, 1, 3, 4), 0.5), np.array([0]), "kl")
    record, query = (shown(place) for place in figure.axes)
    bottom, top = min(low, 0.0), max(high, 1.0)
    np.testing.assert_allclose(record, (image[0, 0] - bottom) / (top - bottom), atol=1e-15)
    assert record.min() >= 0.0
    assert record.max() <= 1.0
    np.testing.assert_array_equal(query, 0.5)  # each picture by its own range


def test_pairs_in_the_caller_s_axes():
    rng = np.random.default_rng(0)
    records, queries = rng.random((3, 1, 4, 5)), rng.random((3, 1, 4, 5))
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    assert query_pictures(records, queries, np.array([7, 2, 11]), "mean", axes=right) is figure
    above, below = np.array(right.child_axes, dtype=object).reshape(2, 3)
    figure.draw_without_rendering()
    frame = right.get_position()
    for column in range(3):
        np.testing.assert_array_equal(shown(above[column]), records[column, 0])
        np.testing.assert_array_equal(shown(below[column]), queries[column, 0])
        record, query = above[column].get_position(), below[column].get_position()
        assert query.y1 < record.y0
        assert frame.x0 - 1e-9 <= record.x0 < record.x1 <= frame.x1 + 1e-9
        assert column == 0 or above[column - 1].get_position().x1 < record.x0
    assert [place.get_title() for place in above] == ["row 7", "row 2", "row 11"]
    assert "largest mean distance" in right.get_title()
    assert figure.get_suptitle() == ""
    assert not left.child_axes


def test_pairs_show_themselves_in_a_notebook():
    images = np.random.default_rng(0).random((2, 1, 3, 3))
    page = query_pictures(images, images, np.arange(2), "kl")._repr_html_()
    assert 'alt="Records and the queries with the largest kl distance"' in page
