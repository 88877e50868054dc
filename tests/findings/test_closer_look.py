"""What a report needs of the head: all of it comes back from the folder, and what is not there says why."""

from __future__ import annotations

import numpy as np
import pytest

from giveaway import Head, audit
from giveaway.checks import InputError
from giveaway.findings.extras import FILE, ReportExtras, make_extras
from tests.conftest import made_arrays, made_head


def loaded(look: ReportExtras, folder) -> ReportExtras:
    (folder / FILE).write_bytes(look.to_bytes())
    return ReportExtras.load(folder)


def test_everything_comes_back_from_the_folder(tmp_path):
    head = made_head("classes", l2=0.5, inputs=np.random.default_rng(0).random((60, 3, 5, 5)))
    table = audit(head)
    look = make_extras(head, table, method="pca", show_records=True)
    found = loaded(look, tmp_path)
    assert look.missing == found.missing == {}
    assert look.feature_map.method == found.feature_map.method == "PCA"
    assert look.feature_map.explained == found.feature_map.explained
    np.testing.assert_array_equal(look.feature_map.places, found.feature_map.places)
    assert [len(gone.removed) for gone in found.removals] == [1, 3]
    for gone, again in zip(look.removals, found.removals, strict=True):
        assert (gone.share, gone.spearman) == (again.share, again.spearman)
        for name in ("removed", "entered", "risen", "before", "after"):
            np.testing.assert_array_equal(getattr(gone, name), getattr(again, name))
    np.testing.assert_array_equal(look.candidates.similarity, found.candidates.similarity)
    np.testing.assert_array_equal(found.contents.rows, table.order()[:100])
    assert look.contents.pictures == found.contents.pictures
    assert found.contents.pictures[0].startswith(b"\x89PNG")
    assert look.to_bytes() == make_extras(head, table, method="pca", show_records=True).to_bytes()


def test_texts_come_back_too(tmp_path):
    head = made_head("classes", l2=0.5)
    words = [f"record {i} 'quoted' \x00" for i in range(60)]
    table = audit(head)
    found = loaded(make_extras(head, table, inputs=words, show_records=True), tmp_path)
    first = int(table.order()[0])
    assert found.contents.texts[0] == f"record {first} 'quoted' \\x00"
    assert found.contents.pictures[0] == b""


def test_records_are_looked_at_on_request_only():
    head = made_head("classes", inputs=np.zeros((60, 2)))
    assert make_extras(head, audit(head)).contents is None


def test_a_black_box_has_canaries_but_no_map(tmp_path):
    head = Head(**made_arrays("classes") | {"features": None})
    look = loaded(make_extras(head, audit(head)), tmp_path)
    assert look.feature_map is None
    assert look.removals == ()
    assert look.candidates is not None
    assert look.missing["what-if"] == "a black box has no layer to take records out of"
    assert look.missing["map"] == "a black box has no features to map"


def test_large_heads_are_asked_before_they_take_long():
    head = made_head("classes", n=500, d=450)
    table = audit(head, scores=["newton"])
    assert "ask for it with --config what_if=true" in make_extras(head, table, method="none").missing["what-if"]
    assert make_extras(head, table, method="none").missing["map"] == "it was not asked for (map=none)"
    assert "--config", "what_if=false" in make_extras(head, table, method="none", what_if=False).missing["what-if"]


def test_an_unknown_map_is_refused():
    head = made_head("classes")
    with pytest.raises(InputError, match=r"map: expected a known name, got 'umap'; choose from auto, pca, tsne, none"):
        make_extras(head, audit(head), method="umap")


def test_a_folder_without_a_look_says_so(tmp_path):
    found = ReportExtras.load(tmp_path)
    assert found.feature_map is None
    assert set(found.missing) == {"map", "what-if", "canaries"}
    assert all("run giveaway audit again" in reason for reason in found.missing.values())
