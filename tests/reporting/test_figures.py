"""What the pictures show is what the functions compute; drawing changes nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from giveaway import InputError
from giveaway.attacks.thresholds import AttackScores
from giveaway.evaluation import AttackSummary, recall_at, summarize
from giveaway.reporting.figures import loss_by_influence, recall_curves, roc_curves
from giveaway.reporting.picture import COLOURS, PALE, figure_bytes, save_figure


def made_scores(count: int, n: int = 500) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=n)
    return {f"s{place}": truth + (place + 0.5) * rng.normal(size=n) for place in range(count)}, truth


def made_attack(name: str = "lira", records: int = 400) -> AttackSummary:
    rng = np.random.default_rng(1)
    members = rng.random((5, records)) < 0.5
    return summarize(AttackScores(name, rng.normal(size=members.shape) + members, members), resamples=10)


def line(axes, start: str):
    (found,) = [line for line in axes.get_lines() if str(line.get_label()).startswith(start)]
    return found


# ------------------------------------------------------------------------------------------------ recall


def test_recall_lines_are_recall_at():
    scores, truth = made_scores(3)
    (axes,) = recall_curves(scores, truth, top=0.02).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    for name, values in scores.items():
        drawn = line(axes, f"{name}:")
        expected = [recall_at(values, truth, 0.02, keep) for keep in drawn.get_xdata()]
        assert list(drawn.get_ydata()) == expected
        assert f": {100 * recall_at(values, truth, 0.02, 0.05):.0f} % in 5 %" in drawn.get_label()
    chance = line(axes, "chance")
    np.testing.assert_array_equal(chance.get_xdata(), chance.get_ydata())
    assert len(axes.get_legend().get_texts()) == 4
    assert "2 %" in axes.get_ylabel()
    assert "500 records" in axes.get_title(loc="left")


def test_of_many_scores_the_best_and_the_ranking_have_colours():
    scores, truth = made_scores(14)
    (axes,) = recall_curves(scores, truth, top=0.1, ranked_by="s13").axes
    coloured = {str(drawn.get_label()).split(":")[0] for drawn in axes.get_lines() if drawn.get_color() in COLOURS}
    assert coloured == {"s0", "s1", "s2", "s3", "s13"}
    assert len({drawn.get_color() for drawn in axes.get_lines()} & set(COLOURS)) == 5
    assert sum(drawn.get_color() == PALE for drawn in axes.get_lines()) == 9
    assert [text.get_text() for text in axes.get_legend().get_texts()][-2:] == ["9 other scores", "chance"]


# ------------------------------------------------------------------------------------------------ ROC


def test_roc_line_holds_the_summary_s_rates_down_to_one_false_positive():
    attack = made_attack()
    (axes,) = roc_curves([attack]).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    drawn = line(axes, "lira: AUC")
    false, true = np.asarray(drawn.get_xdata()), np.asarray(drawn.get_ydata())
    assert (false[0], false[-1], true[-1]) == (1 / attack.nonmembers, 1.0, 1.0)
    for rate, found in zip(false, true, strict=True):
        assert found == attack.true_positives[attack.false_positives <= rate + 1e-12].max()
    assert len(false) <= 200
    limit = line(axes, "1 of ")
    assert set(limit.get_xdata()) == {1 / attack.nonmembers}
    assert f"1 of {attack.nonmembers:,} non-members" in limit.get_label()
    assert axes.get_xlim() == (0.5 / attack.nonmembers, 1.0)
    chance = line(axes, "chance")
    np.testing.assert_array_equal(chance.get_xdata(), chance.get_ydata())


def test_each_attack_ends_where_its_own_non_members_end():
    few, many = made_attack("few", 100), made_attack("many", 1000)
    (axes,) = roc_curves([few, many]).axes
    assert line(axes, "few:").get_xdata()[0] == 1 / few.nonmembers
    assert line(axes, "1 of ").get_xdata()[0] == 1 / many.nonmembers


# ------------------------------------------------------------------------------------------------ loss, influence


def made_points(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return np.exp(rng.normal(size=n)), np.exp(rng.normal(size=n)), rng.uniform(0.5, 1, size=n)


def test_points_are_the_records_the_most_exposed_last():
    loss, influence, success = made_points(300)
    axes, bar = loss_by_influence(loss, influence, success).axes
    (points,) = axes.collections
    order = np.argsort(success)
    np.testing.assert_array_equal(points.get_offsets(), np.column_stack([loss, influence])[order])
    np.testing.assert_array_equal(points.get_array(), success[order])
    assert points.get_clim() == (0.5, 1.0)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_title(loc="left") == "Exposure by loss and influence: 300 records"
    assert "success rate" in bar.get_ylabel()


def test_the_cap_and_what_cannot_be_drawn_are_stated():
    loss, influence, success = made_points(300)
    loss[:7], influence[5:10] = 0.0, -1.0
    axes, _ = loss_by_influence(loss, influence, success, most_points=100).axes
    (points,) = axes.collections
    drawn = np.asarray(points.get_offsets())
    assert len(np.unique(drawn, axis=0)) == 100
    assert (drawn > 0).all()
    rows = [int(np.flatnonzero(loss == x)[0]) for x in drawn[:, 0]]
    np.testing.assert_array_equal(points.get_array(), success[rows])
    assert axes.get_title(loc="left").endswith(": 100 of 290 records, chosen at random; 10 more are not positive")


# ------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures_are_the_same_bytes_each_time(tmp_path, suffix, start):
    for name in ("a", "b"):
        save_figure(recall_curves(*made_scores(3)), tmp_path / f"{name}.{suffix}")
    first = (tmp_path / f"a.{suffix}").read_bytes()
    assert first.startswith(start)
    assert first == (tmp_path / f"b.{suffix}").read_bytes()
    assert b"CreationDate" not in first
    assert b"<dc:date>" not in first
    assert first == figure_bytes(recall_curves(*made_scores(3)), suffix)


def test_png_has_150_dots_an_inch():
    figure = recall_curves(*made_scores(2))
    content = figure_bytes(figure)
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    assert [width, height] == [round(150 * inches) for inches in figure.get_size_inches()]


def test_matplotlib_waits_for_a_picture_and_stays_as_it_was():
    code = (
        "import sys, numpy as np\n"
        "from giveaway.reporting import figures, picture\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import matplotlib\n"
        "before = dict(dict.items(matplotlib.rcParams))\n"
        "x = np.arange(1.0, 200.0)\n"
        "from matplotlib.figure import Figure\n"
        "own = figures.recall_curves({'a': x}, x, axes=Figure().add_subplot())\n"
        "for figure in (own, figures.recall_curves({'a': x}, x), figures.loss_by_influence(x, x, x / 200)):\n"
        "    for kind in ('png', 'svg', 'pdf'):\n"
        "        picture.figure_bytes(figure, kind)\n"
        "assert dict(dict.items(matplotlib.rcParams)) == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------ the caller's axes


DRAWN = {
    "recall": lambda **axes: recall_curves(*made_scores(7), top=0.1, **axes),
    "roc": lambda **axes: roc_curves([made_attack()], **axes),
    "loss": lambda **axes: loss_by_influence(*made_points(50), **axes),
}


def content(axes) -> list:
    """Everything drawn that has numbers or words, in the order of drawing."""
    lines = [(*map(tuple, line.get_data()), line.get_color(), str(line.get_label())) for line in axes.get_lines()]
    points = [(np.asarray(c.get_offsets()).tolist(), np.asarray(c.get_array()).tolist()) for c in axes.collections]
    words = [axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_xlim()]
    return [lines, points, words]


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("inside", [False, True])
def test_drawn_into_the_caller_s_axes(name, inside):
    figure = Figure(figsize=(11, 4))
    left, right = (figure.subfigures(1, 2)[0] if inside else figure).subplots(1, 2)
    assert DRAWN[name](axes=right) is figure
    assert content(right) == content(DRAWN[name]().axes[0])
    assert not left.has_data()
    assert left.get_title(loc="left") == ""
    right.set_title("mine", loc="left")
    right.set_facecolor("#123456")
    assert figure_bytes(figure).startswith(b"\x89PNG")
    assert right.get_title(loc="left") == "mine"


def test_the_colour_bar_stands_beside_the_caller_s_axes():
    figure = Figure()
    above, below = figure.subplots(2, 1)
    loss_by_influence(*made_points(50), axes=below)
    _, _, bar = figure.axes
    assert "success rate" in bar.get_ylabel()
    figure.draw_without_rendering()
    box, beside, other = (place.get_position() for place in (bar, below, above))
    assert box.x0 > beside.x1
    assert box.y1 < other.y0


ONES = np.ones(200)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: recall_curves({"a": ONES}, ONES, axes=[1]),
            "axes: expected one matplotlib Axes, got list; pass one of",
        ),
        (lambda: recall_curves({}, ONES), "scores: expected at least one, got none"),
        (lambda: recall_curves({"a": ONES[1:]}, ONES), "scores: expected two rankings of the same records"),
        (lambda: recall_curves({"a": ONES * np.nan}, ONES), r"scores\['a'\]: expected finite numbers"),
        (lambda: recall_curves({"a": ONES}, ONES[:, None]), "truth: expected one number per record"),
        (lambda: recall_curves({"a": ONES}, ONES, ranked_by="b"), "ranked_by: expected a known name, got 'b'"),
        (lambda: recall_curves({"a": ONES}, ONES, top=1e-4), "top: expected a share that keeps 1 to 200 records"),
        (lambda: roc_curves([]), "attacks: expected at least one, got none"),
        (lambda: roc_curves([made_attack(), dataclasses.replace(made_attack())]), "attacks: expected a different name"),
        (lambda: loss_by_influence(ONES, ONES, ONES[1:]), "expected one value per record, got 200, 200, 199 values"),
        (lambda: loss_by_influence(ONES, ONES, 2 * ONES), "success: expected rates from 0 to 1, got 2 to 2"),
        (lambda: loss_by_influence(0 * ONES, ONES, ONES), "loss, influence: expected positive values in some record"),
        (lambda: loss_by_influence(ONES, ONES, ONES, most_points=0), "most_points: expected at least 1, got 0"),
        (lambda: save_figure(recall_curves({"a": ONES}, ONES), "x.gif"), "kind: expected a known name, got 'gif'"),
    ],
)
def test_refused_in_one_line(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
