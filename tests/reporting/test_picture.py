"""A picture shows itself in a notebook and changes nothing of matplotlib's."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from html import unescape

import pytest
from matplotlib.figure import Figure

from giveaway import InputError
from giveaway.reporting.picture import blank, figure_bytes, figure_of, new_picture, picture_class, title_of


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


def test_which_title():
    figure = new_picture((3, 2))
    assert title_of(figure) == ""
    first, second = figure.subplots(1, 2)
    second.set_title("centre")
    assert title_of(figure) == "centre"
    first.set_title("left", loc="left")
    assert title_of(figure) == "left"
    figure.suptitle("all")
    assert title_of(figure) == "all"


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
    with pytest.raises(InputError, match=expected):
        blank("t", (1, 1), wrong)


def test_without_pyplot_and_without_a_trace():
    code = (
        "import sys\n"
        "from giveaway.reporting import figures, picture\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import matplotlib\n"
        "before = dict(dict.items(matplotlib.rcParams))\n"
        "picture.blank('t', (3, 2))[0]._repr_html_()\n"
        "assert dict(dict.items(matplotlib.rcParams)) == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
