"""The audit folder: what it holds and under which names, when it is refused, how it is removed."""

import datetime
import hashlib
import hmac
import platform
import secrets
from collections.abc import Mapping
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.attacks.shadow_store import ShadowFolder
from giveaway.auditing.columns import ColumnsFolder
from giveaway.checks import fail
from giveaway.extract.feature_cache import FeatureCache, SharedCache
from giveaway.records import Head, LossTrace, ScoreTable
from giveaway.records.meta import Provenance
from giveaway.records.row_digests import RowDigests
from giveaway.records.score_table import TableFolder
from giveaway.records.signals import SignalsFolder
from giveaway.records.texts import Texts
from giveaway.records.witnesses import arrays_of_witnesses
from giveaway.storage.arrays import digest_of
from giveaway.storage.files import write_text
from giveaway.storage.folder import UNFINISHED, MarkedFolder, UnfinishedWork
from giveaway.version import VERSION

LETTERS = 16  # hexadecimal digits of a pseudonym: 64 bits
LEAST_KEY = 16  # bytes
SIGNALS = "signals"  # in an audit folder, the folder of shadow models that were trained for it
REMEDIES = "remedies"  # and that of the models of each remedy


class AuditFolder(TableFolder):
    argument, beside = "out", (UNFINISHED,)

    def remove_if_empty(self) -> None:
        for name in (UNFINISHED, SIGNALS, REMEDIES):  # whose removal may have been killed at its end
            ShadowFolder(self.path / name).remove_if_empty()
        super().remove_if_empty()

    def inner(self) -> list[MarkedFolder]:
        """Return its unfinished work and the models that were trained for it; signals that lie elsewhere stay."""
        remedies = self.path / REMEDIES
        tried = sorted(remedies.iterdir()) if remedies.is_dir() and not remedies.is_symlink() else []
        models = (self.path / SIGNALS, *tried) if self.marked else ()
        inner = [UnfinishedWork(self.path / UNFINISHED), *(ShadowFolder(path) for path in models)]
        return [one for one in inner if not one.path.is_symlink() and (one.marked or one.interrupted() or one.inner())]


def fingerprint(head: Head | Texts, given: Mapping[str, Any] | None = None, trace: LossTrace | None = None) -> str:
    """Return the SHA-256 of everything that a score can depend on; `given` are the inputs of a network."""
    of_trace = {} if trace is None else {"trace": trace.losses}
    if isinstance(head, Texts):
        arrays = {one.name: getattr(head, one.name) for one in fields(head)} | dict(head.steps or {}, steps=None)
        return digest_of(arrays | of_trace)
    names = ("features", "outputs", "targets", "weight", "bias", "sample_weight")
    arrays = {name: getattr(head, name) for name in (*names, "inputs", "ids", "groups")}
    arrays |= arrays_of_witnesses(head) | {f"given {name}": value for name, value in (given or {}).items()}
    return digest_of(arrays | of_trace, (head.loss, head.l2, head.intercept, head.penalize_intercept, head.frozen))


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


def check_folder(place: AuditFolder, expected: Provenance, *, overwrite: bool = False) -> None:
    """Refuse a folder with an audit of other inputs or options; with `overwrite`, remove that one's files."""
    stored = place.read().get("provenance", {}) if place.marked else {}
    same = ("inputs_sha256", "weights_sha256", "config")
    old, new = ({name: one.get(name) for name in same} for one in (stored, expected.to_json()))
    if overwrite and old != new:
        for inner in place.inner():
            inner.remove()
        place.clear()
    elif place.marked:
        remedy = "choose another folder, or write over it (overwrite=True, --overwrite)"
        place.check(old, new, "an audit of the same inputs and options", remedy)


def save_audit(place: AuditFolder, tables: dict[str, ScoreTable], pages: dict[str, str | bytes]) -> None:
    """Write every file, or none; the pages of a validation stay listed."""
    earlier = place.read() if place.marked else {}
    meta = next(iter(tables.values())).meta.to_json()
    of, known = (stated.get("provenance", {}).get("inputs_sha256") for stated in (meta, earlier))
    for name, table in tables.items():
        # stored signals are known by the key of the first audit of the same inputs
        digests = RowDigests.load(place, f"{name}-digests.npz") if known == of is not None else None
        replace(table, digests=digests or table.digests).stage(place, name)
    meta |= {name: earlier[name] for name in ("signals",) if name in earlier}
    place.save_pages(pages, meta)


def with_signals(place: AuditFolder, signals: str | Path) -> dict[str, Any]:
    """Return audit.json with the signals that the audit was validated with named in it."""
    path, stored = Path(signals).resolve(), place.read("folder")
    named = SIGNALS if path == (place.path / SIGNALS).resolve() else str(path)
    return {**stored, "signals": list(dict.fromkeys([*stored.get("signals", []), named]))}


def listed_signals(folder: str | Path) -> list[Path]:
    """Return the signals that an audit was validated with, as far as they still exist; none for any other folder."""
    place = AuditFolder(folder)
    names = place.read("folder").get("signals", []) if place.marked else []
    return [place.path / name for name in names if (place.path / name).exists()]


def purge(folder: str | Path) -> tuple[int, list[Path]]:
    """Remove what giveaway wrote into a folder (an audit, shadow models, features); return how many files, and which
    stay as they are not what was written."""
    classes = (AuditFolder, ShadowFolder, SignalsFolder, FeatureCache, SharedCache, ColumnsFolder)
    kinds: list[MarkedFolder] = [kind(folder) for kind in classes]
    place = next((one for one in kinds if one.marked or one.inner()), kinds[0])
    return place.remove(), place.kept


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
