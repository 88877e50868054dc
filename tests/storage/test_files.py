"""Files are private and appear whole or not at all."""

import json
import stat

import numpy as np
import pytest

from giveaway.checks import InputError
from giveaway.storage.arrays import read_arrays
from giveaway.storage.files import as_json, private_folder, write_atomically, write_text
from tests.conftest import refused


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("old", [None, "the old text"])
def test_a_write_that_breaks_off_leaves_the_old_file_or_none(tmp_path, old, error):
    path = tmp_path / "file"
    if old is not None:
        path.write_text(old)

    def half(stream):
        stream.write(b"half of the new")
        raise error

    with pytest.raises(error):
        write_atomically(path, half)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == ({} if old is None else {"file": old})


def test_nothing_is_seen_under_its_name_before_it_is_whole(tmp_path):
    path = tmp_path / "file"

    def watch(stream):
        stream.write(b"first ")
        assert not path.exists()
        stream.write(b"second")

    write_atomically(path, watch)
    assert path.read_bytes() == b"first second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_readable_file_becomes_private_when_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o644)
    write_text(path, "né")
    assert path.read_bytes() == "né".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_text(tmp_path / "file", as_json({"value": float("nan")}))
    assert list(tmp_path.iterdir()) == []
    write_text(tmp_path / "file", as_json({"é": [1, 0.1]}))
    assert json.loads((tmp_path / "file").read_text(encoding="utf-8")) == {"é": [1, 0.1]}


def test_folders_are_private_unless_in_use(tmp_path):
    new, empty, used = tmp_path / "a" / "new", tmp_path / "empty", tmp_path / "used"
    empty.mkdir()
    used.mkdir()
    (used / "file").write_text("")
    used.chmod(0o755)
    modes = [stat.S_IMODE(private_folder(folder).stat().st_mode) for folder in (new, empty, used)]
    assert modes == [0o700, 0o700, 0o755]
    assert list(new.iterdir()) == []


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"out: expected a folder that can be written, got .*; choose another folder"):
        private_folder(tmp_path / "file" / "folder")
    with pytest.raises(InputError, match=r"out: expected a place that can be written, got .*missing/file \("):
        write_text(tmp_path / "missing" / "file", "")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"text", b"\x93NUMPY\x01\x00"])
def test_what_is_no_npz(tmp_path, content):
    path = tmp_path / "file.npz"
    path.write_bytes(content)
    words = r"thing: expected a whole file written by its writer, got .* truncated or not"
    refused(words, read_arrays, "thing", path, "its writer")
    np.save(tmp_path / "file.npy", np.zeros(3))  # a single array
    refused(words, read_arrays, "thing", tmp_path / "file.npy", "its writer")
