"""What people can cause without meaning to: long names, huge files, failing code. All of it ends in one line."""

import csv
import json
import os
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import giveaway as ga
from giveaway.checks import check_names, raised_at
from giveaway.curvature.choice import Sketch, check_probes
from giveaway.extract.user_files import names_in, read_npz_keys, subgroups_from
from giveaway.findings.explain import about
from giveaway.records import ScoreTable
from giveaway.records.meta import Meta
from giveaway.storage.arrays import packed, read_arrays, unpacked
from giveaway.storage.files import read_json, read_toml
from giveaway.text import csv_cell
from tests.conftest import refused
from tests.every_command import made_arrays, run, working_in

SECRET = "John Smith, HIV positive"


def line_of(done) -> str:
    """The one line in which a command ended."""
    (line,) = [part for part in done.err.splitlines() if part and not part.startswith(("note:", "Running your code"))]
    assert line.startswith("giveaway: ")
    return line


# ------------------------------------------------------------------------------------------------ names


def test_one_long_name_is_refused_before_all_are_as_wide():
    names = [f"id {i}" for i in range(6_000)]
    names[17] = "L" * 100_000
    said = refused("ids: expected names of at most 1,000 letters, got one of 100,000 in row 17; give row", check_names,
                   "ids", names, 6_000, unique=True)  # fmt: skip
    assert "LLL" not in said
    refused("one of 100,000 in row 17", check_names, "ids", np.array(names, dtype=object), 6_000, unique=False)
    refused("one of 1,001 in row 1", check_names, "groups", np.array(["a", "b" * 1_001]), 2, unique=False)
    wide = check_names("ids", np.array(["a", "b" * 1_000], dtype="U5000"), 2, unique=True)
    assert wide.dtype == np.dtype("U1000")
    assert wide.tolist() == ["a", "b" * 1_000]


def test_whole_numbers_beyond_the_largest_signed_one_keep_their_value(tmp_path):
    ids = np.array([2**63, 2**64 - 1, 5], dtype=np.uint64)
    ScoreTable({"newton": [1.0, 2.0, 3.0]}, ids).save(tmp_path / "audit")
    assert ScoreTable.load(tmp_path / "audit").ids.tolist() == [2**63, 2**64 - 1, 5]
    with (tmp_path / "audit" / "scores.csv").open() as stream:
        assert [row["id"] for row in csv.DictReader(stream)] == ["9223372036854775808", "18446744073709551615", "5"]


@given(st.lists(st.text(st.characters(), max_size=9), max_size=9))
def test_text_is_stored_by_its_own_length(texts):
    names = np.array(texts, dtype=str)
    stored = packed({"ids": names, "n": np.arange(3)})
    assert stored["text:ids"].nbytes == len("".join(names.tolist()).encode("utf-8", "surrogatepass"))
    assert unpacked(stored)["ids"].tolist() == names.tolist()


def test_a_long_class_does_not_widen_the_file(tmp_path):
    classes = np.array(["a"] * 5_000 + ["b" * 900])
    table = ScoreTable({"newton": np.arange(5_001.0)}, np.arange(5_001), attributes={"class": classes})
    table.save(tmp_path)
    assert (tmp_path / "scores.npz").stat().st_size < 150_000 < classes.nbytes
    assert ScoreTable.load(tmp_path)["class"].tolist() == classes.tolist()


def test_names_end_at_newlines_only_and_a_byte_order_mark_goes(tmp_path):
    (tmp_path / "names.txt").write_bytes("\ufeffa\x0bb\u2028\x85\r\nc\x1c\rd\n".encode())
    assert names_in(str(tmp_path / "names.txt")).tolist() == ["a\x0bb\u2028\x85", "c\x1c\rd"]


def test_a_table_of_many_rows_is_written_in_blocks(tmp_path):
    n = 40_000
    ScoreTable({"newton": np.arange(float(n))}, np.array([f"{i};=1" for i in range(n)])).to_csv(tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["newton"] for row in rows] == [repr(float(i)) for i in range(n)]
    assert rows[16_384]["id"] == "16384;'=1"


# ------------------------------------------------------------------------------------------------ cells


BEFORE = [
    "\ufffe",
    "\ufe0f",
    "\u3164",
    "",
    " ",
    "\t",
    "\0",
    "\u200b",
    "\ufeff",
    "\u2060",
    "\u202e",
    "\x7f",
    "\xad",
    "\xa0",
    "\u180e",
    "\r",
    "\n",
]


