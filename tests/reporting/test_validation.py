"""The files of a validation."""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from giveaway import ScoreTable, Signals, compare
from giveaway.reporting.validation import validation_pages


def validated(*columns: str) -> dict[str, str | bytes]:
    rng = np.random.default_rng(0)
    exposure = rng.gamma(1.0, size=300)
    members = np.stack([rng.permutation(np.arange(32) < 16) for _ in range(300)], axis=1)
    signals = Signals(rng.normal(size=members.shape) + members * exposure, members, "phi")
    table = ScoreTable({name: exposure + rng.gamma(1.0, size=300) for name in columns}, ids=np.arange(300), meta={})
    found = compare(table, signals)
    assert dataclasses.is_dataclass(found)
    return validation_pages(table, found)


def test_words_table_and_pictures_agree():
    pages = validated("loss", "influence", "newton")
    pictures = [name for name in pages if name.endswith(".png")]
    assert pictures == ["validation_recall.png", "validation_roc.png", "validation_map.png"]
    for name in pictures:
        assert pages[name].startswith(b"\x89PNG")
        assert f"]({name})" in pages["validation.md"]
    told = json.loads(pages["validation.json"])
    assert pages["validation.md"].startswith(told["conclusion"])
    assert [line.split(",")[0] for line in pages["validation.csv"].splitlines()[1:]] == list(told["agreement"])


def test_without_influence_there_is_no_map():
    pages = validated("loss", "newton")
    assert "validation_map.png" not in pages
    assert "validation_map" not in pages["validation.md"]
