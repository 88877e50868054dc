"""A marked folder: private, refused to other work, held by one run, whole after a kill, and able to remove itself."""

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from giveaway.checks import InputError
from giveaway.storage.files import differences
from giveaway.storage.folder import LOCK, MarkedFolder
from tests.conftest import refused


class Notes(MarkedFolder):
    marker, kind, argument = "notes.json", "notes folder", "notes"


HALF = (".giveaway-page-3.txt-a1b2c3d4.part", ".giveaway-notes.json-00112233.part")
THEIRS = {"page-a.txt", "page-1.txt.bak", ".page-1.txt.part", ".giveaway-page.part", "mine"}


@pytest.fixture
def folder(tmp_path) -> Notes:
    """Two pages, what a killed run left, and files of somebody else."""
    with Notes(tmp_path / "deep" / "notes").locked(new=True) as notes:
        notes.save_pages({"page-1.txt": "one", "page-22.txt": "two"}, {"of": "today"})
    for name in (*HALF, *THEIRS):
        (notes.path / name).write_text("half" if name in HALF else "theirs")
    return notes


def names(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def contents(path: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in path.iterdir() if file.is_file()}


def test_a_new_folder_is_private_and_lists_what_it_holds(tmp_path):
    notes = Notes(tmp_path / "a" / "b")
    with notes.locked(new=True):
        assert not notes.marked
        notes.save_pages({"page.txt": "é"}, {"of": "today"})
        assert names(notes.path) == {"notes.json", "page.txt", LOCK}
    assert (notes.marked, notes.read()["of"]) == (True, "today")
    assert notes.listed() == {"page.txt": hashlib.sha256("é".encode()).hexdigest()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (notes.path, notes.path.parent)} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in notes.path.iterdir()} == {0o600}
    assert names(notes.path) == {"notes.json", "page.txt"}


def interrupted(notes: Notes) -> None:
    with notes.locked(new=True):
        notes.stage("page.txt", lambda stream: stream.write(b"half"))
        raise KeyboardInterrupt


def test_a_folder_of_which_nothing_came_is_gone(tmp_path):
    for existed in (False, True):
        if existed:
            (tmp_path / "new").mkdir()
        with pytest.raises(KeyboardInterrupt):
            interrupted(Notes(tmp_path / "new"))
        assert (tmp_path / "new").exists() is existed
    assert names(tmp_path / "new") == set()


def test_what_is_another_s_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    words = r"notes: expected a new, empty or earlier notes folder, got .* other files; "
    refused(words, Notes(tmp_path).locked(new=True).__enter__)
    refused(r"notes: expected a notes folder with notes\.json, got ", Notes(tmp_path).read)
    refused(r"folder: expected a notes folder with notes\.json, got ", Notes(tmp_path).locked().__enter__)
    for text in ("{", "[]", "\udce9"):
        (tmp_path / "notes.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        refused(r"folder: expected a readable notes\.json, got ", Notes(tmp_path).remove)
    assert names(tmp_path) == {"thesis.txt", "notes.json"}
    (tmp_path / "locked").mkdir()
    for name in (LOCK, *HALF):  # what a killed run left is nobody's work
        (tmp_path / "locked" / name).write_text("")
    with Notes(tmp_path / "locked").locked(new=True):
        assert names(tmp_path / "locked") == {LOCK}


def test_a_file_that_is_not_listed_is_never_overwritten(folder):
    with folder.locked():
        words = r"notes: expected a place for mine, got .*mine, which the folder does not list; move it elsewhere"
        refused(words, folder.save_pages, {"page-1.txt": "new", "mine": "ours"})
    assert contents(folder.path)["mine"] == "theirs"
    assert contents(folder.path)["page-1.txt"] == "one"


# ------------------------------------------------------------------------------------------------ kills


class Killed(BaseException):
    pass


def kill_at(monkeypatch, at: int, work) -> int:
    """Run `work` as far as the at-th rename or removal, and leave the folder as a kill there would."""
    calls = [0]

    def counted(real):
        def call(*arguments, **options):
            calls[0] += 1
            if calls[0] >= at:
                raise Killed
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "unlink"):
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            work()
        except Killed:
            return calls[0]
    return 0


@pytest.mark.parametrize("at", range(1, 12))
def test_a_kill_leaves_the_old_files_or_the_new_ones(tmp_path, monkeypatch, at):
    old, new = {"a.txt": "old a", "b.txt": "old b"}, {"a.txt": "new a", "b.txt": "new b", "c.txt": "new c"}
    with Notes(tmp_path / "notes").locked(new=True) as notes:
        notes.save_pages(old, {"of": "old"})

    def write():
        with Notes(notes.path).locked() as again:
            again.save_pages(new, {"of": "new"})

    kill_at(monkeypatch, at, write)
    # whoever reads without the lock gets one or the other
    state = notes.read()["of"]
    expected = {"old": old, "new": new}[state]
    assert {name: notes.verified(name).read_text() for name in expected} == expected
    with Notes(notes.path).locked():
        pass
    assert contents(notes.path) == {**expected, "notes.json": (notes.path / "notes.json").read_text()}