@pytest.mark.parametrize("sign", ["=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1"])
@pytest.mark.parametrize("start", ["", "a;", "a\t", "a|", "a\n", "a\r", ";", "a;b;"])
def test_no_cell_and_no_part_of_one_starts_a_formula(start, sign):
    for before in BEFORE:
        written = csv_cell(f"{start}{before}{sign}")
        (cell,) = next(csv.reader([written], strict=True)) if "\n" not in written and "\r" not in written else [written]
        for part in [cell, *cell.replace("\t", ";").replace("|", ";").replace("\n", ";").replace("\r", ";").split(";")]:
            seen = part.strip("".join(BEFORE) + '"')
            assert not seen or seen[0] not in "=+-@\uff1d", (start, before, written)
    assert csv_cell("2020-01-01") == "2020-01-01"
    assert csv_cell(-1.5) == "-1.5"


def test_json_on_the_screen_is_json_whatever_a_path_holds(tmp_path):
    unseen = "\x7f\x9b\x85\u202e\U000e0041\u200b"
    name = f"a{unseen}31m"
    np.savez(tmp_path / "features.npz", **made_arrays(30))
    with working_in(tmp_path):
        done = run("audit", "--features", "features.npz", "--out", name, "--json")
    assert json.loads(done.out)["folder"] == name
    assert not set(unseen) & set(done.out)


# ------------------------------------------------------------------------------------------------ files made to hurt


@pytest.mark.parametrize("shape", [(1 << 60,), (1 << 40, 1 << 40), (10**30,)])
def test_arrays_that_promise_more_than_they_hold_are_refused(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive, archive.open("inputs.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": shape})
        member.write(bytes(1 << 20))
    refused("truncated or not of that format", read_arrays, "inputs", tmp_path / "lie.npz", "its writer")


def test_an_array_without_room_in_memory_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "large.npz", inputs=np.zeros(1 << 20))
    monkeypatch.setattr("giveaway.checks.available_memory", lambda: 1 << 20)
    words = r"inputs: expected an array within the 0\.0 GB of free memory, got shape \(1048576,\), which need 0\.0 GB; "
    refused(words, read_npz_keys, "inputs", tmp_path / "large.npz", ("inputs",))


def test_settings_that_would_take_hours_are_refused(tmp_path):
    refused("probes: expected at most 65,536, got 100,000,000; 256 suits", check_probes, Sketch(probes=100_000_000))
    (tmp_path / "deep.toml").write_text("a = " + "[" * 30_000)
    refused(r"\(RecursionError\); correct it", read_toml, "config", tmp_path / "deep.toml", "a TOML file")
    (tmp_path / "large.toml").write_text("# nothing\n" * 10_000)
    refused(r"more than 65,536 bytes\)", read_toml, "gate", tmp_path / "large.toml", "a TOML file")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": NaN}', '{"a": 1e999}', "[]", "null", "", '{"a": ' + "9" * 5_000]
)
def test_json_that_is_not_ours(tmp_path, text):
    (tmp_path / "audit.json").write_text(text)
    refused("folder: expected a readable audit.json, got", read_json, "folder", tmp_path / "audit.json", "try again")


@pytest.mark.parametrize(
    "given",
    [
        {"curvature": {"curvature": 3}},
        {"seconds": "long"},
        {"l2": [1.0]},
        {"depths": []},
        {"depths": {"all": 3}},
        {"fusion": {"weights": {"head": None}}},
        {"title": {}},
        {"rows": True},
    ],
)
def test_metadata_of_another_kind(given):
    refused("meta: expected ", Meta.from_json, given)


def test_a_cell_of_a_megabyte_among_subgroups(tmp_path):
    (tmp_path / "wards.csv").write_text("ward\n" + "a\n" * 10 + "b" * 100_000 + "\n")
    refused("subgroups: expected names of at most 1,000 letters", subgroups_from, str(tmp_path / "wards.csv"), 11)


# ------------------------------------------------------------------------------------------------ failures


