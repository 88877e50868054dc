"""Reading what `Job.save` wrote, for pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def read_kept(results: Path, name: str) -> tuple[dict[str, Any], Arrays] | None:
    """A setting's result and its summaries in float64; None where it has not been run."""
    path = results / f"{name}.json"
    if not path.exists():
        return None
    with np.load(path.with_suffix(".npz")) as held:
        return json.loads(path.read_text(encoding="utf-8")), {name: held[name].astype(np.float64) for name in held}
