"""RMIA against a triple loop written from the definition alone, and against values worked by hand."""

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from giveaway.attacks.rmia import rmia
from giveaway.checks import InputError
from giveaway.records import Signals
from tests.attacks.made import made
from tests.conftest import refused


def p_of(logits, label, *, temperature=2.0):
    scaled = [float(v) / temperature for v in logits]
    return exp(scaled[label]) / sum(exp(v) for v in scaled)


def triple_loop(targets, references, *, mode="online", gamma=2.0, a=0.3, **how):
    found = np.empty(targets.members.shape)
    for t in range(targets.models):
        for x in range(targets.records):
            if targets.population is not None:
                others = [("point", z) for z in range(targets.population.shape[1])]
            else:
                others = [("record", z) for z in range(targets.records) if z != x and not targets.members[t, z]]
            wins = []
            for where, z in others:
                by_query = []
                for q in range(targets.queries):
                    y = targets.labels[x]
                    p = [p_of(references.values[m, x, q], y, **how) for m in range(references.models)]
                    p_out = [p[m] for m in range(references.models) if not references.members[m, x]]
                    expected = np.mean(p) if mode == "online" else 0.5 * ((1 + a) * np.mean(p_out) + (1 - a))
                    ratio_x = p_of(targets.values[t, x, q], y, **how) / expected
                    if where == "point":
                        y = targets.population_labels[z]
                        p_z = [p_of(references.population[m, z, q], y, **how) for m in range(references.models)]
                        ratio_z = p_of(targets.population[t, z, q], y, **how) / np.mean(p_z)
                    else:
                        y = targets.labels[z]
                        without = [m for m in range(references.models) if not references.members[m, z]]
                        p_z = [p_of(references.values[m, z, q], y, **how) for m in without]
                        ratio_z = p_of(targets.values[t, z, q], y, **how) / np.mean(p_z)
                    by_query.append(ratio_x / ratio_z > gamma)
                wins.append(np.mean(by_query))
            found[t, x] = np.mean(wins)
    return found


@pytest.mark.parametrize("mode", ["online", "offline"])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("points", [0, 8])
@pytest.mark.parametrize("how", [{}, {"temperature": 1.0}])
def test_against_a_triple_loop(mode, queries, points, how):
    targets, references = made(1, records=13, queries=queries, points=points)
    for gamma, a in ((1.0, 0.33), (1.3, 0.9)):
        options = {"mode": mode, "gamma": gamma, "a": a, **how}
        expected = triple_loop(targets, references, **options)
        assert len(np.unique(expected)) >= 3
        np.testing.assert_allclose(rmia(targets, references, **options).scores, expected, atol=1e-9)


def by_hand(p, members, points=None):
    values = np.stack([p, 1 - np.asarray(p)], -1)
    extra = {} if points is None else {"population": np.stack([points, 1 - np.asarray(points)], -1)}
    if points is not None:
        extra["population_labels"] = np.zeros(np.shape(points)[1], dtype=int)
    return Signals(values, members, "probabilities", np.zeros(np.shape(p)[1], dtype=int), **extra)


def test_hand_worked_online_and_offline():
    targets = by_hand([[0.9, 0.4, 0.3]], [[True, False, False]], points=[[0.2, 0.5, 0.1, 0.6]])
    references = by_hand(
        [[0.8, 0.5, 0.2], [0.2, 0.3, 0.4]],
        [[True, True, False], [False, False, True]],
        points=[[0.4, 0.2, 0.5, 0.7], [0.4, 0.2, 0.3, 0.5]],
    )
    # p(z) = 0.4, 0.2, 0.4, 0.6, so ratios 0.5, 2.5, 0.25, 1
    # online p(x) = 0.5, 0.4, 0.3, so ratios 1.8, 1, 1: at γ = 1.5 they lie above 0.75, 3.75, 0.375, 1.5
    online = rmia(targets, references, gamma=1.5)
    np.testing.assert_allclose(online.scores, [[0.75, 0.5, 0.5]], atol=1e-9)
    # offline p(x) = ½(1.3 p_out + 0.7) with p_out = 0.2, 0.3, 0.2: 0.48, 0.545, 0.48, so ratios 1.875, 0.734, 0.625
    offline = rmia(targets, references, mode="offline", gamma=1.5)
    np.testing.assert_allclose(offline.scores, [[0.75, 0.25, 0.25]], atol=1e-9)
    # non-members are records 1 and 2 with p_out = 0.3, 0.2, so z ratios 4/3, 3/2; x ratios 1.8, 1, 1
    among = rmia(*(replace(one, population=None) for one in (targets, references)), gamma=1.25)
    np.testing.assert_allclose(among.scores, [[0.5, 0.0, 0.0]], atol=1e-9)
    assert online.options["population"] == "points"
    assert among.options["population"] == "non_members"
    assert online.options["temperature"] == 1.0
    assert "a" not in online.options
    assert offline.options["a"] == 0.3


