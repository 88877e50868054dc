"""giveaway validate with your own training: run as a new user would, in a folder with a module and an estimator."""

import importlib
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from giveaway import audit, from_sklearn
from giveaway.attacks import Retraining, model_seed, train_shadows
from giveaway.auditing.store import AuditFolder
from giveaway.records import Signals

MINE = """
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

rng = np.random.default_rng(0)
Y = np.arange(120) % 3
X = rng.normal(size=(120, 4)) + Y[:, None]
NAMES = np.array(["rain", "frost", "sun"])[Y]
TABLE = pd.DataFrame(X, columns=list("abcd")).assign(season=np.where(X[:, 0] > 1, "dry", "wet"))
VALUES = X @ np.arange(4.0) + rng.normal(size=120)
TRAINED = []

def data():
    return TABLE, NAMES

def values():
    return X, VALUES

def named():
    return X, NAMES

def plain():
    return X, Y

def other():
    return X, (Y + (VALUES > 0)) % 3

def pipeline():
    columns = make_column_transformer((OneHotEncoder(), ["season"]), remainder=StandardScaler())
    return make_pipeline(columns, LogisticRegression(C=5.0))

def train(rows, seed):
    TRAINED.append(seed)
    return RandomForestClassifier(5, random_state=seed).fit(X[rows], NAMES[rows]).predict_proba(X)

def model(rows, seed):
    return pipeline().fit(TABLE.iloc[rows], NAMES[rows])

def ridge(rows, seed):
    return Ridge().fit(X[rows], VALUES[rows]).predict(X)

def half(rows, seed):
    TRAINED.append(seed)
    return train(rows, seed)[rows]

def of_three(rows, seed, epochs):
    raise AssertionError
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("mine", None)
    module = importlib.import_module("mine")
    yield module
    sys.modules.pop("mine", None)


def save(estimator, name="model.pkl") -> str:
    Path(name).write_bytes(pickle.dumps(estimator))
    return name


def audited(done, mine, estimator, data="mine:data") -> None:
    file = save(estimator.fit(*getattr(mine, data.split(":")[1])()))
    options = ("--allow-pickle", "--out", "audit")
    done("audit", "--estimator", file, "--data", data, *options)


@pytest.mark.slow
def test_models_alone_train_clones_of_the_audited_estimator(giveaway, done, mine, tmp_path):
    audited(done, mine, mine.pipeline())
    line = giveaway("validate", "audit", "--models", 8)[2].splitlines()[-1]
    assert line.startswith(
        "giveaway: estimator: expected a .skops file, got model.pkl, which needs pickle; save it with"
    )
    told = json.loads(done("validate", "audit", "--models", 8, "--allow-pickle", "--json"))
    assert "Running your code: mine:data" in done.err
    assert "Signals: 8 models on 120 records, kept in the audit folder" in done.err
    words = "The shadow models are clones of a LogisticRegression with the same settings. Outputs are taken as logits, "
    assert told["trained"] == words + "one for each class."
    assert (told["models"], told["target"]) == (8, [])
    expected = train_shadows(Retraining(mine.pipeline(), *mine.data()), models=8, folder=tmp_path / "by hand")
    found = Signals.load("audit/signals")
    np.testing.assert_array_equal(found.values, expected.values)
    assert words in Path("audit/validation.md").read_text()
    assert words.split(".")[0] in Path("audit/report.html").read_text()
    assert json.loads(Path("audit/audit.json").read_text())["signals"] == ["signals"]
    assert {oct(path.stat().st_mode & 0o777) for path in Path("audit/signals").iterdir()} == {"0o600"}
    assert oct(Path("audit/signals").stat().st_mode & 0o777) == "0o700"
    done("validate", "audit", "--models", 10, "--allow-pickle")
    np.testing.assert_array_equal(Signals.load("audit/signals").values[:8], found.values)
    stored = done("validate", "audit")  # what is there
    assert "LiRA with 10 models" in stored
    done("purge", "audit")
    assert not Path("audit").exists()


@pytest.mark.slow
def test_your_function_needs_no_data_beside_an_audit_of_classes(giveaway, done, mine, tmp_path):
    forest = RandomForestClassifier(5, random_state=0).fit(mine.X, mine.NAMES)
    audit(from_sklearn(forest, mine.X, mine.NAMES), scores=["loss"]).save("audit")
    done("validate", "audit", "--train", "mine:train", "--models", 8, "--dry-run")
    assert len(mine.TRAINED) == 1
    out = done("validate", "audit", "--train", "mine:train", "--models", 8)
    assert len(mine.TRAINED) == 8
    assert "The shadow models are trained by your function mine:train. Outputs are taken as probabilities: " in out
    expected = train_shadows(Retraining(mine.train, y=mine.NAMES), models=8, folder=tmp_path / "by hand")
    np.testing.assert_array_equal(Signals.load("audit/signals").values, expected.values)
    line = giveaway("validate", "audit", "--train", "mine:half", "--models", 8, "--signals", "new")[2].splitlines()[-1]
    assert line.startswith(
        "giveaway: outputs: expected 120 rows, one a record, got shape (60, 3); predict every record"
    )
    assert len(mine.TRAINED) == 8 + 8 + 2
    line = giveaway("validate", "audit", "--train", "mine:model", "--models", 8)[2].splitlines()[-1]
    assert line.startswith("giveaway: folder: expected shadow models of the same plan, got code differ; train them in")
    line = giveaway("validate", "audit", "--train", "mine:of_three")[2].splitlines()[-1]
    assert line.startswith(
        "giveaway: train: expected a function of (rows, seed), got one of (rows, seed, epochs); take"
    )
    out = done("purge", "audit")
    assert not Path("audit").exists()


@pytest.mark.slow
def test_a_function_may_return_the_model_which_is_asked_about_the_audit_s_data(done, mine):
    audited(done, mine, mine.pipeline())
    done("validate", "audit", "--train", "mine:model", "--models", 8)
    by_function = Signals.load("audit/signals").values
    done("validate", "audit", "--models", 8, "--allow-pickle", "--signals", "clones")
    np.testing.assert_array_equal(by_function, Signals.load("clones").values)


@pytest.mark.slow
def test_predictions_of_values_become_squared_errors(done, mine):
    audited(done, mine, mine.Ridge(), "mine:values")
    told = json.loads(done("validate", "audit", "--train", "mine:ridge", "--models", 8, "--json"))
    assert told["trained"].endswith("Predictions are held against the targets: squared errors.")
    signals = Signals.load("audit/signals")
    half = signals.members[3]
    predicted = mine.Ridge().fit(mine.X[half], mine.VALUES[half]).predict(mine.X)
    np.testing.assert_array_equal(signals.values[3, :, 0], (predicted - mine.VALUES) ** 2)


@pytest.mark.slow
def test_values_of_an_audited_file_need_not_be_named_again(done, mine):
    fitted = mine.Ridge().fit(mine.X, mine.VALUES)
    from_sklearn(fitted, mine.X, mine.VALUES).save("head.npz")
    done("audit", "--features", "head.npz", "--out", "audit")
    done("validate", "audit", "--train", "mine:ridge", "--models", 8)
    first = Signals.load("audit/signals").values
    done("validate", "audit", "--estimator", save(mine.Ridge()), "--allow-pickle", "--models", 8, "--signals", "clones")
    np.testing.assert_allclose(first, Signals.load("clones").values)


@pytest.mark.slow
def test_a_search_and_another_kind_of_model_are_said(done, mine):
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}).fit(mine.X, mine.NAMES)
    audit(from_sklearn(RandomForestClassifier(5).fit(*mine.named()), *mine.named()), scores=["loss"]).save("audit")
    options = ("--estimator", save(search), "--allow-pickle", "--data", "mine:named", "--models", 8, "--json")
    line_of = json.loads(done("validate", "audit", *options))["trained"]
    assert (
        "The shadow models are clones of a LogisticRegression with the same settings, the best that GridSearchCV "
        in (line_of)
    )
    assert "; the audited model is a RandomForestClassifier: the count is of LogisticRegression models." in line_of


def test_records_of_another_audit_are_refused_before_training(giveaway, done, mine):
    audit(from_sklearn(LogisticRegression().fit(mine.X, mine.Y), mine.X, mine.Y), scores=["loss"]).save("audit")
    for way in (("--train", "mine:train"), ("--recipe", "mlp")):
        line = giveaway("validate", "audit", *way, "--data", "mine:other", "--models", 8)[2].splitlines()[-1]
        assert "expected the audit's own records, got other classes in " in line
    assert not mine.TRAINED
    assert not Path("audit/signals").exists()


def test_fewer_models_than_are_there_never_take_their_place(giveaway, done, mine):
    audit(from_sklearn(LogisticRegression().fit(mine.X, mine.Y), mine.X, mine.Y), scores=["loss"]).save("audit")
    options = ("validate", "audit", "--recipe", "logistic", "--data", "mine:plain")
    done(*options, "--models", 66)
    code, _, error = giveaway(*options, "--models", 8)
    words = "models: expected at least the 66 that are there already, got 8; leave --models out, which takes all of "
    assert (code, error.splitlines()[-1]) == (2, f"giveaway: {words}them, or name another folder for --signals")
    assert json.loads(done(*options, "--json"))["models"] == 66


def test_a_recipe_trains_on_the_records_and_says_where_it_has_features_alone(done, mine):
    fitted = LogisticRegression().fit(mine.X, mine.Y)
    from_sklearn(fitted, mine.X, mine.Y).save("head.npz")
    np.savez("inputs.npz", inputs=mine.X.reshape(120, 1, 2, 2))
    recipe = ("--recipe", "logistic", "--models", 8, "--json")
    done("audit", "--features", "head.npz", "--out", "bare")
    told = json.loads(done("validate", "bare", *recipe))["trained"]
    assert (
        "trained on the features of the audit. If these are of a network that was trained on the same records" in told
    )
    done("audit", "--features", "head.npz", "--inputs", "inputs.npz", "--out", "whole")
    assert "features" not in json.loads(done("validate", "whole", *recipe))["trained"]
    of_features, of_inputs = (Signals.load(f"{name}/signals").values for name in ("bare", "whole"))
    np.testing.assert_allclose(of_features, of_inputs)


def test_slices_trained_apart_are_collected(giveaway, done, mine):
    audit(from_sklearn(LogisticRegression().fit(mine.X, mine.Y), mine.X, mine.Y), scores=["loss"]).save("audit")
    options = ("validate", "audit", "--recipe", "logistic", "--data", "mine:plain", "--models", 8)
    alone = json.loads(done(*options, "--json", "--signals", "alone"))
    with AuditFolder("audit").locked():  # another slice, or whatever else is at work in the folder
        out = done(*options, "--only", "5:8")
    assert out == "Models 5 to 7 of 8 are trained; --collect joins all slices.\n"
    code, _, error = giveaway("validate", "audit", "--collect")
    words = "collect: expected all 8 models, got 5 missing, the first of them number 0; train the slices that hold them"
    assert (code, error) == (2, f"giveaway: {words} (--only)\n")
    assert json.loads(done(*options, "--only", "0:5", "--json")) == {"slice": out.replace("5 to 7", "0 to 4").strip()}
    told = json.loads(done("validate", "audit", "--collect", "--json"))
    assert told.pop("seconds")["training"] > 0
    assert alone.pop("seconds")
    assert told == alone
    assert told["trained"].startswith("The shadow models are LogisticRegressions of giveaway's recipe logistic; ")
    stored = json.loads(Path("audit/validation.json").read_text())
    assert stored["recipe"] == "logistic"
    assert not Path("audit/signals/slices").exists()
    assert done(*options, "--only", "5:8") == out  # as a job that is started again
    done(*options[:-1], 10, "--only", "8:10")
    done("purge", "audit")
    assert not Path("audit").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "--only 1-2",
            "only: expected A:B as in 32:64, got '1-2'; name the first model and the one after the last; dr",
        ),
        ("--only 0:2 --dry-run", "only: expected A:B as in 32:64, got --dry-run beside it; name the first model and"),
        ("--only 6:9", "only: expected models in 0:8, got 6:9; count from 0; the second number is the first not to tr"),
        ("--collect", "collect: expected no training beside it, got --recipe; drop --recipe, or --collect"),
    ],
)
def test_the_words_about_slices(giveaway, mine, options, words):
    audit(from_sklearn(LogisticRegression().fit(mine.X, mine.Y), mine.X, mine.Y), scores=["loss"]).save("audit")
    train = ("--recipe", "logistic", "--data", "mine:plain", "--models", 8)
    code, _, error = giveaway("validate", "audit", *train, *options.split())
    assert code == 2
    assert error.splitlines()[-1].startswith(f"giveaway: {words}")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["xgboost", "lightgbm"])
def test_boosted_trees_are_cloned_by_workers(done, mine, package):
    library = pytest.importorskip(package)
    kind = library.XGBClassifier if package == "xgboost" else library.LGBMClassifier
    estimator = kind(n_estimators=5, n_jobs=1, **({"verbose": -1} if package == "lightgbm" else {}))
    options = ("--data", "mine:plain", "--allow-pickle", "--out", "audit")
    done("audit", "--estimator", save(estimator.fit(*mine.plain())), *options)
    done("validate", "audit", "--models", 8, "--workers", 2, "--allow-pickle")
    signals = Signals.load("audit/signals")
    for number in (0, 7):
        half = signals.members[number]
        fitted = estimator.set_params(random_state=model_seed(number, seed=0) // 2).fit(mine.X[half], mine.Y[half])
        said = signals.distribution()[number, :, 0]
        np.testing.assert_allclose(said, fitted.predict_proba(mine.X), rtol=1e-5)
