"""Keyed names: the same under one key, unrelated under another, and the key never lies beside the report."""

from __future__ import annotations

import hashlib
import hmac
import stat

import numpy as np

from giveaway.auditing.store import pseudonyms, read_key
from tests.conftest import refused

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
    (tmp_path / "out").mkdir()
    refused(
        r"pseudonymize: expected a key outside of the audit folder, got .*, in it",
        read_key,
        tmp_path / "out" / "key",
        tmp_path / "out",
    )
    (tmp_path / "short").write_text("abc\n")
    refused(
        r"expected a key of at least 16 bytes, got .*short with 3; name a file that",
        read_key,
        tmp_path / "short",
        tmp_path / "out",
    )
    refused(r"pseudonymize: expected a file with the key", read_key, tmp_path, tmp_path / "out")
