"""Pictures of the theory and of LOOD show their numbers; a picture shows itself in a notebook."""

import base64
import re
import subprocess
import sys
from html import unescape

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from giveaway import figures
from giveaway.figures import gap_map, lood_map, tradeoff_curves
from giveaway.reporting import figures as drawing
from giveaway.reporting.picture import (
    COLOURS,
    blank,
    figure_bytes,
    figure_of,
    new_picture,
    picture_class,
    save_figure,
    title_of,
)
from giveaway.theory import expected_gap, fixed_design, random_design
from tests.conftest import refused
from tests.reporting.test_figures import made, made_attack


def shown(figure) -> tuple[bytes, str, int]:
    """The image's bytes, what is said of it, and its width on the page."""
    found = re.fullmatch(
        r'<img src="data:image/png;base64,([A-Za-z0-9+/=]+)" alt="([^"<>]*)" width="(\d+)">', figure._repr_html_()
    )
    assert found
    return base64.b64decode(found[1]), unescape(found[2]), int(found[3])


def test_a_notebook_sees_the_same_png_as_a_file():
    figure, axes = blank("Two points", (5.0, 3.0))
    axes.plot([0, 1], [1, 0])
    content, words, width = shown(figure)
    assert content == figure_bytes(figure)
    assert [int.from_bytes(content[start : start + 4], "big") for start in (16, 20)] == [750, 450]
    assert (words, width) == ("Two points", 480)
    axes.set_title("Another", loc="left")
    axes.plot([0, 1], [0, 1])
    again, words, _ = shown(figure)
    assert again != content
    assert words == "Another"


def test_the_title_is_text_for_the_page():
    figure, _ = blank("<b> \"quoted\" & 'single'", (3, 2))
    assert shown(figure)[1] == "<b> \"quoted\" & 'single'"
    assert "<b>" not in figure._repr_html_()
    figure = new_picture((3, 2))
    assert title_of(figure) == ""
    first, second = figure.subplots(1, 2)
    for words, set_title in (
        ("centre", second.set_title),
        ("left", lambda words: first.set_title(words, loc="left")),
        ("all", figure.suptitle),
    ):
        set_title(words)
        assert title_of(figure) == words


def test_a_picture_is_a_figure_with_constrained_layout():
    figure, axes = blank("t", (4, 3))
    assert isinstance(figure, Figure)
    assert type(figure) is picture_class() is picture_class()
    assert type(figure).__name__ == "Picture"
    assert type(figure.get_layout_engine()).__name__ == "ConstrainedLayoutEngine"
    axes.set_ylabel("two\nlines")
    before = axes.get_position().x0
    figure.draw_without_rendering()
    assert axes.get_position().x0 != before


def test_the_caller_s_axes_are_restyled_and_their_figure_returned():
    figure = Figure()
    inner, _ = figure.subfigures(1, 2)
    place = inner.add_subplot()
    assert blank("here", (1, 1), place) == (figure, place)
    assert figure_of(place) is figure
    assert place.get_title(loc="left") == "here"
    assert not place.spines["top"].get_visible()
    assert figure.get_size_inches().tolist() != [1, 1]


@pytest.mark.parametrize("wrong", [3, [1], Figure()])
def test_what_is_no_axes(wrong):
    expected = rf"axes: expected one matplotlib Axes, got {type(wrong).__name__}; pass one of those plt\.subplots\(\)"
    refused(expected, blank, "t", (1, 1), wrong)


def test_curves_are_the_curves():
    curves = {"a": fixed_design.tradeoff(0.3), "b": fixed_design.tradeoff(0.8)}
    axes = tradeoff_curves(curves, title="Two").axes[0]
    for label, curve in curves.items():
        (line,) = [drawn for drawn in axes.lines if drawn.get_label() == label]
        alpha = np.asarray(line.get_xdata())
        np.testing.assert_array_equal(line.get_ydata(), curve.beta(alpha))
        assert alpha[0] <= 1e-6
        assert alpha[-1] == 1
    (chance,) = [drawn for drawn in axes.lines if drawn.get_label() == "chance"]
    np.testing.assert_array_equal(chance.get_ydata(), 1 - np.asarray(chance.get_xdata()))
    assert axes.get_title(loc="left") == "Two"


def test_the_map_shows_the_exact_gap_over_squared_error_and_leverage():
    axes = gap_map(50.0, variance=2.0, largest_error=2.0, largest_leverage=4.0).axes[0]
    (mesh,) = axes.collections
    corners = mesh.get_coordinates()
    assert corners[-1, -1].tolist() == [4.0, 4.0]
    values = np.asarray(mesh.get_array()).reshape(corners.shape[:2])
    for i, j in ((0, 0), (60, 30), (-1, -1)):
        square, leverage = corners[i, j]
        design = random_design(leverage, np.sqrt(square), 50.0, variance=2.0)
        np.testing.assert_allclose(values[i, j], expected_gap(design), rtol=1e-12, atol=1e-15)


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


