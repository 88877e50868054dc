"""The GLS paper's part of the results page: Table 2 beside ours, costs by depth, and figures."""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Results
from benchmarks.reproduce.printed_gls import METRICS, SET_UP, TABLE_2
from benchmarks.reproduce.remarks_gls import ended_early, how_to_read, more_targets
from benchmarks.reproduce.shown_gls import (
    FEW,
    MORE,
    NAME,
    PRINTED,
    at_all_depths,
    cell,
    doubtful,
    plus,
    shown_depths,
    solve_error,
)

THEORY = "![Trade-off curves of the best attack, by leverage](images/gls_theory.png)"
LEAST_ACCURACY = 0.88
OURS = {
    "gls_trace": "GLS (trace), last layer",
    "loss": "loss",
    "influence": "influence, last layer",
    "newton": "Newton step, last layer",
    "fused": "fused (ours)",
}


def section(results: Results) -> list[str]:
    """Markdown lines, from the results alone."""
    found = at_all_depths(results)
    lines = ["## Generalized leverage scores (ResNet-18 on CIFAR-10)", ""]
    if found is None:
        lines += [f"`python -m benchmarks.reproduce run {NAME} --data DIR --models 65`: {NOT_RUN}.", ""]
    else:
        lines += _set_up(found)
    lines += _table(found)
    if found is not None:
        lines += [*_summaries(found), *_costs(found), *_beside(found), *_figures(found)]
    return [*lines, "Figure 5 is theory, and needs no results:", "", THEORY, ""]


def _set_up(found: dict[str, Any]) -> list[str]:
    accuracy, training = found["accuracy"]["accuracy_held_out"], found["training"]
    lines = [
        f"{found['models_trained']} models (the paper: {SET_UP['shadow models']}), each on a random 80 % of the 50,000 "
        f"images; {found['targets']} of them are targets too, with all others as references. "
        f"{training['epochs']} epochs in batches of {training['batch']}, shifts of up to {training['shift']} pixels, "
        f"flips (the paper does not say how it trains); held-out accuracy {plus(accuracy, 3)} (the paper: about "
        f"{SET_UP['held-out accuracy']}), {plus(found['accuracy']['accuracy_trained'], 3)} on the records trained on. "
        f"{found['seconds_a_model']['mean']:.1f} s a model on "
        f"{' and '.join(found['trained_on'])}. Numbers after ± are half of the middle 95 % over targets, where there "
        f"are {FEW} or more. GLS is in the space of probabilities, as the paper's Section 4.4 has it.",
        "",
    ]
    if accuracy["mean"] < LEAST_ACCURACY:
        lines += [
            f"**Held-out accuracy is below {LEAST_ACCURACY}: these models were trained for too short a time.**",
            "",
        ]
    return lines


