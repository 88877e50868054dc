"""ScoreTable: columns, order, files; a spreadsheet must find no formula in them."""

import csv
import json
import stat
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import giveaway as ga
from giveaway.checks import InputError
from giveaway.records import ScoreTable
from giveaway.records.reasons import why
from tests.conftest import made_head, refused

NEWTON = [0.5, 2.0, 0.1, 2.0, 0.5]


@pytest.fixture
def table() -> ScoreTable:
    return ScoreTable(
        scores={"loss": [1 / 3, 1e-300, 0.1 + 0.2, -0.0, 12345678.9], "newton": NEWTON},
        ids=np.array(["a", "b", "c", "d", "e"]),
        meta={"unit": "record", "nested": {"rank": 3}},
        attributes={"class": np.array([0, 1, 1, 0, 2]), "newton_capped": np.array([False, True] * 2 + [False])},
    )


def read_csv(path) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.reader(stream))


def test_columns_attributes_ids_and_meta(table):
    assert table.columns == ("loss", "newton")
    assert table["newton"].tolist() == NEWTON
    assert table["class"].tolist() == [0, 1, 1, 0, 2]
    assert table.ids.tolist() == ["a", "b", "c", "d", "e"]
    assert table.meta.more["nested"] == {"rank": 3}
    assert len(table) == 5


def test_an_unknown_column_suggests_the_near_ones(table):
    with pytest.raises(InputError, match=r"column: expected a column of this table, got 'newtom'; did you mean newton"):
        table["newtom"]
    with pytest.raises(InputError, match=r"choose from loss, newton, class, newton_capped"):
        table["zzz"]
    refused(r"by: expected a score of this table, got 'class'; did you mean loss", table.order, "class")


def test_frozen(table):
    with pytest.raises(FrozenInstanceError):
        table.ids = None
    with pytest.raises(FrozenInstanceError):
        table.meta.unit = "person"
    for mapping in (table.scores, table.attributes):
        with pytest.raises(TypeError):
            mapping["new"] = np.zeros(5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scores": {}}, "scores: expected at least one column, got none"),
        ({"scores": {"loss": [1.0]}}, r"loss: expected 2 values, one a row, got shape \(1,\)"),
        ({"attributes": {"class": [1]}}, r"class: expected 2 values, one a row, got shape \(1,\)"),
        ({"scores": {"loss": [1.0, np.nan]}}, "loss: expected finite scores, got nan in row 1"),
        ({"scores": {"loss": [np.inf, 1.0]}}, "loss: expected finite scores, got inf in row 0"),
        ({"ids": [7, 7]}, "ids: expected a different id for every record, got 1 repeated ids, the first at row 0"),
    ],
)
def test_what_is_no_table_is_refused(change, words):
    refused(words, ScoreTable, **{"scores": {"loss": [1.0, 2.0]}, "ids": [0, 1]} | change)


def test_ties_stay_in_row_order(table):
    assert table.order().tolist() == [1, 3, 0, 4, 2]
    assert table.rank().tolist() == [3, 1, 5, 2, 4]
    assert table.order("loss").tolist() == [4, 0, 2, 1, 3]


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=40))
def test_ranks_are_those_of_a_stable_sort(values):
    table = ScoreTable({"newton": values}, np.arange(len(values)))
    assert table.order().tolist() == sorted(range(len(values)), key=lambda row: (-values[row], row))
    assert table.rank()[table.order()].tolist() == list(range(1, len(values) + 1))


def test_top_keeps_every_column_and_the_most_exposed_first(table):
    top = table.top(3)
    assert top.ids.tolist() == ["b", "d", "a"]
    assert top["newton"].tolist() == [2.0, 2.0, 0.5]
    assert top["newton_capped"].tolist() == [True, True, False]
    assert top.meta == table.meta
    assert table.top(2, by="loss").ids.tolist() == ["e", "a"]
    assert len(table.top(99)) == 5
    refused("k: expected a finite number of at least 1, got 0", table.top, 0)


@pytest.mark.parametrize(
    ("names", "ranked_by"),
    [(("loss", "newton", "fused"), "fused"), (("loss", "newton"), "newton"), (("leverage", "loss"), "leverage")],
)
def test_ranking_without_a_name(names, ranked_by):
    assert ScoreTable({name: [0.0, 1.0] for name in names}, [0, 1]).ranking() == ranked_by


# ------------------------------------------------------------------------------------------------ csv


def test_csv_has_one_row_a_record_in_record_order_and_floats_come_back(tmp_path, table):
    path = tmp_path / "scores.csv"
    table.to_csv(path)
    header, *rows = read_csv(path)
    assert header == ["id", "class", "newton_capped", "loss", "newton"]
    assert [row[0] for row in rows] == table.ids.tolist()
    for place, name in enumerate(header[1:], start=1):
        if name in table.columns:
            assert [float(row[place]) for row in rows] == table[name].tolist()
        else:
            assert [row[place] for row in rows] == [str(value) for value in table[name].tolist()]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=2, max_size=6, unique=True))