@pytest.mark.parametrize("n", [1, 4, 10, 60])
def test_every_row_is_a_point_and_the_most_exposed_by_divergence_are_named(n):
    kl, mean = values(n, seed=n)
    figure = lood_map(kl, mean)
    (axes,) = figure.axes
    everyone, marked = sets(figure)
    np.testing.assert_array_equal(everyone, np.c_[mean, kl])
    top = sorted(range(n), key=lambda row: -kl[row])[:10]
    np.testing.assert_array_equal(marked, [(mean[row], kl[row]) for row in top])
    assert {text.get_text(): text.xy for text in axes.texts} == {str(row): (mean[row], kl[row]) for row in top}
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel().startswith("lood_mean")
    assert axes.get_ylabel().startswith("lood_kl")
    assert axes.get_title(loc="left") == f"Leave-one-out distinguishability: {n} rows"
    ties = lood_map(np.ones(30), np.arange(1.0, 31.0)).axes[0]
    assert [text.get_text() for text in ties.texts] == [str(row) for row in range(10)]


def test_of_too_many_rows_a_sample_is_drawn_and_the_top_is_marked_all_the_same(monkeypatch):
    monkeypatch.setattr(drawing, "MOST_POINTS", 20)
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


DRAWN = {
    "recall": lambda **axes: figures.recall_curves(made().scores, made()["newton"], top=0.1, **axes),
    "roc": lambda **axes: figures.roc_curves([made_attack()], **axes),
    "tradeoff": lambda **axes: tradeoff_curves({"a": fixed_design.tradeoff(0.3)}, **axes),
    "gap": lambda **axes: gap_map(50.0, **axes),
    "lood": lambda **axes: lood_map(*values(), **axes),
}


def content(axes) -> list:
    """Everything drawn that has numbers or words, in the order of drawing."""
    lines = [(*map(tuple, line.get_data()), line.get_color(), str(line.get_label())) for line in axes.get_lines()]
    points = [(np.asarray(c.get_offsets()).tolist(), np.asarray(c.get_array()).tolist()) for c in axes.collections]
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in axes.patches if hasattr(bar, "get_width")]
    words = [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_xlim()]
    return [lines, points, bars, words]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", DRAWN)
def test_drawn_into_the_caller_s_axes(name, inside):
    figure = Figure(figsize=(11, 4))
    left, right = (figure.subfigures(1, 2)[0] if inside else figure).subplots(1, 2)
    assert DRAWN[name](axes=right) is figure
    assert content(right) == content(DRAWN[name]().axes[0])
    assert not left.has_data()
    assert left.get_title(loc="left") == ""
    right.set_title("mine", loc="left")
    if name == "recall":
        assert figure_bytes(figure).startswith(PNG)
    assert right.get_title(loc="left") == "mine"


@pytest.mark.parametrize(
    ("name", "suffix", "start"),
    [("recall", "png", PNG), ("recall", "pdf", b"%PDF"), ("gap", "svg", b"<?xml"), ("lood", "png", PNG)],
)
def test_pictures_are_the_same_bytes_each_time(tmp_path, name, suffix, start):
    for place in ("a", "b"):
        save_figure(DRAWN[name](), tmp_path / f"{place}.{suffix}")
    first = (tmp_path / f"a.{suffix}").read_bytes()
    assert first.startswith(start)
    assert first == (tmp_path / f"b.{suffix}").read_bytes()
    assert b"CreationDate" not in first
    assert b"<dc:date>" not in first


@pytest.mark.slow
def test_matplotlib_waits_for_a_picture_and_stays_as_it_was():
    code = (
        "import sys, numpy as np\n"
        "from giveaway import figures\n"
        "from giveaway.reporting import picture\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import matplotlib\n"
        "before = dict(dict.items(matplotlib.rcParams))\n"
        "x = np.arange(1.0, 200.0)\n"
        "from matplotlib.figure import Figure\n"
        "picture.blank('t', (3, 2))[0]._repr_html_()\n"
        "own = figures.recall_curves({'a': x}, x, axes=Figure().add_subplot())\n"
        "for figure in (own, figures.tradeoff_curves({})):\n"
        "    for kind in ('png', 'svg', 'pdf'):\n"
        "        picture.figure_bytes(figure, kind)\n"
        "assert dict(dict.items(matplotlib.rcParams)) == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
