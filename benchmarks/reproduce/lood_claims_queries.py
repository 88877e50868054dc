"""What the LOOD paper claims of the best queries on images, judged."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Claim, Results, judged
from benchmarks.reproduce.printed_lood import MEAN_OPTIMUM

SIMILAR = 0.01  # of the record's KL, and of AUC


def claims_of_queries(results: Results) -> list[Claim]:
    """`results` holds those of lood_figures."""
    figures, queries, searches = results["lood_figures"], results.get("lood_queries"), results.get("lood_searches")
    return [
        _several(queries),
        _normalized(queries),
        _darker(queries),
        _one_search(searches),
        _resembles(searches),
        _similar(searches),
        _found(figures["queries"]),
        _groups(figures["groups"]["three_queries"]),
        _single(figures["groups"]),
        _weaker(figures["auc"]["at_mean_distance_optima"]),
    ]


def _several(found: dict[str, Any] | None) -> Claim:
    text = "several queries together never tell more than the record alone"
    if found is None:
        return judged(text, None, NOT_RUN)
    cells = [cell for row in found["multiple"]["share_of_own_kl"].values() for cell in row.values()]
    above, searches = (sum(cell[key] for cell in cells) for key in ("above_the_record", "searches"))
    return judged(text, above == 0, f"above it in {above} of {searches} searches (and proved: no query does)")


def _normalized(found: dict[str, Any] | None) -> Claim:
    text = "where records are normalized by their own statistics, some query tells more than the record"
    if found is None:
        return judged(text, None, NOT_RUN)
    shares = found["normalized"]["over_the_record"]
    why = f"{min(shares):.4f} to {max(shares):.4f} times the record's KL, {len(shares)} records"
    if max(shares) > 1.0:
        return judged(text, True, why)
    # few records and few steps: not having found such a query does not say that there is none
    return judged(text, None, f"{why}: a search too short to say that there is none")


def _darker(found: dict[str, Any] | None) -> Claim:
    text = "where records are normalized by their own statistics, the best query is mostly darker than the record"
    if found is None:
        return judged(text, None, NOT_RUN)
    darker, chosen = found["normalized"]["darker_than_the_record"], found["normalized"]["chosen"]
    return judged(text, darker > chosen / 2, f"{darker} of {chosen}")


def _one_search(found: dict[str, Any] | None) -> Claim:
    text = "a single search from noise comes within 1 % of the record's LOOD for a majority of records"
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found["cars_and_planes"]
    why = (
        f"{told['found']} of {told['chosen']} searches; the record left out is the nearest of all "
        f"{told['records']:,} for {told['nearest_of_all_records']}"
    )
    return judged(text, told["found"] > told["chosen"] / 2, why)


def _resembles(found: dict[str, Any] | None) -> Claim:
    text = (
        "where a search ends lower, its query still looks like the record (of all records, the one left out has the "
        "likest details, for most)"
    )
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found["cars_and_planes"]["not_found"]
    likest, negative = told["record_has_the_likest_details_of_all"], told["of_those_negative"]
    why = f"{likest} of {told['searches']} such searches, {negative} of them as a negative"
    return judged(text, 2 * likest > told["searches"], why)


def _similar(found: dict[str, Any] | None) -> Claim:
    text = (
        f"the best query's LOOD is within {SIMILAR:.0%} and its AUC within {SIMILAR:g} of the record's, for every "
        "record, fully connected and convolutional"
    )
    if found is None:
        return judged(text, None, NOT_RUN)
    connected, convolved = found["by_step"], found["convolutional"]
    shares = connected["share_of_own_kl_after"][str(connected["steps"])][0], min(convolved["share_of_own_kl"])
    pairs = zip(convolved["auc_at_the_record"], convolved["auc_at_the_query"], strict=True)
    lower = connected["auc_lower_at_the_query"][2], max(record - query for record, query in pairs)
    why = "; ".join(
        f"{name}: {share:.4f} × or more, AUC lower by at most {less:.1g} in {records} records"
        for name, share, less, records in zip(
            ("fully connected", "convolutional"),
            shares,
            lower,
            (connected["chosen"], len(convolved["share_of_own_kl"])),
            strict=True,
        )
    )
    return judged(text, min(shares) >= 1 - SIMILAR and max(lower) <= SIMILAR, why)


def _found(told: dict[str, Any]) -> Claim:
    near = told["best_query_nearest_to_its_record_among_all"]["euclidean"]
    why = f"{near} of {told['records']} records; {told['share_of_own_kl']['starts_above_99_percent']:.0%} of all starts"
    text = f"the best of {told['starts']} searches recovers the record in a majority of cases"
    return judged(text, near > told["records"] / 2, why)


def _groups(told: dict[str, Any]) -> Claim:
    rates = told["runs_in_which_a_member_is_recovered_most_to_least_exposed"]
    why = ", ".join(f"{rate:.0%}" for rate in rates) + ", most to least exposed"
    return judged("of a group, the most exposed member is recovered most often", rates[0] > max(rates[1:]), why)


def _single(told: dict[str, Any]) -> Claim:
    low, middle, high = told["one_query"]["value_over_the_most_exposed_members_min_median_max"]
    text = "of a group, the best single query tells more than the most exposed member in one case at most"
    why = f"{low:.3f} to {high:.3f} times the member's KL, median {middle:.3f}, in {told['groups']} groups"
    in_none, in_all = high <= 1, low > 1  # which of the groups lie between is not kept
    return judged(text, in_none if in_none or in_all else None, why)


def _weaker(told: dict[str, Any]) -> Claim:
    share = told[f"auc_lower_by_more_than_{MEAN_OPTIMUM['lower_by']}"]
    why = f"{share:.0%} of {told['records']} records"
    text = "asking at the mean-distance optimum lowers the AUC by more than 0.025 for more than half of the records"
    return judged(text, share > MEAN_OPTIMUM["share_at_least"], why)
