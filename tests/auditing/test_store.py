"""The audit folder: private, whole or not there, refused where it belongs to another audit, removable."""

import hashlib
import hmac
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from giveaway import Head, audit
from giveaway.attacks import Retraining, train_shadows
from giveaway.auditing.store import (
    AuditFolder,
    check_folder,
    fingerprint,
    listed_signals,
    provenance,
    pseudonyms,
    purge,
    read_key,
    save_audit,
    with_signals,
)
from giveaway.records import ScoreTable
from giveaway.storage import arrays
from giveaway.storage.folder import FolderCheckpoint
from tests.conftest import made_arrays, made_head, refused, save_page

PICTURE = b"\x89PNG\r\n\x1a\n\x00\xff"
FILES = {"scores.npz", "scores-digests.npz", "scores.csv", "report.html", "config.toml", "audit.json"}


def audited(head: Head, config: dict) -> ScoreTable:
    table = audit(head, scores=["loss", "newton"])
    return replace(table, meta=replace(table.meta, provenance=provenance(fingerprint(head), config)))


def write_audit(folder: Path, head: Head, config: dict) -> ScoreTable:
    table = audited(head, config)
    with AuditFolder(folder).locked(new=True) as place:
        check_folder(place, table.meta.provenance)
        save_audit(place, {"scores": table}, {"report.html": "<html></html>", "config.toml": "l2 = 0.5\n"})
    return table


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ------------------------------------------------------------------------------------------------ what is in it


