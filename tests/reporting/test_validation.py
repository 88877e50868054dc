"""The files of a validation, and what comes back from the folder."""

import dataclasses
import json

import numpy as np
import pytest

from giveaway import audit, validate
from giveaway.records import ScoreTable, Signals
from giveaway.reporting.validation import StoredValidation, validation_pages
from tests.conftest import made_head, refused


def validated(*columns: str) -> dict[str, str | bytes]:
    rng = np.random.default_rng(0)
    exposure = rng.gamma(1.0, size=300)
    members = np.stack([rng.permutation(np.arange(32) < 16) for _ in range(300)], axis=1)
    signals = Signals(rng.normal(size=members.shape) + members * exposure, members, "phi")
    table = ScoreTable({name: exposure + rng.gamma(1.0, size=300) for name in columns}, ids=np.arange(300), meta={})
    found = validate(signals, table)
    assert dataclasses.is_dataclass(found)
    return validation_pages(table, found, StoredValidation.of(found))


def test_words_table_and_pictures_agree():
    pages = validated("loss", "influence", "newton")
    pictures = [name for name in pages if name.endswith(".png")]
    assert pictures == ["validation_recall.png", "validation_roc.png"]
    for name in pictures:
        assert pages[name].startswith(b"\x89PNG")
        assert f"]({name})" in pages["validation.md"]
    told = json.loads(pages["validation.json"])
    assert pages["validation.md"].startswith(told["conclusion"])
    assert [line.split(",")[0] for line in pages["validation.csv"].splitlines()[1:]] == list(told["agreement"])


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    members = rng.random((16, 120)) < 0.5
    table = audit(made_head("classes", n=120), scores=["newton", "loss"])
    phi = rng.normal(size=(16, 120)) + members * np.linspace(0, 6, 120)[table.rank("loss") - 1]
    return validate(Signals(phi, members, kind="phi"), table)


def test_it_comes_back_from_the_folder(found, tmp_path):
    assert StoredValidation.load(tmp_path) is None
    measured = StoredValidation.of(found)
    for name, page in measured.pages().items():
        (tmp_path / name).write_bytes(page if isinstance(page, bytes) else page.encode())
    again = StoredValidation.load(tmp_path)
    assert again.stated == {**json.loads(json.dumps(found.to_json())), "recipe": None, "trained": None}
    np.testing.assert_array_equal(again.success, found.success)
    np.testing.assert_array_equal(again.effect_size, found.effect_size)
    np.testing.assert_array_equal(again.flagged, found.count.flagged)
    assert again.flagged.sum() == again.stated["at_least_exposed"]["flagged"]


def test_the_thinned_curve_lies_on_the_attack_s(found):
    measured = StoredValidation.of(found)
    assert measured.false_positives[0] == 1 / found.attack.nonmembers
    assert measured.false_positives[-1] == 1.0
    for rate, cell in found.attack.true_positive_rate.items():
        near = np.flatnonzero(measured.false_positives <= rate)
        if len(near):
            assert measured.true_positives[near[-1]] <= cell.value + 1e-12
    assert (np.diff(measured.true_positives) >= 0).all()


def test_a_damaged_file_is_named(found, tmp_path):
    for name, page in StoredValidation.of(found).pages().items():
        (tmp_path / name).write_bytes(page if isinstance(page, bytes) else page.encode())
    (tmp_path / "validation.json").write_text("{")
    refused(r"folder: expected a readable validation.json, got .*validation.json", StoredValidation.load, tmp_path)


def test_half_a_validation_is_named(found, tmp_path):
    (tmp_path / "validation.json").write_text(json.dumps(found.to_json()))
    refused(r"folder: expected a file that exists, got .*validation.npz", StoredValidation.load, tmp_path)
