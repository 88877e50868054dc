"""Names that only the holder of a key can tell apart from any others: for reports that must not carry the real ones."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

import numpy as np

from giveaway.checks import fail
from giveaway.storage.files import write_text

LETTERS = 16  # hexadecimal digits of a pseudonym: 64 bits
LEAST_KEY = 16  # bytes


def read_key(path: str | Path, out: str | Path) -> bytes:
    """The key in a file, which is made, readable by you alone, where there is none; never within `out`."""
    file = Path(path)
    if Path(out).resolve() in file.resolve().parents:
        raise fail("pseudonymize", "a key outside of the audit folder", f"{path}, in it", "keep the key elsewhere")
    if not file.exists():
        write_text(file, secrets.token_hex(32) + "\n")
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise fail("pseudonymize", "a file with the key", f"{path} ({error.strerror})", "name another file") from error
    if len(key) < LEAST_KEY:
        got = f"{path} with {len(key)}"
        raise fail("pseudonymize", f"a key of at least {LEAST_KEY} bytes", got, "name a file that does not exist yet")
    return key


def pseudonyms(names: np.ndarray, key: bytes) -> np.ndarray:
    """HMAC-SHA-256 of every name under the key, as 16 hexadecimal digits; equal names stay equal."""
    told, where = np.unique(names, return_inverse=True)
    encoded = (str(name).encode("utf-8", "surrogatepass") for name in told)
    made = [hmac.new(key, name, hashlib.sha256).hexdigest()[:LETTERS] for name in encoded]
    if len(set(made)) < len(made):
        raise fail("pseudonymize", "different pseudonyms", "two equal ones", "use another key")
    return np.array(made)[where]
