"""Inputs, signals and subgroups from files, or an error in one line."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.extract.user_files import read_npz_keys, reading, records_from, signals_from, subgroups_from
from giveaway.records import Signals
from giveaway.records.examples import as_numbers
from tests.conftest import refused
from tests.extract.examples import Bomb

RNG = np.random.default_rng(1)
both = pytest.mark.parametrize("suffix", [".npz", ".npy"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.npz"


def saved(path, values, suffix=".npz"):
    path = path.with_suffix(suffix)
    np.savez(path, inputs=values, other=1) if suffix == ".npz" else np.save(path, values)
    return path


def numbers_from(path):
    """What `giveaway lood` makes of its records."""
    return as_numbers(read_npz_keys("inputs", path, ("inputs",))[0])


def refusal(path, read=numbers_from):
    return refused("; ", read, path)


# ------------------------------------------------------------------------------------------------ inputs and records


@settings(max_examples=20)
@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(5, 7), st.sampled_from([1, 3, 4])))
def test_images_have_their_channels_first_as_bytes_or_as_shares(tmp_path_factory, shape):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    path, first = tmp_path_factory.mktemp("images") / "records.npz", images.transpose(0, 3, 1, 2)
    for stored in (images, first) if shape[1] not in (1, 3, 4) else (images,):
        numbers = numbers_from(saved(path, stored))
        assert (numbers.shape, numbers.dtype) == (first.shape, np.float64)
        assert numbers.flags.c_contiguous
        for i, y, x, k in np.ndindex(shape):
            assert numbers[i, k, y, x] == int(images[i, y, x, k]) / 255
        for suffix in (".npz", ".npy"):
            records = records_from(saved(path, stored, suffix))
            assert records.dtype == np.uint8
            np.testing.assert_array_equal(records, first)
    np.testing.assert_array_equal(records_from(saved(path, images[..., 0])), first[:, :1])
    np.testing.assert_array_equal(numbers_from(str(saved(path, images[..., 0]))), first[:, :1] / 255)


def test_images_of_two_channels_are_refused(path):
    two = saved(path, np.zeros((2, 5, 6, 2), np.uint8))
    refused(r"inputs: expected images with 1, 3 or 4 channels, last or first, got shape", numbers_from, two)


OTHERS = [
    RNG.normal(size=(4, 3, 6, 6)).astype(np.float32),
    RNG.normal(size=(4, 6, 6, 3)),
    np.arange(12).reshape(4, 3),
    np.arange(12, dtype=np.uint8).reshape(4, 3),  # a matrix of bytes is no image
    np.arange(12).reshape(4, 3) > 5,
    np.arange(4.0),
    np.array([["red", "1.5"], ["green", "2"]]),
]


@both
@pytest.mark.parametrize("values", OTHERS)
def test_other_records_stay_as_they_are(path, values, suffix):
    records = records_from(str(saved(path, values, suffix)))
    assert records.dtype == values.dtype
    np.testing.assert_array_equal(records, values)
    if values.dtype.kind != "U":
        numbers = numbers_from(saved(path, values))
        assert numbers.dtype == np.float64
        np.testing.assert_array_equal(numbers, values)


def test_the_array_handed_over_is_left_alone():
    images, matrix = np.full((1, 2, 2, 3), 7, dtype=np.uint8), np.ones((2, 2))
    as_numbers(images)[:] = 0.0
    as_numbers(matrix)[:] = 0.0
    assert (images == 7).all()
    assert (matrix == 1).all()


def test_missing_keys_are_named(path):
    np.savez(path, features=np.ones((2, 2)), labels=np.ones(2))
    expected = "inputs: expected the key inputs in records.npz, got keys features, labels; add it"
    assert refusal(path) == refusal(path, records_from) == expected
    np.savez(path, inputs=np.ones((2, 2)))
    words = "targets: expected the key targets in records.npz, got keys inputs; add it"
    assert refused("; ", read_npz_keys, "inputs", path, ("inputs", "targets")) == words


@pytest.mark.parametrize("values", [np.array(["a", "b"]), np.array([b"a"]), np.ones(2, dtype=complex)])
def test_words_and_other_kinds_are_refused(path, values):
    expected = f"inputs: expected images or a matrix of numbers, got dtype {values.dtype}; embed them, and pass the"
    assert refusal(saved(path, values)).startswith(expected)


@pytest.mark.parametrize("read", [numbers_from, records_from])
def test_files_that_are_none(path, tmp_path, read):
    assert refusal(path, read) == f"inputs: expected a file that exists, got {path}; check the path"
    assert refusal(tmp_path, read).startswith("inputs: expected a file that exists, got")
    whole = "inputs: expected a whole {0} file, got records{0}, truncated or not of that format; write the file again"
    for suffix in (".npz", ".npy"):
        file = saved(path, np.ones((200, 20)), suffix)
        if suffix == ".npz" or read is records_from:
            file.write_bytes(file.read_bytes()[:-300])
            assert refusal(file, read) == whole.format(suffix)
        else:
            assert refusal(file, read).startswith("inputs: expected a whole .npz file, got records.npy")
    path.write_text("inputs")
    assert refusal(path, read) == whole.format(".npz")


def test_an_npy_is_mapped_into_memory(path):
    for values in (np.ones((4, 3)), np.ones((4, 5, 5, 3), dtype=np.uint8)):
        records = records_from(saved(path, values, ".npy"))
        assert isinstance(records, np.memmap)
        assert not records.flags.writeable


@both
def test_records_that_are_strings_become_a_list(path, suffix):
    assert records_from(saved(path, np.array(["one", "Straße", ""]), suffix)) == ["one", "Straße", ""]


@both
@pytest.mark.parametrize("values", [np.array([b"a"]), np.ones(2, dtype=complex), np.array(["2020-01-01"], "M8[D]")])
def test_records_of_unknown_kinds_are_refused(path, values, suffix):
    expected = f"inputs: expected images, numbers or strings, got dtype {values.dtype}; convert them to numbers or str"
    assert refusal(saved(path, values, suffix), records_from) == expected


@both
def test_records_that_need_pickle_are_refused_unread(tmp_path, path, suffix):
    file = saved(path, np.array([Bomb(tmp_path / "exploded")], dtype=object), suffix)
    assert refusal(file, records_from) == (
        f"inputs: expected arrays that need no pickle, got {file.name}, which needs it; save plain numbers, or a table "
        "as strings: table.astype(str)"
    )
    assert refusal(file).startswith("inputs: expected")
    assert not (tmp_path / "exploded").exists()


# ------------------------------------------------------------------------------------------------ signals

PHI = np.random.default_rng(0).normal(size=(4, 11)).astype(np.float16)
MEMBERS = PHI > 0


@pytest.mark.parametrize("members", [MEMBERS, MEMBERS.astype(np.int8), np.packbits(MEMBERS, axis=1)])
def test_signals_of_an_npz(path, members):
    np.savez(path, phi=PHI, members=members, note=np.array(1))
    signals = signals_from(path)
    np.testing.assert_array_equal(signals.values[..., 0], PHI)
    np.testing.assert_array_equal(signals.members, MEMBERS)


def test_signals_of_a_folder(tmp_path):
    Signals(PHI, MEMBERS, "phi").save(tmp_path / "signals")
    np.testing.assert_array_equal(signals_from(tmp_path / "signals").members, MEMBERS)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"phi": PHI}, "signals: expected members and one of logits, probabilities, phi, squared_error"),
        ({"members": MEMBERS}, "got keys members; store one kind of signal"),
        ({"phi": PHI, "logits": PHI, "members": MEMBERS}, "store one kind of signal"),
        ({"logits": PHI[..., None], "members": MEMBERS}, "labels: expected a class index a record, got none"),
    ],
)
def test_signals_that_cannot_be_used(path, arrays, words):
    np.savez(path, **arrays)
    assert words in refusal(path, signals_from)


def test_signals_that_cannot_be_read(tmp_path, path):
    assert refusal(tmp_path / "missing.npz", signals_from).startswith("signals: expected a file that exists")
    path.write_bytes(b"PK")
    assert refusal(path, signals_from).startswith("signals: expected a whole .npz file")


# ------------------------------------------------------------------------------------------------ subgroups


def test_subgroups_are_columns_of_a_csv(tmp_path):
    (tmp_path / "s.csv").write_text('sex,"age, years"\nf,"40,5"\nm,30\nf,\n', encoding="utf-8")
    columns = subgroups_from(str(tmp_path / "s.csv"), 3)
    assert {k: v.tolist() for k, v in columns.items()} == {"sex": ["f", "m", "f"], "age, years": ["40,5", "30", ""]}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.csv", "sex\nf\n", r"expected 3 lines, one a record, got 1; align the file"),
        ("s.csv", "sex,age\nf\n", r"expected 2 cells a line, got lines that differ; repair the file"),
        ("s.csv", "sex,sex\nf,g\n", r"expected a different heading for each column, got none, or two that are equal"),
        ("s.csv", "", r"expected a whole CSV with a heading, got s.csv, truncated"),
        ("s.csv", "name\n" + "\n".join(map(str, range(300))), r"expected at most 200 subgroups, got 300 in column 0"),
        ("none.csv", None, r"expected a file that exists, got .*none.csv; check the path"),
    ],
)
def test_what_is_no_file_of_subgroups(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    refused(words, subgroups_from, str(tmp_path / name), 300 if "300" in words else 3)


# ------------------------------------------------------------------------------------------------ failures to read


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (PermissionError(13, "denied"), "model: expected a file that can be read, got .*records.npz; check its perm"),
        (ValueError("one\ntwo"), "model: expected a whole bin file, got records.npz, truncated or not of that format"),
        (AssertionError(), "model: expected a whole bin file, got records.npz, truncated or not of that format; write"),
        (AttributeError("no Net in it\n?"), "imported, got records.npz, which needs code that is not here; run"),
        (InputError("its own words"), "^its own words$"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_to_read_are_told_in_one_line(path, failure, words):
    path.write_bytes(b"x")
    with pytest.raises(InputError, match=words) as caught, reading("model", path, "bin file"):
        raise failure
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("failure", [MemoryError, KeyboardInterrupt])
def test_what_is_no_fault_of_the_file_is_not_blamed_on_it(path, failure):
    path.write_bytes(b"x")
    with pytest.raises(failure), reading("model", str(path), "bin file"):
        raise failure
    with reading("model", str(path), "bin file") as given:
        assert given == path
