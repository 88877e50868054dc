"""Unfinished work: as it was after a kill, refused to another audit, private, gone when the audit is done."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.storage import arrays, folder
from giveaway.storage.folder import Checkpoint, FolderCheckpoint, UnfinishedWork
from tests.conftest import refused

DIGEST = {
    "inputs_sha256": "ab" * 32,
    "options": {"probes": 64, "scores": ("newton", "influence"), "l2": 0.5},
    "processes": 1,
    "versions": {"giveaway": "0.1.0", "torch": "2.13.0"},
}


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(40, 9, dtype=torch.float64, generator=generator)
    return {
        "double": drawn,
        "float": drawn.float(),
        "transposed": drawn.T,
        "strided line": drawn[:, 4],
        "expanded": drawn[:1].expand(7, 9),
        "flags": drawn > 0,
        "count": torch.tensor(17),
        "none": torch.zeros(0, 3),
        "file": torch.arange(5),
        "extremes": torch.tensor([float("inf"), -0.0, 5e-324, float("nan")], dtype=torch.float64),
    }


def same(found: dict[str, torch.Tensor] | None, expected: dict[str, torch.Tensor]) -> bool:
    """Bit for bit, with type and shape."""
    if found is None or list(found) != list(expected):
        return False
    return all(
        f.dtype == e.dtype
        and f.shape == e.shape
        and torch.equal(f.contiguous().view(-1).view(torch.uint8), e.contiguous().view(-1).view(torch.uint8))
        for f, e in zip(found.values(), expected.values(), strict=True)
    )


def begun(folder: Path, *, resume: bool = False, rank: int = 0, **changes) -> FolderCheckpoint:
    return FolderCheckpoint(folder, {**DIGEST, **changes}, resume=resume, rank=rank)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "checkpoint").iterdir()) if path.is_file()}


# ------------------------------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("piece", [1, 100, 1 << 24])
def test_tensors_come_back_bit_for_bit(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", piece)
    kept: Checkpoint = begun(tmp_path)
    kept.save("sums", tensors())
    assert same(kept.load("sums"), tensors())
    kept.save("sums", tensors(1))
    kept.save("probes-0", tensors(2))
    later = begun(tmp_path, resume=True)
    assert later.resumed
    assert same(later.load("sums"), tensors(1))
    assert same(later.load("probes-0"), tensors(2))
    assert later.load("probes") is None
    later.drop("sums")
    later.drop("sums")
    assert later.load("sums") is None


def test_bfloat16_which_files_do_not_have_comes_back_as_float32(tmp_path):
    checkpoint, brain = FolderCheckpoint(tmp_path, DIGEST, resume=False), torch.tensor([0.1, 3e38]).bfloat16()
    checkpoint.save("part", {"brain": brain})
    assert same(checkpoint.load("part"), {"brain": brain.float()})


def test_no_large_copy_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 4_000)
    written: list[int] = []
    pieces = arrays._blocks

    def watched(tensor):
        for piece in pieces(tensor):
            written.append(piece.nbytes)
            yield piece

    monkeypatch.setattr(arrays, "_blocks", watched)
    large = torch.randn(500, 40, dtype=torch.float64)
    begun(tmp_path).save("sums", {"plain": large, "every other": large[::2], "turned": large.view(50, 400).T})
    assert max(written) <= 4_000
    assert sum(written) == 2.5 * large.nbytes


@pytest.mark.parametrize("name", ["", "../sums", "a b", ".hidden", "a/b"])
def test_names_stay_inside_the_folder(tmp_path, name):
    with pytest.raises(ValueError, match=r"^name: expected letters"):
        begun(tmp_path).save(name, tensors())


def test_every_rank_has_its_own(tmp_path):
    for rank in range(3):
        begun(tmp_path, rank=rank).save("sums", {"x": torch.tensor(rank)})
    for rank in (11, 1):
        found = begun(tmp_path, rank=rank, resume=True).load("sums")
        assert found == ({"x": torch.tensor(1)} if rank == 1 else None)
    first = begun(tmp_path, resume=True)
    assert [list(work.listed()) for work in (first, *first.inner())] == [["sums.npz"], ["sums.npz"], [], ["sums.npz"]]
    assert [work.path.name for work in first.inner()] == ["process-1", "process-11", "process-2"]
    assert set(contents(tmp_path)) == {"checkpoint.json", "sums.npz"}


# ---------------------------------------------------------------------------------------------------- what is refused


def test_unfinished_work_is_not_overwritten(tmp_path):
    begun(tmp_path).save("sums", tensors())
    before = contents(tmp_path)
    with pytest.raises(InputError) as error:
        begun(tmp_path)
    assert str(error.value) == (
        f"out: expected a folder without unfinished work, got an unfinished audit in {tmp_path / 'checkpoint'}; "
        "add --resume to go on with it, or remove it with giveaway purge"
    )
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs_sha256": "cd" * 32}, "inputs differ"),
        ({"options": {**DIGEST["options"], "probes": 128}}, "probes was 64, is 128"),
        ({"options": {"probes": 64, "scores": ["newton", "influence"]}}, "l2 was 0.5, is None"),
        ({"options": {**DIGEST["options"], "seed": 3}}, "seed was None, is 3"),
        ({"processes": 2}, "processes was 1, is 2"),
        ({"versions": {"giveaway": "0.1.0", "torch": "2.14.0"}}, "torch was '2.13.0', is '2.14.0'"),
        ({"inputs_sha256": "cd" * 32, "processes": 4}, "inputs differ; processes was 1, is 4"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_another_audit_is_refused_by_what_differs(tmp_path, changes, words, rank):
    begun(tmp_path).save("sums", tensors())
    before = contents(tmp_path)
    with pytest.raises(InputError) as error:
        begun(tmp_path, resume=True, rank=rank, **changes)
    assert str(error.value) == (
        f"resume: expected the inputs and options that the audit was begun with, got {words}; "
        "give the same again, or remove it with giveaway purge"
    )
    assert contents(tmp_path) == before


def test_nothing_to_resume_is_a_beginning(tmp_path):
    kept = begun(tmp_path, resume=True)
    assert not kept.resumed
    assert kept.load("sums") is None
    assert contents(tmp_path)
    assert not begun(tmp_path, resume=True).resumed  # nothing was finished yet
    kept.save("sums", tensors())
    assert begun(tmp_path, resume=True).resumed


def test_the_other_ranks_begin_beside_the_first(tmp_path):
    begun(tmp_path)
    assert not begun(tmp_path, rank=1).resumed
    refused("an unfinished audit in", begun, tmp_path, rank=1, processes=7)


def test_what_another_run_left_is_not_taken_up(tmp_path):
    begun(tmp_path)
    begun(tmp_path, rank=1).save("sums", {"x": torch.tensor(1)})
    (tmp_path / "checkpoint" / "process-1" / "checkpoint.json").unlink()
    assert begun(tmp_path, rank=1).load("sums") is None
    assert begun(tmp_path, rank=1, resume=True).load("sums") is None
    # nor is a file of another audit
    begun(tmp_path / "a").save("sums", tensors())
    other = begun(tmp_path / "b", processes=2)
    (tmp_path / "b" / "checkpoint" / "sums.npz").write_bytes(contents(tmp_path / "a")["sums.npz"])
    assert other.load("sums") is None


def test_an_unreadable_beginning_is_refused(tmp_path):
    begun(tmp_path).save("sums", tensors())
    (tmp_path / "checkpoint" / "checkpoint.json").write_text('{"inputs')
    for resume in (True, False):
        refused(r"expected a readable checkpoint.json, got .*; remove .*, or ", begun, tmp_path, resume=resume)


def test_a_full_disk_is_one_line_and_keeps_the_earlier_file(tmp_path, monkeypatch):
    kept = begun(tmp_path)
    kept.save("sums", tensors())

    def full(stream, entries):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "write_archive", full)
    refused(r"^out: expected room for 0\.0 GB of unfinished work, got .*\(No space left", kept.save, "sums", tensors(1))
    assert same(kept.load("sums"), tensors())
    assert len(contents(tmp_path)) == 2


# ------------------------------------------------------------------------------------------------- kills and bad bytes


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    begun(folder).save("sums", tensors())
    return folder


@given(data=st.data())
def test_cut_or_changed_bytes_are_never_taken_for_tensors(stored, data):
    kept = begun(stored, resume=True)
    file = stored / "checkpoint" / "sums.npz"
    whole = file.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at]
    if not data.draw(st.booleans()):
        changed += bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    try:
        file.write_bytes(changed)
        found = kept.load("sums")
        assert found is None or same(found, tensors())  # a date may be another
        if len(changed) < len(whole):
            assert found is None
    finally:
        file.write_bytes(whole)
    assert same(kept.load("sums"), tensors())


# ---------------------------------------------------------------------------------------------------- when, and the end


def test_saving_stays_a_small_share_of_the_time(tmp_path, monkeypatch):
    now, slow = 0.0, 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    kept = FolderCheckpoint(tmp_path, DIGEST, resume=False)

    def write(stream, entries):
        nonlocal now
        now += slow

    monkeypatch.setattr(folder, "write_archive", write)
    for wait, took, next_wait in ((60.0, 0.5, 60.0), (60.0, 10.0, 200.0), (200.0, 1.0, 60.0)):
        start, slow = now, took
        now = start + wait - 0.01
        assert not kept.due()
        now = start + wait
        assert kept.due()
        kept.save("sums", {"x": torch.ones(1)})
        assert not kept.due()
        start = now
        now = start + next_wait
        assert kept.due()
        now = start


def test_finishing_and_purging_leave_nothing_of_ours(tmp_path):
    kept, other = begun(tmp_path), begun(tmp_path, rank=1)
    for each in (kept, other):
        each.save("sums", tensors())
    (tmp_path / "checkpoint" / ".giveaway-sums.npz-abc12345.part").write_bytes(b"half")
    other.finish()
    assert same(kept.load("sums"), tensors())
    kept.finish()
    kept.finish()
    assert list(tmp_path.iterdir()) == []
    begun(tmp_path).save("sums", tensors())
    (tmp_path / "checkpoint" / "notes.txt").write_text("mine")
    assert UnfinishedWork(tmp_path / "checkpoint").remove() == 2
    assert set(contents(tmp_path)) == {"notes.txt"}
