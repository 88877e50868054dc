"""Subgroups from files: a column a kind, a line a record, or an error that says what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from giveaway.checks import InputError
from giveaway.extract.user_files import subgroups_from


def test_columns_of_a_csv_and_arrays_of_an_npz(tmp_path):
    (tmp_path / "s.csv").write_text('sex,"age, years"\nf,"40,5"\nm,30\nf,\n', encoding="utf-8")
    found = subgroups_from(str(tmp_path / "s.csv"), 3)
    assert {k: v.tolist() for k, v in found.items()} == {"sex": ["f", "m", "f"], "age, years": ["40,5", "30", ""]}
    np.savez(tmp_path / "s.npz", site=np.array([1, 2, 2]))
    assert subgroups_from(str(tmp_path / "s.npz"), 3)["site"].tolist() == ["1", "2", "2"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.txt", "a\n", r"subgroups: expected FILE.csv with a heading, or FILE.npz, got .*s.txt"),
        ("s.csv", "sex\nf\n", r"expected 3 values, one a record, got 1 in column 0; align the file"),
        ("s.csv", "sex,age\nf\n", r"expected 2 cells a line, got .*, where lines differ"),
        ("s.csv", "", r"expected a readable CSV with a heading"),
        ("none.csv", None, r"expected a readable CSV with a heading, got .*none.csv; check the file"),
        ("none.npz", None, r"expected a file written by numpy.savez, got .* which does not exist"),
    ],
)
def test_what_is_no_file_of_subgroups(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        subgroups_from(str(tmp_path / name), 3)


def test_a_column_of_names_is_no_subgroup(tmp_path):
    (tmp_path / "s.csv").write_text("name\n" + "\n".join(map(str, range(300))) + "\n")
    with pytest.raises(InputError, match=r"expected at most 200 subgroups, got 300 in column 0"):
        subgroups_from(str(tmp_path / "s.csv"), 300)
