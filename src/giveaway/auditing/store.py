"""The audit folder: what it holds and under which names, when it is refused, how it is removed."""

import datetime
import hashlib
import hmac
import platform
import re
import secrets
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.attacks.shadow_store import ShadowFolder
from giveaway.checks import fail
from giveaway.extract.feature_cache import FeatureCache, SharedCache
from giveaway.records import Head, LossTrace, ScoreTable
from giveaway.records.meta import Provenance
from giveaway.records.score_table import MARKER
from giveaway.records.witnesses import arrays_of_witnesses
from giveaway.storage.arrays import digest_of
from giveaway.storage.checkpoint import FOLDER as UNFINISHED
from giveaway.storage.checkpoint import UnfinishedWork
from giveaway.storage.files import MarkedFolder, write_atomically, write_text
from giveaway.version import VERSION

LETTERS = 16  # hexadecimal digits of a pseudonym: 64 bits
LEAST_KEY = 16  # bytes


SIGNALS = "signals"  # in an audit folder, the folder of shadow models that were trained for it


class AuditFolder(MarkedFolder):
    """A folder whose audit.json lists every file in it."""

    marker, kind, argument, beside = MARKER, "audit folder", "out", (UNFINISHED,)

    @property
    def names(self) -> str:  # type: ignore[override]
        """The files that audit.json lists; their place is this folder, whatever it says."""
        return "|".join(re.escape(Path(name).name) for name in self.read("folder").get("files", []))

    def remove(self) -> int:
        """Remove what audit.json lists, its shadow models and unfinished work; signals that lie elsewhere stay."""
        removed = UnfinishedWork(self.path).remove()
        if self.marked and (shadows := ShadowFolder(self.path / SIGNALS)).marked:
            removed += shadows.remove()
        if self.marked or not removed:
            self.read("folder")
            removed += self.clear()
        self.remove_if_empty()
        return removed


def fingerprint(head: Head, given: Mapping[str, Any] | None = None, trace: LossTrace | None = None) -> str:
    """Return the SHA-256 of everything that a score can depend on; `given` are the inputs of a network."""
    names = ("features", "outputs", "targets", "weight", "bias", "sample_weight")
    arrays = {name: getattr(head, name) for name in (*names, "inputs", "ids", "groups")}
    options = (head.loss, head.l2, head.intercept, head.penalize_intercept, head.frozen)
    arrays |= arrays_of_witnesses(head) | {f"given {name}": value for name, value in (given or {}).items()}
    if trace is not None:
        arrays["trace"] = trace.losses
    return digest_of(arrays, options)


def provenance(digest: str, config: dict[str, Any], weights: str | None = None) -> Provenance:
    """Say what a result came from; `weights` is the digest of a network's, for an audit of its depths."""
    versions = {"giveaway": VERSION, **{name: metadata.version(name) for name in ("torch", "numpy", "scipy")}}
    return Provenance(
        audit=secrets.token_hex(8),
        date=datetime.date.today().isoformat(),
        inputs_sha256=digest,
        weights_sha256=weights,
        config=config,
        versions={**versions, "python": platform.python_version()},
    )


def check_folder(folder: str | Path, expected: Provenance) -> Path:
    """Make the folder; refuse one with other files, or with an audit of other inputs or options."""
    place = AuditFolder(folder)
    if place.marked:
        stored = place.read().get("provenance", {})
        same = ("inputs_sha256", "weights_sha256", "config")
        old, new = ({name: one.get(name) for name in same} for one in (stored, expected.to_json()))
        place.check(old, new, "an audit of the same inputs and options", "choose another folder")
    place.claim()
    return place.path


