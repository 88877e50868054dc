"""Records from an .npz file: what becomes of images and numbers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.extract.user_files import inputs_from, records_from
from giveaway.records.examples import as_numbers


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.npz"


def refusal(path, read=inputs_from, **options) -> str:
    with pytest.raises(InputError) as error:
        read(path, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


@settings(max_examples=20, deadline=None)
@given(shape=st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 3, 4])))
def test_bytes_of_images_become_shares_with_channels_first(shape):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    found = as_numbers(images)
    n, h, w, c = shape
    assert (found.shape, found.dtype) == ((n, c, h, w), np.float64)
    assert found.flags.c_contiguous
    for i, y, x, k in np.ndindex(shape):
        assert found[i, k, y, x] == int(images[i, y, x, k]) / 255


def test_images_in_a_file(path):
    images = np.random.default_rng(0).integers(0, 256, (3, 5, 4, 3)).astype(np.uint8)
    images[0, 0, 0] = 0, 255, 128
    np.savez(path, inputs=images, targets=np.arange(3), other=1)
    found, targets = inputs_from(path)
    assert targets is None
    np.testing.assert_array_equal(found[0, :, 0, 0], [0.0, 1.0, 128 / 255])
    np.testing.assert_array_equal(found[2, 1], images[2, :, :, 1] / 255)
    found, targets = inputs_from(str(path), targets=True)
    np.testing.assert_array_equal(targets, [0, 1, 2])
    assert found.shape == (3, 3, 5, 4)


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(1).normal(size=(4, 3)),
        np.random.default_rng(1).normal(size=(4, 3, 6, 6)).astype(np.float32),
        np.arange(12).reshape(4, 3),
        np.arange(12, dtype=np.uint8).reshape(4, 3),  # a matrix of bytes is no image
        np.arange(12).reshape(4, 3) > 5,
        np.arange(4.0),
    ],
)
def test_other_numbers_stay_as_they_are(path, values):
    np.savez(path, inputs=values)
    found, _ = inputs_from(path)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, values)


def test_the_array_handed_over_is_left_alone():
    images = np.full((1, 2, 2, 3), 7, dtype=np.uint8)
    as_numbers(images)[:] = 0.0
    matrix = np.ones((2, 2))
    as_numbers(matrix)[:] = 0.0
    assert (images == 7).all()
    assert (matrix == 1).all()


def test_missing_keys_are_named(path):
    np.savez(path, features=np.ones((2, 2)), labels=np.ones(2))
    expected = "inputs: expected the key inputs in records.npz, got keys features, labels; add it"
    assert refusal(path) == expected
    assert refusal(path, targets=True) == expected
    np.savez(path, inputs=np.ones((2, 2)))
    inputs_from(path)
    assert refusal(path, targets=True) == "targets: expected the key targets in records.npz, got keys inputs; add it"


@pytest.mark.parametrize("values", [np.array(["a", "b"]), np.array([b"a"]), np.ones(2, dtype=complex)])
def test_words_and_other_kinds_are_refused(path, values):
    np.savez(path, inputs=values)
    expected = f"inputs: expected images or a matrix of numbers, got dtype {values.dtype}; embed them, and pass the"
    assert refusal(path).startswith(expected)


def test_files_that_are_none(path, tmp_path):
    assert refusal(path) == f"inputs: expected a file that exists, got {path}; check the path"
    assert refusal(tmp_path).startswith("inputs: expected a file that exists, got")
    np.savez(path, inputs=np.ones((200, 20)))
    path.write_bytes(path.read_bytes()[:-300])
    whole = "inputs: expected a whole .npz file, got records.npz, truncated or not of that format; write the file again"
    assert refusal(path) == whole
    path.write_text("inputs")
    assert refusal(path) == whole
    np.save(tmp_path / "matrix.npy", np.ones((2, 2)))
    assert refusal(tmp_path / "matrix.npy").startswith("inputs: expected a whole .npz file, got matrix.npy")


def test_pickles_are_not_opened(path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was opened",))

    np.savez(path, allow_pickle=True, inputs=np.array([Trap()], dtype=object))
    assert refusal(path).startswith("inputs: expected")


def test_images_are_known_by_their_channels(path):
    images = np.random.default_rng(0).integers(0, 256, size=(2, 5, 6, 3), dtype=np.uint8)
    last = as_numbers(images)
    np.testing.assert_array_equal(as_numbers(images.transpose(0, 3, 1, 2)), last)
    np.testing.assert_array_equal(as_numbers(images[..., 0]), last[:, :1])
    with pytest.raises(InputError, match=r"inputs: expected images with 1, 3 or 4 channels, last or first, got shape"):
        as_numbers(images[..., [0, 1]])


# ------------------------------------------------------------------------------------------------ in their own type


def saved(path, values, suffix):
    path = path.with_suffix(suffix)
    np.savez(path, inputs=values, other=1) if suffix == ".npz" else np.save(path, values)
    return path


both = pytest.mark.parametrize("suffix", [".npz", ".npy"])


@both
@settings(max_examples=20, deadline=None)
@given(shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(5, 7), st.sampled_from([1, 3, 4])))
def test_records_of_bytes_stay_bytes_with_channels_first(tmp_path_factory, suffix, shape):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    path = tmp_path_factory.mktemp("images") / "records.npz"
    for stored in (images, images.transpose(0, 3, 1, 2)) if shape[1] not in (1, 3, 4) else (images,):
        found = records_from(saved(path, stored, suffix))
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, images.transpose(0, 3, 1, 2))
    found = records_from(saved(path, images[..., 0], suffix))
    np.testing.assert_array_equal(found, images[:, None, :, :, 0])


@both
@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(1).normal(size=(4, 3, 6, 6)).astype(np.float32),
        np.random.default_rng(1).normal(size=(4, 6, 6, 3)),
        np.arange(12).reshape(4, 3),
        np.arange(12, dtype=np.uint8).reshape(4, 3),
        np.arange(12).reshape(4, 3) > 5,
        np.array([["red", "1.5"], ["green", "2"]]),
    ],
)
def test_records_of_other_kinds_stay_as_they_are(path, values, suffix):
    found = records_from(str(saved(path, values, suffix)))
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(found, values)


def test_an_npy_is_mapped_into_memory(path):
    for values in (np.ones((4, 3)), np.ones((4, 5, 5, 3), dtype=np.uint8)):
        found = records_from(saved(path, values, ".npy"))
        assert isinstance(found, np.memmap)
        assert not found.flags.writeable


@both
def test_records_that_are_strings_become_a_list(path, suffix):
    assert records_from(saved(path, np.array(["one", "Straße", ""]), suffix)) == ["one", "Straße", ""]


@both
@pytest.mark.parametrize("values", [np.array([b"a"]), np.ones(2, dtype=complex), np.array(["2020-01-01"], "M8[D]")])
def test_records_of_unknown_kinds_are_refused(path, values, suffix):
    expected = f"inputs: expected images, numbers or strings, got dtype {values.dtype}; convert them to numbers or str"
    assert refusal(saved(path, values, suffix), records_from) == expected


@both
def test_records_that_need_pickle_are_refused_unread(path, suffix):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was opened",))

    file = saved(path, np.array([Trap()], dtype=object), suffix)
    assert refusal(file, records_from) == (
        f"inputs: expected arrays that need no pickle, got {file.name}, which needs it; save plain numbers, or a table "
        "as strings: table.astype(str)"
    )


def test_files_that_hold_no_records(path):
    assert refusal(path, records_from) == f"inputs: expected a file that exists, got {path}; check the path"
    np.savez(path, features=np.ones((2, 2)))
    assert refusal(path, records_from) == ("inputs: expected the key inputs in records.npz, got keys features; add it")
    for suffix in (".npz", ".npy"):
        file = saved(path, np.ones((200, 20)), suffix)
        file.write_bytes(file.read_bytes()[:-300])
        whole = f"inputs: expected a whole {suffix} file, got records{suffix}, truncated or not of that format; write"
        assert refusal(file, records_from).startswith(whole)
    with pytest.raises(InputError, match=r"inputs: expected images with 1, 3 or 4 channels, last or first, got shape"):
        records_from(saved(path, np.ones((2, 6, 6, 2), dtype=np.uint8), ".npy"))
