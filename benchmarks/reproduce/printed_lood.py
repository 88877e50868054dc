"""What the LOOD paper prints, as data: numbers of its text and captions (its curves carry no numbers)."""

from __future__ import annotations

from typing import Any

RETRAINED: dict[str, Any] = {
    "records": 70,
    "with": 50,
    "without": 50,
    "trainings": 50 * 21,  # footnote 4; the caption of Figure 3a says 70 records
    "depth": 10,  # of the networks of Figure 5
    "width": 1_024,
    "training_hours": 24.0,  # of GPU, footnote 4
    "lood_minutes": 10.0,
    "times_faster": 140.0,
}
PERTURBED: dict[str, Any] = {
    "records": 70,
    "farthest": 50,
    "nngp": {"mean": 0.0, "deviation": 0.0},
    "networks": {"mean": -2.375, "deviation": 5.978},
    "shown_largest_at_the_record": (4, 5),
}
CORRELATION: dict[str, Any] = {"records": 1_000, "added": 200}
ACTIVATIONS: dict[str, Any] = {
    "depths": (2, 4, 6, 8, 10),
    "records": 500,
    "shown": 20,
    "factor": 1.1,  # "LOOD under ReLU is more than 1.1× higher than under GeLU in 95 % cases", against its Figure 5
    "share": 0.95,
}
GROUPS: dict[str, Any] = {"rounds": 10, "runs": 10, "converged": 0.80, "most_exposed": 0.61, "least_exposed": 0.08}
MULTIPLE: dict[str, Any] = {"queries": (1, 2, 4, 8), "depths": (2, 4, 6, 8, 10), "selections": 500, "records": 10_000}
MEAN_OPTIMUM: dict[str, Any] = {
    "trials": 50,
    "lower_by": 0.025,
    "share_at_least": 0.5,
}  # Figure 13: AUC at the optimum and the record
SINE: dict[str, Any] = {"records": 10, "noise": 0.01, "steepest": 3.899, "placed": (-5.0, 0.0, 5.0)}
NORMALIZED: dict[str, Any] = {"records": 500, "depth": 5}
SEARCHED: dict[str, Any] = {"records": 10_000, "chosen": 500, "depth": 10}  # Figures 1 and 14–19
BY_STEP: dict[str, Any] = {"records": 1_000, "depth": 5, "after": (0, 10, 20)}  # Figures 8 and 9
CHANGED: dict[str, Any] = {"models": 100, "records": 50, "caption_records": 70}  # Figure 3c: its text, its caption
