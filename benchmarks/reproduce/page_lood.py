"""The LOOD paper's part of the results page: printed beside ours, figure by figure, and its claims judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Claim, Results
from benchmarks.reproduce.lood_claims import judged_claims
from benchmarks.reproduce.lood_claims_activations import CENTRED_PIXELS, SPHERE, UNIT_PIXELS
from benchmarks.reproduce.lood_remarks import between, both, correlations, differences, pictures, plus
from benchmarks.reproduce.lood_rows import Row, rows_of_searches, rows_of_toys
from benchmarks.reproduce.printed_lood import (
    ACTIVATIONS,
    CORRELATION,
    GROUPS,
    MEAN_OPTIMUM,
    MULTIPLE,
    NORMALIZED,
    PERTURBED,
    RETRAINED,
)

FIGURES = Path(__file__).parents[1] / "results" / "lood_figures.json"


def section(results: Results) -> list[str]:
    """Markdown lines, from the results alone."""
    lines = ["## Leave-one-out distinguishability (cars and planes)", ""]
    lines += _set_up(results.get("lood_retrained"))
    lines += ["| figure | what | printed | ours |", "|---|---|---|---|"]
    tables = (_retrained, _influence, _activations, _correlation, _queries, rows_of_searches, _pictured, rows_of_toys)
    for rows in tables:
        lines += [f"| {' | '.join(row)} |" for row in rows(results)]
    return [*lines, "", *differences(results), *correlations(results), *pictures(results)]


def claims(results: Results) -> list[Claim]:
    """The paper's sentences with their verdicts."""
    return judged_claims(with_figures(results))


def with_figures(results: Results) -> Results:
    """The results with those of benchmarks/lood_figures.py among them."""
    return {"lood_figures": json.loads(FIGURES.read_text(encoding="utf-8")), **results}