def test_any_text_as_id_keeps_one_row_a_record(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("csv") / "scores.csv"
    ScoreTable({"newton": np.zeros(len(names))}, np.array(names)).to_csv(path)
    shown = [row[0] for row in read_csv(path)]
    assert [name.removeprefix("'") for name in shown[1:]] == [name.removeprefix("'") for name in names]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_every_float_comes_back_to_the_last_bit(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("csv") / "scores.csv"
    ScoreTable({"newton": values}, np.arange(len(values))).to_csv(path)
    assert [float(row[1]) for row in read_csv(path)[1:]] == values


# ------------------------------------------------------------------------------------------------ pandas, saving


def test_pandas(table):
    frame = table.to_pandas()
    assert frame.index.name == "id"
    assert frame.index.tolist() == table.ids.tolist()
    assert frame.columns.tolist() == ["class", "newton_capped", "loss", "newton"]
    np.testing.assert_array_equal(frame["loss"].to_numpy(), table["loss"])


@pytest.mark.parametrize("ids", [np.array(["x", "é", "=1", "", "long name"]), np.arange(5)[::-1].copy()])
def test_what_is_saved_comes_back(tmp_path, table, ids):
    saved = ScoreTable(table.scores, ids, table.meta, table.attributes)
    saved.save(tmp_path / "audit")
    again = ScoreTable.load(tmp_path / "audit")
    assert again.columns == saved.columns
    assert list(again.attributes) == list(saved.attributes)
    for name in (*saved.columns, *saved.attributes):
        np.testing.assert_array_equal(again[name], saved[name])
        assert again[name].dtype == saved[name].dtype
    np.testing.assert_array_equal(again.ids, ids)
    assert again.meta == saved.meta


def test_a_saved_folder_is_private_and_lists_its_files(tmp_path, table):
    folder = tmp_path / "audit"
    table.save(folder)
    files = {path.name for path in folder.iterdir()}
    assert files == {"scores.npz", "scores.csv", "audit.json"}
    assert set(json.loads((folder / "audit.json").read_text())["files"]) == files - {"audit.json"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_folders_that_hold_no_table(tmp_path, table):
    refused(r"folder: expected an audit folder with scores\.npz", ScoreTable.load, tmp_path)
    table.save(tmp_path)
    stored = tmp_path / "scores.npz"
    stored.write_bytes(stored.read_bytes()[:-20])
    words = r"folder: expected scores.npz as it was written, got .*scores.npz, damaged or changed since; remove scores"
    refused(words, ScoreTable.load, tmp_path)
    (tmp_path / "audit.json").unlink()  # a folder without a listing
    refused(r"folder: expected a whole file written by ScoreTable\.save, got .*truncated", ScoreTable.load, tmp_path)
    np.savez(stored, values=np.zeros(3))
    refused(r"folder: expected scores\.npz of an audit, got another \.npz", ScoreTable.load, tmp_path)


@pytest.mark.parametrize("rows", [0, 1, 10, 13])
def test_repr_shows_the_most_exposed_and_counts_the_others(rows):
    head, *lines = repr(ScoreTable({"newton": -np.arange(float(rows))}, np.arange(rows))).split("\n")
    assert head.split() == ["rank", "id", "newton"]
    assert [line.split() for line in lines[:10]] == [[str(n + 1), str(n), str(-float(n))[:-2]] for n in range(rows)][
        :10
    ]
    assert lines[10:] == ["… 3 more rows"] * (rows > 10)


def test_the_rows_shown_are_those_of_the_ranking_asked_for():
    table = ScoreTable({"loss": np.arange(13.0) / 7, "fused": -np.arange(13.0)}, np.arange(13), {}, {"class": [3] * 13})
    head, first, *_, last = (line.split() for line in repr(table).splitlines())
    assert (head, first) == (["rank", "id", "class", "fused"], ["1", "0", "3", "-0"])
    assert last == ["…", "3", "more", "rows"]
    top = table.top(2, by="loss")
    assert [line.split() for line in repr(top).splitlines()][1] == ["1", "12", "3", "1.714", "-12"]


def test_a_reason_stands_beside_the_most_exposed_and_the_line_fits():
    table = ga.audit(made_head("classes", l2=0.5))
    assert set(repr(table).splitlines()[0].split()) == {"rank", "id", "class", "newton", "why"}
    assert "Its own target pulls" in repr(table.top(3))
    assert " ".join(repr(table.top(3)).split()).endswith(table.top(3)["why"][2])
    assert table.top(3)["why"].tolist() == why(table, table.order()[:3])
    assert max(map(len, repr(table).splitlines())) <= 120


@given(st.lists(st.text(st.characters()), min_size=1, max_size=5, unique_by=lambda name: name.rstrip("\0")))
def test_any_text_as_id_stays_on_its_line(names):
    table = ScoreTable({"newton": np.zeros(len(names))}, np.array(names))
    assert len(repr(table).splitlines()) == len(names) + 1
    repr(table).encode("utf-8")


def test_a_notebook_shows_the_same_lines_escaped_below_what_they_mean():
    table = ScoreTable({"newton": np.arange(2.0)}, np.array(["<b>", "&"]))
    assert table._repr_html_() == (
        "<p>A ranking, not a count; a low score is not evidence of safety.</p>"
        f"<pre>{repr(table).replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}</pre>"
    )
