"""Classes are called by their names in tables, pages, files and on the command line."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch.utils.data import Subset, TensorDataset

import giveaway as ga
from giveaway.attacks import Retraining
from giveaway.auditing.validate import checked_training
from giveaway.records import ScoreTable
from giveaway.reporting.pages import summary
from tests.conftest import refused

NAMES = ("<=50K", ">50K")


def people(n: int = 240, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    y = (X[:, 0] + 0.7 * rng.normal(size=n) > 0).astype(int)
    return X, y


def named_table():
    X, y = people()
    words = np.array(NAMES)[y]
    return ga.audit(ga.from_sklearn(LogisticRegression().fit(X, words), X, words)), X, y, words


def test_names_live_through_table_page_csv_and_json(tmp_path):
    table, _, _, words = named_table()
    assert table.meta.class_names == NAMES
    np.testing.assert_array_equal(table["class"], words)
    assert set(table["others_say"]) == set(NAMES)
    assert (table["others_say"] == table["class"]).mean() > 0.6
    top = table.top(240)
    says = dict(zip(table.ids.tolist(), table["others_say"].tolist(), strict=True))
    contradicted = [row for row in range(240) if says[top.ids[row]] != top["class"][row]]
    assert contradicted
    assert all(f"predict {says[top.ids[row]]}" in top["why"][row] for row in contradicted)
    ga.report(table, tmp_path / "audit")
    lines = (tmp_path / "audit" / "scores.csv").read_text().splitlines()
    assert lines[1].split(",")[lines[0].split(",").index("class")] == words[0]
    assert "&gt;50K" in (tmp_path / "audit" / "report.html").read_text()
    groups = summary(ScoreTable.load(tmp_path / "audit"))["spread_over"][0]["groups"]
    assert {group["name"] for group in groups} <= {*NAMES, "others together"}
    np.testing.assert_array_equal(ScoreTable.load(tmp_path / "audit")["class"], words)


def test_numbers_that_are_names_stay_numbers():
    X, y = people()
    for classes in ([3, 7], [-1, 1]):
        told = np.array(classes)[y]
        table = ga.audit(ga.from_sklearn(LogisticRegression().fit(X, told), X, told))
        np.testing.assert_array_equal(table["class"], told)
        assert table["class"].dtype.kind == table["others_say"].dtype.kind == "i"
        assert table.meta.class_names == tuple(map(str, classes))
    plain = ga.from_sklearn(LogisticRegression().fit(X, y), X, y)
    assert plain.class_names is None
    assert ga.audit(plain).meta.class_names is None


@pytest.mark.parametrize("classes", [NAMES, (-1, 1), (0, 1)])
def test_what_no_tree_can_say_is_empty(classes):
    X, y = people(120)
    told = np.array(classes)[y]
    head = ga.from_sklearn(RandomForestClassifier(4, random_state=0).fit(X, told), X, told)
    unknown = head.out_of_bag.isnan().all(1).numpy()
    assert 0 < unknown.sum() < 60
    table = ga.audit(head)
    assert (table["trees_say"][unknown] == "").all()
    said = np.array(classes).astype(str)[head.out_of_bag.nan_to_num().argmax(1).numpy()]
    np.testing.assert_array_equal(table["trees_say"][~unknown], said[~unknown])
    why = dict(zip(table.top(120).ids.tolist(), table.top(120)["why"], strict=True))
    assert not any("trees that" in why[row] for row in np.flatnonzero(unknown))


def test_names_of_files_and_of_torch(tmp_path, done):
    X, y = people()
    told = {"features": X, "outputs": X[:, :2], "targets": y}
    np.savez(tmp_path / "head.npz", class_names=np.array(NAMES), **told)
    head, notes = ga.extract.from_file(tmp_path / "head.npz")
    assert head.class_names == NAMES
    assert not notes
    head.save(tmp_path / "saved.npz")
    assert ga.Head.load(tmp_path / "saved.npz").class_names == NAMES
    assert ga.extract.from_file(tmp_path / "saved.npz")[0].class_names == NAMES
    top = json.loads(done("audit", "--features", tmp_path / "head.npz", "--out", tmp_path / "a", "--json"))["top"]
    assert [one["class"] for one in top] == [NAMES[y[one["row"]]] for one in top]

    model, data = torch.nn.Linear(4, 2), TensorDataset(torch.tensor(X).float(), torch.tensor(y))
    assert ga.from_torch(model, data).class_names is None
    assert ga.from_torch(model, data, class_names=NAMES).class_names == NAMES
    model.config = SimpleNamespace(id2label={0: "no", 1: "yes"})
    assert ga.from_torch(model, data).class_names == ("no", "yes")
    data.classes = ["negative", "positive"]
    assert ga.from_torch(model, Subset(data, range(100))).class_names == ("negative", "positive")
    data.classes = ["negative", "neutral", "positive"]
    assert ga.from_torch(model, data).class_names == ("no", "yes")
    data.features = {"text": None, "label": SimpleNamespace(names=["down", "up"])}
    assert ga.from_torch(model, data).class_names == ("down", "up")
    del data.features
    model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    assert ga.from_torch(model, data).class_names is None

    said = ("class_names: expected 2 names, one a class, got 3", "class_names: expected different names", "got values")
    refused(said[0], ga.Head, **told, loss="cross_entropy", class_names=["a", "b", "c"])
    refused(said[1], ga.Head, **told, loss="cross_entropy", class_names=["a", "a"])
    refused(said[1], ga.Head, **told, loss="cross_entropy", class_names=["a", ""])
    refused(said[2], ga.Head, X, X[:, :1], y.astype(float), "squared", class_names=["a", "b"])


def test_an_audit_with_names_is_held_against_labels():
    table, X, y, words = named_table()
    assert checked_training(Retraining(LogisticRegression(), X, words), table)[0].labels.tolist() == y.tolist()
    told, _ = checked_training(lambda rows, seed: None, table)
    np.testing.assert_array_equal(told.labels, y)
    refused("y: expected the audit's own records, got other classes in 240 of them", checked_training,
            Retraining(lambda rows, seed: None, X, 1 - y), table)  # fmt: skip
