"""Remedies as they are trained and measured: against planted effects, naive loops and LiRA itself."""

import importlib
import json
import math
from dataclasses import replace

import joblib
import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression, Ridge

import giveaway as ga
from giveaway.attacks import Retraining, lira
from giveaway.auditing.store import AuditFolder, purge
from giveaway.findings import mitigation
from giveaway.findings.mitigation import Trials, mitigate
from giveaway.records import ScoreTable, Signals
from giveaway.reporting.pages import mitigation_pages
from tests.conftest import made_head, refused

N = 500
HARD = np.random.default_rng(1).normal(size=N)  # how hard each record is, as every model finds it
LABELS = np.arange(N) % 2
TABLE = ScoreTable({"newton": -HARD, "influence": -HARD + 10}, np.arange(N), attributes={"class": LABELS})


def planted(rows, seed, l2=0.01, calls=None):
    """Log-odds that training raises by 2 on a record, or by less with a penalty, under noise of deviation 1."""
    rng = np.random.default_rng(seed)
    phi = 3 * HARD + rng.normal(size=N)
    phi[rows] += 2 * 0.01 / l2
    if calls is not None:
        calls.append((l2, np.asarray(rows)))
    return np.where(LABELS == 1, phi, -phi)


def auc(scores: np.ndarray, members: np.ndarray) -> float:
    ranks = rankdata(scores)[members]
    return float((ranks.sum() - len(ranks) * (len(ranks) + 1) / 2) / (len(ranks) * (~members).sum()))


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    training = Retraining(planted, y=LABELS)
    trials = Trials(training, TABLE, tmp_path_factory.mktemp("work") / "remedies", models=8)
    return trials, trials.run()


def test_the_planted_effect_is_what_is_measured(result):
    """With one reference spread over 3 or 4 models, two normals 2 apart are told with Φ(2/√(1 + 1 + 2/7))."""
    _, found = result
    by_label = {outcome.remedy.label: outcome for outcome in found.outcomes}
    for label, gap in (("as it is", 2.0), ("l2=0.1", 0.2), ("l2=1", 0.02)):
        outcome = by_label[label]
        expected = 0.5 * (1 + math.erf(gap / math.sqrt(2 + 2 / 3.5) / math.sqrt(2)))
        assert outcome.attack.on_all.value == pytest.approx(expected, abs=0.025), label
        assert outcome.attack.on_most_exposed.value == pytest.approx(expected, abs=0.06), label
        assert outcome.attack.found.low <= outcome.attack.found.value <= outcome.attack.found.high
    assert by_label["as it is"].attack.found.value > 5 * by_label["l2=1"].attack.found.value


def test_figures_of_the_first_model_against_loops(result, tmp_path):
    trials = Trials(Retraining(planted, y=LABELS), TABLE, tmp_path / "remedies", models=0)
    found = trials.run()
    # the losses alone drown in how hard the records are
    assert found.outcomes[0].attack.on_all.value < result[1].outcomes[0].attack.on_all.value - 0.1
    for trial, outcome in zip(trials.trials, found.outcomes, strict=True):
        job = trial.plan.job(0)
        outputs = trial.training.train(job.indices, job.seed)
        phi = np.where(LABELS == 1, outputs, -outputs)
        trained = np.isin(np.arange(N), job.indices)
        assert outcome.accuracy.value == pytest.approx(np.mean([phi[i] > 0 for i in np.flatnonzero(trials.held)]))
        kept = trial.kept
        assert outcome.attack.on_all.value == pytest.approx(auc(phi[kept], trained[kept]))
        top = [row for row in TABLE.order() if kept[row]][: found.top]
        assert outcome.attack.on_most_exposed.value == pytest.approx(auc(phi[top], trained[top]))
    first = found.outcomes[0]
    assert (first.change.value, first.change.low, first.change.high) == (0, 0, 0)


def test_the_attack_is_lira_without_models_that_saw_the_record():
    rng = np.random.default_rng(3)
    members = np.stack([rng.permutation(60) < 30 for _ in range(3)])
    members = np.concatenate([members, ~members])
    signals = Signals(rng.normal(size=(6, 60)) + members, members, "phi")
    scores = mitigation._attack(signals).scores
    for model in range(6):
        others = np.delete(np.arange(6), model)
        for record in range(60):
            outside = [signals.values[m, record, 0] for m in others if not members[m, record]]
            assert scores[model, record] == pytest.approx(signals.values[model, record, 0] - np.mean(outside))
        options = {"mode": "offline_onesided", "variance": "global_residual", "centre": "mean"}
        known = lira(signals.of_models(slice(model, model + 1)), signals.of_models(others), **options)
        np.testing.assert_array_equal(np.argsort(known.scores[0]), np.argsort(scores[model]))


