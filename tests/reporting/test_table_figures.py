"""The pictures of a table show its numbers, counted here by hand."""

from __future__ import annotations

from collections import Counter
from math import comb

import numpy as np
import pytest
from matplotlib.figure import Figure

from giveaway import InputError, ScoreTable
from giveaway.reporting import figures
from giveaway.reporting.figures import by_class, exposure_distribution, loss_by_leverage
from giveaway.reporting.picture import figure_bytes


def made(n: int = 400, **changes) -> ScoreTable:
    rng = np.random.default_rng(0)
    scores = {name: rng.lognormal(sigma=2, size=n) for name in ("loss", "leverage", "newton")}
    return ScoreTable(scores | changes, np.arange(n), {}, {"class": rng.integers(0, 4, n)})


def line(axes, start: str):
    (found,) = [line for line in axes.get_lines() if str(line.get_label()).startswith(start)]
    return found


def legend_of(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


# ------------------------------------------------------------------------------------------------ distribution


def bars(axes) -> list[tuple[float, float, float]]:
    """From, to and height of each."""
    return [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_height()) for bar in axes.patches]


def test_every_row_is_in_the_bar_of_its_score():
    table = made()
    (axes,) = exposure_distribution(table).axes
    drawn = bars(axes)
    assert len(drawn) == 40
    assert drawn[0][0] == table["newton"].min()
    assert drawn[-1][1] == pytest.approx(table["newton"].max(), rel=1e-12)
    for place, (low, high, height) in enumerate(drawn):
        above = np.inf if place == len(drawn) - 1 else high
        assert height == ((table["newton"] >= low) & (table["newton"] < above)).sum()
        assert high / low == pytest.approx((drawn[-1][1] / drawn[0][0]) ** (1 / 40), rel=1e-9)
    assert sum(height for *_, height in drawn) == 400
    assert axes.get_xscale() == "log"
    assert axes.get_title(loc="left") == "How newton is spread over 400 rows"


def test_the_marks_stand_at_the_median_and_where_the_top_begins():
    table = made()
    (axes,) = exposure_distribution(table).axes
    values = sorted(table["newton"])
    expected = {"median": (values[199] + values[200]) / 2, "top 5 %": values[380], "top 1 %": values[396]}
    for name, place in expected.items():
        assert list(line(axes, name).get_xdata()) == [place, place]
    words = [f"median: {expected['median']:.3g}", f"top 5 % (20 rows): from {values[380]:.3g}"]
    assert legend_of(axes) == [*words, f"top 1 % (4 rows): from {values[396]:.3g}"]


@pytest.mark.parametrize(("n", "marks"), [(2, 1), (20, 2), (49, 2), (100, 3)])
def test_a_share_without_a_row_has_no_mark(n, marks):
    (axes,) = exposure_distribution(made(n)).axes
    assert len(legend_of(axes)) == marks


def test_negative_scores_and_narrow_ones_have_a_linear_axis():
    normal = np.random.default_rng(1).normal(size=400)
    for table, by in ((made(fused=normal), None), (made(loss=0.5 + np.linspace(0, 0.5, 400)), "loss")):
        (axes,) = exposure_distribution(table, by).axes
        values = table[table.ranking(by)]
        assert axes.get_xscale() == "linear"
        assert "logarithmic" not in axes.get_xlabel()
        drawn = bars(axes)
        assert [drawn[0][0], drawn[-1][1]] == pytest.approx([values.min(), values.max()])
        assert [height for *_, height in drawn] == np.histogram(values, 40)[0].tolist()


def test_zeros_are_counted_beside_a_logarithmic_axis():
    scores = made()["newton"].copy()
    scores[:300] = 0
    (axes,) = exposure_distribution(made(newton=scores)).axes
    assert axes.get_title(loc="left") == "How newton is spread over 400 rows; 300 of them are 0, left out"
    assert sum(height for *_, height in bars(axes)) == 100
    assert legend_of(axes)[0] == "median: 0"
    assert list(line(axes, "top 5 %").get_xdata()) == [np.sort(scores)[380]] * 2
    assert figure_bytes(axes.figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-9, 1e9])
def test_one_value_only(value):
    (axes,) = exposure_distribution(made(newton=np.full(400, value))).axes
    assert sum(height for *_, height in bars(axes)) == 400
    assert figure_bytes(axes.figure).startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------ loss, leverage


