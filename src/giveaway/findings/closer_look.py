"""What a report shows beyond the table, and only the head and the records can tell; kept in the audit folder."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from giveaway.auditing.plan import SENSITIVITY_UP_TO
from giveaway.checks import InputError, check_choice
from giveaway.findings.canaries import Candidates, candidates
from giveaway.findings.contents import Contents, contents_of
from giveaway.findings.feature_map import FeatureMap, feature_map
from giveaway.findings.removal import Removal, removals
from giveaway.records import Head, ScoreTable
from giveaway.storage.files import read_arrays

FILE = "look.npz"
SHARES = (0.01, 0.05)  # of the rows, that the what-if takes out
WHAT_IF_UP_TO = 1e10  # records times squared parameters; 1.4e9 took 8 s on two cores, 2.9e10 three minutes on busy ones
MAPS = ("auto", "pca", "tsne", "none")
SHOWN_RECORDS = 100
MOST_PLACES = 2_000  # in the map: t-SNE takes 18 s for them on one core, and a minute for 5,000
PARTS = ("map", "what-if", "canaries")
REMOVAL_ARRAYS = ("removed", "entered", "risen", "before", "after")
CANDIDATE_ARRAYS = ("rows", "quality", "similarity")

Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class CloserLook:
    """Parts of a report. `missing` says of each part that is not there why."""

    feature_map: FeatureMap | None = None
    removals: tuple[Removal, ...] = ()
    candidates: Candidates | None = None
    contents: Contents | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As an .npz without pickle, which `load` reads."""
        arrays: dict[str, np.ndarray] = {}
        stated: dict[str, Any] = {"missing": dict(self.missing)}
        if self.feature_map is not None:
            arrays |= {"map_rows": self.feature_map.rows, "map_places": self.feature_map.places}
            stated["map"] = {"method": self.feature_map.method, "explained": self.feature_map.explained}
        stated["removals"] = [{"share": found.share, "spearman": found.spearman} for found in self.removals]
        for place, found in enumerate(self.removals):
            arrays |= {f"removal{place}_{name}": getattr(found, name) for name in REMOVAL_ARRAYS}
        if self.candidates is not None:
            arrays |= {f"candidates_{name}": getattr(self.candidates, name) for name in CANDIDATE_ARRAYS}
        if self.contents is not None:
            arrays["contents_rows"] = self.contents.rows
            stated["contents"] = list(self.contents.texts)
            for place, picture in enumerate(self.contents.pictures):
                if picture:
                    arrays[f"picture{place}"] = np.frombuffer(picture, dtype=np.uint8)
        stream = io.BytesIO()
        np.savez_compressed(stream, allow_pickle=False, stated=np.array(json.dumps(stated)), **arrays)
        return stream.getvalue()

    @classmethod
    def load(cls, folder: str | Path) -> CloserLook:
        """What an audit left in its folder; nothing but the reason where there is none."""
        path = Path(folder) / FILE
        if not path.is_file():
            return cls(missing=dict.fromkeys(PARTS, "the audit folder was made without it: run giveaway audit again"))
        arrays = read_arrays("folder", path, "giveaway audit")
        stated = json.loads(str(arrays["stated"]))
        seen = stated.get("map")
        contents = stated.get("contents")
        return cls(
            feature_map=None if seen is None else FeatureMap(arrays["map_rows"], arrays["map_places"], **seen),
            removals=tuple(
                Removal(told["share"], spearman=told["spearman"], **_named(arrays, f"removal{place}_", REMOVAL_ARRAYS))
                for place, told in enumerate(stated["removals"])
            ),
            candidates=None
            if "candidates_rows" not in arrays
            else Candidates(**_named(arrays, "candidates_", CANDIDATE_ARRAYS)),
            contents=None
            if contents is None
            else Contents(
                arrays["contents_rows"],
                tuple(contents),
                tuple(arrays.get(f"picture{place}", np.empty(0, np.uint8)).tobytes() for place in range(len(contents))),
            ),
            missing=stated["missing"],
        )


def _named(arrays: dict[str, np.ndarray], prefix: str, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: arrays[prefix + name] for name in names}


def look_closer(
    head: Head,
    table: ScoreTable,
    *,
    inputs: Any = None,
    method: str = "auto",
    what_if: bool | None = None,
    show_records: bool = False,
) -> CloserLook:
    """Look at the head once more for a report of `table`.

    `method` is of the map of the head's features (pca, tsne, or none), `what_if` re-scores the rest without the most
    exposed (by default where that takes about a minute at most), `show_records` puts the records themselves in.
    A part that does not exist for this head leaves its reason in `missing`.
    """
    check_choice("map", method, MAPS)
    missing: dict[str, str] = {}

    def part(name: str, make: Callable[[], Found]) -> Found | None:
        try:
            return make()
        except InputError as error:
            missing[name] = str(error)
        except Exception as error:  # the audit does not depend on it, and must not be lost with it
            missing[name] = f"it could not be made ({type(error).__name__})"
        return None

    seen = None
    if method == "none":
        missing["map"] = "it was not asked for (--map none)"
    elif not head.linear:
        missing["map"] = "nothing inside a black box was looked at"
    else:
        seen = part("map", lambda: feature_map(head, table, method=method, most=MOST_PLACES))
    found: tuple[Removal, ...] = ()
    parameters = head.width * head.m
    quick = parameters <= SENSITIVITY_UP_TO and head.n * parameters**2 <= WHAT_IF_UP_TO
    if head.linear and (what_if or (what_if is None and quick)):
        found = part("what-if", lambda: removals(head, table, shares=SHARES)) or ()
    elif not head.linear:
        missing["what-if"] = "a black box has no layer to take records out of"
    elif what_if is False:
        missing["what-if"] = "it was not asked for (--no-what-if)"
    else:
        size = f"{head.n} records and {parameters} parameters"
        missing["what-if"] = f"it takes a while for {size}: ask for it with --what-if"
    records = head.inputs if inputs is None else inputs
    shown = None
    if show_records and table.meta.get("unit") == "person":
        missing["contents"] = "records are shown where records are ranked: --by record"
    elif show_records and records is not None:
        shown = part("contents", lambda: contents_of(records, table.order()[:SHOWN_RECORDS]))
    return CloserLook(seen, found, part("canaries", lambda: candidates(head, table)), shown, missing)
