"""What shadow models measured on an audit's records, as it lies in the audit folder for the report and for gates."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.auditing.validate import Validation
from giveaway.checks import fail
from giveaway.evaluation.ranking import log_spaced_counts
from giveaway.storage.files import read_arrays

STATED, VALUES = "validation.json", "validation.npz"


@dataclass(frozen=True, eq=False)
class Measured:
    """`stated` is what validation.json says of all records; the arrays have a value a record, the ROC its curve."""

    stated: dict[str, Any]
    success: np.ndarray
    effect_size: np.ndarray
    flagged: np.ndarray
    false_positives: np.ndarray
    true_positives: np.ndarray

    @classmethod
    def of(cls, found: Validation, *, recipe: str | None = None) -> Measured:
        """What a validation found; `recipe` where the shadow models are of one of giveaway's own."""
        rates = log_spaced_counts(found.attack.nonmembers) / found.attack.nonmembers
        allowed = np.searchsorted(found.attack.false_positives, rates + 1e-12, side="right") - 1
        return cls(
            {**found.to_json(), "recipe": recipe},
            found.success,
            found.effect_size,
            found.count.flagged,
            rates,
            found.attack.true_positives[allowed],
        )

    def pages(self) -> dict[str, str | bytes]:
        """File names and contents that `load` reads."""
        stream = io.BytesIO()
        names = ("success", "effect_size", "flagged", "false_positives", "true_positives")
        np.savez(stream, allow_pickle=False, **{name: getattr(self, name) for name in names})
        return {VALUES: stream.getvalue(), STATED: json.dumps(self.stated, indent=2) + "\n"}

    @classmethod
    def load(cls, folder: str | Path) -> Measured | None:
        """What `giveaway validate` left in an audit folder; None where it never ran there."""
        path = Path(folder)
        if not (path / STATED).is_file():
            return None
        try:
            stated = json.loads((path / STATED).read_text(encoding="utf-8"))
        except ValueError as error:
            got = f"{path / STATED}, which is not"
            raise fail("folder", "a readable validation", got, "run giveaway validate again") from error
        return cls(stated, **read_arrays("folder", path / VALUES, "giveaway validate"))
