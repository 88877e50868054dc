"""Figures of tables and validations show the numbers, counted here by hand; drawing changes nothing else."""

import dataclasses

import numpy as np
import pytest

from giveaway.attacks.thresholds import AttackScores
from giveaway.evaluation import recall_at, summarize
from giveaway.evaluation.success import AttackSummary
from giveaway.records import ScoreTable
from giveaway.records.meta import Meta, TraceReport
from giveaway.reporting import picture
from giveaway.reporting.figures import recall_curves, roc_curves, when_learned
from giveaway.reporting.picture import COLOURS, PALE, save_figure
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


def test_no_axis_is_full_of_emptiness():
    """A forest that is sure of a record has a loss of 1e-12, ten decades below all others."""
    values = np.concatenate([np.full(200, 1e-12), np.geomspace(0.01, 5.0, 200)])
    assert picture.axis_from(values) == 0.01
    assert picture.axis_from(np.append(np.geomspace(1e-6, 1e-4, 99), 5.0)) == 1e-6  # one record far above is no gap
    assert picture.axis_from(np.zeros(4)) == np.inf


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
    assert axes.get_title(loc="left") == "When the 7 of 10 records ranked highest were learned"


ONES = np.ones(200)
BARE = ScoreTable({"newton": [1.0, 2.0]}, [0, 1])


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
        (lambda: save_figure(recall_curves({"a": ONES}, ONES), "x.gif"), "figure: expected a known name, got 'gif'"),
        (lambda: when_learned(BARE), "table: expected an audit with a trace of the training, got none; pass trace= to"),
    ],
)
def test_refused_in_one_line(call, words):
    refused(words, call)