def test_every_file_is_there_private_and_listed(tmp_path):
    folder = tmp_path / "deep" / "audit"
    table = write_audit(folder, made_head("classes"), {"l2": 0.5})
    assert set(contents(folder)) == FILES
    stored = json.loads((folder / "audit.json").read_text())
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents(folder).items()}
    assert {**stored["files"], "audit.json": digests["audit.json"]} == digests
    assert stored["options"] == table.meta.options.to_json()
    assert stored["curvature"]["rank"] == 20
    assert stored["provenance"]["config"] == {"l2": 0.5}
    assert set(stored["provenance"]["versions"]) == {"giveaway", "torch", "numpy", "scipy", "python"}
    assert len(stored["provenance"]["inputs_sha256"]) == 64
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    np.testing.assert_array_equal(ScoreTable.load(folder)["newton"], table["newton"])
    assert purge(folder) == (len(FILES), [])
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["squared", "classes", "multi_label"])
def test_fingerprint_sees_everything_a_score_can_depend_on(kind):
    base = made_arrays(kind) | {"l2": 0.5, "sample_weight": np.ones(60), "groups": np.arange(60) // 2}
    features = base["features"]
    changed = features.copy()
    changed[59, 3] = np.nextafter(changed[59, 3], 9)
    variants = [
        base,
        base | {"features": changed},
        base | {"features": features.astype(np.float32)},
        base | {"outputs": base["outputs"] + 1e-12},
        base | {"targets": base["targets"][::-1].copy()},
        base | {"l2": 0.25},
        base | {"penalize_intercept": False},
        base | {"intercept": False},
        base | {"sample_weight": np.r_[2.0, np.ones(59)]},
        base | {"sample_weight": None},
        base | {"groups": np.arange(60) // 3},
        base | {"groups": None},
        base | {"ids": np.arange(60) + 1},
    ]
    hashes = [fingerprint(Head(**arrays)) for arrays in variants]
    assert len(set(hashes)) == len(variants)
    assert fingerprint(Head(**base)) == hashes[0]


def test_fingerprint_sees_the_records_themselves(tmp_path):
    numbers = np.arange(120.0).reshape(60, 2)
    words = [f"text {i}" for i in range(60)]
    frame = pd.DataFrame({"a": numbers[:, 0], "b": words})
    images = np.zeros((60, 3, 4, 4), dtype=np.uint8)
    variants = [
        None,
        numbers,
        numbers.astype(np.float32),
        numbers + np.eye(60)[:, 59:],
        numbers.reshape(60, 1, 2),
        words,
        [*words[:-1], "other"],
        ["text ", "0text 1", *words[2:]],
        numbers.astype(str),
        np.array([["a", 1.0]] * 60, dtype=object),
        np.array([["a", 1]] * 60, dtype=object),
        np.array([["a", None]] * 60, dtype=object),
        frame,
        frame.rename(columns={"a": "c"}),
        frame.assign(b=words[::-1]),
        frame.assign(a=frame["a"].astype(np.float32)),
        frame.assign(b=pd.Categorical(words)).iloc[:, ::-1],
        images,
        np.concatenate([images[:-1], images[-1:] + 1]),
    ]
    arrays = made_arrays("classes")
    hashes = [fingerprint(Head(**arrays, inputs=inputs)) for inputs in variants]
    assert len(set(hashes)) == len(variants)
    assert [fingerprint(Head(**arrays, inputs=inputs)) for inputs in variants] == hashes
    np.save(tmp_path / "numbers.npy", numbers)
    assert fingerprint(Head(**arrays, inputs=np.load(tmp_path / "numbers.npy", mmap_mode="r"))) == hashes[1]
    assert fingerprint(Head(**arrays, inputs=np.array(words, dtype=object).tolist())) == hashes[5]
    strided = np.repeat(numbers, 2, axis=0)[::2]
    assert fingerprint(Head(**arrays, inputs=strided)) == hashes[1]
    tensors = [torch.from_numpy(numbers), torch.from_numpy(numbers).T.contiguous().T, torch.from_numpy(numbers) + 1]
    of_tensors = [fingerprint(Head(**arrays, inputs=tensor)) for tensor in tensors]
    assert of_tensors[0] == of_tensors[1] != of_tensors[2]


@pytest.mark.parametrize("size", [1, 100, 10**9])
def test_a_fingerprint_does_not_depend_on_its_blocks(monkeypatch, size):
    base = made_arrays("classes") | {"groups": np.arange(60) // 2}
    inputs = [np.arange(240).reshape(60, 4), [f"text {i}" for i in range(60)], torch.arange(60.0)[:, None]]
    whole = [fingerprint(Head(**base, inputs=value)) for value in inputs]
    monkeypatch.setattr(arrays, "BLOCK_BYTES", size)
    monkeypatch.setattr(arrays, "ROWS_PER_CHECK", min(size, 7))
    assert [fingerprint(Head(**base, inputs=value)) for value in inputs] == whole


# ------------------------------------------------------------------------------------------------ refusals


def test_the_same_audit_is_taken_again_and_another_refused_with_the_difference(tmp_path):
    folder, options = tmp_path / "audit", {"l2": 0.5, "features": "a.npz"}
    write_audit(folder, made_head("classes"), options)
    first = contents(folder)
    write_audit(folder, made_head("classes"), options)
    before = contents(folder)
    assert (before.keys(), before["scores.csv"]) == (first.keys(), first["scores.csv"])
    other = {"l2": 0.25, "features": "a.npz", "by": "record"}
    message = refused("expected", write_audit, folder, made_head("classes", seed=1), other)
    assert message.startswith("out: expected an audit of the same inputs and options, got ")
    for difference in ("inputs differ", "l2 was 0.5, is 0.25", "by was None, is 'record'"):
        assert difference in message
    assert "a.npz" not in message
    assert message.endswith("; choose another folder, or write over it (overwrite=True, --overwrite)")
    assert contents(folder) == before


def test_folders_that_are_not_the_audit_s(tmp_path):
    head, foreign = made_head("classes"), tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    words = r"out: expected a new, empty or earlier audit folder, got .* with other files"
    refused(words, write_audit, foreign, head, {})
    assert contents(foreign) == {"thesis.txt": b"mine"}
    for text in ("{", "[]", "\udce9"):
        (foreign / "audit.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        refused(r"out: expected a readable audit\.json", write_audit, foreign, head, {})


# ------------------------------------------------------------------------------------------------ interruptions


class Interrupted:
    """Stands in for the rename of files; raises at the k-th."""

    def __init__(self, real, at: int, error: type[BaseException]) -> None:
        self.real, self.at, self.error, self.calls = real, at, error, 0

    def __call__(self, source, target):
        self.calls += 1
        if self.calls == self.at:
            raise self.error
        self.real(source, target)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("at", range(1, 12))
def test_an_interruption_leaves_all_or_nothing(tmp_path, monkeypatch, at, error):
    """Five files are staged, audit.json is written, and then the five get their names."""
    folder = tmp_path / "audit"
    rename = Interrupted(os.replace, at, error)
    head = made_head("classes")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", rename)
        with pytest.raises(error):
            write_audit(folder, head, {})
    assert rename.calls >= at
    assert folder.exists() is (at > 6)
    assert at <= 6 or contents(folder).keys() == FILES


@pytest.mark.parametrize("at", [1, 3, 6, 7, 11])
def test_an_interruption_of_the_same_audit_keeps_the_old_files_or_the_new(tmp_path, monkeypatch, at):
    folder = tmp_path / "audit"
    head = made_head("classes")
    write_audit(folder, head, {})
    before = contents(folder)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", Interrupted(os.replace, at, KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write_audit(folder, head, {})
    assert contents(folder).keys() == before.keys()
    assert (contents(folder) == before) is (at <= 6)
    stored = [json.loads((folder / "audit.json").read_text()), ScoreTable.load(folder).meta.to_json()]
    assert stored[0]["provenance"] == stored[1]["provenance"]
    np.testing.assert_array_equal(ScoreTable.load(folder)["newton"], audit(head)["newton"])


def killed_after(at: int, monkeypatch, work, *arguments) -> None:
    """Leave a folder as a process killed at its at-th rename would: no clean-up runs."""
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", Interrupted(os.replace, at, KeyboardInterrupt))
        patch.setattr(AuditFolder, "settle", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            work(*arguments)


@pytest.mark.parametrize("at", [2, 4, 7, 10])
def test_a_killed_run_can_be_purged_or_run_again(tmp_path, monkeypatch, at):
    for name in ("purged", "repeated"):
        killed_after(at, monkeypatch, write_audit, tmp_path / name, made_head("classes"), {})
    assert any(name.endswith(".part") for name in contents(tmp_path / "purged"))
    assert purge(tmp_path / "purged") == (len(FILES) if at > 6 else 0, [])
    assert not (tmp_path / "purged").exists()
    write_audit(tmp_path / "repeated", made_head("classes"), {})
    assert contents(tmp_path / "repeated").keys() == FILES


def test_two_audits_do_not_share_a_folder(tmp_path):
    folder, head = tmp_path / "audit", made_head("classes")
    with AuditFolder(folder).locked(new=True):
        refused(r"out: expected a folder of its own, got .* in use by another run", write_audit, folder, head, {})
    write_audit(folder, head, {})
    with AuditFolder(folder).locked():
        for use in (purge, AuditFolder(folder).remove):
            refused("in use by another run", *((use, folder) if use is purge else (use,)))
    assert contents(folder).keys() == FILES


# ------------------------------------------------------------------------------------------------ purge, pages


def test_purge_leaves_other_files_alone(tmp_path):
    folder = tmp_path / "audit"
    write_audit(folder, made_head("classes"), {})
    (folder / "notes.txt").write_text("mine")
    stored = (folder / "audit.json").read_text()
    outside = tmp_path / "outside.txt"
    outside.write_text("not the audit's")
    files = {**json.loads(stored)["files"], "../outside.txt": hashlib.sha256(outside.read_bytes()).hexdigest()}
    (folder / "audit.json").write_text(json.dumps({**json.loads(stored), "files": files}))
    purge(folder)
    assert contents(folder) == {"notes.txt": b"mine"}
    assert outside.exists()


def test_purge_follows_no_link(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "audit"
    write_audit(victim, made_head("classes"), {})
    FolderCheckpoint(victim, {"of": "it"}, resume=False).save("sums", {"x": torch.ones(2)})
    (victim / "checkpoint" / "mydata-2024.npz").write_bytes(b"mine")
    shadow_folder(victim / "signals")
    before = {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()}
    write_audit(folder, made_head("classes"), {})
    for name in ("checkpoint", "signals"):
        (folder / name).symlink_to(victim / name)
    (tmp_path / "link").symlink_to(victim)
    refused(r"out: expected a folder, got .*link, a link to one", purge, tmp_path / "link")
    assert purge(folder) == (len(FILES), [])
    assert {path.name for path in folder.iterdir()} == {"checkpoint", "signals"}
    for name in ("checkpoint", "signals"):
        refused("a link to one", purge, folder / name)
    refused("a link to one", FolderCheckpoint, folder, {"of": "it"}, resume=True)
    assert {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()} == before
    assert purge(victim)[1] == []
    assert [path.name for path in victim.rglob("*")] == ["checkpoint", "mydata-2024.npz"]


def test_purge_of_what_is_no_audit(tmp_path):
    refused(r"folder: expected an audit folder with audit\.json", purge, tmp_path)
    (tmp_path / "audit.json").write_text("{")
    refused(r"folder: expected a readable audit\.json", purge, tmp_path)


def test_a_page_added_later_is_purged_too(tmp_path):
    folder = tmp_path / "audit"
    audit(made_head("classes"), scores=["loss"]).save(folder)
    assert save_page(folder, "report.html", "first") == folder / "report.html"
    save_page(folder, "report.html", "second")
    assert (folder / "report.html").read_text() == "second"
    picture = save_page(folder, "recall.png", PICTURE)
    assert picture.read_bytes() == PICTURE
    assert stat.S_IMODE(picture.stat().st_mode) == 0o600
    assert purge(folder) == (6, [])
    assert not folder.exists()


def shadow_folder(folder: Path) -> Path:
    train_shadows(Retraining(lambda *_: np.zeros(4), records=4, kind="phi"), models=2, folder=folder)
    return folder


def test_a_folder_of_shadow_models_is_purged_by_its_own_manifest(tmp_path):
    signals = shadow_folder(tmp_path / "signals")
    (signals / "notes.txt").write_text("mine")
    written = set(contents(signals)) - {"notes.txt"}
    assert purge(signals) == (len(written), [])
    assert contents(signals) == {"notes.txt": b"mine"}
    refused(r"folder: expected an audit folder with audit\.json", purge, signals)


def test_shadow_models_in_an_audit_folder_are_purged_with_it(tmp_path):
    folder = tmp_path / "audit"
    write_audit(folder, made_head("classes"), {})
    shadow_folder(folder / "signals")
    with AuditFolder(folder).locked() as place:
        place.commit(with_signals(place, folder / "signals"))
    assert json.loads((folder / "audit.json").read_text())["signals"] == ["signals"]
    moved = folder.rename(tmp_path / "moved")
    assert listed_signals(moved) == [moved / "signals"]
    purge(moved)
    assert not moved.exists()


def test_the_signals_of_a_validation_are_listed_and_stay(tmp_path, monkeypatch):
    signals, folder = shadow_folder(tmp_path / "signals"), tmp_path / "audit"
    head = made_head("classes")
    write_audit(folder, head, {})
    before = contents(signals)
    assert listed_signals(folder) == []
    monkeypatch.chdir(tmp_path)
    for named in ("signals", signals, "gone"):
        with AuditFolder(folder).locked() as place:
            place.commit(with_signals(place, named))
    assert json.loads((folder / "audit.json").read_text())["signals"] == [str(signals), str(tmp_path / "gone")]
    assert listed_signals(folder) == [signals]
    save_page(folder, "validation.md", "…")
    write_audit(folder, head, {})  # the same audit once more
    assert listed_signals(folder) == [signals]
    assert purge(folder) == (len(FILES) + 1, [])
    assert not folder.exists()
    assert contents(signals) == before
    assert listed_signals(folder) == listed_signals(signals) == []


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_page_killed_half_way_is_purged_too(tmp_path, monkeypatch, at):
    folder = tmp_path / "audit"
    audit(made_head("classes"), scores=["loss"]).save(folder)
    killed_after(at, monkeypatch, save_page, folder, "recall.png", PICTURE)
    purge(folder)
    assert not folder.exists()


# ------------------------------------------------------------------------------------------------ pseudonyms

NAMES = np.array(["anna", "bert", "anna", "ζoë", "7"])


def test_they_are_keyed_hashes():
    found = pseudonyms(NAMES, b"k" * 16)
    assert found[0] == hmac.new(b"k" * 16, b"anna", hashlib.sha256).hexdigest()[:16]
    assert found[0] == found[2]
    assert len(set(found.tolist())) == 4
    assert not set(found.tolist()) & set(pseudonyms(NAMES, b"j" * 16).tolist())
    assert pseudonyms(np.array([7, 8]), b"k" * 16)[0] == found[4]


def test_the_key_is_made_private_and_kept(tmp_path):
    place = tmp_path / "key"
    key = read_key(place, tmp_path / "out")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert len(key) == 64
    assert read_key(place, tmp_path / "out") == key


def test_a_key_in_the_folder_or_too_short_is_refused(tmp_path):
    out, short = tmp_path / "out", tmp_path / "short"
    out.mkdir()
    short.write_text("abc\n")
    words = r"pseudonymize: expected a key outside of the audit folder, got .*, in it"
    refused(words, read_key, out / "key", out)
    refused(r"expected a key of at least 16 bytes, got .*short with 3; name a file that", read_key, short, out)
    refused(r"pseudonymize: expected a file with the key", read_key, tmp_path, out)