def test_the_plain_mean_over_references_not_the_mean_of_two_means():
    references = by_hand([[0.2, 0.5], [0.2, 0.5], [0.8, 0.5]], [[False] * 2, [False] * 2, [True, False]])
    targets = by_hand([[0.45, 0.5]], [[True, False]], points=[[0.5]])
    references = by_hand(references.values[:, :, 0, 0], references.members, points=[[0.5]] * 3)
    # plain 0.4: ratio 1.125; the mean of IN and OUT means, 0.5, would make it 0.9
    np.testing.assert_allclose(rmia(targets, references, gamma=1.0).scores, [[1.0, 0.0]], atol=1e-9)


def test_a_ratio_of_exactly_gamma_does_not_count():
    references = by_hand([[0.25]], [[False]], points=[[0.25, 0.25]])
    targets = by_hand([[0.5]], [[True]], points=[[0.25, 0.125]])
    assert rmia(targets, references, gamma=2.0).scores[0, 0] == 0.5
    assert rmia(targets, references, gamma=1.999).scores[0, 0] == 1.0


def test_impossible_predictions_give_numbers():
    logits = np.array([[[0.0, 9000.0], [9000.0, 0.0], [0.0, 1.0]]])
    members = np.array([[True, False, False]])
    target = Signals(logits, members, "logits", [0, 0, 0])
    for other in (logits, -logits):
        scores = rmia(target, Signals(other, ~members & False, "logits", [0, 0, 0])).scores
        assert np.isfinite(scores).all()


def test_phi_signals_are_the_same_as_the_probabilities_they_stand_for():
    targets, references = made(5, classes=2)

    def phi(signals):
        own = np.take_along_axis(signals.values, signals.labels[None, :, None, None], axis=-1)[..., 0]
        return Signals(2 * own - signals.values.sum(-1), signals.members, "phi")

    expected = rmia(targets, references, temperature=1.0, gamma=1.2).scores
    np.testing.assert_array_equal(rmia(phi(targets), phi(references), gamma=1.2).scores, expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "onlin"}, "mode: expected a known name, got 'onlin'; did you mean online"),
        ({"gamma": 0.5}, "gamma: expected a finite number of at least 1, got 0.5"),
        ({"a": -0.1}, "a: expected a finite number of at least 0, got -0.1"),
        ({"a": 1.1}, "a: expected a number of at most 1, got 1.1; choose it between 0 and 1"),
        ({"temperature": 0.0}, "temperature: expected a number above 0, got 0.0"),
    ],
)
def test_options_that_cannot_be(options, words):
    targets, references = made(6)
    refused(words, rmia, targets, references, **options)


def test_signals_that_cannot_be():
    phi = Signals(np.ones((2, 3)), [[True, True, False]] * 2, "phi")
    errors = Signals(np.ones((2, 3)), [[True, False, False]] * 2, "squared_error")
    with pytest.raises(InputError, match=r"temperature: expected 1 unless signals are logits, got 2\.0 with phi"):
        rmia(phi, Signals(phi.values, phi.members & False, "phi"), temperature=2.0)
    with pytest.raises(InputError, match="signals: expected signals of classes, got squared errors"):
        rmia(errors, Signals(errors.values, ~errors.members & False, "squared_error"))
    with pytest.raises(
        InputError, match="population: expected at least 2 non-members of every target, got 1 for target 0"
    ):
        rmia(phi, Signals(phi.values, ~phi.members & False, "phi"))
    refused(r"not trained on every record, got none at row 0 \(2 such rows\)", rmia, phi, phi, mode="offline")
    all_in = Signals(phi.values, phi.members | True, "phi")
    refused(r"not trained on every record, got none at row 2 \(1 such rows\)", rmia, phi, all_in)
    some, known = made(8, points=4)
    fewer = Signals(
        known.values, known.members, "logits", known.labels, known.population[:, :3], known.population_labels[:3]
    )
    refused("references: expected the 4 labelled points of the targets' population, got 3", rmia, some, fewer)
    with pytest.raises(InputError, match="references: expected signals with a population, got none"):
        rmia(some, Signals(known.values, known.members, "logits", known.labels))