def _set_up(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return [f"`python -m benchmarks.reproduce run lood_retrained --data DIR`: {NOT_RUN}.", ""]
    training = found["training"]
    return [
        f"{found['network']}; {found['records']:,} records of {found['data']} (the paper: all 10,000), squared loss, "
        f"SGD with momentum {training['momentum']:g} in batches of {training['batch_size']}, {training['steps']} steps "
        f"(the paper names SGD, and no loss, rate or number of epochs). {found['chosen']} records; {found['rounds']} "
        f"networks without each, and {found['rounds']} with everyone, which all records share, as footnote 4's "
        f"{RETRAINED['trainings']:,} = 50 × 21 trainings do. Mean squared error on what was trained "
        f"{found['error_trained']:.3f}, held-out accuracy {found['accuracy_held_out']:.3f}. The attack thresholds the "
        f"loss at the query. Noise of the Gaussian process: σ² = {found['noise']:g} (the paper does not say).",
        "",
    ]


def _retrained(results: Results) -> list[Row]:
    found = results.get("lood_retrained")
    rows = [
        ("3a", "AUC on networks and AUC on NNGP", "“strong correlation”"),
        ("2c", "offset of the largest AUC on networks, pixel values", plus(PERTURBED["networks"], 3)),
        (
            "2c",
            "AUC on networks largest at the record itself",
            "{} of {} shown".format(*PERTURBED["shown_largest_at_the_record"]),
        ),
        ("2b", "offset of the largest KL on NNGP", plus(PERTURBED["nngp"], 3)),
        (
            "3a",
            "retraining and LOOD, time",
            f"{RETRAINED['training_hours']:g} h and {RETRAINED['lood_minutes']:g} min: {RETRAINED['times_faster']:g} ×",
        ),
    ]
    if found is None:
        return [(*row, NOT_RUN) for row in rows]
    along, seconds = found["largest_along_a_direction"], found["seconds"]
    leaking = along["networks_that_leak"]
    of_those = "" if leaking is None else f"; {plus(leaking)} for the {leaking['records']} with an AUC of 0.6 or more"
    ours = [
        both(found["correlation_with_auc"]["nngp_auc"]),
        f"{plus(along['networks'])}{of_those}",
        f"{along['networks']['at_the_record']} of {along['networks']['records']}",
        f"{plus(along['nngp'])}, at the record for {along['nngp']['at_the_record']} of {along['nngp']['records']}",
        f"{seconds['retraining_relu']:,.0f} s for {found['trainings']:,} networks trained together, "
        f"{seconds['lood']:.2g} s for all {found['lood_scored_records']:,} records: {found['times_faster']:,.0f} ×",
    ]
    return [(*row, cell) for row, cell in zip(rows, ours, strict=True)]


def _influence(results: Results) -> list[Row]:
    found = results.get("lood_influence")
    names = ("mean distance", "influence functions", "TracIn")
    heads = [("3c", f"{name} and the change of the prediction by retraining, Pearson") for name in names]
    printed = ("highest of the three", "lower", "lower")
    if found is None:
        return [(*head, said, NOT_RUN) for head, said in zip(heads, printed, strict=True)]
    told = found["with_the_change"]
    damped = [f"{damping:g}" for damping in found["damping_over_largest_eigenvalue"]]
    influence = ", ".join(f"{told[f'influence_{damping}']['pearson']:.2f}" for damping in damped)
    ours = (both(told["lood_mean"]), f"{influence.replace('-', '−')} at λ {', '.join(damped)}", both(told["tracin"]))
    return [(*head, said, cell) for head, said, cell in zip(heads, printed, ours, strict=True)]


def _activations(results: Results) -> list[Row]:
    found, pictured = results.get("lood_activations"), with_figures(results)["lood_figures"]["activations"]
    studied, settings = pictured["gelu_beside_relu"], (("sphere", SPHERE), ("raw", UNIT_PIXELS))
    higher = "; ".join(
        f"{name}: GELU {studied[key]['10']['kl_median_of_ratios']:.2f} ×, "
        f"higher for {studied[key]['10']['kl_higher_than_relu']:.0%}"
        for key, name in settings
    )
    factor = f"{ACTIVATIONS['factor']:g}"
    relu = "; ".join(
        f"{name}: {studied[key]['2'][f'kl_lower_by_more_than_{factor}']:.0%} at depth 2, "
        f"{studied[key]['10'][f'kl_lower_by_more_than_{factor}']:.0%} at depth 10"
        for key, name in settings
    )
    rows = [
        ("5", "GELU and ReLU: KL on NNGP, depth 10", "GELU higher", f"{higher} ({pictured['records']:,} records)"),
        (
            "5",
            f"records whose KL is more than {factor} × higher with ReLU",
            f"{ACTIVATIONS['share']:.0%} (in the text)",
            relu,
        ),
    ]
    sides = (("nngp_sphere", f"NNGP, {SPHERE}"), ("nngp_raw", f"NNGP, {CENTRED_PIXELS}"), ("networks", "networks"))
    for key, name in sides:
        head = ("5", f"GELU and ReLU: AUC on {name}, {ACTIVATIONS['shown']} records", "GELU higher")
        rows.append((*head, NOT_RUN if found is None else _gelu_beside(found[key], found["chosen"])))
    return rows


def _gelu_beside(told: dict[str, Any], records: int) -> str:
    return (
        f"GELU higher for {told['gelu_higher']} of {records}, mean difference {told['mean_difference']:+.3f} ± "
        f"{told['standard_error']:.3f} (standard error); medians {told['auc_gelu'][2]:.2f} and "
        f"{told['auc_relu'][2]:.2f}".replace("-", "−")
    )


def _correlation(results: Results) -> list[Row]:
    found = results.get("lood_correlation")
    rows = []
    for key, name in (("rbf", "RBF"), ("nngp_1", "NNGP of depth 1")):
        head = ("6, 3b", f"LOOD and the attack's AUC, {name}, {CORRELATION['added']} records", "KL above mean distance")
        if found is None:
            rows.append((*head, NOT_RUN))
            continue
        told = found["correlation_with_auc"][key]
        cells = [
            f"{kind}: KL {told[kind]['kl']['spearman']:.3f}, mean {told[kind]['mean']['spearman']:.3f}"
            for kind in ("images", "uniform", "together")
        ]
        rows.append((*head, f"Spearman {'; '.join(cells)}"))
    return rows


def _queries(results: Results) -> list[Row]:
    found = results.get("lood_queries")
    counts = ", ".join(map(str, MULTIPLE["queries"]))
    heads = [
        ("E.1", f"KL of the best q = {counts} queries over that at the record", "never above 1"),
        (
            "10",
            f"the same, records normalized by their statistics, CNN of depth {NORMALIZED['depth']}",
            "above 1, darker",
        ),
        ("8b", "best query of a CNN's kernel over the record", "similar"),
    ]
    if found is None:
        return [(*head, NOT_RUN) for head in heads]
    shares = [cell for row in found["multiple"]["share_of_own_kl"].values() for cell in row.values()]
    above, searches = (sum(cell[key] for cell in shares) for key in ("above_the_record", "searches"))
    ours = [
        f"at most {max(cell['largest'] for cell in shares):.4f}; above 1 in {above} of {searches} searches "
        f"({found['multiple']['records']:,} records, {found['multiple']['chosen']} left out)",
        f"{between(found['normalized']['over_the_record'])}; "
        f"darker than the record: {found['normalized']['darker_than_the_record']} of {found['normalized']['chosen']}",
        f"{between(found['convolutional']['share_of_own_kl'])}; nearest of all records is the one left out: "
        f"{found['convolutional']['nearest_to_its_record']} of {found['convolutional']['chosen']}",
    ]
    return [(*head, cell) for head, cell in zip(heads, ours, strict=True)]


def _pictured(results: Results) -> list[Row]:
    """What benchmarks/lood_figures.py measured."""
    kept = with_figures(results)["lood_figures"]
    queries, groups, optimum = kept["queries"], kept["groups"]["three_queries"], kept["auc"]["at_mean_distance_optima"]
    best = queries["share_of_own_kl"]["best_start_min_median_max"]
    recovered = groups["runs_in_which_a_member_is_recovered_most_to_least_exposed"]
    found = queries["best_query_nearest_to_its_record_among_all"]["euclidean"]
    share = MEAN_OPTIMUM["share_at_least"]
    single = kept["groups"]["one_query"]["value_over_the_most_exposed_members_min_median_max"]
    return [
        (
            "1, 14–19",
            f"best of {queries['starts']} searches, depth 5: KL over the record's",
            "close in a majority",
            f"{best[0]:.4f} to {best[2]:.4f}; nearest to its record {found} of {queries['records']}",
        ),
        (
            "4, E.2",
            "groups of three, three queries: converged; most and least exposed member recovered",
            f"{GROUPS['converged']:.0%}; {GROUPS['most_exposed']:.0%}, {GROUPS['least_exposed']:.0%}",
            f"{groups['converged_starts']:.0%}; {recovered[0]:.0%}, {recovered[-1]:.0%}",
        ),
        (
            "4",
            "groups of three, the best single query: KL over the most exposed member's",
            "above 1 in one case",
            f"{single[0]:.3f} to {single[2]:.3f} in {kept['groups']['groups']} groups",
        ),
        (
            "13",
            f"AUC lower by {MEAN_OPTIMUM['lower_by']} at the mean-distance optimum",
            f"more than {share:.0%} of {MEAN_OPTIMUM['trials']}",
            f"{optimum['auc_lower_by_more_than_0.025']:.0%} of {optimum['records']}",
        ),
    ]