def test_points_and_the_most_exposed_of_them():
    table = made()
    (axes,) = loss_by_leverage(table, top=7).axes
    everyone, marked = (np.asarray(points.get_offsets()).tolist() for points in axes.collections)
    assert everyone == [[table["loss"][row], table["leverage"][row]] for row in range(400)]
    highest = sorted(range(400), key=lambda row: -table["newton"][row])[:7]
    assert marked == [[table["loss"][row], table["leverage"][row]] for row in highest]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_title(loc="left") == "Loss and leverage: 400 rows"
    assert legend_of(axes) == ["a row", "7 most exposed by newton"]
    assert axes.get_xlabel().startswith("loss")
    assert axes.get_ylabel().startswith("leverage")


def test_the_cap_is_stated_and_the_marked_are_drawn_all_the_same(monkeypatch):
    monkeypatch.setattr(figures, "MOST_POINTS", 50)
    table = made()
    (axes,) = loss_by_leverage(table).axes
    everyone, marked = (np.asarray(points.get_offsets()) for points in axes.collections)
    assert len(np.unique(everyone, axis=0)) == 50
    assert {tuple(p) for p in everyone.tolist()} <= set(zip(table["loss"], table["leverage"], strict=True))
    assert marked[:, 0].tolist() == table["loss"][np.argsort(-table["newton"])[:20]].tolist()
    assert axes.get_title(loc="left") == "Loss and leverage: 50 of 400 rows, chosen at random"


def test_zeros_have_no_place_and_are_counted():
    loss, leverage, newton = (made()[name].copy() for name in ("loss", "leverage", "newton"))
    loss[:3], leverage[2:6], newton[0] = 0.0, 0.0, 1e9
    (axes,) = loss_by_leverage(made(loss=loss, leverage=leverage, newton=newton), top=5).axes
    everyone, marked = axes.collections
    np.testing.assert_array_equal(everyone.get_offsets(), np.c_[loss, leverage][6:])
    assert len(marked.get_offsets()) == 4
    assert legend_of(axes)[1] == "4 of the 5 most exposed by newton"
    assert axes.get_title(loc="left") == "Loss and leverage: 394 rows; 6 more are not positive"
    assert figure_bytes(axes.figure).startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------ classes


def classed(classes, scores) -> ScoreTable:
    return ScoreTable({"newton": scores}, np.arange(len(scores)), {}, {"class": np.asarray(classes)})


def drawn_classes(axes) -> dict[str, float]:
    """Each class's label and its ratio, from the top down."""
    (points,) = [line for line in axes.get_lines() if line.get_marker() == "o"]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert list(points.get_ydata()) == list(range(len(labels)))
    return dict(reversed(list(zip(labels, points.get_xdata(), strict=True))))


def test_shares_counted_by_hand():
    # 10 of 100 rows are the top: 6 of class b (20 rows), 3 of a (50), 1 of c (30)
    classes = np.repeat(["a", "b", "c"], [50, 20, 30])
    scores = np.zeros(100)
    scores[[0, 1, 2, 50, 51, 52, 53, 54, 55, 70]] = np.arange(1, 11)
    (axes,) = by_class(classed(classes, scores), share=0.1).axes
    assert drawn_classes(axes) == pytest.approx({"b": 0.6 / 0.2, "a": 0.3 / 0.5, "c": 0.1 / 0.3})
    assert list(drawn_classes(axes)) == ["b", "a", "c"]
    assert [text.get_text() for text in axes.texts] == [
        "10 % of the top, 30 % of all",
        "30 % of the top, 50 % of all",
        "60 % of the top, 20 % of all",
    ]
    assert list(line(axes, "even spread").get_xdata()) == [1, 1]
    assert axes.get_title(loc="left") == "Classes of the top 10 % by newton (10 of 100 rows)"


def test_the_band_is_what_drawing_rows_at_random_would_give():
    table = made()
    (axes,) = by_class(table, share=0.1).axes
    (band,) = axes.collections
    sizes = Counter(table["class"].tolist())
    labels = [text.get_text() for text in axes.get_yticklabels()]
    for label, segment in zip(labels, band.get_segments(), strict=True):
        size = sizes[int(label)]
        chances = [comb(size, k) * comb(400 - size, 40 - k) / comb(400, 40) for k in range(41)]
        below = np.cumsum(chances)
        even = 40 * size / 400
        expected = [int((below < 0.025).sum()) / even, int((below < 0.975).sum()) / even]
        assert segment[:, 0].tolist() == pytest.approx(expected)


def test_small_classes_are_pooled():
    classes = np.repeat([0, 1, 2, 3], [10, 9, 1, 80])
    scores = np.zeros(100)
    scores[[10, 19, 20, 21]] = 1  # one of class 1, one of class 2, two of class 3
    (axes,) = by_class(classed(classes, scores), share=0.04).axes
    assert drawn_classes(axes) == pytest.approx({"rare (2 classes)": 0.5 / 0.1, "3": 0.5 / 0.8, "0": 0.0})


