"""Signals and row numbers from files."""

from __future__ import annotations

import numpy as np
import pytest

from giveaway import Signals
from giveaway.extract.user_files import row_numbers, signals_from

PHI = np.random.default_rng(0).normal(size=(4, 11)).astype(np.float16)
MEMBERS = PHI > 0


@pytest.mark.parametrize("members", [MEMBERS, MEMBERS.astype(np.int8), np.packbits(MEMBERS, axis=1)])
def test_npz(tmp_path, members):
    np.savez(tmp_path / "signals.npz", phi=PHI, members=members, note=np.array(1))
    found = signals_from(tmp_path / "signals.npz")
    np.testing.assert_array_equal(found.values[..., 0], PHI)
    np.testing.assert_array_equal(found.members, MEMBERS)


def test_folder(tmp_path):
    Signals(PHI, MEMBERS, "phi").save(tmp_path / "signals")
    np.testing.assert_array_equal(signals_from(tmp_path / "signals").members, MEMBERS)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"phi": PHI}, "signals: expected members and one of logits, probabilities, phi, squared_error"),
        ({"members": MEMBERS}, "got keys members; store one kind of signal"),
        ({"phi": PHI, "logits": PHI, "members": MEMBERS}, "store one kind of signal"),
        ({"logits": PHI[..., None], "members": MEMBERS}, "labels: expected a class index a record, got none"),
    ],
)
def test_npz_that_cannot_be_used(tmp_path, arrays, words):
    np.savez(tmp_path / "signals.npz", **arrays)
    with pytest.raises(ValueError, match=words):
        signals_from(tmp_path / "signals.npz")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="signals: expected a file that exists"):
        signals_from(tmp_path / "missing.npz")
    (tmp_path / "cut.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"signals: expected a whole \.npz file"):
        signals_from(tmp_path / "cut.npz")
    np.savez(tmp_path / "other.npz", rows=np.arange(3))
    with pytest.raises(ValueError, match=r"rows: expected the key index in other\.npz, got keys rows; add it"):
        row_numbers(tmp_path / "other.npz")


def test_row_numbers(tmp_path):
    np.save(tmp_path / "rows.npy", np.array([3, 1]))
    np.savez(tmp_path / "target.npz", index=np.array([2, 0]))
    assert row_numbers(tmp_path / "rows.npy").tolist() == [3, 1]
    assert row_numbers(tmp_path / "target.npz").tolist() == [2, 0]
