"""Figures of tables and validations show the numbers, counted here by hand; drawing changes nothing else."""

import dataclasses
from collections import Counter
from math import comb

import numpy as np
import pytest

from giveaway.attacks.thresholds import AttackScores
from giveaway.evaluation import recall_at, summarize
from giveaway.evaluation.success import AttackSummary
from giveaway.records import ScoreTable
from giveaway.records.meta import Meta, TraceReport
from giveaway.reporting import picture
from giveaway.reporting.figures import (
    by_class,
    loss_by_leverage,
    recall_curves,
    roc_curves,
    when_learned,
)
from giveaway.reporting.picture import COLOURS, PALE, figure_bytes, save_figure
from tests.conftest import refused


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
    few, many = made_attack("few", 100), made_attack("many", 1000)
    (axes,) = roc_curves([few, many]).axes
    assert line(axes, "few:").get_xdata()[0] == 1 / few.nonmembers
    assert line(axes, "1 of ").get_xdata()[0] == 1 / many.nonmembers


def made(n: int = 400, **changes) -> ScoreTable:
    rng = np.random.default_rng(0)
    scores = {name: rng.lognormal(sigma=2, size=n) for name in ("loss", "leverage", "newton")}
    return ScoreTable(scores | changes, np.arange(n), {}, {"class": rng.integers(0, 4, n)})


def legend_of(axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_no_axis_is_full_of_emptiness():
    """A forest that is sure of a record has a loss of 1e-12, ten decades below all others."""
    values = np.concatenate([np.full(200, 1e-12), np.geomspace(0.01, 5.0, 200)])
    assert picture.axis_from(values) == 0.01
    (axes,) = loss_by_leverage(made(loss=values)).axes
    assert axes.get_title(loc="left").endswith("200 rows; 200 more are 0 or nearly")
    assert axes.get_xlim()[0] > 1e-3
    assert picture.axis_from(np.append(np.geomspace(1e-6, 1e-4, 99), 5.0)) == 1e-6  # one record far above is no gap
    assert picture.axis_from(np.zeros(4)) == np.inf


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
    monkeypatch.setattr(picture, "MOST_POINTS", 50)
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
    assert axes.get_title(loc="left") == "Loss and leverage: 394 rows; 6 more are 0 or nearly"
    assert figure_bytes(axes.figure).startswith(b"\x89PNG")


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
    assert drawn_classes(axes) == pytest.approx({"others together": 0.5 / 0.1, "3": 0.5 / 0.8, "0": 0.0})


def test_of_many_classes_those_farthest_from_even_have_a_line():
    classes = np.repeat(np.arange(30), 100)
    scores = np.zeros(3000)
    for place in range(5):
        scores[100 * place : 100 * place + 10 * (place + 2)] = 1  # 20, 30, … 60 rows of the first five classes
    for place in range(5, 30):
        scores[100 * place : 100 * place + 6] = 0.5  # and 6 of every other
    (axes,) = by_class(classed(classes, scores), share=0.1).axes
    ratios = drawn_classes(axes)
    assert len(ratios) == 20
    assert axes.get_title(loc="left").endswith("(300 of 3,000 rows), 20 of 30")
    assert [ratios[str(place)] for place in range(5)] == pytest.approx([2, 3, 4, 5, 6])
    top, own = np.argsort(-scores, kind="stable")[:300], {int(label) for label in ratios}
    rest = [kind for kind in range(30) if kind not in own]
    departures = {kind: abs((classes[top] == kind).sum() - 10) for kind in range(30)}
    assert max(departures[kind] for kind in rest) <= min(departures[kind] for kind in own)


def test_names_of_classes_are_no_formulas_and_have_one_line():
    names = np.repeat(["$\\frac$ a $", "b\n\u202ec", "d" * 99], 20)
    (axes,) = by_class(classed(names, np.arange(60.0)), share=0.5).axes
    assert list(drawn_classes(axes)) == ["d" * 23 + "…", r"b\u000a\u202ec", r"\$\frac\$ a \$"]
    assert figure_bytes(axes.figure).startswith(b"\x89PNG")


def learned(rows: int = 7, epochs: int = 3) -> ScoreTable:
    """The most exposed are the last rows; the loss of row r in epoch e is r + e, and the first did not come up in 2."""
    most = list(range(9, 9 - rows, -1))
    losses = [[float(row + epoch) for epoch in range(1, epochs + 1)] for row in most]
    losses[0][1] = None
    band = [[1.0, 4.0, 9.0]] * (epochs - 1) + [[None] * 3]  # nothing came up in the last
    report = TraceReport(epochs=epochs, proof="ids", never_seen=0, band=band, rows=most, losses=losses)
    return ScoreTable({"fused": np.arange(10.0)}, [f"r${i}$" for i in range(10)], Meta(trace=report))


def test_the_losses_of_the_most_exposed_lie_over_the_band_of_all():
    (axes,) = when_learned(learned()).axes
    first = line(axes, r"rank 1: r\$9\$")
    assert first.get_xdata().tolist() == [1, 3]  # bridged where it did not come up
    assert first.get_ydata() == pytest.approx(np.sqrt([10.0, 12.0]))
    assert line(axes, "rank 5").get_ydata() == pytest.approx(np.sqrt([6.0, 7.0, 8.0]))
    assert line(axes, "ranks 6 to 7").get_ydata() == pytest.approx(np.sqrt([5.0, 6.0, 7.0]))
    assert line(axes, "median of all records").get_ydata() == pytest.approx([2.0, 2.0, np.nan], nan_ok=True)
    (band,) = axes.collections
    edges = band.get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (1.0, 3.0)
    assert axes.get_title(loc="left") == "When the 7 most exposed of 10 records were learned"


ONES = np.ones(200)
BARE = ScoreTable({"newton": [1.0, 2.0]}, [0, 1])
NOBODY = ScoreTable({"loss": [], "leverage": []}, np.arange(0), {}, {"class": np.arange(0)})
ZEROS = ScoreTable({"loss": [0.0, 1.0], "leverage": [1.0, 0.0]}, [0, 1])


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
        (lambda: save_figure(recall_curves({"a": ONES}, ONES), "x.gif"), "kind: expected a known name, got 'gif'"),
        (lambda: loss_by_leverage(NOBODY), "table: expected at least one row, got none; audit some records"),
        (lambda: by_class(NOBODY), "table: expected at least one row, got none"),
        (lambda: loss_by_leverage(BARE), "table: expected the score loss, got newton; audit with the score loss"),
        (
            lambda: loss_by_leverage(ScoreTable({"loss": [1.0]}, [0])),
            "table: expected the score leverage, got loss; audit a model with a linear head",
        ),
        (lambda: loss_by_leverage(ZEROS), "table: expected a positive loss and leverage in some row, got none; draw"),
        (lambda: loss_by_leverage(made(), top=0), "top: expected a finite number of at least 1, got 0"),
        (lambda: by_class(BARE), "table: expected a class of every row, got none; audit a classifier by record"),
        (lambda: by_class(made(), share=1e-4), "share: expected a share that keeps 1 to 400 rows, got 0.0001"),
        (
            lambda: by_class(made(), share=np.nan),
            "share: expected a finite number of at least 0, got nan; such as 0.05",
        ),
        (lambda: by_class(made(), share=1.5), "share: expected a share that keeps 1 to 400 rows, got 1.5"),
        (lambda: when_learned(BARE), "table: expected an audit with a trace of the training, got none; pass trace= to"),
        (lambda: by_class(made(), axes=[]), "axes: expected one matplotlib Axes, got list"),
    ],
)
def test_refused_in_one_line(call, words):
    refused(words, call)
