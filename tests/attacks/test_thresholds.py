"""Threshold attacks against their formulas, written out record by record."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

from giveaway.attacks.thresholds import threshold
from giveaway.checks import InputError
from giveaway.records import Signals
from tests.attacks.made import made
from tests.conftest import refused

CASES = [("loss", False), ("confidence", False), ("entropy", False), ("entropy", True)]


def seen(seed, models=3, kind="logits"):
    logits = made(seed, targets=models, records=7, queries=2, classes=4)[0]
    return logits if kind == "logits" else Signals(logits.distribution(), logits.members, kind, logits.labels)


def written_out(p, y, by, modified):
    if by == "loss":
        return log(p[y])
    if by == "confidence":
        return p[y]
    if not modified:
        return sum(q * log(q) for q in p)
    others = sum(p[c] * log(1 - p[c]) for c in range(len(p)) if c != y)
    return (1 - p[y]) * log(p[y]) + others


def loop(signals, by, modified):
    """(M, N, Q), one prediction at a time."""
    found = np.empty(signals.values.shape[:3])
    for m, i, q in np.ndindex(found.shape):
        p = [float(v) for v in signals.values[m, i, q]]
        if signals.kind == "logits":
            total = sum(exp(v) for v in p)
            p = [exp(v) / total for v in p]
        found[m, i, q] = written_out(p, int(signals.labels[i]), by, modified)
    return found


@pytest.mark.parametrize(("by", "modified"), CASES)
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_statistics_of_classes(by, modified, kind):
    signals = seen(0, kind=kind)
    result = threshold(signals, by=by, modified=modified)
    np.testing.assert_allclose(result.scores, loop(signals, by, modified).mean(2), rtol=1e-9)
    assert result.options == {"by": by, "modified": modified, "calibrated": False}
    assert result.members is signals.members


@pytest.mark.parametrize(("by", "modified"), CASES)
def test_calibration_takes_off_the_mean_of_models_without_the_record(by, modified):
    targets, references = made(1, records=7, queries=2, classes=4)
    own, theirs = loop(targets, by, modified), loop(references, by, modified)
    expected = np.empty(targets.members.shape)
    for i in range(targets.records):
        without = [theirs[m, i] for m in range(6) if not references.members[m, i]]
        expected[:, i] = (own[:, i] - np.mean(without, axis=0)).mean(1)
    np.testing.assert_allclose(
        threshold(targets, references, by=by, modified=modified).scores, expected, rtol=1e-9, atol=1e-12
    )


def test_hand_worked_values():
    p = np.array([[[0.5, 0.25, 0.25]]])
    signals = Signals(p, [[True]], "probabilities", [0])
    assert threshold(signals).scores[0, 0] == pytest.approx(-0.6931471805599453, abs=1e-9)
    assert threshold(signals, by="confidence").scores[0, 0] == pytest.approx(0.5, abs=1e-9)
    assert threshold(signals, by="entropy").scores[0, 0] == pytest.approx(-1.0397207708399179, abs=1e-9)
    # ½ log ½ + 2 · ¼ log ¾
    assert threshold(signals, by="entropy", modified=True).scores[0, 0] == pytest.approx(-0.4904146265058631, abs=1e-9)


def test_phi_and_squared_errors():
    phi = np.array([[0.0, log(3.0), -800.0]])
    signals = Signals(phi, np.ones((1, 3)), "phi")
    np.testing.assert_allclose(threshold(signals).scores, [[log(0.5), log(0.75), -800.0]], rtol=1e-12)
    np.testing.assert_allclose(threshold(signals, by="confidence").scores, [[0.5, 0.75, 0.0]], atol=1e-12)
    errors = Signals(np.array([[[0.25, 1.0], [4.0, 0.0]]]), np.ones((1, 2)), "squared_error")
    np.testing.assert_allclose(threshold(errors, by="squared_error").scores, [[-0.625, -2.0]], rtol=1e-12)


def test_near_certain_predictions_stay_apart_and_finite():
    logits = np.array([[[40.0, 0.0], [45.0, 0.0], [0.0, 2000.0]]])
    signals = Signals(logits, np.ones((1, 3)), "logits", [0, 0, 0])
    for modified in (False, True):
        scores = threshold(signals, by="entropy", modified=modified).scores[0]
        assert np.isfinite(scores).all()
        assert scores[0] < scores[1] < 0
    scores = threshold(signals).scores[0]
    np.testing.assert_allclose(scores, [-exp(-40), -exp(-45), -2000.0], rtol=1e-9)


def test_errors_say_what_to_do():
    signals = seen(0)
    phi = Signals(np.ones((1, 2)), np.ones((1, 2)), "phi")
    errors = Signals(np.ones((1, 2)), np.ones((1, 2)), "squared_error")
    refused("by: expected a known name, got 'losses'; did you mean loss", threshold, signals, by="losses")
    refused("modified: expected False unless by='entropy', got True with by='loss'", threshold, signals, modified=True)
    refused("by: expected by='squared_error' for signals of kind 'squared_error', got 'loss'", threshold, errors)
    with pytest.raises(InputError, match="by: expected a statistic of classes as by='loss' for signals of kind 'phi'"):
        threshold(phi, by="squared_error")
    refused("signals: expected logits or probabilities for the entropy, got phi", threshold, phi, by="entropy")
    refused(r"not trained on every record, got none at row 0 \(2 such rows\); add models", threshold, phi, phi)
