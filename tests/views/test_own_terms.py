"""What sets records apart in the data's own terms: planted rarities are found, and every clause is recounted."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import giveaway as ga
from giveaway.records import ScoreTable
from giveaway.views.own_terms import Clause, TableTerms, own_terms

COUNTED = re.compile(
    r"no other record has (.+)|only (\d+) records have (.+)|"
    r"only (\d+) of the (\d+) records with (.+) (?:is|are) called (.+)"
)
LIKE = re.compile(
    r"no other record has (.+)|only \d+ records have (.+)|"
    r"only \d+ of the \d+ records with (.+) (?:is|are) called .+"
)


def people(n: int = 600, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n).astype(float),
            "hours": np.round(rng.normal(40, 8, n), 3),
            "children": rng.integers(0, 4, n),
            "work": rng.choice(["private", "state", "self"], n, p=[0.6, 0.2, 0.2]),
            "status": np.where(rng.random(n) < 0.5, "married", "single"),
            "region": pd.Categorical(rng.integers(1, 9, n)),
            "member": rng.random(n) < 0.5,
        }
    )
    frame.loc[rng.random(n) < 0.05, "hours"] = np.nan
    logit = (frame.age - 49) / 10 + np.where(frame.work == "self", 1.0, -0.5) + (frame.status == "married")
    return frame, np.where(rng.random(n) < 1 / (1 + np.exp(-logit)), ">50K", "<=50K")


def holds(frame: pd.DataFrame, condition: str) -> np.ndarray:
    """Which records meet a condition as it is worded, by another way than the one that made it."""
    if condition.startswith("no "):
        return frame[condition.removeprefix("no ")].isna().to_numpy()
    name, sign, value = re.fullmatch(r"(.+) ([=≤≥]) (.+)", condition).groups()
    column = frame[name]
    if sign == "=":
        numbers = pd.api.types.is_numeric_dtype(column) and column.dtype != bool
        return (column == float(value)).to_numpy() if numbers else (column.astype(str) == value).to_numpy()
    return (column <= float(value) if sign == "≤" else column >= float(value)).to_numpy()


def hidden(condition: str) -> str:
    """A condition without the value in it."""
    name = re.sub("^no | [=≤≥] .*", "", condition)
    return f"{name} as {'low' if '≤' in condition else 'high'}" if re.search("[≤≥]", condition) else f"its {name}"


def recount(frame: pd.DataFrame, classes: np.ndarray, row: int, clause: Clause) -> None:
    """Check all that a clause says of a row."""
    alone, few, rare, called, of, odd, name = COUNTED.fullmatch(clause.shown).groups()
    met = np.all([holds(frame, condition) for condition in (alone or rare or odd).split(" and ")], axis=0)
    assert met[row]
    assert met.sum() == (1 if alone else int(few or of))
    if name is not None:
        assert name == classes[row]
        assert (classes[met] == name).sum() == int(called)
        assert int(called) / int(of) <= 0.25 * np.mean(classes == name)
    else:
        assert met.sum() <= max(3, round(len(frame) / 1000))
    told = next(filter(None, LIKE.fullmatch(clause.named).groups())).split(" and ")
    assert told == [hidden(condition) for condition in (alone or rare or odd).split(" and ")]
    assert re.findall(r"(?:only|the) (\d+)", clause.named) == re.findall(r"(?:only|the) (\d+)", clause.shown)


def test_every_clause_of_a_table_is_recounted():
    frame, classes = people()
    rows = np.arange(len(frame))
    terms = TableTerms(frame, rows, classes)
    found = [terms.clause(row, row % 2 == 0) for row in rows]
    assert sum(bool(clause.named) for clause in found) > 60
    kinds = {clause.named.split(" ")[0] + ("called" in clause.named) * " called" for clause in found if clause.named}
    assert kinds == {"no", "only", "only called"}
    for row, clause in zip(rows, found, strict=True):
        assert bool(clause.named) == bool(clause.shown)
        if clause.named:
            recount(frame, classes, row, clause)


PLANTED = {
    "age": ("age", 140.0, "no other record has age ≥ 140"),
    "hours": ("hours", -33.25, "no other record has hours ≤ -33.25"),
    "work": ("work", "armed forces", "no other record has work = armed forces"),
    "children": ("children", 9, "no other record has children = 9"),
}


@pytest.mark.parametrize("case", PLANTED)
@given(row=st.integers(0, 599), seed=st.integers(0, 3))
@settings(max_examples=8, deadline=None)
def test_a_value_that_nobody_has_is_told_by_its_column(case, row, seed):
    frame, classes = people(seed=seed)
    column, value, told = PLANTED[case]
    frame.loc[row, column] = value
    assert TableTerms(frame, np.array([row]), classes).clause(0, False).shown == told
    matrix = np.column_stack([frame["age"], frame["hours"].fillna(0.0), frame["children"]])
    if column in frame.columns[:3]:
        place = list(frame.columns).index(column)
        (clause,) = [TableTerms(matrix, np.array([row]), classes).clause(0, False)]
        assert clause.named == "no other record has " + hidden(clause.shown.removeprefix("no other record has "))
        assert f"column {place}" in clause.named


def test_two_common_values_that_nobody_else_has_together():
    frame, classes = people(1_000)
    frame.loc[frame.age < 30, "status"] = "single"
    frame.loc[7, ["age", "status", "hours"]] = 21.0, "married", 40.0
    frame.loc[7, ["work", "children"]] = "private", 1
    clause = TableTerms(frame, np.array([7]), classes).clause(0, False)
    assert set(LIKE.fullmatch(clause.named)[1].split(" and ")) in (
        {"age as low", "its status"},
        {"age as high", "its status"},
    )
    recount(frame, classes, 7, clause)


def test_a_column_in_which_nobody_is_like_anybody_tells_nothing():
    frame, classes = people()
    frame["name"] = [f"N. N. {row}" for row in range(len(frame))]
    rows = np.arange(60)
    terms = TableTerms(frame, rows, classes)
    assert sum("name" in terms.clause(row, False).named for row in rows) < 6


def audited(frame: pd.DataFrame, classes: np.ndarray) -> ScoreTable:
    numbers = ["age", "children"]
    encoder = make_column_transformer((OneHotEncoder(), ["work", "status"]), (StandardScaler(), numbers))
    model = make_pipeline(encoder, LogisticRegression(C=100)).fit(frame, classes)
    return ga.audit(ga.from_sklearn(model, frame, classes))


def test_planted_records_in_the_top_decile_are_told_by_their_column_and_values_only_on_request(tmp_path):
    frame, classes = people()
    planted = {11: ("work", "armed forces"), 202: ("children", 9), 404: ("age", 140.0)}
    for row, (column, value) in planted.items():
        frame.loc[row, column] = value
        classes[row] = "<=50K" if classes[row] == ">50K" else ">50K"
    table = audited(frame, classes)
    rank = table.rank()
    top = table.top(60, show_records=True)
    withheld = dict(zip(table.top(60).ids.tolist(), table.top(60)["why"], strict=True))
    shown = dict(zip(top.ids.tolist(), top["why"], strict=True))
    in_decile = [row for row in planted if rank[row] <= 60]
    assert in_decile
    for row in in_decile:
        column, value = planted[row]
        told = f"{column} {'≥' if column == 'age' else '='} {value if column == 'work' else f'{value:g}'}"
        assert f"o other record has {told}." in shown[row]
        assert f"o other record has {hidden(told)}" in withheld[row]
    for row, reason in shown.items():
        clause = re.search(r"(?:^|: )((?:[Nn]o other|[Oo]nly) .*)\.$", reason)
        if clause is not None:
            named = re.search(r"(?:^|: )((?:[Nn]o other|[Oo]nly) .*)\.$", withheld[row])[1]
            lower = [text[0].lower() + text[1:] for text in (named, clause[1])]
            recount(frame, classes, row, Clause(*lower))
    for show in (False, True):
        ga.report(table, tmp_path / str(show), show_records=show)
        held = [path.name for path in (tmp_path / str(show)).iterdir() if b"armed forces" in path.read_bytes()]
        assert bool(held) == show
        assert "scores.csv" not in held


def test_words_that_pull_the_other_way_and_words_of_nobody_else():
    texts = ["a dull film", "dull and long", "dull again", "a fine film", "fine and warm", "fine, a dull zebra"] * 8
    texts[-1] = "fine, a dull zebra with okapi"
    classes = np.array((["bad"] * 3 + ["good"] * 3) * 8)
    texts = [text.replace("zebra", "").strip() if row not in (5, 47) else text for row, text in enumerate(texts)]
    said = np.where(np.arange(48) % 6 == 5, "bad", classes)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, classes)
    head = ga.from_sklearn(model, texts, classes)
    rows = np.array([47, 0, 11])
    near = np.array([[0, 6], [3, -1], [1, 2]])
    pulls, calm, other = own_terms(head, rows, near, "text", classes, said)
    others = [row for row in range(48) if row != 47 and "dull" in texts[row]]
    dull = (
        f"of the {len(others)} other texts with “dull”, {sum(classes[row] == 'bad' for row in others)} are called bad"
    )
    assert pulls.shown == dull
    assert pulls.named == dull.replace("“dull”", "one of its words")
    assert calm.shown == "its nearest texts are called good, it is called bad"
    assert other.shown.startswith("of the 31 other texts with “dull”")
    alone, *_ = own_terms(head, rows, near, "text", None, None)
    assert alone.shown == "no other text has “okapi” or “with”"
    assert alone.named == "2 of its words are in no other text"


def test_the_nearest_images_are_those_of_the_view():
    rng = np.random.default_rng(0)
    classes = np.arange(80) % 4
    images = np.zeros((80, 1, 8, 8)) + 0.05 * rng.random((80, 1, 8, 8))
    images[np.arange(80), 0, classes, :4] = 1.0
    classes = np.where(np.arange(80) == 9, 3, classes)  # one is called otherwise than it looks
    outputs = np.eye(4)[classes] * 4 + 0.1 * rng.normal(size=(80, 4))
    names = ("north", "east", "south", "west")
    head = ga.Head(None, outputs, classes, "cross_entropy", inputs=torch.tensor(images), class_names=names)
    table = ga.audit(head)
    top = table.top(80)
    reasons = dict(zip(top.ids.tolist(), top["why"], strict=True))
    expected = "The other records predict east: its nearest images are all called east, it is called west."
    assert reasons[9] == expected
    near = dict(zip(range(80), table["nearest"], strict=True))
    for row, reason in reasons.items():
        called = [names[classes[int(other)]] for other in near[row].split(", ")]
        told = re.search(r"nearest images are (all )?called (.*), it is called (\w+)", reason)
        assert (told is not None) == any(name != names[classes[row]] for name in called)
        if told is not None:
            assert (called if told[1] is None else called[:1]) == re.split(", | and ", told[2])
            assert told[3] == names[classes[row]]


def test_which_record_carries_a_person():
    frame, classes = people(200)
    head = ga.from_sklearn(LogisticRegression().fit(frame[["age"]], classes), frame[["age"]], classes)
    groups = np.arange(200) // 4
    alone = replace(head, inputs=None, out_of_bag=head.outputs)
    for given_head, errors, agreement in (
        (alone, ga.audit(alone)["loss"], 1.0),
        (head, ga.audit(head)["left_out"], 0.9),
    ):
        table = ga.audit(replace(given_head, groups=groups), scores=("default", "fused"))
        worst = np.arange(50) * 4 + errors.reshape(50, 4).argmax(1)
        assert (
            table["carried_by"] == worst
        ).mean() >= agreement  # of the others' errors, those without the whole person
        share = errors.reshape(50, 4).max(1) / errors.reshape(50, 4).sum(1)
        np.testing.assert_allclose(table["carries"], share, atol=1e-9 if agreement == 1.0 else 0.2)
        assert all(reason.startswith("Of their 4 records, number ") for reason in table.top(50)["why"])
