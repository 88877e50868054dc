"""What the LOOD paper claims, judged by our results; each verdict's rule stands in the sentence or beside it."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Claim, Results, judged
from benchmarks.reproduce.lood_claims_activations import claims_of_activations
from benchmarks.reproduce.lood_claims_queries import claims_of_queries
from benchmarks.reproduce.lood_claims_toys import claims_of_toys
from benchmarks.reproduce.printed_lood import PERTURBED, RETRAINED

STRONG = 0.5  # Pearson's correlation that counts as one, with p below CHANCE
CHANCE = 0.01
NEAR = 10  # pixel values


def judged_claims(results: Results) -> list[Claim]:
    """`results` holds those of lood_figures too."""
    return [
        _leakage(results.get("lood_retrained")),
        _peak(results.get("lood_retrained")),
        _at_the_record(results.get("lood_retrained")),
        _largest_kl(results),
        _time(results.get("lood_retrained")),
        _influence(results.get("lood_influence")),
        *claims_of_activations(results),
        _kl_above_mean(results.get("lood_correlation")),
        *claims_of_queries(results),
        *claims_of_toys(results.get("lood_toys")),
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


def _at_the_record(found: dict[str, Any] | None) -> Claim:
    strongest, of = PERTURBED["shown_largest_at_the_record"]
    text = f"the attack on networks is strongest at the record itself for {strongest} of {of} records or more"
    if found is None:
        return judged(text, None, NOT_RUN)
    told = found["largest_along_a_direction"]["networks"]
    why = f"{told['at_the_record']} of {told['records']}"
    return judged(text, told["at_the_record"] / told["records"] >= strongest / of, why)


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
