"""Which depths of the GLS results are shown, which of them are judged, and how a number of theirs is written."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Results
from benchmarks.reproduce.printed_gls import TABLE_2

NAME, NAME_MORE = "gls_resnet18", "gls_full_model"
MORE = "full model, more targets"
SHOWN = (*TABLE_2["lira"], MORE)
PRINTED = {**{depth: depth for depth in SHOWN}, MORE: "full model"}  # what the paper calls it
FEW = 4  # targets, of which fewer have no spread to speak of
DOUBTFUL = 0.5  # bound on the error of solves, from which a depth is shown and not judged


def at_all_depths(results: Results) -> dict[str, Any] | None:
    """The result, with that of more targets beside its depths; None where it has not been run."""
    found, more = results.get(NAME), results.get(NAME_MORE)
    if found is None or more is None:
        return found
    beside = {
        part: {**found[part], **({MORE: more[part][PRINTED[MORE]]} if PRINTED[MORE] in more[part] else {})}
        for part in ("depths", "not_to_be_had")
    }
    return {**found, **beside, **({"more": more} if MORE in beside["depths"] else {})}


def shown_depths(found: dict[str, Any] | None) -> list[str]:
    """The paper's, and that of more targets where it was tried."""
    tried = found is not None and (MORE in found["depths"] or MORE in found["not_to_be_had"])
    return [depth for depth in SHOWN if depth != MORE or tried]


def doubtful(measured: dict[str, Any]) -> bool:
    """Whether the solves of a depth ended so early that it is shown and not judged."""
    return bool(measured.get("solve_error", 0.0) >= DOUBTFUL)


def missing(found: dict[str, Any] | None, depth: str) -> str:
    """What is said of a depth that has no numbers."""
    return "not to be had" if found is not None and depth in found["not_to_be_had"] else NOT_RUN


def plus(value: dict[str, float], digits: int = 2) -> str:
    """A mean with its ±, which a few targets do not have."""
    middle = f"{round(value['mean'], digits) + 0.0:.{digits}f}".replace("-", "−")
    return middle if value["of"] < FEW else f"{middle} ± {value['half_width']:.{digits}f}"


def cell(found: dict[str, Any] | None, depth: str, metric: str, over: str = "all") -> str:
    """Spearman of GLS (trace) with a metric, over all training records of a target or the first of them."""
    if found is None or depth not in found["depths"]:
        return missing(found, depth)
    value = found["depths"][depth][over]["gls_trace"].get(metric)
    return "–" if value is None else plus(value)


def solve_error(measured: dict[str, Any]) -> str:
    """With a mark where it is of a run older than the bound, and estimated from the worst residual."""
    return f"{'' if 'sum_of_traces' in measured else '≈ '}{measured['solve_error']:.2f}"