def _table(found: dict[str, Any] | None) -> list[str]:
    depths = shown_depths(found)
    lines = [
        "Table 2: Spearman of GLS (trace) with what shadow models say, over each target's 40,000 training records "
        f"(the paper: {SET_UP['records scored a target']} records); printed → ours.",
        "",
        f"| | {' | '.join(_marked(found, depth) for depth in depths)} |",
        f"|---|{'---|' * len(depths)}",
    ]
    for metric, title in METRICS.items():
        cells = []
        for depth in depths:
            printed, spread = TABLE_2[metric][PRINTED[depth]]
            cells.append(f"{printed:.2f} ± {spread:.2f} → {cell(found, depth, metric)}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    if found is not None and found["depths"]:
        cells = [f"– → {cell(found, depth, 'effect_size')}" for depth in depths]
        lines.append(f"| effect size (not the paper's) | {' | '.join(cells)} |")
        counts = [str(found["depths"][depth]["targets"]) if depth in found["depths"] else "0" for depth in depths]
        lines.append(f"| targets: {SET_UP['target models']} → | {' | '.join(counts)} |")
        lines += ["", *how_to_read(found), "", *_first_records(found)]
        early = [depth for depth in found["depths"] if doubtful(found["depths"][depth])]
        if early:
            lines += ["", f"\\* {ended_early(found, early)}"]
        if "more" in found:
            lines += ["", more_targets(found)]
    return [*lines, ""]


def _first_records(found: dict[str, Any]) -> list[str]:
    """Table 2 over as many records as the paper scores."""
    depths = [depth for depth in shown_depths(found) if depth in found["depths"]]
    lines = [
        f"The same over the first {SET_UP['records scored a target']} training records of each target, as the paper "
        "has it:",
        "",
        f"| | {' | '.join(_marked(found, depth) for depth in depths)} |",
        f"|---|{'---|' * len(depths)}",
    ]
    for metric, title in {**METRICS, "effect_size": "effect size"}.items():
        cells = [cell(found, depth, metric, over="first") for depth in depths]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def _summaries(found: dict[str, Any]) -> list[str]:
    lines = [
        "Trace, Frobenius and spectral norm of the same matrices: Spearman with the LiRA score; and of the trace "
        "with that of the last layer.",
        "",
    ]
    lines += ["| | trace | Frobenius | spectral | trace with the last layer's |", "|---|---|---|---|---|"]
    for depth, measured in found["depths"].items():
        every = measured["all"]
        cells = [plus(every[score]["lira"]) for score in ("gls_trace", "gls_frobenius", "gls_spectral")]
        cells.append(plus(measured["with the last layer"], 3))
        lines.append(f"| {_marked(found, depth)} | {' | '.join(cells)} |")
    return [*lines, ""]


def _costs(found: dict[str, Any]) -> list[str]:
    lines = [
        "Cost of the leverage of **all** training records of a target, by depth (the paper's Figure 1 has 128 records "
        "on an A100). The last layer is the closed form; deeper ones are random projections of the Gauss–Newton "
        "curvature. Damping is in units of the summed loss. Inexact solves put "
        "the projections of all records together off by the solve error at most, relative to them (≈: estimated from "
        f"the worst residual, as the run is older than the bound{_estimated(found)}); a trace is a sum of their "
        "squares. The sketch error is that of a single trace.",
        "",
        "| | parameters | damping | probes | steps | worst residual | solve error | sketch error | seconds | GB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for depth, measured in found["depths"].items():
        cells = [
            f"{measured['parameters']:,}",
            f"{measured['damping']:g}",
            *(str(measured.get(name, "–")) for name in ("probes", "most_steps_taken")),
            f"{measured['worst_residual']:.2g}" if "worst_residual" in measured else "–",
            solve_error(measured) if "solve_error" in measured else "–",
            f"{measured['sketch_error']:.2f}" if "sketch_error" in measured else "–",
            f"{measured['seconds']['mean']:.1f}",
            str(measured.get("peak_gb", "–")),
        ]
        lines.append(f"| {_marked(found, depth)} | {' | '.join(cells)} |")
    for depth, reasons in found["not_to_be_had"].items():
        lines += ["", f"{depth[0].upper()}{depth[1:]} (of some targets at least): {'; '.join(reasons)}."]
    last = found["depths"].get("last layer")
    if last is not None:
        models = SET_UP["shadow models"] * found["seconds_a_model"]["mean"]
        lines += [
            "",
            f"{SET_UP['shadow models']} such models take {models:,.0f} s, the leverage of the last layer "
            f"{last['seconds']['mean']:.2f} s: {models / last['seconds']['mean']:,.0f} times less.",
        ]
    if "checked" in found:
        checked = found["checked"]
        lines += [
            "",
            f"{checked['records']} records by right sides of their own ({checked['depth']}): {checked['seconds']:.1f} "
            f"s; the projections have a relative error of {checked['relative_error']:.2f} and a Spearman of "
            f"{checked['spearman']:.2f} with them.",
        ]
    return [*lines, ""]


def _estimated(found: dict[str, Any]) -> str:
    """How such an estimate does where there is the bound, too."""
    measured = found["depths"].get(MORE)
    if measured is None:
        return ""
    share = measured["parameters"] / measured["sum_of_traces"]["mean"]
    estimate = measured["worst_residual"] * share**0.5 / 2
    return f"; in the last row it would be {estimate:.2f}"


def _beside(found: dict[str, Any]) -> list[str]:
    if not found.get("beside"):
        return []
    count = found["beside"]["gls_trace"]["targets_of_auc"]
    lines = [
        "Other scores of the same targets, over all training records: Spearman with the metrics; how much of the 1 % "
        "with the largest effect size is in the 5 % of highest scores, in per cent (5 is chance); LiRA's AUC on the "
        f"2 % of records with the highest mean score over {count} targets.",
        "",
    ]
    heads = [*METRICS.values(), "effect size", "top 1 % in 5 %", "AUC of the highest 2 %", "targets"]
    lines += [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for name, measured in found["beside"].items():
        cells = [plus(measured[metric]) for metric in (*METRICS, "effect_size")]
        cells += [
            _recall([*measured["recall"].values()]),
            plus(measured["auc_of_the_highest"]),
            str(measured["targets"]),
        ]
        lines.append(f"| {OURS[name]} | {' | '.join(cells)} |")
    view = found["beside"].get("fused", {}).get("view")
    if view is not None:
        lines += [
            "",
            f"What the second view of fused took these models for: memorized M = {plus(view['memorized'])}, held by "
            f"memory G = {plus(view['held_by_memory'])}, so that the Newton step counts {plus(view['head_weight'])} "
            f"beside 1; its own left-out error is {plus(view['left_out_error'])} of the labels' variation.",
        ]
    return [*lines, ""]


def _recall(each: list[float]) -> str:
    """In per cent, with the standard deviation over targets."""
    middle = f"{100 * mean(each):.1f}"
    return middle if len(each) < 2 else f"{middle} ± {100 * stdev(each):.1f}"


def _figures(found: dict[str, Any]) -> list[str]:
    lines = ["![Rank correlation and seconds by depth](images/gls_depths.png)", ""]
    if "drawn" in found:
        drawn = found["drawn"]
        lines += [
            "![t-SNE of one class coloured by leverage](images/gls_tsne.png)",
            "",
            f"{drawn['records']:,} images of the class "
            f"“{drawn['class']}”: distance from the class's centre has a Spearman of "
            f"{drawn['spearman_distance_from_centre']:.2f} with the leverage.",
            "",
        ]
    if "extremes" in found:
        lines += ["![The ten highest and lowest images](images/gls_extremes.png)", ""]
    for depth, measured in found["depths"].items():
        if "tradeoff" not in measured:  # takes every model's answer
            continue
        told = measured["tradeoff"]
        lines.append(
            f"- {_marked(found, depth)}: {told['attacks']} attacks, 2 % of the records each. Highest leverage: AUC "
            f"{plus(told['highest']['auc'])}, TPR at 5 % FPR {plus(told['highest']['tpr_at_5'])}. Lowest: AUC "
            f"{plus(told['lowest']['auc'])}, TPR {plus(told['lowest']['tpr_at_5'])}."
        )
    return [*lines, "", "![Trade-off curves](images/gls_tradeoff.png)", ""]


def _marked(found: dict[str, Any] | None, depth: str) -> str:
    """The name of a depth, with a mark where it is doubtful."""
    early = found is not None and doubtful(found["depths"].get(depth, {}))
    return f"{depth}\\*" if early else depth
