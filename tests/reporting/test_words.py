"""What the pages say beside their answers: what it is based on, and the notes."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier

import giveaway as ga
from giveaway import Head, audit
from giveaway.records import ScoreTable
from giveaway.records.meta import FusionReport, Meta, TraceReport
from giveaway.reporting.words import about_depths, access_of, check_access, found_elsewhere, kind_of, notes, standing
from tests.conftest import made_arrays, made_head, refused
from tests.reporting.test_answers import measured

X = np.random.default_rng(0).normal(size=(120, 4)) * [1.0, 100.0, 0.1, 5.0]
Y = (X[:, 0] + 0.01 * X[:, 1] > 0).astype(int)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (
            MLPClassifier((8,), max_iter=50, random_state=0),
            "networks on six tables, without the losses of training), the 5 % ranked highest held 50",
        ),
        (RandomForestClassifier(20, random_state=0), "forests on five tables and on sentences), the 5 % ranked"),
        (Ridge(), "a ridge regression on California Housing), the 5 % ranked highest held 17 %"),
        (LogisticRegression(max_iter=3), ""),
        (HistGradientBoostingClassifier(max_iter=5), ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_benchmarks_of_the_audited_kind_stand_beside_it(model, found):
    """Two image sets were once quoted under a ridge regression, and a stopped logistic regression called a network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = audit(ga.from_sklearn(model.fit(X, Y), X, Y))
    said = found_elsewhere(table)
    assert found in said
    assert bool(said) is bool(found)
    assert "image" not in said
    assert found_elsewhere(ScoreTable({"margin": [0.0, 1.0]}, [0, 1])) == ""
    told = " ".join([*notes(table), *dict(standing(table, None, "probabilities"))["Assumed"]])
    assert ("usual for networks" in told) is isinstance(model, MLPClassifier)
    assert ("not at the optimum" in told) is isinstance(model, MLPClassifier | LogisticRegression)
    assert "as it was given" not in told


def test_a_network_of_torch_is_one_by_whatever_name():
    """Its class is often called Sequential, which once had no benchmark and a penalty "as the estimator has it"."""
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).double()
    records = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    table = audit(ga.from_torch(network, records, l2=0.5))
    assert (table.meta.model, kind_of(table.meta)) == ("Sequential", "network")
    assert "networks on six tables" in found_elsewhere(table)
    assert any("as it was given" in words for words in dict(standing(table, None, "labels"))["Assumed"])


def test_networks_on_images_have_benchmarks_of_their_own():
    images = np.random.default_rng(0).random((60, 1, 8, 8))
    table = audit(made_head("classes", inputs=images, l2=0.5))
    words = "a ResNet-18 that memorizes little, without the losses of training), the 5 % ranked highest held 81, 96 and"
    assert words in found_elsewhere(table)
    assumed = dict(standing(table, None, "labels"))["Assumed"]
    assert "An L2 penalty of 0.5 in summed-loss units, as it was given." in assumed


def test_access_is_the_audit_s():
    table = audit(made_head("classes"))
    assert access_of(table) == "probabilities"
    told = ScoreTable(table.scores, table.ids, {"access": "weights"})
    assert access_of(told) == "weights"
    refused("access: expected a known name, got 'gradients'; choose from labels", check_access, "gradients", None)
    words = "access: expected probabilities or weights for a regression, got labels"
    refused(words, check_access, "labels", "squared")


def test_measured_predicted_and_assumed_are_kept_apart():
    table = audit(made_head("classes", l2=0.5), scores=["newton", "predicted_success"])
    found = dict(standing(table, None, "probabilities"))
    assert list(found) == ["Measured", "Predicted, not measured", "Assumed"]
    assert found["Measured"][0].startswith("No attack.")
    assert any("far too low for networks" in words for words in found["Predicted, not measured"])
    assert any("An L2 penalty of 0.5" in words for words in found["Assumed"])
    found = dict(standing(table, measured(), "probabilities"))
    assert "LiRA over 64 shadow models: AUC 0.71 (0.69 to 0.73)." in found["Measured"]
    assert not any("LiRA" in words for words in found["Predicted, not measured"])
    assert any(words.startswith("The count above, which is a lower bound: with") for words in found["Measured"])
    few = measured()
    few.stated["at_least_exposed"] = few.stated["at_least_exposed"] | {"records": 0}
    counted = dict(standing(table, few, "probabilities"))["Measured"][1]
    assert counted.startswith("A count, which came to no number that can be stated: with few models, exposed records")
    said = " ".join(notes(table))
    assert "predicted_* columns are estimates" in said
    assert "not measured" in said
    assert "predicted" not in " ".join(notes(audit(made_head("classes"))))


def note_about(table: ScoreTable, word: str) -> list[str]:
    return [note for note in notes(table) if word in note]


def test_notes_on_the_optimum():
    far = made_head("classes", l2=0.5)
    assert "from its optimum: its weights were not given" in note_about(audit(far, scores=["newton"]), "optimum")[0]
    moved = far.with_parameters(torch.ones(5, 5, dtype=torch.float64).tril())
    (note,) = note_about(audit(moved), "optimum")
    assert "not at the optimum" in note
    assert "scores assume that it is. To see what this changes, audit with --config optimum=refit." in note
    assert "l2" not in note
    (note,) = note_about(audit(replace(moved, l2=1e9)), "optimum")
    assert "; the penalty pulls harder than all records together: check that l2 is that of the training: " in note
    (note,) = note_about(audit(moved, optimum="corrected"), "optimum")
    assert "scores assume that it is" not in note
    assert "newton and loo_gap take it into account" in note
    assert note_about(audit(moved, optimum="refit"), "optimum") == []


