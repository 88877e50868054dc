"""An audit against an attack: numbers, words and refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression, Ridge

from giveaway import audit, from_sklearn, validate
from giveaway.attacks import Retraining, train_shadows
from giveaway.auditing.validate import held_against
from giveaway.evaluation import effect_sizes, recall_at
from giveaway.records import ScoreTable, Signals
from giveaway.text import human_seconds
from tests.conftest import refused


def simulated(records: int = 1000, models: int = 64, seed: int = 0) -> tuple[Signals, ScoreTable]:
    """Records of growing exposure, a score that sees it through noise, and one that is only noise."""
    rng = np.random.default_rng(seed)
    exposure = rng.gamma(1.0, size=records)
    members = np.stack([rng.permutation(np.arange(models) < models // 2) for _ in range(records)], axis=1)
    signals = Signals(rng.normal(size=members.shape) + members * exposure, members, "phi")
    scores = {"newton": exposure + 0.3 * rng.normal(size=records), "loss": rng.normal(size=records)}
    return signals, ScoreTable(scores, ids=np.arange(records), meta={"seconds": 0.5})


@pytest.fixture(scope="module")
def found():
    return held_against(*simulated(), training_seconds=0.25)


def test_scores_are_compared_with_the_effect_size(found):
    signals, table = simulated()
    truth = effect_sizes(signals).effect_size
    for row in found.table.rows:
        assert row.recall[0.01, 0.05].value == recall_at(table[row.score], truth, 0.01, 0.05)
    assert found.worth["newton"] > 8 > 2 >= found.worth["loss"]
    assert found.attack.nonmembers == (~signals.members).sum()
    assert (found.audit_seconds, found.models, found.ranked_by) == (0.5, 64, "newton")


def test_rows_name_the_signals_record_of_each_row(found):
    signals, table = simulated()
    order = np.random.default_rng(1).permutation(signals.records)
    shuffled = signals.of_records(np.argsort(order))  # record i of the table stands at order[i]
    mapped = validate(shuffled, table, rows=order)
    assert mapped.table.to_csv() == found.table.to_csv()
    np.testing.assert_array_equal(mapped.success, found.success)


def test_words_and_json(found):
    recall = found.table.rows[0].recall[0.01, 0.05]
    sentence = found.conclusion()
    assert sentence.startswith(f"The 5 % of records that newton ranks highest hold {100 * recall.value:.0f} % (")
    assert f"at least {found.count.at_least} of 1000 records" in sentence
    assert "safe" not in sentence
    stored = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert stored["agreement"]["newton"]["top 0.01 in 0.05"][0] == pytest.approx(recall.value, abs=1e-6)
    assert stored["at_least_exposed"]["records"] == found.count.at_least
    assert stored["seconds"]["audit"] == 0.5
    page = found.to_markdown()
    assert page.startswith(sentence)
    assert "| loss | fewer than 2 |" in page


def test_rows_and_signals_that_cannot_be_used():
    signals, table = simulated()
    different = "rows: expected 1000 different row numbers of the signals, 0 to 999"
    for rows in (np.arange(5), np.zeros(1000, int), np.arange(1000) + 1, np.arange(1000.0)):
        refused(different, validate, signals, table, rows=rows)
    words = "signals: expected signals on the table's 1000 records, got 999 records"
    refused(words, validate, signals.of_records(slice(0, 999)), table)
    words = "signals: expected at least 8 models, got 6; train more shadow models"
    refused(words, validate, signals.of_models(slice(0, 6)), table)
    words = "table: expected at least 100 records, got 60; validate a larger audit"
    refused(words, validate, *simulated(records=60))


# ------------------------------------------------------------------------------------------------ the audited model


@pytest.mark.parametrize(("target", "numbers"), [(3, (3,)), ([9, 3, 3], (3, 9)), (np.array([63]), (63,))])
def test_the_truth_comes_from_the_models_that_are_not_the_audited_one(target, numbers):
    signals, table = simulated(records=200)
    changed = signals.values[..., 0].copy()
    changed[list(numbers)] = 1e3
    others = np.delete(np.arange(64), numbers)
    found = validate(Signals(changed, signals.members, "phi"), table, target=target)
    plain = validate(signals.of_models(others), table, target=())
    assert found.table.to_csv() == plain.table.to_csv()
    np.testing.assert_array_equal(found.effect_size, effect_sizes(signals.of_models(others)).effect_size)
    np.testing.assert_array_equal(found.success, plain.success)
    assert (found.worth, found.count.at_least, found.attack.auc) == (
        plain.worth,
        plain.count.at_least,
        plain.attack.auc,
    )
    assert (found.target, found.models) == (numbers, 64 - len(numbers))
    assert found.to_json()["target"] == list(numbers)


def test_where_the_audited_model_stands_is_said():
    signals, table = simulated(records=200)
    unknown, none, third = (validate(signals, table, target=target) for target in (None, (), 3))
    assert unknown.about_target().startswith("Whether the audited model is one of the 64 is not known; if it is, ")
    assert none.about_target() == "The audited model is not one of the 64."
    assert third.about_target() == (
        "The audited model (3 of the signals) is left out: the truth comes from the other 63."
    )
    assert (unknown.to_json()["target"], none.to_json()["target"]) == (None, [])
    for found in (unknown, none, third):
        assert found.about_target() in found.to_markdown()


def test_what_is_refused_beside_signals():
    few = simulated(records=200)
    for target in (64, -1, 1.0, [[1]], "3"):
        words = "target: expected models of the signals, 0 to 63, got .*; number the "
        refused(words, validate, *few, target=target)
    words = "signals: expected at least 8 models, got 7"
    refused(words, validate, *simulated(records=200, models=8), target=0)


def test_the_cost_of_both_sides(found):
    assert found.training_seconds == 0.25
    for seconds, words in (
        (None, "an unknown time."),
        (0.25, "under a second, summed over them."),
        (99.6, "100 s, summed over them."),
        (7200.0, "2.0 hours, summed over them."),
    ):
        found = replace(found, training_seconds=seconds)
        assert found.cost().startswith("The audit took under a second and the attack ")
        assert found.cost().endswith(f"training 64 models took {words}")
        assert found.cost() in found.to_markdown()
        assert found.to_json()["seconds"]["training"] == seconds


# ------------------------------------------------------------------------------------------------ from train to verdict

DIGITS, CLASSES = (array[:300] for array in load_digits(return_X_y=True))
DIGITS = DIGITS / 16


def train_digits(indices, seed):
    model = LogisticRegression(C=1.0, max_iter=500).fit(DIGITS[indices], CLASSES[indices])
    return lambda: model.decision_function(DIGITS)


def digits_table(rows=slice(None)) -> ScoreTable:
    x, y = DIGITS[rows], CLASSES[rows]
    return audit(from_sklearn(LogisticRegression(C=1.0, max_iter=500).fit(x, y), x, y), scores=["newton", "loss"])


TRAINING = Retraining(train_digits, DIGITS, CLASSES)


def test_one_call_trains_attacks_and_compares(tmp_path):
    table, seen = digits_table(), []
    asked = {"models": 8, "seed": 3, "on_model": lambda *counts: seen.append(counts)}
    found = validate(TRAINING, table, folder=tmp_path / "a", **asked)
    signals = train_shadows(TRAINING, models=8, folder=tmp_path / "b", seed=3)
    by_hand = validate(signals, table, target=(), seed=3)
    assert found.table.to_csv() == by_hand.table.to_csv()
    np.testing.assert_array_equal(found.effect_size, by_hand.effect_size)
    assert seen == [(k, 8) for k in range(1, 9)]
    assert (found.models, found.target) == (8, ())
    assert found.training_seconds > 0
    assert f"training 8 models took {human_seconds(found.training_seconds)}, summed over them." in found.to_markdown()
    again = validate(TRAINING, table, folder=tmp_path / "a", **asked)
    assert (again.training_seconds, len(seen)) == (found.training_seconds, 8)


def test_a_table_of_some_of_the_records(tmp_path):
    rows = np.arange(10, 210)
    found = validate(TRAINING, digits_table(rows), folder=tmp_path, rows=rows, models=8)
    signals = Signals.load(tmp_path)
    np.testing.assert_array_equal(found.effect_size, effect_sizes(signals.of_records(rows)).effect_size)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": np.arange(1000), "records": None}, "records: expected how many records train knows, got none; pass"),
        ({"rows": np.arange(5), "records": 2000}, "rows: expected 1000 different row numbers of the signals, 0 to 19"),
        ({"records": 2000}, "signals: expected signals on the table's 1000 records, got 2000 records; pass rows="),
        ({"models": 6}, "signals: expected at least 8 models, got 6"),
        ({"models": 9}, "models: expected an even number of models, got 9"),
        ({"kind": "logit"}, "kind: expected a known name, got 'logit'; did you mean logits"),
        ({"backend": "spark"}, "backend: expected a known name, got 'spark'"),
        ({"kind": None}, "y: expected the labels or values that outputs are held against, got none; pass y="),
        ({"target": ()}, "target: expected nothing beside a training, got tuple; drop target="),
    ],
)
def test_what_is_refused_before_a_model_is_trained(tmp_path, options, words):
    def train(indices, seed):
        raise AssertionError("trained")

    _, table = simulated()
    given = {"kind": "phi", "records": 1000, "models": 8, "folder": tmp_path / "signals", **options}
    of_training = {name: given.pop(name) for name in ("kind", "records", "backend") if name in given}
    refused(words, lambda: validate(Retraining(train, **of_training), table, **given))
    assert not (tmp_path / "signals").exists()


def networks_of(x, y, models=12):
    """Real signals: ridge or logistic models of random halves."""
    rng = np.random.default_rng(5)
    halves = [rng.permutation(len(y)) < len(y) // 2 for _ in range(models // 2)]
    members = np.stack([half for own in halves for half in (own, ~own)])
    if y.dtype.kind == "f":
        fitted = [Ridge(1.0).fit(x[own], y[own]) for own in members]
        return Signals(np.stack([(one.predict(x) - y) ** 2 for one in fitted]), members, "squared_error")
    fitted = [LogisticRegression(C=10.0, max_iter=2000).fit(x[own], y[own]) for own in members]
    return Signals(np.stack([one.decision_function(x) for one in fitted]), members, "logits", labels=y)


@pytest.mark.parametrize("regression", [False, True])
def test_signals_of_other_records_are_refused_also_where_the_labels_agree(regression):
    x, y = load_diabetes(return_X_y=True) if regression else load_digits(return_X_y=True)
    x, y = (x[:400], y[:400] / 50) if regression else (x[:400] / 16, y[:400].astype(np.int64))
    model = (Ridge(1.0) if regression else LogisticRegression(C=10.0, max_iter=2000)).fit(x, y)
    table, signals = audit(from_sklearn(model, x, y)), networks_of(x, y)
    assert validate(signals, table).models == 12
    rng, order = np.random.default_rng(1), np.arange(len(y))
    for label in np.unique(y) if not regression else [None]:  # within its class every record gets another's signals
        own = np.flatnonzero(y == label) if label is not None else order.copy()
        order[own] = rng.permutation(own)
    words = "signals: expected the audit's own records, in their order, got signals that do not go with fused"
    refused(words, validate, signals.of_records(order), table)


def audited(regression: bool):
    """An audit of 300 records, and what shadow models of theirs say, marked as those of the audit."""
    x, y = load_diabetes(return_X_y=True) if regression else load_digits(return_X_y=True)
    x, y = (x[:300], y[:300] + 1e-3 * np.arange(300)) if regression else (x[:300] / 16, y[:300].astype(np.int64))
    model = (Ridge(1.0) if regression else LogisticRegression(C=10.0, max_iter=2000)).fit(x, y)
    table, signals = audit(from_sklearn(model, x, y)), networks_of(x, y)
    return x, y, table, replace(signals, digests=replace(table.digests.again(targets=y, inputs=x), key=None))


@pytest.mark.parametrize("regression", [False, True])
def test_digests_tell_every_other_record_by_its_row(regression, tmp_path):
    x, y, table, signals = audited(regression)
    table.save(tmp_path / "audit")
    signals.save(tmp_path / "signals")
    table, signals = ScoreTable.load(tmp_path / "audit"), Signals.load(tmp_path / "signals")
    assert validate(signals, table).models == 12
    assert signals.digests.key is None
    key = np.load(tmp_path / "audit" / "scores-digests.npz")["key"].tobytes()
    assert key == table.digests.key
    assert (tmp_path / "audit" / "scores-digests.npz").stat().st_mode & 0o777 == 0o600
    assert not any(key in file.read_bytes() for file in (tmp_path / "signals").iterdir())

    swapped = np.arange(300)
    same = [17, 17 + 1 + int(np.flatnonzero(y[18:] == y[17])[0])] if not regression else [17, 250]
    swapped[same] = swapped[same[::-1]]
    begins = "signals: expected the audit's own records, in their order, got other "
    what = "targets" if regression else "inputs"  # targets are looked at first
    words = f"{begins}{what} in 2 of them, first in row 17; take signals of these records, in order"
    refused(words, validate, signals.of_records(swapped), table)
    other = replace(signals, digests=table.digests.again(targets=y, inputs=x + np.eye(300, x.shape[1], -7)))
    refused(f"{begins}inputs in {min(x.shape[1], 293)} of them, first in row 7", validate, other, table)
    some = np.arange(0, 300, 2)
    of_some = ScoreTable({"newton": table["newton"][some]}, some, digests=table.digests.at(some))
    assert validate(signals, of_some, rows=some).models == 12
    refused(f"{begins}", validate, signals, of_some, rows=some + 1)


def test_targets_alone_do_not_prove_classes_but_values_of_their_own():
    _, y, table, signals = audited(regression=False)
    shuffled = np.arange(300)
    for label in range(10):
        own = np.flatnonzero(y == label)
        shuffled[own] = np.random.default_rng(1).permutation(own)
    classes = replace(signals, digests=table.digests.again(targets=y))
    refused("got signals that do not go with fused", validate, classes.of_records(shuffled), table)
    elsewhere = replace(table, digests=audited(regression=False)[2].digests)  # under another key
    refused("got signals that do not go with fused", validate, signals.of_records(shuffled), elsewhere)
    _, y, table, signals = audited(regression=True)
    values = replace(signals, digests=table.digests.again(targets=y))
    assert table.digests.compared(values.digests) == (True, "")


def test_a_training_on_other_records_is_refused_before_it_begins(tmp_path):
    x, y, table, _ = audited(regression=True)
    begins = "X: expected the audit's own records, in their order, got other "
    remedy = "pass X and y of the audit, as it was given them"
    given = {"models": 8, "folder": tmp_path / "signals"}
    refused(f"{begins}targets in 300 of them, first in row 0; {remedy}", validate, Retraining(Ridge(), x, -y), table)
    refused(f"{begins}inputs in 300 of them", validate, Retraining(Ridge(), x[::-1], y), table, **given)
    assert not (tmp_path / "signals").exists()
    train = Retraining(Ridge(), x, y)
    assert validate(train, table, **given).models == 8
    stored = Signals.load(tmp_path / "signals")
    assert table.digests.compared(stored.digests) == (True, "")
    refused("signals: expected the audit's own", validate, stored.of_records(np.arange(299, -1, -1)), table)


def test_a_record_with_few_models_on_a_side_is_not_judged_and_moves_nothing_else():
    signals, table = simulated(records=300, models=16)
    members = signals.members.copy()
    members[:, 7] = np.arange(16) < 14
    found = validate(Signals(signals.values, members, "phi"), table)
    rest = np.arange(300) != 7
    plain = validate(
        signals.of_records(rest), ScoreTable({k: v[rest] for k, v in table.scores.items()}, np.arange(299))
    )
    assert (found.success[7], found.effect_size[7], found.count.judged[7], found.count.flagged[7]) == (0.5, 0, 0, 0)
    np.testing.assert_array_equal(found.success[rest], plain.success)
    np.testing.assert_array_equal(found.effect_size[rest], plain.effect_size)
    assert found.table.to_csv() == plain.table.to_csv()
    told = found.to_json()
    assert (told["records"], told["at_least_exposed"]["judged"]) == (300, 299)


def test_signals_that_tell_of_few_records_are_refused():
    signals, table = simulated(records=300, models=16)
    members = signals.members.copy()
    members[:, 99:] = np.arange(16)[:, None] < 14
    words = "signals: expected 100 records or more with 3 models on either side, got 99 in 16 models; train more shadow"
    refused(words, validate, Signals(signals.values, members, "phi"), table)


def test_the_models_and_the_score_together_are_worth_more_models():
    signals, table = simulated(records=2000, models=8)
    found = validate(signals, table)
    alone = effect_sizes(signals).effect_size
    exposure = np.random.default_rng(0).gamma(1.0, size=2000)  # what `simulated` draws first
    errors = [np.mean((values - exposure) ** 2) for values in (found.posterior.effect_size, alone)]
    assert errors[0] < 0.5 * errors[1]
    assert found.posterior.worth > 12
    low, high = max(8, round(found.posterior.worth / 2.7)), round(2 * found.posterior.worth)
    words = f"find about as much as LiRA by itself would with {low} to {high} (simulated, not measured)."
    assert found.conclusion().endswith(words)
    few = validate(*simulated(records=1000, models=8))
    assert "simulated" not in few.conclusion()
    assert found.to_json()["with_the_score"]["worth_in_shadow_models"] == found.posterior.worth
