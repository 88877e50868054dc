"""What the LOOD paper claims, judged by our results; each verdict's rule stands in the sentence or beside it."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Claim, Results, judged
from benchmarks.reproduce.printed_lood import MEAN_OPTIMUM, RETRAINED

STRONG = 0.5  # Pearson's correlation that counts as one, with p below CHANCE
CHANCE = 0.01
NEAR = 10  # pixel values
ERRORS = 2  # standard errors


def judged_claims(results: Results) -> list[Claim]:
    """`results` holds those of lood_figures too."""
    studied = results["lood_figures"]["activations"]["gelu_beside_relu"]
    return [
        _leakage(results.get("lood_retrained")),
        _peak(results.get("lood_retrained")),
        _largest_kl(results),
        _time(results.get("lood_retrained")),
        _influence(results.get("lood_influence")),
        _gelu_on_networks(results.get("lood_activations")),
        _gelu_on_processes(studied, "sphere", "inputs on the sphere, K(x, x) = 1"),
        _gelu_on_processes(studied, "raw", "raw pixels, σw² = 2"),
        _kl_above_mean(results.get("lood_correlation")),
        _several(results.get("lood_queries")),
        _normalized(results.get("lood_queries")),
        _found(results["lood_figures"]["queries"]),
        _groups(results["lood_figures"]["groups"]["three_queries"]),
        _weaker(results["lood_figures"]["auc"]["at_mean_distance_optima"]),
        _sine(results.get("lood_queries")),
    ]


def _leakage(found: dict[str, Any] | None) -> Claim:
    text = f"the attack on NNGP correlates strongly (Pearson {STRONG} or more) with the attack on retrained networks"
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found["correlation_with_auc"]["nngp_auc"]
    halves = found["auc_of_half_the_rounds_with_the_other"]["pearson"]
    why = f"Pearson {told['pearson']:.2f}, p = {told['p']:.1g}; half of the rounds with the other half {halves:.2f}"
    return judged(text, told["pearson"] >= STRONG and told["p"] < CHANCE, why)


def _peak(found: dict[str, Any] | None) -> Claim:
    text = f"the attack on networks is strongest at the record or within {NEAR} pixel values of it, on average"
    if found is None:
        return judged(text, None, NOT_RUN)
    mean = found["mean_auc_along"]
    best = max(range(len(mean["offsets"])), key=lambda place: mean["networks"][place])
    middle = mean["networks"][len(mean["offsets"]) // 2]
    why = f"mean AUC {middle:.3f} at the record, largest {mean['networks'][best]:.3f} at {mean['offsets'][best]}"
    return judged(text, abs(mean["offsets"][best]) <= NEAR and mean["networks"][best] > 0.5, why)


def _largest_kl(results: Results) -> Claim:
    told = results["lood_figures"]["directions"]
    why = f"{told['largest_at_the_record']} of {told['records']} (2,000 records, depth 10)"
    holds = told["largest_at_the_record"] == told["records"]
    if "lood_retrained" in results:
        more = results["lood_retrained"]["largest_along_a_direction"]["nngp"]
        holds = holds and more["at_the_record"] == more["records"]
        why += f"; {more['at_the_record']} of {more['records']} for the networks' records"
    return judged("KL on NNGP is largest at the record, for every record", holds, why)


def _time(found: dict[str, Any] | None) -> Claim:
    text = f"LOOD is more than {RETRAINED['times_faster']:g} times faster than retraining"
    if found is None:
        return judged(text, None, NOT_RUN)
    spent = found["seconds"]
    why = f"{spent['retraining_relu']:,.0f} s and {spent['lood']:.2g} s on one machine: {found['times_faster']:,.0f} ×"
    return judged(text, found["times_faster"] > RETRAINED["times_faster"], why)


def _influence(found: dict[str, Any] | None) -> Claim:
    text = "mean-distance LOOD has a higher Pearson correlation with retraining than influence functions and TracIn"
    if found is None:
        return judged(text, None, NOT_RUN)
    told = {name: cell["pearson"] for name, cell in found["with_the_change"].items()}
    influence = max((name for name in told if name.startswith("influence_")), key=lambda name: told[name])
    others = max(told[influence], told["tracin"])
    why = (
        f"mean distance {told['lood_mean']:.2f}, influence at its best damping {told[influence]:.2f}, "
        f"TracIn {told['tracin']:.2f}"
    )
    return judged(text, told["lood_mean"] > others, why)


def _gelu_on_networks(found: dict[str, Any] | None) -> Claim:
    text = "retrained networks with GELU leak more than those with ReLU"
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found["networks"]
    why = (
        f"AUC higher for {told['gelu_higher']} of {found['chosen']} records, mean difference "
        f"{told['mean_difference']:+.3f} ± {told['standard_error']:.3f}".replace("-", "−")
    )
    return judged(text, told["mean_difference"] > ERRORS * told["standard_error"], why)


def _gelu_on_processes(told: dict[str, Any], setting: str, where: str) -> Claim:
    shares = [cell["kl_higher_than_relu"] for cell in told[setting].values()]
    ratios = [cell["kl_median_of_ratios"] for cell in told[setting].values()]
    text = f"NNGP with GELU has a higher LOOD than with ReLU for most records, at every depth: {where}"
    why = f"higher for {min(shares):.0%} to {max(shares):.0%}, median ratio {min(ratios):.2f} to {max(ratios):.2f}"
    return judged(text, min(shares) > 0.5, why)


def _kl_above_mean(found: dict[str, Any] | None) -> Claim:
    text = "KL correlates more with the attack's AUC than the mean distance does (Spearman, both kernels and kinds)"
    if found is None:
        return judged(text, None, NOT_RUN)
    pairs = [
        (told[kind]["kl"]["spearman"], told[kind]["mean"]["spearman"])
        for told in found["correlation_with_auc"].values()
        for kind in ("images", "uniform")
    ]
    why = ", ".join(f"{kl:.4f} and {mean:.4f}" for kl, mean in pairs)
    return judged(text, all(kl > mean for kl, mean in pairs), why)


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


def _found(told: dict[str, Any]) -> Claim:
    near = told["best_query_nearest_to_its_record_among_all"]["euclidean"]
    why = f"{near} of {told['records']} records; {told['share_of_own_kl']['starts_above_99_percent']:.0%} of all starts"
    text = "optimizing the query recovers the record in a majority of cases"
    return judged(text, near > told["records"] / 2, why)


def _groups(told: dict[str, Any]) -> Claim:
    rates = told["runs_in_which_a_member_is_recovered_most_to_least_exposed"]
    why = ", ".join(f"{rate:.0%}" for rate in rates) + ", most to least exposed"
    return judged("of a group, the most exposed member is recovered most often", rates[0] > max(rates[1:]), why)


def _weaker(told: dict[str, Any]) -> Claim:
    share = told[f"auc_lower_by_more_than_{MEAN_OPTIMUM['lower_by']}"]
    why = f"{share:.0%} of {told['records']} records"
    text = "asking at the mean-distance optimum lowers the AUC by more than 0.025 for more than half of the records"
    return judged(text, share > MEAN_OPTIMUM["share_at_least"], why)


def _sine(found: dict[str, Any] | None) -> Claim:
    text = "for Algorithm 1's record the mean distance is largest elsewhere, KL at the record"
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found["sine"]
    holds = told["kl_largest_at_the_record"] == told["draws"] == told["mean_largest_elsewhere"]
    why = f"{told['mean_largest_elsewhere']} and {told['kl_largest_at_the_record']} of {told['draws']} draws"
    return judged(text, holds, why)
