"""The files of a validation: its text, its table, its figures, and what reports and gates read again."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from giveaway.auditing.validate import Validation, worth_in_words
from giveaway.checks import fail
from giveaway.records import ScoreTable
from giveaway.records.meta import check_fields
from giveaway.records.score_table import TableFolder
from giveaway.reporting.figures import draw_roc, recall_curves, roc_points
from giveaway.reporting.picture import figure_bytes
from giveaway.storage.arrays import read_arrays, reading
from giveaway.storage.files import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATED, VALUES = "validation.json", "validation.npz"
AGAIN = "run giveaway validate again"
MEASURED = {
    "models": int,
    "records": int,
    "worth_tried_up_to": int,
    "conclusion": str,
    "recipe": str | None,
    "trained": str | None,
    "at_least_exposed.records": int,
    "at_least_exposed.flagged": int,
    "at_least_exposed.confidence": float,
    "at_least_exposed.false_discovery_rate": float,
    "at_least_exposed.power_at_twice_that": float,
    "lira.auc": Sequence[float],
    "agreement": Mapping[str, Mapping[str, Sequence[float] | float | None]],
}  # what pages read of validation.json, and its kind


@dataclass(frozen=True, eq=False)
class StoredValidation:
    """What shadow models measured, as it is stored in an audit folder.

    `stated` is what validation.json says of all records. Of every record: `success`, `effect_size`, whether it is
    `flagged` and was `judged` at all, and the effect size `expected` from the models and the score together. The ROC
    curve is thinned.
    """

    stated: dict[str, Any]
    success: np.ndarray
    effect_size: np.ndarray
    flagged: np.ndarray
    judged: np.ndarray
    expected: np.ndarray
    false_positives: np.ndarray
    true_positives: np.ndarray

    @classmethod
    def of(cls, found: Validation, *, recipe: str | None = None, trained: str | None = None) -> "StoredValidation":
        """Keep what a validation found; `recipe` names one of giveaway's own, `trained` says what the models are."""
        stated = {**found.to_json(), "recipe": recipe, "trained": trained}
        judged = (found.success, found.effect_size, found.count.flagged, found.count.judged)
        return cls(stated, *judged, found.posterior.effect_size, *roc_points(found.attack))

    def pages(self) -> dict[str, str | bytes]:
        """Return the names and contents of the files that `load` reads."""
        stream = io.BytesIO()
        np.savez(stream, allow_pickle=False, **{name: value for name, value in vars(self).items() if name != "stated"})
        return {VALUES: stream.getvalue(), STATED: json.dumps(self.stated, indent=2) + "\n"}

    def figures(self, table: ScoreTable) -> "list[Figure]":
        """Draw what each score of the records finds, if the table is theirs, and what the attack achieves."""
        scores, roc = {name: table[name] for name in table.columns}, (self.false_positives, self.true_positives)
        of_records = len(table) == len(self.effect_size) and not table.meta.by_person
        drawn = [recall_curves(scores, self.effect_size, ranked_by=table.ranking())] if of_records else []
        return [*drawn, draw_roc({"LiRA": roc}, {"LiRA": self.stated["lira"]["auc"]})]

    @classmethod
    def load(cls, folder: str | Path) -> "StoredValidation | None":
        """Read what `giveaway validate` left in an audit folder; None if it never ran there."""
        place = TableFolder(folder)
        if not (file := place.verified(STATED)).is_file():
            return None
        stated = read_json("folder", file, AGAIN)
        arrays = read_arrays("folder", place.verified(VALUES), "giveaway validate")
        if {"stated", *arrays} != {field.name for field in fields(cls)}:
            raise fail("folder", "a validation of this version", f"{place.path / VALUES} of another version", AGAIN)
        with reading("folder", file, "validation"):
            check_fields(STATED, stated, MEASURED)
            agreement_lines(stated)
            of_records = {len(arrays[name]) for name in ("success", "effect_size", "flagged")}
            if of_records != {stated["records"]} or {array.dtype.kind for array in arrays.values()} - set("fb"):
                raise ValueError("arrays of other records")
            return cls(stated, **arrays)


def validation_pages(table: ScoreTable, found: Validation, stored: StoredValidation) -> dict[str, str | bytes]:
    """Return file names and contents."""
    drawn = stored.figures(table)
    figures = dict(zip(("validation_recall.png", "validation_roc.png")[-len(drawn) :], drawn, strict=True))
    shown = "".join(f"\n![{figure.axes[0].get_title(loc='left')}]({name})\n" for name, figure in figures.items())
    trained = stored.stated["trained"]
    return {
        "validation.md": found.to_markdown() + (f"\n{trained}\n" if trained else "") + shown,
        "validation.csv": found.table.to_csv(),
        **stored.pages(),
        **{name: figure_bytes(figure) for name, figure in figures.items()},
    }


def agreement_lines(stated: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the agreement of every score with the attack, as headings and lines of text."""
    scores = stated["agreement"]
    tops = [key for key in next(iter(scores.values())) if key.startswith("top ")]
    shares = [tuple(f"{100 * float(share):g} %" for share in key.split()[1::2]) for key in tops]  # top 0.01 in 0.05
    heads = [f"of the top {top}, found in {keep}" for top, keep in shares]
    lines = []
    for name, values in scores.items():
        worth, cells = values["worth_in_shadow_models"], (values[key] for key in [*tops, "spearman"])
        needed = worth_in_words(np.inf if worth is None else worth, stated["worth_tried_up_to"])
        lines.append((name, *("{:.2f} ({:.2f} to {:.2f})".format(*cell) for cell in cells), needed))
    return {"heads": [*heads, "Spearman", "worth in shadow models"], "lines": lines}
