"""The GLS paper's part of the results page: Table 2 beside ours, costs by depth, figures, and its claims judged."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Claim, Results, judged
from benchmarks.reproduce.printed_gls import METRICS, SET_UP, TABLE_2

NAME = "gls_resnet18"
THEORY = "![Trade-off curves of the best attack, by leverage](images/gls_theory.png)"
DEPTHS = tuple(TABLE_2["lira"])
LEAST_ACCURACY = 0.88
FEW = 4  # targets, of which fewer have no spread to speak of
MOST = 0.95  # of the models, for which it must be so
AS_GOOD = 0.05  # of a rank correlation
ALIKE = 0.9  # rank correlation of two summaries of one matrix
OURS = {
    "loss": "loss",
    "influence": "influence, last layer",
    "newton": "Newton step, last layer",
    "fused": "fused (ours)",
}


def section(results: Results) -> list[str]:
    """Markdown lines, from the results alone."""
    found = results.get(NAME)
    lines = ["## Generalized leverage scores (ResNet-18 on CIFAR-10)", ""]
    if found is None:
        lines += [f"`python -m benchmarks.reproduce run {NAME} --data DIR --models 80`: {NOT_RUN}.", ""]
    else:
        lines += _set_up(found)
    lines += _table(found)
    if found is not None:
        lines += [*_first(found), *_summaries(found), *_costs(found), *_beside(found), *_figures(found)]
    return [*lines, "Figure 5 is theory, and needs no results:", "", THEORY, ""]


def claims(results: Results) -> list[Claim]:
    """The paper's sentences with their verdicts."""
    depths = results.get(NAME, {}).get("depths", {})
    found = results.get(NAME, {})
    return [_positive(depths), _correlated(found, depths), _attackable(depths), _last_layer(depths), _alike(depths)]