def test_notes_on_repeats_caps_rank_and_l2():
    arrays = made_arrays("classes")
    lone = np.zeros((60, 2))
    lone[11] = 1.0
    features = np.column_stack([arrays["features"], lone])
    features[[20, 21]] = features[22]
    arrays["targets"][[20, 21]] = arrays["targets"][22]
    table = audit(Head(**arrays | {"features": features}))
    assert "3 records have an exact copy" in note_about(table, "copy")[0]
    assert "rank too low: pass groups" in note_about(table, "copy")[0]
    assert "Rows alone in some feature direction: 1." in note_about(table, "alone")[0]
    assert len(note_about(table, "singular; its pseudo-inverse was used")) == 1
    penalized = audit(Head(**made_arrays("classes"), l2=2.0))
    assert note_about(penalized, "singular") == []
    assert note_about(penalized, "copy") == []


def test_one_singular_label_among_several_is_said():
    arrays = made_arrays("multi_label")
    arrays["outputs"][2:, 0] = 1e4  # two records alone have curvature there
    table = audit(Head(**arrays))
    assert table.meta.curvature.inverse == "cholesky/eigenvectors"
    assert len(note_about(table, "singular")) == 1


def viewed(kind: str = "classes", **options) -> ScoreTable:
    head = made_head(kind, l2=0.5, **options)
    return audit(replace(head, inputs=np.maximum(head.features.numpy(), 0.0)))


def test_notes_on_the_view():
    table = viewed()
    view = table.meta.view
    *cautions, said = notes(table)[: 1 + (view.left_out_error >= 1)]
    assert said == (
        f"The other records predict a left-out one with {100 * view.left_out_error:.2g} % of the squared error of a "
        f"constant (columns of the table, rbf kernel, {view.method}); training removed "
        f"{100 * view.memorized:.2g} % of that error, a share of error and not of records."
    )
    weights = f"with these weights: the other records 1, the model itself {view.head_weight:.2g}."
    assert f"fused adds up what each view says, by rank, {weights}" in notes(table)
    assert all("no better than a constant does" in words for words in cautions)
    head = made_head("classes", l2=0.5)
    exact = notes(audit(replace(head, inputs=head.features)))
    assert exact[0].endswith("% of that error, a share of error and not of records.")
    assert exact[1] == (
        "The features are a linear function of the inputs: nothing was learned before the head, "
        "so fused ranks as newton does."
    )
    assert notes(audit(head))[0] == "No fused score: the records themselves were not given (inputs)."
    assert not any("fused" in note for note in notes(audit(head, scores=["newton"])))


def test_notes_on_every_view():
    weights = {"left_out": 0.2, "head": 0.05, "relatives": 0.0, "out_of_bag": 1.0, "trace": 0.64}
    fusion = FusionReport(weights=weights, held_out_error=0.1234, trace_share_of_its_own=0.8, without_out_of_bag=3)
    trace = TraceReport(epochs=12, proof="targets and losses", never_seen=4, band=[], rows=[], losses=[])
    meta = Meta(fusion=fusion, trace=trace, loss="cross_entropy")
    table = ScoreTable({"fused": np.arange(20.0)}, np.arange(20), meta)
    said = [
        "fused adds up what each view says, by rank, with these weights: trees that never saw it 1, the losses of "
        "training 0.64, the other records 0.2, the model itself 0.05, relatives of each record 0.",
        "The losses of training are those of 12 epochs, matched to these records by targets and losses. The share of "
        "them that the finished model's loss does not repeat is 0.8. Records that never came up: 4; they stand in the "
        "middle of that view.",
        "Records held out have a mean squared error of 0.12: with them, what the model generalizes is not taken for "
        "memory.",
        "Every tree saw 3 of the records: trees say nothing of them.",
    ]
    assert notes(table) == said
    shared = " ".join(notes(table, shared=True))
    assert "never came up: fewer than 10;" in shared
    assert "Every tree saw fewer than 10 of the records" in shared
    assert not any("adds up" in note for note in notes(ScoreTable({"newton": [1.0]}, [0], meta)))


DONE = {"curvature": "ggn", "damping": 2.0, "probes": 64, "sketch_error": {"newton": 0.18}}


def said(**more) -> str:
    meta = Meta.from_json({"depths": {"all": {**DONE, **more}}})
    (line,) = about_depths(SimpleNamespace(meta=meta, attributes={}), str)
    return line


def test_what_solves_leave_is_said_where_it_matters_beside_chance():
    assert said(solve_error=0.0) == said(solve_error=0.059) == said()
    assert said().endswith("damping 2, estimates from 64 random probes, off by about 18 % each.")
    words = "% each and by the solver's error, at most 25 % of the projections whose squares the scores are, over all"
    assert words in said(solve_error=0.25)
    assert words + " records together; 3 solves did not reach their tolerance" in said(solve_error=0.25, unsolved=3)
    unknown = "by an unknown amount: at best the order of the records is meaningful"
    assert unknown in said(solve_error=1.0)
    assert unknown not in said(solve_error=0.99)
