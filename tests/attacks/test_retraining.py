"""Training again: clones of estimators and functions against loops by hand; what outputs are taken for; refusals."""

import functools
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from torch.utils.data import TensorDataset

from giveaway import audit, from_sklearn, validate
from giveaway.attacks import Retraining, balanced_membership, model_seed, train_shadows
from giveaway.attacks.shadow import first_model
from giveaway.extract.sklearn_fits import settings_of
from giveaway.records import ScoreTable
from tests.conftest import refused

N = 120
X, Y = make_classification(N, 6, n_informative=4, n_classes=3, random_state=0)
NAMES = np.array(["rain", "frost", "sun"])[Y]  # in sorted order frost, rain, sun
TWO = np.where(Y == 1, "yes", "no")
VALUES = X @ np.arange(6.0) + 0.1 * Y
FRAME = pd.DataFrame(X, columns=list("abcdef")).assign(season=np.where(X[:, 0] > 0, "dry", "wet"))
MIXED = make_pipeline(make_column_transformer((OneHotEncoder(), ["season"]), remainder=StandardScaler()), SVC())
SEARCH = GridSearchCV(make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [0.01, 3.0]})


def by_hand(estimator, data, y, ask, **fixed):
    """Clones fitted on the same halves by a plain loop."""
    rows = balanced_membership(8, N, seed=5)
    said = []
    for number in range(8):
        half = np.flatnonzero(rows[number])
        model = clone(estimator).set_params(
            **{name: model_seed(number, seed=5) // 2 for name in fixed.get("seeds", ())}
        )
        model.fit(data.iloc[half] if hasattr(data, "iloc") else data[half], y[half])
        said.append(ask(model))
    return np.stack(said), rows


CASES = {
    "logistic": (LogisticRegression(), X, NAMES, lambda m: m.decision_function(X), "logits", ()),
    "table": (MIXED, FRAME, NAMES, lambda m: m.decision_function(FRAME), "logits", ["svc__random_state"]),
    "search": (SEARCH, X, NAMES, lambda m: m.decision_function(X), "logits", ["logisticregression__random_state"]),
    "forest": (RandomForestClassifier(5), X, Y, lambda m: m.predict_proba(X), "probabilities", ["random_state"]),
    "support": (SVC(), X, TWO, lambda m: m.decision_function(X) * np.where(TWO == "yes", 1, -1), "phi", []),
    "values": (Ridge(2.0), X, VALUES, lambda m: (m.predict(X) - VALUES) ** 2, "squared_error", ["random_state"]),
    "network": (
        MLPClassifier((8,), max_iter=5), X, NAMES, lambda m: m.predict_proba(X), "probabilities", ["random_state"],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", CASES)
def test_clones_of_an_estimator_equal_a_loop_by_hand(tmp_path, name):
    estimator, data, y, ask, kind, seeds = CASES[name]
    used = clone(estimator)
    if name == "search":
        estimator = estimator.fit(data, y)
        used = clone(estimator.estimator).set_params(**estimator.best_params_)
        assert used.get_params()["logisticregression__C"] == 0.01 != 1.0
    signals = train_shadows(Retraining(estimator, data, y), models=8, folder=tmp_path, seed=5)
    expected, members = by_hand(used, data, y, ask, seeds=seeds)
    assert signals.kind == kind
    np.testing.assert_array_equal(signals.values[:, :, 0], expected)
    np.testing.assert_array_equal(signals.members, members)
    if kind != "squared_error":
        np.testing.assert_array_equal(signals.labels, np.unique(y, return_inverse=True)[1])


def test_logits_stand_for_the_probabilities_they_make(tmp_path):
    signals = train_shadows(Retraining(LogisticRegression(), X, NAMES), models=2, folder=tmp_path)
    places = np.unique(NAMES, return_inverse=True)[1]
    for number, members in enumerate(signals.members):
        p = LogisticRegression().fit(X[members], NAMES[members]).predict_proba(X)[np.arange(N), places]
        np.testing.assert_allclose(signals.statistic()[number, :, 0], np.log(p / (1 - p)), rtol=1e-6)


@pytest.mark.parametrize("estimator", [LogisticRegression(), SVC(), RandomForestClassifier(5)])
def test_a_class_that_a_half_lacks_gets_next_to_nothing(tmp_path, estimator):
    y = NAMES.copy()
    y[0] = "a storm"  # first in order, and in one half of each pair only
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        signals = train_shadows(Retraining(estimator, X, y), models=4, folder=tmp_path)
    without = signals.values[~signals.members[:, 0], :, 0]
    assert without.shape == (2, N, 4)
    p = signals.distribution()[~signals.members[:, 0], :, 0]
    assert p[..., 0].max() < 1e-11
    half = signals.members[~signals.members[:, 0]][0]
    fitted = clone(estimator)
    if "random_state" in fitted.get_params():
        fitted.set_params(random_state=model_seed(np.flatnonzero(~signals.members[:, 0])[0], seed=0) // 2)
    fitted.fit(X[half], y[half])
    said = fitted.decision_function(X) if hasattr(fitted, "decision_function") else fitted.predict_proba(X)
    np.testing.assert_array_equal(without[0, :, 1:], said)


RETURNS = {
    "model": lambda model: model,
    "probabilities": lambda model: model.predict_proba(X),
    "predict": lambda model: lambda: model.predict_proba(X),
    "of rows": lambda model: lambda rows: model.predict_proba(X[rows]),
    "tensor": lambda model: torch.from_numpy(model.predict_proba(X)).requires_grad_(),
    "list": lambda model: model.predict_proba(X).tolist(),
}


@pytest.mark.parametrize("name", RETURNS)
def test_a_function_may_return_the_model_its_outputs_or_what_gives_them(tmp_path, name):
    def train(rows, seed):
        return RETURNS[name](RandomForestClassifier(5, random_state=seed).fit(X[rows], NAMES[rows]))

    signals = train_shadows(Retraining(train, X, NAMES), models=4, folder=tmp_path, seed=1)
    members = balanced_membership(4, N, seed=1)
    for number, half in enumerate(members):
        fitted = RandomForestClassifier(5, random_state=model_seed(number, seed=1)).fit(X[half], NAMES[half])
        np.testing.assert_array_equal(signals.values[number, :, 0], fitted.predict_proba(X))
    assert signals.kind == "probabilities"


@pytest.mark.parametrize("data", ["array", "dataset"])
def test_a_torch_module_is_asked_in_evaluation_mode(tmp_path, data):
    inputs = torch.tensor(X, dtype=torch.float32)

    def train(rows, seed):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Dropout(0.9))

    records = X if data == "array" else TensorDataset(inputs, torch.tensor(Y))
    signals = train_shadows(Retraining(train, records, Y), models=2, folder=tmp_path)
    torch.manual_seed(model_seed(1, seed=0))
    expected = torch.nn.Linear(6, 3)(inputs).detach().numpy()
    np.testing.assert_allclose(signals.values[1, :, 0], expected, rtol=1e-6)
    assert signals.kind == "logits"


def outputs_of(outputs, y, **options):
    return Retraining(lambda rows, seed: None, y=y, **options).signals(np.asarray(outputs), None)


def test_what_outputs_are_taken_for():
    rng = np.random.default_rng(0)
    p, logits = rng.dirichlet(np.ones(3), N), rng.normal(size=(N, 3))
    assert outputs_of(p, Y)[1] == outputs_of(p.astype(np.float16), Y)[1] == "probabilities"
    assert outputs_of(logits, Y)[1] == outputs_of(2 * p, Y)[1] == outputs_of(p - 0.01, Y)[1] == "logits"
    one = rng.normal(size=N)
    for shape in ((N,), (N, 1)):
        signals, kind = outputs_of(one.reshape(shape), TWO)
        assert kind == "phi"
        np.testing.assert_array_equal(signals, np.where(TWO == "yes", one, -one))
        signals, kind = outputs_of(p[:, 0].reshape(shape), TWO)
        assert kind == "probabilities"
        np.testing.assert_array_equal(signals, np.stack([1 - p[:, 0], p[:, 0]], axis=1))
        signals, kind = outputs_of(one.reshape(shape), VALUES)
        assert kind == "squared_error"
        np.testing.assert_allclose(signals, (one - VALUES) ** 2)
    many, targets = rng.normal(size=(N, 2)), rng.normal(size=(N, 2))
    np.testing.assert_allclose(outputs_of(many, targets)[0], ((many - targets) ** 2).sum(axis=1))
    queries = rng.normal(size=(N, 5, 3))
    assert outputs_of(queries, Y)[0].shape == (N, 5, 3)


@given(classes=st.integers(2, 5), rows=st.integers(2, 20), seed=st.integers(0, 99), names=st.booleans())
def test_labels_are_the_columns_of_their_class(classes, rows, seed, names):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    known = np.array([f"class {place}" for place in range(classes)])[y] if names else y
    training = Retraining(lambda rows, seed: None, y=known)
    if names:
        np.testing.assert_array_equal(np.unique(known)[training.labels], known)
        np.testing.assert_array_equal(training.classes, np.unique(known))
    else:
        np.testing.assert_array_equal(training.labels, y)


@pytest.mark.parametrize(
    ("outputs", "y", "words"),
    [
        (np.zeros((N // 2, 3)), Y, r"outputs: expected 120 rows, one a record, got shape \(60, 3\); predict every"),
        (np.zeros((N, 3)), Y, "outputs: expected outputs that differ between records, got the same for all 120; check"),
        (np.zeros(N), VALUES, "outputs: expected outputs that differ between records, got the same for all 120; check"),
        (np.random.default_rng(0).normal(size=(N, 2)), Y,
         r"outputs: expected a column for each of the 3 classes, got shape \(120, 2\) for labels up to 2; return"),
        (np.arange(N * 1.0), Y, r"outputs: expected a column for each of the 3 classes, got shape \(120,\) for"),
        (np.where(np.arange(N) == 7, np.nan, 1.0), TWO,
         "outputs: expected finite numbers, got NaN or infinity in 1 rows, first in row 7; repair those records, or"),
        (Y, Y, "outputs: expected floating-point numbers, got int64, as of predicted classes; return probabilities or"),
        (NAMES, Y, "outputs: expected numbers: probabilities, decision values or predictions, got dtype <U5; return"),
        (None, Y, "outputs: expected numbers: probabilities, decision values or predictions, got none; return the mod"),
        (np.random.default_rng(0).normal(size=(N, 3)), Y * 1.0,
         r"outputs: expected a prediction for each of the targets, shape \(120,\), got shape \(120, 3\); if these"),
    ],
)  # fmt: skip
def test_the_first_model_s_outputs_are_refused_before_the_second_is_trained(tmp_path, outputs, y, words):
    trained = []

    def train(rows, seed):
        trained.append(seed)
        return outputs

    line = refused(f"^{words}", train_shadows, Retraining(train, y=y), models=8, folder=tmp_path / "new")
    assert "; " in line
    assert len(trained) == 1
    assert not (tmp_path / "new").exists()


def test_a_train_that_raises_at_once_trains_no_other(tmp_path):
    trained = []

    def train(rows, seed):
        trained.append(seed)
        raise ZeroDivisionError("no luck")

    words = r"got 1 without: model 0 \(seed \d+\): ZeroDivisionError at line \d+ of test_retraining.py; "
    refused(words, train_shadows, Retraining(train, y=Y), models=8, folder=tmp_path)
    refused(words, train_shadows, Retraining(train, records=9, kind="phi"), models=8, folder=tmp_path / "phi")
    assert len(trained) == 2


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (LogisticRegression, {}, "model: expected a function train.rows, seed. or an estimator, got the class Logist"),
        (torch.nn.Linear(2, 2), {}, "model: expected a function train.rows, seed. or an estimator, got Linear; pass"),
        (lambda rows: None, {}, r"train: expected a function of \(rows, seed\), got one of \(rows\); take"),
        (LogisticRegression(), {"X": X}, "y: expected the records and their targets beside an estimator, got none; pa"),
        (KMeans(), {"X": X, "y": Y}, "model: expected a classifier or a regressor, got KMeans; write a function train"),
        (Ridge(), {"X": X, "y": NAMES}, "y: expected numbers beside a regressor, got labels; name a classifier for"),
        (Ridge(), {"X": X, "y": VALUES, "devices": ("cuda",)}, r"devices: expected nothing beside an estimator, got"),
        (SVC(), {"X": X, "y": Y[:-1]}, "X: expected 119 records, as in y, got 120; pass X and y of the same records"),
        (SVC(), {"X": X, "y": np.eye(3)[Y]}, r"y: expected one label a record, got shape \(120, 3\); validate"),
        (SVC(), {"X": X, "y": np.array(["a", None] * 60)}, "y: expected labels of one type, got several, or gaps"),
        (clone(SEARCH), {"X": X, "y": Y}, "estimator: expected a search that was fitted with refit, got a GridSearch"),
    ],
)  # fmt: skip
def test_refusals(model, options, words):
    refused(words, Retraining, model, **options)


@pytest.mark.parametrize(
    ("kind", "outputs", "words"),
    [
        (
            "logits",
            np.eye(3)[Y],
            "outputs: expected logits, got rows that sum to 1; return the same from every model, an",
        ),
        ("probabilities", X[:, :3], "outputs: expected probabilities, got rows that do not sum to 1; return the same"),
        ("logits", X[:, :2], r"outputs: expected a column for each of the 3 classes, got shape \(120, 2\) for labels"),
        ("logits", X[:, 0], r"outputs: expected a column for each of the 3 classes, got shape \(120,\) for labels"),
    ],
)
def test_outputs_of_another_kind_than_was_said(kind, outputs, words):
    refused(words, Retraining(lambda rows, seed: None, y=Y, kind=kind).signals, outputs, kind)


def test_a_clone_that_refuses_a_half_is_said_without_the_record_s_values(tmp_path):
    frame = FRAME.assign(season=np.where(np.arange(N) == 4, "secret", FRAME["season"]))
    words = "estimator: expected a fit to every half of the records, got others .ValueError.; a class or cat"
    line = refused(words, train_shadows, Retraining(MIXED, frame, NAMES), models=8, folder=tmp_path)
    assert "secret" not in line
    assert 'set handle_unknown="ignore"' in line
    assert "4 finished models are kept" in line
    gaps = np.where(X > 2.5, np.nan, X)
    words = "estimator: expected a fit to every half of the records, got Input X contains NaN.; a class or"
    refused(words, train_shadows, Retraining(LogisticRegression(), gaps, NAMES), models=8, folder=tmp_path / "b")


def test_a_model_that_is_returned_needs_the_records(tmp_path):
    training = Retraining(lambda rows, seed: SVC().fit(X[rows], Y[rows]), y=Y)
    words = "X: expected the records that the returned model is asked about, got a SVC and no records; pass X .--data"
    refused(words, train_shadows, training, models=2, folder=tmp_path)


# ------------------------------------------------------------------------------------------------ the fingerprint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"X": X + 1}, "got X differ; train them in another folder"),
        ({"y": TWO}, "labels differ; y differ"),
        ({"model": RandomForestClassifier(4)}, "got n_estimators was '3', is '4'"),
        ({"model": SVC()}, "type was 'RandomForestClassifier', is 'SVC'"),
        ({"fingerprint": {"epochs": 3}}, "got epochs was None, is 3"),
    ],
)
def test_what_signals_depend_on_is_found_and_a_change_refused(tmp_path, change, words):
    given = {"model": RandomForestClassifier(3, n_jobs=1), "X": X, "y": NAMES}
    train_shadows(Retraining(**given), models=2, folder=tmp_path)
    again = train_shadows(
        Retraining(**{**given, "model": RandomForestClassifier(3, n_jobs=2)}), models=2, folder=tmp_path
    )
    assert again.models == 2
    refused(words, train_shadows, Retraining(**{**given, **change}), models=2, folder=tmp_path)


def test_data_of_every_form_have_a_fingerprint_that_tells_them_apart():
    changed = FRAME.assign(season=FRAME["season"].str.upper())
    text = ["one", "two"] * 60
    datas = [X, X.astype(np.float32), FRAME, changed, sparse.csr_array(X), sparse.csr_array(X + 1), text, text[::-1]]
    digests = [Retraining(SVC(), data, Y).plan_entries()["X"] for data in datas]
    assert len(set(digests)) == len(datas)
    assert digests == [Retraining(SVC(), data, Y).plan_entries()["X"] for data in datas]


def test_settings_say_the_same_in_every_process():
    searched = make_pipeline(StandardScaler(), SVC(C=2.0, class_weight={0: 2}, random_state=3))
    words = settings_of(searched)
    assert (words["svc__C"], words["svc__class_weight"]) == ("2.0", "{0: 2}")
    assert not any(" at 0x" in word for word in words.values())
    assert not any("random_state" in name for name in words)


def test_a_partial_s_source_is_the_function_s():
    def train(scale, rows, seed):
        return X[:, :3] * scale

    plain, bound = (
        Retraining(one, y=Y).plan_entries()["code"]
        for one in (functools.partial(train, 1), functools.partial(train, 2))
    )
    assert plain == bound  # what is bound belongs into fingerprint=
    assert plain.startswith("sha256 ")


# ------------------------------------------------------------------------------------------------ beside a table


def table_of(model, data=X, y=NAMES) -> ScoreTable:
    return audit(from_sklearn(model.fit(data, y), data, y), scores=["loss"])


def test_a_function_alone_takes_the_labels_of_the_table(tmp_path):
    def train(rows, seed):
        return LogisticRegression().fit(X[rows], NAMES[rows]).decision_function(X)

    table = table_of(LogisticRegression())
    alone = validate(train, table, models=8, folder=tmp_path / "alone")
    clones = validate(Retraining(LogisticRegression(), X, NAMES), table, models=8, folder=tmp_path / "clones")
    np.testing.assert_array_equal(alone.effect_size, clones.effect_size)


def test_integer_targets_of_a_regression_are_values(tmp_path):
    counts = np.round(VALUES).astype(int)
    table = table_of(Ridge(), X, counts)

    def train(rows, seed):
        return Ridge().fit(X[rows], counts[rows]).predict(X)

    by_function = validate(Retraining(train, y=counts), table, models=8, folder=tmp_path / "a")
    by_clones = validate(Retraining(Ridge(), X, counts), table, models=8, folder=tmp_path / "b")
    np.testing.assert_array_equal(by_function.effect_size, by_clones.effect_size)
    refused("y: expected the labels or values that outputs are held against, got none", validate, train, table)


def test_what_a_table_refuses_before_anything_is_trained(tmp_path):
    def train(rows, seed):
        raise AssertionError("trained")

    table = table_of(LogisticRegression())
    other = NAMES.copy()
    other[3] = "frost" if other[3] != "frost" else "sun"
    for y, words in (
        (other, "y: expected the audit's own records, got other classes in 1 of them, first in row 3; give those of"),
        (
            Y * 1.0,
            r"y: expected labels, since the audit is of classes, got values \(float64\); pass labels as whole num",
        ),
        (NAMES[:-1], "signals: expected signals on the table's 120 records, got 119 records; pass rows="),
    ):
        refused(words, validate, Retraining(train, y=y), table, folder=tmp_path)


def test_the_first_model_alone_tells_the_time_and_is_kept(tmp_path):
    trained = []

    def train(rows, seed):
        trained.append(seed)
        return LogisticRegression().fit(X[rows], NAMES[rows]).decision_function(X)

    training = Retraining(train, y=NAMES, code="1")
    seconds, missing = first_model(training, models=8, folder=tmp_path)
    assert (seconds > 0, missing, len(trained)) == (True, 7, 1)
    assert first_model(training, models=8, folder=tmp_path) == (seconds, 7)
    signals = train_shadows(training, models=8, folder=tmp_path)
    assert trained == [model_seed(number, seed=0) for number in range(8)]
    assert signals.models == 8
    assert first_model(training, models=8, folder=tmp_path) == (seconds, 0)


def test_labels_may_be_a_column_of_a_table():
    named = Retraining(LogisticRegression(), FRAME.drop(columns="season"), FRAME["season"])
    plain = Retraining(LogisticRegression(), FRAME.drop(columns="season"), FRAME["season"].to_numpy())
    assert named.plan_entries() == plain.plan_entries()
    other = Retraining(LogisticRegression(), FRAME.drop(columns="season"), FRAME["season"].to_numpy()[::-1])
    assert named.plan_entries() != other.plan_entries()
