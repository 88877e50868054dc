"""A marked folder: private, refused to other work, locked, told apart by its marker, and able to remove itself."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from giveaway.checks import InputError
from giveaway.storage.files import MarkedFolder, differences
from tests.conftest import refused


class Notes(MarkedFolder):
    marker, kind, names, argument, locks = "notes.json", "notes folder", r"page-\d+\.txt", "notes", True


@pytest.fixture
def folder(tmp_path) -> Notes:
    notes = Notes(tmp_path / "deep" / "notes")
    notes.claim()
    notes.write({"of": "today"})
    for name in ("page-1.txt", "page-22.txt", ".page-3.txt-a1b2.part", ".notes.json-x_y.part", "lock"):
        (notes.path / name).write_text("ours")
    for name in ("page-a.txt", "page-1.txt.bak", ".page-1.txt.part", "mine"):
        (notes.path / name).write_text("theirs")
    return notes


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def test_a_new_folder_is_private_and_says_what_it_holds(tmp_path):
    notes = Notes(tmp_path / "a" / "b")
    assert not notes.marked
    notes.claim()
    notes.write({"of": "today"})
    assert (notes.marked, notes.read()) == (True, {"of": "today"})
    assert {stat.S_IMODE(path.stat().st_mode) for path in (notes.path, notes.path.parent)} == {0o700}
    assert stat.S_IMODE((notes.path / "notes.json").stat().st_mode) == 0o600
    notes.claim()  # once more


def test_what_is_another_s_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    refused(r"notes: expected a new, empty or earlier notes folder, got .* other files; ", Notes(tmp_path).claim)
    refused(r"notes: expected a notes folder with notes\.json, got ", Notes(tmp_path).read)
    for text in ("{", "[]", "\udce9"):
        (tmp_path / "notes.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        refused(r"folder: expected a readable notes\.json, got ", Notes(tmp_path).remove)
    assert names(tmp_path) == {"thesis.txt", "notes.json"}
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked" / "lock").write_text("")
    Notes(tmp_path / "locked").claim()  # a lock alone is nobody's work


def test_removal_takes_what_the_folder_wrote_and_nothing_else(folder):
    theirs = {"page-a.txt", "page-1.txt.bak", ".page-1.txt.part", "mine"}
    assert folder.remove() == 6
    assert names(folder.path) == theirs
    for name in theirs:
        (folder.path / name).unlink()
    folder.write({})
    assert folder.remove() == 2  # with the lock
    assert not folder.path.exists()


def test_some_files_can_be_spared(folder):
    assert folder.clear("lock", "notes.json") == 4
    assert folder.marked
    assert [file.name for file in folder.files()] == ["lock", "notes.json"]


def test_a_removal_that_is_interrupted_can_be_repeated(folder, monkeypatch):
    unlink, calls = Path.unlink, []

    def interrupted(path, missing_ok=False):
        calls.append(path)
        if len(calls) == 6:
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.remove()
    assert calls[-1].name == "notes.json"  # the marker goes last
    assert folder.remove() == 2


def test_a_folder_in_use_is_neither_taken_nor_removed(folder):
    before = names(folder.path)
    with folder.locked():
        for use in (Notes(folder.path).locked().__enter__, Notes(folder.path).remove):
            refused(r"notes: expected a folder of its own, got .*, in use by another run; ", use)
    assert names(folder.path) == before
    with folder.locked():
        pass


def test_differences_are_named_and_digests_not_shown():
    old = {"inputs_sha256": "ab", "rows": 3, "options": {"l2": 0.5, "scores": ["newton"]}, "labels": "sha256 1"}
    new = {"inputs_sha256": "cd", "rows": 4, "options": {"l2": 0.25, "scores": ["newton"]}, "labels": "sha256 2"}
    assert differences(old, old) == []
    assert differences(old, new) == ["inputs differ", "labels differ", "l2 was 0.5, is 0.25", "rows was 3, is 4"]
    assert differences(old, {**old, "rows": 4}, {"rows": "{old} then, {new} now"}) == ["3 then, 4 now"]
    (line,) = differences({"text": "x" * 99}, {})
    assert line == f"text was '{'x' * 58}…, is None"


def test_another_s_folder_is_refused_by_what_differs(folder):
    folder.check(folder.read(), {"of": "today"}, "the same notes", "choose another")
    with pytest.raises(InputError, match=r"^notes: expected the same notes, got of was 'today', is 'then'; choose ano"):
        folder.check(folder.read(), {"of": "then"}, "the same notes", "choose another")