FAILURES = f"""
import numpy as np
def data(): return float({SECRET!r})
def deep(): return deep()
def end(): raise EOFError({SECRET!r})
def disk(): raise OSError(28, {SECRET!r}, {SECRET!r})
def memory(): raise MemoryError({SECRET!r})
def odd():
    class Odd(Exception): pass
    raise Odd({SECRET!r} + "\\n" + "\\x1b[2J")
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data", "ValueError at line 3 of users_failing.py; "),
        ("deep", "RecursionError at line 4 of users_failing.py; "),
        ("end", "EOFError at line 5 of users_failing.py; "),
        ("disk", "the work could not be finished: No space left on device (OSError at line 6 of users_failing.py)"),
        ("memory", "the work could not be finished: not enough memory; the rest with --traceback"),
        ("odd", "Odd at line 10 of users_failing.py; what it says may hold values of records: see it with --traceback"),
    ],
)
def test_failing_code_is_told_by_type_and_place(tmp_path, name, words):
    (tmp_path / "users_failing.py").write_text(FAILURES)
    with working_in(tmp_path):
        source = ("audit", "--model", f"users_failing:{name}", "--data", f"users_failing:{name}")
        done = run(*source)
        whole = run(*source, "--traceback")
    assert done.code == whole.code == 1
    assert words in line_of(done)
    assert SECRET not in done.said
    assert "Traceback (most recent call last):\n  File" in whole.err
    assert any("users_failing.py" in line for line in whole.err.splitlines() if line.startswith("  File"))
    assert "\x1b" not in whole.err
    assert name == "deep" or SECRET in whole.err


def test_a_failure_inside_a_library_is_told_with_our_line_and_its_file(tmp_path):
    (tmp_path / "users_shapes.py").write_text(
        "import torch\n"
        "def model(): return torch.nn.Sequential(torch.nn.Linear(5, 3))\n"
        "def data(): return torch.zeros(40, 4), torch.arange(40) % 3\n"
    )
    with working_in(tmp_path):
        said = line_of(run("audit", "--model", "users_shapes:model", "--data", "users_shapes:data"))
    assert re.search(r"RuntimeError at line \d+ of head_layer.py, in linear.py; what it says may hold values", said)


def test_what_is_repeated_of_a_long_argument_is_cut():
    line = line_of(run("report", "\x1b" * 100_000))
    assert len(line) < 2_500
    assert line.startswith("giveaway: the work could not be finished: File name too long (\\u001b")
    assert line.endswith("/audit.json); the rest with --traceback")


def test_the_place_of_an_error_is_the_users_line():
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    assert raised_at(caught.value).startswith("JSONDecodeError at line ")
    assert raised_at(caught.value).endswith(" of test_edges.py")
    assert raised_at(KeyError(SECRET)) == "KeyError at an unknown line"


def test_help_needs_no_home_and_no_rights(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH")}
    command = [sys.executable, "-m", "giveaway", "audit", "--help"]
    done = subprocess.run(command, cwd=tmp_path / "closed", env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--features" in done.stdout


# ------------------------------------------------------------------------------------------------ what is shared


@given(st.integers(10, 10**7))
def test_counts_are_rounded_by_a_twentieth_at_most_and_down_on_request(count):
    step = max(10, about(count) // 40)
    assert abs(about(count) - count) <= max(5, 0.0501 * count)
    assert 10 <= about(count, down=True) <= count
    assert about(count, down=True) > count - max(10, 0.1001 * count)
    assert about(count) % 10 == 0
    assert sum(about(count + k) != about(count + k + 1) for k in range(step)) <= 2


@pytest.mark.parametrize("wrong", [LogisticRegression(), np.eye(3), None])
def test_what_is_no_head_no_table_and_no_estimator(wrong):
    kind = type(wrong).__name__
    refused(f"head: expected a Head or Texts or Depths, got {kind}; make one with ga.from_torch", ga.audit, wrong)
    refused(f"table: expected a ScoreTable, got {kind}; pass what ga.audit returned", ga.report, wrong, "unused")
    refused(f"table: expected a ScoreTable, got {kind}; pass what", ga.validate, lambda rows, seed: 0, wrong)


@pytest.mark.parametrize(
    ("wrong", "got"), [("model.skops", "str"), (LogisticRegression, "the class LogisticRegression")]
)
def test_files_and_classes_are_no_fitted_estimators(wrong, got):
    words = f"estimator: expected a fitted estimator, got {got}; pass the object that was fitted; load it if it is in a"
    refused(words, ga.from_sklearn, wrong, np.eye(3), [0, 1, 0])


def test_halves_of_bits_are_records_too():
    """NumPy has no bfloat16: digests, neighbours and reasons read such records all the same."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    y = (x[:, 0] > 0).long()
    outputs = torch.stack([-x[:, 0], x[:, 0]], 1)
    half = ga.Head(x, outputs, y, "cross_entropy", l2=1.0, inputs=x)
    whole = ga.Head(x.float(), outputs.float(), y, "cross_entropy", l2=1.0, inputs=x.float())
    ours, theirs = (ga.audit(head, scores=("fused", "newton")) for head in (half, whole))
    np.testing.assert_allclose(ours["fused"], theirs["fused"], atol=0.1)