def test_who_is_trained_on_and_held_out(result):
    trials, found = result
    assert found.held_out == N // 5
    order = TABLE.order()
    assert trials.held[order].reshape(-1, 5).sum(1).tolist() == [1] * (N // 5)  # one of five neighbours in the ranking
    for trial in trials.trials:
        gone = order[: round(trial.remedy.drop * N)]
        assert trial.kept.sum() == N - len(gone)
        for number in range(trial.plan.models):
            job = trial.plan.job(number)
            assert not np.isin(gone, job.indices).any()
            assert job.seed == trials.trials[0].plan.job(number).seed
        assert not trials.held[trial.plan.job(0).indices].any()
    left_out = next(outcome for outcome in found.outcomes if outcome.remedy.drop == 0.05)
    assert left_out.trained_on == int((~trials.held & ~np.isin(np.arange(N), order[:25])).sum())
    assert left_out.before == left_out.attack.on_most_exposed  # planted records do not feel one another
    words = f"Without the 5 % most exposed, the attack on the next 100 has an AUC of {left_out.before.value:.2f}"
    assert any(statement.startswith(words) for statement in found.statements())


def test_weights_are_those_of_the_rows(tmp_path):
    seen = {}

    def train(rows, seed, sample_weight=None):
        seen[sample_weight is not None] = (rows, sample_weight)
        return planted(rows, seed)

    mitigate(Retraining(train, y=LABELS), TABLE, folder=tmp_path / "work", models=0)
    rows, weight = seen[True]
    np.testing.assert_array_equal(weight, mitigation.weights(TABLE)[rows])
    assert weight.min() < 1


def test_what_is_said_of_the_models(result, tmp_path):
    trials, found = result
    assert {trial.plan.job(number).members.sum() for trial in trials.trials[:1] for number in range(1, 9)} == {N // 2}
    said = found.statements()
    assert said[0] == (
        "Accuracy is of one model of each remedy, trained on the same 400 of 500 records, or on fewer where some were "
        "left out, and asked about the other 100."
    )
    assert said[1].startswith("The attack is on 8 other models of each remedy, each trained on half of the records: ")
    assert said[2].startswith("Differences within the intervals may be noise, and other trainings would differ too. ")
    quick = replace(found, models=0).statements()
    assert quick[1].startswith("The attack is on that model: it guesses by the losses alone ")
    assert not any("person" in words for words in said)
    assert "so that a person's records may be on both sides" in " ".join(replace(found, people=True).statements())


def test_a_table_of_people_is_refused(tmp_path):
    """The people of one record each, named against the order of their records."""
    head = made_head("classes", n=120, groups=np.array([f"p{i:03d}" for i in range(120)][::-1]))
    training = Retraining(planted, y=head.targets.numpy())
    words = "table: expected rows that are records, got people; audit by record"
    for call in (mitigate, ga.validate):
        refused(words, call, training, ga.audit(head, scores=["loss"]), folder=tmp_path / "work")


def test_an_interrupted_run_goes_on(tmp_path):
    calls: list = []

    def stopped(rows, seed, l2=0.01):
        if len(calls) == 3:
            raise KeyboardInterrupt
        return planted(rows, seed, l2, calls)

    def going_on(rows, seed, l2=0.01):
        return planted(rows, seed, l2, calls)

    told = {"y": LABELS, "code": "1", "backend": "threading"}
    with pytest.raises(KeyboardInterrupt):
        mitigate(Retraining(stopped, **told), TABLE, folder=tmp_path / "work", models=0)
    found = mitigate(Retraining(going_on, **told), TABLE, folder=tmp_path / "work", models=0)
    assert len(calls) == len(found.outcomes) == 5
    again = mitigate(Retraining(going_on, **told), TABLE, folder=tmp_path / "work", models=0)
    assert len(calls) == 5
    assert again.to_json() == found.to_json()
    mitigate(Retraining(going_on, **told), TABLE, folder=tmp_path / "work", models=4)
    assert len(calls) == 25  # the first of each stays


def test_a_remedy_that_fails_is_told_and_the_others_go_on(tmp_path):
    def train(rows, seed, l2=0.01):
        if l2 > 0.5:
            raise RuntimeError("diverged")
        return planted(rows, seed, l2)

    found = mitigate(Retraining(train, y=LABELS), TABLE, folder=tmp_path / "work", models=0)
    assert [outcome.remedy.label for outcome in found.outcomes][:2] == ["as it is", "l2=0.1"]
    assert "RuntimeError at line" in found.missing["l2=1"]
    assert "diverged" not in found.missing["l2=1"]


def test_values_are_judged_by_r_squared(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    y = x @ [1.0, -2.0, 0.5, 0.0] + rng.normal(size=300)
    model = Ridge(alpha=1.0).fit(x, y)
    table = ga.audit(ga.from_sklearn(model, x, y))
    trials = Trials(Retraining(model, x, y), table, tmp_path / "work", models=0)
    found = trials.run()
    assert found.measure == "R²"
    held = trials.held
    for outcome, alpha in zip(found.outcomes[:3], (1.0, 10.0, 100.0), strict=True):
        fitted = Ridge(alpha=alpha).fit(x[~held], y[~held])
        assert outcome.accuracy.value == pytest.approx(fitted.score(x[held], y[held]))
    weighted = next(outcome for outcome in found.outcomes if outcome.remedy.weighted)
    own = mitigation.weights(table)[~held]
    fitted = Ridge(alpha=1.0).fit(x[~held], y[~held], sample_weight=own)
    assert weighted.accuracy.value == pytest.approx(fitted.score(x[held], y[held]))
    assert weighted.attack.on_all.value == pytest.approx(auc(-((fitted.predict(x) - y) ** 2), ~held))


def test_what_is_refused(tmp_path):
    training = Retraining(planted, y=LABELS)
    for models in (2, 5, -4):
        refused("models: expected 0, or an even number of at least 4", mitigate, training, TABLE, models=models)
    other = Retraining(planted, y=1 - LABELS)
    refused("y: expected the audit's own records", mitigate, other, TABLE, folder=tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_pages_say_it_all_and_name_nobody(result):
    _, found = result
    pages = mitigation_pages(found)
    told = json.loads(pages["mitigation.json"])
    assert told["schema"] == "giveaway.mitigation/1"
    assert [one["remedy"]["label"] for one in told["outcomes"]][:2] == ["as it is", "l2=0.1"]
    assert told["outcomes"][0]["attack"]["on_all"]["value"] == found.outcomes[0].attack.on_all.value
    html = pages["mitigation.html"]
    for words in ("l2=0.1", "Not tried", "epsilon= is no keyword of your function", "no proof of safety"):
        assert words in html
    assert pages["mitigation.png"].startswith(b"\x89PNG")


def test_the_command(giveaway, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "import numpy as np\nfrom sklearn.datasets import load_breast_cancer\n"
    (tmp_path / "users_cancer.py").write_text(
        code + "def data():\n    X, y = load_breast_cancer(return_X_y=True)\n    return (X - X.mean(0)) / X.std(0), y\n"
        "def train(rows, seed, l2=1.0):\n    from sklearn.linear_model import LogisticRegression\n"
        "    X, y = data()\n    return LogisticRegression(C=1 / l2).fit(X[rows], y[rows])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = importlib.import_module("users_cancer").data
    joblib.dump(LogisticRegression().fit(*data()), "model.joblib")
    source = (
        "audit",
        "--estimator",
        "model.joblib",
        "--data",
        "users_cancer:data",
        "--allow-pickle",
        "--out",
        "result",
    )
    assert giveaway(*source)[0] == 0
    code, out, err = giveaway("mitigate", "result", "--train", "users_cancer:train", "--models", "0", "--try", "l2=100")
    assert code == 0
    assert "To try: as it is, l2=100, without the 1 % most exposed" in err
    assert "l2=100" in out
    assert "Not tried: early stop: epochs= is no keyword of your function." in out
    assert "a person's records" not in out
    listed = AuditFolder("result").listed()
    assert {"mitigation.html", "mitigation.json", "mitigation.png"} <= listed.keys()
    assert (tmp_path / "result" / "remedies").stat().st_mode & 0o777 == 0o700
    code, out, err = giveaway("mitigate", "result", "--allow-pickle", "--try", "C")
    assert (code, out) == (2, "")
    assert "try: expected NAME=VALUES such as C=0.01,0.1, got 'C'" in err
    purge("result")
    assert not (tmp_path / "result").exists()
    (tmp_path / "people.txt").write_text("".join(f"{i // 2}\n" for i in range(len(data()[1]))))
    assert giveaway(*source, "--groups", "people.txt")[0] == 0
    code, out, _ = giveaway("mitigate", "result", "--allow-pickle", "--models", "0", "--try", "drop=0.1")
    assert code == 0
    assert "Records, not people, were left out and held out, so that a person's records may be on both sides" in out


def test_a_folder_without_an_estimator_asks_for_a_function(giveaway, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    features = {
        "features": rng.normal(size=(120, 2)),
        "outputs": rng.normal(size=(120, 2)),
        "targets": np.arange(120) % 2,
    }
    np.savez("features.npz", **features)
    assert giveaway("audit", "--features", "features.npz", "--out", "result")[0] == 0
    code, _, err = giveaway("mitigate", "result")
    assert code == 2
    assert "train: expected --train or --estimator, got none, and no estimator in the audit" in err
