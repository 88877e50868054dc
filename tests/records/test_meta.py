"""Metadata: JSON keys as they always were, attributes in Python, nothing lost of what other versions wrote."""

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from giveaway import audit, lood
from giveaway.records.meta import KernelReport, Meta, Provenance
from tests.conftest import made_head, refused

OF_EVERY_AUDIT = """
unit rows records outputs loss l2 intercept penalize_intercept frozen options processes device curvature optimum
view no_view predicted_by no_prediction kernel repeats newton_capped seconds
""".split()  # noqa: SIM905


def test_an_audit_writes_every_key_and_reads_it_back():
    meta = audit(made_head("classes", l2=0.5)).meta
    written = json.loads(json.dumps(meta.to_json()))
    assert list(written) == OF_EVERY_AUDIT
    assert (written["view"], written["kernel"]) == (None, None)
    assert written["curvature"]["curvature"] == meta.curvature.kind == "dense"
    assert written["optimum"] == {"relative_gradient": None, "note": "unknown: the head's weights were not given"}
    again = Meta.from_json(written)
    assert again == meta
    assert again.of_model
    kept = replace(again, provenance=Provenance(config={"l2": 0.5}))
    assert set(kept.to_json()) == {*OF_EVERY_AUDIT, "title", "provenance"}


def test_gaussian_processes_state_their_kernel_beside_the_rest():
    meta = lood("rbf", [[0.0], [1.0], [3.0]], [0.0, 1.0, 0.5], 0.1).meta
    written = meta.to_json()
    assert set(written) == {"unit", "rows", "records", "outputs", "kernel", "noise", "condition", "seconds"}
    assert (written["kernel"], written["noise"]) == (meta.kernel.name, 0.1)
    assert Meta.from_json(written) == meta
    assert not meta.of_model
    inside = replace(meta, of_model=True).to_json()["kernel"]
    assert KernelReport.from_json(inside) == meta.kernel


def test_what_another_version_wrote_is_kept():
    given = {
        "unit": "person",
        "colour": "blue",
        "view": {"view": "images", "left_out_error": 0.5, "memorized": None, "head_is_exact": False, "shade": 3},
        "depths": {"all": {"curvature": "ggn", "damping": 2.0, "passes": 7}},
    }
    meta = Meta.from_json(given)
    assert (meta.more, meta.view.more, meta.depths["all"].more) == ({"colour": "blue"}, {"shade": 3}, {"passes": 7})
    assert (meta.by_person, meta.rows_are, meta.view.kind, meta.view.memorized) == (True, "people", "images", None)
    assert meta.to_json() == given


def test_defaults():
    assert Meta().to_json() == {"unit": "record"}
    assert Meta().assumes_optimum
    assert not Meta.from_json({"options": {"converged": False}}).assumes_optimum
    with pytest.raises(FrozenInstanceError):
        Meta().unit = "person"
    refused("meta: expected a mapping for ViewReport, got list; write the audit again", Meta.from_json, {"view": [1]})
