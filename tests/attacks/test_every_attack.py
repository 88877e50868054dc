"""What every attack must do, whatever its formula."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from giveaway.attacks import lira, rmia, shokri, threshold
from giveaway.checks import InputError
from giveaway.records import Signals
from tests.attacks.made import made
from tests.conftest import refused

SURE = {"classifier": LogisticRegression(tol=1e-8, max_iter=1000)}
ATTACKS = {
    **{f"lira {mode}": partial(lira, mode=mode) for mode in ("online", "offline_onesided", "offline_twosided")},
    **{f"rmia {mode}": partial(rmia, mode=mode, gamma=1.2) for mode in ("online", "offline")},
    **{f"threshold {by}": partial(threshold, by=by) for by in ("loss", "confidence", "entropy")},
    "threshold alone": lambda targets, references: threshold(targets),
    "shokri": partial(shokri, **SURE),
}
every_attack = pytest.mark.parametrize("name", ATTACKS)


@given(
    attack=st.sampled_from(list(ATTACKS.values())),
    models=st.integers(1, 3),
    references=st.sampled_from([4, 6]),
    records=st.integers(8, 14),
    queries=st.integers(1, 3),
    points=st.sampled_from([0, 4]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    seed=st.integers(0, 20),
)
def test_permuting_models_or_records_permutes_the_scores(
    attack, models, references, records, queries, points, dtype, seed
):
    sizes = {"records": records, "queries": queries, "points": points, "classes": 2}
    targets, known = made(seed, targets=models, references=references, dtype=dtype, **sizes)
    rng = np.random.default_rng(seed)
    by_model, by_reference, order = (rng.permutation(count) for count in (models, references, records))
    plain = attack(targets, known).scores
    moved = attack(targets.of_models(by_model).of_records(order), known.of_models(by_reference).of_records(order))
    assert plain.shape == (models, records)
    np.testing.assert_allclose(moved.scores, plain[by_model][:, order], rtol=1e-5, atol=1e-5)


@every_attack
@pytest.mark.parametrize("points", [0, 100])
def test_members_score_high_where_models_leak_and_not_where_they_do_not(name, points):
    for leak, low, high in ((3.0, 0.65, 1.0), (0.0, 0.46, 0.54)):
        result = ATTACKS[name](*made(3, targets=8, references=16, records=300, points=points, leak=leak))
        assert low < roc_auc_score(result.members.ravel(), result.scores.ravel()) < high


@every_attack
def test_blocks_do_not_change_the_scores(monkeypatch, name):
    signals = made(4, queries=3, points=7, records=24)
    plain = ATTACKS[name](*signals).scores
    monkeypatch.setattr("giveaway.records.signals.BLOCK_NUMBERS", 60)
    slack = 1e-5 if name.startswith("shokri") else 1e-12
    np.testing.assert_allclose(ATTACKS[name](*signals).scores, plain, rtol=slack, atol=slack)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "threshold alone"])
def test_references_on_other_records_are_refused(name):
    attack, (targets, references) = ATTACKS[name], made(5)
    with pytest.raises(InputError, match=r"references: expected signals on the records of .*; align records and kind"):
        attack(targets, made(5, records=10)[1])
    refused("align records and kind", attack, targets, made(5, classes=4)[1])
    others = Signals(references.values, references.members, "logits", (references.labels + 1) % 3)
    refused("expected the labels of the targets' records, got 9 others, first at row 0", attack, targets, others)
