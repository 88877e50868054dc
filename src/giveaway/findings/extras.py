"""What a report shows beyond the table and only the head and the records can give; saved in the audit folder.

These are a map of the features, candidates for canaries, and, if asked for, the records themselves as pictures or text.
"""

import io
import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA

from giveaway.checks import InputError
from giveaway.findings.canaries import Candidates, candidates, row_of_record, standardized_means
from giveaway.records import Head, ScoreTable
from giveaway.records.examples import CHANNELS
from giveaway.records.meta import annotations, check_fields
from giveaway.records.score_table import TableFolder
from giveaway.records.texts import Texts
from giveaway.storage.arrays import read_arrays, reading, to_numpy
from giveaway.storage.files import parse_json
from giveaway.text import shown_cell, shown_text

FILE = "look.npz"
SHOWN_RECORDS = 100
MOST_PLACES = 2_000  # on the map
PARTS = ("map", "canaries")
EXPOSED = 500  # of the most exposed rows always have a place on the map
MOST_LETTERS = 400
MOST_COLUMNS = 24
SMALLEST_SIDE = 96  # pixels: smaller images are enlarged by whole factors
LARGEST_SIDE = 192


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """The places of some rows of a table, which have no unit."""

    rows: np.ndarray  # row numbers, ascending
    places: np.ndarray  # (rows, 2) float32
    method: str  # "PCA"; folders of earlier versions may have "t-SNE"
    explained: float | None  # share of the variance along the two directions; None without variance


@dataclass(frozen=True, eq=False)
class Contents:
    """What each of `rows` holds: a text, or a PNG in base64."""

    rows: np.ndarray
    held: Sequence[str]
    pictures: bool