@pytest.mark.parametrize("at", range(1, 9))
def test_a_removal_that_is_interrupted_can_be_repeated(folder, monkeypatch, at):
    kill_at(monkeypatch, at, folder.remove)
    if folder.marked or folder.parts():
        folder.remove()
    assert names(folder.path) - {LOCK} == THEIRS


# ------------------------------------------------------------------------------------------------ removal


def test_removal_takes_what_the_folder_wrote_and_nothing_else(folder):
    assert folder.remove() == 3
    assert names(folder.path) == THEIRS
    for name in THEIRS:
        (folder.path / name).unlink()
    with folder.locked(new=True):
        folder.save_pages({}, {})
    assert folder.remove() == 1
    assert not folder.path.exists()


def test_what_was_changed_or_put_in_the_place_stays_and_is_told(folder):
    (folder.path / "page-1.txt").write_text("my own words")
    assert folder.remove() == 2
    assert folder.kept == [folder.path / "page-1.txt"]
    assert contents(folder.path)["page-1.txt"] == "my own words"


def test_names_that_lead_elsewhere_are_not_the_folder_s(folder, tmp_path):
    outside = tmp_path / "deep" / "outside.txt"
    outside.write_text("one")
    stored = folder.read()
    digest = stored["files"]["page-1.txt"]  # of the same words
    more = {"../outside.txt": digest, str(outside): digest, "..": digest, "": digest, "mine": None, "page-22.txt": [1]}
    (folder.path / "notes.json").write_text(json.dumps({**stored, "files": {**stored["files"], **more}}))
    assert folder.remove() == 2
    assert outside.read_text() == "one"
    assert names(folder.path) == {*THEIRS, "page-22.txt"}


def test_links_are_never_followed(folder, tmp_path):
    victim = tmp_path / "victim"
    with Notes(victim).locked(new=True) as notes:
        notes.save_pages({"page-1.txt": "one"}, {"of": "the victim"})
    before = contents(victim)
    link = tmp_path / "link"
    link.symlink_to(victim)
    words = r"notes: expected a folder, got .*link, a link to one; name the folder itself"
    refused(words, Notes(link).remove)
    refused(words, Notes(link).locked(new=True).__enter__)
    assert not Notes(link).marked
    # a link in the place of a listed file, of the marker, and of the lock
    (folder.path / "page-1.txt").unlink()
    (folder.path / "page-1.txt").symlink_to(victim / "page-1.txt")
    refused(r"page-1.txt as it was written, got ", folder.verified, "page-1.txt")
    (folder.path / LOCK).symlink_to(tmp_path / "made")
    refused(r"notes: expected a lock that can be written, got .*; remove it", folder.locked().__enter__)
    assert not (tmp_path / "made").exists()
    (folder.path / LOCK).unlink()
    assert folder.remove() == 2
    (folder.path / "notes.json").symlink_to(victim / "notes.json")
    assert not folder.marked
    assert contents(victim) == before


def test_a_damaged_file_is_named_with_what_to_do(folder):
    (folder.path / "page-1.txt").write_bytes(b"")
    words = (
        r"notes: expected page-1\.txt as it was written, got .*, damaged or changed since; remove page-1\.txt, and run"
    )
    refused(words, folder.verified, "page-1.txt")
    (folder.path / "page-1.txt").unlink()
    assert not folder.verified("page-1.txt").exists()
    assert folder.verified("mine").read_text() == "theirs"  # not listed, not known


# ------------------------------------------------------------------------------------------------ one at a time


def test_a_folder_in_use_is_neither_taken_nor_removed(folder):
    with folder.locked():
        before = names(folder.path)
        for use in (Notes(folder.path).locked().__enter__, Notes(folder.path).remove):
            refused(r"notes: expected a folder of its own, got .*, in use by another run; ", use)
        assert names(folder.path) == before
    with folder.locked():
        pass
    assert LOCK not in names(folder.path)


def test_a_lock_that_was_removed_meanwhile_holds_nobody(folder, monkeypatch):
    import fcntl

    real, first = fcntl.flock, [True]

    def late(handle, how):
        if first.pop() if first else False:
            (folder.path / LOCK).unlink()  # the run before removes it after it was opened here
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with folder.locked():
        refused("in use by another run", Notes(folder.path).locked().__enter__)


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
