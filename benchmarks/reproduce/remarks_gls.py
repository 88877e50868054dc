"""What the rows of the GLS paper's Table 2 can and cannot say here, and why they differ."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.printed_gls import SET_UP, TABLE_2
from benchmarks.reproduce.shown_gls import DOUBTFUL, MORE, cell, plus, shown_depths, solve_error


def how_to_read(found: dict[str, Any]) -> list[str]:
    """What the rows of Table 2 can and cannot say here."""
    depths = [depth for depth in shown_depths(found) if depth in found["depths"]]
    outside, halves, strength = found["models_trained"] // 5, found["two_halves_of_the_models"], found["attack"]
    fitted = ", ".join(f"{cell(found, depth, 'tpr_fitted')} ({depth})" for depth in depths)
    last = found["depths"][depths[0]]
    first = {name: last["first"]["gls_trace"][name] for name in ("lira", "effect_size")}
    pairs = found["lira_of_two_targets"]
    between = f"Two targets' scores of the records that they share have a Spearman of {plus(pairs)}. " if pairs else ""
    told = [
        f"How much these models memorize: LiRA has an AUC of {plus(strength['auc'], 3)} on all records of a model and "
        f"a TPR of {plus(strength['tpr_at_5'], 3)} at an FPR of 5 %. The paper gives neither, nor how well its models "
        "fit what they were trained on.",
        f"LiRA score: how much likelier the answer of this one model is with the record than without. {between}GLS "
        f"({depths[0]}) goes with −φ of the same model ({cell(found, depths[0], 'minus_phi')}): the less sure a model "
        "is of a record, the higher its GLS, and the lower its LiRA score. So the part of either that is of this one "
        "model works against the correlation.",
        f"Effect size: μ_in − μ_out over the pooled deviation, of all models but the target. It is of the record. Over "
        f"the first 128 training records, which is what the paper scores, GLS ({depths[0]}) has {plus(first['lira'])} "
        f"with the LiRA score and {plus(first['effect_size'])} with the effect size. The paper does not say whether "
        "its LiRA scores are of one model or of many.",
        f"σ_out/σ_in: the one half of our models and the other agree on it with a Spearman of "
        f"{halves['deviation_ratio']:.2f} (\\|μ_out − μ_in\\| {halves['mean_gap']:.2f}, effect size "
        f"{halves['effect_size']:.2f}); with {outside} models without a record, what halves agree on little is mostly "
        "noise, and its row says little of the paper's. The paper's text has σ_in/σ_out, its table the inverse, as "
        "here.",
        f"\\|μ_out − μ_in\\|: the paper has next to none ({_printed_range('mean_gap')}), ours is "
        f"{cell(found, depths[0], 'mean_gap')} ({depths[0]}). We know no cause: of which statistic the paper's means "
        "are is not said; ours are of φ. Leverage that goes with σ_out/σ_in and not with a gap is what the linear "
        "model has for residuals, whose two means are equal.",
        f"TPR takes steps: {outside} models were trained without a record, of which {int(0.05 * outside)} may be "
        f"accused at 5 %. With the rate that the normal laws fitted by LiRA give instead, the correlations are "
        f"{fitted}.",
        *_fewer_targets(found),
    ]
    return [f"- {line}" for line in told]


def _printed_range(metric: str) -> str:
    values = [value for value, _ in TABLE_2[metric].values()]
    return f"{min(values):.2f} to {max(values):.2f}"


def _fewer_targets(found: dict[str, Any]) -> list[str]:
    few = {depth: measured for depth, measured in found["depths"].items() if measured["targets"] < found["targets"]}
    if not few:
        return []
    slowest = max(few.values(), key=lambda measured: measured["seconds"]["mean"])
    return [
        f"Deeper layers have fewer targets than {SET_UP['target models']}, for their cost: up to "
        f"{slowest['seconds']['mean']:.0f} s a target. They are held against the last layer of the same targets."
    ]


def ended_early(found: dict[str, Any], depths: list[str]) -> str:
    each = [
        f"{depth}: {solve_error(measured)} after {measured['most_steps_taken']} steps, with a residual of "
        f"{measured['worst_residual']:.2g}"
        for depth, measured in found["depths"].items()
        if depth in depths
    ]
    return (
        f"An error of solves of {DOUBTFUL} or more ({'; '.join(each)}), so this is shown and not judged. [On a small "
        "network whose exact leverage is known](network.md#what-it-costs) such solves left sums too high and the "
        "order nearly right; how far sums are off here was not measured."
    )


def more_targets(found: dict[str, Any]) -> str:
    more, measured = found["more"], found["depths"][MORE]
    last = measured["last layer of these targets"]
    return (
        f"{MORE[0].upper()}{MORE[1:]}: {measured['targets']} (held-out accuracy "
        f"{plus(more['accuracy']['accuracy_held_out'], 3)}), none of the {more['references']['models']} models. "
        f"{measured['unsolved']} of {measured['right_sides']} right sides were not at the tolerance of "
        f"{more['solving']['tolerance']:g} after {measured['most_steps_taken']} steps (residual "
        f"{measured['worst_residual']:.2g} at most), with an error of {measured['solve_error']:.2f} at most. With a "
        "target's own φ, the means and deviations kept of those models (in float16) give its LiRA scores and the other "
        "rows, but neither the TPR nor the attack on the highest and lowest 2 %, which take every model's answer; the "
        "effect size is the same for all of these targets. Their last layer has "
        f"{plus(last['lira'])} with the LiRA score and {plus(last['effect_size'])} with the effect size."
    )
