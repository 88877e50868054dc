"""Signals: shapes, kinds, what attacks read from them, and saving."""

import numpy as np
import pytest

from giveaway.records import Signals
from tests.conftest import refused

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(4, 6, 3))
LABELS = np.array([0, 1, 2, 0, 1, 2])
MEMBERS = RNG.random((4, 6)) < 0.5


def own_probability() -> np.ndarray:
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    return p[:, np.arange(6), LABELS]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_kinds_agree_on_statistic_and_confidence(dtype):
    p = own_probability()
    phi = np.log(p) - np.log1p(-p)
    whole = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    made = [
        Signals(LOGITS.astype(dtype), MEMBERS, "logits", labels=LABELS),
        Signals(whole.astype(dtype), MEMBERS, "probabilities", labels=LABELS),
        Signals(phi.astype(dtype), MEMBERS, "phi"),
    ]
    tolerance = {np.float16: 2e-2, np.float32: 1e-5, np.float64: 1e-12}[dtype]
    for signals in made:
        assert signals.statistic().dtype == np.float64
        np.testing.assert_allclose(signals.statistic()[..., 0], phi, atol=tolerance)
        np.testing.assert_allclose(signals.confidence()[..., 0], p, atol=tolerance)


def test_confident_logits_keep_their_digits():
    signals = Signals(np.array([[[800.0, 0.0, -5.0]]]), np.array([[True]]), "logits", labels=[0])
    np.testing.assert_allclose(signals.statistic(), 800.0 - np.log1p(np.exp(-5.0)), rtol=1e-14)


@pytest.mark.parametrize(("votes", "step"), [(1, 1.0), (5, 0.2), (100, 0.01)])
def test_votes_of_all_or_none_are_half_a_vote_from_certain(votes, step):
    """φ of v votes out of k is log((v + ½)/(k − v + ½)), by counting; k is found from the values."""
    counts = np.random.default_rng(0).binomial(votes, np.random.default_rng(1).beta(0.3, 0.3, size=(8, 400)))
    counts[0, :2] = 0, votes
    p = counts / votes
    signals = Signals(np.stack([p, 0.3 * (1 - p), 0.7 * (1 - p)], -1), counts > 0, "probabilities", np.zeros(400, int))
    assert signals.step == pytest.approx(step)
    expected = np.log((counts + 0.5) / (votes - counts + 0.5))
    np.testing.assert_allclose(signals.statistic()[..., 0], expected, rtol=1e-9, atol=1e-9)
    few = signals.of_models(slice(0, 1)).of_records(slice(0, 1))
    assert few.step == signals.step  # a part speaks as the whole does


def test_probabilities_that_are_never_certain_are_taken_as_they_are(tmp_path):
    p = own_probability()
    signals = Signals(np.stack([p, 1 - p], -1), MEMBERS, "probabilities", np.zeros(6, int))
    assert signals.step == 0
    np.testing.assert_allclose(signals.statistic()[..., 0], np.log(p / (1 - p)), rtol=1e-12)
    given = Signals(np.round(signals.values), MEMBERS, "probabilities", np.zeros(6, int), step=0.01)
    np.testing.assert_allclose(np.abs(given.statistic()), np.log(201))
    given.save(tmp_path / "signals")
    assert Signals.load(tmp_path / "signals").step == 0.01


def test_temperature_softens_logits():
    hot = Signals(LOGITS, MEMBERS, "logits", labels=LABELS).confidence(temperature=2.0)
    halved = Signals(LOGITS / 2, MEMBERS, "logits", labels=LABELS).confidence()
    np.testing.assert_allclose(hot, halved, rtol=1e-13)


def test_squared_errors_are_high_for_a_good_fit():
    signals = Signals(np.array([[0.01, 4.0]]), np.array([[True, False]]), "squared_error")
    np.testing.assert_allclose(signals.statistic()[0, :, 0], [-np.log(0.01), -np.log(4.0)])


def test_selections_and_blocks(monkeypatch):
    signals = Signals(LOGITS, MEMBERS, "logits", labels=LABELS, population=LOGITS[:, :2], population_labels=LABELS[:2])
    some = signals.of_models(np.array([2, 0])).of_records(np.array([5, 1]))
    np.testing.assert_array_equal(some.values[:, :, 0], LOGITS[[2, 0]][:, [5, 1]])
    np.testing.assert_array_equal(some.members, MEMBERS[[2, 0]][:, [5, 1]])
    np.testing.assert_array_equal(some.population[:, :, 0], LOGITS[[2, 0], :2])
    monkeypatch.setattr("giveaway.records.signals.BLOCK_NUMBERS", 2 * LOGITS[:, :1].size)
    parts = list(signals.blocks())
    assert [(part.start, part.stop) for part in parts] == [(0, 2), (2, 4), (4, 6)]
    np.testing.assert_array_equal(np.concatenate([signals.statistic(p) for p in parts], 1), signals.statistic())


def test_saved_signals_come_back_memory_mapped(tmp_path):
    Signals(LOGITS, MEMBERS, "logits", labels=LABELS).save(tmp_path / "signals")
    back = Signals.load(tmp_path / "signals")
    assert isinstance(back.values, np.memmap)
    np.testing.assert_array_equal(back.values[:, :, 0], LOGITS)
    np.testing.assert_array_equal(back.members, MEMBERS)
    np.testing.assert_array_equal(back.labels, LABELS)
    assert (tmp_path / "signals" / "values.npy").stat().st_mode & 0o777 == 0o600


REFUSED = {
    "kind: expected a known name, got 'logit'; did you mean logits": {"kind": "logit"},
    r"values: expected shape \(models, records\)": {"values": LOGITS[0, 0]},
    "values: expected floating-point numbers, got dtype bool": {"values": (LOGITS > 0)},
    "values: expected finite numbers, got NaN or infinity in": {"values": np.where(LOGITS > 1, np.nan, LOGITS)},
    "values: expected at least one model": {"values": LOGITS[:0]},
    r"members: expected 0/1 or bool of shape \(4, 6\)": {"members": MEMBERS[:2]},
    "members: expected 0/1 or bool": {"members": MEMBERS * 2},
    "labels: expected a class index a record, got none": {"labels": None},
    "labels: expected 6 class indices": {"labels": LABELS[:3]},
    "labels: expected classes 0 to 2, got others": {"labels": LABELS + 1},
    r"population: expected shape \(4, points, 1, 3\)": {"population": LOGITS[:2]},
}


@pytest.mark.parametrize("words", REFUSED)
def test_bad_signals(words):
    whole = {"values": LOGITS, "members": MEMBERS, "kind": "logits", "labels": LABELS}
    refused(words, Signals, **whole | REFUSED[words])


def test_what_a_kind_cannot_give(tmp_path):
    phi = Signals(LOGITS[..., 0], MEMBERS, "phi")
    refused("signals: expected logits or probabilities, got phi", phi.distribution)
    refused("temperature: expected 1 unless signals are logits", phi.confidence, temperature=2.0)
    refused(r"signals: expected a folder written by Signals\.save", Signals.load, tmp_path)
