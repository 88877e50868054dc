"""What the LOOD paper claims of its one-dimensional examples, judged."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Claim, judged
from benchmarks.reproduce.printed_lood import SINE

CLOSE = 0.1  # lengths of the kernel are 1
SMALL = 0.01  # share of the mean distance far from the records


def claims_of_toys(found: dict[str, Any] | None) -> list[Claim]:
    return [_domain(found), _steepest(found), _variance(found), _placed(found)]


def _domain(found: dict[str, Any] | None) -> Claim:
    text = "on a sine, of all queries the record has the largest KL"
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found["domain"]
    why = f"{told['kl_largest_at_the_record']} of {told['draws']} draws, {told['queries']:,} queries beside the record"
    return judged(text, told["kl_largest_at_the_record"] == told["draws"], why)


def _steepest(found: dict[str, Any] | None) -> Claim:
    text = "for Algorithm 1's record the mean distance is largest elsewhere, KL at the record"
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found["steepest"]
    holds = told["kl_largest_at_the_record"] == told["draws"] == told["mean_largest_elsewhere"]
    why = f"{told['mean_largest_elsewhere']} and {told['kl_largest_at_the_record']} of {told['draws']} draws"
    return judged(text, holds, why)


def _variance(found: dict[str, Any] | None) -> Claim:
    text = (
        "where the mean distance is largest, the log ratio of variances and KL are lower than at Algorithm 1's record"
    )
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found["steepest"]["at_the_mean_optimum_over_the_record"]
    why = "; ".join(
        f"{name} {told[key][0]:.2f} to {told[key][2]:.2f} ×" for key, name in (("log_ratio", "log ratio"), ("kl", "KL"))
    )
    return judged(text, all(cell[2] < 1 for cell in told.values()), f"{why}, {found['steepest']['draws']} draws")


def _placed(found: dict[str, Any] | None) -> Claim:
    low, middle, high = (f"{place:g}" for place in SINE["placed"])
    text = (
        f"far from the records (S at ±{high}) the mean distance is largest within {CLOSE:g} of S; among them (S at 0) "
        f"it is below {SMALL:.0%} of that everywhere"
    )
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found["placed"]
    off = max(told[place]["offset_of_the_largest"][2] for place in (low, high))
    near, far = told[middle]["largest_mean_distance"][2], min(told[p]["largest_mean_distance"][0] for p in (low, high))
    why = f"at most {off:g} away; at most {near:.1g} against at least {far:.2g}, {told['draws']} draws"
    return judged(text, off <= CLOSE and near < SMALL * far, why)
