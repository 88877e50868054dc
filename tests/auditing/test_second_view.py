"""What the other records say, from end to end: against refits by brute force, by hand, and word by word."""

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm, rankdata
from sklearn.compose import make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch.utils.data import TensorDataset

import giveaway as ga
from giveaway import Head, audit, text
from giveaway.auditing.store import fingerprint
from giveaway.curvature.optimum import refit as refit_head
from giveaway.records import ScoreTable
from giveaway.reporting.words import notes
from giveaway.scores.predicted import calibrated_phi, phi_of, predict_from_views
from giveaway.views import others
from giveaway.views.model import targets_of_head
from giveaway.views.others import OthersView
from tests.conftest import KINDS, made_arrays, made_head, refused
from tests.views.test_others import PEOPLE, N, black_box, compared, records, texts

# ------------------------------------------------------------------------------------------------ end to end


def normal_scores(values: np.ndarray) -> np.ndarray:
    return norm.ppf((rankdata(values) - 0.5) / len(values))


def check_fusion(table: ScoreTable, beside: str) -> None:
    """fused follows from the columns of its own table and the metadata."""
    view = table.meta.view
    own = normal_scores(table[beside])
    m, g = view.memorized, view.held_by_memory
    assert view.head_weight == pytest.approx((1 - g) * (m**2 + (1 - m) ** 2), abs=4e-6)
    expected = own if view.head_is_exact else normal_scores(table["left_out"]) + view.head_weight * own
    np.testing.assert_allclose(table["fused"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("groups", "model"), [(None, Ridge(2.0)), (PEOPLE, make_pipeline(StandardScaler(), Ridge(2.0)))]
)
def test_of_a_linear_model_fused_ranks_as_newton_does(groups, model):
    x = records()
    y = np.random.default_rng(2).normal(size=N) + x[:, 0]
    table = audit(ga.from_sklearn(model.fit(x, y), x, y, groups=groups))
    assert table.ranking() == "fused"
    np.testing.assert_array_equal(table.order("fused"), table.order("newton"))
    assert table.meta.view.head_is_exact
    check_fusion(table, "newton")
    words = "nothing was learned before the head, so fused ranks as newton does."
    assert any(note.endswith(words) for note in notes(table))


@pytest.mark.parametrize("groups", [None, PEOPLE])
def test_of_a_probe_said_to_be_frozen_fused_ranks_as_newton_does(groups):
    """Features that no linear function of the inputs gives, and inputs that make another view."""
    x = records()
    z = np.tanh((x - x.mean(0)) / x.std(0) @ np.random.default_rng(3).normal(size=(3, 6)))
    y = (np.random.default_rng(2).random(N) < 0.5).astype(int)
    fitted = LogisticRegression(C=2.0).fit(z, y)
    plain = replace(ga.from_sklearn(fitted, z, y, groups=groups), inputs=x)
    frozen = replace(plain, frozen=True)
    for inputs in (x, texts()):
        unsaid, said = (audit(replace(head, inputs=inputs)) for head in (plain, frozen))
        assert not unsaid.meta.view.head_is_exact
        assert (unsaid.order("fused") != unsaid.order("newton")).any()
        assert said.meta.view.head_is_exact
        assert said.meta.frozen
        np.testing.assert_array_equal(said.order("fused"), said.order("newton"))
        np.testing.assert_array_equal(said["newton"], unsaid["newton"])
        check_fusion(said, "newton")
        assert any("these records (frozen), so fused ranks as newton does" in note for note in notes(said))
        assert not any("frozen" in note for note in notes(unsaid))
    assert fingerprint(plain) != fingerprint(frozen)


@pytest.fixture(scope="module")
def network() -> Head:
    """A small network that learns its 120 records, 6 of them mislabelled, by heart."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    y[:6] = 1 - y[:6]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return ga.from_torch(model, TensorDataset(x, y), l2=0.1)


def test_a_network_and_its_mislabelled_records(network):
    table = audit(network)
    check_fusion(table, "newton")
    assert (table.meta.view.kind, table.meta.view.head_is_exact) == ("tabular", False)
    assert table.meta.view.memorized > 0.5
    wrong = np.abs(network.inputs[:6, 0].numpy()) > 0.3  # those near the border are nobody's mistake
    assert wrong.sum() >= 3
    assert (table.rank()[:6][wrong] <= 25).all()
    assert (table["others_say"][:6][wrong] != table["class"][:6][wrong]).all()
    assert (table["others_say"] == table["class"]).mean() > 0.8
    refitted = audit(network, optimum="refit")  # the refitted model is looked at
    np.testing.assert_allclose(refitted.meta.view.left_out_error, table.meta.view.left_out_error)
    assert refitted.meta.view.memorized != table.meta.view.memorized
    check_fusion(refitted, "newton")


@pytest.mark.parametrize("by", ["record", "person"])
def test_a_black_box_of_classes(by):
    x = records()
    y = np.where(x[:, 0] > 5.0, "yes", "no")
    model = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(x, y)
    table = audit(ga.from_sklearn(model, x, y, groups=PEOPLE if by == "person" else None))
    assert table.columns == ("loss", "entropy", "margin", "left_out", "fused")
    check_fusion(table, "loss")
    assert {getattr(table.meta, name) for name in ("optimum", "curvature", "repeats", "newton_capped")} == {None}
    assert "A black box: nothing inside the model was used." in notes(table)
    if by == "record":
        probability = model.predict_proba(x)[np.arange(N), (y == "yes").astype(int)]
        np.testing.assert_allclose(table["loss"], -np.log(probability), rtol=1e-9)


def test_a_black_box_of_values_and_one_without_inputs():
    x = records()
    y = x[:, 0] * 3
    table = audit(ga.from_sklearn(GradientBoostingRegressor(n_estimators=5, random_state=0).fit(x, y), x, y))
    assert table.columns == ("loss", "left_out", "fused")
    check_fusion(table, "loss")
    np.testing.assert_array_equal(table["target"], y)
    table = audit(black_box("classes"))
    assert table.columns == ("loss", "entropy", "margin")
    assert table.ranking() == "loss"
    assert notes(table)[0] == "No fused score: the records themselves were not given (inputs)."


def test_texts():
    y = np.arange(N) % 2
    said = [f"{text} {'good' if label else 'bad'}" for text, label in zip(texts(), y, strict=True)]
    arrays = made_arrays("two_classes") | {"targets": y}
    for inputs in (said, tuple(said), np.array(said), np.array(said, dtype=object), pd.Series(said)):
        table = audit(replace(Head(**arrays), inputs=inputs), scores=["left_out", "fused"])
        assert (table.meta.view.kind, table.meta.view.method) == ("text", "exact")
    assert table.meta.view.left_out_error < 0.5
    assert (table["others_say"] == y).mean() > 0.9


@pytest.mark.parametrize("channels", [1, 3])
def test_images(channels):
    rng = np.random.default_rng(0)
    y = np.arange(N) % 2
    images = rng.integers(0, 60, (N, channels, 8, 8)) + 150 * y[:, None, None, None] * (np.arange(8) < 4)
    table = audit(replace(Head(**made_arrays("two_classes") | {"targets": y}), inputs=images.astype(np.uint8)))
    assert table.meta.view.kind == "images"
    assert (table["others_say"] == y).mean() > 0.9
    check_fusion(table, "newton")


def test_a_table_of_numbers_and_words():
    rng = np.random.default_rng(0)
    town = np.where(rng.random(N) > 0.5, "x", "y")
    frame = pd.DataFrame({"age": rng.normal(size=N), "town": town, "pay": rng.normal(size=N)})
    y = 5.0 * (town == "x") + frame["age"].to_numpy()
    encode = make_column_transformer((OneHotEncoder(), ["town"]), (StandardScaler(), ["age", "pay"]))
    table = audit(ga.from_sklearn(make_pipeline(encode, Ridge(0.1)).fit(frame, y), frame, y))
    view = table.meta.view
    assert (view.kind, view.columns, view.categorical, view.head_is_exact) == ("tabular", 3, 1, True)
    assert view.left_out_error < 0.3
    words = audit(replace(made_head("classes"), inputs=frame.to_numpy().astype(str)), scores=["fused"])
    assert words.meta.view.categorical == 1
    gaps = frame.assign(age=np.where(np.arange(N) == 3, np.nan, frame["age"]))
    assert np.isfinite(audit(replace(made_head("classes"), inputs=gaps))["fused"]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["record", "person"])
def test_every_kind_of_head(kind, by):
    groups = PEOPLE if by == "person" else None
    for head, beside in ((made_head(kind, groups=groups, l2=0.5), "newton"), (black_box(kind, groups=groups), "loss")):
        table = audit(replace(head, inputs=records()))
        check_fusion(table, beside)
        assert table.columns[-2:] == ("left_out", "fused")
        assert table.ranking() == "fused"


# ------------------------------------------------------------------------------------------------ what is told of a row


def line(n: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Records at 0, 1, … on a line; the first third has class 0, the rest class 1, and row 25 the wrong one."""
    x, y = np.arange(n, dtype=float)[:, None], (np.arange(n) >= n // 3).astype(int)
    y[25] = 0
    return x, y


@pytest.mark.parametrize("outputs", [1, 2])
def test_others_say_and_nearest_on_a_line(outputs):
    x, y = line()
    logits = np.zeros((30, outputs))
    ids = np.array([f"r{i}" for i in range(30)])
    table = audit(Head(x, logits, y, "cross_entropy", inputs=x, ids=ids))
    assert table["others_say"][25] == 1
    expected = y.copy()
    expected[25] = 1
    wrong = np.flatnonzero(table["others_say"] != expected)
    assert set(wrong) <= {8, 9, 10, 11}  # at the border the others may be mistaken
    assert set(table["nearest"][4].split(", ")) <= {"r2", "r3", "r5", "r6"}
    assert {"r3", "r5"} < set(table["nearest"][4].split(", "))
    assert table["nearest"][0] == "r1, r2, r3"
    assert table["nearest"][29] == "r28, r27, r26"


def test_values_have_their_target_beside_what_the_others_say():
    x = np.linspace(0.0, 1.0, 40)[:, None]
    y = 3.0 * x[:, 0] + 100.0
    y[20] += 50.0
    table = audit(Head(x, y, y, "squared", inputs=x))
    np.testing.assert_array_equal(table["target"], y)
    assert table["others_say"][20] == pytest.approx(101.5, abs=4.0)
    np.testing.assert_allclose(np.delete(table["others_say"] - y, 20), 0.0, atol=12.0)


@pytest.mark.parametrize("kind", ["squared_many", "soft_labels", "multi_label"])
def test_of_several_outputs_only_the_nearest_are_told(kind):
    table = audit(replace(made_head(kind), inputs=records()))
    assert "nearest" in table.attributes
    assert not {"others_say", "target"} & table.attributes.keys()
    table = audit(replace(made_head("classes", groups=PEOPLE), inputs=records()))
    assert set(table.attributes) == {"records", "residual", "newton_capped", "carried_by", "carries"}


def test_the_nearest_are_looked_up_for_the_most_exposed(monkeypatch):
    monkeypatch.setattr(others, "EXPLAINED", 7)
    table = audit(replace(made_head("classes"), inputs=records()))
    told = np.flatnonzero(table["nearest"] != "")
    assert sorted(told) == sorted(table.order()[:7])
    by_left_out = audit(replace(made_head("classes"), inputs=records()), scores=["left_out"])
    assert sorted(np.flatnonzero(by_left_out["nearest"] != "")) == sorted(by_left_out.order()[:7])
    other_order = audit(replace(made_head("classes"), inputs=records()), scores=["fused", "left_out"])
    assert other_order["nearest"].tolist() == table["nearest"].tolist()


# ------------------------------------------------------------------------------------------------ when, and when not


def test_no_view_is_computed_unless_it_is_asked_for(monkeypatch):
    def never(*_, **__):
        raise AssertionError("the view was computed")

    monkeypatch.setattr(others, "features_of", never)
    head = made_head("classes", inputs=records())
    table = audit(head, scores=["newton", "loss", "lood_kl"])
    assert (table.meta.view, table.meta.no_view) == (None, None)
    assert audit(replace(head, inputs=records()), scores="newton").columns == ("newton",)
    with pytest.raises(AssertionError, match="the view was computed"):
        audit(head, scores=["fused"])


def test_mistakes_are_found_before_the_view_is_looked_at(monkeypatch):
    monkeypatch.setattr(OthersView, "compare", None)
    refused("did you mean newton", audit, made_head("classes", inputs=records()), scores=["fused", "newtom"])


UNSEEN = {
    "shape": (
        np.zeros((N, 2, 3, 4, 5)),
        "inputs: expected images (n, c, h, w), strings, or a table (n, columns), got shape (60, 2, 3, 4, 5) of float64",
    ),
    "constant": (np.ones((N, 2)), "matrix: expected at least one column that varies, got constant columns only"),
    "channels": (np.zeros((N, 9, 9, 3)), "images: expected channels before height and width, got shape (60, 9, 9, 3)"),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_inputs_that_make_no_view_are_noted_and_refused_where_it_is_named(case):
    inputs, words = UNSEEN[case]
    head = made_head("classes", inputs=inputs)
    table = audit(head)
    assert table.ranking() == "newton"
    start = f"No fused score: the inputs that the model was given make no view ({words}"
    assert table.meta.no_view.startswith(start)
    assert table.meta.no_view.endswith(").")
    assert refused("expected", audit, head, scores=["fused"]).startswith(words)


@pytest.mark.parametrize("name", ["fused", "left_out"])
def test_asking_for_it_by_name_without_inputs_is_refused(name):
    for head in (made_head("classes"), black_box("classes")):
        message = refused("expected", audit, head, scores=[name])
        words = f"inputs beside a score that looks at the records, got {name} alone; pass inputs to the head"
        assert message == f"scores: expected {words}"


# ------------------------------------------------------------------------------------------------ predicted success


def test_predictions_come_from_both_views_where_features_were_learned():
    head = made_head("classes")
    table = audit(replace(head, inputs=records()), scores=["fused", "predicted_success", "predicted_auc"])
    assert table.meta.predicted_by == "both views"
    view, _ = compared(made_head("classes", inputs=records()))
    labels = head.targets.numpy()
    left_out = (targets_of_head(head) - view._left_out.error).numpy()
    model = phi_of(head.outputs.double().numpy(), labels)
    expected = predict_from_views(model, calibrated_phi(left_out, labels), table["fused"])
    np.testing.assert_allclose(table["predicted_success"], expected.success, rtol=1e-12)
    np.testing.assert_allclose(table["predicted_auc"], expected.curve.auc(), rtol=1e-12)
    assert "predicted_* columns are estimates from both views: not measured on an attack" in " ".join(notes(table))
    alone = audit(replace(head, inputs=records()), scores="predicted_success")
    assert alone.columns == ("predicted_success",)
    np.testing.assert_array_equal(alone["predicted_success"], table["predicted_success"])


@pytest.mark.parametrize("kind", ["classes", "squared"])
def test_without_a_view_that_tells_the_head_s_theory_predicts(kind):
    plain = audit(made_head(kind), scores=["newton", "predicted_success"])
    assert plain.meta.predicted_by == "theory of the head"
    given = records() if kind == "squared" else np.asarray(made_arrays(kind)["features"])  # values; a linear head
    table = audit(replace(made_head(kind), inputs=given), scores=["newton", "predicted_success"])
    assert table.meta.predicted_by == "theory of the head"
    np.testing.assert_array_equal(table["predicted_success"], plain["predicted_success"])
    assert "in which only the last layer varies" in " ".join(notes(table))


def test_the_second_view_and_the_process_tell_what_they_do(monkeypatch, capsys):
    images = replace(made_head("classes"), inputs=np.random.default_rng(0).integers(0, 255, (N, 1, 8, 8), np.uint8))
    audit(images, progress=True)
    assert "second view" not in capsys.readouterr().err  # within ten seconds
    monkeypatch.setattr(text, "SECONDS_BETWEEN_LINES", 0.0)
    audit(images, scores=["default", "lood_kl"], progress=True)
    stages = [line.partition(": ") for line in capsys.readouterr().err.splitlines()]
    told = {name: share for name, _, share in stages}
    names = ("features", "choosing the noise", "kernel", "factoring the kernel", "nearest records")
    assert [name for name in told if "second view" in name] == [f"second view, {name}" for name in names]
    assert (told["second view, kernel"], told["second view, factoring the kernel"]) == ("100 %", "50 %")
    assert "Gaussian process, factoring the kernel" in told
    audit(images)
    assert capsys.readouterr().err == ""  # nobody watches
    monkeypatch.setitem(sys.modules, "ipykernel", object())
    audit(images)  # too quick for its bar
    with text.stages_of(enabled=None) as on_stage:
        assert on_stage is not text.quiet


def test_after_a_refit_success_is_predicted_from_the_refitted_outputs():
    head = made_head("classes", l2=0.5)
    names = ["fused", "predicted_success"]
    refitted = audit(replace(head, inputs=records()), scores=names, optimum="refit")
    expected = audit(replace(refit_head(head), inputs=records()), scores=names)
    np.testing.assert_allclose(refitted["predicted_success"], expected["predicted_success"], rtol=1e-9)
    assert (
        np.abs(
            refitted["predicted_success"] - audit(replace(head, inputs=records()), scores=names)["predicted_success"]
        ).max()
        > 1e-3
    )


def test_no_prediction_where_the_model_was_held_back():
    """A network of next to no training: what sets it apart from the others is no memory."""
    head = made_head("classes", inputs=records())
    idle = replace(head, outputs=0.01 * head.outputs)
    table = audit(idle, scores=["default", *["predicted_success"]])
    assert table.meta.view.memorized < 0.1
    assert "predicted_success" not in table.columns
    assert table.meta.predicted_by is None
    assert table.meta.no_prediction in notes(table)
    refused(
        r"scores: No predicted_\* column: the model hardly knows its records better",
        audit,
        idle,
        scores=["predicted_success"],
    )
    assert audit(head, scores=["default", *["predicted_success"]]).meta.no_prediction is None