@dataclass(frozen=True, eq=False)
class ReportExtras:
    """Optional parts of a report. `missing` gives the reason for each part that is not there."""

    feature_map: FeatureMap | None = None
    candidates: Candidates | None = None
    contents: Contents | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return an .npz file without pickle, which `load` reads."""
        stated: dict[str, Any] = {"missing": dict(self.missing)}
        arrays: dict[str, np.ndarray] = {}
        for name in KINDS:
            if (part := getattr(self, name)) is not None:
                stated[name] = {key: value for key, value in vars(part).items() if not isinstance(value, np.ndarray)}
                arrays |= {f"{name}_{key}": value for key, value in vars(part).items() if key not in stated[name]}
        stream = io.BytesIO()
        np.savez_compressed(stream, allow_pickle=False, stated=np.array(json.dumps(stated)), **arrays)
        return stream.getvalue()

    @classmethod
    def load(cls, folder: str | Path) -> "ReportExtras":
        """Read what an audit left in its folder; without a file every part is missing, with the reason."""
        if not (path := TableFolder(folder).verified(FILE)).is_file():
            return cls(missing=dict.fromkeys(PARTS, "the audit folder was made without it: run giveaway audit again"))
        arrays = read_arrays("folder", path, "giveaway audit")
        with reading("folder", path, "file written by giveaway audit"):
            stated = parse_json(str(arrays["stated"]))
            parts: dict[str, Any] = {}
            for name, kind in KINDS.items():
                if (known := stated.get(name)) is not None:
                    types = annotations(kind)
                    values = {key: known[key] if key in known else arrays[f"{name}_{key}"] for key in types}
                    check_fields(FILE, values, types)
                    parts[name] = kind(**values)
            return cls(**parts, missing=stated["missing"])


KINDS: dict[str, Any] = {"feature_map": FeatureMap, "candidates": Candidates, "contents": Contents}


def make_extras(head: Head | Texts, table: ScoreTable, *, show_records: bool = False) -> ReportExtras:
    """Make the optional parts of a report, with `show_records` the records themselves among them."""
    missing: dict[str, str] = {}

    def attempt(name: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except InputError as error:
            missing[name] = str(error)
        except Exception as error:  # the audit does not depend on it, and must not be lost with it
            missing[name] = f"it could not be made ({type(error).__name__})"
        return None

    mapped, contents = None, None
    inputs = head.contents if isinstance(head, Texts) else head.inputs
    if isinstance(head, Texts):
        missing["map"] = "texts are not mapped"
    elif not head.linear:
        missing["map"] = "a black box has no features to map"
    else:
        mapped = attempt("map", lambda: feature_map(head, table))
    if show_records and table.meta.by_person:
        missing["contents"] = "records are shown only if records are ranked: --config by=record"
    elif show_records and inputs is not None:
        contents = attempt("contents", lambda: contents_of(inputs, table.order()[:SHOWN_RECORDS]))
    return ReportExtras(mapped, attempt("canaries", lambda: candidates(head, table)), contents, missing)


def feature_map(head: Head, table: ScoreTable, *, most: int = MOST_PLACES) -> FeatureMap:
    """Map the standardized features of the most exposed rows, and of others, to two dimensions by PCA, the largest
    entry of each direction positive. A person is placed at the mean of their records."""
    row_of, rows = row_of_record(head, table), chosen_rows(table, most)
    x = standardized_means(head.features, row_of, rows)
    x = x - x[0]  # any row: constant columns become exact zeros
    places, explained, size = np.zeros((len(rows), 2)), None, np.abs(x).max(initial=0.0)
    if size > 0:
        found = PCA(min(2, *x.shape), svd_solver="full")
        axes = found.fit_transform(x / size)
        places[:, : axes.shape[1]] = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
        explained = min(1.0, float(found.explained_variance_ratio_.sum()))
    return FeatureMap(rows, places.astype(np.float32), "PCA", explained)


def chosen_rows(table: ScoreTable, most: int) -> np.ndarray:
    """Return the row numbers of the most exposed and of others at random, `most` in all, ascending."""
    exposed, others = np.split(table.order(), [min(EXPOSED, most)])
    picked = np.random.default_rng(0).choice(others, size=min(most - len(exposed), len(others)), replace=False)
    return np.sort(np.concatenate([exposed, picked]))


def contents_of(inputs: Any, rows: np.ndarray) -> Contents:
    """Show what `rows` of the records hold: images as PNG, strings cut short, a table's columns with their names."""
    if hasattr(inputs, "iloc"):
        names, lines = inputs.columns, [inputs.iloc[int(row)].tolist() for row in rows]
    elif isinstance(inputs, list | tuple):
        return Contents(rows, [shown_text(inputs[int(row)], MOST_LETTERS) for row in rows], pictures=False)
    else:
        held = inputs[np.sort(rows)]
        chosen = (to_numpy(held) if isinstance(held, torch.Tensor) else np.asarray(held))[np.argsort(np.argsort(rows))]
        if chosen.ndim in (3, 4) and chosen.dtype.kind in "fiub":
            return Contents(rows, [b64encode(_png(image)).decode() for image in chosen], pictures=True)
        if chosen.ndim == 1:
            return Contents(rows, [shown_text(value, MOST_LETTERS) for value in chosen.tolist()], pictures=False)
        flat = chosen.reshape(len(chosen), -1)
        names, lines = range(flat.shape[1]), flat[:, :MOST_COLUMNS].tolist()
    more = f", … {len(names) - MOST_COLUMNS} more" if len(names) > MOST_COLUMNS else ""
    first = [shown_text(name, 40) for name in names[:MOST_COLUMNS]]
    told = ((f"{name}: {shown_cell(value, 40)}" for name, value in zip(first, line, strict=False)) for line in lines)
    return Contents(rows, [", ".join(cells) + more for cells in told], pictures=False)


def _png(image: np.ndarray) -> bytes:
    """Return an image (h, w), or with its channels last or first, stretched from its smallest to its largest number."""
    from matplotlib.image import imsave

    if image.ndim == 3 and image.shape[0] in CHANNELS and image.shape[2] not in CHANNELS:
        image = image.transpose(1, 2, 0)
    image = np.atleast_3d(image).astype(np.float64)
    image = image[..., :3] if image.shape[2] >= 3 else np.repeat(image[..., :1], 3, axis=2)
    image = np.round(255 * (image - image.min()) / max(np.ptp(image), 1e-300)).clip(0, 255).astype(np.uint8)
    step = max(1, -(-max(image.shape[:2]) // LARGEST_SIDE))
    image = image[::step, ::step]
    factor = max(1, SMALLEST_SIDE // max(image.shape[:2]))
    stream = io.BytesIO()
    imsave(stream, image.repeat(factor, 0).repeat(factor, 1), format="png")
    return stream.getvalue()
