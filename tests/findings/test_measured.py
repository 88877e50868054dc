"""What was measured comes back from the folder as it was."""

from __future__ import annotations

import json

import numpy as np
import pytest

from giveaway import audit
from giveaway.auditing.validate import validate
from giveaway.checks import InputError
from giveaway.records import Signals
from giveaway.reporting.validation import StoredValidation
from tests.conftest import made_head


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    members = rng.random((16, 120)) < 0.5
    phi = rng.normal(size=(16, 120)) + members * np.linspace(0, 6, 120)
    return validate(Signals(phi, members, kind="phi"), audit(made_head("classes", n=120), scores=["newton", "loss"]))


def test_it_comes_back_from_the_folder(found, tmp_path):
    assert StoredValidation.load(tmp_path) is None
    measured = StoredValidation.of(found)
    for name, page in measured.pages().items():
        (tmp_path / name).write_bytes(page if isinstance(page, bytes) else page.encode())
    again = StoredValidation.load(tmp_path)
    assert again.stated == {**json.loads(json.dumps(found.to_json())), "recipe": None}
    np.testing.assert_array_equal(again.success, found.success)
    np.testing.assert_array_equal(again.effect_size, found.effect_size)
    np.testing.assert_array_equal(again.flagged, found.count.flagged)
    assert again.flagged.sum() == again.stated["at_least_exposed"]["records"]


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
    with pytest.raises(InputError, match=r"folder: expected a readable validation, got .*validation.json"):
        StoredValidation.load(tmp_path)


def test_half_a_validation_is_named(found, tmp_path):
    (tmp_path / "validation.json").write_text(json.dumps(found.to_json()))
    with pytest.raises(InputError, match=r"folder: expected a file written by giveaway validate, got .*validation.npz"):
        StoredValidation.load(tmp_path)