def save_audit(folder: Path, tables: dict[str, ScoreTable], pages: dict[str, str | bytes], config_toml: str) -> None:
    """Write every file, audit.json first and again last, so that a killed run can be purged; remove what failed."""
    place = AuditFolder(folder)
    files = [f"{name}.{kind}" for name in tables for kind in ("npz", "csv")] + [*pages, "config.toml", MARKER]
    earlier = place.read() if place.marked else {}
    files += [name for name in earlier.get("files", []) if name not in files]  # a validation's pages stay listed
    signals = {name: earlier[name] for name in ("signals",) if name in earlier}
    meta = next(iter(tables.values())).meta.to_json()
    new = [folder / name for name in files if not (folder / name).exists()]
    try:
        if folder / MARKER in new:
            place.write({"complete": False, "provenance": meta.get("provenance", {}), "files": files})
        for name, table in tables.items():
            table.save_columns(folder, name)
        for name, page in {**pages, "config.toml": config_toml}.items():
            _write(folder / name, page)
        place.write({**meta, **signals, "files": files})
    except BaseException:
        for path in new:
            path.unlink(missing_ok=True)
        raise


def save_page(folder: str | Path, name: str, page: str | bytes) -> Path:
    """Write one more page, text or a picture's bytes, into an audit folder and list it in audit.json."""
    place = AuditFolder(folder)
    stored = place.read("folder")
    if name not in stored.get("files", []):  # listed first, so that purge finds what a killed call leaves
        place.write({**stored, "files": [*stored.get("files", [MARKER]), name]})
    _write(place.path / name, page)
    return place.path / name


def signals_folder(folder: str | Path) -> Path:
    """Return where the shadow models of an audit are kept unless told otherwise."""
    return Path(folder) / SIGNALS


def list_signals(folder: str | Path, signals: str | Path) -> None:
    """Name in audit.json the signals that the audit was validated with."""
    place, path = AuditFolder(folder), Path(signals).resolve()
    named = SIGNALS if path == signals_folder(folder).resolve() else str(path)
    stored = place.read("folder")
    if named not in stored.get("signals", []):
        place.write({**stored, "signals": [*stored.get("signals", []), named]})


def listed_signals(folder: str | Path) -> list[Path]:
    """Return the signals that an audit was validated with, as far as they still exist; none for any other folder."""
    place = AuditFolder(folder)
    names = place.read("folder").get("signals", []) if place.marked else []
    return [place.path / name for name in names if (place.path / name).exists()]


def purge(folder: str | Path) -> int:
    """Remove what giveaway wrote into a folder (an audit, shadow models, features); return how many files."""
    for kind in (AuditFolder, ShadowFolder, FeatureCache, SharedCache):
        if kind(folder).marked:
            return kind(folder).remove()
    return AuditFolder(folder).remove()


def read_key(path: str | Path, out: str | Path) -> bytes:
    """Read the key in a file; make one, readable by you alone, where there is none; refuse a key within `out`."""
    if Path(out).resolve() in Path(path).resolve().parents:
        raise fail("pseudonymize", "a key outside of the audit folder", f"{path}, in it", "keep the key elsewhere")
    if not Path(path).exists():
        write_text(path, secrets.token_hex(32) + "\n")
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise fail("pseudonymize", "a file with the key", f"{path} ({error.strerror})", "name another file") from error
    if len(key) < LEAST_KEY:
        got = f"{path} with {len(key)}"
        raise fail("pseudonymize", f"a key of at least {LEAST_KEY} bytes", got, "name a file that does not exist yet")
    return key


def pseudonyms(names: np.ndarray, key: bytes) -> np.ndarray:
    """Return HMAC-SHA-256 of every name under the key, as 16 hexadecimal digits; equal names stay equal."""
    distinct, where = np.unique(names, return_inverse=True)
    encoded = (str(name).encode("utf-8", "surrogatepass") for name in distinct)
    made = [hmac.new(key, name, hashlib.sha256).hexdigest()[:LETTERS] for name in encoded]
    if len(set(made)) < len(made):
        raise fail("pseudonymize", "different pseudonyms", "two equal ones", "use another key")
    return np.array(made)[where]


def _write(path: Path, page: str | bytes) -> None:
    content = page.encode("utf-8", "backslashreplace") if isinstance(page, str) else page
    write_atomically(path, lambda stream: stream.write(content))
