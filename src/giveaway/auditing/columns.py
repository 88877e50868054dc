"""Audits of more records than a table can hold: every score is a column on the disk, written as it comes. Two tables,
of the most exposed records and of a random sample, are what reports and gates read."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from giveaway.auditing.plan import plan
from giveaway.auditing.scoring import LoadedSpan, record_spans
from giveaway.checks import fail
from giveaway.curvature.choice import Auto, Dense, compute
from giveaway.records import Head, ScoreTable
from giveaway.records.meta import Meta
from giveaway.scores.catalogue import CATALOGUE, scores_of
from giveaway.storage.files import part_of
from giveaway.storage.folder import MarkedFolder
from giveaway.views.model import has_one_class

RANKED_AT_ONCE = 1 << 20  # rows of a column


class ColumnsFolder(MarkedFolder):
    marker, kind, again = "columns.json", "folder of columns", "audit again"


def audit_in_columns(
    head: Head,
    folder: str | os.PathLike[str],
    scores: Sequence[str],
    *,
    curvature: Dense | Auto = Dense(),  # noqa: B008 (frozen)
    top: int = 10_000,
    sample: int = 100_000,
    seed: int = 0,
) -> tuple[ScoreTable, ScoreTable]:
    """Write NAME.npy (n,) for each of the head's `scores` into a private folder; return two tables that are kept there
    as well: the `top` rows by the first score, with their ranks, and a random sample of all rows.

    Memory does not grow with the records, of a head whose arrays are memory-mapped. The ids of either table are row
    numbers. What holds for a share of the sample's rows holds for about that share of all.
    """
    began = time.perf_counter()
    resolved = plan(head, scores, curvature=curvature)
    others = [name for name in resolved.scores if CATALOGUE[name].source != "head"]
    if others or head.groups is not None:
        got = others[0] if others else "people"
        raise fail("scores", "scores of the head, of records", got, "name such as newton, or audit with ga.audit")
    if resolved.choice is not None and resolved.choice.sketch is not None:
        raise fail("curvature", "an exact one", "a sketch", "audit with ga.audit, or a narrower head")
    curved = compute(head, resolved.choice) if resolved.curved and resolved.choice is not None else None
    with ColumnsFolder(folder).locked(new=True) as place:
        parts = {name: part_of(place.path / f"{name}.npy") for name in resolved.scores}
        columns = {name: _column(part, head.n) for name, part in parts.items()}
        for span in record_spans(head, curved):
            for where, batch in LoadedSpan(head, span, curved, None).batches():
                for name, values in scores_of(batch, resolved.scores).items():
                    columns[name][where[0] : where[-1] + 1] = values.cpu().numpy()
        first = _top(columns[resolved.scores[0]], top)
        drawn = np.sort(np.random.default_rng(seed).choice(head.n, min(sample, head.n), replace=False, shuffle=False))
        meta = {name: getattr(head, name) for name in ("loss", "l2", "intercept", "penalize_intercept", "class_names")}
        meta |= {"records": head.n, "outputs": head.m, "seconds": round(time.perf_counter() - began, 3)}
        meta |= {"curvature": None if curved is None else {**curved.report, "chosen": "asked for"}, "of_model": True}
        tables = []
        for name, rows, what in (("top", first, "the most exposed of"), ("sample", drawn, "drawn at random from")):
            said = f"No fused score: these {len(rows):,} rows are {what} {head.n:,} records."
            facts = {"class": head.targets[rows].numpy()} if has_one_class(head) else {}
            of_rows = {column: np.array(values[rows]) for column, values in columns.items()}
            meta_of = Meta.from_json({**meta, "rows": len(rows), "no_view": said})
            tables.append(ScoreTable(of_rows, rows, meta_of, facts))
            tables[-1].stage(place, name)
        for name, part in parts.items():
            columns[name].flush()
            place.stage(f"{name}.npy", part)
        old = {name for name in place.listed() if name.endswith(".npy")} - {f"{name}.npy" for name in parts}
        stated = {"records": head.n, "scores": list(resolved.scores), "ranked_by": resolved.scores[0]}
        place.commit(stated, without=old)
        for name in old:  # of an audit that this one replaces
            (place.path / name).unlink(missing_ok=True)
    return tables[0], tables[1]


def _column(path: Path, n: int) -> np.memmap:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    return np.lib.format.open_memmap(path, "w+", np.float64, (n,))


def _top(column: np.ndarray, count: int) -> np.ndarray:
    """Return the rows with the largest values, the largest first and ties in row order, a block at a time."""
    rows = np.empty(0, dtype=np.int64)
    for start in range(0, len(column), RANKED_AT_ONCE):
        values = np.array(column[start : start + RANKED_AT_ONCE])
        if not np.isfinite(values).all():
            raise fail("scores", "finite scores", "NaN or infinity", "report this: a score is never NaN")
        rows = np.concatenate([rows, start + np.argsort(-values, kind="stable")[:count]])
        rows = rows[np.argsort(-column[rows], kind="stable")][:count]
    return rows
