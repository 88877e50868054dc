"""The ε that a record leaks at the least, against SciPy's limits record by record and against a known mechanism."""

import numpy as np
import pytest
from scipy.stats import beta

from giveaway.attacks import AttackScores
from giveaway.evaluation import epsilon_by_record


def drawn(rng, models, records, epsilon):
    """Randomized response: a model says the truth about a record with odds e^ε."""
    members = rng.random((models, records)) < 0.5
    truthful = rng.random((models, records)) < 1 / (1 + np.exp(-epsilon))
    return AttackScores("lira", np.where(members == truthful, 0.7, -0.2), members, {})


@pytest.mark.parametrize(("delta", "confidence"), [(0.0, 0.95), (0.05, 0.8)])
def test_each_record_has_the_limits_of_its_own_counts(delta, confidence):
    attack = drawn(np.random.default_rng(0), 40, 30, 1.5)
    found, tail = epsilon_by_record(attack, delta=delta, confidence=confidence), (1 - confidence) / 2
    for record in range(30):
        says, inside = attack.scores[:, record] > 0, attack.members[:, record]
        right, false = int((says & inside).sum()), int((says & ~inside).sum())
        tpr = beta.ppf(tail, right, inside.sum() - right + 1) if right else 0.0
        fpr = beta.ppf(1 - tail, false + 1, (~inside).sum() - false) if false < (~inside).sum() else 1.0
        best = max(np.log(max(tpr - delta, 1e-300) / fpr), np.log(max(1 - fpr - delta, 1e-300) / (1 - tpr)), 0.0)
        assert found.value[record] == pytest.approx(best, abs=1e-12)


def test_the_bound_of_a_known_mechanism_is_one_as_often_as_it_says():
    attack = drawn(np.random.default_rng(1), 120, 4_000, 1.0)
    found = epsilon_by_record(attack, delta=0.0).value
    assert (found > 1.0).mean() <= 0.05
    assert found.mean() > 0.3  # and it is not empty
    at_once = epsilon_by_record(attack, delta=0.0, confidence=1 - 0.05 / 4_000).value
    assert at_once.max() <= 1.0
    assert (at_once <= found).all()


def test_a_threshold_is_a_threshold():
    attack = drawn(np.random.default_rng(2), 60, 5, 5.0)
    assert (epsilon_by_record(attack, delta=0.0).value > 0.5).all()
    assert (epsilon_by_record(attack, delta=0.0, threshold=1.0).value == 0).all()
