from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.attacks.shadow_store import balanced_membership, model_membership, model_seed
from giveaway.checks import InputError


@settings(max_examples=30, deadline=None)
@given(pairs=st.integers(1, 10), records=st.integers(2, 60), seed=st.integers(0, 2**40))
def test_every_record_is_in_half_the_models_and_every_model_has_half_the_records(pairs, records, seed):
    members = balanced_membership(2 * pairs, records, seed=seed)
    assert (members.sum(axis=0) == pairs).all()
    assert set(members.sum(axis=1)) <= {records // 2, records - records // 2}


def test_more_models_leave_the_earlier_ones():
    all_at_once = balanced_membership(10, 31, seed=4)
    np.testing.assert_array_equal(balanced_membership(6, 31, seed=4), all_at_once[:6])
    np.testing.assert_array_equal(balanced_membership(4, 31, seed=4, first=6), all_at_once[6:])
    np.testing.assert_array_equal(model_membership(7, 31, seed=4), all_at_once[7])


def test_seeds_and_pairs_differ():
    members = balanced_membership(20, 40, seed=0)[::2]
    assert len(np.unique(members, axis=0)) == 10
    assert not np.array_equal(members, balanced_membership(20, 40, seed=1)[::2])
    assert len({model_seed(number, seed=seed) for number in range(100) for seed in (0, 1)}) == 200


def test_membership_of_two_records_is_independent():
    members = balanced_membership(4000, 40, seed=0)[::2]
    together = np.corrcoef(members[:, :6].T)
    # without replacement two records are correlated by −1/(N − 1)
    assert np.abs(together[np.triu_indices(6, 1)] + 1 / 39).max() < 0.08


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"models": 3}, "models: expected an even number of models, got 3; half of them leave each record out"),
        ({"models": 0}, "models: expected an even number of models, got 0"),
        ({"first": 1}, "models: expected an even number of models, got 4 from model 1 on"),
        ({"records": 1}, "records: expected at least two records, got 1"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(InputError, match=words):
        balanced_membership(**{"models": 4, "records": 10, "seed": 0, **options})