def _set_up(found: dict[str, Any]) -> list[str]:
    accuracy, training = found["accuracy"]["accuracy_held_out"], found["training"]
    lines = [
        f"{found['models_trained']} models (the paper: {SET_UP['shadow models']}), each on a random 80 % of the 50,000 "
        f"images; {found['targets']} of them are targets too, with all others as references. "
        f"{training['epochs']} epochs in batches of {training['batch']}, shifts of up to {training['shift']} pixels, "
        f"flips (the paper does not say how it trains); held-out accuracy {_plus(accuracy, 3)} (the paper: about "
        f"{SET_UP['held-out accuracy']}), {_plus(found['accuracy']['accuracy_trained'], 3)} on the records trained on. "
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
    lines = [
        "Table 2: Spearman of GLS (trace) with what shadow models say, over each target's 40,000 training records "
        f"(the paper: {SET_UP['records scored a target']} records); printed → ours.",
        "",
        f"| | {' | '.join(DEPTHS)} |",
        f"|---|{'---|' * len(DEPTHS)}",
    ]
    for metric, title in METRICS.items():
        cells = []
        for depth in DEPTHS:
            printed, spread = TABLE_2[metric][depth]
            cells.append(f"{printed:.2f} ± {spread:.2f} → {_cell(found, depth, metric)}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    if found is not None and found["depths"]:
        counts = [str(found["depths"][depth]["targets"]) if depth in found["depths"] else "0" for depth in DEPTHS]
        lines.append(f"| targets: {SET_UP['target models']} → | {' | '.join(counts)} |")
        lines += ["", _steps(found)]
    return [*lines, ""]


def _steps(found: dict[str, Any]) -> str:
    outside = found["models_trained"] // 5
    cells = [f"{_cell(found, depth, 'tpr_fitted')} ({depth})" for depth in DEPTHS if depth in found["depths"]]
    return (
        f"A record's true-positive rate takes steps: {outside} models were trained without it, of which "
        f"{int(0.05 * outside)} may be accused at 5 %. With the rate that the normal laws fitted by LiRA give instead, "
        f"the correlations are {', '.join(cells)}."
    )


def _first(found: dict[str, Any]) -> list[str]:
    cells = [
        f"{depth} {_plus(found['depths'][depth]['first']['gls_trace']['lira'])}"
        for depth in DEPTHS
        if depth in found["depths"]
    ]
    lines = [f"With the LiRA score over the first 128 training records only, as in the paper: {', '.join(cells)}.", ""]
    between = found["lira_of_two_targets"]
    over_all = {depth: measured["over all models"]["gls_trace"] for depth, measured in found["depths"].items()}
    told = [f"{cell['lira']:.2f} and {cell['effect_size']:.2f} ({depth})" for depth, cell in over_all.items()]
    return [
        *lines,
        f"One target's LiRA score says how unusual this model's answer is. On the records that two targets share, the "
        f"scores have a Spearman of {_plus(between)}, so that what is of the record and not of the model can hardly "
        f"have more than {max(between['mean'], 0.0) ** 0.5:.2f} with one target's. What is said by all models together "
        "is steadier: Spearman of a record's mean GLS with its median LiRA score over the models trained on it, and "
        "with its effect size "
        f"(μ_in − μ_out over the pooled deviation): {', '.join(told)}.",
        "",
    ]


def _summaries(found: dict[str, Any]) -> list[str]:
    lines = ["Trace, Frobenius and spectral norm of the same matrices: Spearman with the LiRA score.", ""]
    lines += ["| | trace | Frobenius | spectral |", "|---|---|---|---|"]
    for depth, measured in found["depths"].items():
        every = measured["all"]
        cells = [_plus(every[score]["lira"]) for score in ("gls_trace", "gls_frobenius", "gls_spectral")]
        lines.append(f"| {depth} | {' | '.join(cells)} |")
    return [*lines, ""]


def _costs(found: dict[str, Any]) -> list[str]:
    lines = [
        "Cost of the leverage of **all** training records of a target, by depth (the paper's Figure 1 has 128 records "
        "on an A100). The last layer is the closed form; deeper ones are random projections of the Gauss–Newton "
        "curvature. Damping is in units of the summed loss.",
        "",
        "| | parameters | damping | probes | steps | worst residual | error of a sketch | seconds | GB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for depth, measured in found["depths"].items():
        cells = [
            f"{measured['parameters']:,}",
            f"{measured['damping']:g}",
            *(str(measured.get(name, "–")) for name in ("probes", "most_steps_taken")),
            f"{measured['worst_residual']:.2g}" if "worst_residual" in measured else "–",
            f"{measured['sketch_error']:.2f}" if "sketch_error" in measured else "–",
            f"{measured['seconds']['mean']:.1f}",
            str(measured.get("peak_gb", "–")),
        ]
        lines.append(f"| {depth} | {' | '.join(cells)} |")
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


def _beside(found: dict[str, Any]) -> list[str]:
    if not found.get("beside"):
        return []
    lines = ["Other scores of the same targets, over all training records.", ""]
    lines += [f"| | {' | '.join(METRICS.values())} | targets |", f"|---|{'---|' * (len(METRICS) + 1)}"]
    for name, measured in found["beside"].items():
        cells = [_plus(measured[metric]) for metric in METRICS]
        lines.append(f"| {OURS[name]} | {' | '.join(cells)} | {measured['targets']} |")
    return [*lines, ""]


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
        told = measured["tradeoff"]
        lines.append(
            f"- {depth}: {told['attacks']} attacks, 2 % of the records each. Highest leverage: AUC "
            f"{_plus(told['highest']['auc'])}, TPR at 5 % FPR {_plus(told['highest']['tpr_at_5'])}. Lowest: AUC "
            f"{_plus(told['lowest']['auc'])}, TPR {_plus(told['lowest']['tpr_at_5'])}."
        )
    return [*lines, "", "![Trade-off curves](images/gls_tradeoff.png)", ""]


def _positive(depths: dict[str, Any]) -> Claim:
    text = "GLS has a positive rank correlation with the LiRA score and the other three metrics of Table 2"
    found = _judged_targets(depths)
    if not found:
        return judged(text, None, NOT_RUN)
    cells = [measured["all"]["gls_trace"][metric] for measured in found.values() for metric in METRICS]
    lowest = min(cells, key=lambda cell: cell["mean"] - cell["half_width"])
    return judged(text, lowest["mean"] > lowest["half_width"], f"{_plus(lowest)} at least, in {_these(found)}")


def _correlated(found: dict[str, Any], depths: dict[str, Any]) -> Claim:
    """As printed, within the printed spread."""
    text = "GLS has a Spearman of 0.50 or more with a target's LiRA score"
    if not depths:
        return judged(text, None, NOT_RUN)
    values = {depth: measured["all"]["gls_trace"]["lira"] for depth, measured in depths.items()}
    printed = {depth: mean - spread for depth, (mean, spread) in TABLE_2["lira"].items()}
    enough = _judged_targets(depths)
    holds = all(values[depth]["mean"] >= printed[depth] for depth in enough) if enough else None
    why = ", ".join(f"{_plus(value)} ({depth}, {_targets(value)})" for depth, value in values.items())
    why += f"; two targets' LiRA scores of the same records: {_plus(found['lira_of_two_targets'])}"
    return judged(text, holds, f"{why}; judged where there are {FEW} targets or more")


def _attackable(depths: dict[str, Any]) -> Claim:
    text = "records of high GLS are more attackable than those of low GLS"
    if "last layer" not in depths:
        return judged(text, None, NOT_RUN)
    told = depths["last layer"]["tradeoff"]
    high, low = told["highest"]["auc"], told["lowest"]["auc"]
    share = told["share_of_models_higher"]
    why = f"LiRA's AUC is {_plus(high)} on the highest 2 % and {_plus(low)} on the lowest, higher for {share:.0%} of "
    return judged(text, share >= MOST, why + f"{told['attacks']} models (asked: {MOST:.0%})")


def _last_layer(depths: dict[str, Any]) -> Claim:
    text = "the last layer is about as good as deeper GLS"
    deeper = {depth: depths[depth] for depth in DEPTHS[1:] if depth in depths}
    if "last layer" not in depths or not deeper:
        return judged(text, None, NOT_RUN)
    enough, gains, told = _judged_targets(deeper), [], []
    for depth, measured in deeper.items():
        own, last = measured["all"]["gls_trace"]["lira"], measured["last layer of these targets"]
        over_all = measured["over all models"]
        size, size_of_last = (over_all[score]["effect_size"] for score in ("gls_trace", "last layer of these targets"))
        gains += [own["mean"] - last["mean"], size - size_of_last] if depth in enough else []
        told.append(
            f"{own['mean']:.2f} against {last['mean']:.2f} and {size:.2f} against {size_of_last:.2f} "
            f"({depth}, {_targets(own)})"
        )
    why = "Spearman with the LiRA score and with the effect size, deeper against the last layer of the same targets: "
    holds = max(gains) <= AS_GOOD if gains else None
    asked = f"asked: at most {AS_GOOD} more, where there are {FEW} targets or more"
    return judged(text, holds, f"{why}{', '.join(told)}; {asked}")


def _alike(depths: dict[str, Any]) -> Claim:
    text = "trace, Frobenius and spectral norm lead to similar results"
    if not depths:
        return judged(text, None, NOT_RUN)
    found = {
        depth: min(measured["all"][f"{score}_with_trace"]["mean"] for score in ("gls_frobenius", "gls_spectral"))
        for depth, measured in depths.items()
    }
    why = "Spearman with the trace at least " + ", ".join(f"{value:.2f} ({depth})" for depth, value in found.items())
    why += f"; asked: {ALIKE}"
    return judged(text, min(found.values()) >= ALIKE, why)


def _judged_targets(depths: dict[str, Any]) -> dict[str, Any]:
    """Those depths with enough targets to judge by."""
    return {depth: measured for depth, measured in depths.items() if measured["targets"] >= FEW}


def _these(depths: dict[str, Any]) -> str:
    return ", ".join(f"{depth} ({measured['targets']} targets)" for depth, measured in depths.items())


def _targets(value: dict[str, float]) -> str:
    return f"{value['of']} targets" if value["of"] > 1 else "one target"


def _cell(found: dict[str, Any] | None, depth: str, metric: str) -> str:
    if found is None or depth not in found["depths"]:
        return NOT_RUN
    return _plus(found["depths"][depth]["all"]["gls_trace"][metric])


def _plus(value: dict[str, float], digits: int = 2) -> str:
    """A mean with its ±, which a few targets do not have."""
    mean = f"{round(value['mean'], digits) + 0.0:.{digits}f}".replace("-", "−")
    return mean if value["of"] < FEW else f"{mean} ± {value['half_width']:.{digits}f}"
