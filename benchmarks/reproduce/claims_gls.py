"""What the GLS paper claims, judged by what was measured of ResNet-18."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.claims import NOT_RUN, Claim, Results, judged
from benchmarks.reproduce.printed_gls import METRICS, TABLE_2
from benchmarks.reproduce.shown_gls import FEW, PRINTED, SHOWN, at_all_depths, doubtful, missing, plus, shown_depths

MOST = 0.95  # of the models, for which it must be so
AS_GOOD = 0.05  # of a rank correlation
ALIKE = 0.9  # rank correlation of two summaries of one matrix


def claims(results: Results) -> list[Claim]:
    """The paper's sentences with their verdicts."""
    found = at_all_depths(results)
    depths = found["depths"] if found else {}
    return [_positive(depths), _correlated(depths), _attackable(depths), _last_layer(found, depths), _alike(depths)]


def _positive(depths: dict[str, Any]) -> Claim:
    text = "GLS has a positive rank correlation with the LiRA score and the other three metrics of Table 2"
    found = _judged_depths(depths)
    if not found:
        return judged(text, None, NOT_RUN)
    cells = {
        (depth, metric): measured["all"]["gls_trace"][metric]
        for depth, measured in found.items()
        for metric in METRICS
        if metric in measured["all"]["gls_trace"]
    }
    lowest = min(cells, key=lambda cell: cells[cell]["mean"] - cells[cell]["half_width"])
    why = f"{plus(cells[lowest])} at least ({lowest[0]}, {METRICS[lowest[1]]}), over all training records, in "
    return judged(text, cells[lowest]["mean"] > cells[lowest]["half_width"], why + _these(found))


def _correlated(depths: dict[str, Any]) -> Claim:
    text = "GLS has a Spearman of 0.50, within the printed spread or more, with a target's LiRA score"
    if not depths:
        return judged(text, None, NOT_RUN)
    values = {depth: measured["all"]["gls_trace"] for depth, measured in depths.items()}
    printed = {depth: value - width for depth, (value, width) in TABLE_2["lira"].items()}
    enough = _judged_depths(depths)
    holds = all(values[depth]["lira"]["mean"] >= printed[PRINTED[depth]] for depth in enough) if enough else None
    told = [
        f"{plus(value['lira'])}, and {plus(value['effect_size'])} with the effect size that the other models show "
        f"({depth}, {_targets(value['lira'])}{_unjudged(depths[depth])})"
        for depth, value in values.items()
    ]
    return judged(text, holds, f"{'; '.join(told)}; judged where there are {FEW} targets or more")


def _attackable(depths: dict[str, Any]) -> Claim:
    text = "records of high GLS are more attackable than those of low GLS"
    if "last layer" not in depths:
        return judged(text, None, NOT_RUN)
    told = depths["last layer"]["tradeoff"]
    high, low = told["highest"]["auc"], told["lowest"]["auc"]
    share = told["share_of_models_higher"]
    why = f"LiRA's AUC is {plus(high)} on the highest 2 % and {plus(low)} on the lowest, higher for {share:.0%} of "
    return judged(text, share >= MOST, why + f"{told['attacks']} models (asked: {MOST:.0%})")


def _last_layer(found: dict[str, Any] | None, depths: dict[str, Any]) -> Claim:
    text = "the last layer is about as good as deeper GLS"
    deeper = {depth: depths[depth] for depth in SHOWN[1:] if depth in depths}
    if "last layer" not in depths:
        return judged(text, None, NOT_RUN)
    enough, gains, told = _judged_depths(deeper), [], []
    for depth, measured in deeper.items():
        pairs = [
            (measured["all"]["gls_trace"][metric]["mean"], measured["last layer of these targets"][metric]["mean"])
            for metric in ("lira", "effect_size")
        ]
        gains += [own - last for own, last in pairs] if depth in enough else []
        shown = " and ".join(f"{own:.2f} against {last:.2f}" for own, last in pairs)
        same = measured["with the last layer"]["mean"]
        count = f"{_targets(measured['with the last layer'])}{_unjudged(measured)}"
        told.append(f"{shown} ({depth}, {count}; {same:.3f} with the last layer's)")
    told += [f"{depth} {missing(found, depth)}" for depth in shown_depths(found)[1:] if depth not in depths]
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
    told = [f"{value:.2f} ({depth}{_unjudged(depths[depth])})" for depth, value in found.items()]
    solved = [value for depth, value in found.items() if not doubtful(depths[depth])]
    return judged(
        text,
        min(solved) >= ALIKE if solved else None,
        f"Spearman with the trace at least {', '.join(told)}; asked: {ALIKE}",
    )


def _judged_depths(depths: dict[str, Any]) -> dict[str, Any]:
    """Those with enough targets to judge by, and solved well enough."""
    return {
        depth: measured for depth, measured in depths.items() if measured["targets"] >= FEW and not doubtful(measured)
    }


def _unjudged(measured: dict[str, Any]) -> str:
    return ", not judged: an error of solves that is too large" if doubtful(measured) else ""


def _these(depths: dict[str, Any]) -> str:
    each = []
    for depth, measured in depths.items():
        without = [title for metric, title in METRICS.items() if metric not in measured["all"]["gls_trace"]]
        each.append(f"{depth} ({measured['targets']} targets{''.join(f', no {title}' for title in without)})")
    return ", ".join(each)


def _targets(value: dict[str, float]) -> str:
    return f"{value['of']} targets" if value["of"] > 1 else "one target"