def test_of_many_classes_those_farthest_from_even_have_a_line():
    classes = np.repeat(np.arange(30), 100)
    scores = np.zeros(3000)
    for place in range(5):
        scores[100 * place : 100 * place + 10 * (place + 2)] = 1  # 20, 30, … 60 rows of the first five classes
    for place in range(5, 30):
        scores[100 * place : 100 * place + 6] = 0.5  # and 6 of every other
    (axes,) = by_class(classed(classes, scores), share=0.1).axes
    ratios = drawn_classes(axes)
    assert len(ratios) == 21
    assert [ratios[str(place)] for place in range(5)] == pytest.approx([2, 3, 4, 5, 6])
    assert sum(label.startswith("others") for label in ratios) == 1
    assert "others (10 classes)" in ratios
    top = np.argsort(-scores, kind="stable")[:300]
    own = {int(label) for label in ratios if label.isdigit()}
    rest = [kind for kind in range(30) if kind not in own]
    found = np.isin(classes[top], rest).sum()
    assert ratios["others (10 classes)"] == pytest.approx((found / 300) / (10 / 30))
    departures = {kind: abs((classes[top] == kind).sum() - 10) for kind in range(30)}
    assert max(departures[kind] for kind in rest) <= min(departures[kind] for kind in own)


def test_names_of_classes_are_no_formulas_and_have_one_line():
    names = np.repeat(["$\\frac$ a $", "b\n\u202ec", "d" * 99], 20)
    (axes,) = by_class(classed(names, np.arange(60.0)), share=0.5).axes
    assert list(drawn_classes(axes)) == ["d" * 23 + "…", r"b\n\u202ec", r"\$\frac\$ a \$"]
    assert figure_bytes(axes.figure).startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------ all of them

ALL = [exposure_distribution, loss_by_leverage, by_class]


@pytest.mark.parametrize("draw", ALL)
def test_in_the_caller_s_axes_or_shown_by_a_notebook(draw):
    own = draw(made())
    assert own._repr_html_().startswith('<img src="data:image/png;base64,')
    figure = Figure(figsize=(12, 5))
    left, right = figure.subplots(1, 2)
    assert draw(made(), axes=right) is figure
    (expected,) = own.axes
    assert right.get_title(loc="left") == expected.get_title(loc="left")
    assert bars(right) == bars(expected)
    for mine, other in zip(right.collections, expected.collections, strict=True):
        np.testing.assert_array_equal(mine.get_offsets(), other.get_offsets())
    for mine, other in zip(right.lines, expected.lines, strict=True):
        np.testing.assert_array_equal(mine.get_data(), other.get_data())
    assert not left.has_data()


@pytest.mark.parametrize("draw", ALL)
def test_the_same_bytes_each_time(draw):
    assert figure_bytes(draw(made(60)), "svg") == figure_bytes(draw(made(60)), "svg")


BARE = ScoreTable({"newton": [1.0, 2.0]}, [0, 1])
NOBODY = ScoreTable({"loss": [], "leverage": []}, np.arange(0), {}, {"class": np.arange(0)})
ZEROS = ScoreTable({"loss": [0.0, 1.0], "leverage": [1.0, 0.0]}, [0, 1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: exposure_distribution(BARE, "newtom"),
            "by: expected a score of this table, got 'newtom'; did you mean",
        ),
        (lambda: exposure_distribution(NOBODY), "table: expected at least one row, got none; audit some records"),
        (lambda: loss_by_leverage(NOBODY), "table: expected at least one row, got none"),
        (lambda: by_class(NOBODY), "table: expected at least one row, got none"),
        (lambda: loss_by_leverage(BARE), "table: expected the score loss, got newton; audit with the score loss"),
        (
            lambda: loss_by_leverage(ScoreTable({"loss": [1.0]}, [0])),
            "table: expected the score leverage, got loss; audit a model with a linear head",
        ),
        (lambda: loss_by_leverage(ZEROS), "table: expected a positive loss and leverage in some row, got none; draw"),
        (lambda: loss_by_leverage(made(), top=0), "top: expected a finite number of at least 1, got 0"),
        (lambda: by_class(BARE), "table: expected a class of every row, got none; draw exposure_distribution"),
        (lambda: by_class(made(), share=1e-4), "share: expected a share that keeps 1 to 400 rows, got 0.0001"),
        (
            lambda: by_class(made(), share=np.nan),
            "share: expected a finite number of at least 0, got nan; such as 0.05",
        ),
        (lambda: by_class(made(), share=1.5), "share: expected a share that keeps 1 to 400 rows, got 1.5"),
        (lambda: by_class(made(), axes=[]), "axes: expected one matplotlib Axes, got list"),
    ],
)
def test_refused_in_one_line(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
